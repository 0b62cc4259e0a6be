"""Names that the site may mention without a page: one that nobody mentions is a warning."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

__all__ = ["watch"]

logger = logging.getLogger(__name__)


def watch(app: Sphinx) -> None:
    """Compare ``nitpick_ignore`` with the references that a whole build did not resolve."""
    missed: set[tuple[str, str]] = set()
    seen: set[str] = set()

    def missing(_app: Sphinx, _env: Any, node: nodes.Element, _content: nodes.Element) -> None:
        domain, kind = node.get("refdomain", ""), node.get("reftype", "")
        missed.add((f"{domain}:{kind}" if domain else kind, node["reftarget"]))

    def resolved(_app: Sphinx, _doctree: nodes.document, page: str) -> None:
        seen.add(page)

    def finished(app: Sphinx, error: Exception | None) -> None:
        if error is None and seen >= app.env.found_docs:
            for entry in unused(app.config.nitpick_ignore, missed):
                logger.warning("nitpick_ignore has %r, which nothing needs", entry)

    app.connect("missing-reference", missing, priority=999)
    app.connect("doctree-resolved", resolved)
    app.connect("build-finished", finished)


def unused(ignored: Any, missed: set[tuple[str, str]]) -> list[tuple[str, str]]:
    """Entries of an ignore list without a reference that they are needed for."""
    return sorted(set(map(tuple, ignored)) - missed)
