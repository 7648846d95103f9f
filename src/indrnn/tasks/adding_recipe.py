"""The adding problem: the paper's four panels, and quicker recipes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import nn

from ..analysis.runs import Page, command_of, mean, steps_of, time_of
from ..baselines import Baseline
from ..checks import check_seed
from ..networks import Head, Plain
from ..training import Cosine, RunFolder, Steps, Training
from .adding import BASELINE, Adding
from .recipe import AnyNetwork, Loop, Row

# The paper gives the bound |u| <= 2^(1/T). That the last layer starts above 2^(-1/T) and that input weights start in
# N(0, 0.001) are the authors' published settings.
_INDRNN = Plain(hidden_size=128, layers=2, norm=None, gamma=2.0, long_memory=True, epsilon=0.5, weight_std=0.001)


def _summary(run: dict[str, Any]) -> dict[str, Any]:
    options = run.pop("options")
    test = run.pop("test")
    model = options["model"].get("kind", "indrnn")
    return {**run, "model": model, "length": options["length"], "test_mse": test and test["test_mse"]}


def _row(runs: list[dict[str, Any]]) -> list[object]:
    first = runs[0]
    if all(run["finished"] for run in runs):
        error = mean([run["test_mse"] for run in runs], "{:.2g}")
    else:
        error = mean([run["best"][1] for run in runs], "{:.2g}") + " (best evaluation)"
    columns = [first["length"], first["model"], f"{first['lr']:g}", steps_of(first), time_of(first), error]
    return [*columns, command_of(first)]


_PAGE = Page(
    name="adding",
    metric="validation_mse",
    older="test_mse",
    higher_is_better=False,
    head="T, model, lr, steps, time, test MSE, command",
    summary=_summary,
    order=lambda run: (run["length"], run["model"], run["lr"]),
    row=_row,
    curve=lambda run: (f"T = {run['length']}", f"{run['model']}, lr {run['lr']:g}", run["curve"]),
    picture={
        "across": "training step",
        "up": "mean squared error",
        "reference": (BASELINE, "always answering 1"),
        "smoothed": 5,
    },
)


@dataclass(frozen=True)
class AddingRecipe:
    """Learn to add the two marked numbers of a sequence."""

    page: ClassVar[Page] = _PAGE

    length: int = 100
    """Sequence length in time steps."""
    batch_size: int = 50
    """Batch size."""
    test_sequences: int = 1000
    """Number of newly drawn sequences in each evaluation."""
    model: AnyNetwork = _INDRNN
    """The network; its last step gives the output."""
    training: Loop = field(default_factory=Training)
    """Training options."""
    seed: int = 0
    """Random seed of weights and data."""

    def __post_init__(self) -> None:
        self.task()
        check_seed(self.seed)

    def model_config(self) -> Head:
        """The model."""
        return Head(self.model.sized(2, self.length), 1, "SequenceRegressor")

    def task(self) -> Adding:
        """The data."""
        return Adding(self.length, self.batch_size, self.test_sequences, self.seed)

    def draw(self, run: RunFolder, model: nn.Module) -> None:
        """Plot the error over training, and predictions against their targets."""
        from ..analysis.curves import draw_adding

        draw_adding(run, model, self.length, self.seed)


def _paper(length: int, lr: float, model: AnyNetwork = _INDRNN) -> AddingRecipe:
    """The paper's training: 60,000 steps, with the learning rate divided by 10 every 20,000."""
    return AddingRecipe(length, model=model, training=Training(steps=60_000, lr=lr, schedule=Steps(20_000, 0.1)))


def _fast(length: int, steps: int, lr: float) -> AddingRecipe:
    """The same network with a cosine learning rate, over far fewer steps."""
    return AddingRecipe(length, model=_INDRNN, training=Training(steps=steps, lr=lr, schedule=Cosine(warm_up=0.05)))


_RNN, _LSTM, _IRNN = Baseline("rnn"), Baseline("lstm"), Baseline("irnn")

ROWS = (
    Row("adding-100", _paper(100, 2e-4), "Fig. 4a", "error near 0", "15 min"),
    Row("adding-100-rnn", _paper(100, 2e-3, _RNN), "Fig. 4a", "does not learn", "30 min"),
    Row("adding-100-lstm", _paper(100, 2e-3, _LSTM), "Fig. 4a", "error near 0", "1 h"),
    Row("adding-100-irnn", _paper(100, 2e-4, _IRNN), "Fig. 4a", "error near 0", "30 min"),
    Row("adding-500", _paper(500, 2e-4), "Fig. 4b", "error near 0", "1 h"),
    Row("adding-500-rnn", _paper(500, 2e-3, _RNN), "Fig. 4b", "does not learn", "2 h"),
    Row("adding-500-lstm", _paper(500, 2e-3, _LSTM), "Fig. 4b", "has difficulties", "5 h"),
    Row("adding-500-irnn", _paper(500, 1e-5, _IRNN), "Fig. 4b", "has difficulties", "2 h"),
    Row("adding-1000", _paper(1000, 2e-4), "Fig. 4c", "error near 0", "2 h"),
    Row("adding-1000-rnn", _paper(1000, 2e-3, _RNN), "Fig. 4c", "does not learn", "4 h"),
    Row("adding-1000-lstm", _paper(1000, 2e-3, _LSTM), "Fig. 4c", "does not learn", "9 h"),
    Row("adding-1000-irnn", _paper(1000, 1e-5, _IRNN), "Fig. 4c", "does not learn", "4 h"),
    Row("adding-5000", _paper(5000, 2e-4), "Fig. 4d", "error near 0", "10 h"),
    Row("adding-5000-rnn", _paper(5000, 2e-3, _RNN), "beside Fig. 4d", "not shown", "20 h"),
    Row("adding-5000-lstm", _paper(5000, 2e-3, _LSTM), "beside Fig. 4d", "not shown", "2 days"),
    Row("adding-5000-irnn", _paper(5000, 1e-5, _IRNN), "beside Fig. 4d", "not shown", "20 h"),
    Row("adding-100-fast", _fast(100, 3_000, 1e-3), "Fig. 4a, quicker", "error near 0", "1 min"),
    Row("adding-500-fast", _fast(500, 5_000, 1e-3), "Fig. 4b, quicker", "error near 0", "5 min"),
    Row("adding-1000-fast", _fast(1000, 12_000, 1e-3), "Fig. 4c, quicker", "error near 0", "25 min"),
    Row("adding-5000-fast", _fast(5000, 4_000, 1e-4), "Fig. 4d, quicker", "error near 0", "50 min"),
)
