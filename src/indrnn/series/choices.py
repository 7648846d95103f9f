"""How the defaults are chosen: cross-validation on training splits. The test splits are not read.

`python -m indrnn.series.experiments choices`, with what is in results/fit/choices.json already left as it is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ..training.folder import machine
from .collection import Array
from .estimators import IndRNNClassifier

CHANGES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "convolutions": {"front": True},
    "no convolutions": {"front": False},
    "lr 3e-3": {"lr": 3e-3},
    "lr 3e-4": {"lr": 3e-4},
    "no augmentation": {"augment": False},
    "dropout 0.3": {"dropout": 0.3},
    "1 recurrent layer": {"layers": 1},
    "4 recurrent layers": {"layers": 4},
    "width 128": {"hidden_size": 128},
    "last step": {"pool": "last"},
    "forward only": {"bidirectional": False},
}
"""By name: what is not left to the defaults."""


def folds(y: Array, count: int, seed: int = 0) -> Array:
    """(n,): the fold of each series; each class is divided as evenly as it can be."""
    found = np.empty(len(y), dtype=np.int64)
    draw = np.random.default_rng(seed)
    begin = 0
    for each in np.unique(y):
        members = draw.permutation(np.flatnonzero(y == each))
        found[members] = (begin + np.arange(len(members))) % count
        begin += len(members)
    return found


def right_of(X: Any, y: Array, count: int, options: dict[str, Any]) -> int:
    """How many series are classified right by networks that were fitted without their fold."""
    fold, right = folds(y, count), 0
    for number in range(count):
        kept, held = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        model = IndRNNClassifier(random_state=number, **options).fit([X[i] for i in kept], y[kept])
        right += int((model.predict([X[i] for i in held]) == y[held]).sum())
    return right


def choices(out: Path, sets: list[str], changes: list[str], steps: int | None, count: int, command: str) -> None:
    """Accuracy in cross-validation for each change of the defaults and each set."""
    from aeon.datasets import load_classification

    path = out / "choices.json"
    content = json.loads(path.read_text()) if path.exists() else {"runs": []}
    done = {(run["change"], run["set"], run["steps"], run["folds"]) for run in content["runs"]}
    for change in changes:
        for name in sets:
            if (change, name, steps, count) in done:
                continue
            X, y = load_classification(name, split="train")
            options = {"steps": steps} | CHANGES[change]
            right = right_of(X, np.asarray(y), count, options)
            run = {"change": change, "set": name, "steps": steps, "folds": count, "right": right, "series": len(y)}
            content["runs"].append({**run, "command": command})
            content["machine"] = machine()
            out.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content, indent=1) + "\n")
            (out / "choices.md").write_text(table(content["runs"]))
            print(run, flush=True)


def table(runs: list[dict[str, Any]]) -> str:
    """The runs as a page: a table for each number of steps and folds."""
    from .experiments import SETS

    about = "Accuracy in % in cross-validation on the training split of each set, one seed; test splits were not read."
    lines = ["# Choice of the defaults", "", about, ""]
    for steps, count in sorted({(run["steps"] or 0, run["folds"]) for run in runs}):
        some = [run for run in runs if ((run["steps"] or 0), run["folds"]) == (steps, count)]
        names = [name for name in SETS if any(run["set"] == name for run in some)]
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
            found = {run["set"]: 100 * run["right"] / run["series"] for run in some if run["change"] == change}
            cells = [f"{found[name]:.1f}" if name in found else "–" for name in names]
            lines.append(f"| {change} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"
