"""The benchmark of forecasts: its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("neuralforecast", reason="forecasts need the extra: pip install 'indrnn[forecast]'")

from benchmarks import forecast
from indrnn.networks import Plain

pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning, about itself


def test_models_and_naive_forecasts_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "SETS", {"airline": forecast.airline})
    monkeypatch.setattr(forecast, "NETWORK", Plain(hidden_size=3, layers=1, norm=None))
    assert forecast.main(["--seeds", "2", "--steps", "2", "--out", str(tmp_path)]) == 0
    runs = json.loads((tmp_path / "forecast.json").read_text())["runs"]
    assert len(runs) == 2 * 6
    assert next(run["MAE"] for run in runs if run["model"] == "SeasonalNaive") == pytest.approx(35.9, abs=0.1)
    page = (tmp_path / "forecast.md").read_text()
    assert "| SeasonalNaive | 35.9 |" in page
    assert "python -m benchmarks.forecast --seeds 2 --steps 2" in page
