"""The bound on recurrent weights: where it comes from, what starts inside it, and what holds them there."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from indrnn import IndRNN, IndRNNCell, RecurrentBound, attach_constraint, constrain_
from indrnn.layers import EPSILON

M, N = 3, 13
MANY = 10_000
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]

dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def as_id(value: Any) -> str:
    return ", ".join(f"{name}={setting}" for name, setting in value.items()) if isinstance(value, dict) else str(value)


def recurrent(module: nn.Module) -> dict[str, Tensor]:
    """Every u by name; not the recurrent matrices of torch's own layers."""
    return {name: p for name, p in module.named_parameters() if "weight_hh" in name and p.dim() == 1}


def fill_(module: nn.Module, value: float) -> None:
    """Give each recurrent weight this size, with signs in turn."""
    with torch.no_grad():
        for u in recurrent(module).values():
            u.copy_(torch.where(torch.arange(len(u)) % 2 == 0, value, -value))


def largest(u: Tensor) -> float:
    return u.detach().double().abs().max().item()


def held(module: nn.Module) -> bool:
    """Whether every recurrent weight of a module with one bound lies within it, as float64 sees the two."""
    bounds = {child.upper for child in module.modules() if isinstance(child, RecurrentBound)}
    assert len(bounds) == 1
    return max(largest(u) for u in recurrent(module).values()) <= bounds.pop()


def representable(low: float, high: float, dtype: torch.dtype) -> bool:
    """Whether the type has a number in [low, high]."""
    near = torch.tensor(low, dtype=dtype)
    above = torch.nextafter(near, torch.tensor(math.inf, dtype=dtype))
    return any(low <= value.double() <= high for value in (near, above))


# ---- the bound


@pytest.mark.parametrize(("gamma", "T"), [(2.0, 5000), (2.0, 1), (0.5, 7), (10.0, 784), (1.0, 13)], ids=str)
def test_bound_is_the_root_of_gamma(gamma: float, T: int) -> None:
    assert IndRNN(M, N, gamma=gamma, sequence_length=T).bound.upper == gamma ** (1 / T)
    assert IndRNNCell(M, N, gamma=gamma, sequence_length=T).bound.upper == gamma ** (1 / T)


def test_gamma_1_is_the_default_and_needs_no_length() -> None:
    assert IndRNN(M, N).bound.upper == 1.0
    assert IndRNN(M, N, sequence_length=100).bound.upper == 1.0
    assert IndRNN(M, N, gamma=1).bound.upper == 1.0


@pytest.mark.parametrize("bidirectional", [False, True])
def test_highest_start_is_of_all_layers_but_those_of_a_long_memory(bidirectional: bool) -> None:
    options: dict[str, Any] = {"sequence_length": 10, "epsilon": 0.5, "bidirectional": bidirectional}
    short = IndRNN(M, MANY // 100, 2, highest_start=0.3, **options)
    both = IndRNN(M, MANY // 100, 2, highest_start=0.3, long_memory=True, **options)
    for name, u in short.named_parameters():
        if "weight_hh" in name:
            assert 0.29 < float(u.detach().max()) <= 0.3
            assert 0 <= float(u.detach().min()) < 0.01
            last = both.get_parameter(name).detach()
            assert float(last.max()) > 0.99 if "_l1" in name else 0.29 < float(last.max()) <= 0.3
            assert "_l1" not in name or float(last.min()) >= 0.5**0.1
    assert "highest_start=0.3" in repr(short)
    assert short.bound.upper == 1.0  # where u may come to be


@pytest.mark.parametrize("wrong", [0, -0.5, 1.5, math.nan, "0.5", True])
def test_highest_start_must_lie_below_the_bound(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"highest_start must be a number in \(0, 1.0\], up to the bound"):
        IndRNN(M, N, highest_start=wrong)
    IndRNN(M, N, gamma=None, highest_start=1.5)


@pytest.mark.parametrize("options", [{"gamma": 2.0}, {"long_memory": True}, {"lower_bound": True}], ids=as_id)
def test_what_needs_a_length_says_so(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="sequence_length is needed"):
        IndRNN(M, N, **options)


def test_long_memory_above_the_bound_is_refused() -> None:
    with pytest.raises(ValueError, match=r"epsilon.*must not lie above the bound"):
        IndRNN(M, N, gamma=0.1, sequence_length=10, long_memory=True, epsilon=0.2)


# ---- initialisation


@pytest.mark.parametrize(
    ("gamma", "T", "bound"), [(1.0, None, 1.0), (2.0, 2, 2**0.5), (0.25, 2, 0.5), (None, None, 1.0)], ids=str
)
def test_recurrent_weights_start_uniform_up_to_the_bound(gamma: float | None, T: int | None, bound: float) -> None:
    layer = IndRNN(1, MANY, bidirectional=True, gamma=gamma, sequence_length=T)
    assert len(recurrent(layer)) == 2
    for u in recurrent(layer).values():
        assert 0 <= u.min() < 0.001 * bound
        assert 0.999 * bound < largest(u) <= bound
        # Of a uniform variable: the mean is b/2, the deviation b/√12; over 10,000 draws the mean strays by b/350.
        assert abs(u.mean() - bound / 2) < 0.015 * bound
        assert abs(u.std() - bound / 12**0.5) < 0.015 * bound


@pytest.mark.parametrize("bidirectional", [False, True], ids=["unidirectional", "bidirectional"])
def test_long_memory_changes_the_last_layer_only(bidirectional: bool) -> None:
    T = 784
    layers = []
    for long_memory in (False, True):
        torch.manual_seed(1)
        layers.append(
            IndRNN(M, MANY // 100, 3, bidirectional=bidirectional, sequence_length=T, long_memory=long_memory)
        )
    plain, long = (dict(layer.named_parameters()) for layer in layers)
    last = {"weight_hh_l2", *(["weight_hh_l2_reverse"] if bidirectional else [])}
    for name in plain:
        assert torch.equal(plain[name], long[name]) == (name not in last), name
    for name in last:
        assert plain[name].min() < 0.5
        assert long[name].min() >= torch.tensor(EPSILON ** (1 / T))
        assert largest(long[name]) <= 1


@pytest.mark.parametrize(("gamma", "T", "epsilon"), [(1.0, 784, 0.2), (2.0, 5000, 0.5), (0.9, 7, 0.1)], ids=str)
def test_long_memory_is_uniform_in_its_range(gamma: float, T: int, epsilon: float) -> None:
    layer = IndRNN(1, MANY, gamma=gamma, sequence_length=T, long_memory=True, epsilon=epsilon, dtype=torch.float64)
    u = layer.get_parameter("weight_hh_l0")
    low, high = epsilon ** (1 / T), gamma ** (1 / T)
    assert low <= u.min() < low + 0.001 * (high - low)
    assert high - 0.001 * (high - low) < u.max() <= high
    assert abs(u.mean() - (low + high) / 2) < 0.015 * (high - low)


@dtypes
@pytest.mark.parametrize("T", [50, 784, 5000])
def test_long_memory_starts_in_its_range_in_every_type(T: int, dtype: torch.dtype) -> None:
    low = EPSILON ** (1 / T)
    assert representable(low, 1.0, dtype)
    u = IndRNN(1, MANY, sequence_length=T, long_memory=True, dtype=dtype).get_parameter("weight_hh_l0")
    assert low <= u.detach().double().min()
    assert largest(u) <= 1


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        ("upper", {"gamma": 3.0}),
        ("upper", {"gamma": None}),
        ("upper", {"sequence_length": 20}),
        ("upper", {"gamma": 1.0, "bound": 0.9}),
        ("start", {"epsilon": 0.5}),
        ("start", {"sequence_length": 20}),
        ("lower", {"lower_bound": True}),
    ],
    ids=as_id,
)
def test_each_switch_changes_the_number_it_names(changed: str, options: dict[str, Any]) -> None:
    base: dict[str, Any] = {"gamma": 2.0, "sequence_length": 10, "long_memory": True}
    before = vars(IndRNN(M, N, **base).bound)
    after = vars(IndRNN(M, N, **{**base, **options}).bound)
    names = {name for name in ("upper", "lower", "start") if before[name] != after[name]}
    assert changed in names
    assert names <= ({"upper", "start"} if "sequence_length" in options else {changed})


@pytest.mark.parametrize(
    "options",
    [{"gamma": 3.0}, {"sequence_length": 50}, {"epsilon": 0.9}, {"long_memory": False}, {"gamma": None}],
    ids=as_id,
)
def test_each_switch_changes_the_recurrent_weights_and_nothing_else(options: dict[str, Any]) -> None:
    base: dict[str, Any] = {"gamma": 2.0, "sequence_length": 10, "epsilon": 0.1, "long_memory": True}
    drawn = []
    for chosen in (base, {**base, **options}):
        torch.manual_seed(2)
        drawn.append(dict(IndRNN(M, N, **chosen).named_parameters()))
    assert not torch.equal(drawn[0]["weight_hh_l0"], drawn[1]["weight_hh_l0"])
    for name in ("weight_ih_l0", "bias_l0"):
        assert torch.equal(drawn[0][name], drawn[1][name])


def test_lower_bound_lifts_one_recurrent_weight_of_each_layer_from_the_start() -> None:
    # Among few neurons none reaches 0.998 by chance.
    layers = []
    for lower_bound in (False, True):
        torch.manual_seed(0)
        layers.append(IndRNN(M, 7, 2, bidirectional=True, sequence_length=784, lower_bound=lower_bound))
    plain, lifted = (recurrent(layer) for layer in layers)
    for name in plain:
        assert (plain[name] != lifted[name]).sum() == 1, name
        assert lifted[name].argmax() == plain[name].argmax()


def test_reset_parameters_obeys_the_bound_of_the_moment() -> None:
    layer = IndRNN(1, MANY)
    layer.bound.upper = 0.25
    layer.reset_parameters()
    assert 0.249 < largest(layer.get_parameter("weight_hh_l0")) <= 0.25


# ---- the bound as state


def test_weights_of_another_bound_are_taken_with_a_warning_and_the_layers_own_bound() -> None:
    short = IndRNN(M, N, gamma=2, sequence_length=10)
    fill_(short, 2 ** (1 / 10))
    layer = IndRNN(M, N, gamma=2, sequence_length=1000)
    with pytest.warns(
        UserWarning, match=r"held in \|u\| <= 1\.07177346 .* has the bound 1\.00069339 .* which it keeps"
    ):
        layer.load_state_dict(short.state_dict())
    assert layer.bound.upper == 2 ** (1 / 1000)
    assert torch.equal(layer.weight_hh_l0, short.weight_hh_l0)
    constrain_(layer)
    assert held(layer)


@pytest.mark.parametrize("options", [{"gamma": None}, {"bound": 0.99}, {"sequence_length": 9, "lower_bound": True}])
def test_any_other_bound_is_said(options: dict[str, Any]) -> None:
    layer = IndRNN(M, N)
    with pytest.warns(UserWarning, match="which it keeps"):
        layer.load_state_dict(IndRNN(M, N, **options).state_dict())
    assert (layer.bound.upper, layer.bound.lower) == (1.0, 0.0)


def test_weights_of_the_same_bound_are_taken_without_a_word() -> None:
    options: dict[str, Any] = {"gamma": 2, "sequence_length": 5000, "lower_bound": True, "epsilon": 0.3}
    layer, other = IndRNN(M, N, **options), IndRNN(M, N, **options)
    other.load_state_dict(layer.state_dict())
    assert other.bound.upper == 2 ** (1 / 5000)
    assert other.bound.lower == 0.3 ** (1 / 5000)


def saved_and_loaded(model: nn.Module, path: Path) -> nn.Module:
    safetensors.torch.save_file(model.state_dict(), path)
    other = copy.deepcopy(model).to(next(model.parameters()).dtype)
    other.load_state_dict(safetensors.torch.load_file(path))
    return other


@pytest.mark.parametrize(
    "travel",
    [
        lambda model, path: copy.deepcopy(model),
        lambda model, path: pickle.loads(pickle.dumps(model)),
        lambda model, path: model.to(torch.bfloat16),
        lambda model, path: model.half().float(),
        lambda model, path: saved_and_loaded(model.to(torch.bfloat16), path),
    ],
    ids=["deepcopy", "pickle", "bfloat16", "float16 and back", "safetensors of bfloat16"],
)
def test_bound_is_never_rounded(travel: Callable[[nn.Module, Path], nn.Module], tmp_path: Path) -> None:
    upper, lower = 2 ** (1 / 5000), 0.3 ** (1 / 5000)
    model = nn.Sequential(IndRNN(M, N, gamma=2, sequence_length=5000, lower_bound=True, epsilon=0.3), nn.Linear(N, 1))
    bound = travel(model, tmp_path / "model").get_submodule("0.bound")
    assert isinstance(bound, RecurrentBound)
    assert (bound.upper, bound.lower) == (upper, lower)


def test_copies_have_bounds_of_their_own() -> None:
    layer = IndRNN(M, N)
    other = copy.deepcopy(layer)
    other.bound.upper = 0.5
    assert layer.bound.upper == 1.0


def test_repr_shows_the_bound() -> None:
    assert "upper=0.5, lower=0.25" in repr(RecurrentBound(0.5, 1, 0.25, lower_bound=True))


# ---- constrain_


@dtypes
@pytest.mark.parametrize("bound", [0.9999, 2 ** (1 / 5000), 1.0, 0.99, 0.5, 1.7], ids=lambda bound: f"{bound:.6g}")
def test_constrain_rounds_toward_zero(bound: float, dtype: torch.dtype) -> None:
    layer = IndRNN(M, N, 2, bidirectional=True, dtype=dtype)
    layer.bound.upper = bound
    fill_(layer, 2.0)
    before = {name: u.detach().clone() for name, u in recurrent(layer).items()}
    constrain_(layer)
    step = torch.finfo(dtype).eps * bound
    for name, u in recurrent(layer).items():
        assert largest(u) <= bound, name
        assert u.detach().double().abs().min() > bound - step, f"{name}: no further than the type makes it"
        assert torch.equal(u.sign(), before[name].sign()), name


@dtypes
def test_constrain_leaves_what_is_inside_alone(dtype: torch.dtype) -> None:
    layer = IndRNN(M, MANY, gamma=0.9, sequence_length=3, dtype=dtype)
    with torch.no_grad():
        layer.get_parameter("weight_hh_l0").uniform_(-2, 2)
    before = {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}
    constrain_(layer)
    for name, parameter in layer.named_parameters():
        if name == "weight_hh_l0":
            inside = before[name].double().abs() <= layer.bound.upper
            assert 0 < inside.sum() < MANY
            assert torch.equal(parameter[inside], before[name][inside])
        else:
            assert torch.equal(parameter, before[name]), name


def test_constrain_reaches_every_layer_with_its_own_bound() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.RNN(M, M), IndRNN(M, N, gamma=0.5, sequence_length=1)])
            self.steps = nn.Sequential(nn.Linear(N, M), IndRNNCell(M, N, gamma=2, sequence_length=4))
            self.unbound = IndRNN(M, N, gamma=None)
            self.bound = 0.1  # another's attribute of the same name

    model = nn.Sequential(Nested())
    fill_(model, 3.0)
    with torch.no_grad():
        model.get_parameter("0.layers.0.weight_hh_l0").fill_(5.0)
    before = copy.deepcopy(model.state_dict())
    constrain_(model)
    assert {name: largest(u) for name, u in recurrent(model).items()} == pytest.approx(
        {"0.layers.1.weight_hh_l0": 0.5, "0.steps.1.weight_hh": 2**0.25, "0.unbound.weight_hh_l0": 3.0}
    )
    for name, parameter in model.named_parameters():
        assert name in recurrent(model) or torch.equal(parameter, before[name]), name


@pytest.mark.parametrize("off", ["gamma=None", "upper=inf"])
def test_bound_can_be_off(off: str) -> None:
    layer = IndRNN(M, N, gamma=None if off == "gamma=None" else 1.0)
    if off == "upper=inf":
        layer.bound.upper = math.inf
    fill_(layer, 100.0)
    constrain_(layer)
    assert (layer.get_parameter("weight_hh_l0").abs() == 100.0).all()


def test_bound_can_be_set() -> None:
    layer = IndRNN(M, N)
    layer.bound.upper = 0.25
    fill_(layer, 1.0)
    constrain_(layer)
    assert (layer.get_parameter("weight_hh_l0").abs() == 0.25).all()


def test_constrain_is_no_part_of_the_graph() -> None:
    layer = IndRNN(M, N)
    fill_(layer, 2.0)
    u = layer.get_parameter("weight_hh_l0")
    constrain_(layer)
    assert u.requires_grad
    assert u.is_leaf
    assert u.grad is None


def test_constrain_works_under_another_default_device() -> None:
    # As after torch.set_default_device("cuda"), with a model that stayed on the CPU.
    layer = IndRNN(M, N, sequence_length=9, lower_bound=True)
    fill_(layer, 2.0)
    with torch.device("meta"):
        constrain_(layer)
    assert held(layer)


# ---- the relaxed condition


@dtypes
def test_lower_bound_lifts_the_largest_only(dtype: torch.dtype) -> None:
    bound = RecurrentBound(1.0, 1, epsilon=0.75, lower_bound=True)
    u = torch.tensor([0.5, -0.625, 0.0, 0.125], dtype=dtype)
    bound.constrain_(u)
    assert u.tolist() == [0.5, -0.75, 0.0, 0.125]


@dtypes
@pytest.mark.parametrize("values", [[0.75, 0.1], [-0.75, 0.1], [0.25, 0.9, -1.0]], ids=str)
def test_lower_bound_that_is_met_changes_nothing(values: list[float], dtype: torch.dtype) -> None:
    bound = RecurrentBound(1.0, 1, epsilon=0.75, lower_bound=True)
    u = torch.tensor(values, dtype=dtype)
    before = u.clone()
    bound.constrain_(u)
    assert torch.equal(u, before)


def test_lower_bound_of_dead_weights() -> None:
    u = torch.zeros(N)
    RecurrentBound(1.0, 1, epsilon=0.5, lower_bound=True).constrain_(u)
    assert u.abs().sum() == 0.5


def test_lower_bound_holds_for_each_layer_and_direction() -> None:
    layer = IndRNN(M, N, 2, bidirectional=True, sequence_length=1, epsilon=0.5, lower_bound=True)
    fill_(layer, 0.25)
    constrain_(layer)
    assert len(recurrent(layer)) == 4
    for u in recurrent(layer).values():
        assert u.abs().sort().values.tolist() == [0.25] * (N - 1) + [0.5]


def test_no_lower_bound_unless_asked_for() -> None:
    layer = IndRNN(M, N, sequence_length=1)
    fill_(layer, 0.01)
    before = layer.get_parameter("weight_hh_l0").detach().clone()
    constrain_(layer)
    assert torch.equal(layer.get_parameter("weight_hh_l0"), before)


@dtypes
@pytest.mark.parametrize("T", [50, 100, 784, 5000])
def test_lower_bound_holds_in_every_type(T: int, dtype: torch.dtype) -> None:
    bound = RecurrentBound(1.0, T, lower_bound=True)
    u = torch.full((N,), -0.5, dtype=dtype)
    bound.constrain_(u)
    assert bound.lower <= largest(u) <= bound.upper


@dtypes
@pytest.mark.parametrize(
    ("gamma", "epsilon", "T"), [(0.9, 0.85, 784), (0.1, 0.2, 10), (0.99, 0.985, 13)], ids=["near", "above", "close"]
)
def test_lower_bound_never_breaks_the_upper(gamma: float, epsilon: float, T: int, dtype: torch.dtype) -> None:
    bound = RecurrentBound(gamma, T, epsilon, lower_bound=True)
    u = torch.zeros(N, dtype=dtype)
    bound.constrain_(u)
    assert largest(u) <= bound.upper
    if representable(bound.lower, bound.upper, dtype):
        assert largest(u) >= bound.lower


# ---- attach_constraint


Make = Callable[[Any], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "SGD": partial(torch.optim.SGD, lr=1.0, momentum=0.9),
    "Adam": partial(torch.optim.Adam, lr=0.5),
    "AdamW": partial(torch.optim.AdamW, lr=0.5),
    "LBFGS": partial(torch.optim.LBFGS, lr=1.0, max_iter=2),
}


def push_up(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One step with a loss that wants every recurrent weight at 10."""

    def closure() -> float:
        optimizer.zero_grad()
        loss = sum(((u - 10) ** 2).sum() for u in recurrent(model).values())
        assert isinstance(loss, Tensor)
        loss.backward()
        return loss.item()

    optimizer.step(closure)


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_constraint_holds_after_each_step(make: Make) -> None:
    model = nn.Sequential(IndRNN(M, N, 2, gamma=0.9, sequence_length=7))
    optimizer = make(list(recurrent(model).values()))
    handle = attach_constraint(optimizer, model)
    for _ in range(4):
        push_up(model, optimizer)
        assert held(model)
        assert largest(model.get_parameter("0.weight_hh_l0")) == pytest.approx(0.9 ** (1 / 7))
    handle.remove()
    push_up(model, optimizer)
    assert not held(model)


def test_constraint_holds_in_training() -> None:
    layer = IndRNN(M, N, nonlinearity="identity")
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    attach_constraint(optimizer, layer)
    x = torch.rand(13, 7, M)
    for _ in range(5):
        optimizer.zero_grad()
        output, _ = layer(x)
        (-output.sum()).backward()
        optimizer.step()
        assert held(layer)


def test_constraint_of_a_part_leaves_the_rest() -> None:
    model = nn.Sequential(IndRNN(M, N), IndRNN(N, N))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    attach_constraint(optimizer, model[1])
    push_up(model, optimizer)
    assert held(model[1])
    assert not held(model[0])


def test_constraint_of_nothing_is_refused() -> None:
    model = nn.Sequential(nn.Linear(M, N), nn.RNN(N, N))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(ValueError, match="module must hold an IndRNN layer to constrain, got Sequential"):
        attach_constraint(optimizer, model)


# ---- training without the constraint


def train_upwards(layer: nn.Module, steps: int, after: Callable[[], Any] = lambda: None) -> None:
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    x = torch.rand(5, 3, M)
    for _ in range(steps):
        optimizer.zero_grad()
        layer(x)[0].square().sum().mul(-1e-3).backward()
        optimizer.step()
        with torch.no_grad():
            for u in recurrent(layer).values():
                u.mul_(1.02)
        after()


def test_a_layer_that_outgrows_its_bound_says_so_once() -> None:
    layer = IndRNN(M, N, 2)
    with pytest.warns(UserWarning, match=r"exceeds its bound in training, .*attach_constraint") as said:
        train_upwards(layer, 200)
    assert len(said) == 1
    copied = copy.deepcopy(layer)
    assert pickle.loads(pickle.dumps(layer)).bound.upper == copied.bound.upper


@pytest.mark.parametrize("held_by", ["constrain_", "no bound", "evaluation", "no gradient"])
def test_nothing_is_said_where_nothing_is_wrong(held_by: str) -> None:
    layer = IndRNN(M, N, gamma=None if held_by == "no bound" else 1.0)
    if held_by in ("constrain_", "no bound"):
        train_upwards(layer, 100, lambda: constrain_(layer))
        return
    fill_(layer, 2.0)
    layer.train(held_by == "no gradient")
    with torch.no_grad() if held_by == "no gradient" else torch.enable_grad():
        for _ in range(100):
            layer(torch.rand(5, 3, M))


def test_an_optimiser_that_looks_several_times_a_step_is_no_reason_to_warn() -> None:
    layer = IndRNN(M, N)
    optimizer = torch.optim.LBFGS(layer.parameters(), lr=0.1, max_iter=20)
    attach_constraint(optimizer, layer)
    x = torch.rand(5, 3, M)

    def closure() -> float:
        optimizer.zero_grad()
        loss = (layer(x)[0] - 50).square().mean()
        loss.backward()
        return float(loss.detach())

    for _ in range(5):
        optimizer.step(closure)


def test_bound_is_given_directly() -> None:
    for layer in (IndRNN(1, MANY, bound=0.99), IndRNNCell(1, MANY, bound=0.99)):
        assert layer.bound.upper == 0.99
        assert 0.98 < max(largest(u) for u in recurrent(layer).values()) <= 0.99
    with pytest.raises(ValueError, match="bound and gamma cannot both be given"):
        IndRNN(M, N, bound=0.99, gamma=2.0, sequence_length=9)
