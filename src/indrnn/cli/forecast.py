"""`indrnn forecast`: the next steps of the series of a CSV file, with intervals, by neuralforecast and our networks."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tyro

from ..checks import check_count, check_seed
from ..files import new_folder
from ..networks.config import Plain
from ..system import load_torch
from .main import say
from .parse import parse

RECORD, DATA, MODEL, FORECASTS, PICTURE = "forecast.json", "data.csv", "model", "forecasts.csv", "forecasts.png"
READING = ("time", "target", "id", "freq", "season")
"""Options by which a file is read."""


@dataclass
class ForecastOptions:
    """Forecast the next steps of the series in a CSV file, with intervals, by a deep IndRNN in neuralforecast.

    First the network in both of its ways, neuralforecast's LSTM and two naive forecasts are compared over windows at
    the end of the series: mean absolute error, and how many per cent of the values lie in each interval. Then the
    network is trained on everything. `indrnn forecast FOLDER` forecasts again with it.
    """

    data: tyro.conf.Positional[Path]
    """CSV file with a row for each series and time; or a folder of earlier forecasts."""
    horizon: int
    """Steps to forecast."""
    time: str
    """Column of the times: dates or whole numbers, at equal distances but for gaps."""
    target: str
    """Column to forecast; where it is empty, the step is missing."""
    id: str | None = None
    """Column that names the series; None for one series."""
    freq: str | None = None
    """Distance of the times, such as D, h, W-SUN or MS; None to infer it."""
    season: int | None = None
    """Steps of a season; None for a day, a week or a year, by the distance of the times."""
    level: tuple[int, ...] = (80, 95)
    """Levels of the intervals, in per cent."""
    windows: int = 3
    """Windows of the comparison, of a horizon each."""
    input_steps: int | None = None
    """Steps that the network reads; None for two seasons or, if longer, two horizons."""
    recurrent: bool = False
    """Forecast a step at a time, each from the one before it, with conformal intervals; else all steps at once."""
    steps: int = 200
    """Training steps."""
    model: Plain = field(default_factory=lambda: Plain(hidden_size=64, layers=2, norm=None, dropout=0.1))
    """The network."""
    seed: int = 1
    """Random seed."""
    out: Path | None = None
    """Output folder; None for runs/forecast-NAME."""
    overwrite: bool = False
    """Replace the forecasts in the output folder."""


@dataclass
class AgainOptions:
    """Forecast again with the network of earlier forecasts, also after newer data."""

    folder: tyro.conf.Positional[Path]
    """Folder of earlier forecasts."""
    data: Path | None = None
    """CSV file like the first one, with newer rows; None for the data of the folder."""
    out: Path | None = None
    """Output folder; None for FOLDER/again."""
    overwrite: bool = False
    """Replace the forecasts in the output folder."""


def forecast(arguments: list[str]) -> None:
    """Forecast series."""
    again = bool(arguments) and Path(arguments[0]).is_dir()
    name, kind = ("forecast FOLDER", AgainOptions) if again else ("forecast", ForecastOptions)
    options = parse(name, kind, arguments)
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)  # notes of Lightning and neuralforecast
    try:
        with warnings.catch_warnings(action="ignore"):
            (_again if again else _forecast)(options)
    except SystemExit:  # of Lightning, for Ctrl-C
        raise KeyboardInterrupt from None
    finally:
        logging.disable(disabled)


def _forecast(options: ForecastOptions) -> None:
    from ..forecast.panel import read_panel

    for name in ("horizon", "windows", "steps"):
        check_count(name, getattr(options, name))
    check_seed(options.seed)
    if not options.level or not all(0 < level < 100 for level in options.level):
        raise ValueError(f"level must be whole numbers from 1 to 99, got {options.level}")
    panel = read_panel(options.data, **{name: vars(options)[name] for name in READING})
    input_steps = options.input_steps or 2 * max(panel.season, options.horizon)
    panel.check_length(options.horizon, options.windows, input_steps)
    options = replace(options, freq=str(panel.freq), season=panel.season, input_steps=input_steps)
    out = options.out or Path("runs") / f"forecast-{options.data.stem}"
    with new_folder(out, FORECASTS, overwrite=options.overwrite) as folder:
        say(f"{panel.describe()}; the network reads {input_steps} steps")
        load_torch()
        from ..forecast.models import candidates, compare, fit
        from ..saving import as_bytes, to_json

        training = options.recurrent, options.level, options.steps, options.seed
        models = candidates(options.horizon, input_steps, options.model, *training)
        columns = ["MAE", "seconds", *(f"in {level} %" for level in options.level)]
        say(f"{'':18}" + "".join(f"{column:>10}" for column in columns))
        scores = []
        for score in compare(panel, models, options.windows, options.level):
            cells = (f"{score[column]:.4g}" if column in score else "" for column in columns)
            say((f"{score['model']:<18}" + "".join(f"{cell:>10}" for cell in cells)).rstrip())
            scores.append(score)
        engine = fit(panel, next(iter(models.values())), options.windows)
        engine.save(str(folder / MODEL), save_dataset=False)
        panel.named(panel.known).to_csv(folder / DATA, index=False)
        (folder / RECORD).write_bytes(as_bytes({"options": to_json(options), "scores": scores}))
        _write(folder, engine, panel, options.level)
    best = min(scores, key=lambda score: float(score["MAE"]))
    say(f"{best['model']} has the lowest error; forecasts of {next(iter(models))}: {out / FORECASTS}")
    say(f"to go on after newer data: indrnn forecast {out} --data FILE")


def _again(options: AgainOptions) -> None:
    from ..forecast.panel import read_panel

    record = options.folder / RECORD
    if not record.is_file():
        raise ValueError(f"folder must be one that `indrnn forecast FILE` has written, and {record} is not there")
    recorded = json.loads(record.read_text())["options"]
    panel = read_panel(options.data or options.folder / DATA, **{name: recorded[name] for name in READING})
    panel.check_length(0, 0, recorded["input_steps"])
    out = options.out or options.folder / "again"
    with new_folder(out, FORECASTS, overwrite=options.overwrite) as folder:
        say(panel.describe())
        load_torch()
        from ..forecast.models import load

        _write(folder, load(options.folder / MODEL), panel, recorded["level"])
    say(f"forecasts: {out / FORECASTS}")


def _write(folder: Path, engine: Any, panel: Any, level: Sequence[int]) -> None:
    """Write the forecasts as a table and, with matplotlib, as a picture of the first series."""
    from ..forecast.models import predict

    ahead = predict(engine, panel, level)
    panel.named(ahead).to_csv(folder / FORECASTS, index=False, float_format="%.7g")
    if find_spec("matplotlib") is None:
        say("no picture was drawn: that needs matplotlib (pip install 'indrnn[report]')")
        return
    from ..figures import draw_forecasts

    series = {name: (known, ahead[ahead["unique_id"] == name]) for name, known in panel.frame.groupby("unique_id")}
    draw_forecasts(folder / PICTURE, series, level, up=panel.names["y"], across=panel.names["ds"], shown=5 * engine.h)
