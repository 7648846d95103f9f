"""Check of the tables on pages against their source files: `indrnn report --check`.

A table after a line `<!-- from SOURCE -->` is compared with SOURCE: a folder of kept runs, a folder of such folders,
the tables of a benchmark, whose headings are the page's columns, or the numbers of an analysis or a benchmark in JSON.
A row is matched by its command, else by its first cell. Numbers on the page may be rounded. Columns that the source
lacks are not checked, except "ours", each number of which must occur somewhere in the source's row.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from ..tasks.table import Table
from .runs import kept, table_of

_Rows = list[dict[str, str]]
"""Rows, by the names of columns."""


def check(pages: list[Path], kinds: dict[str, Table]) -> tuple[list[str], int]:
    """Compare all tables that name a source.

    Returns:
        A line for each difference, and the number of tables.
    """
    wrong: list[str] = []
    count = 0
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for found in re.finditer(r"<!-- from (\S+) -->\n+((?:\|.*\n)+)", text + "\n"):
            source = Path(found[1])
            count += 1
            try:
                rows = _source(source, kinds)
            except OSError as error:
                wrong.append(f"{page}: {source}: {error.strerror}")
                continue
            for table in tables(found[2]):
                wrong += [f"{page}: {source}: {problem}" for row in table if (problem := _differs(row, rows))]
    return wrong, count


def _source(source: Path, kinds: dict[str, Table]) -> _Rows:
    if source.name in kinds:
        return [row for table in tables(table_of(kinds[source.name], kept(source))) for row in table]
    if source.is_dir():
        return [row for name in sorted(kinds) if (source / name).is_dir() for row in _source(source / name, kinds)]
    text = source.read_text(encoding="utf-8")
    if source.suffix == ".json":
        return _measured(json.loads(text)["rows"])
    headed = re.findall(r"^([^|\n]+?):[^|\n]*\n+((?:\|.*\n?)+)", text, re.MULTILINE)
    if not headed:
        return [row for table in tables(text) for row in table]
    rows: dict[str, dict[str, str]] = {}
    for heading, block in headed:
        for table in tables(block):
            for row in table:
                name, *cells = row.values()
                rows.setdefault(name, {"": name})[heading] = " ".join(cells)
    return list(rows.values())


def _measured(rows: list[dict[str, Any]]) -> _Rows:
    """The rows of JSON numbers: of an analysis, unchanged; of a benchmark, one row per title, with its candidates."""
    if not all({"title", "name"} <= row.keys() for row in rows):
        return [{name.replace("_", " "): str(value) for name, value in row.items()} for row in rows]
    by_title: dict[str, dict[str, str]] = {}
    for row in rows:
        cells = by_title.setdefault(row["title"], {"": row["title"]})
        cells[row["name"]] = "{median} [{low}, {high}]".format(**row["ratio"])
        if "peak_bytes" in row:
            cells[f"{row['name']}, peak MiB"] = str(row["peak_bytes"] / 2**20)
    return list(by_title.values())


def tables(text: str) -> list[_Rows]:
    """The tables of a Markdown page."""
    result: list[_Rows] = []
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        head, _, *rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()]
        result.append([dict(zip(head, row, strict=False)) for row in rows])
    return result


def _plain(cell: str) -> str:
    return re.sub(r"[*`]", "", cell).strip()


def _differs(row: dict[str, str], rows: _Rows) -> str | None:
    """What is wrong with a row; None if it agrees with the source."""
    key = "command" if "command" in row and all("command" in each for each in rows) else next(iter(row))
    name = _plain(row[key])
    found = [each for each in rows if _plain(each.get(key, next(iter(each.values())))) == name]
    if not found:
        return f"no row {name!r} in the source"
    problems = [problem for each in found if (problem := _cells(row, each, key))]
    return None if len(problems) < len(found) else f"{name}: {' or '.join(problems)}"


def _cells(row: dict[str, str], source: dict[str, str], key: str) -> str | None:
    everything = _numbers(" ".join(source.values()))
    for column, cell in row.items():
        if column == key:
            continue
        mine = _numbers(cell)
        if column in source:
            theirs = _numbers(source[column])
            same = all(map(_rounds, mine, theirs)) and len(mine) <= len(theirs) and bool(mine or cell == source[column])
            if not same and _plain(cell) != _plain(source[column]) and cell:
                return f"{column} is {cell!r}, and {source[column]!r} in the source"
        elif column == "ours":
            for number in mine:
                if not any(_rounds(number, each) for each in everything):
                    return f"{number} of {cell!r} is not in the source's row"
    return None


def _numbers(cell: str) -> list[str]:
    return [number.replace(",", "") for number in re.findall(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?=\D|$)", cell)]


def _rounds(mine: str, theirs: str) -> bool:
    """Whether `mine` may be `theirs` rounded to fewer digits."""
    digits, _, power = mine.partition("e")
    half = 0.5 * 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
    return mine == theirs or abs(float(mine) - float(theirs)) <= half * (1 + 1e-9)
