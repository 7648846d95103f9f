"""Settings of the process: freed memory, the probe of half precision with CPUs that fail, denormal numbers."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from indrnn import system
from indrnn.cli import main

ROOT = Path(__file__).parent.parent
NOTES = "import os, pathlib\npathlib.Path({log!r}).open('a').write(os.environ.get('ONEDNN_MAX_CPU_ISA', '-') + '\\n')\n"
DIES = "import os, signal\nif 'ONEDNN_MAX_CPU_ISA' not in os.environ: os.kill(os.getpid(), signal.SIGILL)\n"
RAISES = "import os\nif 'ONEDNN_MAX_CPU_ISA' not in os.environ: raise RuntimeError('could not create a primitive')\n"

PROGRAM = """
import sys, torch, indrnn.system
from pathlib import Path

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if sys.argv[1] == "keep":
    assert indrnn.system.keep_memory() is True
before = resident()
tensors = [torch.ones(n * 2**20) for n in (5, 20) for _ in range(5)]  # 20 and 80 MiB each
del tensors
print(resident() - before)
"""


# ---- freed memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc of glibc only")
def test_freed_memory_stays_where_asked() -> None:
    """In processes of their own, for it holds for all of a process."""
    left = {
        mode: int(
            subprocess.run([sys.executable, "-c", PROGRAM, mode], check=True, capture_output=True, text=True).stdout
        )
        for mode in ("default", "keep")
    }
    assert left["keep"] > 450 * 2**20 > 50 * 2**20 > left["default"]


# ---- half precision: children that die as those of some virtual machines do


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where nothing is set; what a test sets is taken back."""
    monkeypatch.setenv(system.ONEDNN_VARIABLE, "")
    monkeypatch.delenv(system.ONEDNN_VARIABLE)


def test_the_real_probe_survives_with_the_limit() -> None:
    """On a CPU that runs what it announces, and on one that does not."""
    assert system.half_precision_works(system.ONEDNN_LIMIT)


@pytest.mark.parametrize("probe", [DIES, RAISES], ids=["SIGILL", "error"])
def test_a_cpu_that_fails_gets_the_variable_and_a_line(monkeypatch: pytest.MonkeyPatch, probe: str) -> None:
    monkeypatch.setattr(system, "PROBE", probe)
    line = system.limit_onednn()
    assert line is not None
    assert line.endswith("ONEDNN_MAX_CPU_ISA is set to AVX512_CORE")
    assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE"


def test_a_cpu_that_works_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "PROBE", "")
    assert system.limit_onednn() is None
    assert system.ONEDNN_VARIABLE not in os.environ


def test_what_the_variable_does_not_cure_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "PROBE", "raise SystemExit(3)")
    line = system.limit_onednn()
    assert line is not None
    assert "it fails with ONEDNN_MAX_CPU_ISA=AVX512_CORE too" in line
    assert system.ONEDNN_VARIABLE not in os.environ


def test_a_users_own_setting_stays_and_nothing_is_probed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(system.ONEDNN_VARIABLE, "AVX2")
    monkeypatch.setattr(system, "PROBE", NOTES.format(log=str(tmp_path / "log")))
    assert system.limit_onednn() is None
    assert os.environ[system.ONEDNN_VARIABLE] == "AVX2"
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_the_command_line_probes_for_bf16_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str], precision: str
) -> None:
    log = tmp_path / "log"
    monkeypatch.setattr(system, "PROBE", NOTES.format(log=str(log)) + DIES)
    run = ["train", "adding-100-fast", "--steps", "2", "--batch-size", "2", "--device", "cpu"]
    with pytest.raises(SystemExit) as end:
        main([*run, "--precision", precision, "--out", str(tmp_path / "run")])
    assert end.value.code == 0
    said = "indrnn: half precision fails on this CPU" in capfd.readouterr().err
    assert said == log.exists() == (system.ONEDNN_VARIABLE in os.environ) == (precision == "bf16")


@pytest.mark.slow
def test_a_run_of_tests_probes_once_for_all_workers(tmp_path: Path) -> None:
    log = tmp_path / "log"
    probe = NOTES.format(log=str(log)) + DIES
    (tmp_path / "fake_cpu.py").write_text(f"from indrnn import system\nsystem.PROBE = {probe!r}\n")
    test = "import os\ndef test_{}(): assert os.environ['ONEDNN_MAX_CPU_ISA'] == 'AVX512_CORE'\n"
    (tmp_path / "test_it.py").write_text("".join(test.format(n) for n in range(4)))
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "fake_cpu", "-p", "tests.conftest", str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ONEDNN_MAX_CPU_ISA is set to AVX512_CORE" in done.stdout
    assert "4 passed" in done.stdout
    assert log.read_text().splitlines() == ["-", "AVX512_CORE"]  # the failure, and that the limit cures it
