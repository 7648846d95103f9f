"""The Triton kernels compile for GPUs that are not here, with registers enough; also the script that compiles them.

What is compiled is what the backends launch: the script lets them run on CPU tensors and takes down each launch.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from indrnn.ops import scan
from indrnn.ops.calls import Backward, Forward, NormBackward, NormForward
from indrnn.ops.triton import backend

T = 784
SIZES = {"B=50, N=128": (50, 128), "B=32, N=128": (32, 128), "B=128, N=2000": (128, 2000)}
TARGETS = {"sm_75": 75, "sm_80": 80, "sm_90": 90, "sm_100": 100, "gfx942": "gfx942"}
Launch = tuple[str, dict[str, Any], dict[str, Any]]
"""The kernel's name, its settings and its arguments."""

CASES = [pytest.param("sm_90", "float32", "few")] + [
    pytest.param(target, dtype, "all", marks=pytest.mark.slow)
    for target in TARGETS
    for dtype in ("float32", "bfloat16")
]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize(("target", "dtype", "options"), CASES)
def test_every_kernel_compiles_and_nothing_spills(target: str, dtype: str, options: str, tmp_path: Path) -> None:
    """Each kernel with the settings that the backend picks for these sizes."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)  # so that it compiles
    command = [sys.executable, __file__, target, dtype, options, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    for row in rows:
        print(target, dtype, *(f"{name} {value}" for name, value in row.items()), sep=", ")
    assert {row["kernel"] for row in rows} == set(backend.MODULES)
    assert [row for row in rows if row["spilled"]] == []


# ---- the script


def launches(B: int, N: int, dtype: torch.dtype, lanes: int, options: str) -> list[tuple[str, Launch]]:
    """What the backends launch for a problem of this size: its use, and the launch."""
    launching: Any = backend
    made: list[tuple[str, Launch]] = []
    use = ""
    launching.launch = lambda kernel, _programs, _like, settings, **arguments: made.append(
        (use, (kernel, settings, arguments))
    )
    launching.LANES = lanes
    x, h_0, mask = torch.empty(T, B, N, dtype=dtype), torch.zeros(B, N, dtype=dtype), torch.ones(1, B, N)
    u, lengths, resets = torch.zeros(N), torch.full((B,), T), torch.zeros(T, B, dtype=torch.bool)
    full: dict[str, Any] = {"lengths": None, "resets": None}
    ragged = {"lengths": lengths, "resets": resets}
    for activation in ("relu", "tanh", "sigmoid", "identity") if options == "all" else ("relu",):
        for flags in (full,) if activation != "relu" or options == "few" else (full, ragged):
            lengthy = "" if flags is full else ", lengths, resets"
            for reverse in (False, True) if activation == "relu" and options == "all" else (False,):
                use = activation + (", reverse" if reverse else "") + lengthy
                forward = Forward(x, u, u, h_0, activation=activation, reverse=reverse, **flags)
                backward = Backward(x, h_0, x, u, h_0, activation=activation, reverse=reverse, **flags)
                backend.forward(forward)
                backend.backward(backward)
                if scan.why_not(x, activation) is None:
                    use = f"scan, {use}"
                    chunk = scan.gpu_chunk_length(T, B * N)
                    if chunk < T:
                        backend.forward(forward, chunk)
                        backend.backward(backward, chunk)
            for place in ("before", "after") if activation == "relu" else ():
                use = f"{activation}, norm {place}{lengthy}"
                backend.norm_forward(
                    NormForward(x, u, u, h_0, u, u, mask, eps=1e-5, activation=activation, place=place, **flags)
                )
                given = x if place == "before" else None
                backend.norm_backward(
                    NormBackward(x, h_0, x, given, u, h_0, u, u, u, mask, eps=1e-5, activation=activation, **flags)
                )
    return made


def compile_launch(launched: Launch, target: Any) -> Any:
    """As Triton's own launcher would: numbers that are 1 or divisible by 16 and aligned tensors are known to be."""
    triton: Any = importlib.import_module("triton")
    name, settings, arguments = launched
    kernel = getattr(importlib.import_module(f"indrnn.ops.triton.{backend.MODULES[name]}"), name)
    values = arguments | settings
    types = {torch.float32: "fp32", torch.float64: "fp64", torch.bfloat16: "bf16", torch.float16: "fp16"}
    types |= {torch.int64: "i64", torch.int32: "i32", torch.uint8: "u8"}
    signature, constants, attributes = {}, {}, {}
    for i, parameter in enumerate(kernel.params):
        value = values[parameter.name]
        special = not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or (value == 1 if isinstance(value, int) and special else False):
            signature[parameter.name], constants[parameter.name] = "constexpr", value
            continue
        signature[parameter.name] = "i32" if isinstance(value, int) else f"*{types[value.dtype]}"
        if special and (not isinstance(value, int) or value % 16 == 0):
            attributes[(i,)] = [["tt.divisibility", 16]]
    source = triton.compiler.ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=target, options={"num_warps": settings["num_warps"]})


def usage(compiled: Any, directory: Path) -> tuple[int, int]:
    """Registers, and what did not fit in them; raise where the report does not say."""
    if "amdgcn" in compiled.asm:

        def field(name: str) -> int:
            return int(re.findall(rf"\.{name}:\s+(\d+)", compiled.asm["amdgcn"])[0])

        spilled = field("vgpr_spill_count") + field("sgpr_spill_count") + field("private_segment_fixed_size")
        return field("vgpr_count"), spilled
    triton: Any = importlib.import_module("triton")
    cubin = directory / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    report = subprocess.run([tool, "-res-usage", cubin], capture_output=True, text=True, check=True).stdout

    def used(name: str) -> int:
        return int(re.findall(rf"\b{name}:(\d+)", report)[0])

    return used("REG"), used("STACK") + used("LOCAL")


def main(target_name: str, dtype_name: str, options: str, directory: Path) -> None:
    """Compile everything for one target and print a list of what each kernel uses, as JSON."""
    compiler: Any = importlib.import_module("triton.backends.compiler")
    arch = TARGETS[target_name]
    lanes = 32 if isinstance(arch, int) else 64
    target = compiler.GPUTarget("cuda" if isinstance(arch, int) else "hip", arch, lanes)
    rows, seen = [], set()
    sizes = list(SIZES.values())
    for B, N in sizes if options == "all" else sizes[:1]:
        for use, launched in launches(B, N, getattr(torch, dtype_name), lanes, options):
            compiled = compile_launch(launched, target)
            if compiled.hash in seen:
                continue
            seen.add(compiled.hash)
            name, settings, _ = launched
            if dtype_name == "bfloat16" and isinstance(arch, int) and arch >= 80 and name != "moments":
                converts = set(re.findall(r"cvt\.\w+\.bf16\w*\.f32", compiled.asm["ptx"]))
                assert all(convert.startswith("cvt.rn.") for convert in converts), converts  # to the nearest
            registers, spilled = usage(compiled, directory)
            rows.append({"kernel": name, **settings, "registers": registers, "spilled": spilled, "for": use})
    print(json.dumps(rows))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4]))
