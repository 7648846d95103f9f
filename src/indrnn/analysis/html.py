"""Single-file HTML pages: templates filled in, with the text of runs escaped."""

from __future__ import annotations

import html
import json
import os
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..files import write_atomically


def source(name: str) -> str:
    """Read a text file of this package, such as explorer/style.css."""
    return files(__package__ or "").joinpath(name).read_text(encoding="utf-8")


def fill(template: str, **parts: str) -> str:
    """Replace each {{name}} in the template by the HTML part of that name, in one pass: parts are not expanded."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def escape(value: object) -> str:
    """Escape text for HTML, in elements and in attributes."""
    return html.escape(str(value), quote=True)


def embedded_json(value: Any) -> str:
    """JSON for a <script> element, with <, > and & escaped so that no text in it can end the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def write_page(path: Path, page: str, *, overwrite: bool = False) -> Path:
    """Write a page atomically."""
    check_page(path, overwrite=overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page.encode())
    return path


def check_page(path: Path, *, overwrite: bool = False) -> None:
    """Raise if a page cannot be written, before any work is done."""
    if path.is_dir():
        raise ValueError(f"the page must be a file, and {path} is a folder")
    above = next(folder for folder in path.absolute().parents if folder.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise ValueError(f"the page must be in a folder that can be written to, and {above} is none")
    if path.exists() and not overwrite:
        raise ValueError(f"{path} is there already; replace it with overwrite (--overwrite)")
