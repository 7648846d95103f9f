"""Half precision on CPUs that report AMX but cannot run it: a probe, and the variable that avoids the crash.

Some virtual machines pass on the CPU's flags (`amx_bf16`) but not the instructions. oneDNN, which computes torch's
half-precision products on CPUs, relies on the flags: the process is killed by SIGILL, or an operation fails with "could
not create a primitive", as does every later one. ONEDNN_MAX_CPU_ISA, read at oneDNN's first use, disables AMX.
"""

from __future__ import annotations

import os
import subprocess
import sys

VARIABLE, LIMIT = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE"

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
    environment = dict(os.environ) if limit is None else os.environ | {VARIABLE: limit}
    child = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, check=False)
    return child.returncode == 0


def limit_where_needed() -> str | None:
    """Set ONEDNN_MAX_CPU_ISA for this process and its children if half precision fails without it.

    Call before the first product: oneDNN reads the variable once. A value that is already set is kept.

    Returns:
        A line for the user about the failure and what was done; None if nothing was needed.
    """
    if VARIABLE in os.environ or half_precision_works():
        return None
    fails = "half precision fails on this CPU, which announces instructions it cannot run"
    if not half_precision_works(LIMIT):
        return f"{fails} or lacks something else: it fails with {VARIABLE}={LIMIT} too"
    os.environ[VARIABLE] = LIMIT
    return f"{fails}: {VARIABLE} is set to {LIMIT}"
