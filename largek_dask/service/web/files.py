"""Files that the page loads, each with its version in its name."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
from functools import cache
from importlib import resources

__all__ = ["Files", "digest", "has_bokeh"]


def has_bokeh() -> bool:
    """Return whether Bokeh is installed."""
    return importlib.util.find_spec("bokeh") is not None


def digest(body: bytes) -> str:
    """Return a short name for a content."""
    return hashlib.sha256(body).hexdigest()[:12]


@cache
def packed(package: str, path: str) -> bytes:
    """Return a file of a package, compressed by gzip."""
    return gzip.compress(resources.files(package).joinpath(path).read_bytes(), 6, mtime=0)


class Files:
    """Names of the files: ``style`` and ``script``, and ``bokeh``, empty if it is not installed."""

    def __init__(self) -> None:
        own, script, style = "largek_dask.service.web", "static/page.js", "static/page.css"
        self.style = f"page-{digest(packed(own, style))}.css"
        self.script = f"page-{digest(packed(own, script))}.js"
        self.bokeh = ""
        self._places = {self.style: (own, style), self.script: (own, script)}
        if has_bokeh():
            import bokeh

            self.bokeh = f"bokeh-{bokeh.__version__}.js"
            self._places[self.bokeh] = ("bokeh", "server/static/js/bokeh.min.js")

    def read(self, name: str) -> bytes | None:
        """Return a file compressed by gzip; None if there is no such file."""
        return packed(*self._places[name]) if name in self._places else None
