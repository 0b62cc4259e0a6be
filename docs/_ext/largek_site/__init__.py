"""What of the site is made from the project's code and documents, at every build."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from largek_site import documents, names, reference, unused

__all__ = ["setup"]


def make_pages(app: Sphinx) -> None:
    """Write the pages that are documents of the project, and notebooks, into ``docs/made``."""
    documents.write_pages(Path(app.srcdir))


def fill_in(app: Sphinx, page: str, source: list[str]) -> None:
    """Put what is made into a page, and let its links to files of the project lead to pages."""
    if page.startswith(f"{documents.MADE}/"):
        return
    text = reference.filled(source[0], Path(app.srcdir))
    source[0] = documents.linked(text, f"docs/{page}.md", page)


def setup(app: Sphinx) -> dict[str, Any]:
    """Join Sphinx."""
    app.connect("builder-inited", make_pages)
    app.connect("source-read", fill_in)
    names.watch(app)
    unused.watch(app)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
