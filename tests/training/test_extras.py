"""What a run does where something more is installed or asked for: TensorBoard, torch.compile."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file

import indrnn
from indrnn.training import TensorTask, Training, train

OPTIONS = Training(steps=6, lr=1e-2, evaluate_every=2, device="cpu", threads=1, curve=False)


def task() -> TensorTask:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(21, 7, 3, generator=generator)
    return TensorTask((x, (x[:, :, 0].sum(1) > 0).long()), batch_size=5)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return indrnn.SequenceClassifier(indrnn.PlainIndRNN(3, 5, 2, batch_first=True), 2)


class Writer:
    """In the place of TensorBoard's."""

    made: ClassVar[list[Writer]] = []

    def __init__(self, folder: str, purge_step: int) -> None:
        self.folder, self.purge_step = folder, purge_step
        self.scalars: list[tuple[str, float, int]] = []
        self.closed = False
        Writer.made.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))

    def close(self) -> None:
        self.closed = True


def test_scalars_go_to_tensorboard_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module: Any = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(Writer, "made", [])
    train(model(), task(), OPTIONS, out=tmp_path / "run", quiet=True)
    train(model(), task(), replace(OPTIONS, steps=8), out=tmp_path / "run", resume=True, quiet=True)
    first, second = Writer.made
    assert Path(first.folder) == tmp_path / "run" / "tensorboard"
    assert (first.purge_step, second.purge_step) == (0, 6)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    expected = [(name, value, line["step"]) for line in lines for name, value in line.items() if name != "step"]
    assert first.scalars + second.scalars == expected
    assert first.closed
    assert second.closed


def test_without_tensorboard_a_run_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # as if it could not be imported
    assert train(model(), task(), OPTIONS, out=tmp_path / "run", quiet=True).finished
    assert not (tmp_path / "run/tensorboard").exists()


class Logged:
    """In the place of a run of Weights & Biases."""

    def __init__(self, **about: Any) -> None:
        self.about, self.logged, self.ended = about, list[tuple[int, dict[str, float]]](), list[int]()

    def log(self, numbers: dict[str, float], step: int) -> None:
        self.logged.append((step, numbers))

    def finish(self, exit_code: int) -> None:
        self.ended.append(exit_code)


def test_scalars_go_to_weights_and_biases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module: Any = types.ModuleType("wandb")
    made: list[Logged] = []
    module.init = lambda **about: made.append(Logged(**about)) or made[-1]  # type: ignore[func-returns-value]
    monkeypatch.setitem(sys.modules, "wandb", module)
    train(model(), task(), replace(OPTIONS, wandb=True), out=tmp_path / "run", quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [{"step": step, **numbers} for step, numbers in made[0].logged] == lines
    assert made[0].about["name"] == "run"
    assert made[0].about["config"]["training"]["lr"] == 1e-2
    assert made[0].ended == [0]


def test_weights_and_biases_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="Weights & Biases is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    train(model(), task(), replace(OPTIONS, wandb=True), out=tmp_path / "run", quiet=True)
    assert list(tmp_path.glob("wandb/offline-run-*"))


def test_without_weights_and_biases_a_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert train(model(), task(), replace(OPTIONS, wandb=True), out=tmp_path / "run").finished
    assert "pip install 'indrnn[wandb]'" in capsys.readouterr().out


@pytest.mark.slow
def test_compiled_it_learns_the_same(tmp_path: Path) -> None:
    plain = train(model(), task(), OPTIONS, out=tmp_path / "plain", quiet=True)
    compiled = train(model(), task(), replace(OPTIONS, compile=True), out=tmp_path / "compiled", quiet=True)
    assert compiled.best["training_loss"] == pytest.approx(plain.best["training_loss"], rel=1e-4)
    model().load_state_dict(load_file(tmp_path / "compiled/weights.safetensors"))  # names as of the module itself
