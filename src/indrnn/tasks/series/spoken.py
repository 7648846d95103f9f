"""Free Spoken Digits: accuracy on unseen speakers, and streaming predictions during a clip.

`python -m indrnn.tasks.series.experiments speakers` and `stream`; the file is $INDRNN_DATA/audio/fsdd.npz, or --data.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...training.folder import machine
from .collection import Array, Collection
from .estimators import IndRNNClassifier
from .scores import wilson
from .sources import read
from .stream import decided

RATE = 8000
"""Samples in a second."""
METHODS: dict[str, dict[str, Any]] = {"indrnn": {}, "lstm-front": {"core": "lstm"}}
"""By name: options of the estimator. An LSTM of the same width and steps stands behind the same convolutions."""
SURE = 0.95
"""Probability from which an answer counts as given, in a stream."""


def load(path: Path, **options: Any) -> Collection:
    """Load the clips as published: raw samples, with their digits and speakers."""
    return read(path, x="audio", target="digit", group="speaker", **options)


def speakers(out: Path, data: Path, methods: list[str], steps: int | None, command: str) -> None:
    """Hold out each speaker once: accuracy on the clips of a speaker not heard in training."""
    path = out / "speakers.json"
    content = json.loads(path.read_text()) if path.exists() else {"runs": []}
    done = {(run["method"], run["speaker"], run["steps"]) for run in content["runs"]}
    clips = load(data)
    assert clips.groups is not None
    assert clips.y is not None
    for speaker in np.unique(clips.groups).tolist():
        for method in methods:
            if (method, str(speaker), steps) in done:
                continue
            held = clips.groups == speaker
            model = IndRNNClassifier(steps=steps, random_state=0, **METHODS[method]).fit(clips.take(~held))
            right = int((model.predict(clips.take(held)) == clips.y[held]).sum())
            run = {"method": method, "speaker": str(speaker), "steps": steps, "right": right, "clips": int(held.sum())}
            content["runs"].append({**run, "trained_steps": model.plan_.steps, "command": command})
            content["machine"] = machine()
            _write(out, "speakers", content, speakers_page(content["runs"]))
            print(run, flush=True)


def speakers_page(runs: list[dict[str, Any]]) -> str:
    """Format the runs as a Markdown page: a row for each speaker, and one for all."""
    about = "Each speaker is held out once: accuracy in % on the clips of someone who was never heard in training."
    lines = ["# Free Spoken Digits, by speaker", "", about, ""]
    for steps in sorted({run["steps"] or 0 for run in runs}):
        some = [run for run in runs if (run["steps"] or 0) == steps]
        methods = [name for name in METHODS if any(run["method"] == name for run in some)]
        option = f" --steps {steps}" if steps else ""
        lines += [
            f"{f'{steps} steps' if steps else 'Steps by default'}, one seed:",
            "",
            f"    python -m indrnn.tasks.series.experiments speakers{option} --out results/fit",
            "",
            "| speaker | " + " | ".join(methods) + " |",
            "|---|" + "---|" * len(methods),
        ]
        for speaker in sorted({run["speaker"] for run in some}):
            found = {run["method"]: run["right"] / run["clips"] for run in some if run["speaker"] == speaker}
            cells = [f"{found[name]:.1%}" if name in found else "–" for name in methods]
            lines.append(f"| {speaker} | " + " | ".join(cells) + " |")
        totals = []
        for name in methods:
            right, clips = (sum(run[key] for run in some if run["method"] == name) for key in ("right", "clips"))
            low, high = wilson(right, clips)
            totals.append(f"{right / clips:.1%} ({low:.1%} to {high:.1%}) of {clips:,}")
        lines += ["| all | " + " | ".join(totals) + " |", ""]
    return "\n".join(lines).rstrip() + "\n"


def stream(out: Path, data: Path, steps: int | None, command: str) -> None:
    """Streaming on the official split, forward only: prediction every tenth of a second, and whether it is decided."""
    # Without groups, which would hold a speaker back for validation: in the official split all are in training
    clips = replace(load(data, test_where="index<5"), groups=None)
    assert clips.test is not None
    test = clips.take(clips.test)
    model = IndRNNClassifier(bidirectional=False, steps=steps, random_state=0).fit(clips.take(~clips.test))
    rows = over_time(decided(model, test, RATE // 10), _numbers(test, model))
    content = {"rows": rows, "sure": SURE, "steps": model.plan_.steps, "command": command, "machine": machine()}
    table = [
        f"| {row['seconds']:.1f} | {row['going on']:.0%} | {row['right']:.1%} | {row['settled']:.1%} "
        f"| {row['decided']:.1%} "
        f"| {row['right of decided']:.1%} |"
        for row in rows
    ]
    page = [
        "# Free Spoken Digits, as a stream",
        "",
        f"The official split; a network that reads forward only, {model.plan_.steps} steps. After each tenth of a "
        "second: clips that still go on, right answers of all clips so far (of one that has ended: its last), clips "
        "whose answer does not change any more, clips "
        f"that were decided by then (a probability of at least {SURE:.0%} at one time, or their end), and how many "
        "of these decisions are right.",
        "",
        f"    {command}",
        "",
        "| seconds | go on | right | settled | decided | right of the decided |",
        "|---|---|---|---|---|---|",
        *table,
    ]
    _write(out, "stream", content, "\n".join(page) + "\n")
    print("\n".join(table), flush=True)


def _numbers(clips: Collection, model: IndRNNClassifier) -> Array:
    assert clips.y is not None
    return np.searchsorted(model.classes_, clips.y)


def over_time(answers: Array, right: Array) -> list[dict[str, float]]:
    """Summarise predictions after each tenth of a second, over clips.

    Args:
        answers: an object array; for each clip (tenths, classes), the probabilities after each tenth.
        right: (clips,), indices of the true classes.
    """
    longest = max(len(each) for each in answers)
    first, given, settled = [], [], []
    for each in answers:
        changes = np.flatnonzero(np.diff(each.argmax(1)))
        settled.append(int(changes[-1]) + 1 if len(changes) else 0)
        sure = np.flatnonzero(each.max(1) >= SURE)
        first.append(int(sure[0]) if len(sure) else len(each) - 1)
        given.append(int(each[first[-1]].argmax()))
    rows = []
    for tenth in range(longest):
        now = np.array([each[min(tenth, len(each) - 1)].argmax() for each in answers])
        there = np.array(first) <= tenth
        correct = (np.array(given) == right)[there]
        rows.append(
            {
                "seconds": (tenth + 1) / 10,
                "going on": float(np.mean([len(each) > tenth + 1 for each in answers])),
                "right": float((now == right).mean()),
                "settled": float((np.array(settled) <= tenth).mean()),
                "decided": float(there.mean()),
                "right of decided": float(correct.mean()) if len(correct) else 0.0,
            }
        )
    return rows


def _write(out: Path, name: str, content: dict[str, Any], page: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
    (out / f"{name}.md").write_text(page)
