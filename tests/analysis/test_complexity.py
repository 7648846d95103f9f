"""The figure of time over length, from a file of the benchmark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from indrnn.analysis import complexity


def row(T: int, name: str, ms: float, ratio: float) -> dict[str, Any]:
    title = f"T = {T}: training step, 2 → 128, batch 50"
    return {
        "title": title,
        "name": name,
        "base": "torch.nn.LSTM",
        "ms": {"median": ms, "low": 0, "high": 9},
        "ratio": {"median": ratio},
    }


ROWS = [
    row(512, "torch.nn.LSTM", 20.0, 1.0),
    row(256, "torch.nn.LSTM", 10.0, 1.0),
    row(256, "IndRNN, 1 layer", 2.0, 5.25),
    row(512, "IndRNN, 1 layer", 4.0, 5.0),
    row(64, "a loop", 3.0, 0.5),
    {"title": "the op alone", "name": "native", "base": "reference", "ms": {"median": 1}, "ratio": {"median": 2}},
    {"title": "memory", "name": "IndRNN", "bytes": 3},
]


def kept(folder: Path, content: object) -> Path:
    path = folder / "layer.json"
    path.write_text(json.dumps(content))
    return path


def test_curves_by_layer_in_the_order_of_lengths(tmp_path: Path) -> None:
    assert complexity.curves(kept(tmp_path, {"rows": ROWS})) == {
        "torch.nn.LSTM": [(256, 10.0, 1.0), (512, 20.0, 1.0)],
        "IndRNN, 1 layer": [(256, 2.0, 5.25), (512, 4.0, 5.0)],
        "a loop": [(64, 3.0, 0.5)],
    }


def test_numbers_picture_and_table(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    table = complexity.write(complexity.curves(kept(tmp_path, {"rows": ROWS})), {"from": "layer.json"}, tmp_path)
    assert table.splitlines()[0] == "| layer | T = 64 | T = 256 | T = 512 |"
    assert "| IndRNN, 1 layer |  | 5.25 | 5.00 |" in table
    assert json.loads((tmp_path / "complexity.json").read_text())["curves"]["a loop"] == [[64, 3.0, 0.5]]
    assert (tmp_path / "complexity.png").read_bytes().startswith(b"\x89PNG")


def test_files_that_are_something_else(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"measured must be the layer\.json"):
        complexity.curves(tmp_path / "none.json")
    for content, message in (
        ([], "is not what"),
        ({"rows": [{"a": 1}]}, "is not what"),
        ({"rows": ROWS[2:3]}, "no times of torch.nn.LSTM"),
    ):
        with pytest.raises(ValueError, match=message):
            complexity.curves(kept(tmp_path, content))
    (tmp_path / "torn.json").write_text("{")
    with pytest.raises(ValueError, match="is not what"):
        complexity.curves(tmp_path / "torn.json")
