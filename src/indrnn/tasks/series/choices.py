"""How the defaults are chosen: cross-validation on training splits. No test series is used for fitting or scoring.

Run by `python -m indrnn.tasks.series.experiments choices`; runs already in results/fit/choices.json are not repeated.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ...training.folder import machine
from .collection import Array
from .estimators import IndRNNClassifier

CHANGES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "convolutions": {"front": True},
    "no convolutions": {"front": False},
    "lr 3e-3": {"lr": 3e-3},
    "lr 3e-4": {"lr": 3e-4},
    "no augmentation": {"augment": False},
    "batches of 32, lr 1e-3": {"batch_size": 32, "lr": 1e-3},
    "stride 64": {"front": 64},
    "dropout 0.3": {"dropout": 0.3},
    "1 recurrent layer": {"layers": 1},
    "4 recurrent layers": {"layers": 4},
    "width 128": {"hidden_size": 128},
    "last step": {"pool": "last"},
    "forward only": {"bidirectional": False},
}
"""By name: what is not left to the defaults."""


SPOKEN = "FreeSpokenDigits"
"""Divided by the number of the clip, as its official split is: 0 to 4 are for test, and 5 to 9 are held back here."""


def folds(y: Array, count: int, seed: int = 0) -> Array:
    """Return the fold of each series, (n,), with each class divided as evenly as possible."""
    found = np.empty(len(y), dtype=np.int64)
    draw = np.random.default_rng(seed)
    begin = 0
    for each in np.unique(y):
        members = draw.permutation(np.flatnonzero(y == each))
        found[members] = (begin + np.arange(len(members))) % count
        begin += len(members)
    return found


def measured(X: Any, y: Array, fold: Array, count: int, options: dict[str, Any]) -> dict[str, Any]:
    """Cross-validate on the first `count` folds: correct predictions, number of series and mean loss when held out."""
    right, losses = 0, []
    for number in range(count):
        kept, held = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        model = IndRNNClassifier(random_state=number, **options).fit([X[i] for i in kept], y[kept])
        found = model.predict_proba([X[i] for i in held])
        numbers = np.searchsorted(model.classes_, y[held])
        right += int((found.argmax(1) == numbers).sum())
        losses += (-np.log(np.maximum(found[np.arange(len(held)), numbers], 1e-12))).tolist()
    return {"right": right, "series": len(losses), "loss": float(np.mean(losses))}


def training_split(name: str, count: int, data: Path) -> tuple[Any, Array, Array, int]:
    """Return series and classes of a training split, the fold of each, and the number of folds to measure."""
    if name == SPOKEN:
        from .spoken import load

        index = np.load(data)["index"]
        clips = load(data).take(index >= 5)
        assert clips.y is not None
        return clips.x, clips.y, index[index >= 5] // 5 - 1, 1
    from aeon.datasets import load_classification

    X, y = load_classification(name, split="train")
    return X, np.asarray(y), folds(np.asarray(y), count), count


def choices(
    out: Path, sets: list[str], changes: list[str], steps: int | None, count: int, command: str, data: Path
) -> None:
    """Cross-validated accuracy for each change of the defaults and each data set; `data` is the file of SPOKEN."""
    path = out / "choices.json"
    content = json.loads(path.read_text()) if path.exists() else {"runs": []}
    done = {(run["change"], run["set"], run["steps"], run["folds"]) for run in content["runs"]}
    for change in changes:
        for name in sets:
            if (change, name, steps, count) in done:
                continue
            X, y, fold, of = training_split(name, count, data)
            found = measured(X, y, fold, of, {"steps": steps} | CHANGES[change])
            run = {"change": change, "set": name, "steps": steps, "folds": count, **found}
            content["runs"].append({**run, "command": command})
            content["machine"] = machine()
            out.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content, indent=1) + "\n")
            (out / "choices.md").write_text(table(content["runs"]))
            print(run, flush=True)


def table(runs: list[dict[str, Any]]) -> str:
    """Format the runs as a Markdown page: a table for each number of steps and folds."""
    from .experiments import SETS

    about = (
        "Accuracy in % in cross-validation on the training split of each set, one seed; in brackets the mean loss, "
        "where kept. Of Free Spoken Digits the clips 5 to 9 of each speaker and digit are held back, and those from "
        "10 on are trained on. Test series take no part."
    )
    lines = ["# Choice of the defaults", "", about, ""]
    for steps, count in sorted({(run["steps"] or 0, run["folds"]) for run in runs}):
        some = [run for run in runs if ((run["steps"] or 0), run["folds"]) == (steps, count)]
        names = [name for name in (*SETS, SPOKEN) if any(run["set"] == name for run in some)]
        series = {run["set"]: run["series"] for run in some}
        commands = dict.fromkeys(run["command"] for run in some)
        lines += [
            f"{count} folds, {f'{steps} steps' if steps else 'steps by default'}:",
            "",
            *(f"    {command}" for command in commands),
            "",
            "| change | " + " | ".join(f"{name} ({series[name]})" for name in names) + " |",
            "|---|" + "---|" * len(names),
        ]
        for change in [each for each in CHANGES if any(run["change"] == each for run in some)]:
            found = {run["set"]: _told(run) for run in some if run["change"] == change}
            cells = [found.get(name, "–") for name in names]
            lines.append(f"| {change} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _told(run: dict[str, Any]) -> str:
    loss = f" ({run['loss']:.3f})" if "loss" in run else ""
    return f"{100 * run['right'] / run['series']:.1f}{loss}"
