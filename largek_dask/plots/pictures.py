"""Panels drawn by matplotlib, as figures or as SVG for a page; pyplot is not used.

:func:`draw` returns a ``matplotlib.figure.Figure``; ``figure.savefig(path)`` writes it.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from largek_dask.errors import DataError, MissingDependencyError
from largek_dask.plots.panels import Panel
from largek_dask.plots.theme import DASHES, MOST_NAMED, THEMES, X_LABELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "has_matplotlib", "new_figure", "svg"]

NOTHING = "there is nothing to draw: the fit has made no step yet, so wait for one"
LIGHT = THEMES["light"]
LINE_STYLES = {"solid": "-", "dashed": "--", "dotted": ":", "dotdash": "-.",
               "dashdot": (0, (6, 2, 1, 2, 1, 2))}  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "h", "P")
POINTS_PER_PIXEL = 0.7
WIDTH = 4.8
"""Width of a chart on a page, in inches; text is readable on a telephone."""
WORDS_WIDTH = 120
"""Characters of a line below a figure."""


def has_matplotlib() -> bool:
    """Whether matplotlib can be imported."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; sizes in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "pictures need matplotlib: pip install 'largek_dask[plots]'"
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
    """Draw the panels that have series.

    ``marks`` are events on axes of time, and ``words`` a text below the figure.

    Raises
    ------
    MissingDependencyError
        matplotlib is not installed.
    DataError
        No panel has a series.
    """
    drawn = [panel for panel in panels if panel.series]
    if not drawn:
        raise DataError(NOTHING)
    n_rows = -(-len(drawn) // n_columns)
    figure = new_figure(11, 3.2 * n_rows + 0.4 * bool(title))
    figure.suptitle(title, fontsize=14, color=LIGHT.ink)
    figure.supxlabel(fill(words, WORDS_WIDTH), fontsize=10, color=LIGHT.ink)
    grid = figure.subplots(n_rows, n_columns, squeeze=False)
    for axes in grid.flat[len(drawn) :]:
        axes.set_axis_off()
    for axes, panel in zip(grid.flat, drawn, strict=False):
        _draw_panel(axes, panel, marks)
        axes.set_title(panel.title, loc="left", fontsize=12, color=LIGHT.ink)
    return figure


def svg(panel: Panel, marks: Sequence[Mapping[str, Any]] = ()) -> Markup:
    """Return a panel as SVG for a page, whose style sheet gives its colours."""
    import matplotlib

    # Text stays text, and equal panels give equal bytes.
    settings = {"svg.fonttype": "none", "svg.hashsalt": panel.kind,
                "path.simplify": False, "font.size": 9}  # fmt: skip
    file = io.StringIO()
    with matplotlib.rc_context(settings):
        figure = new_figure(WIDTH, 0.45 * WIDTH)
        _draw_panel(figure.add_subplot(), panel, marks)
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    body = file.getvalue().partition("<svg")[2].partition(">")[2].rpartition("</svg>")[0]
    body = re.sub(r"<(metadata|style)\b.*?</\1>|<!--.*?-->", "", body, flags=re.S)
    body = re.sub(r"\s*(<[^>]*>)\s*", _short_tag, body)
    names = ("paper", "ink", "quiet", "rule")
    colors = {name: getattr(LIGHT, name) for name in names}
    colors |= {f"line{i}": color for i, color in enumerate(LIGHT.lines)}
    for name, color in colors.items():
        body = body.replace(color, f"var(--{name})")
    width, height = 72 * figure.get_size_inches()
    return Markup(
        f'<svg class="chart" viewBox="0 0 {width:g} {height:g}" role="img">'
        f"<title>{escape(panel.title)}</title><desc>{escape(panel.words)}</desc>{body}</svg>"
    )


def _short_tag(tag: re.Match[str]) -> str:
    """Remove fonts, line breaks, digits, and ids that nothing refers to."""
    text = re.sub(r"\s+", " ", tag[1])
    text = re.sub(r' id="[a-z_.]+_\d+"|font-family: [^;"]*;? ?', "", text)
    return re.sub(r"(\d\.\d)\d+", r"\1", text)


def _draw_panel(axes: Axes, panel: Panel, marks: Sequence[Mapping[str, Any]]) -> None:
    axis = panel.x
    places = [_floats(trace.columns["x"]) for trace in panel.series]
    size, unit = _unit(places) if axis == "elapsed" else (1.0, "")
    for i, (trace, x) in enumerate(zip(panel.series, places, strict=True)):
        columns = {name: _floats(values) for name, values in trace.columns.items()
                   if name in ("y", "mark", "right")}  # fmt: skip
        _draw_trace(axes, panel.style, trace.name, i, x / size, columns)
    if axis == "elapsed":
        # Marks do not widen the axis.
        low, high = axes.get_xlim()
        known = (mark["elapsed"] / size for mark in marks if mark["kind"] != "checkpoint")
        for at in known:
            if low <= at <= high:
                axes.axvline(at, color=LIGHT.quiet, linewidth=0.9, linestyle=":")
        axes.set_xlim(low, high)
    axes.set_xlabel(f"{X_LABELS.get(axis, axis)}{unit}", color=LIGHT.ink)
    axes.set_ylabel(panel.y, color=LIGHT.ink)
    _style(axes, panel)


def _draw_trace(
    axes: Axes, style: str, name: str, i: int, x: NDArray[np.float64], columns: Mapping[str, Any]
) -> None:
    y, mark = columns["y"], columns["mark"] * POINTS_PER_PIXEL
    color = LIGHT.lines[i % len(LIGHT.lines)]
    if style == "bars":
        edges = np.append(x, columns["right"][-1:])
        axes.stairs(np.nan_to_num(y), edges, fill=True, color=color, alpha=0.45)
        return
    axes.plot(
        x,
        y,
        color=color,
        linestyle=LINE_STYLES[DASHES[i % len(DASHES)]],
        linewidth=1.8 if i == 0 else 1.3,
        drawstyle="steps-post" if style == "steps" else "default",
        marker=MARKERS[i % len(MARKERS)],
        markevery=np.flatnonzero(mark).tolist(),
        markersize=max(mark, default=0),
        markerfacecolor=LIGHT.paper if i % 2 else color,
        label=name,
    )


def _style(axes: Axes, panel: Panel) -> None:
    """Set scales, ticks, grid and legend."""
    from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

    has_values = any(y is not None for trace in panel.series for y in trace.columns["y"])
    if panel.log_x:
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        if high < 10 * low:
            axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_minor_formatter("")
    formatters = {"whole": EngFormatter(sep=""), "share": PercentFormatter(1.0)}
    if panel.log and has_values:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
    elif panel.from_zero:
        axes.set_ylim(bottom=0)
    if panel.numbers in formatters and not panel.log:
        axes.yaxis.set_major_formatter(formatters[panel.numbers])
        axes.locator_params(axis="y", integer=panel.numbers == "whole")
    for spine in axes.spines.values():
        spine.set_color(LIGHT.quiet)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(which="both", color=LIGHT.quiet, labelcolor=LIGHT.quiet)
    axes.grid(visible=True, color=LIGHT.rule, linewidth=0.8)
    axes.set_axisbelow(True)
    if 1 < len(panel.series) <= MOST_NAMED:
        axes.legend(loc="upper right", frameon=False, labelcolor=LIGHT.ink, fontsize=8)


def _floats(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([math.nan if value is None else value for value in values], float)


def _unit(places: Sequence[NDArray[np.float64]]) -> tuple[float, str]:
    """Return the unit of a time axis in ms, and its name."""
    most = max((float(np.nanmax(x)) for x in places if np.isfinite(x).any()), default=0.0)
    for size, unit in ((3.6e6, "hours"), (6e4, "minutes")):
        if most >= 3 * size:
            return size, f" ({unit})"
    return 1e3, " (seconds)"
