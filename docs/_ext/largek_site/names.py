"""Short names in docstrings, such as :meth:`Job.status`, as links to what has that name."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.nodes import make_refnode

__all__ = ["watch"]


def watch(app: Sphinx) -> None:
    """Resolve references by the last parts of names, and leave out what scikit-learn adds."""
    app.connect("missing-reference", resolve)
    app.connect("autodoc-skip-member", skipped)


def resolve(
    app: Sphinx, env: Any, node: nodes.Element, content: nodes.Element
) -> nodes.Element | None:
    """A link to the only object whose name ends as the reference says; else None."""
    if node.get("refdomain") != "py":
        return None
    objects = env.domains["py"].objects
    ending = f".{node['reftarget']}"
    found = [name for name, entry in objects.items() if name.endswith(ending) and not entry.aliased]
    if len(found) != 1:
        return None
    entry = objects[found[0]]
    page = node.get("refdoc", env.docname)
    return make_refnode(app.builder, page, entry.docname, entry.node_id, content, found[0])


def skipped(
    _app: Sphinx, _kind: str, name: str, _member: Any, skip: bool, _options: Any
) -> bool | None:
    """Leave out what scikit-learn's routing of metadata puts into every estimator."""
    is_routing = name == "get_metadata_routing" or (
        name.startswith("set_") and name.endswith("_request")
    )
    return True if is_routing else None
