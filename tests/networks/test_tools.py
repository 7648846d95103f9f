"""The networks under PyTorch's tools: hooks, pruning, wrappers, quantisation, checkpointing, shards, export."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.func import functional_call, grad, vmap
from torch.nn.modules import module as torch_module
from torch.nn.utils import parametrizations, parametrize, prune
from torch.optim.swa_utils import AveragedModel, update_bn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import indrnn
from indrnn.networks import Network, RecurrentUnit, State, Weight
from tests.networks.networks import ARCHITECTURES, B, M, T, inputs, make, trained

pytestmark = pytest.mark.usefixtures("_one_thread")

architectures = pytest.mark.parametrize("architecture", ARCHITECTURES)
trained_norms = pytest.mark.parametrize("norm", ["no norm", "norm before", "norm after"])
CLOSE: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}  # in float64
NUMBER_OF_WEIGHTS = {"plain": 3, "residual": 5, "dense": 9}


def weights(network: nn.Module) -> dict[str, Weight]:
    return {name: module for name, module in network.named_modules() if isinstance(module, Weight)}


def replace(network: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(network.get_submodule(parent), own, module)


def apart(network: Network) -> Network:
    """The same in separate steps of torch's own operations: nothing is computed in place."""
    other = copy.deepcopy(network)
    for unit in other.recurrent_layers:
        unit.config = type(unit.config)(**{**vars(unit.config), "fused": False, "backend": "reference"})
    return other


def train_two_steps(network: nn.Module) -> list[Tensor]:
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=0.01)
    torch.manual_seed(1)
    outputs = []
    for _ in range(2):
        optimizer.zero_grad()
        features, _ = network(torch.randn(T, B, M, dtype=torch.float64))
        features.square().mean().backward()
        optimizer.step()
        outputs.append(features.detach())
    return outputs


def kept_and_penalised(network: Network, watch: Callable[[Network, list[Tensor]], Any]) -> dict[str, Tensor]:
    """What hooks kept, as it is after the pass, and gradients of a loss with a penalty on it."""
    kept: list[Tensor] = []
    watch(network, kept)
    torch.manual_seed(2)
    x = torch.randn(T, B, M, dtype=torch.float64, requires_grad=True)
    features, _ = network(x)
    loss = features.square().mean() + sum((tensor * torch.randn_like(tensor)).sum() for tensor in kept)
    values = {f"kept {i}": tensor.detach().clone() for i, tensor in enumerate(kept)}
    names, parameters = zip(*network.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, [x, *parameters], allow_unused=True)
    return values | {name: g for name, g in zip(["input", *names], gradients, strict=True) if g is not None}


# ---- hooks


def keep_outputs(network: Network, kept: list[Tensor]) -> None:
    for weight in weights(network).values():
        weight.register_forward_hook(lambda _, __, output: kept.append(output))


def keep_inputs(network: Network, kept: list[Tensor]) -> None:
    for weight in weights(network).values():
        weight.register_forward_pre_hook(lambda _, args: kept.append(args[0]))


def keep_inputs_of_units(network: Network, kept: list[Tensor]) -> None:
    for unit in network.recurrent_layers:
        unit.register_forward_pre_hook(lambda _, args: kept.append(args[0]))


def keep_outputs_of_units(network: Network, kept: list[Tensor]) -> None:
    for unit in network.recurrent_layers:
        unit.register_forward_hook(lambda _, __, output: kept.append(output[0]))


@architectures
@trained_norms
@pytest.mark.parametrize("watch", [keep_outputs, keep_inputs, keep_inputs_of_units, keep_outputs_of_units])
def test_hooks_see_what_was_computed(
    watch: Callable[[Network, list[Tensor]], Any], norm: str, architecture: str
) -> None:
    network = make(architecture, norm, dtype=torch.float64)
    expected = kept_and_penalised(apart(network), watch)
    actual = kept_and_penalised(network, watch)
    number = len(weights(network)) if watch in (keep_outputs, keep_inputs) else len(network.recurrent_layers)
    assert sum(name.startswith("kept") for name in actual) == number
    assert len(weights(network)) == NUMBER_OF_WEIGHTS[architecture]
    assert_close(actual, expected, **CLOSE)


@architectures
def test_a_product_that_a_hook_keeps_is_the_product(architecture: str) -> None:
    network = make(architecture, dtype=torch.float64)
    seen: list[tuple[nn.Module, Tensor, Tensor]] = []
    for weight in weights(network).values():
        weight.register_forward_hook(lambda module, args, output: seen.append((module, args[0], output)))
    network(inputs(torch.float64))
    for module, x, output in seen:
        assert isinstance(module, Weight)
        assert_close(output, nn.functional.linear(x, module.weight, module.bias), **CLOSE)


@architectures
def test_global_hooks_and_function_modes_see_the_products(architecture: str) -> None:
    network = make(architecture, dtype=torch.float64)
    kept: list[tuple[Tensor, Tensor]] = []

    def hook(module: nn.Module, _: Any, output: Any) -> None:
        if isinstance(module, Weight):
            kept.append((output, output.detach().clone()))

    handle = torch_module.register_module_forward_hook(hook)
    try:
        network(inputs(torch.float64))
    finally:
        handle.remove()
    assert len(kept) == NUMBER_OF_WEIGHTS[architecture]

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            if function in (nn.functional.linear, torch.bmm):
                kept.append((result, result.detach().clone()))
            return result

    with Mode():
        network(inputs(torch.float64))
    assert len(kept) == 2 * NUMBER_OF_WEIGHTS[architecture]
    assert all(torch.equal(output, then) for output, then in kept)


@architectures
@trained_norms
def test_backward_hooks_get_the_gradients(norm: str, architecture: str) -> None:
    network = make(architecture, norm, dtype=torch.float64)
    gradients: dict[str, list[Tensor]] = {"ours": [], "apart": []}
    for name, each in {"apart": apart(network), "ours": network}.items():

        def keep(_: nn.Module, __: Any, out: Any, kept: list[Tensor] = gradients[name]) -> None:
            kept.append(out[0])

        for module in [*weights(each).values(), *each.recurrent_layers]:
            module.register_full_backward_hook(keep)
        torch.manual_seed(3)
        each(inputs(torch.float64).requires_grad_())[0].square().mean().backward()
    assert len(gradients["ours"]) == len(weights(network)) + len(network.recurrent_layers)
    assert_close(gradients["ours"], gradients["apart"], **CLOSE)


def test_without_anything_that_watches_the_product_is_computed_over() -> None:
    """What keeps memory low: the unit's h is where its Weight's product was."""
    unit = make("plain", "no norm").recurrent_layers[1]
    addresses = []
    forward = Weight.forward

    def spy(self: Weight, x: Tensor) -> Tensor:
        product = forward(self, x)
        addresses.append(product.data_ptr())
        return product

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Weight, "forward", spy)
        h, _ = unit(torch.randn(T, B, 9))
        assert addresses == [h.data_ptr()] or not indrnn.backends()["native"].chosen
        assert unit.weight is not None
        unit.weight.register_forward_hook(lambda *_: None)
        h, _ = unit(torch.randn(T, B, 9))
        assert addresses[1] != h.data_ptr()


# ---- other weights: pruning, adapters, parametrisations, quantisation


@architectures
@trained_norms
def test_pruning(norm: str, architecture: str) -> None:
    network = make(architecture, norm, dtype=torch.float64)
    by_hand = copy.deepcopy(network)
    for weight in weights(network).values():
        prune.l1_unstructured(weight, "weight", 0.5)
    masks = {name: module.get_buffer("weight_mask") for name, module in weights(network).items()}
    for name, weight in weights(by_hand).items():
        weight.weight.data.mul_(masks[name])
        weight.weight.register_hook(lambda g, mask=masks[name]: g * mask)
    assert_close(train_two_steps(network), train_two_steps(by_hand), **CLOSE)
    for name, weight in weights(network).items():
        prune.remove(weight, "weight")
        assert_close(weight.weight, by_hand.get_submodule(name).weight, **CLOSE)
        assert (weight.weight == 0).sum() >= weight.weight.numel() // 2


class LoRA(nn.Module):
    """A low-rank adapter around a frozen Linear."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(rank, base.in_features, dtype=base.weight.dtype))
        self.B = nn.Parameter(torch.randn(base.out_features, rank, dtype=base.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + x @ self.A.t() @ self.B.t()  # type: ignore[no-any-return]


@architectures
@trained_norms
def test_low_rank_adapters(norm: str, architecture: str) -> None:
    network = make(architecture, norm, dtype=torch.float64)
    merged = copy.deepcopy(network)
    for name, weight in weights(network).items():
        replace(network, name, adapter := LoRA(weight))
        merged.get_parameter(f"{name}.weight").data.add_((adapter.B @ adapter.A).detach())
    x = inputs(torch.float64)
    assert_close(network(x)[0], merged(x)[0], **CLOSE)
    before = copy.deepcopy(network.state_dict())
    train_two_steps(network)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]) != name.endswith((".A", ".B")) or not name.endswith(
            (".A", ".B", "base.weight", "base.bias")
        ), name


class Doubled(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


PARAMETRISATIONS: dict[str, Callable[[nn.Module], Any]] = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "parametrize": lambda weight: parametrize.register_parametrization(weight, "weight", Doubled()),
}


@architectures
@trained_norms
@pytest.mark.parametrize("name", PARAMETRISATIONS)
def test_parametrised_weights(name: str, norm: str, architecture: str) -> None:
    network = make(architecture, norm, dtype=torch.float64)
    plain = copy.deepcopy(network)
    for each, weight in weights(network).items():
        PARAMETRISATIONS[name](weight)
        weight.eval()  # spectral_norm's power iteration goes on in training
        plain.get_parameter(f"{each}.weight").data.copy_(weight.weight.detach())
    x = inputs(torch.float64)
    assert_close(network(x)[0], plain(x)[0], **CLOSE)
    before = [p.detach().clone() for p in network.parameters()]
    train_two_steps(network)
    moved = [not torch.equal(p, b) for p, b in zip(network.parameters(), before, strict=True)]
    assert sum(moved) >= len(moved) - 1 - len(network.recurrent_layers)  # a bias before a norm has no gradient


@architectures
@pytest.mark.filterwarnings("ignore:.*torch.ao.quantization:DeprecationWarning", "ignore:torch.quantize_per_tensor")
def test_dynamic_quantisation(architecture: str) -> None:
    network = trained(make(architecture))
    x = inputs()
    with torch.no_grad():
        expected, _ = network(x)
    # quantize_dynamic goes by the exact type, and a Weight is a Linear but for how it starts.
    for weight in weights(network).values():
        weight.__class__ = nn.Linear  # type: ignore[assignment]
    quantised = torch.ao.quantization.quantize_dynamic(network, {nn.Linear})
    kinds = [type(module).__module__ for module in quantised.modules() if hasattr(module, "in_features")]
    assert kinds == ["torch.ao.nn.quantized.dynamic.modules.linear"] * NUMBER_OF_WEIGHTS[architecture]
    with torch.no_grad():
        actual, _ = quantised(x)
    error = (actual - expected).norm() / expected.norm()
    assert 0 < error < 0.1  # of 8 bits, through a few layers


# ---- recomputation


@architectures
@trained_norms
@pytest.mark.parametrize("carried", [False, True], ids=["from zeros", "carried state"])
def test_checkpointing_every_unit(carried: bool, norm: str, architecture: str) -> None:
    network = make(architecture, norm, dtype=torch.float64)
    other = copy.deepcopy(network)
    apply_activation_checkpointing(
        other,
        lambda module: checkpoint_wrapper(module, CheckpointImpl.NO_REENTRANT),
        check_fn=lambda module: isinstance(module, RecurrentUnit),
    )
    x, state = inputs(torch.float64), None
    if carried:
        with torch.no_grad():
            state = copy.deepcopy(network)(inputs(torch.float64))[1]
    results = []
    for each in (network, other):
        features, after = each(x, state)
        (features.square().sum() + sum(h.sum() for h in after.h)).backward()
        gradients = {name.replace("_checkpoint_wrapped_module.", ""): p.grad for name, p in each.named_parameters()}
        results.append((features.detach(), [h.detach() for h in after.h], gradients))
    assert_close(results[1], results[0], **CLOSE)


@architectures
def test_one_unit_under_torch_checkpoint(architecture: str) -> None:
    unit = make(architecture, dtype=torch.float64).recurrent_layers[1]
    width = unit.weight.in_features if isinstance(unit.weight, Weight) else unit.size
    x = torch.randn(T, B, width, dtype=torch.float64, requires_grad=True)
    for h in (None, torch.randn(B, unit.size, dtype=torch.float64)):
        y, after = unit(x, h)
        expected = torch.autograd.grad(y.square().sum() + after.sum(), [x, *unit.parameters()])
        y, after = checkpoint(unit, x, h, use_reentrant=False)
        assert_close(torch.autograd.grad(y.square().sum() + after.sum(), [x, *unit.parameters()]), expected, **CLOSE)


# ---- copies and transforms


def replica_of(network: nn.Module) -> nn.Module:
    """As torch.nn.parallel.replicate makes them for DataParallel: parameters are attributes, and no leaves."""
    modules = list(network.modules())
    copies: dict[nn.Module, nn.Module] = {module: module._replicate_for_data_parallel() for module in modules}
    for module, replica in copies.items():
        for name, child in module._modules.items():
            replica._modules[name] = None if child is None else copies[child]
        for name, parameter in module._parameters.items():
            if parameter is None:
                replica._parameters[name] = None
            else:
                setattr(replica, name, parameter * 1)
        for name, buffer in module._buffers.items():
            replica._buffers[name] = None if buffer is None else buffer.clone()
    return copies[network]


@architectures
@trained_norms
def test_replicas_of_data_parallel(norm: str, architecture: str) -> None:
    network = make(architecture, norm, dtype=torch.float64)
    replica = replica_of(network)
    assert not list(replica.parameters())
    x = inputs(torch.float64)
    features, _ = replica(x)
    expected, state = copy.deepcopy(network)(x)
    assert_close(features, expected, **CLOSE)
    features.square().mean().backward()
    own = [p for name, p in network.named_parameters()]
    assert all(p.grad is not None for p in own)
    replica.eval()(x, state)


@architectures
@trained_norms
def test_functional_call(norm: str, architecture: str) -> None:
    network = make(architecture, norm, dtype=torch.float64).eval()
    other = make(architecture, norm, dtype=torch.float64).eval()
    values = {**dict(other.named_parameters()), **dict(other.named_buffers())}
    x = inputs(torch.float64)
    assert_close(functional_call(network, values, (x,))[0], other(x)[0], **CLOSE)


@architectures
@pytest.mark.parametrize("norm", ["no norm", "layer norm", "norm after"])
def test_gradients_of_each_sample(norm: str, architecture: str) -> None:
    network = make(architecture, norm, dtype=torch.float64).eval()
    parameters = {name: p.detach() for name, p in network.named_parameters()}
    x = inputs(torch.float64)

    def loss(parameters: dict[str, Tensor], sample: Tensor) -> Tensor:
        return functional_call(network, parameters, (sample.unsqueeze(1),))[0].square().sum()  # type: ignore[no-any-return]

    together = vmap(grad(loss), in_dims=(None, 1))(parameters, x)
    for b in range(B):
        alone = grad(loss)(parameters, x[:, b])
        assert_close({name: g[b] for name, g in together.items()}, alone, **CLOSE)


# ---- start


def assert_as_the_paper_starts(network: Network) -> None:
    for weight in weights(network).values():
        limit = (6 / (1 + 8**2) / weight.in_features) ** 0.5
        assert weight.weight.abs().max() <= limit
        assert weight.weight.abs().max() > 0.5 * limit
        assert weight.bias is None or (weight.bias == 0).all()
    *others, last = network.recurrent_layers
    for unit in network.recurrent_layers:
        assert unit.bias is None or (unit.bias == 0).all()
        assert unit.norm is not None
        assert unit.norm.weight.eq(1).all()  # type: ignore[operator]
        assert unit.norm.running_var.eq(1).all()  # type: ignore[operator]
        assert unit.weight_hh.min() >= 0
        assert unit.weight_hh.max() <= 1
    assert last.weight_hh.min() >= torch.tensor(0.2 ** (1 / 100))
    assert min(unit.weight_hh.min() for unit in others) < 0.9


def reset(module: nn.Module) -> None:
    if hasattr(module, "reset_parameters"):
        module.reset_parameters()  # type: ignore[operator]


@architectures
def test_starting_anew_gives_the_papers_weights(architecture: str) -> None:
    options: dict[str, Any] = {"sequence_length": 100, "long_memory": True}
    network = ARCHITECTURES[architecture](**options)
    with torch.device("meta"):
        deferred = ARCHITECTURES[architecture](**options)
    assert all(p.is_meta for p in deferred.parameters())
    inside_out, outside_in = (deferred.to_empty(device="cpu"), copy.deepcopy(deferred.to_empty(device="cpu")))
    for each in (network, inside_out, outside_in):
        with torch.no_grad():
            for tensor in (*each.parameters(), *each.buffers()):
                tensor.fill_(7)
        if each is outside_in:
            for module in each.modules():
                reset(module)
        else:
            each.apply(reset)
        assert_as_the_paper_starts(each)
        each(inputs())


@architectures
def test_tensors_of_a_state_dict_are_taken(architecture: str) -> None:
    network = make(architecture)
    with torch.device("meta"):
        other = make(architecture)
    other.load_state_dict(network.state_dict(), assign=True)
    x = inputs()
    assert_close(other.eval()(x)[0], network.eval()(x)[0], rtol=0, atol=0)


# ---- averages of weights


@architectures
def test_averaged_weights_get_statistics_of_their_own(architecture: str) -> None:
    network = make(architecture, "norm after", dtype=torch.float64)
    averaged = AveragedModel(network)
    averaged.update_parameters(network)
    batches = [inputs(torch.float64) for _ in range(3)]
    by_hand = copy.deepcopy(network)
    expected: dict[str, list[Tensor]] = {}
    for x in batches:
        for unit in by_hand.recurrent_layers:
            assert isinstance(unit.norm, indrnn.SequenceBatchNorm)
            unit.norm.momentum = 1.0
        by_hand(x)
        for name, buffer in by_hand.named_buffers():
            expected.setdefault(f"module.{name}", []).append(buffer.detach().clone().double())
    update_bn(batches, averaged)
    found = {name: b for name, b in averaged.named_buffers() if name.endswith(("running_mean", "running_var"))}
    assert len(found) == 2 * len(network.recurrent_layers)
    for name, buffer in found.items():
        assert_close(buffer, torch.stack(expected[name]).mean(0), **CLOSE)
    counts = [b for name, b in averaged.named_buffers() if name.endswith("num_batches_tracked")]
    assert all(count == 3 for count in counts)


@architectures
def test_a_converted_norm_is_refused_with_the_way_out(architecture: str) -> None:
    network = nn.SyncBatchNorm.convert_sync_batchnorm(make(architecture))
    with pytest.raises(TypeError, match=r"convert_sync_batchnorm has replaced .*synchronised=True"):
        network(inputs())


# ---- the constraint


@architectures
def test_a_parametrised_recurrent_weight_is_refused_or_unbounded(architecture: str) -> None:
    network = make(architecture)
    parametrize.register_parametrization(network.recurrent_layers[1], "weight_hh", nn.Tanh())
    message = "weight_hh of .*RecurrentUnit is computed from other parameters .*gamma=None"
    with pytest.raises(ValueError, match=message):
        indrnn.constrain_(network)
    with pytest.raises(ValueError, match=message):
        indrnn.attach_constraint(torch.optim.SGD(network.parameters()), network)
    network = make(architecture, gamma=None)
    parametrize.register_parametrization(network.recurrent_layers[1], "weight_hh", nn.Tanh())
    indrnn.constrain_(network)
    network(inputs())[0].sum().backward()


@architectures
def test_a_pruned_recurrent_weight_is_held(architecture: str) -> None:
    network = make(architecture, bound=0.5)
    for unit in network.recurrent_layers:
        prune.random_unstructured(unit, "weight_hh", 0.3)
        unit.get_parameter("weight_hh_orig").data.fill_(3.0)
    indrnn.constrain_(network)
    network(inputs())
    for unit in network.recurrent_layers:
        assert unit.weight_hh.abs().max() == 0.5
        assert (unit.weight_hh == 0).any()


# ---- several processes


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], str]:
    """The ways of sharing that went well in each of two processes, and what they said."""
    folder = tmp_path_factory.mktemp("shards")
    command = [sys.executable, str(Path(__file__).with_name("shards.py")), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    return {path.name for path in folder.iterdir()}, f"{done.returncode}: {done.stdout}{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ddp", "whole", "blocks", "units"])
def test_two_processes(how: str, two_processes: tuple[set[str], str]) -> None:
    """DistributedDataParallel and FSDP2, of the whole, of each block and of each unit, for all three networks."""
    went_well, said = two_processes
    assert {f"{how}-0", f"{how}-1"} <= went_well, said
    assert said.startswith("0: "), said


# ---- export


def test_an_exported_program_with_a_state_is_saved_and_loaded(tmp_path: Path) -> None:
    network = trained(make("plain", "norm after"))
    x = inputs()
    with torch.no_grad():
        _, state = network(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(network, (x, state))
        torch.export.save(program, tmp_path / "network.pt2")
        loaded = torch.export.load(tmp_path / "network.pt2").module()
    with torch.no_grad():
        features, after = loaded(x, state)
        expected, expected_after = network(x, state)
    assert_close(features, expected)
    assert isinstance(after, State)
    assert_close(after, expected_after)
