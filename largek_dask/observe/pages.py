"""The page's HTML and the files that belong to it, each under a name that says its version.

The HTML is a frame without data: a script of our own asks for these, and sets every text as text.
"""

from __future__ import annotations

import gzip
import hashlib
import threading
from collections.abc import Callable
from functools import cache
from html import escape
from importlib import resources

from largek_dask.driver.words import printable
from largek_dask.version import __version__

__all__ = ["Files", "digest", "shell"]


def text(value: object, most: int | None = None) -> str:
    """Text for HTML: escaped, printable, at most ``most`` characters."""
    return escape(printable(value)[:most])


SHOWN_ID = 80
"""Characters that are shown of an address that leads nowhere."""


def digest(body: bytes) -> str:
    """A name for what a file holds."""
    return hashlib.sha256(body).hexdigest()[:12]


@cache
def _own(name: str) -> bytes:
    return (resources.files("largek_dask.observe") / "static" / name).read_bytes()


class Files:
    """What the page loads: a style and a script of our own, and BokehJS where it is installed.

    Attributes
    ----------
    style, script : str
        Names under which they are served.
    bokeh : str or None
        Likewise, the core of BokehJS alone; None without it.
    """

    def __init__(self) -> None:
        style, script = _own("page.css"), _own("page.js")
        self.style = f"page-{digest(style)}.css"
        self.script = f"page-{digest(script)}.js"
        self.bokeh: str | None = None
        self._lock = threading.Lock()
        self._ready: dict[str, bytes] = {}
        self._known: dict[str, tuple[str, Callable[[], bytes]]] = {
            self.style: ("text/css; charset=utf-8", lambda: style),
            self.script: ("text/javascript; charset=utf-8", lambda: script),
        }
        if (found := _bokeh()) is not None:
            version, read = found
            self.bokeh = f"bokeh-{version}.js"
            self._known[self.bokeh] = ("text/javascript; charset=utf-8", read)

    @property
    def draws(self) -> bool:
        """Whether charts can be drawn."""
        return self.bokeh is not None

    def is_known(self, name: str) -> bool:
        """Whether there is such a file."""
        return name in self._known

    def read(self, name: str) -> tuple[bytes, str]:
        """A file, compressed, and its type."""
        kind, read = self._known[name]
        with self._lock:
            if name not in self._ready:
                self._ready[name] = gzip.compress(read(), 6, mtime=0)
            return self._ready[name], kind

    def prepare(self) -> None:
        """Do beforehand what whoever looks first would wait for."""
        for name in self._known:
            self.read(name)


def _bokeh() -> tuple[str, Callable[[], bytes]] | None:
    """The version of BokehJS that is installed, and what reads its core; None without it."""
    try:
        import bokeh
    except ImportError:
        return None
    path = resources.files("bokeh") / "server" / "static" / "js" / "bokeh.min.js"
    return (bokeh.__version__, path.read_bytes) if path.is_file() else None


def shell(
    kind: str,
    files: Files,
    *,
    job_id: str = "",
    home: str | None = None,
    is_framed: bool = False,
    token: str | None = None,
) -> bytes:
    """The HTML around what the script puts in.

    Parameters
    ----------
    kind : str
        "list", "job", or "lost" for a job that there is not.
    files : Files
    job_id : str
        As it was asked for.
    home : str, optional
        Relative address of the pages that this one is among.
    is_framed : bool
        Whether it is shown inside another page, which has a head of its own.
    token : str, optional
        What has to be sent along to cancel a job; None: it cannot be done.
    """
    query = "?frame=1" if is_framed else ""
    told = {
        "page": kind,
        "job": job_id if kind == "job" else "",
        "bokeh": f"largek/static/{files.bokeh}" if files.draws else "",
        "token": token or "",
        "frame": "1" if is_framed else "",
    }
    data = "".join(f' data-{name}="{text(value)}"' for name, value in told.items() if value)
    back = f'<a href="{text(home)}">Dask</a>' if home else ""
    list_link = f'<a href="largek{query}">Jobs</a>' if kind != "list" else ""
    body = _lost(job_id, query) if kind == "lost" else _waiting()
    title = {"list": "Jobs", "job": f"Job {job_id}", "lost": "No such job"}[kind]
    script = "" if kind == "lost" else f'<script src="largek/static/{files.script}" defer></script>'
    if kind == "job" and files.draws:
        # So that it comes along with our own, and not after that one has been read.
        script += f'<link rel="preload" as="script" href="{told["bokeh"]}">'
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(title, SHOWN_ID)} · largek</title>"
        f'<link rel="icon" href="data:,"><link rel="stylesheet" href="largek/static/{files.style}">'
        f"{script}</head><body{data}>"
        f'<a class="skip" href="#main">To the content</a>'
        f'<header><nav aria-label="Pages"><b>largek</b>{list_link}{back}</nav>'
        f'<span class="quiet">{text(__version__)}</span></header>'
        f'<div id="note" role="status"></div><main id="main" tabindex="-1">{body}</main>'
        "</body></html>\n"
    ).encode()


def _waiting() -> str:
    return (
        '<p class="quiet" id="wait">Asking for the latest …</p>'
        "<noscript><p>This page needs JavaScript to show what is new. <code>largek jobs</code> "
        "and <code>largek watch ID</code> show the same in a terminal.</p></noscript>"
    )


def _lost(job_id: str, query: str) -> str:
    return (
        f"<h1>No such job</h1><p>There is no job <code>{text(job_id, SHOWN_ID)}</code> here. "
        "It may have been deleted, or belong to another scheduler.</p>"
        f'<p><a href="largek{query}">All jobs</a></p>'
    )
