"""A real browser for tests, and what it must never say of a page of ours."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.helpers.browser import browser

__all__ = ["Tab", "browser", "no_serious_finding"]

WIDTHS, SCHEMES = (1280, 390), ("light", "dark")
PATIENCE = 120_000
"""Milliseconds that a test waits for what the page is to show."""
SERIOUS = ("serious", "critical")


class Tab:
    """A page of ours that is open, and what went wrong in it.

    Attributes
    ----------
    page : playwright.sync_api.Page
    faults : list of str
        Messages of the console, requests that failed, and those to other hosts.
    requests : list of str
        Addresses that were asked for.
    """

    def __init__(self, browser: Any, width: int = 1280, scheme: str = "light", **how: Any) -> None:
        self._context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, **how
        )
        self._context.set_default_timeout(PATIENCE)
        self.page = self._context.new_page()
        self.faults: list[str] = []
        self.requests: list[str] = []
        self._host = ""
        self.page.on("console", lambda told: self.faults.append(f"console: {told.text}"))
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("requestfailed", self._failed)
        self.page.on("request", self._asked)
        self.page.on("response", self._answered)

    def _asked(self, request: Any) -> None:
        self.requests.append(request.url)
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws", "wss") and parts.netloc != self._host:
            self.faults.append(f"another host: {request.url}")

    def _failed(self, request: Any) -> None:
        # Whoever goes on to another page waits no longer for this one.
        if "ERR_ABORTED" not in request.failure:
            self.faults.append(f"failed: {request.url} {request.failure}")

    def _answered(self, response: Any) -> None:
        if response.status >= 400:
            self.faults.append(f"{response.status}: {response.url}")

    def open(self, url: str) -> Tab:
        """Go to an address."""
        self._host = urlsplit(url).netloc
        self.page.goto(url)
        return self

    def text(self, selector: str) -> str:
        """What stands there."""
        return str(self.page.locator(selector).first.inner_text())

    def wait_text(self, selector: str, text: str) -> None:
        """Wait until it is there."""
        self.page.locator(selector, has_text=text).first.wait_for()

    def wait(self, expression: str, argument: Any = None) -> Any:
        """Wait until an expression of JavaScript is true, and return its value."""
        return self.page.wait_for_function(expression, arg=argument).json_value()

    def scrolls_sideways(self) -> bool:
        """Whether the page is wider than the window."""
        return bool(
            self.page.evaluate(
                "document.documentElement.scrollWidth > document.documentElement.clientWidth"
            )
        )

    def picture(self, name: str) -> None:
        """Keep a picture where ``LARGEK_PICTURES`` says, for somebody to look at."""
        if folder := os.environ.get("LARGEK_PICTURES"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=f"{folder}/{name}.png", full_page=True)

    def close(self) -> None:
        """Close it."""
        self._context.close()


def no_serious_finding(tab: Tab) -> None:
    """Hold against axe what it finds serious, or worse."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(tab.page).response["violations"]
    serious = [
        f"{one['id']} ({one['impact']}): {[node['target'] for node in one['nodes']][:3]}"
        for one in found
        if one["impact"] in SERIOUS
    ]
    assert serious == []
