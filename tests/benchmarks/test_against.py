"""Two versions beside each other: order, ratios, verdict, and what goes wrong. Timings are not tested.

The processes run a worker of a few lines here, which answers as it is told; tests/cli has a run of the real one.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import indrnn
from benchmarks import against, cases
from benchmarks.against import Case, Pair, differ, measure, verdict, versions
from benchmarks.measure import Bench
from indrnn.training import RunError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the interpreters of these tests are shell scripts")
CPU = torch.device("cpu")
TINY = Case("tiny", "op", {"T": 3, "B": 2, "N": 5})
# Answers as the file says: of each version, by request, either the answer or code to run instead.
WORKER = """
import json, os, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
told = json.load(open(os.environ["TOLD"]))[os.environ.get("VERSION", "this")]
with open(os.environ["TOLD"] + ".pids", "a") as pids:
    print(os.getpid(), file=pids)
for line in sys.stdin:
    request, arguments = json.loads(line)
    answer = told.get(request)
    if isinstance(answer, str):
        exec(answer)
        continue
    print(json.dumps(answer if isinstance(answer, dict) and "error" in answer else {"answer": answer}), flush=True)
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose interpreter says that it is the other version."""
    folder = tmp_path / "before"
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nVERSION=other exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    monkeypatch.setattr(against, "WORKER", worker)
    monkeypatch.setattr(against, "PAUSE", 0.0)
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))
    return folder


def tell(checkout: Path, this: dict[str, Any] | None = None, other: dict[str, Any] | None = None) -> None:
    """What the workers answer beside their names."""
    about = {"indrnn": "1", "torch": "2", "python": "3", "backends": "native"}
    usual = {"make": None, "results": SAVE, "time": 1.0, "peak": 100}
    told = {
        "this": {"hello": {**about, "file": indrnn.__file__}, **usual, **(this or {})},
        "other": {"hello": {**about, "file": str(checkout / "src/indrnn/__init__.py")}, **usual, **(other or {})},
    }
    Path(os.environ["TOLD"]).write_text(json.dumps(told))


SAVE = 'import shutil; shutil.copy(os.environ["TOLD"] + ".pt", arguments["path"]); print(json.dumps({"answer": None}))'
SAVE += "; sys.stdout.flush()"


@pytest.fixture(autouse=True)
def _results(tmp_path: Path) -> None:
    torch.save({"h": torch.ones(2)}, tmp_path / "told.pt")


def pids() -> list[int]:
    return [int(line) for line in Path(os.environ["TOLD"] + ".pids").read_text().split()]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Played:
    """A version whose calls take what a list says."""

    def __init__(self, name: str, log: list[tuple[str, int]], times: list[float], result: Tensor, peak: int) -> None:
        self.name, self.log, self.times, self.result, self.peak = name, log, times, result, peak

    def ask(self, request: str, doing: str, **arguments: Any) -> Any:
        assert doing == '"tiny"'
        if request == "results":
            torch.save({"h": self.result}, arguments["path"])
        if request == "time":
            self.log.append((self.name, arguments["calls"]))
            return self.times[(len([name for name, _ in self.log if name == self.name]) - 1) % len(self.times)]
        return self.peak if request == "peak" else None


def played(this: list[float], other: list[float], apart: float = 0.0) -> tuple[Pair, list[tuple[str, int]]]:
    log: list[tuple[str, int]] = []
    pair: Any = Pair(
        Played("this", log, this, torch.tensor([1.0 + apart, 2.0]), 103),  # type: ignore[arg-type]
        Played("other", log, other, torch.tensor([1.0, 2.0]), 100),  # type: ignore[arg-type]
    )
    return pair, log


def test_rounds_alternate_and_ratios_are_taken_within_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(against, "PAUSE", 0.0)
    # One to see how long it takes, one of warm-up, then the rounds: the machine slows down and recovers.
    pair, log = played([9.0, 9.0, 11.0, 22.0, 110.0, 11.0], [9.0, 9.0, 10.0, 20.0, 100.0, 10.0])
    row = measure(TINY, pair, rounds=4)
    assert [name for name, _ in log] == [*["this", "other"] * 2, *["other", "this", "this", "other"] * 2]
    assert row["ratio"] == pytest.approx({"median": 1.1, "low": 1.1, "high": 1.1})
    assert row["ms"]["this"]["median"] == 16.5
    assert row["ms"]["other"]["median"] == 15.0
    assert row["peak_bytes"] == {"this": 103, "other": 100}
    assert row["difference"] == 0.0
    assert row["agree"]


@pytest.mark.parametrize(
    ("ms", "calls"), [(100.0, 1), (40.0, 1), (39.0, 2), (0.5, 80), (1e-6, 1000)], ids=lambda value: f"{value:g}"
)
def test_short_calls_are_repeated_as_often_for_both(ms: float, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(against, "PAUSE", 0.0)
    pair, log = played([ms], [2 * ms])
    assert measure(TINY, pair, rounds=2)["calls"] == calls
    assert [each for _, each in log] == [1, 1] + [calls] * 6


def test_results_that_differ_are_measured_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(against, "PAUSE", 0.0)
    row = measure(TINY, played([1.0], [1.0], apart=0.5)[0], rounds=2)
    assert row["difference"] == 0.25
    assert not row["agree"]
    assert verdict([row])[0] == "results disagree: tiny (2e-01, allowed 1e-04)"
    assert row["ratio"]["median"] == 1.0


@pytest.mark.parametrize(
    ("this", "other", "expected"),
    [
        ({"a": [1.0, -4.0]}, {"a": [1.0, -4.0]}, 0.0),
        ({"a": [1.0, -4.0], "b": [0.0]}, {"a": [2.0, -4.0], "b": [0.0]}, 0.25),
        ({"a": [1.0]}, {"a": [1.0], "b": [1.0]}, "one alone has b"),
        ({"a": [1.0, 1.0]}, {"a": [1.0]}, "a is (2,) torch.float32 here and (1,) torch.float32 there"),
        ({"a": [1]}, {"a": [1.0]}, "a is (1,) torch.int64 here and (1,) torch.float32 there"),
        ({"a": [float("nan")]}, {"a": [float("nan")]}, "a is not finite"),
        ({"a": [1.0]}, {"a": [float("inf")]}, "a is not finite"),
        ({"a": [1.0]}, {"a": [0.0]}, "a is zero there and not here"),
    ],
    ids=["same", "apart", "missing", "shape", "type", "nan", "inf", "zero"],
)
def test_difference(this: dict[str, Any], other: dict[str, Any], expected: float | str) -> None:
    found = ({key: torch.tensor(value) for key, value in each.items()} for each in (this, other))
    assert differ(*found) == expected


def row(title: str, ratio: tuple[float, float, float], peak: int = 100) -> dict[str, Any]:
    low, median, high = ratio
    return {
        "title": title,
        "ratio": {"low": low, "median": median, "high": high},
        "peak_bytes": {"this": peak, "other": 100},
        "difference": 0.0,
        "tolerance": 1e-4,
        "agree": True,
    }


def test_verdict_tells_what_is_beyond_the_spread_of_rounds_from_what_is_not() -> None:
    fine = [row("same", (0.9, 1.0, 1.1), peak=103), row("faster", (0.5, 0.6, 0.7), peak=50)]
    assert verdict(fine) == ["of 2 cases, none is slower or larger by more than 3 %"]
    worse = [row("noisy", (0.9, 1.04, 1.2)), row("slow", (1.04, 1.05, 1.06)), row("big", (1.0, 1.0, 1.0), peak=104)]
    assert verdict([*fine, *worse]) == [
        "slower by more than 3 % in the median, not beyond the spread of rounds: noisy (1.040 [0.900, 1.200])",
        "larger by more than 3 %: big (100 → 104 bytes)",
        "slower by more than 3 %: slow (1.050 [1.040, 1.060])",
    ]


def test_every_case_names_a_function_and_its_arguments() -> None:
    for case in (case for each in against.CASES.values() for case in each):
        inspect.signature(getattr(cases, case.make)).bind("cpu", **case.sizes)
    for kind, each in against.CASES.items():
        assert any(case.quick for case in each), kind
        assert len({case.title for case in each}) == len(each)


def test_both_processes_run_and_end(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tell(checkout, this={"time": 3.0, "peak": 0}, other={"time": 2.0, "peak": 0})
    monkeypatch.setitem(against.CASES, "layer", (TINY,))
    bench = Bench("layer-against", tmp_path, CPU, rounds=2)
    with versions(checkout, CPU) as pair:
        against.compare(bench, "layer", pair)
        assert all(alive(pid) for pid in pids())
    assert len(pids()) == 2
    assert not any(alive(pid) for pid in pids())
    assert bench.rows[0]["ratio"]["median"] == 1.5


def test_a_case_that_one_version_cannot_do_is_left_out_by_name(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(checkout, other={"make": {"error": "TypeError: no such option"}})
    monkeypatch.setitem(against.CASES, "layer", (TINY,))
    with versions(checkout, CPU) as pair:
        against.compare(bench := Bench("layer-against", tmp_path, CPU, rounds=2), "layer", pair)
    said = capsys.readouterr().out
    assert f"left out: tiny: {checkout}: TypeError: no such option" in said
    assert "2 rounds are too few to tell some per cent of time" in said
    assert bench.rows == []


@pytest.mark.parametrize(
    ("code", "fate", "words"),
    [
        (
            'print("first\\nthe last words\\n", file=sys.stderr); sys.exit(3)',
            "ended with exit code 3",
            "the last words",
        ),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "died of SIGSEGV", "it said nothing"),
        ('print("good morning", flush=True)', "gave no answer", "it said nothing"),
    ],
    ids=["exit", "signal", "nonsense"],
)
def test_a_process_that_dies_is_named_with_its_last_words(
    checkout: Path, code: str, fate: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(against, "PATIENCE", 0.5 if fate == "gave no answer" else 60.0)
    tell(checkout, other={"time": code})
    with pytest.raises(RunError) as error, versions(checkout, CPU) as pair:
        measure(TINY, pair, rounds=2)
    assert str(error.value) == f'against: the process of {checkout} {fate} at "tiny": {words}'
    assert not any(alive(pid) for pid in pids())


def refuses(checkout: Path) -> str:
    with pytest.raises(ValueError, match=r"^against: ") as error, versions(checkout, CPU):
        pass
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_checkout_that_is_not_ready_is_refused(checkout: Path, tmp_path: Path) -> None:
    tell(checkout)
    assert refuses(tmp_path / "gone") == f"against: no such folder: {tmp_path / 'gone'}"
    python = checkout / ".venv/bin/python"
    python.write_text('#!/bin/sh\necho "no module of that name" >&2\nexit 1\n')
    assert refuses(checkout) == f"against: {python} cannot import indrnn: no module of that name"
    python.write_text("#!/bin/sh\necho hello\n")
    assert refuses(checkout).startswith(f"against: {python} cannot import indrnn: ")
    python.chmod(0o644)
    assert refuses(checkout) == f"against: {python} cannot be run: Permission denied"
    python.unlink()
    assert refuses(checkout).startswith(f"against: {checkout} has no .venv/bin/python: make it ready with `make -C ")
    assert not any(alive(pid) for pid in pids())


def test_an_interpreter_that_imports_another_checkout_is_refused(checkout: Path) -> None:
    """As that of a folder that was copied does: this version would be measured beside itself."""
    tell(checkout, other={"hello": {"file": indrnn.__file__}})
    assert "imports indrnn from" in refuses(checkout)


def test_ctrl_c_leaves_no_process_behind(checkout: Path) -> None:
    """While one of them computes; the signal goes to the parent alone, which is harder than a terminal's."""
    tell(checkout, this={"time": "time.sleep(600)"})
    program = f"""
from pathlib import Path
from benchmarks import against
from benchmarks.command import start
from benchmarks.layer import BENCHMARK
against.WORKER = Path({str(against.WORKER)!r})
start(BENCHMARK, ["--against", {str(checkout)!r}, "--out", {str(checkout / "out")!r}])
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
        cwd=Path(against.__file__).parents[1],
    )
    assert parent.stdout is not None
    for line in parent.stdout:
        if line.startswith("|---"):
            break
    time.sleep(0.3)
    started = pids()
    parent.send_signal(signal.SIGINT)
    _, said = parent.communicate(timeout=60)
    assert (parent.returncode, said) == (130, "benchmarks: interrupted\n")
    assert len(started) == 2
    assert not any(alive(pid) for pid in started)


@pytest.mark.parametrize("made", ["training", "evaluation"])
@pytest.mark.parametrize("network", cases.NETWORKS)
def test_networks_give_the_same_results_whatever_was_drawn_before(network: str, made: str) -> None:
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        case = getattr(cases, made)("cpu", network=network, T=9, B=3)
        found.append(case.results())
        case.run()
    assert differ(*found) == 0.0
    assert found[0]["logits"].shape == (3, cases.CLASSES)
    assert (len(found[0]) > 1) == (made == "training")


@pytest.mark.parametrize("cell", [False, True], ids=["layer", "cell"])
def test_a_stream_carries_its_state(cell: bool) -> None:
    """Against the equation."""
    found = cases.stream("cpu", N=7, cell=cell).results()
    model = cases.with_same_weights((indrnn.IndRNNCell if cell else indrnn.IndRNN)(7, 7))
    w, u, b = (parameter.detach() for parameter in model.parameters())
    x, h = torch.rand(1, 7), torch.zeros(1, 7)
    for i in range(5):
        h = torch.relu(x @ w.T + u * h + b)
        torch.testing.assert_close(found[f"step {i}"].view(1, 7), h)


def test_weights_are_the_same_whatever_they_are_called() -> None:
    """W and u follow from shape and place, not from names or from what was drawn before."""
    a, b = (indrnn.IndRNN(3, 4, 3), nn.Module())
    cases.with_same_weights(a, long_memory=50)
    for i in range(3):
        b.register_parameter(f"weight_hh_of_{i}", nn.Parameter(torch.empty(4)))
    for i, inputs in enumerate((3, 4, 4)):
        b.register_parameter(f"matrix_{i}", nn.Parameter(torch.empty(4, inputs)))
    cases.with_same_weights(b, long_memory=50)
    theirs = dict(b.named_parameters())
    for i in range(3):
        assert torch.equal(getattr(a, f"weight_ih_l{i}"), theirs[f"matrix_{i}"])
        assert torch.equal(getattr(a, f"weight_hh_l{i}"), theirs[f"weight_hh_of_{i}"])
    assert not torch.equal(a.weight_ih_l1, a.weight_ih_l2)  # type: ignore[arg-type]
    assert a.weight_hh_l2.min() >= 0.2 ** (1 / 50)  # type: ignore[operator]


def test_gradients_are_gathered_by_role_and_shape() -> None:
    model = indrnn.IndRNN(3, 4, 2)
    model(torch.rand(5, 2, 3))[0].sum().backward()
    found = cases.gradients(model)
    assert found.keys() == {
        "squares of the gradients of b",
        "gradients of W, (4, 3)",
        "gradients of W, (4, 4)",
        "gradients of u, (4,)",
    }
    own = {name: parameter.grad.double() for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert torch.equal(found["gradients of u, (4,)"][1].double(), own["weight_hh_l1"])
    squares = own["bias_l0"].square().sum() + own["bias_l1"].square().sum()
    torch.testing.assert_close(found["squares of the gradients of b"], squares)
