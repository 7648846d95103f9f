"""Forecasts: our networks as a model of neuralforecast's, panels from files, comparison, intervals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import indrnn

pytest.importorskip("neuralforecast", reason="forecasts need the extra: pip install 'indrnn[forecast]'")

import pandas as pd
import torch
from neuralforecast import NeuralForecast
from neuralforecast.losses.pytorch import MAE, DistributionLoss, MQLoss

from indrnn.forecast import IndRNN, Panel, candidates, compare, fit, load, predict, read_panel
from indrnn.forecast.models import naive

pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning, about itself
SMALL = indrnn.Plain(hidden_size=5, layers=2, norm=None)


def monthly(series: int = 2, steps: int = 60, gap: slice = slice(0)) -> Any:
    """A table of series with a season of twelve and a trend; without the rows of `gap` in the first one."""
    times = pd.date_range("2010-01-01", periods=steps, freq="MS")
    t = np.arange(steps)
    rows = [
        pd.DataFrame({"shop": f"00{i}", "month": times, "sales": 50 * (i + 1) + t + 9 * np.sin(t * np.pi / 6)})
        for i in range(series)
    ]
    rows[0] = rows[0].drop(index=rows[0].index[gap])
    return pd.concat(rows, ignore_index=True)


@pytest.fixture
def panel(tmp_path: Path) -> Panel:
    return read(tmp_path, monthly())


def read(folder: Path, table: Any, **options: Any) -> Panel:
    table.to_csv(folder / "sales.csv", index=False)
    return read_panel(folder / "sales.csv", **{"time": "month", "target": "sales", "id": "shop"} | options)


def model(**options: Any) -> IndRNN:
    small: dict[str, Any] = {"h": 6, "input_size": 12, "network": SMALL, "max_steps": 3, "val_check_steps": 3}
    return IndRNN(**small | options)


def forecasts_of(panel: Panel, **options: Any) -> Any:
    return NeuralForecast([model(**options)], freq="MS").cross_validation(panel.frame, n_windows=1, step_size=6)


# ---- the model


@pytest.mark.parametrize(
    "network",
    [
        SMALL,
        indrnn.Plain(hidden_size=5, layers=3, norm="layer", bidirectional=True),
        indrnn.Residual(hidden_size=4, blocks=2, norm="batch", gamma=2.0),
        indrnn.Dense(growth_rate=4, blocks=(2, 2), norm="rms", gamma=None),
    ],
    ids=["plain", "bidirectional", "residual", "dense"],
)
def test_every_network_forecasts_directly(panel: Panel, network: Any) -> None:
    table = forecasts_of(panel, network=network, loss=MQLoss(level=[80]))
    assert len(table) == 2 * 6
    assert np.isfinite(table.filter(like="IndRNN").to_numpy()).all()


@pytest.mark.parametrize("loss", [MAE(), DistributionLoss("Normal", level=[80])], ids=["points", "distribution"])
def test_it_forecasts_a_step_at_a_time(panel: Panel, loss: Any) -> None:
    table = forecasts_of(panel, recurrent=True, loss=loss)
    assert np.isfinite(table.filter(like="IndRNN").to_numpy()).all()


def test_steps_with_carried_state_are_those_of_the_whole_sequence() -> None:
    recurrent = model(recurrent=True, loss=MAE(), network=indrnn.Plain(hidden_size=5, layers=2, norm="layer")).eval()
    x = torch.randn(3, 13, 1)
    whole = recurrent({"insample_y": x, "futr_exog": None, "hist_exog": None, "stat_exog": None})
    recurrent.maintain_state = True
    for t in range(13):
        batch = {"insample_y": x[:, t : t + 1], "futr_exog": None, "hist_exog": None, "stat_exog": None}
        step = recurrent(batch)
    torch.testing.assert_close(step[:, -1], whole[:, -1])


def test_known_and_past_covariates_are_read(panel: Panel) -> None:
    frame = panel.frame.assign(price=panel.frame["y"].shift(1, fill_value=1.0), month=panel.frame["ds"].dt.month)
    engine = NeuralForecast([model(futr_exog_list=["month"], hist_exog_list=["price"])], freq="MS")
    engine.fit(frame)
    ahead = engine.make_future_dataframe()
    assert len(engine.predict(futr_df=ahead.assign(month=ahead["ds"].dt.month))) == 2 * 6


def test_weights_stay_within_the_bound(panel: Panel) -> None:
    engine = NeuralForecast([model(learning_rate=1.0, network=indrnn.Plain(hidden_size=5, norm=None))], freq="MS")
    engine.fit(panel.frame)
    units = engine.models[0].hist_encoder.recurrent_layers
    assert len(units) == 6
    assert all(unit.weight_hh.abs().max() <= 1 for unit in units)
    assert max(unit.weight_hh.abs().max() for unit in units) == 1  # a step of 1.0 had left it


def test_the_same_seed_gives_the_same_forecasts(panel: Panel) -> None:
    first, second, other = (forecasts_of(panel, random_seed=seed)["IndRNN"] for seed in (1, 1, 2))
    assert first.equals(second)
    assert not first.equals(other)


@pytest.mark.parametrize("recurrent", [False, True])
def test_it_is_saved_and_loaded(panel: Panel, tmp_path: Path, recurrent: bool) -> None:
    engine = fit(panel, model(recurrent=recurrent, network=indrnn.Residual(hidden_size=4, blocks=1, norm="layer")))
    engine.save(str(tmp_path / "model"), save_dataset=False)
    loaded = load(tmp_path / "model")
    assert loaded.models[0].hist_encoder.config == engine.models[0].hist_encoder.config
    assert predict(loaded, panel, [80]).equals(predict(engine, panel, [80]))


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"network": 3}, TypeError, "network must be indrnn.Plain, Residual or Dense, got int"),
        ({"encoder_n_layers": 3}, TypeError, "options are those of network, such as layers or dropout, got encoder_n"),
        (
            {"recurrent": True, "loss": MQLoss()},
            ValueError,
            "loss must be one of points or of a distribution .* MQLoss",
        ),
        (
            {"recurrent": True, "network": indrnn.Plain(bidirectional=True)},
            ValueError,
            "network.bidirectional must be False with recurrent",
        ),
    ],
)
def test_impossible_models_are_refused(options: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        model(**options)


# ---- panels


def test_series_are_read_with_their_gaps(tmp_path: Path) -> None:
    panel = read(tmp_path, monthly(gap=slice(7, 9)), freq="MS")
    assert (panel.freq, panel.season) == ("MS", 12)
    assert panel.frame["unique_id"].unique().tolist() == ["000", "001"]
    assert panel.frame.groupby("unique_id").size().tolist() == [60, 60]
    assert panel.frame["available_mask"].tolist()[5:11] == [1, 1, 0, 0, 1, 1]
    assert panel.frame["y"][8] == panel.frame["y"][6]
    assert len(panel.known) == 118


def test_empty_values_are_gaps_and_none_at_the_ends(tmp_path: Path) -> None:
    table = monthly(1)
    table.loc[[0, 1, 30, 59], "sales"] = np.nan
    panel = read(tmp_path, table)
    assert len(panel.frame) == 57
    assert panel.frame["available_mask"].sum() == 56


@pytest.mark.parametrize(
    ("freq", "season"),
    [("D", 7), ("h", 24), ("2h", 12), ("W-SUN", 52), ("QS-OCT", 4), ("B", 5), ("YS-JAN", 1), ("min", 1)],
)
def test_distance_and_season_are_inferred(tmp_path: Path, freq: str, season: int) -> None:
    table = monthly(1).assign(month=pd.date_range("2010-01-01", periods=60, freq=freq))
    panel = read(tmp_path, table)
    assert (panel.freq, panel.season) == (freq, season)
    assert read(tmp_path, table, season=3).season == 3


def test_times_may_be_whole_numbers(tmp_path: Path) -> None:
    panel = read(tmp_path, monthly(1).assign(month=range(5, 125, 2)), id=None)
    assert (panel.freq, panel.season, panel.frame["unique_id"][0]) == (2, 1, "sales")


def test_dates_may_be_written_otherwise(tmp_path: Path) -> None:
    table = monthly()
    table["month"] = table["month"].dt.strftime("%d %B %Y")
    assert read(tmp_path, table).frame.equals(read(tmp_path, monthly()).frame)


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        ({}, {"time": "day"}, r"time must be a column of .*sales.csv \(shop, month, sales\), got 'day'"),
        ({}, {"target": "tales"}, "target must be a column of .* got 'tales'"),
        ({}, {"id": "store"}, "id must be a column of .* got 'store'"),
        ({"month": (4, "soon")}, {}, "time must be a date or a whole number, got soon in line 6"),
        ({"sales": (4, "many")}, {}, "target must be a number, got many in line 6"),
        ({"sales": (4, "inf")}, {}, "target must be a number, got inf in line 6"),
        ({"shop": (4, None)}, {}, "id must be the name of a series, got nan in line 6"),
        ({"month": (4, "2010-01-01")}, {}, "time must be another in every line of a series, got 2010-01-01 in line 6"),
        ({}, {"id": None}, r"time must be another .* \(id names the column that tells series apart\), got 2010-01-01"),
        ({"month": (4, "2010-05-17")}, {}, "freq must be the distance of the times .* got none to infer"),
        ({"month": (4, "2010-05-17")}, {"freq": "MS"}, "freq must be the distance of all times, and MS is not, got"),
        ({}, {"freq": "often"}, "freq must be the distance of the times .* got often"),
        ({}, {"freq": "BMS"}, "freq must be a distance that neuralforecast knows, got BMS"),
        ({}, {"season": 0}, "season must be at least 1, got 0"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, change: dict[str, Any], options: Any, said: str) -> None:
    table = monthly().astype(object)
    for column, (row, value) in change.items():
        table.loc[row, column] = value
    with pytest.raises(ValueError, match=said):
        read(tmp_path, table, **options)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"data must be a CSV file or a folder of forecasts, and .* is neither"):
        read_panel(tmp_path / "none.csv", time="month", target="sales")
    (tmp_path / "empty.csv").touch()
    with pytest.raises(ValueError, match=r"data must be a CSV file, and .*empty\.csv cannot be read: No columns"):
        read_panel(tmp_path / "empty.csv", time="month", target="sales")


# ---- comparison


def test_naive_forecasts_repeat_what_was_known() -> None:
    values = np.arange(20)
    assert naive(values, 3, 2).tolist() == [13] * 3 + [16] * 3
    assert naive(values, 3, 2, season=2).tolist() == [12, 13, 12, 15, 16, 15]


@pytest.mark.parametrize("recurrent", [False, True])
def test_models_are_compared_with_naive_forecasts(panel: Panel, recurrent: bool) -> None:
    models = candidates(6, 12, SMALL, recurrent, [80, 95], 3, 1)
    scores = {score["model"]: score for score in compare(panel, models, 2, [80, 95])}
    ways = ("IndRNN-recurrent", "IndRNN", "LSTM-recurrent") if recurrent else ("IndRNN", "IndRNN-recurrent", "LSTM")
    assert list(scores) == [*ways, "Naive", "SeasonalNaive"]
    assert {"in 80 %", "in 95 %"} <= scores["IndRNN"].keys()
    assert scores["IndRNN"]["in 80 %"] <= scores["IndRNN"]["in 95 %"]  # quantiles are in order
    assert scores["SeasonalNaive"]["MAE"] == pytest.approx(12)  # the trend of a year


def test_what_fills_gaps_is_not_counted(tmp_path: Path) -> None:
    panel = read(tmp_path, monthly(1, gap=slice(50, 59)), freq="MS")
    *_, naive_score, _ = compare(panel, {"IndRNN": model()}, 1, [])
    known, last = panel.known["y"].to_numpy(), panel.frame["y"].to_numpy()
    assert naive_score["MAE"] == pytest.approx(abs(known[-1] - last[-7]))


@pytest.mark.parametrize("recurrent", [False, True], ids=["quantiles", "conformal"])
def test_ends_of_intervals_are_in_order(panel: Panel, recurrent: bool) -> None:
    engine = fit(panel, model(recurrent=recurrent, loss=MAE() if recurrent else MQLoss(level=[50, 80, 95])))
    table = predict(engine, panel, [80, 50, 95])
    ends = table[["lo-95", "lo-80", "lo-50", "forecast", "hi-50", "hi-80", "hi-95"]].to_numpy()
    assert len(ends) == 2 * 6
    assert (np.diff(ends, axis=1) >= 0).all()
    assert (ends[:, 0] < ends[:, -1]).all()


# ---- the extra


def test_only_forecasts_need_neuralforecast() -> None:
    code = "import sys, indrnn; indrnn.IndRNN, indrnn.networks; assert 'neuralforecast' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_the_extra_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "neuralforecast", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in [name for name in sys.modules if name.startswith("indrnn.forecast")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r'forecasts need neuralforecast: pip install "indrnn\[forecast\]"'):
        import indrnn.forecast  # noqa: F401
