"""`IndRNN`, a model of neuralforecast's with our networks, its comparison with others, and forecasts with intervals."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from neuralforecast import NeuralForecast
from neuralforecast.core import MODEL_FILENAME_DICT
from neuralforecast.losses.pytorch import MAE, HuberMQLoss, MQLoss
from neuralforecast.models import LSTM, RNN
from neuralforecast.utils import PredictionIntervals

from ..layers import attach_constraint
from ..networks import NetworkConfig, Plain
from ..saving import from_json, to_json
from .panel import KEYS, Panel

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
"""Options of Lightning's trainer with which it writes nothing to the terminal and no folder of logs."""


class IndRNN(RNN):  # type: ignore[misc]
    """neuralforecast's recurrent model, with one of our networks in the place of its `torch.nn.RNN`.

    It is used as any model of neuralforecast's: panels, known and past covariates, missing steps, losses, windows of
    cross-validation and saving are neuralforecast's, training is Lightning's. The recurrent weights stay within the
    network's bound, |u| <= γ^(1/T), where T is `input_size`.

    Args:
        h: horizon, the number of steps that are forecast.
        input_size: steps that the network reads before them; -1 for three horizons.
        network: `indrnn.Plain`, `Residual` or `Dense`, with depth, width, norm, γ and dropout; None for two layers of
            64 without norm and with dropout 0.1.
        recurrent: forecast a step at a time, each from the one before it; False for all steps at once.
        **options: the others of `neuralforecast.models.RNN`, but `encoder_*`, and of Lightning's trainer, which here is
            silent unless they say otherwise.

    Example:
        model = IndRNN(h=12, input_size=24, network=indrnn.Residual(None, 64, 2, norm="layer"), loss=MQLoss(level=[80]))
        NeuralForecast([model], freq="MS").cross_validation(frame, n_windows=3, step_size=12)
    """

    hist_encoder: Any

    def __init__(
        self,
        h: int,
        input_size: int = -1,
        network: NetworkConfig | Mapping[str, Any] | None = None,
        recurrent: bool = False,
        **options: Any,
    ) -> None:
        loaded = isinstance(network, Mapping)
        config = from_json(network) if loaded else network or Plain(hidden_size=64, layers=2, norm=None, dropout=0.1)
        if not isinstance(config, NetworkConfig):
            raise TypeError(f"network must be indrnn.Plain, Residual or Dense, got {type(config).__name__}")
        if recurrent and config.bidirectional:
            raise ValueError("network.bidirectional must be False with recurrent, whose future is not known")
        if recurrent and isinstance(options.get("loss"), (MQLoss, HuberMQLoss)):
            why, got = "neuralforecast gives all quantiles the same value", type(options["loss"]).__name__
            raise ValueError(f"loss must be one of points or of a distribution with recurrent, where {why}, got {got}")
        encoder = sorted(name for name in options if name.startswith("encoder_"))
        if encoder and not loaded:
            raise TypeError(f"the encoder's options are those of network, such as layers or dropout, got {encoder[0]}")
        network = to_json(config)  # what neuralforecast saves
        width = config.sized(1, 1).build(device="meta").output_size
        options = {**QUIET, **options, "encoder_n_layers": 1, "encoder_hidden_size": width}
        super().__init__(h=h, input_size=input_size, recurrent=recurrent, **options)
        sized = config.sized(self.hist_encoder.input_size, self.input_size)
        self.hist_encoder = replace(sized, batch_first=True).build()

    def configure_optimizers(self) -> Any:
        """Make the optimizer, after whose steps the recurrent weights are brought back within their bound."""
        made = super().configure_optimizers()
        attach_constraint(made["optimizer"], self.hist_encoder)
        return made


MODEL_FILENAME_DICT["indrnn"] = IndRNN  # by which NeuralForecast.load knows it


# ---- comparison


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

    A copy of each model, all of one horizon, is trained once, on what comes before the windows, and forecasts each of
    them from all steps before it. Yields, for each, its name, mean absolute error, seconds, and the share of values
    within its interval of each `level`, in per cent.
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


# ---- forecasts


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
