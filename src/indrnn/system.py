"""The process: notes, signals, memory, half precision on CPUs that announce more than they can, denormals."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any


def note(text: str) -> None:
    """Print a line to standard error; only in one of the processes that torchrun started on this machine."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr)


@contextlib.contextmanager
def signals() -> Iterator[list[int]]:
    """Collect Ctrl-C, SIGTERM and SIGHUP instead of terminating; a second signal has its usual effect."""
    received: list[int] = []
    with contextlib.ExitStack() as before:

        def collect(number: int, _frame: Any) -> None:
            received.append(number)
            before.close()

        if threading.current_thread() is threading.main_thread():
            for name in ("SIGINT", "SIGTERM", "SIGHUP"):
                number = getattr(signal, name, None)  # no SIGHUP on Windows; and nohup ignores it
                if number is not None and (name != "SIGHUP" or signal.getsignal(number) is not signal.SIG_IGN):
                    before.callback(signal.signal, number, signal.signal(number, collect))
        yield received


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out."""
    said = str(error).lower() if isinstance(error, RuntimeError) else ""
    words = ("can't allocate memory", "out of memory", "not enough memory")
    return isinstance(error, MemoryError) or any(word in said for word in words)


_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
"""Of glibc's malloc.h."""


def keep_memory() -> bool:
    """Keep freed memory in this process instead of giving it back to the system.

    A training step on the CPU frees hundreds of megabytes of activations and allocates as much again. By default glibc
    returns them to the system in between, which provides them again page by page, filled with zeros. This takes a tenth
    of the time of a step of this package's networks, and half of it if tensors are larger than 32 MB. Intended for
    programs that train; the process stays at its peak size.

    Returns:
        Whether it took effect: with glibc, on Linux.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    if mallopt is None:
        return False
    # No piece of memory of its own for a large tensor, which would go back when it is freed; and nothing trimmed.
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, -1))


_program = False


def run_as_program() -> None:
    """Say that this process is the program `indrnn` alone, whose settings `load_torch` may change."""
    global _program
    _program = True


def load_torch() -> None:
    """Import torch; in the program, flush numbers below 1.2e-38 to 0, through which vanishing gradients pass slowly.

    Call it before other threads exist: torch sets it for the calling thread, and threads started from there inherit it
    permanently. In a process that continues afterwards threads would differ, so only the program itself does this.
    """
    import torch

    if _program:
        torch.set_flush_denormal(True)
        # NumPy finds it odd when something asks it for the limits of a type
        warnings.filterwarnings("ignore", message="The value of the smallest subnormal")


# ---- half precision

ONEDNN_VARIABLE, ONEDNN_LIMIT = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE"

# What dies or raises on such a machine, and last what worked before one of them raised.
PROBE = """
import torch

for dtype in (torch.bfloat16, torch.float16):
    x, weight = torch.ones(64, 64, dtype=dtype), torch.ones(64, 64, dtype=dtype)
    torch.nn.functional.linear(x, weight, weight[0])
    torch.mm(x, weight)
torch.nn.LSTM(8, 8)(torch.ones(4, 2, 8))
"""


def half_precision_works(limit: str | None = None) -> bool:
    """Whether half-precision products run in a child process, with ONEDNN_MAX_CPU_ISA set to `limit` if given.

    Takes as long as `import torch`.
    """
    environment = dict(os.environ) if limit is None else os.environ | {ONEDNN_VARIABLE: limit}
    child = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, check=False)
    return child.returncode == 0


def limit_onednn() -> str | None:
    """Set ONEDNN_MAX_CPU_ISA for this process and its children if half precision fails without it.

    Some virtual machines pass on the CPU's flags (`amx_bf16`) but not the instructions. oneDNN, which computes torch's
    half-precision products on CPUs, relies on the flags: the process is killed by SIGILL, or an operation fails with
    "could not create a primitive", as does every later one. The variable disables AMX. Call this before the first
    product: oneDNN reads the variable once. A value that is already set is kept.

    Returns:
        A line for the user about the failure and what was done; None if nothing was needed.
    """
    if ONEDNN_VARIABLE in os.environ or half_precision_works():
        return None
    problem = "half precision fails on this CPU, which announces instructions it cannot run"
    if not half_precision_works(ONEDNN_LIMIT):
        return f"{problem} or lacks something else: it fails with {ONEDNN_VARIABLE}={ONEDNN_LIMIT} too"
    os.environ[ONEDNN_VARIABLE] = ONEDNN_LIMIT
    return f"{problem}: {ONEDNN_VARIABLE} is set to {ONEDNN_LIMIT}"
