"""A module's work, here or divided between processes that share one batch; also the script that each of them runs."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

Results = dict[str, Tensor]
Call = tuple[nn.Module, Tensor, dict[str, Any], Tensor]
"""The module, its input, its other arguments, and the gradient that comes back to its output."""


def work(module: nn.Module, x: Tensor, options: dict[str, Any], gradient: Tensor) -> Results:
    """Forward and backward: the output, the gradients of the input and of each parameter, and the buffers."""
    x = x.detach().requires_grad_()
    y = module(x, **options)
    y = y[0] if isinstance(y, tuple) else y
    parameters = dict(module.named_parameters())
    gradients = torch.autograd.grad(y, [x, *parameters.values()], gradient)
    return {
        "output": y.detach(),
        **{f"{name}.grad": grad for name, grad in zip(["input", *parameters], gradients, strict=True)},
        **{name: buffer.detach().clone() for name, buffer in module.named_buffers()},
    }


def work_in_processes(calls: list[list[Call]], directory: Path, seconds: float = 60) -> tuple[list[list[Results]], str]:
    """Each process's calls, made in step with those of the others; and what they said, which may be a warning."""
    torch.save(calls, directory / "calls")
    command = [sys.executable, __file__, str(directory), str(len(calls))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr
    return [torch.load(directory / f"results{rank}") for rank in range(len(calls))], done.stderr


def divided(module: nn.Module, x: Tensor, options: dict[str, Any], gradient: Tensor, first: int) -> list[Call]:
    """A call on (T, B, ...) as two: for the `first` samples, and for the rest."""
    parts = (slice(0, first), slice(first, None))
    return [
        (
            copy.deepcopy(module),
            x[:, part],
            {name: value[:, part] if name == "resets" else value[part] for name, value in options.items()},
            gradient[:, part],
        )
        for part in parts
    ]


def assert_one_batch(parts: Sequence[Results], whole: Results, **tolerance: Any) -> None:
    """The parts' outputs side by side are the whole's; the loss is their sum; statistics are the same everywhere."""
    for name, expected in whole.items():
        pieces = [part[name] for part in parts]
        if name in ("output", "input.grad"):
            pieces = [torch.cat(pieces, dim=1)]
        elif name.endswith(".grad"):
            pieces = [torch.stack(pieces).sum(0)]
        for piece in pieces:
            torch.testing.assert_close(piece, expected, msg=f"{name}: {{}}".format, **tolerance)


def one(directory: Path, rank: int, size: int) -> None:
    """What one process does."""
    dist.init_process_group("gloo", f"file://{directory / 'meeting'}", rank=rank, world_size=size)
    calls = torch.load(directory / "calls", weights_only=False)[rank]
    torch.save([work(*call) for call in calls], directory / f"results{rank}")
    dist.barrier()


def forked(work: Callable[[int], None], size: int) -> int:
    """Run it in so many processes, forked from this one, as the import of torch is what costs; the worst exit code."""
    torch.set_num_threads(1)
    children = []
    for rank in range(size):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                work(rank)
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)  # torch now and then aborts in its own clean-up, after collectives that were differentiated
        children.append(child)
    return max(abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) for child in children)


if __name__ == "__main__":
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    sys.exit(forked(lambda rank: one(folder, rank, count), count))
