"""HTML by Jinja templates, which escape all text. Pages load nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from largek_dask.driver.formatting import printable
from largek_dask.errors import OutputError
from largek_dask.plots.panels import Panel
from largek_dask.plots.pictures import has_matplotlib, svg

__all__ = ["Section", "render", "section", "write"]

Section = dict[str, Any]
"""Values of a section of ``templates/report.html``."""


@cache
def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals |= {"chart": svg, "has_matplotlib": has_matplotlib}
    return found


def _printable(value: object) -> object:
    """Remove control characters; markup is safe already."""
    return value if hasattr(value, "__html__") else printable(value)


def render(template: str, **values: Any) -> str:
    """Render a template of ``plots/templates``."""
    return _environment().get_template(template).render(**values)


def section(panel: Panel, lead: str, most: int | None = None) -> Section:
    """Return a section with a chart and, folded, the first rows of its table."""
    table = (panel.columns, panel.rows[:most], panel.columns[:1])
    return {"title": panel.title, "lead": lead, "panel": panel, "summary": "The figures",
            "table": table if panel.rows else None}  # fmt: skip


def write(
    path: str | os.PathLike[str], write_to: Callable[[Path], Any], overwrite: bool = False
) -> None:
    """Write a file; ``write_to`` is called with the path of a temporary one."""
    place = Path(path)
    if place.exists() and not overwrite:
        raise OutputError(
            f"{place} exists already; nothing was changed. Choose another name, or "
            "overwrite=True to replace it."
        )
    # Readers never see half a file.
    part = place.with_name(f".{place.stem}.partial{place.suffix}")
    try:
        write_to(part)
        part.replace(place)
    except (OSError, ValueError) as error:
        part.unlink(missing_ok=True)
        raise OutputError(
            f"{place} cannot be written: {error}; check its ending, space and permissions there."
        ) from error
