"""The code in README and docs runs as it stands."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


def run(page: str) -> dict[str, Any]:
    """Every block of Python on the page, one after the other."""
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, names)
    return names


def test_readme() -> None:
    names = run("README.md")
    assert names["output"].shape == (100, 50, 128)
    assert names["h_n"].shape == (2, 50, 128)
    assert all(u.abs().max() <= 2 ** (1 / 100) for name, u in names["model"].named_parameters() if "weight_hh" in name)


def test_networks() -> None:
    names = run("docs/networks.md")
    assert sum(parameter.numel() for parameter in names["model"].parameters()) == 256_514
    depths = [len(names[name].recurrent_layers) for name in ("plain", "residual", "dense")]
    assert depths == [6, 11, 40]


def test_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # the page's runs go into ./runs
    monkeypatch.setattr("sys.stdout", io.StringIO())
    names = run("docs/training.md")
    assert (tmp_path / "runs/sign/weights.safetensors").exists()
    assert names["result"].folder == Path("runs/sum")
    assert names["result"].test["mse"] < 0.5  # the variance of the answer is 30/12
