"""HTML report of runs, for readers new to them: what was trained, with which results, and how."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..layers.options import EPSILON
from ..networks.front import FrontNetwork
from ..tasks.recipe import Answer, Confusion, Pairs
from ..words import headline, rough_duration, value_of, words
from . import neurons, svg
from .explorer.program import program_of
from .html import escape, fill, source
from .memory import steps_of
from .reported import Reported

_BINS = (1.0, 10.0, 100.0, 1000.0, 10_000.0, math.inf)
_BIN_NAMES = ("≤ 1", "≤ 10", "≤ 100", "≤ 1k", "≤ 10k", "more")
_SHOWN = 12  # layers whose histograms are drawn; of more, that of all


def outcome_of(run: Reported) -> tuple[str, float] | None:
    """The main result of a run: the test metric if it has finished, else the best evaluation."""
    reached = headline(run.scores) if run.finished else None
    if reached is not None:
        return f"test {words(reached[0].removeprefix('test_'))}", reached[1]
    known = [value for _, value in run.curve]
    if not known:
        return None
    best = (max if run.description.higher_is_better else min)(known)
    return f"best evaluation, {words(run.description.metric)}", best


def layers_of(model: nn.Module | None) -> list[tuple[str, Tensor]]:
    """Name and u of the recurrent layers of a model; empty if its neurons are not independent."""
    if model is None:
        return []
    try:
        return [(layer.name, layer.recurrent_weight) for layer in program_of(model).layers]
    except ValueError:  # a model that the explorer does not know may have such neurons too
        pass
    try:
        return [(layer.name, layer.u) for layer in neurons.layers_of(model)]
    except ValueError:
        return []


def memory_counts(u: Tensor) -> list[int]:
    """Histogram of the neurons' memory: up to 1, 10, 100, 1,000 and 10,000 steps, and more."""
    memories = steps_of(u.flatten())
    upper = torch.tensor(_BINS, dtype=torch.float64)
    return torch.bincount(torch.bucketize(memories, upper), minlength=len(_BINS)).tolist()


def page_of(runs: Sequence[Reported]) -> str:
    """The page of one run, or of several side by side."""
    if not runs:
        raise ValueError("runs must be at least one, got none")
    sections = [
        ("What was asked", _columns(runs, _asked)),
        ("Data", _columns(runs, lambda run: f"<p>{escape(run.description.data)}</p>")),
        ("Training", _training(runs)),
        ("Results", _results(runs)),
        ("Answers", _columns(runs, _answers)),
        ("Memory of the neurons", _memory(runs)),
        ("Gradient flow", _gradients(runs)),
        ("Time and machine", _columns(runs, _machine)),
    ]
    names = ", ".join(run.name for run in runs)
    return fill(
        source(__package__ or "", "report.html"),
        title=escape(f"{names}: report"),
        style=source(f"{__package__}.explorer", "style.css") + source(__package__ or "", "report.css"),
        head=_head(runs),
        sections="\n".join(
            f'<section class="card wide"><h2>{escape(title)}</h2>{content}</section>' for title, content in sections
        ),
    )


def _columns(runs: Sequence[Reported], content: Any) -> str:
    if len(runs) == 1:
        return str(content(runs[0]))
    parts = "".join(f"<div><h3>{escape(run.name)}</h3>{content(run)}</div>" for run in runs)
    return f'<div class="columns">{parts}</div>'


def _head(runs: Sequence[Reported]) -> str:
    if len(runs) > 1:
        return f"<h1>{len(runs)} runs side by side</h1>{_table(runs)}"
    run = runs[0]
    facts = []
    outcome = outcome_of(run)
    if outcome:
        beside = f"<small>paper: {escape(run.paper[0])} ({escape(run.paper[1])})</small>" if run.paper else ""
        facts.append((outcome[0], escape(value_of(*outcome)) + beside))
    facts += [(name, escape(value)) for name, value in _size(run)]
    shown = "".join(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in facts)
    return f'<h1>{escape(run.name)}</h1><p class="lead">{escape(_sentence(run))}</p><dl class="facts">{shown}</dl>'


def _sentence(run: Reported) -> str:
    """A sentence on what was trained and the result."""
    what = f"{_model_name(run)} was trained on {run.description.task}"
    outcome = outcome_of(run)
    if outcome is None:
        return f"{what}; nothing was measured yet."
    name, value = outcome
    steps = run.lines[-1]["step"] if run.lines else 0
    planned = run.config.get("training", {}).get("steps")
    state = (
        f"after {steps:,} steps" if run.finished else f"so far, after {steps:,} of {planned:,} steps" if planned else ""
    )
    paper = f" (in the paper: {run.paper[0]}, {run.paper[1]})" if run.paper else ""
    compared = f" For comparison: {run.description.compared}." if run.description.compared else ""
    return f"{what}, and reached a {name} of {value_of(name, value)} {state}{paper}.{compared}"


def _model_name(run: Reported) -> str:
    layers = layers_of(run.model)
    if layers:
        network: Any = getattr(run.model, "network", run.model)
        inner = network.network if isinstance(network, FrontNetwork) else network
        kind = type(inner).__name__ + (" behind convolutions" if inner is not network else "")
        return f"A network of {len(layers)} recurrent layers ({kind})"
    if run.model is not None:
        network = getattr(run.model, "network", run.model)
        return f"A {getattr(network, 'kind', None) or type(network).__name__} network"
    return "A model"


def _size(run: Reported) -> list[tuple[str, str]]:
    found = []
    if layers := layers_of(run.model):
        found.append(("recurrent layers", f"{len(layers)}"))
        found.append(("neurons", f"{sum(u.numel() for _, u in layers):,}"))
    if run.model is not None:
        found.append(("parameters", f"{sum(each.numel() for each in run.model.parameters()):,}"))
    if run.lines:
        found.append(("training time", rough_duration(run.lines[-1].get("seconds"))))
    return found


def _table(runs: Sequence[Reported]) -> str:
    head = ("run", "result", "paper", "task", "model", "parameters", "steps", "time")  # on a phone the first are seen
    rows = []
    for run in runs:
        size = dict(_size(run))
        outcome = outcome_of(run)
        result = f"{outcome[0]} {value_of(*outcome)}" if outcome else "nothing measured"
        paper = f"{run.paper[0]} ({run.paper[1]})" if run.paper else ""
        steps = f"{run.lines[-1]['step']:,}" if run.lines else "0"
        steps += "" if run.finished else " (not finished)"
        model = _model_name(run).removeprefix("A ").removeprefix("network of ")
        cells = (
            run.name,
            result,
            paper,
            run.description.task,
            model,
            size.get("parameters", ""),
            steps,
            size.get("training time", ""),
        )
        rows.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
    titles = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="The runs"><table class="text">'
        f"<thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _asked(run: Reported) -> str:
    commands = [run.config.get("command", []), *(each["command"] for each in run.config.get("resumed", []))]
    listed = "".join(f"<pre>{escape(shlex.join(command))}</pre>" for command in commands if command)
    seed = (
        f"<p>Seed {escape(run.config.get('seed', 'not known'))}, started {escape(run.config.get('started', ''))}.</p>"
    )
    of = f"the recipe {run.recipe}" if run.recipe else "the defaults"
    if not run.changed:
        return f"{listed}{seed}<p>All options are those of {escape(of)}.</p>"
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td><td>{escape(usual)}</td></tr>'
        for name, value, usual in run.changed
    )
    usual = "recipe" if run.recipe else "default"
    return (
        f"{listed}{seed}<p>Options that differ from {escape(of)}:</p>"
        '<div class="scroll" tabindex="0" role="region" aria-label="Options"><table class="text"><thead><tr>'
        f'<th scope="col">option</th><th scope="col">here</th><th scope="col">{usual}</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _training(runs: Sequence[Reported]) -> str:
    parts = []
    for metric in dict.fromkeys(run.description.metric for run in runs):
        own = [run for run in runs if run.description.metric == metric]
        accuracy = metric.endswith("accuracy")
        factor = 100 if accuracy else 1
        series = [(run.name, [(step, factor * value) for step, value in run.curve]) for run in own]
        reference = next((run.description.reference for run in own if run.description.reference), None)
        unit = " (%)" if accuracy else ""
        beside = words(metric.removeprefix("validation_")) + unit  # an axis has less room than the title
        drawn = svg.curves(series, across="training step", up=beside, logarithmic=not accuracy, reference=reference)
        parts.append(f"<div><h3>{escape(words(metric) + unit)} in evaluations</h3>{drawn}</div>")
        losses = [
            (
                run.name,
                [(each["step"], float(each["train_loss"])) for each in run.lines if each.get("train_loss") is not None],
            )
            for run in own
        ]
        if any(points for _, points in losses):
            drawn = svg.curves(losses, across="training step", up="training loss", logarithmic=True)
            parts.append(f"<div><h3>training loss</h3>{drawn}</div>")
    return f'<div class="columns">{"".join(parts)}</div>'


def _results(runs: Sequence[Reported]) -> str:
    def numbers(run: Reported) -> str:
        rows = []
        if run.result.get("best"):
            step = run.result.get("best_step")
            rows += [(f"evaluation, step {step:,}", name, value) for name, value in run.result["best"].items()]
        rows += [("test", name, value) for name, value in (run.scores).items()]
        if not rows and (outcome := outcome_of(run)):
            rows = [("so far", *outcome)]
        cells = "".join(
            f'<tr><th scope="row">{escape(on)}</th><td>{escape(words(name))}</td>'
            f"<td>{escape(value_of(name, value) if isinstance(value, float) else value)}</td></tr>"
            for on, name, value in rows
        )
        paper = (
            f"<p>The paper: <strong>{escape(run.paper[0])}</strong>, {escape(run.paper[1])}.</p>" if run.paper else ""
        )
        table = f'<table class="text narrow"><tbody>{cells}</tbody></table>'
        return f'<div class="scroll plain" tabindex="0" role="region" aria-label="Results">{table}</div>{paper}'

    return _columns(runs, numbers)


def _answers(run: Reported) -> str:
    parts = [_answer(answer) for answer in run.answers]
    parts += [f'<p class="small">{escape(text)}</p>' for text in run.missing]
    return "".join(parts) or '<p class="small">Not shown for this task.</p>'


def _answer(answer: Answer) -> str:
    if isinstance(answer, Confusion):
        total = sum(map(sum, answer.counts))
        right = sum(answer.counts[i][i] for i in range(len(answer.classes)))
        share = f"{right:,} of {total:,} are right ({right / max(1, total):.2%}), on {answer.on}"
        return f"<p>{escape(share)}.</p>{svg.matrix(answer.counts, answer.classes)}"
    if isinstance(answer, Pairs):
        drawn = svg.scatter(answer.pairs, across="right answer", up="the network's answer")
        wrong = sum(not math.isfinite(predicted) for _, predicted in answer.pairs)
        rest = f" {wrong:,} answers are no finite numbers, and not drawn." if wrong else ""
        count = f"{len(answer.pairs):,} {escape(answer.on)}"
        return f'{drawn}<p class="small">{count}; on the line, answers are right.{rest}</p>'
    return f'<h3>What it writes ({escape(answer.how)})</h3><pre class="sample">{escape(answer.text)}</pre>'


def _memory(runs: Sequence[Reported]) -> str:
    said = (
        f"How many neurons keep {EPSILON:.0%} of what they hold for so many steps: ln {EPSILON:g} / ln |u|, for every "
        "neuron's recurrent weight u."
    )

    def histograms(run: Reported) -> str:
        shown = layers_of(run.model)
        if not shown:
            return '<p class="small">Its neurons have no recurrent weight of their own.</p>'
        if len(shown) > _SHOWN:
            shown = [(f"all {len(shown)} layers", torch.cat([u for _, u in shown]))]
        most = max(max(memory_counts(u)) for _, u in shown)
        drawn = "".join(svg.histogram(memory_counts(u), _BIN_NAMES, title=name, most=most) for name, u in shown)
        return f'<div class="histograms">{drawn}</div>'

    return f'<p class="small">{escape(said)}</p>{_columns(runs, histograms)}'


def _gradients(runs: Sequence[Reported]) -> str:
    parts = []
    for task in dict.fromkeys(run.description.task for run in runs):  # sequences of one task are as long as each other
        own = [run for run in runs if run.description.task == task]
        for what, first, across in (("time", 1, "time step"), ("depth", 2, "layer")):
            series = [
                (run.name, list(enumerate(run.gradients[what], first)))
                for run in own
                if run.gradients and run.gradients[what]
            ]
            if series:
                positive = all(value > 0 for _, points in series for _, value in points)
                drawn = svg.curves(series, across=across, up="mean gradient norm", logarithmic=positive)
                parts.append(f"<div><h3>over {what}</h3>{drawn}</div>")
    said = "Norms of the gradient of the loss: at each step of the input, and at the input weights of each layer."
    shown = f'<p class="small">{said}</p><div class="columns">{"".join(parts)}</div>' if parts else ""
    several = len(runs) > 1
    for run in runs:
        told = f"Measured on {run.gradients_on}." if run.gradients else run.no_gradients
        shown += f'<p class="small">{escape(f"{run.name}: {told}" if several else told)}</p>'
    return shown


def _machine(run: Reported) -> str:
    rows = [("time", rough_duration(run.lines[-1].get("seconds") if run.lines else None))]
    rows += [("threads", run.config.get("threads", "")), ("processes", run.config.get("processes", ""))]
    rows += list(run.config.get("machine", {}).items())
    cells = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows)
    return f'<table class="text narrow"><tbody>{cells}</tbody></table>'
