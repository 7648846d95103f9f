"""What a user installs: what importing it brings in, and that it builds and works with and without a compiler."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.resources
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import torch

import indrnn
from indrnn.ops.cpu import kernel

from .conftest import ACTIVATIONS, BACKENDS
from .ops.problems import problem

ROOT = Path(__file__).parent.parent
COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
KERNEL_FILE = "_kernel.dll" if sys.platform == "win32" else "_kernel.so"

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
needs_kernel = pytest.mark.skipif("native" not in BACKENDS, reason=str(kernel.library()))


def run(*command: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command that must succeed; what the shell around us chose for indrnn and Python does not reach it."""
    ours = {k: v for k, v in os.environ.items() if k not in ("INDRNN_BACKEND", "PYTHONPATH", "PYTHONWARNINGS")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=ours | variables, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done


# ---- what is installed now


def test_importing_brings_in_no_package_but_torch_and_numpy(tmp_path: Path) -> None:
    """Not the extras (tyro, rich, matplotlib, ...), and nothing that would slow a start or fail where it is missing."""
    code = """
import sys
import numpy, torch
before = set(sys.modules)
import indrnn
for name in indrnn.__all__:
    getattr(indrnn, name)
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(new - sys.stdlib_module_names - {"torch"}))
"""
    assert run(sys.executable, "-c", code, cwd=tmp_path).stdout.split() == ["indrnn"]


def test_importing_waits_for_nothing(tmp_path: Path) -> None:
    """Not even for torch: so that `indrnn --help` is there at once."""
    code = "import sys, indrnn; print('torch' in sys.modules, indrnn.IndRNN.__name__, 'torch' in sys.modules)"
    assert run(sys.executable, "-c", code, cwd=tmp_path).stdout.split() == ["False", "IndRNN", "True"]
    code = "import sys, indrnn.cli\ntry: indrnn.cli.main(['--help'])\nexcept SystemExit: print('torch' in sys.modules)"
    assert run(sys.executable, "-c", code, cwd=tmp_path).stdout.split()[-1] == "False"


OPTIONS = (
    "indrnn.ops",
    "indrnn.checks",
    "indrnn.files",
    "indrnn.system",
    "indrnn.layers",
    "indrnn.networks.config",
    "indrnn.baselines.config",
    "indrnn.training.options",
    "indrnn.training.task",
)


@pytest.mark.parametrize("module", OPTIONS)
def test_options_need_no_torch(module: str, tmp_path: Path) -> None:
    """So that the help of a command with all its options is there at once."""
    code = f"import sys, {module}; print(*{{'torch', 'numpy'}} & set(sys.modules))"
    assert run(sys.executable, "-c", code, cwd=tmp_path).stdout.split() == []


@pytest.mark.parametrize("room", ["ops", "layers", "networks", "baselines", "training"])
def test_rooms_are_lazy_and_know_their_names(room: str, tmp_path: Path) -> None:
    code = f"import sys, indrnn.{room}; print('torch' in sys.modules)"
    assert run(sys.executable, "-c", code, cwd=tmp_path).stdout.split() == ["False"]
    package = importlib.import_module(f"indrnn.{room}")
    modules = {path.stem for path in Path(str(package.__file__)).parent.iterdir()}
    lazy = {name for names in package._HOMES.values() for name in names}
    assert lazy <= set(package.__all__) <= lazy | set(vars(package))
    assert not modules & set(package.__all__), "an imported module would take the place of the name"
    assert all(getattr(package, name) is not None for name in package.__all__)
    assert set(package.__all__) <= set(dir(package))


def test_a_lazy_module_is_imported_at_its_first_attribute() -> None:
    code = """
import sys
from indrnn._lazy import Lazy
torch = Lazy("torch")
print(repr(torch), "torch" in sys.modules, torch.Tensor.__name__, "torch" in sys.modules)
"""
    assert run(sys.executable, "-c", code, cwd=ROOT).stdout.split() == ["Lazy('torch')", "False", "Tensor", "True"]


def test_public_names_have_a_home() -> None:
    homes = {name for names in indrnn._HOMES.values() for name in names}
    assert homes | {"load"} == set(indrnn.__all__)
    assert set(indrnn.__all__) <= set(dir(indrnn))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        indrnn.nothing  # noqa: B018


def test_version_is_that_of_the_installed_package() -> None:
    assert indrnn.__version__ == importlib.metadata.version("indrnn")


@pytest.mark.parametrize("name", indrnn.__all__)
def test_every_public_name_has_a_docstring_of_its_own(name: str) -> None:
    documentation = getattr(indrnn, name).__doc__
    assert documentation
    assert not documentation.startswith(f"{name}(")  # what a dataclass makes up


def test_type_checkers_find_the_types() -> None:
    assert (importlib.resources.files("indrnn") / "py.typed").is_file()


@needs_compiler
def test_the_kernel_is_there_where_a_compiler_is() -> None:
    """A kernel that fails to compile is left out of the install: without this, its tests would silently not run."""
    assert "native" in BACKENDS, kernel.library()


# ---- without the kernel

USE_WITHOUT_KERNEL = """
x, u = torch.randn(9, 2, 5, requires_grad=True), torch.rand(5)
for activation in ("relu", "tanh"):
    h, _ = indrnn.recurrence(x, u, activation=activation)
    h.sum().backward()
assert torch.equal(h, indrnn.recurrence(x, u, activation="tanh", backend="reference")[0])
indrnn.IndRNN(5, 3)(x)
native = indrnn.backends()["native"]
assert not native.available and not native.chosen, native
assert indrnn.backends()["reference"].chosen
for backend, variable in (("native", ""), (None, "native")):
    os.environ["INDRNN_BACKEND"] = variable
    try:
        indrnn.recurrence(x, u, backend=backend)
    except RuntimeError as error:
        assert native.why_not in str(error), error
    else:
        raise AssertionError(f"{backend=} {variable=} was computed")
print(native.why_not)
"""


def assert_works_without_kernel(python: str | Path, cwd: Path, first: str = "") -> None:
    """The reference computes; a user is told once what to do; asking for the kernel by name says why it is missing."""
    # Without -W, Python itself would drop a repeated warning.
    done = run(python, "-W", "always", "-c", f"import os, indrnn, torch\n{first}\n{USE_WITHOUT_KERNEL}", cwd=cwd)
    why_not = done.stdout.strip()
    assert re.search(r"was not built .* install a C\+\+ compiler .*`pip install", why_not)
    assert done.stderr.count("RuntimeWarning: indrnn") == 1
    assert why_not in done.stderr


def test_without_the_kernel_a_process_is_told_once_and_computes(tmp_path: Path) -> None:
    assert_works_without_kernel(
        sys.executable, tmp_path, first="import indrnn.ops.cpu.kernel; indrnn.ops.cpu.__path__ = []"
    )  # where it is looked for


# ---- what is built


@pytest.mark.slow
@needs_compiler
@needs_kernel
def test_a_kernel_without_threads_and_clones_gives_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the compiler has neither; and the source compiles without a warning."""
    assert COMPILER is not None
    built, sources = tmp_path / KERNEL_FILE, ROOT / "src/indrnn/ops/cpu"
    strict = ["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    options = ["-O2", "-ffp-contract=off", "-fPIC", "-shared"]
    run(
        COMPILER,
        *strict,
        *options,
        f"-I{sources}",
        *sources.glob("*.cpp"),
        ROOT / "src/indrnn/baselines/sru.cpp",
        "-o",
        built,
        cwd=tmp_path,
    )
    # Large enough for several threads of the installed kernel
    problems = [
        problem(600, 7, 63, activation=activation, dtype=dtype)
        for activation in ACTIVATIONS
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    ]
    expected = [p.solve("native") for p in problems]
    with monkeypatch.context() as patch:
        patch.setattr(indrnn.ops.cpu, "__path__", [str(tmp_path)])
        kernel.library.cache_clear()
        loaded = kernel.library()
        assert not isinstance(loaded, str), loaded
        assert loaded._name == str(built)
        actual = [p.solve("native") for p in problems]
    kernel.library.cache_clear()
    for p, ours, installed in zip(problems, actual, expected, strict=True):
        # By their bytes: a NaN, where a half type overflows, is to be the same NaN.
        same = [torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(ours, installed, strict=True)]
        assert all(same), (p.activation, p.x.dtype, same)


@pytest.fixture(scope="session")
def package_index() -> None:
    """A build is isolated: pip gets what it needs from a package index."""
    requires: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    ask = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--retries", "1"]
    done = subprocess.run([*ask, *requires], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"pip cannot get {', '.join(requires)}: {done.stderr.strip().splitlines()[-1]}")


class Environment:
    """A new virtual environment that sees all we have but indrnn, so that torch is not fetched again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder / "venv", with_pip=True)
        scripts = "Scripts" if sys.platform == "win32" else "bin"
        self.python = folder / "venv" / scripts / "python"
        ours = folder / "packages"
        ours.mkdir()
        for path in Path(torch.__file__).parent.parent.iterdir():
            if "indrnn" not in path.name:
                (ours / path.name).symlink_to(path)
        site = Path(self.run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
        (site / "ours.pth").write_text(str(ours))
        (folder / "constraints.txt").write_text(f"torch=={torch.__version__}\n")

    def run(self, *arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        return run(self.python, *arguments, cwd=self.folder, **variables)

    def install(self, what: Path, **variables: str) -> str:
        """Install it and return the tag of the wheel that it came as."""
        self.run("-m", "pip", "install", "-c", "constraints.txt", what, **variables)
        find = "from importlib.metadata import distribution as d; print(d('indrnn').read_text('WHEEL'))"
        tag = re.search(r"^Tag: (.*)$", self.run("-c", find).stdout, re.MULTILINE)
        assert tag is not None
        return tag[1]


@pytest.mark.slow
@pytest.mark.usefixtures("package_index")
def test_it_installs_and_works_without_a_compiler(tmp_path: Path) -> None:
    environment = Environment(tmp_path)
    no_compiler = shutil.which("false")
    if no_compiler is None:
        pytest.skip("there is no command `false` to stand for a broken compiler")
    assert environment.install(ROOT, CC=no_compiler, CXX=no_compiler) == "py3-none-any"
    assert_works_without_kernel(environment.python, tmp_path)


@pytest.mark.slow
@needs_compiler
@pytest.mark.usefixtures("package_index")
def test_the_sdist_builds_installs_and_passes_tests_outside_the_repository(tmp_path: Path) -> None:
    pytest.importorskip("build")
    # With no arguments about what to build, the wheel is made from the sdist.
    run(sys.executable, "-m", "build", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    [sdist], [wheel] = tmp_path.glob("*.tar.gz"), tmp_path.glob("*.whl")

    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path, filter="data")
    assert names >= {"CMakeLists.txt", "LICENSE", "Makefile", "README.md", "constraints.txt", "tests/test_package.py"}
    assert {name.partition("/")[0] for name in names} >= {"docs", "src", "tests"}
    junk = re.compile(r"(^|/)(\.git|\.venv|build|dist)/|cache|\.(so|dll|dylib|o|pyc)$")
    assert not [name for name in names if junk.search(name)]

    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert names >= {"indrnn/py.typed", f"indrnn/ops/cpu/{KERNEL_FILE}"}
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert {name.partition("/")[0] for name in names} == {"indrnn", f"indrnn-{indrnn.__version__}.dist-info"}
    assert not [name for name in names if name.endswith(".cpp")]

    # One wheel for every version of Python on this platform: no ABI in the tag
    environment = Environment(tmp_path)
    assert re.fullmatch(r"py3-none-(?!any).+", environment.install(wheel))
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    where = environment.run("-c", "import indrnn; print(indrnn.__file__, indrnn.backends()['native'].chosen)").stdout
    assert Path(where.split()[0]).is_relative_to(tmp_path / "venv")
    assert where.split()[1] == "True"
    few = ("test_package.py", "ops/test_choice.py", "ops/cpu/test_kernel.py")
    tests = [unpacked / "tests" / name for name in few]
    environment.run("-m", "pytest", "-q", "-m", "not slow", "-c", unpacked / "pyproject.toml", *tests)
