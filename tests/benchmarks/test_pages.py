"""Tables on pages beside numbers in JSON; test_readme.py has those of the project's own pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.pages import check


def ratio(median: float) -> dict[str, float]:
    return {"median": median, "low": median - 0.1, "high": median + 0.1}


BENCH = [
    {"title": "small", "name": "ours", "ratio": ratio(1.3152), "peak_bytes": 167_113_776},
    {"title": "large", "name": "ours", "ratio": ratio(2.0), "peak_bytes": 2**20},
    {"title": "small", "name": "theirs", "ratio": ratio(9.54)},
]
ANALYSIS = [
    {"network": "plain", "recurrent_layers": 6, "first": 1250.0075, "last": 717.856},
    {"network": "plain", "recurrent_layers": 99, "first": 135701009.075, "last": 0.00456},
]


@pytest.mark.parametrize(
    ("rows", "table", "wrong"),
    [
        (BENCH, "| | ours | ours, peak MiB |\n|---|---|---|\n| small | 1.32× [1.22, 1.42] | 159 |", None),
        (BENCH, "| network | theirs |\n|---|---|\n| small | 9.5× |\n| large | |", None),
        (BENCH, "| | ours |\n|---|---|\n| small | 1.31× |", "small: ours is '1.31×'"),
        (BENCH, "| | ours, peak MiB |\n|---|---|\n| large | 2 |", "large: ours, peak MiB is '2'"),
        (BENCH, "| | ours |\n|---|---|\n| medium | 1 |", "no row 'medium'"),
        (ANALYSIS, "| network | recurrent layers | first |\n|---|---|---|\n| plain | 99 | 1.4e8 |", None),
        (ANALYSIS, "| network | recurrent layers | last |\n|---|---|---|\n| plain | 99 | 4.6e-3 |", None),
        (ANALYSIS, "| network | recurrent layers | first |\n|---|---|---|\n| plain | 99 | 1.3e8 |", "first is '1.3e8'"),
        (ANALYSIS, "| network | recurrent layers | first |\n|---|---|---|\n| plain | 6 | 1.4e8 |", "first is '1.4e8'"),
    ],
    ids=["rounded", "own column", "ratio", "peak", "row", "large", "tiny", "power", "other row"],
)
def test_numbers_in_json(rows: list[object], table: str, wrong: str | None, tmp_path: Path) -> None:
    source, page = tmp_path / "numbers.json", tmp_path / "page.md"
    source.write_text(json.dumps({"rows": rows}))
    page.write_text(f"Text.\n\n<!-- from {source} -->\n{table}\n")
    found, tables = check([page])
    assert tables == 1
    assert (wrong is None and not found) or (len(found) == 1 and wrong is not None and wrong in found[0]), found
