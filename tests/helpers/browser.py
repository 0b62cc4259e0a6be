"""A real browser for tests: Chromium as the machine has it, driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.helpers import needs

SIZES = {1280: 900, 390: 844}
"""Height of the window by its width: a desk, and a telephone."""


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium without a window; tests are skipped where there is none."""
    needs.module("axe_playwright_python")
    play = needs.module("playwright.sync_api")
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        needs.missing("there is no Chromium: Debian's chromium has it")
    with play.sync_playwright() as driver:
        options = ["--no-sandbox", "--disable-dev-shm-usage"]
        started = driver.chromium.launch(executable_path=path, args=options)
        try:
            yield started
        finally:
            started.close()


@contextmanager
def page_of(browser: Any, width: int, scheme: str, **options: Any) -> Iterator[tuple[Any, Heard]]:
    """A new page, and what is heard of it while it is used."""
    size = {"width": width, "height": SIZES[width]}
    context = browser.new_context(viewport=size, color_scheme=scheme, **options)
    try:
        page = context.new_page()
        yield page, Heard(page)
    finally:
        context.close()


class Heard:
    """Messages in the console, failed requests and addresses asked for, of one page."""

    def __init__(self, page: Any) -> None:
        self.messages: list[str] = []
        self.failed: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        page.on("requestfailed", lambda request: self.failed.append(request.url))
        page.on("request", lambda request: self.asked.append(request.url))

    def beyond(self, *starts: str) -> list[str]:
        """Addresses asked for that begin with none of these."""
        return [url for url in self.asked if not url.startswith((*starts, "data:", "blob:"))]


def serious(page: Any) -> list[str]:
    """What axe finds on a page that is serious or critical: rule, and what breaks it."""
    from axe_playwright_python.sync_playwright import Axe

    told = Axe().run(page, options={"preload": False, "resultTypes": ["violations"]})
    return [
        f"{found['id']}: {node['html'][:200]}"
        for found in told.response["violations"]
        if found["impact"] in ("serious", "critical")
        for node in found["nodes"]
    ]


def scrolls_sideways(page: Any) -> bool:
    """Whether the page is wider than its window."""
    return bool(page.evaluate("document.documentElement.scrollWidth > window.innerWidth"))
