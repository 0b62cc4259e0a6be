"""How Sphinx makes the site: ``python -m sphinx -W -n -E docs site``."""

from __future__ import annotations

import os
import re
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from sphinx.util.nodes import make_refnode

from largek_dask.service import metrics
from largek_dask.version import __version__

project = "largek_dask"
author = "The largek_dask developers"
project_copyright = author
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "numpydoc", "sphinx_click"]
exclude_patterns = ["_executed", "_static"]

# Options of commands keep their two dashes.
smartquotes = False

html_theme = "furo"
html_title = f"largek_dask {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sourcelink = False
# Summaries would be fetched, which browsers forbid to pages from files.
html_show_search_summary = False
html_theme_options = {"navigation_with_keys": False}

myst_enable_extensions = ["colon_fence", "substitution"]
myst_heading_anchors = 4
# Notebooks are executed by their test, once; the site shows what it has left.
nb_execution_mode = "off"
nb_merge_streams = True

# Docstrings say types in words, so signatures show names and defaults alone.
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {
    # Every estimator has these of scikit-learn.
    "exclude-members": "get_metadata_routing, set_fit_request, set_partial_fit_request, "
    "set_predict_request, set_predict_proba_request, set_score_request, "
    "set_score_samples_request, set_transform_request"
}
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False

# Names that docstrings mention and that have no page.
nitpick_ignore = [
    ("py:class", "largek_dask.kernels.blocks.SparseBlock"),
    # Pages of scikit-learn's own site.
    ("std:ref", "df_output_transform"),
    ("std:ref", "sphx_glr_auto_examples_miscellaneous_plot_set_output.py"),
]
nitpick_ignore_regex = [
    # Parts of an algorithm, in what it says of its paper.
    ("py:func", r"cluster_sse|nested_chunk|round_step|.*\.vrkm_rows"),
    ("py:meth", r"(NMBatch|VRKM)\..*"),
    ("py:mod", r".*"),
]

# --- parts made from code -------------------------------------------------------------------------


def metrics_table() -> str:
    """Return a table of the metrics of jobs."""
    found = metrics.JOB_METRICS | {"seconds": ("counter", metrics.SECONDS)}
    rows = ["| metric | kind | what it says |", "|---|---|---|"]
    for name, (kind, says) in found.items():
        total = "_total" if kind == "counter" else ""
        rows.append(f"| `largek_job_{name}{total}` | {kind} | {says} |")
    return "\n".join(rows)


def settings_table() -> str:
    """Return a table of the settings, with defaults and descriptions from the package's YAML."""
    folder = files("largek_dask")
    defaults = yaml.safe_load((folder / "largek.yaml").read_text())
    schema = yaml.safe_load((folder / "largek-schema.yaml").read_text())
    rows = ["| setting | default | meaning |", "|---|---|---|"]

    def add(name: str, default: Any, described: dict[str, Any]) -> None:
        if "properties" in described:
            for key, inner in described["properties"].items():
                add(f"{name}.{key}" if name else key, default[key], inner)
        else:
            choices = ", ".join(f"`{choice}`" for choice in described.get("enum", ()))
            meaning = described["description"] + (f" One of {choices}." if choices else "")
            shown = yaml.safe_dump(default, default_flow_style=True).splitlines()[0]
            rows.append(f"| `{name}` | `{shown}` | {meaning} |")

    add("", defaults, schema)
    return "\n".join(rows)


myst_substitutions = {"metrics": metrics_table(), "settings": settings_table()}

# --- pages made from documents of the project -----------------------------------------------------

DOCS = Path(__file__).parent
ROOT = DOCS.parent
MADE = DOCS / "made"
PAGES = {
    ROOT / "README.md": MADE / "readme.md",
    ROOT / "CHANGELOG.md": MADE / "changelog.md",
    ROOT / "CONTRIBUTING.md": MADE / "contributing.md",
    ROOT / "SECURITY.md": MADE / "security.md",
    ROOT / "deploy" / "README.md": MADE / "deploy.md",
    ROOT / "largek_dask" / "DESIGN.md": MADE / "design.md",
    **{path: MADE / "tutorials" / path.name for path in ROOT.glob("notebooks/[0-9]*.ipynb")},
}
LINK = re.compile(r"(\]\(|^\[\w+\]: )([^)\s#:]+)", re.MULTILINE)
"""The target of a link to a file, in brackets or by name."""
FOLDER = re.compile(r"\[([^\[\]]*)\]\(([^)\s#:]+)\)")
"""A link that may lead to a folder, which no page shows: its words stay."""


def linked(text: str, source: Path, page: Path) -> str:
    """Let links from a document lead to pages of the site, seen from the page it becomes."""

    def there(found: re.Match[str]) -> str:
        target = (source.parent / found[2]).resolve()
        if not target.is_file():
            return found[0]
        return found[1] + os.path.relpath(PAGES.get(target, target), page.parent)

    def words(found: re.Match[str]) -> str:
        return found[1] if (source.parent / found[2]).is_dir() else found[0]

    return LINK.sub(there, FOLDER.sub(words, text))


def make_pages(_app) -> None:
    """Write README and other documents, and notebooks as their test has executed them."""
    shutil.rmtree(MADE, ignore_errors=True)
    for source, page in PAGES.items():
        executed = DOCS / "_executed" / source.name
        text = (executed if executed.exists() else source).read_text()
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(linked(text, source, page))


def link_to_pages(_app, name: str, source: list[str]) -> None:
    """Let links of a page to documents of the project lead to their pages."""
    page = DOCS / f"{name}.md"
    if MADE not in page.parents:
        source[0] = linked(source[0], page, page)


def resolve(app, env, node, content):
    """Link a short name in a docstring, such as ``Job.status``, to the only object so named."""
    objects = env.domains["py"].objects
    ending = f".{node['reftarget']}"
    found = [name for name, entry in objects.items() if name.endswith(ending) and not entry.aliased]
    if node.get("refdomain") != "py" or len(found) != 1:
        return None
    entry = objects[found[0]]
    page = node.get("refdoc", env.docname)
    return make_refnode(app.builder, page, entry.docname, entry.node_id, content, found[0])


def add_example(_app, context, lines: list[str]) -> None:
    """Show the example of a command below its options."""
    if example := getattr(context.command, "example", None):
        lines += [".. code-block:: shell", "", *(f"   {line}" for line in example.splitlines()), ""]


def setup(app) -> None:
    """Join Sphinx."""
    app.connect("missing-reference", resolve)
    app.connect("sphinx-click-process-epilog", add_example)
    app.connect("builder-inited", make_pages)
    app.connect("source-read", link_to_pages)
