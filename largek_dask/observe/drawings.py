"""Charts of a report as SVG inside the page: they take the page's colours, and need no script.

Lines are drawn in a box that is stretched to whatever room there is; numbers and words beside it
are HTML, so that they have the same size on a telephone and on a wide screen. Every chart has a
title and a description, for whoever hears the page instead of seeing it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.observe.page import text

__all__ = ["Dots", "Line", "centers_chart", "lines_chart", "pieces_of", "sizes_chart"]

BOX = 1000.0
"""Side of the box that charts are drawn in."""
DECADES = 100.0
"""Values that differ by more than this factor are drawn on a logarithmic axis."""
MOST_POINTS = 400
"""Points of a line."""
MOST_NUMBERS = 40
"""Centres that show the number of their cluster, besides those that are told of."""
FILLED = 0.16
"""Share of the picture that circles of centres take together, if none is too small."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a chart."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    kind: str = ""
    """"part", "bound", one of several ("n1" to "n5"), or as is."""


@dataclass(frozen=True, slots=True)
class Dots:
    """Centres on a plane, and rows behind them."""

    centers: NDArray[np.float64]
    """(m, 2) those that are drawn."""
    weights: NDArray[np.float64]
    """(m,) what areas stand for."""
    names: Sequence[str]
    """What each is, in words."""
    numbers: Sequence[int]
    """Cluster of each, shown on the largest."""
    chosen: NDArray[np.bool_]
    """(m,) those that are told of elsewhere."""
    rows: NDArray[np.float64] | None
    """(n, 2)"""


@dataclass(frozen=True, slots=True)
class Axis:
    """Where values are in the box, from 0 to ``BOX``."""

    low: float
    high: float
    is_log: bool = False

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> Axis:
        """An axis for finite values; a logarithmic one where they are positive and far apart."""
        low, high = float(values.min()), float(values.max())
        if low > 0 and high > DECADES * low:
            return cls(math.log10(low) - 0.05, math.log10(high) + 0.05, True)
        margin = 0.06 * ((high - low) or abs(high) or 1.0)
        return cls(low - margin, high + margin)

    def at(self, values: Any) -> NDArray[np.float64]:
        """Where values are."""
        shown = np.asarray(values, float)
        if self.is_log:
            # 0 has no place on such an axis: it lies at the end.
            shown = np.log10(np.maximum(shown, 10.0**self.low))
        return BOX * (shown - self.low) / ((self.high - self.low) or 1.0)

    def ticks(self, most: int = 5) -> list[tuple[float, str]]:
        """Places and numbers beside the axis."""
        if self.is_log:
            first, last = math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9)
            step = max(1, -(-(last - first) // most))
            powers = range(first, last + 1, step)
            return [(float(self.at(10.0**p)), _short(10.0**p, 10.0**p)) for p in powers]
        rough = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(rough))
        size = next(s * power for s in (1, 2, 5, 10) if s * power >= rough)
        first = math.ceil(self.low / size - 1e-9)
        last = math.floor(self.high / size + 1e-9)
        return [(float(self.at(i * size)), _short(i * size, size)) for i in range(first, last + 1)]


def _short(value: float, step: float) -> str:
    """A number that tells it from its neighbours at this step, in few letters."""
    size, suffix = 1.0, ""
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")):  # noqa: B007
        if abs(value) >= (1e4 if size == 1e3 else size):
            break
    if value != 0 and abs(value) < 1e-4:
        return f"{value:.3g}"
    decimals = max(0, -math.floor(math.log10(step / size) + 1e-9))
    return f"{value / size:,.{min(decimals, 8)}f}{suffix}"


def _figure(body: str, *, y_name: str, x_name: str, key: str = "") -> str:
    """A box with the names of its axes, and what its lines mean."""
    return (
        f'<figure><div class="axis">{text(y_name)}</div>{body}'
        f'<div class="axis below">{text(x_name)}</div>{key}</figure>'
    )


def _plot(parts: Iterable[str], told: str, numbers: str, height: int) -> str:
    """A box that is stretched, ``height`` pixels high, with numbers beside it."""
    return (
        f'<div class="plot" style="height:{height}px"><svg viewBox="0 0 {BOX:g} {BOX:g}" '
        f'preserveAspectRatio="none" role="img" aria-label="{text(told)}">{"".join(parts)}</svg>'
        f"{numbers}</div>"
    )


def _grid(axis: Axis) -> str:
    """Lines at the ticks of the upright axis."""
    lines = "".join(f"M0 {BOX - place:.1f}H{BOX:g}" for place, _ in axis.ticks())
    return f'<path class="grid" d="{lines}"/>'


def _numbers(x_ticks: Iterable[tuple[float, str]], y_axis: Axis) -> str:
    """Numbers beside a box."""
    return "".join(
        f'<span class="x" aria-hidden="true" style="left:{place / 10:.2f}%">{word}</span>'
        for place, word in x_ticks
    ) + "".join(
        f'<span class="y" aria-hidden="true" style="top:{(BOX - place) / 10:.2f}%">{word}</span>'
        for place, word in y_axis.ticks()
    )


def _mark(x: float, y: float, words: str) -> str:
    """Words above and left of a place in the box."""
    return (
        f'<span class="mark" aria-hidden="true" style="left:{x / 10:.2f}%;'
        f'top:{(BOX - y) / 10:.2f}%">{text(words)}</span>'
    )


def _path(x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
    """A line through points of the box, whose y grows upwards."""
    return "M" + "L".join(f"{a:.1f} {BOX - b:.1f}" for a, b in zip(x, y, strict=True))


def _thin(line: Line) -> Line:
    """At most ``MOST_POINTS`` points, with the first and the last."""
    n = len(line.x)
    if n <= MOST_POINTS:
        return line
    places = np.linspace(0, n - 1, MOST_POINTS).astype(int)
    return Line(line.x[places], line.y[places], line.kind)


def pieces_of(
    x: NDArray[np.float64], y: NDArray[np.float64]
) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """The stretches of a line that is interrupted where a value is NaN."""
    known = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    cuts = np.flatnonzero(np.diff(known) > 1) + 1
    return [(x[piece], y[piece]) for piece in np.split(known, cuts) if len(piece)]


def lines_chart(
    lines: Sequence[Line],
    told: str,
    *,
    x_name: str,
    y_name: str,
    key: Mapping[str, str] | None = None,
    mark: tuple[float, float, str] | None = None,
    whole: bool = False,
    events: Sequence[float] = (),
) -> str:
    """Lines over one another.

    Parameters
    ----------
    lines : sequence of Line
        With one point or more each.
    told : str
        What is to be seen, in words.
    x_name, y_name : str
    key : mapping, optional
        What kinds of lines mean.
    mark : (x, y, words), optional
        A point with words at it.
    whole : bool
        Only whole numbers are marked on the level axis.
    events : sequence of float
        Where on the level axis something happened: dotted lines, which widen no axis.
    """
    last = max(float(line.x.max()) for line in lines)
    if whole:
        x_axis, step = Axis(0.5, last + 0.5), _whole_step(int(last))
        ticks = [(float(x_axis.at(n)), f"{n:,}") for n in range(step, int(last) + 1, step)]
    else:
        # Nothing is to be seen of the time before the first of them.
        first = min(float(line.x.min()) for line in lines)
        begin = first - 0.03 * (last - first) if 0.3 * last < first < last else 0.0
        x_axis = Axis(begin, last + 0.03 * (last - begin) or 1.0)
        ticks = x_axis.ticks(6)
    y_axis = Axis.of(np.concatenate([line.y for line in lines]))
    parts = [_grid(y_axis)]
    places = [place for place in map(float, x_axis.at(events)) if 0 <= place <= BOX]
    if places:
        drawn = "".join(f"M{place:.1f} 0V{BOX:g}" for place in places)
        parts.append(f'<path class="event" d="{drawn}"/>')
    for line in map(_thin, lines):
        x, y = x_axis.at(line.x), y_axis.at(line.y)
        # A point alone is a line of no length, which round ends make a dot.
        drawn, wide = (_path(x, y), "") if len(x) > 1 else (f"{_path(x, y)}h0", " dot")
        parts.append(f'<path class="line {line.kind}{wide}" d="{drawn}"/>')
    numbers = _numbers(ticks, y_axis)
    if mark is not None:
        at = float(x_axis.at(mark[0])), float(y_axis.at(mark[1]))
        parts.append(f'<path class="line dot" d="M{at[0]:.1f} {BOX - at[1]:.1f}h0"/>')
        numbers += _mark(*at, mark[2]) if mark[2] else ""
    shown = "".join(
        f'<li><svg viewBox="0 0 26 10" aria-hidden="true"><path class="line {kind}" d="M2 5H24"/>'
        f"</svg>{text(words)}</li>"
        for kind, words in (key or {}).items()
    )
    keys = f'<ul class="key">{shown}</ul>' if shown else ""
    return _figure(_plot(parts, told, numbers, 240), y_name=y_name, x_name=x_name, key=keys)


def sizes_chart(counts: NDArray[np.float64], told: str) -> str:
    """Weights of clusters, sorted, with their mean; one or more is above 0."""
    ordered = np.sort(counts)[::-1]
    k = len(ordered)
    places = np.unique(np.linspace(0, k - 1, min(k, MOST_POINTS)).astype(int))
    # Each cluster is as wide as the others: from half before its rank to half behind.
    x_axis = Axis(0.5, k + 0.5)
    positive = ordered[ordered > 0]
    y_axis = (
        Axis(math.log10(positive[-1]) - 0.1, math.log10(positive[0]) + 0.05, True)
        if positive[0] > DECADES * positive[-1]
        else Axis(0.0, 1.06 * float(positive[0]))
    )
    edges = np.concatenate([[0.5], places[1:] + 0.5, [k + 0.5]])
    x, y = x_axis.at(np.repeat(edges, 2)[1:-1]), y_axis.at(np.repeat(ordered[places], 2))
    outline, mean = _path(x, y), float(counts.mean())
    at = float(y_axis.at(mean))
    parts = (
        _grid(y_axis),
        f'<path class="area" d="{outline}L{BOX:g} {BOX:g}L0 {BOX:g}Z"/>',
        f'<path class="edge" d="{outline}"/>',
        f'<path class="mean" d="M0 {BOX - at:.1f}H{BOX:g}"/>',
    )
    ranks = sorted({1, *range(0, k + 1, _whole_step(k))} - {0})
    ticks = [(float(x_axis.at(rank)), f"{rank:,}") for rank in ranks]
    numbers = _numbers(ticks, y_axis) + _mark(BOX, at, f"mean {mean:,.4g}")
    body = _plot(parts, told, numbers, 220)
    return _figure(body, y_name="weight of its rows", x_name="rank of the cluster")


def _whole_step(n: int, most: int = 6) -> int:
    """The step of at most ``most`` whole numbers up to ``n``: 1, 2 or 5 times a power of ten."""
    power = 1
    while True:
        for step in (power, 2 * power, 5 * power):
            if n <= most * step:
                return step
        power *= 10


def centers_chart(dots: Dots, told: str, *, x_name: str, y_name: str) -> str:
    """Centres on a plane, their areas by weight, with rows behind them; both axes in one scale."""
    seen = dots.centers if dots.rows is None else np.concatenate([dots.centers, dots.rows])
    # Few rows far out would leave no room for the others.
    low, high = (
        np.quantile(seen, (0.002, 0.998), axis=0)
        if dots.rows is not None
        else (seen.min(axis=0), seen.max(axis=0))
    )
    low = np.minimum(low, dots.centers.min(axis=0))
    high = np.maximum(high, dots.centers.max(axis=0))
    spread = high - low
    # Where all lie in one place any width does.
    width = 1.12 * float(max(spread[0], 1.1 * spread[1])) or 1.0
    height = float(np.clip(1.12 * spread[1], 0.5 * width, width))
    middle, scale = (low + high) / 2, BOX / width
    tall = height * scale

    def places(points: NDArray[np.float64]) -> NDArray[np.float64]:
        moved = (points - middle) * (scale, -scale) + (BOX / 2, tall / 2)
        return np.asarray(moved)

    parts = [f'<rect class="frame" width="{BOX:g}" height="{tall:.1f}"/>']
    if dots.rows is not None:
        inside = places(dots.rows)
        inside = inside[((inside >= 0) & (inside <= (BOX, tall))).all(axis=1)]
        marks = "".join(f"M{x:.0f} {y:.0f}h0" for x, y in inside)
        parts.append(f'<path class="rows" d="{marks}"/>')
    factor = math.sqrt(FILLED * BOX * tall / (math.pi * math.fsum(dots.weights)))
    radii = np.clip(factor * np.sqrt(dots.weights), 2.5, 0.09 * BOX)
    # The small ones over the large ones, and those that are told of over all.
    for i in np.lexsort((-dots.weights, dots.chosen)):
        x, y = places(dots.centers[i])
        kind = "center chosen" if dots.chosen[i] else "center"
        parts.append(
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{radii[i]:.1f}">'
            f"<title>{text(dots.names[i])}</title></circle>"
        )
    numbered = set(np.argsort(-dots.weights, kind="stable")[:MOST_NUMBERS].tolist())
    for i in numbered | set(np.flatnonzero(dots.chosen).tolist()):
        x, y = places(dots.centers[i])
        parts.append(f'<text class="number" x="{x:.1f}" y="{y:.1f}">{dots.numbers[i]}</text>')
    body = (
        f'<div class="plane"><svg viewBox="0 0 {BOX:g} {tall:.1f}" role="img" '
        f'aria-label="{text(told)}">{"".join(parts)}</svg></div>'
    )
    return (
        f'<figure><div class="axis">{text(y_name)} ↑</div>{body}'
        f'<div class="axis below">{text(x_name)} →</div></figure>'
    )
