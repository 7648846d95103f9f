"""Two processes that train networks together: the script that `test_tools.py` starts."""

from __future__ import annotations

import copy
import sys
import warnings
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.testing import assert_close

from indrnn import constrain_
from indrnn.networks import Network, RecurrentUnit
from tests.networks.networks import ARCHITECTURES, make
from tests.processes import forked

B, T, M = 6, 9, 3
WAYS = ("ddp", "whole", "blocks", "units")


def whole(parameter: Tensor) -> Tensor:
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def shared(network: Network, how: str) -> nn.Module:
    """The network as the two processes train it."""
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(network)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))
    if how == "blocks":
        for block in network.blocks:  # type: ignore[union-attr]
            fully_shard(block, mesh=mesh)
    if how == "units":
        for unit in network.recurrent_layers:
            fully_shard(unit, mesh=mesh)
    fully_shard(network, mesh=mesh)
    return network


def train(network: nn.Module, x: Tensor) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        network(x)[0].square().mean().backward()
        optimizer.step()
        constrain_(network)


def check(how: str, rank: int) -> None:
    """Training by two is training by one, for all three networks."""
    for architecture in ARCHITECTURES:
        for norm in ("no norm", "layer norm"):  # where a sample does not depend on the others
            torch.manual_seed(0)
            options = {"sequence_length": 9, "lower_bound": True, "epsilon": 0.9}
            alone = make(architecture, norm, dtype=torch.float64, **options)
            together = shared(copy.deepcopy(alone), how)
            x = torch.randn(T, B, M, dtype=torch.float64)
            train(alone, x)
            train(together, x[:, 3 * rank : 3 * rank + 3])
            inner = together.get_submodule("module") if how == "ddp" else together
            found = {name: whole(p.detach()) for name, p in inner.named_parameters()}
            assert_close(found, {name: p.detach() for name, p in alone.named_parameters()}, rtol=1e-9, atol=1e-9)
            for unit in inner.modules():  # the lower bound, which no shard can know alone
                if isinstance(unit, RecurrentUnit):
                    assert 0.9 ** (1 / 9) <= whole(unit.weight_hh.detach()).abs().max() <= 1
        torch.manual_seed(0)  # each with its own statistics, as in torch's batch norm
        train(shared(make(architecture, "norm after"), how), torch.randn(T, B, M))


def work(folder: Path, rank: int) -> None:
    """One of the two: a file for each way that went well."""
    dist.init_process_group("gloo", f"file://{folder / 'meeting'}", rank=rank, world_size=2)
    for how in WAYS:
        check(how, rank)
        (folder / f"{how}-{rank}").touch()
    dist.barrier()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(forked(partial(work, Path(sys.argv[1])), 2))
