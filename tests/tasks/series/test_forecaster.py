"""Forecasts: the naive ones, the period, shapes, errors and intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import indrnn
from indrnn import IndRNNForecaster
from indrnn.tasks.series.naive import find_period, naive, rolling_error, seasonal_naive


def test_naive_forecasts_and_period() -> None:
    past = np.array([1.0, 2.0, 3.0, 4.0])
    assert naive(past, 3).tolist() == [4, 4, 4]
    assert seasonal_naive(past, 5, 3).tolist() == [2, 3, 4, 2, 3]
    t = np.arange(90)
    assert find_period([np.sin(2 * np.pi * t / 7)[None] + t / 10]) == 7
    assert find_period([np.random.default_rng(0).normal(size=(1, 90)).cumsum(1)]) == 1
    assert rolling_error(lambda past: naive(past, 2), np.arange(10.0), 2, 4) == 1.5


def test_learns_what_the_season_does_not_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    t = np.arange(120)
    y = np.sin(2 * np.pi * t / 6) * (1 + t / 40) + t / 5
    model = IndRNNForecaster(6, random_state=0, steps=60, members=1, hidden_size=16, lr=0.01).fit(y[:-6])
    assert "seasonal naive" in capsys.readouterr().out
    assert model.period_ == 6
    assert model.errors_["indrnn"] < model.errors_["seasonal_naive"] < model.errors_["naive"]
    forecast = model.predict()
    assert forecast.shape == (6, 1)
    assert np.abs(forecast[:, 0] - y[-6:]).mean() < np.abs(seasonal_naive(y[:-6], 6, 6) - y[-6:]).mean()
    low, high = model.predict_interval()
    assert (low < forecast).all()
    assert (forecast < high).all()
    np.testing.assert_allclose(model.predict(y[:-6]), forecast)
    model.save(tmp_path)
    loaded = indrnn.load(tmp_path)
    np.testing.assert_allclose(loaded.predict(), forecast, rtol=1e-6)
    np.testing.assert_allclose(loaded.predict_interval()[0], low, rtol=1e-6)


def test_intervals_are_in_deviations_of_the_context() -> None:
    """A series ten times as large has intervals ten times as wide, by one and the same forecaster."""
    y = np.sin(np.arange(80) / 3) + np.random.default_rng(0).normal(size=80) * 0.1
    model = IndRNNForecaster(2, random_state=0, steps=5, members=1, verbose=0, hidden_size=8, period=1).fit(y)
    (low, high), (wide_low, wide_high) = (model.predict_interval(each) for each in (y, 10 * y))
    np.testing.assert_allclose(wide_high - wide_low, 10 * (high - low), rtol=1e-6)
    past = y[-model.context_ :]
    np.testing.assert_allclose(high - low, 2 * model.half_width_ * past.std(), rtol=1e-6)


def test_forecasts_since_the_fit_count_in_the_intervals(tmp_path: Path) -> None:
    """A series that grows wild after the fit: residuals of every forecast since then, by a loop."""
    draw = np.random.default_rng(0)
    y = np.sin(np.arange(110) / 3) + draw.normal(size=110) * np.where(np.arange(110) < 80, 0.1, 2.0)
    model = IndRNNForecaster(3, random_state=0, steps=5, members=1, verbose=0, hidden_size=8, period=1).fit(y[:80])
    by_step: list[list[float]] = model._held_back[:, :, 0].T.tolist()
    for start in range(80, 100):
        past = y[start - model.context_ : start]
        forecast = model.predict(y[:start])[:, 0]
        for k in range(min(3, 100 - start)):
            by_step[k].append(abs(y[start + k] - forecast[k]) / past.std())
    half, widest = [], 0.0
    for residuals in by_step:
        rank = min(len(residuals), -(-9 * (len(residuals) + 1) // 10))
        widest = max(widest, sorted(residuals)[rank - 1])
        half.append(widest * y[100 - model.context_ : 100].std())
    low, high = model.predict_interval(y[:100])
    np.testing.assert_allclose((high - low)[:, 0] / 2, half, rtol=1e-5)
    assert half[0] > model.half_width_[0, 0] * y[100 - model.context_ : 100].std()
    model.save(tmp_path)
    np.testing.assert_allclose(indrnn.load(tmp_path).predict_interval(y[:100])[1], high, rtol=1e-6)
    # What is measured knows nothing of the steps that it is measured on
    wild = np.concatenate([y[:80], y[80:83] + 100])
    low, high = model.predict_interval(y[:80])
    assert model.measure(wild)["covered"] == ((low[:, 0] <= wild[80:]) & (wild[80:] <= high[:, 0])).mean() == 0


def test_intervals_of_a_series_do_not_depend_on_the_others() -> None:
    draw = np.random.default_rng(0)
    a, b = (draw.normal(size=80).cumsum() for _ in range(2))
    options: dict[str, Any] = {"random_state": 0, "steps": 2, "members": 1, "verbose": 0, "hidden_size": 4}
    model = IndRNNForecaster(2, period=1, context=8, **options).fit([a[:60], b[:60]])
    (low_a, low_b), (low_b2, low_a2) = model.predict_interval([a, b])[0], model.predict_interval([b, a])[0]
    np.testing.assert_allclose(low_a, low_a2)
    np.testing.assert_allclose(low_b, low_b2)
    np.testing.assert_allclose(low_b, model.predict_interval([b])[0])
    assert len(model._since_fit(a[None])) == 20
    assert len(model._since_fit(a[None, 1:])) == 0
    model.coverage = 0.3
    assert (
        model.predict_interval()[0]
        > IndRNNForecaster(2, period=1, context=8, **options).fit([a[:60], b[:60]]).predict_interval()[0]
    ).all()


def test_steps_at_which_nothing_happens_are_on_the_scale_of_the_others() -> None:
    draw = np.random.default_rng(0)
    t = np.arange(120)
    usual = 5000 + 1000 * np.sin(1.3 * t) + 100 * draw.normal(size=120)
    still = np.where(((t >= 40) & (t < 60)) | (t >= 110), 0.0, usual)
    model = IndRNNForecaster(2, period=1, context=8, random_state=0, steps=2, members=1, verbose=0, hidden_size=4)
    model.fit(still)
    assert model.target_.scale[0] < 500  # of thousands, over a hundredth of their deviation
    small = IndRNNForecaster(2, period=1, context=8, random_state=0, steps=2, members=1, verbose=0, hidden_size=4)
    small.fit(still * 1e-10)
    np.testing.assert_allclose(small.predict() * 1e10, model.predict(), rtol=1e-4)


def test_a_run_goes_on_without_a_seed(tmp_path: Path) -> None:
    y = np.random.default_rng(0).normal(size=60).cumsum()
    options: dict[str, Any] = {"steps": 2, "members": 1, "verbose": 0, "hidden_size": 4, "period": 1}
    first = IndRNNForecaster(2, **options).fit(y, out=tmp_path / "run").predict()
    again = IndRNNForecaster(2, **options).fit(y, out=tmp_path / "run", resume=True).predict()
    np.testing.assert_array_equal(first, again)


@pytest.mark.slow
def test_intervals_cover_what_they_say() -> None:
    """Of a season with noise, over many forecasts from later steps: 90 % asked for."""
    draw = np.random.default_rng(0)
    t = np.arange(700)
    y = np.sin(2 * np.pi * t / 12) + 0.3 * draw.normal(size=700)
    model = IndRNNForecaster(6, random_state=0, steps=150, members=1, verbose=0, hidden_size=16).fit(y[:400])
    within = []
    for start in range(400, 694):
        low, high = model.predict_interval(y[:start])
        within.append(((low[:, 0] <= y[start : start + 6]) & (y[start : start + 6] <= high[:, 0])).mean())
    assert 0.85 < np.mean(within) < 0.98


def test_many_series_of_several_channels() -> None:
    draw = np.random.default_rng(0)
    y = [draw.normal(size=(2, n)).cumsum(1) for n in (40, 50, 44)]
    model = IndRNNForecaster(3, random_state=0, steps=3, members=1, verbose=0, hidden_size=8).fit(y)
    assert model.predict().shape == (3, 3, 2)
    assert model.predict(y[:1]).shape == (3, 2)


def test_what_is_wrong_is_named() -> None:
    with pytest.raises(ValueError, match=r"at least \d+ steps"):
        IndRNNForecaster(12).fit(np.arange(20.0))
    with pytest.raises(ValueError, match="in series 0, channel 0, step 3"):
        IndRNNForecaster(1).fit([0.0, 1.0, 2.0, np.nan] * 10)
    with pytest.raises(ValueError, match="horizon"):
        IndRNNForecaster(0).fit(np.arange(20.0))
    with pytest.raises(ValueError, match="context must be at least"):
        IndRNNForecaster(1, context=0).fit(np.arange(20.0))
    with pytest.raises(ValueError, match="steps must be at least"):
        IndRNNForecaster(1, steps=0).fit(np.arange(20.0))
    with pytest.raises(ValueError, match="at least 9 steps in each series"):
        IndRNNForecaster(1, context=9).fit([np.arange(20.0), np.arange(8.0)])
    with pytest.raises(ValueError, match="at least one series"):
        IndRNNForecaster(1).fit(np.zeros((0, 1, 30)))
    fitted = IndRNNForecaster(2, steps=2, hidden_size=4, members=1, verbose=0).fit(np.arange(40.0))
    with pytest.raises(ValueError, match="horizon was 2 in fit and is 3 now"):
        fitted.set_params(horizon=3).predict()


@pytest.mark.parametrize("value", [0.0, 1e-3, 5e6])
def test_what_never_changes_is_forecast_as_it_is(value: float) -> None:
    model = IndRNNForecaster(3, steps=5, random_state=0).fit(np.full(60, value))
    np.testing.assert_allclose(model.predict(), value, rtol=1e-8, atol=1e-8 if value == 0 else 0)


def test_small_changes_of_large_values_are_changes() -> None:
    season = 1e9 + 1e-3 * np.sin(2 * np.pi * np.arange(60) / 12)
    model = IndRNNForecaster(3, steps=5, random_state=0).fit(season)
    np.testing.assert_allclose(model.predict()[:, 0], season[:3], rtol=0, atol=1e-3)


def test_series_that_rise_evenly_do_not_hide_the_season_of_others() -> None:
    t = np.arange(60)
    rising = [(slope * t)[None] for slope in (0.1, 0.3, 0.7, 1.1, 1.3)]
    assert find_period([*rising, np.sin(2 * np.pi * t / 12)[None]]) == 12


def test_flat_series_do_not_hide_the_season_of_others() -> None:
    season = 1e-3 * np.sin(2 * np.pi * np.arange(60) / 12)
    model = IndRNNForecaster(3, steps=5, random_state=0).fit([np.zeros(60), np.zeros(60), season])
    assert model.period_ == 12
    assert model.errors_["indrnn"] < model.errors_["naive"] / 10
