"""Tables on pages beside the files they come from: `indrnn report --check`.

A table under a line `<!-- from SOURCE -->` is compared with SOURCE: a Markdown file of tables, or a folder of kept
runs. A row is found there by its command where both have one, else by its first cell. Cells of columns that both have
must be the same; in a column "ours" each number must be somewhere in the source's row.
"""

from __future__ import annotations

import re
from pathlib import Path

from .runs import Page, kept, table_of

Table = list[dict[str, str]]
"""Rows, by the names of columns."""


def check(pages: list[Path], kinds: dict[str, Page]) -> tuple[list[str], int]:
    """Compare all tables that name a source.

    Returns:
        A line for each difference, and how many tables there are.
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


def _source(source: Path, kinds: dict[str, Page]) -> Table:
    if source.is_dir():
        return [row for table in tables(table_of(kinds[source.name], kept(source))) for row in table]
    return [row for table in tables(source.read_text(encoding="utf-8")) for row in table]


def tables(text: str) -> list[Table]:
    """The tables of a page in Markdown."""
    result: list[Table] = []
    for block in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        head, _, *rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()]
        result.append([dict(zip(head, row, strict=False)) for row in rows])
    return result


def _plain(cell: str) -> str:
    return re.sub(r"[*`]", "", cell).strip()


def _differs(row: dict[str, str], rows: Table) -> str | None:
    """What is wrong with a row; None where it is as in the source."""
    key = "command" if "command" in row and all("command" in each for each in rows) else next(iter(row))
    name = _plain(row[key])
    found = [each for each in rows if _plain(each.get(key, next(iter(each.values())))) == name]
    if not found:
        return f"no row {name!r} in the source"
    problems = [problem for each in found if (problem := _cells(row, each, key))]
    return None if len(problems) < len(found) else f"{name}: {problems[0]}"


def _cells(row: dict[str, str], source: dict[str, str], key: str) -> str | None:
    everything = " ".join(source.values())
    for column, cell in row.items():
        if column == key:
            continue
        if column in source:
            if _plain(cell) != _plain(source[column]):
                return f"{column} is {cell!r}, and {source[column]!r} in the source"
        elif column == "ours":
            for number in re.findall(r"\d[\d,.]*(?:e-?\d+)?", cell):
                if not re.search(rf"(?<![\d.]){re.escape(number)}", everything):
                    return f"{number} of {cell!r} is not in the source's row"
    return None
