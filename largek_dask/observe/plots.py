"""Pictures of a fit, as matplotlib figures: no pyplot, no global state, no display needed.

Every function returns a ``matplotlib.figure.Figure``; ``figure.savefig(path)`` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.objective import INERTIA, Objective
from largek_dask.driver.history import gaps, sample_of
from largek_dask.errors import DataError, MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "codebook_figure",
    "cost_figure",
    "elbow_figure",
    "fit_figure",
    "path_figure",
    "sizes_figure",
]

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


def _draw_cost(
    axes: Axes,
    x: NDArray[np.float64],
    cost: NDArray[np.float64],
    on_sample: NDArray[np.bool_],
    objective: Objective,
    against: str,
    unit: str,
) -> None:
    # The cost on a sample is not that of all rows: no line leads from one to the other.
    cuts = np.flatnonzero(np.diff(on_sample)) + 1
    for piece in np.split(np.arange(len(cost)), cuts):
        sampled = bool(on_sample[piece[0]])
        axes.plot(
            x[piece],
            cost[piece],
            color=GREY if sampled else BLUE,
            linestyle="--" if sampled else "-",
            linewidth=1.8,
            marker="o",
            markersize=3.5,
            label="on a sample" if sampled else "on all rows",
        )
    if on_sample.any():
        named = dict(zip(*axes.get_legend_handles_labels()[::-1], strict=True))
        axes.legend(named.values(), named.keys(), frameon=False, labelcolor=INK)
    name = objective.of_step
    title = f"{name[:1].upper()}{name[1:]} against {against}"
    better = "" if objective.sense == "min" else ", more is better"
    _style(axes, title, unit, f"{name} ({objective.unit}){better}")
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 4))
    axes.annotate(
        f"{cost[-1]:.5g}",
        (x[-1], cost[-1]),
        xytext=(0, 10),
        textcoords="offset points",
        ha="right",
        color=INK,
    )


def _draw_costs(
    left: Axes,
    right: Axes,
    history: Sequence[Mapping[str, Any]],
    n_rows: int,
    objective: Objective,
) -> None:
    known = np.array([step["cost"] is not None for step in history], bool)
    if not known.any():
        raise DataError("there is nothing to draw: the fit has made no step yet, so wait for one")
    cost = np.array([float(step["cost"]) for step in history if step["cost"] is not None])
    seconds = np.array([float(step["seconds"]) for step in history])
    rows = [float(step["rows"]) for step in history]
    passes = np.cumsum(np.multiply(rows, gaps(history))) / n_rows
    sampled = np.array([sample_of(step, n_rows) is not None for step in history])[known]
    _draw_cost(left, seconds[known], cost, sampled, objective, "time", "seconds")
    _draw_cost(right, passes[known], cost, sampled, objective, "passes", "passes over the data")


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


def cost_figure(
    history: Sequence[Mapping[str, Any]], n_rows: int, objective: Objective = INERTIA
) -> Figure:
    """The objective (of k-means: the cost) against time and against passes over the data.

    Parameters
    ----------
    history : sequence of mappings
        One a step, with ``cost`` (None where it is not known), ``seconds`` since the start, and
        ``rows`` assigned in the step, as ``KMeans.history_`` holds them.
    n_rows : int
        Rows of the data: a pass assigns as many.
    objective : Objective
        What ``cost`` is of.

    Raises
    ------
    DataError
        The history is empty.
    """
    figure = _figure(11, 4)
    left, right = figure.subplots(1, 2)
    _draw_costs(left, right, history, n_rows, objective)
    return figure


def sizes_figure(counts: NDArray[np.float64]) -> Figure:
    """Weights of the clusters, sorted and as a histogram; ``counts`` is (k,)."""
    figure = _figure(11, 4)
    left, right = figure.subplots(1, 2)
    _draw_sizes(left, right, np.asarray(counts, float))
    return figure


def fit_figure(
    history: Sequence[Mapping[str, Any]],
    counts: NDArray[np.float64],
    n_rows: int,
    title: str,
    objective: Objective = INERTIA,
) -> Figure:
    """:func:`cost_figure` above :func:`sizes_figure`, with one title."""
    figure = _figure(11, 8)
    axes = figure.subplots(2, 2)
    figure.suptitle(title, fontsize=14, color=INK)
    _draw_costs(axes[0, 0], axes[0, 1], history, n_rows, objective)
    _draw_sizes(axes[1, 0], axes[1, 1], np.asarray(counts, float))
    return figure


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
