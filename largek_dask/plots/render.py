"""Render HTML from Jinja templates. All text is escaped, and pages load no other files."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from largek_dask.driver.formatting import printable
from largek_dask.plots.panels import Panel
from largek_dask.plots.pictures import has_matplotlib, image

Section = dict[str, Any]
"""Template values for one section of ``templates/report.html``."""


@cache
def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals |= {"chart": image, "has_matplotlib": has_matplotlib}
    return found


def _printable(value: object) -> object:
    """Replace control characters in text; leave markup unchanged, because it is already safe."""
    return value if hasattr(value, "__html__") else printable(value)


def render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


def section(panel: Panel, lead: str) -> Section:
    """Return a section with a chart and a collapsible table."""
    table = (panel.columns, panel.rows, panel.columns[:1])
    return {"title": panel.title, "lead": lead, "panel": panel, "summary": "The figures",
            "table": table if panel.rows else None}  # fmt: skip
