"""Pictures of a fit, as matplotlib figures: no pyplot, no global state, no display needed.

Every function returns a ``matplotlib.figure.Figure``; ``figure.savefig(path)`` writes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.objective import INERTIA
from largek_dask.driver.formatting import human_bytes, human_count, human_seconds
from largek_dask.errors import DataError, MissingDependencyError
from largek_dask.observe.looks import (
    DASHES,
    LOOKS,
    THEMES,
    UNITS,
    X_LABELS,
    Look,
    round_ticks,
    time_unit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "codebook_figure",
    "elbow_figure",
    "panels_figure",
    "path_figure",
]

LIGHT = THEMES["light"]
COLUMNS = 2
"""Panels beside each other."""
MOST_NAMED = 10
"""Lines of a panel up to which each is named."""
LINE_STYLES = {"solid": "-", "dashed": "--", "dotted": ":", "dotdash": "-.",
               "dashdot": (0, (6, 2, 1, 2, 1, 2))}  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "h", "P")
NUMBERS: dict[str, Callable[[float, Any], str]] = {
    "whole": lambda value, _: human_count(value) if value >= 1000 else f"{value:,g}",
    "share": lambda value, _: f"{100 * value:g} %",
    "bytes": lambda value, _: human_bytes(value),
    "seconds": lambda value, _: human_seconds(max(0.0, value)),
}
"""Texts beside the upright axis, by kind of number."""
INK = "#1f2933"
BLUE = "#2563eb"
ORANGE = "#ea580c"
GREEN = "#15803d"
GREY = "#6b7280"
DECADES = 100.0
"""Objectives that differ by more than this factor are drawn on a logarithmic axis."""
MOST_MARKED = 60
"""Partitions up to which each has a mark of its own."""
WORDS_WIDTH = 120
"""Characters of a line below a picture."""
MOST_TICKS = 20
"""Partitions up to which each has its number on the axis."""


def _figure(width: float, height: float) -> Figure:
    """An empty figure, inches."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "pictures need matplotlib: pip install 'largek_dask[plots]'"
        ) from error
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _style(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", fontsize=12, color=INK)
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)


def _draw_sizes(left: Axes, right: Axes, counts: NDArray[np.float64]) -> None:
    ordered = np.sort(counts)[::-1]
    rank = np.arange(1, len(ordered) + 1)
    left.fill_between(rank, ordered, step="mid", color=ORANGE, alpha=0.25, linewidth=0)
    left.plot(rank, ordered, color=ORANGE, linewidth=1.8, drawstyle="steps-mid")
    left.axhline(ordered.mean(), color=INK, linewidth=0.9, linestyle="--")
    left.annotate(
        f"mean {ordered.mean():.4g}",
        (len(ordered), ordered.mean()),
        xytext=(0, 4),
        textcoords="offset points",
        ha="right",
        color=INK,
    )
    left.set_ylim(bottom=0)
    _style(left, "Cluster sizes, sorted", "rank of the cluster", "weight of its rows")
    n_empty = int(np.count_nonzero(ordered == 0))
    n_bins = int(np.clip(np.sqrt(len(ordered)) * 1.5, 5, 60))
    right.hist(ordered, bins=n_bins, color=ORANGE, edgecolor="white", linewidth=0.6)
    title = "Histogram of cluster sizes" + (f" ({n_empty} empty)" if n_empty else "")
    _style(right, title, "weight of a cluster's rows", "clusters")


def panels_figure(answer: Mapping[str, Any], title: str = "") -> Figure:
    """The panels of a snapshot that have lines, two in a row; the cost also against passes.

    Parameters
    ----------
    answer : mapping
        Of ``observe.snapshot``.
    title : str
        Above all.

    Raises
    ------
    DataError
        No panel has a line.
    """
    drawn = [(panel, panel["x"]) for panel in answer["panels"] if panel["series"]]
    if not drawn:
        raise DataError("there is nothing to draw: the fit has made no step yet, so wait for one")
    drawn[1:1] = [(panel, "passes") for panel, _ in drawn[:1] if "passes" in panel["axes"]]
    n_rows = -(-len(drawn) // COLUMNS)
    figure = _figure(11, 3.2 * n_rows + (0.4 if title else 0.0))
    if title:
        figure.suptitle(title, fontsize=14, color=INK)
    grid = figure.subplots(n_rows, COLUMNS, squeeze=False)
    for axes in grid.flat[len(drawn) :]:
        axes.set_axis_off()
    for axes, (panel, axis) in zip(grid.flat, drawn, strict=False):
        _draw_panel(axes, panel, axis, answer["marks"])
    return figure


def _draw_panel(
    axes: Axes, panel: Mapping[str, Any], axis: str, marks: Sequence[Mapping[str, Any]]
) -> None:
    look = LOOKS.get(panel["kind"], Look())
    column = "x" if axis == panel["x"] else axis
    places = [_floats(series[column]) for series in panel["series"]]
    size, unit = _unit(places, axis)
    for i, (series, x) in enumerate(zip(panel["series"], places, strict=True)):
        _draw_line(axes, series, x / size, look, i)
    # What happened does not widen the axis.
    low, high = axes.get_xlim()
    for mark in marks if axis in ("elapsed", "time", "passes") else ():
        at = math.nan if mark[axis] is None else mark[axis] / size
        if mark["kind"] != "checkpoint" and low <= at <= high:
            axes.axvline(at, color=GREY, linewidth=0.9, linestyle=":")
    axes.set_xlim(low, high)
    title = panel["title"]
    if len(panel["axes"]) > 1:
        title = f"{title} against {'time' if axis == 'elapsed' else axis}"
    _style(axes, title, f"{X_LABELS.get(axis, axis)}{unit}", panel["y"])
    if look.bars:
        axes.set_xscale("log")
    else:
        axes.locator_params(axis="x", nbins=7)
    _style_values(axes, panel, look)
    if 1 < len(panel["series"]) <= MOST_NAMED:
        axes.legend(frameon=False, labelcolor=INK, fontsize=8)
    elif axis in ("elapsed", "passes"):
        _tell_last(axes, panel["series"][0], places[0] / size, look)


def _style_values(axes: Axes, panel: Mapping[str, Any], look: Look) -> None:
    """The upright axis: its scale, and numbers that are round in their unit."""
    from matplotlib.ticker import LogLocator

    is_log = panel["log"] and any(y is not None for line in panel["series"] for y in line["y"])
    if is_log:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        if high < 1e3 * low:
            locator: Any = LogLocator
            axes.yaxis.set_major_locator(locator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_formatter("")
    elif look.from_zero:
        axes.set_ylim(bottom=0)
        if look.numbers in UNITS:
            axes.set_yticks(round_ticks(look.numbers, axes.get_ylim()[1]))
    if look.numbers == "whole" and not is_log:
        axes.locator_params(axis="y", integer=True)
    if look.numbers in NUMBERS:
        axes.yaxis.set_major_formatter(NUMBERS[look.numbers])
    elif not is_log:
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 5))


def _draw_line(
    axes: Axes, series: Mapping[str, Any], x: NDArray[np.float64], look: Look, i: int
) -> None:
    y, color = _floats(series["y"]), LIGHT.lines[i % len(LIGHT.lines)]
    if look.bars:
        edges = np.append(x, series["right"][-1:])
        axes.stairs(np.nan_to_num(y), edges, fill=True, color=color, alpha=0.45)
        return
    axes.plot(
        x,
        y,
        color=color,
        linestyle=LINE_STYLES[DASHES[i % len(DASHES)]],
        linewidth=1.8 if i == 0 else 1.3,
        drawstyle="steps-post" if look.steps else "default",
        marker=MARKERS[i % len(MARKERS)],
        markevery=np.flatnonzero(series["mark"]).tolist(),
        markersize=4.5,
        markerfacecolor="white" if i % 2 else color,
        label=series["name"],
    )


def _tell_last(axes: Axes, series: Mapping[str, Any], x: NDArray[np.float64], look: Look) -> None:
    """Write the last value at its point."""
    y = _floats(series["y"])
    known = np.flatnonzero(np.isfinite(y) & np.isfinite(x))
    words = NUMBERS.get(look.numbers, _five)
    if len(known):
        axes.annotate(
            words(y[known[-1]], None),
            (x[known[-1]], y[known[-1]]),
            xytext=(0, 8),
            textcoords="offset points",
            ha="right",
            color=INK,
            fontsize=9,
        )


def _five(value: float, _: Any) -> str:
    return f"{value:.5g}"


def _floats(values: Sequence[float | None]) -> NDArray[np.float64]:
    return np.array([math.nan if value is None else value for value in values], float)


def _unit(places: Sequence[NDArray[np.float64]], axis: str) -> tuple[float, str]:
    """What an axis is divided by, and how its unit is written."""
    if axis != "elapsed":
        return 1.0, ""
    known = [float(np.nanmax(x)) for x in places if np.isfinite(x).any()]
    size, unit = time_unit(max(known, default=0.0))
    return size, f" ({unit})"


def path_figure(
    inertia: NDArray[np.float64],
    lower_bound: NDArray[np.float64],
    counts: NDArray[np.float64],
    title: str,
    *,
    suggested: int | None,
    clear: bool,
) -> Figure:
    """The elbow of a fit of all partitions, above the cluster sizes of the last one.

    Parameters
    ----------
    inertia : (k,) float64
        Of the partitions into 1 to k clusters.
    lower_bound : (k,) float64
        What no such partition falls below: drawn beneath, with what is between them shaded.
    counts : (k,) float64
        Weights of the clusters of the last partition.
    title : str
        Above all.
    suggested : int or None
        The number of clusters to mark, if one stands out.
    clear : bool
        Whether it is more than the least that there are: it is not where the curve ends there.
    """
    figure = _figure(11, 9)
    figure.suptitle(title, fontsize=14, color=INK)
    grid = figure.add_gridspec(2, 2, height_ratios=[1.35, 1])
    _draw_path(figure.add_subplot(grid[0, :]), inertia, lower_bound, suggested, clear)
    left, right = figure.add_subplot(grid[1, 0]), figure.add_subplot(grid[1, 1])
    _draw_sizes(left, right, np.asarray(counts, float))
    left.set_title(f"Sizes of {len(counts):,} clusters, sorted", loc="left", fontsize=12, color=INK)
    return figure


def _draw_path(
    axes: Axes,
    inertia: NDArray[np.float64],
    lower_bound: NDArray[np.float64],
    suggested: int | None,
    clear: bool,
) -> None:
    n_clusters = np.arange(1, len(inertia) + 1)
    positive = inertia[inertia > 0]
    is_log = len(positive) > 0 and bool(positive.max() > DECADES * positive.min())
    bottom = 0.5 * float(positive.min()) if is_log else 0.0
    # 0 has no place on a logarithmic axis: it lies below what is shown, and lines lead there.
    found, bound = (np.maximum(values, bottom / 2) for values in (inertia, lower_bound))
    axes.fill_between(n_clusters, bound, found, color=ORANGE, alpha=0.15, linewidth=0)
    axes.plot(n_clusters, bound, color=ORANGE, linewidth=1.4, linestyle="--", label="lower bound")
    marker = "o" if len(inertia) <= MOST_MARKED else None
    axes.plot(
        n_clusters, found, color=BLUE, linewidth=1.8, marker=marker, markersize=3.5, label="found"
    )
    if suggested is None:
        axes.plot([], [], linestyle="none", label="no clear number of clusters")
    else:
        height = max(float(inertia[suggested - 1]), bottom)
        axes.vlines(suggested, bottom, height, color=GREEN, linewidth=0.9, linestyle=":")
        axes.plot(
            [suggested],
            [height],
            linestyle="none",
            marker="o",
            markersize=11,
            markerfacecolor="none",
            markeredgecolor=GREEN,
            markeredgewidth=1.8,
            clip_on=False,
            label=f"suggested: {suggested:,} clusters" + ("" if clear else " or more"),
        )
    _style(axes, "Inertia against number of clusters", "clusters", f"inertia ({INERTIA.unit})")
    axes.set_xlim(0.5, len(inertia) + max(0.5, 0.02 * len(inertia)))
    if len(inertia) <= MOST_TICKS:
        axes.set_xticks(n_clusters)
    if is_log:
        axes.set_yscale("log")
        axes.set_ylim(bottom=bottom)
    else:
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 4))
        axes.set_ylim(0, 1.06 * float(found.max()) or 1.0)
    # The curve falls, so there is room.
    axes.legend(loc="upper right", frameon=False, labelcolor=INK)


def elbow_figure(
    n_clusters: NDArray[np.int64],
    inertia: NDArray[np.float64],
    errors: NDArray[np.float64],
    stability: NDArray[np.float64],
    title: str,
    *,
    stable: float,
    suggested: int | None,
    between: tuple[int, int] | None,
    clear: bool,
    words: str,
) -> Figure:
    """The elbow of partitions into some numbers of clusters, above how far halves agree on them.

    Parameters
    ----------
    n_clusters : (m,) int64
        Numbers of clusters, ascending.
    inertia, errors : (m,) float64
        Of the partitions, and their standard errors: two of them are shaded to both sides.
    stability : (m,) float64
        Adjusted Rand index between two halves of the rows; NaN where it is not known.
    title : str
        Above all.
    stable : float
        The stability from which halves are said to agree.
    suggested : int or None
        The number of clusters to mark, if one stands out.
    between : (int, int) or None
        How uncertain it is: shaded.
    clear : bool
        Whether it is more than the least that there are: it is not where the curve ends there.
    words : str
        The decision, below all.
    """
    figure = _figure(11, 8)
    figure.suptitle(title, fontsize=14, color=INK)
    grid = figure.add_gridspec(2, 1, height_ratios=[1.6, 1])
    upper = figure.add_subplot(grid[0])
    lower = figure.add_subplot(grid[1], sharex=upper)
    _draw_elbow(upper, n_clusters, inertia, errors)
    _draw_stability(lower, n_clusters, stability, stable)
    more = "" if clear else " or more"
    _mark_suggested(upper, lower, n_clusters, inertia, suggested, between, more)
    if n_clusters[-1] > MOST_TICKS:
        lower.set_xscale("log", base=2)
        lower.xaxis.set_major_formatter("{x:,.0f}")
    else:
        lower.set_xticks(n_clusters)
    figure.supxlabel("\n".join(wrap(words, WORDS_WIDTH)), fontsize=10, color=INK)
    return figure


def _draw_elbow(
    axes: Axes,
    n_clusters: NDArray[np.int64],
    inertia: NDArray[np.float64],
    errors: NDArray[np.float64],
) -> None:
    marker = "o" if len(inertia) <= MOST_MARKED else None
    spread = 2 * errors
    axes.fill_between(n_clusters, inertia - spread, inertia + spread, color=BLUE, alpha=0.2)
    axes.plot(n_clusters, inertia, color=BLUE, linewidth=1.8, marker=marker, markersize=3.5)
    _style(axes, "Inertia against number of clusters", "", f"inertia ({INERTIA.unit})")
    positive = inertia > 0
    if positive.any() and inertia.max() > DECADES * inertia[positive].min():
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, 1.06 * float(inertia.max()) or 1.0)
        axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 4))


def _draw_stability(
    axes: Axes, n_clusters: NDArray[np.int64], stability: NDArray[np.float64], stable: float
) -> None:
    known = ~np.isnan(stability)
    marker = "o" if len(stability) <= MOST_MARKED else None
    found = n_clusters[known], stability[known]
    axes.plot(*found, color=ORANGE, linewidth=1.8, marker=marker, markersize=3.5)
    axes.axhline(stable, color=INK, linewidth=0.9, linestyle="--")
    axes.annotate(
        f"halves agree: {stable:g} or more",
        (1, stable),
        xycoords=("axes fraction", "data"),
        xytext=(0, 4),
        textcoords="offset points",
        ha="right",
        color=INK,
    )
    _style(axes, "How far two halves of the rows agree", "clusters", "adjusted Rand index")
    axes.set_ylim(float(np.min(stability[known], initial=0.0)), 1.12)


def _mark_suggested(
    upper: Axes,
    lower: Axes,
    n_clusters: NDArray[np.int64],
    inertia: NDArray[np.float64],
    suggested: int | None,
    between: tuple[int, int] | None,
    more: str,
) -> None:
    """Mark the number of clusters that is suggested, and shade what it may be as well."""
    if suggested is None or between is None:
        upper.plot([], [], linestyle="none", label="no clear number of clusters")
    else:
        at = int(np.flatnonzero(n_clusters == suggested)[0])
        for axes in (upper, lower):
            axes.axvspan(between[0], between[1], color=GREEN, alpha=0.15, linewidth=1.2)
        least, most = between
        range_ = f"{suggested:,}" if least == most else f"{suggested:,} ({least:,} to {most:,})"
        upper.plot(
            [suggested],
            [inertia[at]],
            linestyle="none",
            marker="o",
            markersize=11,
            markerfacecolor="none",
            markeredgecolor=GREEN,
            markeredgewidth=1.8,
            label=f"suggested: {range_} clusters{more}",
        )
        lower.axvline(suggested, color=GREEN, linewidth=0.9, linestyle=":")
    # The curve falls, so there is room.
    upper.legend(loc="upper right", frameon=False, labelcolor=INK)


def codebook_figure(
    sheet: NDArray[np.uint8],
    pairs: Sequence[tuple[str, NDArray[np.uint8], NDArray[np.uint8], float]],
    title: str,
) -> Figure:
    """A sheet of codewords beside photographs and what the codewords make of them.

    Parameters
    ----------
    sheet : (h, w, 3) uint8
        The codewords.
    pairs : sequence of (name, original, rebuilt, psnr)
        Images are (h, w, 3) uint8; PSNR in dB.
    title : str
        Above all.
    """
    n = len(pairs)
    figure = _figure(16, 1.0 + 3.4 * n)
    figure.suptitle(title, fontsize=17, color=INK)
    grid = figure.add_gridspec(n, 3, width_ratios=[1.32, 1, 1])
    axes = figure.add_subplot(grid[:, 0])
    axes.imshow(sheet, interpolation="nearest")
    axes.set_title("The codewords, most used first", fontsize=13, color=INK)
    axes.set_anchor("N")
    axes.set_axis_off()
    for row, (name, original, rebuilt, decibel) in enumerate(pairs):
        for column, (image, caption) in enumerate(
            ((original, f"{name}: the photograph"), (rebuilt, f"rebuilt, PSNR {decibel:.1f} dB"))
        ):
            axes = figure.add_subplot(grid[row, 1 + column])
            axes.imshow(image, interpolation="lanczos")
            axes.set_title(caption, fontsize=13, color=INK)
            axes.set_axis_off()
    return figure
