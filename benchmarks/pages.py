"""Check of the tables in README and docs against their source files: `python -m benchmarks.pages`.

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

from indrnn.analysis.runs import kept, table_of
from indrnn.tasks.rows import recipe_kinds

from .command import start

Rows = list[dict[str, str]]
"""Rows of tables, by the names of columns."""
TASKS = {kind.table.name: kind.table for kind in recipe_kinds() if hasattr(kind, "table")}
"""By the name of a folder of results: how the runs in it are summarised."""


def main(arguments: list[str]) -> int:
    """Check these pages, or README.md and docs, and print each difference."""
    pages = [Path(name) for name in arguments] or [Path("README.md"), *sorted(Path("docs").glob("*.md"))]
    differences, tables = check(pages)
    for line in differences:
        print(line)
    print(f"{tables} tables on {len(pages)} pages, {len(differences)} differences")
    return 1 if differences else 0


def check(pages: list[Path]) -> tuple[list[str], int]:
    """Compare all tables that name a source.

    Returns:
        A line for each difference, and the number of tables.
    """
    differences: list[str] = []
    count = 0
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(r"<!-- from (\S+) -->\n+((?:\|.*\n)+)", text + "\n"):
            count += 1
            try:
                rows = _source(Path(match[1]))
            except OSError as error:
                differences.append(f"{page}: {match[1]}: {error.strerror}")
                continue
            problems = (_difference(row, rows) for row in _rows(match[2]))
            differences += [f"{page}: {match[1]}: {problem}" for problem in problems if problem]
    return differences, count


def _source(source: Path) -> Rows:
    if source.name in TASKS:
        return _rows(table_of(TASKS[source.name], kept(source)))
    if source.is_dir():
        return [row for name in sorted(TASKS) if (source / name).is_dir() for row in _source(source / name)]
    text = source.read_text(encoding="utf-8")
    if source.suffix == ".json":
        return _measured(json.loads(text)["rows"])
    headed = re.findall(r"^([^|\n]+?):[^|\n]*\n+((?:\|.*\n?)+)", text, re.MULTILINE)
    if not headed:
        return _rows(text)
    rows: dict[str, dict[str, str]] = {}
    for heading, block in headed:
        for row in _rows(block):
            name, *cells = row.values()
            rows.setdefault(name, {"": name})[heading] = " ".join(cells)
    return list(rows.values())


def _measured(rows: list[dict[str, Any]]) -> Rows:
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


def _rows(text: str) -> Rows:
    """The rows of all tables in a Markdown text."""
    result: Rows = []
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        head, _, *rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()]
        result += [dict(zip(head, row, strict=False)) for row in rows]
    return result


def _plain(cell: str) -> str:
    return re.sub(r"[*`]", "", cell).strip()


def _difference(row: dict[str, str], rows: Rows) -> str | None:
    """What is wrong with a row; None if it agrees with the source."""
    key = "command" if "command" in row and all("command" in source for source in rows) else next(iter(row))
    name = _plain(row[key])
    sources = [source for source in rows if _plain(source.get(key, next(iter(source.values())))) == name]
    if not sources:
        return f"no row {name!r} in the source"
    problems = [_cells(row, source, key) for source in sources]
    return None if None in problems else f"{name}: {' or '.join(map(str, problems))}"


def _cells(row: dict[str, str], source: dict[str, str], key: str) -> str | None:
    everything = _numbers(" ".join(source.values()))
    for column, cell in row.items():
        mine = _numbers(cell)
        if column == "ours" and column not in source:
            for number in mine:
                if not any(_rounds(number, other) for other in everything):
                    return f"{number} of {cell!r} is not in the source's row"
        elif column != key and column in source and cell and _plain(cell) != _plain(source[column]):
            theirs = _numbers(source[column])
            if not mine or len(mine) > len(theirs) or not all(map(_rounds, mine, theirs)):
                return f"{column} is {cell!r}, and {source[column]!r} in the source"
    return None


def _numbers(cell: str) -> list[str]:
    return [number.replace(",", "") for number in re.findall(r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?=\D|$)", cell)]


def _rounds(mine: str, theirs: str) -> bool:
    """Whether `mine` may be `theirs` rounded to fewer digits."""
    digits, _, power = mine.partition("e")
    half = 0.5 * 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
    return mine == theirs or abs(float(mine) - float(theirs)) <= half * (1 + 1e-9)


if __name__ == "__main__":
    start(main)
