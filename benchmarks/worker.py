"""The program run by each version of indrnn in a comparison: `python worker.py DEVICE THREADS keep|free`.

It answers requests, one line of JSON each, until its input ends. Its path is passed to the interpreter of either
version, so the other version need not include it: it imports only what both have, and `cases.py` by its path.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import platform
import runpy
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler says on every use that it starts and stops

import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile


def peak_bytes(run: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """Peak of the memory that torch allocated during `run`."""
    run()
    gc.collect()
    if torch.device(device).type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before
    # indrnn computes nothing in place while a profiler looks; here it is to take the memory that it takes otherwise.
    with (
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
        patch.object(torch._C._autograd, "_profiler_enabled", lambda: False),
    ):
        run()
    assert profiler.profiler is not None
    events, allocations = list(profiler.profiler.kineto_results.experimental_event_tree()), []
    while events:
        event = events.pop()
        events += event.children
        if event.tag == _EventType.Allocation:
            allocations.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size))
    held = peak = 0
    own = set()
    for _, address, size in sorted(allocations, key=lambda allocation: allocation[0]):
        if size > 0:
            own.add(address)
        elif address in own:
            own.remove(address)
        else:  # from before, like the gradients of an earlier step: the profiler reports that freed at some times only
            continue
        held += size
        peak = max(peak, held)
    return peak


class Worker:
    """Makes one case at a time, and measures it; a method for each request.

    Args:
        device: the device.
        cases: the functions of `cases.py`, by name.
    """

    def __init__(self, device: str, cases: dict[str, Any]) -> None:
        self.device, self.cases = device, cases
        self.candidate: Any = None

    def hello(self) -> dict[str, Any]:
        """The versions and backends."""
        import indrnn

        return {
            "file": indrnn.__file__,
            "indrnn": indrnn.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "backends": " ".join(name for name, backend in indrnn.backends().items() if backend.available),
        }

    def make(self, name: str, sizes: dict[str, Any]) -> None:
        """Make a case, replacing the previous one, from the same seed in every version."""
        self.candidate = None
        gc.collect()
        torch.manual_seed(0)
        self.candidate = self.cases[name](self.device, **sizes)

    def results(self, path: str) -> None:
        """Write the case's outputs and gradients to a file."""
        torch.save({name: tensor.cpu() for name, tensor in self.candidate.results().items()}, path)

    def time(self, calls: int) -> float:
        """Mean milliseconds over `calls` calls, after one call that warms the cache."""
        self.candidate.run()
        self._wait()
        start = time.perf_counter()
        for _ in range(calls):
            self.candidate.run()
        self._wait()
        return (time.perf_counter() - start) * 1e3 / calls

    def peak(self) -> int:
        """The peak memory of a call."""
        return peak_bytes(self.candidate.run, self.device)

    def _wait(self) -> None:
        if torch.device(self.device).type != "cpu":
            torch.accelerator.synchronize(self.device)


def keep_memory() -> None:
    """Keep freed memory in the process; versions have this in either of two modules."""
    home = "indrnn.system" if importlib.util.find_spec("indrnn.system") else "indrnn.memory"
    importlib.import_module(home).keep_memory()


def main(device: str, threads: str, memory: str) -> None:
    """Answer requests until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; who asks ends this process
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    torch.set_num_threads(int(threads))
    if memory == "keep":
        keep_memory()
    worker = Worker(device, runpy.run_path(str(Path(__file__).with_name("cases.py"))))
    for line in sys.stdin:
        request, arguments = json.loads(line)
        try:
            answer = {"answer": getattr(worker, request)(**arguments)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
