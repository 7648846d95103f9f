"""Batch norm over sequences is torch.nn.BatchNorm1d over the right numbers, and a plain loop for each step's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from indrnn.layers.masks import valid_steps
from indrnn.layers.norm import SequenceBatchNorm, StepBatchNorm, next_position
from tests.processes import Results, assert_one_batch, divided, work, work_in_processes

T, B, N, R = 11, 7, 13, 5
LENGTHS = torch.tensor([4, 11, 0, 7, 1, 11, 7])
FEW = torch.tensor([1, 3, 0, 1, 6, 1, 0])  # five valid samples at first, then two, then one, then none
NAN = float("nan")

pytestmark = pytest.mark.usefixtures("_one_thread")

Norm = SequenceBatchNorm | StepBatchNorm
AnyNorm = TypeVar("AnyNorm", bound=SequenceBatchNorm | StepBatchNorm)
Shared = tuple[dict[str, tuple[Results, Sequence[Results]]], str]

dtypes = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
betweens = pytest.mark.parametrize("between", [(), (3,), (2, 3)], ids=["no dimension", "one between", "two between"])
momenta = pytest.mark.parametrize("momentum", [0.0, 0.1, 0.3, 1.0])
paddings = pytest.mark.parametrize("padding", [0.0, 1e6, NAN], ids=["zero", "large", "NaN"])
forms = pytest.mark.parametrize(
    "make",
    [
        lambda **options: SequenceBatchNorm(N, **options),
        lambda **options: StepBatchNorm(N, R, **options),
    ],
    ids=["sequence", "step"],
)
Make = Callable[..., Norm]


def tolerance(dtype: torch.dtype) -> dict[str, Any]:
    """In float64 what is promised; in float32 the roundings of gradients that are sums of hundreds of numbers."""
    return {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 2e-5}


def unsettled(norm: AnyNorm) -> AnyNorm:
    """With parameters and running statistics that are not at their start."""
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean):
            if tensor is not None:
                tensor.normal_()
        norm.running_var.uniform_(0.5, 2)
    return norm


def sequence(*between: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Neurons of different means and deviations, steps too."""
    scale, shift = torch.linspace(0.5, 3, N, dtype=dtype), torch.linspace(-4, 4, N, dtype=dtype)
    x = torch.randn(T, B, *between, N, dtype=dtype) * scale + shift
    return x * torch.linspace(0.5, 1.5, T, dtype=dtype).view(T, *[1] * (x.dim() - 1))


def padded(x: Tensor, lengths: Tensor, value: float) -> Tensor:
    valid = valid_by_hand(lengths)
    return torch.where(valid.view(*valid.shape, *[1] * (x.dim() - 2)), x, value)


def valid_by_hand(lengths: Tensor | None) -> Tensor:
    if lengths is None:
        return torch.ones(T, B, dtype=torch.bool)
    return torch.tensor([[t < length for length in lengths.tolist()] for t in range(T)])


class Twin(nn.Module):
    """torch.nn.BatchNorm1d of the valid numbers alone; zeros elsewhere."""

    def __init__(self, norm: SequenceBatchNorm) -> None:
        super().__init__()
        affine = norm.weight is not None
        dtype = norm.running_mean.dtype
        self.norm = nn.BatchNorm1d(N, norm.eps, norm.momentum, affine, dtype=dtype).train(norm.training)
        self.norm.load_state_dict({**norm.state_dict(), "num_batches_tracked": torch.tensor(0)})

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        valid = valid_by_hand(lengths)
        values = x[valid]
        y = torch.zeros_like(x)
        y[valid] = self.norm(values.reshape(-1, N)).view_as(values)
        return y


def assert_same(actual: Results, expected: Results, **tolerances: Any) -> None:
    """All that both know: the twin's names begin with `norm.`, and it counts its batches."""
    renamed = {name.removeprefix("norm."): value for name, value in expected.items()}
    renamed.pop("num_batches_tracked", None)
    actual = {name: value for name, value in actual.items() if name != "num_batches_tracked"}
    assert actual.keys() == renamed.keys()
    for name, value in actual.items():
        assert_close(value, renamed[name], msg=f"{name}: {{}}".format, **tolerances)


# ---- over batch and time: what torch.nn.BatchNorm1d gives for the valid numbers


@dtypes
@betweens
@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["no lengths", "lengths"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_sequence_equals_torch(
    training: bool, lengths: Tensor | None, between: tuple[int, ...], dtype: torch.dtype
) -> None:
    norm = unsettled(SequenceBatchNorm(N, dtype=dtype)).train(training)
    twin = Twin(norm)
    for _ in range(3):  # the running statistics of several batches
        x = sequence(*between, dtype=dtype)
        gradient = torch.randn_like(x)
        options = {} if lengths is None else {"lengths": lengths}
        actual, expected = (work(module, x, options, gradient) for module in (norm, twin))
        assert_same(actual, expected, **tolerance(dtype))


@momenta
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "not affine"])
def test_sequence_settings_are_torchs(affine: bool, momentum: float) -> None:
    norm = unsettled(SequenceBatchNorm(N, 0.01, momentum, affine, dtype=torch.float64))
    twin = Twin(norm)
    assert len(list(norm.parameters())) == (2 if affine else 0)
    for training in (True, True, False):
        x = sequence()
        for module in (norm, twin):
            module.train(training)
        assert_same(work(norm, x, {}, x), work(twin, x, {}, x), **tolerance(x.dtype))


# ---- padding, in both forms


@paddings
@betweens
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@forms
def test_padding_is_nothing(make: Make, training: bool, between: tuple[int, ...], padding: float) -> None:
    norm = unsettled(make(dtype=torch.float64)).train(training)
    x = sequence(*between)
    valid, gradient = valid_by_hand(LENGTHS), torch.randn_like(x)
    expected = work(copy.deepcopy(norm), x, {"lengths": LENGTHS}, gradient)
    # The gradient that comes back to padding, which nothing reads, may be anything.
    actual = work(norm, padded(x, LENGTHS, padding), {"lengths": LENGTHS}, padded(gradient, LENGTHS, 1e3))
    assert_same(actual, expected, rtol=0, atol=0)
    assert (actual["output"][~valid] == 0).all()
    assert (actual["input.grad"][~valid] == 0).all()
    assert actual["output"][valid].isfinite().all()


@forms
def test_full_lengths_are_no_lengths(make: Make) -> None:
    norm = unsettled(make(dtype=torch.float64))
    x = sequence()
    expected = work(copy.deepcopy(norm), x, {}, x)
    assert_same(work(norm, x, {"lengths": torch.full((B,), T)}, x), expected, **tolerance(x.dtype))


@forms
@pytest.mark.parametrize("lengths", [[0, 0, 0, 1, 0, 0, 0], [0] * B], ids=["one number", "none"])
def test_too_few_numbers_update_nothing(make: Make, lengths: list[int]) -> None:
    norm = unsettled(make(dtype=torch.float64))
    if isinstance(norm, SequenceBatchNorm) and max(lengths) == 1:
        with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
            norm(sequence(), lengths=torch.tensor(lengths))
        return
    before = copy.deepcopy(norm.state_dict())
    results = work(norm, sequence(), {"lengths": torch.tensor(lengths)}, torch.ones(T, B, N, dtype=torch.float64))
    assert_close(norm.state_dict(), before, rtol=0, atol=0)
    # A number by itself lies at its own mean, whatever it is: it comes out as the shift, and no gradient goes back.
    assert_close(results["output"][0, 3], (max(lengths) * norm.get_parameter("bias")).detach())
    assert results["output"].count_nonzero() == N * max(lengths)
    assert (results["input.grad"] == 0).all()
    assert all(value.isfinite().all() for value in results.values())


@forms
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_no_steps(training: bool, make: Make) -> None:
    norm = unsettled(make()).train(training)
    before = copy.deepcopy(norm.state_dict())
    assert norm(torch.zeros(0, B, N)).shape == (0, B, N)
    assert_close(norm.state_dict(), before, rtol=0, atol=0)


# ---- for each step


def walk(
    norm: StepBatchNorm,
    x: Tensor,
    position: Tensor | None = None,
    lengths: Tensor | None = None,
    resets: Tensor | None = None,
) -> tuple[list[list[int]], Tensor, Tensor, Tensor]:
    """Step by step: each sample's row (-1 in padding), the running mean and variance, and the position after.

    Resets are for the position alone.
    """
    mean, var, tracked = norm.running_mean.clone(), norm.running_var.clone(), norm.num_batches_tracked.tolist()
    seen = [0] * B if position is None else position.tolist()
    valid, rows = valid_by_hand(lengths), []
    for t in range(T):
        row = [-1] * B
        for b in range(B):
            if valid[t, b]:
                seen[b] = 0 if resets is not None and resets[t, b] else seen[b]
                row[b] = min(t, R - 1) if norm.training else seen[b] % R
                seen[b] += 1
        values = x[t, valid[t]].reshape(-1, N)
        if len(values) >= 2:
            for r in set(row) - {-1}:
                tracked[r] += 1
                momentum = 1 / tracked[r] if norm.momentum is None else norm.momentum
                mean[r] = (1 - momentum) * mean[r] + momentum * values.mean(0)
                var[r] = (1 - momentum) * var[r] + momentum * values.var(0)
        rows.append(row)
    return rows, mean, var, torch.tensor(seen)


def step_options() -> dict[str, dict[str, Tensor]]:
    resets = torch.zeros(T, B, dtype=torch.bool)
    for t, b in [(0, 0), (2, 1), (3, 1), (4, 4), (4, 5), (6, 0), (6, 6), (10, 3)]:
        resets[t, b] = True
    position = torch.tensor([0, 2, 9, 4, 1, 0, 3])
    return {
        "from the start": {},
        "positions": {"position": position},
        "resets": {"resets": resets},
        "lengths": {"lengths": LENGTHS},
        "positions and lengths": {"position": position, "lengths": LENGTHS},
        "few valid": {"lengths": FEW},
        "all": {"position": position, "resets": resets, "lengths": LENGTHS},
    }


WITHOUT_RESETS = {name: options for name, options in step_options().items() if "resets" not in options}
options_of_steps = pytest.mark.parametrize("options", WITHOUT_RESETS.values(), ids=WITHOUT_RESETS.keys())


class StepTwin(nn.Module):
    """In training: torch.nn.BatchNorm1d over each step's valid numbers. One by itself gives the shift."""

    def __init__(self, norm: StepBatchNorm) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(N, norm.eps, track_running_stats=False, dtype=norm.running_mean.dtype)
        self.norm.load_state_dict({name: norm.state_dict()[name] for name in ("weight", "bias")})

    def forward(self, x: Tensor, lengths: Tensor | None = None, **_: Tensor) -> Tensor:
        valid, y = valid_by_hand(lengths), torch.zeros_like(x)
        for t in range(T):
            values = x[t, valid[t]]
            flat = values.reshape(-1, N)
            if len(flat):
                # torch refuses a single row, whose deviation from its mean is 0
                new = self.norm(flat) if len(flat) > 1 else (flat - flat) * self.norm.weight + self.norm.bias
                y[t, valid[t]] = new.view_as(values)
        return y


@dtypes
@betweens
@options_of_steps
def test_step_equals_torch_at_each_step(
    options: dict[str, Tensor], between: tuple[int, ...], dtype: torch.dtype
) -> None:
    # In float32, the deviation of two samples that lie near each other is known to few digits: eps must outweigh it.
    norm = unsettled(StepBatchNorm(N, R, 1e-5 if dtype == torch.float64 else 0.1, dtype=dtype))
    x = sequence(*between, dtype=dtype)
    gradient = torch.randn_like(x)
    expected = work(StepTwin(norm), x, options, gradient)
    expected["running_mean"], expected["running_var"] = walk(norm, x, **options)[1:3]
    assert_same(work(norm, x, options, gradient), expected, **tolerance(dtype))


@pytest.mark.parametrize("momentum", [0.0, 0.1, 0.3, 1.0, None])
@options_of_steps
def test_step_momentum(options: dict[str, Tensor], momentum: float | None) -> None:
    norm = unsettled(StepBatchNorm(N, R, momentum=momentum, dtype=torch.float64))
    for _ in range(3):
        x = sequence()
        _, mean, var, _ = walk(norm, x, **options)
        norm(x, **options)
        assert_close((norm.running_mean, norm.running_var), (mean, var), **tolerance(x.dtype))


def test_step_with_one_row() -> None:
    norm = unsettled(StepBatchNorm(N, 1, dtype=torch.float64))
    x = sequence()
    expected = norm.running_mean[0]
    for x_t in x:
        expected = 0.9 * expected + 0.1 * x_t.mean(0)
    norm(x)
    assert_close(norm.running_mean, expected.unsqueeze(0), **tolerance(x.dtype))


def test_step_leaves_rows_that_do_not_occur() -> None:
    norm = unsettled(StepBatchNorm(N, T + 4))
    before = copy.deepcopy(norm.state_dict())
    norm(sequence(dtype=torch.float32), torch.full((B,), 2))  # positions are for evaluation
    for name, buffer in norm.named_buffers():
        changed = (buffer != before[name]).view(T + 4, -1).all(dim=-1)
        assert changed.tolist() == [row < T for row in range(T + 4)]
        assert torch.equal(buffer[~changed], before[name][~changed])


@betweens
@options_of_steps
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "not affine"])
def test_step_evaluation_reads_each_samples_row(
    affine: bool, options: dict[str, Tensor], between: tuple[int, ...]
) -> None:
    norm = unsettled(StepBatchNorm(N, R, affine=affine, dtype=torch.float64)).eval()
    x, before = sequence(*between), copy.deepcopy(norm.state_dict())
    weight, bias = (1.0, 0.0) if norm.weight is None or norm.bias is None else (norm.weight, norm.bias)
    expected = torch.zeros_like(x)
    for t, row in enumerate(walk(norm, x, **options)[0]):
        for b, r in enumerate(row):
            if r >= 0:
                deviation = (norm.running_var[r] + norm.eps).sqrt()
                expected[t, b] = (x[t, b] - norm.running_mean[r]) / deviation * weight + bias
    assert_close(norm(x, **options), expected, **tolerance(x.dtype))
    assert_close(norm.state_dict(), before, rtol=0, atol=0)


def position_after(
    x: Tensor, position: Tensor | None = None, lengths: Tensor | None = None, resets: Tensor | None = None
) -> Tensor:
    return next_position(x, position, lengths, resets, None)


@pytest.mark.parametrize("options", step_options().values(), ids=step_options().keys())
def test_next_position(options: dict[str, Tensor]) -> None:
    x = sequence()
    expected = walk(StepBatchNorm(N, R, dtype=torch.float64), x, **options)[3]
    assert torch.equal(position_after(x, **options), expected)
    assert torch.equal(position_after(x[:0], expected, torch.zeros_like(expected)), expected)
    assert torch.equal(position_after(x[:0]), torch.zeros(B, dtype=torch.int64))


def test_a_reset_in_the_padding_is_none() -> None:
    lengths, resets = torch.full((B,), 6), torch.zeros(T, B, dtype=torch.bool)
    resets[8] = True
    assert position_after(sequence(), None, lengths, resets).tolist() == [6] * B


@options_of_steps
@pytest.mark.parametrize("sizes", [[1] * T, [3, 0, 1, 5, 2]], ids=["frames", "ragged chunks"])
def test_step_in_chunks_equals_whole(sizes: list[int], options: dict[str, Tensor]) -> None:
    norm = unsettled(StepBatchNorm(N, R, dtype=torch.float64)).eval()
    x = sequence()
    position, lengths = options.get("position"), options.get("lengths")
    pieces, start = [], 0
    for size in sizes:
        piece = slice(start, start + size)
        part = x[piece]
        left = None if lengths is None else (lengths - start).clamp(0, size)
        pieces.append(norm(part, position, left))
        position = position_after(part, position, left)
        start += size
    assert start == T
    assert_close(torch.cat(pieces), norm(x, **options), rtol=0, atol=0)
    assert position is not None
    assert torch.equal(position, walk(norm, x, **options)[3])


def test_valid_steps() -> None:
    x = sequence()
    assert valid_steps(x, None) is None
    valid = valid_steps(x, LENGTHS)
    assert valid is not None
    assert torch.equal(valid, valid_by_hand(LENGTHS))


# ---- types, precision, derivatives, in both forms


@forms
@pytest.mark.parametrize("own", [torch.bfloat16, torch.float32], ids=lambda dtype: f"parameters {dtype}")
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_bfloat16_is_normalised_in_float32(training: bool, own: torch.dtype, make: Make) -> None:
    norm = unsettled(make(dtype=own)).train(training)
    exact = copy.deepcopy(norm).double()
    x, gradient = sequence(dtype=torch.bfloat16), torch.randn(T, B, N, dtype=torch.bfloat16)
    results = work(norm, x, {"lengths": LENGTHS}, gradient)
    expected = work(exact, x.double(), {"lengths": LENGTHS}, gradient.double())
    assert results["output"].dtype == results["input.grad"].dtype == torch.bfloat16
    for name in ("output", "input.grad", "running_mean", "running_var"):
        # One rounding of the result; statistics in bfloat16 are rounded before they are mixed, too. The gradient is
        # a difference of numbers that are near its largest.
        value = results[name].double()
        rounding = torch.finfo(results[name].dtype).eps
        atol = 2 * rounding * float(expected[name].abs().max())
        assert_close(value, expected[name], rtol=rounding, atol=atol, msg=f"{name}: {{}}".format)


@forms
def test_autocast_changes_nothing(make: Make) -> None:
    # What is float32 stays so: in bfloat16 the products of an update would lose most of the statistics' digits.
    norm = unsettled(make())
    x = sequence(dtype=torch.float32)
    expected = work(copy.deepcopy(norm), x, {"lengths": LENGTHS}, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = work(norm, x, {"lengths": LENGTHS}, x)
    assert_same(actual, expected, rtol=0, atol=0)


@forms
@pytest.mark.parametrize("lengths", [None, T - torch.arange(29) % 3], ids=["no lengths", "lengths"])
def test_a_mean_far_above_the_deviation(lengths: Tensor | None, make: Make) -> None:
    norm = make()
    exact = copy.deepcopy(norm).double()
    x = 1e4 + torch.randn(T, 29, N)
    gradient = torch.randn_like(x)
    options = {} if lengths is None else {"lengths": lengths}
    results = {name: value.double() for name, value in work(norm, x, options, gradient).items()}
    expected = work(exact, x.double(), options, gradient.double())
    assert_close(results["running_mean"], expected["running_mean"], rtol=3e-7, atol=0)
    # The mean is known to a few of 10^4 · 2^-24 = 0.0006 deviations; the variance is wrong by that squared.
    assert_close(results["running_var"], expected["running_var"], rtol=1e-5, atol=0)
    assert_close(results["output"], expected["output"], rtol=0, atol=3e-3)
    assert_close(results["input.grad"], expected["input.grad"], rtol=0, atol=3e-3)


@forms
@betweens
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_gradcheck(training: bool, between: tuple[int, ...], make: Make) -> None:
    norm = unsettled(make(dtype=torch.float64)).train(training)

    def call(x: Tensor, weight: Tensor, bias: Tensor) -> Any:
        return torch.func.functional_call(norm, {"weight": weight, "bias": bias}, (x,), {"lengths": LENGTHS})

    x = sequence(*between).requires_grad_()
    inputs = (x, norm.get_parameter("weight"), norm.get_parameter("bias"))
    assert torch.autograd.gradcheck(call, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


# ---- as modules


@forms
def test_copies_compute_the_same(make: Make, tmp_path: Path) -> None:
    norm = unsettled(make())
    norm(sequence(dtype=torch.float32))
    safetensors.torch.save_file(norm.state_dict(), tmp_path / "norm.safetensors")
    loaded, from_file = make(), make()
    loaded.load_state_dict(norm.state_dict())
    from_file.load_state_dict(safetensors.torch.load_file(tmp_path / "norm.safetensors"))
    x = sequence(dtype=torch.float32)
    for training in (False, True):
        modules = (norm, loaded, from_file, copy.deepcopy(norm))
        outputs = [module.train(training)(x) for module in modules]
        for output, module in zip(outputs, modules, strict=True):
            assert torch.equal(output, outputs[0])
            assert_close(module.state_dict(), norm.state_dict(), rtol=0, atol=0)


@forms
def test_reset_parameters(make: Make) -> None:
    norm = unsettled(make())
    norm.reset_parameters()
    assert_close(norm.state_dict(), make().state_dict(), rtol=0, atol=0)


@forms
def test_types_of_parameters_and_statistics(make: Make) -> None:
    for name, tensor in make(dtype=torch.float64).state_dict().items():
        assert tensor.dtype == (torch.int64 if name == "num_batches_tracked" else torch.float64), name


def test_repr_shows_sizes_and_settings() -> None:
    assert "13, eps=1e-05, momentum=0.1" in repr(SequenceBatchNorm(N))
    assert "13, 5, eps=0.01, momentum=0.3, synchronised=True" in repr(StepBatchNorm(N, R, 0.01, 0.3, synchronised=True))


BAD_ARGUMENTS: list[tuple[Callable[[], nn.Module], type[Exception], str]] = [
    (lambda: SequenceBatchNorm(0), ValueError, "num_features must be at least 1, got 0"),
    (lambda: SequenceBatchNorm(1.0), TypeError, "num_features must be an integer, got float"),  # type: ignore[arg-type]
    (lambda: SequenceBatchNorm(N, eps=0.0), ValueError, r"eps must be positive, got 0\.0"),
    (lambda: SequenceBatchNorm(N, momentum=1.1), ValueError, r"momentum must lie in \[0, 1\] or be None, got 1\.1"),
    (lambda: SequenceBatchNorm(N, momentum=NAN), ValueError, r"momentum must lie in \[0, 1\] or be None, got nan"),
    (lambda: StepBatchNorm(N, 0), ValueError, "steps must be at least 1, got 0"),
    (lambda: StepBatchNorm(0, R), ValueError, "num_features must be at least 1, got 0"),
]


@pytest.mark.parametrize(("make", "error", "message"), BAD_ARGUMENTS, ids=[case[-1] for case in BAD_ARGUMENTS])
def test_bad_arguments_are_named(make: Callable[[], nn.Module], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


@forms
@pytest.mark.parametrize("shape", [(T, B, N + 1), (B, N), (N,)], ids=str)
def test_bad_inputs_are_named(shape: tuple[int, ...], make: Make) -> None:
    with pytest.raises(ValueError, match=r"x must have the shape \(T, B, \.\.\., 13\), got \("):
        make()(torch.zeros(shape))


# ---- one batch in two processes


EVEN, UNEVEN = 3, 1
"""How many of the seven samples the first process has."""


def shared_batches() -> dict[str, tuple[type[Norm], dict[str, Tensor], int]]:
    """The norm, its other arguments, and how the batch is divided."""
    steps = step_options()
    # Too few in each process for a variance, and enough in both together
    one_each = {"lengths": torch.tensor([0, 0, 5, 0, 0, 2, 0])}
    none_in_one = {"lengths": torch.tensor([0, 3, 11, 0, 6, 1, 1])}
    early_in_one = {"lengths": torch.tensor([3, 2, 1, 11, 11, 11, 9])}
    return {
        "sequence, even": (SequenceBatchNorm, {}, EVEN),
        "sequence, uneven": (SequenceBatchNorm, {}, UNEVEN),
        "sequence, all samples in one": (SequenceBatchNorm, {}, 0),
        "sequence, lengths": (SequenceBatchNorm, {"lengths": LENGTHS}, EVEN),
        "sequence, nothing valid in one": (SequenceBatchNorm, none_in_one, UNEVEN),
        "sequence, one valid number each": (SequenceBatchNorm, {"lengths": one_each["lengths"].clamp_max(1)}, EVEN),
        "step, even": (StepBatchNorm, {}, EVEN),
        "step, uneven": (StepBatchNorm, {}, UNEVEN),
        "step, all samples in one": (StepBatchNorm, {}, 0),
        "step, lengths": (StepBatchNorm, {"lengths": torch.tensor([11, 4, 6, 7, 11, 3, 7])}, EVEN),
        "step, positions": (StepBatchNorm, steps["positions"], EVEN),
        "step, shorter in one": (StepBatchNorm, early_in_one, EVEN),
        "step, one valid sample each": (StepBatchNorm, one_each, EVEN),
        "step, positions and lengths": (StepBatchNorm, steps["positions and lengths"], UNEVEN),
    }


@pytest.fixture(scope="module")
def in_two_processes(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """For each shared batch, what one process makes of it and what two do; and what the two said."""
    torch.manual_seed(0)
    wholes, calls = [], []
    for kind, options, first in shared_batches().values():
        norm: Norm = SequenceBatchNorm(N, synchronised=True, dtype=torch.float64)
        if kind is StepBatchNorm:
            norm = StepBatchNorm(N, R, synchronised=True, dtype=torch.float64)
        unsettled(norm)
        x, gradient = sequence(), torch.randn(T, B, N, dtype=torch.float64)
        calls.append(divided(norm, x, options, gradient, first))
        wholes.append(work(norm, x, options, gradient))
    by_rank = [list(of_rank) for of_rank in zip(*calls, strict=True)]
    results, said = work_in_processes(by_rank, tmp_path_factory.mktemp("two"))
    pairs = zip(wholes, zip(*results, strict=True), strict=True)
    return dict(zip(shared_batches(), pairs, strict=True)), said


@pytest.mark.parametrize("name", shared_batches())
def test_statistics_of_two_processes(name: str, in_two_processes: Shared) -> None:
    whole, parts = in_two_processes[0][name]
    assert len(parts) == 2
    assert_one_batch(parts, whole, **tolerance(torch.float64))


def test_two_processes_warn_of_nothing(in_two_processes: Shared) -> None:
    assert in_two_processes[1] == ""


@forms
def test_synchronised_in_one_process_is_not(make: Make) -> None:
    norm, alone = unsettled(make(synchronised=True)), make()
    alone.load_state_dict(norm.state_dict())
    x = sequence(dtype=torch.float32)
    assert_same(work(norm, x, {}, x), work(alone, x, {}, x), rtol=0, atol=0)


# ---- as torch's own


@pytest.mark.parametrize("shape", [(1, 1, N), (1, 1, 1, N)], ids=str)
def test_one_value_in_training_raises_as_torchs(shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training") as expected:
        nn.BatchNorm1d(N)(x.view(1, N))
    for norm in (SequenceBatchNorm(N), StepBatchNorm(N, R)):
        with pytest.raises(ValueError, match=str(expected.value).partition(", got")[0]):
            norm(x)
        norm.eval()(x)
    with pytest.raises(ValueError, match="Expected more than 1 value"):
        StepBatchNorm(N, R)(torch.zeros(T, 1, N))
    SequenceBatchNorm(N)(torch.zeros(T, 1, N))


@forms
def test_the_mean_over_all_batches(make: Make) -> None:
    norm = unsettled(make(momentum=None, dtype=torch.float64))
    norm.reset_running_stats()
    xs = [sequence() for _ in range(4)]
    for x in xs:
        norm(x[:R])  # at most one step for each row
    dims = (0, 1) if isinstance(norm, SequenceBatchNorm) else (1,)
    assert_close(norm.running_mean, torch.stack([x[:R].mean(dims) for x in xs]).mean(0), **tolerance(torch.float64))
    assert_close(norm.running_var, torch.stack([x[:R].var(dims) for x in xs]).mean(0), **tolerance(torch.float64))
    assert (norm.num_batches_tracked == 4).all()
    norm.reset_running_stats()
    assert (norm.num_batches_tracked == 0).all()
    assert (norm.running_mean == 0).all()
    assert isinstance(norm, nn.modules.batchnorm._BatchNorm)


@forms
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
def test_meta(training: bool, make: Make) -> None:
    norm = make(device="meta").train(training)
    y = norm(torch.zeros(T, B, N, device="meta"))
    assert y.is_meta
    assert y.shape == (T, B, N)


def test_memory_of_steps_grows_with_steps_and_not_with_their_square() -> None:
    """What a pass takes at its peak, counted by what torch allocates: twice the steps and rows, twice the memory."""
    peaks = []
    for steps in (200, 400):
        norm, x = StepBatchNorm(4, steps), torch.randn(steps, 8, 4)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            norm(x)
        peaks.append(sum(max(event.self_cpu_memory_usage, 0) for event in profile.events() or ()))
    assert peaks[1] < 2.2 * peaks[0]
