"""How the C++ kernel is called: its version is checked, and it survives a lack of memory and too many threads."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import indrnn
from indrnn.baselines.sru import _Call, _is_declared
from indrnn.ops.cpu import kernel

from ...conftest import BACKENDS

pytestmark = pytest.mark.skipif("native" not in BACKENDS, reason=str(kernel.library()))
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


# ---- versions


@pytest.fixture
def _loaded_anew() -> Iterator[None]:
    kernel.library.cache_clear()
    yield
    kernel.library.cache_clear()


def reason() -> str:
    loaded = kernel.library()
    assert isinstance(loaded, str)
    assert indrnn.backends()["native"].why_not == loaded
    with pytest.raises(RuntimeError, match=r"'native'.*is not supported: the C\+\+ kernel is of another version"):
        indrnn.recurrence(torch.zeros(1, 1, 1), torch.zeros(1), backend="native")
    assert "build it again with `pip install" in loaded
    return loaded


@pytest.mark.usefixtures("_loaded_anew")
def test_a_kernel_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "ABI_VERSION", kernel.ABI_VERSION + 1)
    assert f"has interface version {kernel.ABI_VERSION - 1}, not {kernel.ABI_VERSION};" in reason()


@pytest.mark.usefixtures("_loaded_anew")
@pytest.mark.parametrize("name", kernel.PASSES)
def test_a_kernel_with_other_arguments_is_not_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a field was added and the version forgotten."""
    ours = kernel.PASSES[name]
    longer = type("Longer", (ours,), {"_fields_": [("another", ctypes.c_void_p)]})
    monkeypatch.setitem(kernel.PASSES, name, longer)
    size = ctypes.sizeof(ours)
    assert f"has arguments of {size} bytes for {name}, not {size + ctypes.sizeof(ctypes.c_void_p)};" in reason()


@pytest.mark.usefixtures("_loaded_anew")
def test_a_kernel_without_a_version_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those were that had none; any other library stands for one."""
    other, name = sys.modules["torch._C"].__file__, "_kernel.dll" if sys.platform == "win32" else "_kernel.so"
    assert other is not None
    shutil.copy(other, tmp_path / name)
    monkeypatch.setattr(indrnn.ops.cpu, "__path__", [str(tmp_path)])
    assert f"{tmp_path / name} has no interface version, not {kernel.ABI_VERSION};" in reason()


def test_an_unknown_type_is_told() -> None:
    """Nothing is computed; the caller has an error and not whatever was in memory."""
    loaded = kernel.library()
    assert not isinstance(loaded, str)
    assert loaded.indrnn_forward(kernel.PASSES["forward"](dtype=9)) == 2
    assert _is_declared(loaded)
    assert loaded.indrnn_sru(_Call(dtype=2)) == 2
    with pytest.raises(AssertionError):
        kernel.run("forward", kernel.PASSES["forward"](dtype=9))


# ---- limits, in processes of their own


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


LITTLE_MEMORY = """
import ctypes, re, resource
import torch
from indrnn.baselines.sru import sru
from indrnn.ops.calls import Backward, Forward, NormBackward, NormForward
from indrnn.ops.cpu import kernel

libc = ctypes.CDLL(None)
assert libc.mallopt(-3, 1 << 17) == 1  # M_MMAP_THRESHOLD: what is large and was freed is given back at once
torch.set_num_threads(2)
MB = 1 << 20
B, N = 1024, 1024
x, u, h_0, ones = torch.randn(1, B, N), torch.rand(N), torch.randn(B, N), torch.ones(N)
mask = torch.ones(1, B, N)


def size():
    return int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()


def limit(bytes):
    resource.setrlimit(resource.RLIMIT_AS, (bytes, resource.RLIM_INFINITY))


def forward(place):
    return kernel.norm_forward(NormForward(x, u, ones, h_0, ones, ones, mask, None, None, 1e-5, "relu", place))


def backward():
    return kernel.backward(Backward(x, h_0, x, u, h_0))


def norm_backward(of_x):
    inputs = (x, h_0, x, of_x, u, h_0, ones, ones, ones, mask, None, None, 1e-5, "relu")
    return kernel.norm_backward(NormBackward(*inputs))


projected = torch.randn(1, B, 3 * N, requires_grad=True)
parameters = torch.randn(2, N, requires_grad=True)


def sru_backward():
    h, _ = sru(projected, x, parameters, parameters, h_0)
    return torch.autograd.grad(h.sum(), (projected, parameters))


cases = {
    "norm_forward": [lambda: forward("before"), lambda: forward("after")],
    "backward": [backward],
    "norm_backward": [lambda: norm_backward(x), lambda: norm_backward(None)],
    "sru": [sru_backward],
}
for name, calls in cases.items():
    for call in calls:
        expected = call()
        messages, served = [], False
        for more in range(4, 200, 3):
            limit(size() + more * MB)
            try:
                results = call()
            except RuntimeError as error:
                assert type(error) is RuntimeError, error
                messages.append(str(error))
            else:
                served = True
            finally:
                limit(resource.RLIM_INFINITY)
            if served:
                break
        assert served and all(map(torch.equal, results, expected)), name
        told = rf"the C\\+\\+ kernel cannot allocate memory: {name} tried to allocate ([0-9]+) bytes"
        found = {int(match[1]) for message in messages if (match := re.fullmatch(told, message))}
        assert found and min(found) >= 4 * B * N, (name, messages)
        assert all("allocate memory" in message for message in messages), messages  # torch's own are such too
        results = None

# Without any memory left: what each tile needs is then missing in the parallel region itself.
x = torch.randn(64, 16, 4096)
h, state = torch.empty_like(x), torch.zeros(16, 4096)
bias = torch.zeros(4096)
call = kernel.pack("forward", x, Forward(x, bias), *kernel.strided(x), bias, bias, h, state)
function = kernel.library().indrnn_forward
assert function(call) == 0
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
last, status = 0, 0
limit(size())
for block in (MB, MB // 16, 4096, 1024):
    while (at := libc.malloc(block)) is not None:  # each block has the address of the one before
        ctypes.c_size_t.from_address(at).value = last
        last = at
status = function(call)
while last:
    at, last = last, ctypes.c_size_t.from_address(last).value
    libc.free(at)
limit(resource.RLIM_INFINITY)
assert status == 1 and call.missing == 4 * 4096, (status, call.missing)
state.zero_()
assert function(call) == 0 and torch.equal(h, x.relu())
"""


@on_linux
def test_a_failed_allocation_is_an_error_and_no_more() -> None:
    """With every amount of memory from too little to enough, in each pass that needs some beside its results."""
    run(LITTLE_MEMORY)


def test_torch_raises_the_same_type() -> None:
    with pytest.raises(RuntimeError, match="can't allocate memory") as raised:
        torch.empty(2**60, dtype=torch.uint8)
    assert type(raised.value) is RuntimeError


MANY_THREADS = """
import os
import torch
from indrnn.baselines.sru import sru
from indrnn.ops.calls import Backward, Forward, NormBackward, NormForward
from indrnn.ops.cpu import kernel


def threads():
    return len(os.listdir("/proc/self/task"))


x, u = torch.randn(16, 8192, 130), torch.rand(130)
projected, parameters = torch.randn(3, 5000, 6), torch.randn(2, 2)


def everything():
    h, _ = kernel.forward(Forward(x, u))
    gradients = kernel.backward(Backward(x, None, h, u))
    normed = kernel.norm_forward(NormForward(x, u, None, None, u, u, None, None, None, 1e-5, "relu", "after"))
    statistics = normed[3:]
    inputs = (x, None, h, None, u, None, u, *statistics, None, None, None, 1e-5, "relu")
    through = kernel.norm_backward(NormBackward(*inputs))
    c_and_h = sru(projected, x[:3, :5000, :2], parameters, parameters, x[0, :5000, :2])
    return [h, *gradients, *normed, *through, *c_and_h]


torch.set_num_threads(1)
expected = everything()
before = threads()
torch.get_num_threads = lambda: 100_000  # torch itself would start them
results = everything()
started = threads() - before
assert 0 < started <= max(64, os.cpu_count()), started
assert all(map(torch.equal, results, expected))
"""


@on_linux
def test_a_hundred_thousand_threads_are_not_started() -> None:
    run(MANY_THREADS)
