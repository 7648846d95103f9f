"""HTML report of runs, for readers new to them: what was trained, with which results, and how."""

from __future__ import annotations

import contextlib
import itertools
import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..figures import COLOURS, Curve, draw_curves, draw_pairs, named, new_figure, svg_of
from ..layers import EPSILON
from ..networks.network import FrontNetwork
from ..tasks.recipe import Answer, Confusion, Pairs
from ..words import headline, rough_duration, value_of, words
from . import neurons
from .explorer.program import Program
from .gradients import PANELS
from .html import escape, fill, source
from .memory import steps_of
from .runs import Reported, sizes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BINS = {"≤ 1": 1.0, "≤ 10": 10.0, "≤ 100": 100.0, "≤ 1k": 1000.0, "≤ 10k": 10_000.0, "more": math.inf}
_SHOWN = 12  # layers whose histograms are drawn; of more, that of all
_MANY = 15  # classes from which on a confusion matrix is drawn closer
_SIZE = (4.6, 2.9)  # inches: a figure of this width can be read on a phone

Chart = Callable[["Figure", str], str]  # gives a figure, with its description, as part of the page


def outcome_of(run: Reported) -> tuple[str, float] | None:
    """The main result of a run: the test metric if it has finished, else the best evaluation."""
    if run.finished and (reached := headline(run.scores)):
        return f"test {words(reached[0].removeprefix('test_'))}", reached[1]
    if not (curve := run.curve(run.description.metric)):
        return None
    best = (max if run.description.higher_is_better else min)(value for _, value in curve)
    return f"best evaluation, {words(run.description.metric)}", best


def layers_of(model: nn.Module | None) -> dict[str, Tensor]:
    """Recurrent weights of a model's layers by their names; empty if its neurons are not independent."""
    if model is not None:
        with contextlib.suppress(ValueError):
            return Program(model).layers
        with contextlib.suppress(ValueError):  # a model that the explorer does not know may have such neurons too
            return {layer.name: layer.u for layer in neurons.layers_of(model)}
    return {}


def memory_counts(u: Tensor) -> list[int]:
    """Histogram of the neurons' memory: up to 1, 10, 100, 1,000 and 10,000 steps, and more."""
    upper = torch.tensor([*_BINS.values()], dtype=torch.float64)
    return torch.bincount(torch.bucketize(steps_of(u.flatten()), upper), minlength=len(_BINS)).tolist()


def page_of(runs: Sequence[Reported]) -> str:
    """The page of one run, or of several side by side."""
    if not runs:
        raise ValueError("runs must be at least one, got none")
    numbers = itertools.count()

    def chart(figure: Figure, label: str) -> str:
        return svg_of(figure, label, next(numbers))

    return fill(
        source("report.html"),
        title=escape(f"{', '.join(run.name for run in runs)}: report"),
        style=source("explorer/style.css") + source("report.css"),
        head=_head(runs),
        asked=_columns(runs, _options),
        data=_columns(runs, lambda run: f"<p>{escape(run.description.data)}</p>"),
        training=_training(runs, chart),
        results=_columns(runs, _results),
        answers=_columns(runs, lambda run: _answers(run, chart)),
        share=f"{EPSILON:.0%}",
        epsilon=f"{EPSILON:g}",
        memory=_columns(runs, lambda run: _memory(run, chart)),
        gradients=_gradients(runs, chart),
        machine=_columns(runs, _machine),
    )


def _columns(runs: Sequence[Reported], content: Callable[[Reported], str]) -> str:
    if len(runs) == 1:
        return content(runs[0])
    return _side_by_side((run.name, content(run)) for run in runs)


def _side_by_side(parts: Iterable[tuple[str, str]]) -> str:
    shown = "".join(f"<div><h3>{escape(title)}</h3>{content}</div>" for title, content in parts)
    return f'<div class="columns">{shown}</div>'


def _small(text: str) -> str:
    return f'<p class="small">{escape(text)}</p>'


def _table(rows: Iterable[Sequence[object]], label: str, head: Sequence[str] = (), style: str = "text") -> str:
    """A table of text, whose rows are named by their first cell."""
    titles = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'
        for name, *cells in rows
    )
    return _scrolled(f'<table class="{style}"><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>', label)


def _scrolled(table: str, label: str) -> str:
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{table}</div>'


def _head(runs: Sequence[Reported]) -> str:
    if len(runs) > 1:
        return f"<h1>{len(runs)} runs side by side</h1>{_overview(runs)}"
    run = runs[0]
    facts = []
    if outcome := outcome_of(run):
        beside = f"<small>paper: {escape(run.paper[0])} ({escape(run.paper[1])})</small>" if run.paper else ""
        facts.append((outcome[0], escape(value_of(*outcome)) + beside))
    facts += [(name, escape(value)) for name, value in _size(run).items()]
    shown = "".join(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in facts)
    return f'<h1>{escape(run.name)}</h1><p class="lead">{escape(_sentence(run))}</p><dl class="facts">{shown}</dl>'


def _sentence(run: Reported) -> str:
    """A sentence on what was trained and the result."""
    start = f"{_model_name(run)} was trained on {run.description.task}"
    outcome = outcome_of(run)
    if outcome is None:
        return f"{start}; nothing was measured yet."
    planned = run.config.get("training", {}).get("steps")
    state = f" after {run.steps:,} steps"
    if not run.finished:
        state = f" so far, after {run.steps:,} of {planned:,} steps" if planned else ""
    paper = f" (in the paper: {run.paper[0]}, {run.paper[1]})" if run.paper else ""
    compared = f" For comparison: {run.description.compared}." if run.description.compared else ""
    return f"{start}, and reached a {outcome[0]} of {value_of(*outcome)}{state}{paper}.{compared}"


def _model_name(run: Reported) -> str:
    if run.model is None:
        return "A model"
    network: Any = getattr(run.model, "network", run.model)
    if layers := layers_of(run.model):
        inner = network.network if isinstance(network, FrontNetwork) else network
        kind = type(inner).__name__ + (" behind convolutions" if inner is not network else "")
        return f"A network of {len(layers)} recurrent layers ({kind})"
    return f"A {getattr(network, 'kind', None) or type(network).__name__} network"


def _size(run: Reported) -> dict[str, str]:
    size = {} if run.model is None else sizes(run.model, layers_of(run.model))
    return size | ({"training time": rough_duration(run.lines[-1].get("seconds"))} if run.lines else {})


def _overview(runs: Sequence[Reported]) -> str:
    head = ("run", "result", "paper", "task", "model", "parameters", "steps", "time")  # on a phone the first are seen
    rows = []
    for run in runs:
        size, outcome = _size(run), outcome_of(run)
        result = f"{outcome[0]} {value_of(*outcome)}" if outcome else "nothing measured"
        paper = f"{run.paper[0]} ({run.paper[1]})" if run.paper else ""
        model = _model_name(run).removeprefix("A ").removeprefix("network of ")
        steps = f"{run.steps:,}" + ("" if run.finished else " (not finished)")
        facts = (size.get("parameters", ""), steps, size.get("training time", ""))
        rows.append((run.name, result, paper, run.description.task, model, *facts))
    return _table(rows, "The runs", head)


def _options(run: Reported) -> str:
    commands = [run.config.get("command", []), *(resumed["command"] for resumed in run.config.get("resumed", []))]
    listed = "".join(f"<pre>{escape(shlex.join(command))}</pre>" for command in commands if command)
    seed = f"Seed {run.config.get('seed', 'not known')}, started {run.config.get('started', '')}."
    base = f"the recipe {run.recipe}" if run.recipe else "the defaults"
    changed = f"<p>All options are those of {escape(base)}.</p>"
    if run.changed:
        head = ("option", "here", "recipe" if run.recipe else "default")
        changed = f"<p>Options that differ from {escape(base)}:</p>{_table(run.changed, 'Options', head)}"
    return f"{listed}<p>{escape(seed)}</p>{changed}"


def _training(runs: Sequence[Reported], chart: Chart) -> str:
    parts = []
    for metric in dict.fromkeys(run.description.metric for run in runs):
        measured = [run for run in runs if run.description.metric == metric]
        accuracy = metric.endswith("accuracy")
        factor, unit = (100, " (%)") if accuracy else (1, "")
        curves = {run.name: [(step, factor * value) for step, value in run.curve(metric)] for run in measured}
        reference = next((run.description.reference for run in measured if run.description.reference), None)
        up = words(metric.removeprefix("validation_")) + unit  # an axis has less room than the title
        drawn = _curves(chart, curves, "training step", up, logarithmic=not accuracy, reference=reference)
        parts.append((f"{words(metric) + unit} in evaluations", drawn))
        curves = {run.name: run.curve("train_loss") for run in measured}
        if any(curves.values()):
            parts.append(("training loss", _curves(chart, curves, "training step", "training loss")))
    return _side_by_side(parts)


def _curves(chart: Chart, curves: Mapping[str, Curve], across: str, up: str, **options: Any) -> str:
    if not any(math.isfinite(y) for points in curves.values() for _, y in points):
        return _small("There is nothing to draw.")
    figure, (axes,) = new_figure(1, *_SIZE)
    draw_curves(axes, curves, **options)
    axes.set(xlabel=across, ylabel=named(up))
    axes.grid(axis="y", alpha=0.3)
    if len(axes.lines) > 1:
        figure.legend(loc="outside upper left", frameon=False, ncols=2)
    return chart(figure, f"{up} over {across}: {', '.join(curves)}")


def _results(run: Reported) -> str:
    rows: list[tuple[str, str, Any]] = []
    if best := run.result.get("best"):
        rows += [(f"evaluation, step {run.result['best_step']:,}", name, value) for name, value in best.items()]
    rows += [("test", name, value) for name, value in run.scores.items()]
    if not rows and (outcome := outcome_of(run)):
        rows = [("so far", *outcome)]
    cells = [(on, words(name), value_of(name, v) if isinstance(v, float) else v) for on, name, v in rows]
    table = _table(cells, "Results", style="text narrow")
    paper = f"<p>The paper: <strong>{escape(run.paper[0])}</strong>, {escape(run.paper[1])}.</p>" if run.paper else ""
    return table + paper


def _answers(run: Reported, chart: Chart) -> str:
    parts = [*(_answer(answer, chart) for answer in run.answers), *map(_small, run.missing)]
    return "".join(parts) or _small("Not shown for this task.")


def _answer(answer: Answer, chart: Chart) -> str:
    if isinstance(answer, Confusion):
        total = sum(map(sum, answer.counts))
        right = sum(answer.counts[i][i] for i in range(len(answer.classes)))
        share = f"{right:,} of {total:,} are right ({right / max(1, total):.2%}), on {answer.on}"
        return f"<p>{escape(share)}.</p>{confusion_table(answer.counts, answer.classes)}"
    if isinstance(answer, Pairs):
        finite = [pair for pair in answer.pairs if all(map(math.isfinite, pair))]
        wrong = len(answer.pairs) - len(finite)
        rest = f" {wrong:,} answers are no finite numbers, and not drawn." if wrong else ""
        note = _small(f"{len(answer.pairs):,} {answer.on}; on the line, answers are right.{rest}")
        if not finite:
            return note
        figure, (axes,) = new_figure(1, 4.6, 3.6)
        draw_pairs(axes, finite, across="right answer", up="the network's answer")
        return chart(figure, f"{len(finite)} answers over right answers") + note
    return f'<h3>What it writes ({escape(answer.how)})</h3><pre class="sample">{escape(answer.text)}</pre>'


def confusion_table(counts: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    """A confusion matrix: true classes in rows, predictions in columns, shaded by the share of a row.

    With many classes, columns are numbered from 1.
    """
    many = len(names) > _MANY
    columns = [str(number) for number in range(1, len(names) + 1)] if many else names  # where names have no room
    head = rows = ""
    for true, (name, column, row) in enumerate(zip(names, columns, counts, strict=True)):
        head += f'<th scope="col" title="{escape(name)}">{escape(column)}</th>'
        beside = f"{column} {name}" if many and column not in name.split() else name
        total = sum(row) or 1
        cells = "".join(
            f'<td class="{"diagonal" if true == predicted else "wrong"}" style="--share:{count / total:.3f}">'
            f"{count or ''}</td>"
            for predicted, count in enumerate(row)
        )
        share = f'<td class="share">{row[true] / total:.1%}</td>'
        rows += f'<tr><th scope="row">{escape(beside)}</th>{cells}{share}</tr>'
    corner, last = '<th scope="col">right ↓ answered →</th>', '<th scope="col">right</th>'
    table = f"<thead><tr>{corner}{head}{last}</tr></thead><tbody>{rows}</tbody>"
    return _scrolled(f'<table class="matrix{" close" if many else ""}">{table}</table>', "Confusion matrix")


def _memory(run: Reported, chart: Chart) -> str:
    layers = layers_of(run.model)
    if not layers:
        return _small("Its neurons have no recurrent weight of their own.")
    if len(layers) > _SHOWN:
        layers = {f"all {len(layers)} layers": torch.cat([*layers.values()])}
    counts = {name: memory_counts(u) for name, u in layers.items()}
    most = max(map(max, counts.values()))
    histograms = ""
    for title, numbers in counts.items():
        figure, (axes,) = new_figure(1, 3.0, 1.7)
        bars = axes.bar([*_BINS], numbers, color=COLOURS[0], width=0.9)
        axes.bar_label(bars, [str(number or "") for number in numbers], fontsize=9)
        axes.set(ylim=(0, 1.15 * most), yticks=[])
        axes.tick_params(axis="x", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_title(named(title), fontsize=10, loc="left")
        label = ", ".join(f"{name}: {number}" for name, number in zip(_BINS, numbers, strict=True))
        histograms += chart(figure, f"{title}: {label}")
    return f'<div class="histograms">{histograms}</div>'


def _gradients(runs: Sequence[Reported], chart: Chart) -> str:
    parts = []
    for task in dict.fromkeys(run.description.task for run in runs):  # sequences of one task are as long as each other
        flows = {run.name: run.gradients for run in runs if run.description.task == task and run.gradients}
        for what, first, across in PANELS:
            curves = {name: [*enumerate(flow[what], first)] for name, flow in flows.items() if flow[what]}
            if curves:
                parts.append((f"over {what}", _curves(chart, curves, across, "mean gradient norm")))
    about = "Norms of the gradient of the loss: at each step of the input, and at the input weights of each layer."
    shown = _small(about) + _side_by_side(parts) if parts else ""
    notes = (f"{run.name}: {run.gradients_note}" if len(runs) > 1 else run.gradients_note for run in runs)
    return shown + "".join(map(_small, notes))


def _machine(run: Reported) -> str:
    rows = {"time": rough_duration(run.lines[-1].get("seconds") if run.lines else None)}
    rows |= {name: run.config.get(name, "") for name in ("threads", "processes")} | run.config.get("machine", {})
    return _table(rows.items(), "Time and machine", style="text narrow")
