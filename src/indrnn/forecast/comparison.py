"""Cross-validation of neuralforecast's models beside naive forecasts, and forecasts with intervals."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from neuralforecast import NeuralForecast
from neuralforecast.losses.pytorch import MAE, MQLoss
from neuralforecast.models import LSTM
from neuralforecast.utils import PredictionIntervals

from ..networks import NetworkConfig
from .model import QUIET, IndRNN
from .panel import KEYS, Panel


def candidates(
    horizon: int, input_size: int, network: NetworkConfig, recurrent: bool, level: Sequence[int], steps: int, seed: int
) -> dict[str, Any]:
    """Models by name: the network in the way asked for and in the other, and neuralforecast's LSTM.

    Forecasts of all steps at once learn the ends of the intervals as quantiles; a step at a time, points.
    """

    def options(recurrent: bool) -> dict[str, Any]:
        loss = {"loss": MAE(), "h_train": horizon} if recurrent else {"loss": MQLoss(level=list(level))}
        training = {"max_steps": steps, "val_check_steps": steps, "random_seed": seed, **QUIET}
        return {"h": horizon, "input_size": input_size, "recurrent": recurrent} | loss | training

    ways = [recurrent] if network.bidirectional else [recurrent, not recurrent]
    names = {False: "", True: "-recurrent"}
    models: dict[str, Any] = {f"IndRNN{names[way]}": IndRNN(network=network, **options(way)) for way in ways}
    return models | {f"LSTM{names[recurrent]}": LSTM(**options(recurrent))}


def compare(panel: Panel, models: Mapping[str, Any], windows: int, level: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Cross-validate models over windows at the end of the series, and two naive forecasts beside them.

    A model is trained once, on what comes before the windows, and forecasts each of them from all steps before it.

    Args:
        panel: the series.
        models: models of neuralforecast's by name, of one horizon; they stay untrained.
        windows: number of windows of a horizon each.
        level: levels of the models' intervals, in per cent.

    Yields:
        For each model its name, mean absolute error, seconds, and the share of values in each interval.
    """

    def score(name: str, table: Any, **more: float) -> dict[str, Any]:
        tested = table.merge(panel.known[KEYS])  # without what fills gaps
        inside = {i: tested["y"].between(tested[f"lo-{i}"], tested[f"hi-{i}"]) for i in level if f"lo-{i}" in tested}
        shares = {f"in {i} %": 100 * float(within.mean()) for i, within in inside.items()}
        return {"model": name, "MAE": float((tested["forecast"] - tested["y"]).abs().mean()), **more, **shares}

    for name, model in models.items():
        start, horizon = time.perf_counter(), model.h
        engine = NeuralForecast([deepcopy(model)], freq=panel.freq)
        table = _tidy(engine.cross_validation(panel.frame, n_windows=windows, step_size=horizon), model, level)
        yield score(name, table, seconds=time.perf_counter() - start)
    for name, season in {"Naive": 1, "SeasonalNaive": panel.season}.items():
        forecasts = [naive(y.to_numpy(), horizon, windows, season) for _, y in panel.frame.groupby("unique_id")["y"]]
        yield score(name, table[[*KEYS, "y"]].assign(forecast=np.concatenate(forecasts)))


def naive(values: Any, horizon: int, windows: int, season: int = 1) -> Any:
    """The last season before each window at the end of a series, repeated."""
    steps = np.arange(horizon) % season - season
    return np.concatenate([values[len(values) - horizon * i + steps] for i in range(windows, 0, -1)])


def fit(panel: Panel, model: Any, windows: int = 2) -> NeuralForecast:
    """Train a model on all of the series; if its loss has no quantiles, `windows` of them calibrate its intervals."""
    engine = NeuralForecast([model], freq=panel.freq)
    calibration = PredictionIntervals(max(windows, 2), step_size=model.h) if _conformal(model) else None
    engine.fit(panel.frame, prediction_intervals=calibration)
    return engine


def load(folder: Path) -> NeuralForecast:
    """Load what neuralforecast's `save` has written, of `IndRNN` too."""
    return NeuralForecast.load(str(folder))


def predict(engine: NeuralForecast, panel: Panel, level: Sequence[int]) -> Any:
    """Forecast the steps after the end of each series: a table of unique_id, ds, forecast, lo-LEVEL and hi-LEVEL."""
    (model,) = engine.models
    return _tidy(engine.predict(panel.frame, level=list(level) if _conformal(model) else None), model, level)


def _conformal(model: Any) -> bool:
    return bool(model.loss.outputsize_multiplier == 1)


def _tidy(table: Any, model: Any, level: Sequence[int]) -> Any:
    """Columns with the same names for all models, and quantiles in order."""
    name = repr(model)
    order = [f"lo-{i}" for i in sorted(level, reverse=True)] + ["forecast"] + [f"hi-{i}" for i in sorted(level)]
    names = {f"{name}-{column}": column for column in order}
    table = table.rename(columns={**names, name: "forecast", f"{name}-median": "forecast"})
    order = [column for column in order if column in table]
    table[order] = np.sort(table[order].to_numpy(), axis=1)
    return table
