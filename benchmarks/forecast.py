"""Forecasts of our networks in neuralforecast beside its LSTM and naive forecasts: files in results/forecast.

Needs the extra forecast.
"""

from __future__ import annotations

import logging
import statistics
import warnings
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch

from indrnn import Plain
from indrnn.checks import check_count, check_threads
from indrnn.forecast import Panel, candidates, compare, read_panel

from .command import command_line, options_of, start
from .results import Run, table, write

HORIZON, WINDOWS, INPUT_STEPS, LEVEL = 12, 3, 24, (80, 95)
NETWORK = Plain(hidden_size=64, layers=2, norm=None, dropout=0.1)
"""The command's defaults."""


@dataclass
class Options:
    """Forecasts of a year in three windows, by networks with the command's defaults and by naive forecasts."""

    out: Path = Path("results/forecast")
    """Output folder."""
    seeds: int = 3
    """Number of seeds."""
    steps: int = 200
    """Training steps."""
    threads: int | None = None
    """Number of CPU threads; None for PyTorch's default."""


def airline() -> Any:
    """Airline passengers, one series of 144 months."""
    from neuralforecast.utils import AirPassengersDF

    return AirPassengersDF[["ds", "y"]].assign(unique_id="passengers")


def shops() -> Any:
    """Synthetic: 30 shops of 96 months, each with a level, trend and season of its own that drift, and noise."""
    random, t = np.random.default_rng(0), np.arange(96)
    tables = []
    for i in range(30):
        level = random.uniform(50, 500) * (1 + random.normal(0, 0.003) * t + np.cumsum(random.normal(0, 0.01, 96)))
        season = 1 + np.tile(random.normal(0, 0.2, 12), 8) * np.linspace(1, random.uniform(0.5, 1.5), 96)
        y = level * season * (1 + random.normal(0, 0.05, 96))
        times = pd.date_range("2015-01-01", periods=96, freq="MS")
        tables.append(pd.DataFrame({"unique_id": f"shop {i}", "ds": times, "y": y}))
    return pd.concat(tables)


def panel_of(series: Any) -> Panel:
    """The series as the command reads them from a file; months by their first day."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "series.csv"
        series.assign(ds=series["ds"].dt.strftime("%Y-%m-01")).to_csv(path, index=False)
        return read_panel(path, time="ds", target="y", id="unique_id")


def page(runs: list[Run], command: str, seeds: int) -> list[str]:
    """A table for each set."""
    parts = [
        "# Forecasts",
        f"Horizon {HORIZON} months, {WINDOWS} windows at the end; networks are trained once before them and read "
        f"{INPUT_STEPS} months. Mean absolute error, share of values in the intervals, and seconds of training and "
        f"forecasts: means over {seeds} seeds, with the smallest and the largest error.",
        f"    {command}",
    ]
    for name, make in SETS.items():
        rows = []
        for model in dict.fromkeys(run["model"] for run in runs):
            some = [run for run in runs if (run["set"], run["model"]) == (name, model)]
            errors = [run["MAE"] for run in some]
            spread = f" ({min(errors):.1f} to {max(errors):.1f})" if len({*errors}) > 1 else ""
            means = {
                key: statistics.fmean(run[key] for run in some)
                for key in some[0]
                if key == "seconds" or key.startswith("in ")
            }
            inside = [f"{means[f'in {i} %']:.0f} %" if f"in {i} %" in means else "" for i in LEVEL]
            seconds = f"{means['seconds']:.1f}" if "seconds" in means else ""
            rows.append([model, f"{statistics.fmean(errors):.1f}{spread}", *inside, seconds])
        parts += [f"{make.__doc__}", table(["model", "MAE", *(f"in {i} %" for i in LEVEL), "seconds"], rows)]
    return parts


SETS = {"airline": airline, "shops": shops}


def main(arguments: list[str]) -> int:
    """Measure everything, and write the files."""
    options: Options = options_of("forecast", Options, arguments)
    for name in ("seeds", "steps"):
        check_count(name, getattr(options, name))
    if options.threads is not None:
        check_threads(options.threads)
        torch.set_num_threads(options.threads)
    runs = []
    for name, make in SETS.items():
        panel = panel_of(make())
        for seed in range(1, options.seeds + 1):
            both = (candidates(HORIZON, INPUT_STEPS, NETWORK, way, LEVEL, options.steps, seed) for way in (False, True))
            for score in compare(panel, next(both) | next(both), WINDOWS, LEVEL):
                runs.append({"set": name, "seed": seed} | score)
                print(runs[-1], flush=True)
    command = command_line("forecast", arguments)
    write(options.out, "forecast", {"command": command, "runs": runs}, page(runs, command, options.seeds))
    return 0


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of Lightning, about itself, as its notes
    logging.disable(logging.WARNING)
    start(main)
