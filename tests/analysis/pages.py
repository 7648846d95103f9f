"""A check of pages without a browser: well-formed, of one file, and with nothing that escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_EMPTY = {"meta", "br", "hr", "img", "input", "link"}
_ADDRESSES = {"src", "href", "action", "srcset", "data", "poster", "formaction", "xlink:href"}


class Page(HTMLParser):
    """A page as its elements; raises where they are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: dict[str, str] = {}
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> where {self.open[-1]} is open"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            name = self.elements[-1][1].get("id") or self.open[-1]
            self.scripts[name] = self.scripts.get(name, "") + data
        else:
            self.texts.append(data)

    @property
    def ids(self) -> list[str]:
        """Of all elements."""
        return [attributes["id"] or "" for _, attributes in self.elements if "id" in attributes]


def assert_one_file(text: str) -> Page:
    """Check that a page is well-formed and loads nothing; return it."""
    page = Page(text)
    assert text.startswith("<!doctype html>")
    assert len(page.ids) == len(set(page.ids))
    for tag, attributes in page.elements:
        addresses = {value for name, value in attributes.items() if name in _ADDRESSES and tag != "a"}
        assert all((address or "")[:1] == "#" for address in addresses), (tag, attributes)  # a part of the page
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
    assert not re.search(r"url\((?!#)|@import|\bimport\s*\(|\bfetch\(|XMLHttpRequest|WebSocket|sendBeacon", text)
    code = text.replace("http://www.w3.org/2000/svg", "")  # the name of a language
    assert not re.search(r"https?://", code)
    labels = [attributes for tag, attributes in page.elements if tag == "html"]
    assert labels[0]["lang"] == "en"
    assert [tag for tag, _ in page.elements].count("h1") == 1
    return page
