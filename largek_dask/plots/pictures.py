"""Draw panels with matplotlib, as one figure or as images in a page, without pyplot."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from largek_dask.errors import DataError, MissingDependencyError
from largek_dask.plots.panels import Panel
from largek_dask.plots.theme import MOST_NAMED, THEMES, X_LABELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LIGHT = THEMES["light"]
DASHES = ("-", "--", "-.")
WIDTH = 4.8
"""Width of a chart in a page, in inches; text remains readable on a phone."""
WORDS_WIDTH = 120
"""Number of characters per line of the text below a figure."""


def has_matplotlib() -> bool:
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def new_figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "matplotlib is required to draw charts: pip install 'largek_dask[plots]'"
        ) from error
    return Figure(figsize=(width, height), dpi=120, layout="constrained", facecolor=LIGHT.paper)


def draw(
    panels: Sequence[Panel],
    title: str = "",
    marks: Sequence[Mapping[str, Any]] = (),
    *,
    n_columns: int = 2,
    words: str = "",
) -> Figure:
    """Draw all panels that have series.

    ``marks`` are events to mark on time axes; ``words`` is a text below the figure.

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.
    DataError
        No panel has a series.
    """
    drawn = [panel for panel in panels if panel.series]
    if not drawn:
        raise DataError(
            "there is nothing to draw: the fit has made no step yet; try again after its first step"
        )
    n_rows = -(-len(drawn) // n_columns)
    figure = new_figure(11, 3.2 * n_rows + 0.4 * bool(title))
    figure.suptitle(title, fontsize=14)
    figure.supxlabel(fill(words, WORDS_WIDTH), fontsize=10)
    grid = figure.subplots(n_rows, n_columns, squeeze=False)
    for axes in grid.flat[len(drawn) :]:
        axes.set_axis_off()
    for axes, panel in zip(grid.flat, drawn, strict=False):
        _draw_panel(axes, panel, marks)
        axes.set_title(panel.title, loc="left", fontsize=12)
    return figure


def image(panel: Panel, marks: Sequence[Mapping[str, Any]] = ()) -> Markup:
    """Return a panel as an image to embed in an HTML page."""
    import matplotlib

    file = io.BytesIO()
    # Make the SVG of equal panels byte-identical.
    with matplotlib.rc_context({"svg.hashsalt": panel.kind, "font.size": 9}):
        figure = new_figure(WIDTH, 0.45 * WIDTH)
        _draw_panel(figure.add_subplot(), panel, marks)
        figure.savefig(file, format="svg", metadata={"Date": None})
    data = base64.b64encode(file.getvalue()).decode()
    words = f"{panel.title}: {panel.words}"
    return Markup(
        '<img class="chart" alt="{}" src="data:image/svg+xml;base64,{}">'
    ).format(words, data)  # fmt: skip


def _draw_panel(axes: Axes, panel: Panel, marks: Sequence[Mapping[str, Any]]) -> None:
    axis = panel.x
    places = [np.array(trace.columns["x"], float) for trace in panel.series]
    size, unit = _unit(places) if axis == "elapsed" else (1.0, "")
    for i, (trace, x) in enumerate(zip(panel.series, places, strict=True)):
        y, color = np.array(trace.columns["y"], float), LIGHT.lines[i % len(LIGHT.lines)]
        if panel.style == "bars":
            edges = [*x, trace.columns["right"][-1]]
            axes.stairs(np.nan_to_num(y), edges, fill=True, color=color, alpha=0.45)
        else:
            marker = "." if len(x) <= WIDTH * 5 else None
            axes.plot(x / size, y, color=color, linestyle=DASHES[i % len(DASHES)], marker=marker,
                      label=trace.name)  # fmt: skip
    if axis == "elapsed":
        # Restore the axis limits, because event marks must not widen the axis.
        low, high = axes.get_xlim()
        known = (mark[axis] / size for mark in marks if mark["kind"] != "checkpoint")
        for at in known:
            if low <= at <= high:
                axes.axvline(at, color=LIGHT.quiet, linewidth=0.9, linestyle=":")
        axes.set_xlim(low, high)
    axes.set_xlabel(f"{X_LABELS.get(axis, axis)}{unit}")
    axes.set_ylabel(panel.y)
    _style(axes, panel)


def _style(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import EngFormatter

    if panel.log_x:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_minor_formatter("")
    else:
        # Use few ticks, because labels of short times have many digits.
        axes.locator_params(axis="x", nbins=5)
    if panel.log and any(y is not None for trace in panel.series for y in trace.columns["y"]):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
    elif panel.from_zero:
        axes.set_ylim(bottom=0)
    if panel.numbers == "whole":
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.locator_params(axis="y", integer=True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color=LIGHT.rule, linewidth=0.8)
    if 1 < len(panel.series) <= MOST_NAMED:
        axes.legend(loc="upper right", frameon=False, fontsize=8)


def _unit(places: Sequence[NDArray[np.float64]]) -> tuple[float, str]:
    """Return the unit of a time axis: its length in milliseconds and its name."""
    most = max((float(np.nanmax(x)) for x in places if np.isfinite(x).any()), default=0.0)
    for size, unit in ((3.6e6, "hours"), (6e4, "minutes")):
        if most >= 3 * size:
            return size, f" ({unit})"
    return 1e3, " (seconds)"
