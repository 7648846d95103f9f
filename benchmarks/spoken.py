"""Free Spoken Digits: accuracy on unseen speakers, and streaming predictions during a clip; see `experiments.py`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from indrnn import IndRNNClassifier
from indrnn.tasks.series.collection import Array, Collection
from indrnn.tasks.series.reading import read
from indrnn.tasks.series.scores import wilson
from indrnn.tasks.series.single import Stream

from .results import Results, Run, pivot, table, write

if TYPE_CHECKING:
    from .experiments import Options

RATE = 8000
"""Samples in a second."""
METHODS: dict[str, dict[str, Any]] = {"indrnn": {}, "lstm-front": {"core": "lstm"}}
"""By name: options of the estimator. An LSTM of the same width and steps stands behind the same convolutions."""
SURE = 0.95
"""Probability from which an answer counts as given, in a stream."""


def load(path: Path, **options: Any) -> Collection:
    """Load the clips as published: raw samples, with their digits and speakers."""
    return read(path, x="audio", target="digit", group="speaker", **options)


def speakers(options: Options, command: str) -> None:
    """Hold out each speaker once: accuracy on the clips of a speaker not heard in training."""
    results = Results(options.out, "speakers", command, speakers_page)
    clips = load(options.data)
    assert clips.groups is not None
    for speaker in np.unique(clips.groups).tolist():
        for method in options.methods or METHODS:

            def measure(held: Array = clips.groups == speaker, method: str = method) -> Run:
                model = IndRNNClassifier(steps=options.steps, random_state=0, **METHODS[method]).fit(
                    clips.select(~held)
                )
                right = int((model.predict(clips.select(held)) == np.asarray(clips.y)[held]).sum())
                return {"right": right, "clips": int(held.sum()), "trained_steps": model.plan_.steps}

            results.add(measure, method=method, speaker=str(speaker), steps=options.steps)


def speakers_page(runs: list[Run]) -> list[str]:
    """A row for each speaker, and one for all."""

    def accuracy(some: list[Run]) -> str:
        return f"{some[0]['right'] / some[0]['clips']:.1%}"

    def of_all(some: list[Run]) -> str:
        right, clips = (sum(run[key] for run in some) for key in ("right", "clips"))
        low, high = wilson(right, clips)
        return f"{right / clips:.1%} ({low:.1%} to {high:.1%}) of {clips:,}"

    about = "Each speaker is held out once: accuracy in % on the clips of someone who was never heard in training."
    parts = ["# Free Spoken Digits, by speaker", about]
    for steps in sorted({run["steps"] or 0 for run in runs}):
        some = [run for run in runs if (run["steps"] or 0) == steps]
        option = f" --steps {steps}" if steps else ""
        names = sorted({run["speaker"] for run in some})
        parts += [
            f"{f'{steps} steps' if steps else 'Steps by default'}, one seed:",
            f"    python -m benchmarks.experiments speakers{option} --out results/fit",
            pivot(some, ("speaker", names), ("method", METHODS), accuracy, total=("all", of_all)),
        ]
    return parts


def stream(options: Options, command: str) -> None:
    """Streaming on the official split, forward only: prediction every tenth of a second, and whether it is decided."""
    # Without groups, which would hold a speaker back for validation: in the official split all are in training
    clips = replace(load(options.data, test_where="index<5"), groups=None)
    assert clips.test is not None
    test = clips.select(clips.test)
    model = IndRNNClassifier(bidirectional=False, steps=options.steps, random_state=0).fit(clips.select(~clips.test))
    every = RATE // 10
    answers: list[Array] = []
    for x in test.x:
        pieces = Stream(model)
        answers.append(np.stack([pieces.push(x[:, at : at + every]) for at in range(0, x.shape[1], every)]))
    rows = over_time(answers, np.searchsorted(model.classes_, np.asarray(test.y)))
    steps = model.plan_.steps
    columns = ("seconds", "go on", "right", "settled", "decided", "right of the decided")
    cells = []
    for row in rows:
        seconds, going_on, *shares = row.values()
        cells.append([f"{seconds:.1f}", f"{going_on:.0%}", *(f"{share:.1%}" for share in shares)])
    page = [
        "# Free Spoken Digits, as a stream",
        f"The official split; a network that reads forward only, {steps} steps. After each tenth of a "
        "second: clips that still go on, right answers of all clips so far (of one that has ended: its last), clips "
        f"whose answer does not change any more, clips that were decided by then (a probability of at least {SURE:.0%} "
        "at one time, or their end), and how many of these decisions are right.",
        f"    {command}",
        table(columns, cells),
    ]
    write(options.out, "stream", {"rows": rows, "sure": SURE, "steps": steps, "command": command}, page)
    print(page[-1], flush=True)


def over_time(answers: Array | list[Array], right: Array) -> list[dict[str, float]]:
    """Summarise predictions after each tenth of a second, over clips.

    Args:
        answers: for each clip (tenths, classes), the probabilities after each tenth.
        right: (clips,), indices of the true classes.
    """
    first, decision, settled = [], [], []
    for clip in answers:
        changes = np.flatnonzero(np.diff(clip.argmax(1)))
        settled.append(int(changes[-1]) + 1 if len(changes) else 0)
        sure = np.flatnonzero(clip.max(1) >= SURE)
        first.append(int(sure[0]) if len(sure) else len(clip) - 1)
        decision.append(int(clip[first[-1]].argmax()))
    rows = []
    for tenth in range(max(map(len, answers))):
        now = np.array([clip[min(tenth, len(clip) - 1)].argmax() for clip in answers])
        decided = np.array(first) <= tenth
        correct = (np.array(decision) == right)[decided]
        rows.append(
            {
                "seconds": (tenth + 1) / 10,
                "going on": float(np.mean([len(clip) > tenth + 1 for clip in answers])),
                "right": float((now == right).mean()),
                "settled": float((np.array(settled) <= tenth).mean()),
                "decided": float(decided.mean()),
                "right of decided": float(correct.mean()) if len(correct) else 0.0,
            }
        )
    return rows
