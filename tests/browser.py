"""A real browser for tests of pages; without one they are skipped, and say so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NEEDED = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: pages are not opened in a browser")
PHONE = 360
"""Pixels of its width."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, driven by playwright."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser can be driven")
    with driver.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield made
        made.close()


def opened(
    browser: Any,
    path: Path,
    *,
    width: int = 1280,
    dark: bool = False,
    ready: str = "document.documentElement.dataset.runs > 0",
) -> tuple[Any, list[str]]:
    """A page, and a list of what goes wrong in it, which grows."""
    context = browser.new_context(viewport={"width": width, "height": 860}, color_scheme="dark" if dark else "light")
    page = context.new_page()
    wrong: list[str] = []

    def dialog(shown: Any) -> None:
        wrong.append(shown.message)
        shown.dismiss()

    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url) if not request.url.startswith("file:") else None)
    page.on("dialog", dialog)
    page.goto(path.as_uri())
    until(page, ready)
    return page, wrong


def until(page: Any, condition: str) -> None:
    """Wait for a condition, asked from outside: the page's own policy forbids to evaluate text in it."""
    for _ in range(600):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"never came true: {condition}")


def assert_fits(page: Any) -> None:
    """Nothing is wider than the window."""
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
