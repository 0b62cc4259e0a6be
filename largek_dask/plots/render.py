"""HTML by Jinja templates, which escape all text. Pages load nothing."""

from __future__ import annotations

import base64
import json
import os
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from numpy.typing import NDArray

from largek_dask.driver.formatting import printable
from largek_dask.errors import OutputError
from largek_dask.plots.panels import Panel
from largek_dask.plots.pictures import has_matplotlib, svg

__all__ = ["Charts", "picture", "render", "write"]


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _printable(value: object) -> object:
    """Remove control characters; markup is safe already."""
    return value if hasattr(value, "__html__") else printable(value)


def render(template: str, **values: Any) -> str:
    """Render a template of ``plots/templates``."""
    return _environment().get_template(template).render(**values)


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


class Charts:
    """Charts of one page: SVG if matplotlib is installed, otherwise by BokehJS.

    BokehJS draws charts that can be zoomed; the page then includes it (1 MB).
    """

    def __init__(
        self, marks: Sequence[Mapping[str, Any]] = (), by_bokeh: bool | None = None
    ) -> None:
        self.marks = marks
        self.by_bokeh = not has_matplotlib() if by_bokeh is None else by_bokeh
        self._items: list[list[Any]] = []

    def draw(self, panel: Panel, x: str | None = None, log: bool | None = None) -> Markup:
        """Return the HTML of a chart."""
        if not self.by_bokeh:
            return Markup(svg(panel, self.marks, x))
        from largek_dask.plots.figures import figure, to_json

        items = [to_json(figure(panel, theme, x=x, log=log, marks=self.marks), panel.kind)
                 for theme in ("light", "dark")]  # fmt: skip
        node = f"chart-{len(self._items)}"
        self._items.append([node, *items])
        html = '<div id="{}" role="group" aria-label="{}"></div>'
        return Markup(html).format(node, printable(panel.words))

    @property
    def data(self) -> Markup:
        """JSON of all charts that BokehJS draws; empty if there are none."""
        text = json.dumps(self._items, separators=(",", ":")) if self._items else ""
        return Markup(text.replace("<", "\\u003c"))

    @property
    def library(self) -> Markup:
        """The core of BokehJS."""
        place = resources.files("bokeh") / "server" / "static" / "js" / "bokeh.min.js"
        return Markup(place.read_text(encoding="utf-8"))


def picture(pixels: NDArray[np.uint8]) -> str:
    """Return an image (h, w), (h, w, 1) or (h, w, 3) as a data URI of a PNG file."""
    height, width = pixels.shape[:2]
    is_grey = pixels.ndim == 2 or pixels.shape[2] == 1
    lines = np.ascontiguousarray(pixels).reshape(height, -1)
    # Each line begins with its filter: none.
    filtered = np.concatenate([np.zeros((height, 1), np.uint8), lines], axis=1)
    head = struct.pack(">IIBBBBB", width, height, 8, 0 if is_grey else 2, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(filtered.tobytes(), 9)), (b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
