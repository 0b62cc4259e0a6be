"""Make panels (data of charts and tables) from the :class:`JobView` of a job.

:func:`panels` returns all panels that have data. ``plots.figures`` draws panels with Bokeh, and
``plots.pictures`` draws panels with matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.driver.events import is_number
from largek_dask.driver.formatting import human_count
from largek_dask.driver.job_view import CurveKey, JobView, Point, Points, Series, X, Y, number_in
from largek_dask.plots.job_text import figure, precise, shown, whole

HOUR, TENTH = 3600.0, 0.1
FINE = 20_000
"""Number of distinct positions on an axis; more than a screen has pixels."""
MOST_POINTS = 128
"""Maximum number of points in a line, not counting the last point."""
EXTREMES = ("", "last", "lowest", "highest")
"""Column headings in the table of a line chart."""
MOST_ROWS = 100
"""Maximum number of rows in a table."""

Words = Callable[[float], str]
Column = list[Any]
SHORT: Words = "{:.3g}".format


@dataclass(frozen=True, slots=True)
class Trace:
    """Line, bars or points in a panel.

    ``columns`` contains ``x`` and ``y`` and, for bars, the right edges ``right``. All numbers are
    finite; None interrupts the line.
    """

    name: str
    columns: Mapping[str, Column]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """The data of a chart and its table."""

    kind: str
    title: str
    words: str
    """Sentence with the most important values, for readers who cannot see the chart."""
    figures: Sequence[tuple[str, str]] = ()
    series: Sequence[Trace] = ()
    x: str = "elapsed"
    """Quantity on the horizontal axis: elapsed (milliseconds), clusters or size."""
    y: str = ""
    """Label of the vertical axis."""
    style: str = "line"
    """Chart type: "line" or "bars"."""
    numbers: str = ""
    """Number format of the vertical axis: "whole", "share", or empty for plain numbers."""
    log: bool = False
    log_x: bool = False
    from_zero: bool = False
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def panels(view: JobView) -> list[Panel]:
    """Return all panels that have data, in display order."""
    return [panel for make in MAKERS if (panel := make(view)) is not None]


def marks_of(view: JobView) -> list[dict[str, Any]]:
    return [
        {
            "elapsed": rounded(1e3 * mark.elapsed, 5),
            "time": round(1e3 * mark.seconds),
            "kind": mark.kind,
            "text": mark.text,
        }
        for mark in view.marks()
    ]


def rounded(value: float | None, digits: int = 4) -> float | int | None:
    """Round to ``digits`` significant digits for compact JSON; return None if not finite."""
    if value is None or not math.isfinite(value):
        return None
    return _short(float(f"{value:.{digits}g}"))


def _short(found: float) -> float | int | None:
    """Convert a whole number to an integer; return None if the number is not finite."""
    if abs(found) < 1e15:
        return int(found) if found == int(found) else found
    return found if math.isfinite(found) else None


def make_panel(kind: str, title: str, words: str = "", **fields: Any) -> Panel:
    """Make a panel whose texts are printable and of limited length.

    By default, ``words`` is made from ``figures``.
    """
    figures = [(name, shown(text)) for name, text in fields.pop("figures", ())]
    rows = [tuple(shown(text) for text in row) for row in fields.pop("rows", ())]
    sentence = ", ".join(f"{name} {text}" for name, text in figures)
    words = words or f"{sentence[:1].upper()}{sentence[1:]}."
    return Panel(kind=kind, title=title, words=words, figures=figures, rows=rows, **fields)


# --- lines ----------------------------------------------------------------------------------------


def make_trace(name: str, x: Column, y: Column, **columns: Column) -> Trace:
    return Trace(shown(name), {"x": x, "y": y, **columns})


def _line(name: str, series: Series, *, positive: bool = False) -> Trace:
    points = series.points()
    # Keep every ``step``-th point, and the last one.
    step, last = -(-len(points) // MOST_POINTS), len(points) - 1
    points = points[np.unique([*range(0, last, step), last])]
    y = points[:, Y]
    if positive:
        # A logarithmic axis cannot show 0.
        y = np.where(y > 0, y, np.nan)
    return make_trace(name, _positions(points, X, 1e3), _column(y))


def _positions(points: Points, place: int, scale: float = 1.0) -> Column:
    with np.errstate(over="ignore"):
        values = scale * points[:, place]
    known = values[np.isfinite(values)]
    span = float(np.ptp(known)) if len(known) else 0.0
    decimals = min(12, math.ceil(math.log10(FINE / span))) if 0 < span < math.inf else 3
    return [
        _short(round(value, decimals)) if math.isfinite(value) and abs(value) < 1e300 else None
        for value in values.tolist()
    ]


def _column(values: NDArray[np.float64], digits: int = 4) -> Column:
    return [rounded(value, digits) for value in values.tolist()]


def _lines(
    view: JobView, names: Mapping[str, str], words: Words = SHORT, *, log: bool = False
) -> dict[str, Any]:
    """Return the fields of a line chart panel: its lines, last values and table.

    ``names`` maps displayed names to series names.
    """
    # Omit series that are always 0.
    known = {name: series for name, key in names.items() if (series := view.series.get(key))
             and (series.lowest[Y] or series.highest[Y])}  # fmt: skip
    rows = [_row(name, series, words) for name, series in known.items()]
    return {
        "series": [_line(name, series, positive=log) for name, series in known.items()],
        "figures": [(name, last) for name, last, *_ in rows],
        "log": log,
        "columns": EXTREMES,
        "rows": rows,
    }


def _row(name: str, series: Series, words: Words) -> tuple[str, str, str, str]:
    """Return a table row: the name, and the last, lowest and highest value."""
    return name, words(series.last[Y]), words(series.lowest[Y]), words(series.highest[Y])


def _plain(
    kind: str, title: str, names: Mapping[str, str], y: str, words: Words, *, log: bool = False,
    **look: Any,
) -> Callable[[JobView], Panel | None]:  # fmt: skip

    def make(view: JobView) -> Panel | None:
        lines = _lines(view, names, words, log=log)
        return make_panel(kind, title, y=y, **lines, **look) if lines["rows"] else None

    return make


# --- panels ---------------------------------------------------------------------------------------


def _cost(view: JobView) -> Panel | None:
    if not view.costs:
        return None
    objective, lines = view.objective, _main_costs(view)
    less = objective.sense == "min"
    end = "lowest" if less else "highest"
    best = _best(lines, less)
    last = max((line.last for line in lines), key=lambda point: point[X])
    drawn = {line: series.points() for line, series in view.costs.items()}
    return make_panel(
        "cost",
        f"{objective.of_step[:1].upper()}{objective.of_step[1:]}",
        figures=[("last", precise(last[Y])), (end, precise(best[Y]))],
        series=[_cost_line(line, points) for line, points in drawn.items()],
        y=f"{objective.of_step} ({objective.unit}){'' if less else ', higher is better'}",
        columns=("line", "last", end, "points"),
        rows=[
            (
                _line_name(line),
                _row("", view.costs[line], precise)[1],
                precise(_best([view.costs[line]], less)[Y]),
                whole(int(np.isfinite(points[:, X]).sum())),
            )
            for line, points in drawn.items()
        ],
    )


def _main_costs(view: JobView) -> list[Series]:
    """Return the series of the objective on all rows; if there are none, those on samples."""
    of_all = [series for line, series in view.costs.items() if not line.on_sample]
    return of_all or list(view.costs.values())


def _best(lines: Sequence[Series], less: bool) -> Point:
    ends = [line.lowest if less else line.highest for line in lines]
    return (min if less else max)(ends, key=lambda point: point[Y])


def _line_name(line: CurveKey) -> str:
    rows = "on a sample" if line.on_sample else "on all rows"
    return rows if line.start is None else f"start {line.start + 1}, {rows}"


def _cost_line(line: CurveKey, points: Points) -> Trace:
    return make_trace(_line_name(line), _positions(points, X, 1e3), _column(points[:, Y], 8))


def _gain(view: JobView) -> Panel | None:
    names = {"rows that changed cluster": "n_changed", "movement of centres": "shift",
             "gain per step": "gain"}  # fmt: skip
    lines = _lines(view, names, log=True)
    lines["figures"] = [*_gains(view), *lines["figures"]]
    if not lines["figures"]:
        return None
    return make_panel("gain", "Convergence", y="fraction, or relative change", **lines)


def _gains(view: JobView) -> list[tuple[str, str]]:
    """Return relative changes of the objective in the last hour and last tenth of the run."""
    # If there are several starts, use the current start.
    series = max(_main_costs(view), key=lambda line: line.last[X], default=None)
    if series is None:
        return []
    last, found = series.last, []
    for name, seconds in (("last hour", HOUR), ("last tenth", TENTH * last[X])):
        before = series.before(last[X] - seconds)
        if before is not None and before[Y] and before[X] < last[X]:
            found.append((name, f"{100 * (last[Y] - before[Y]) / abs(before[Y]):+.2g} %"))
    return found


def _sizes(view: JobView) -> Panel | None:
    sizes = view.sizes
    edges, counts = (_numbers(sizes.get(name)) for name in ("edges", "counts"))
    if not counts or len(edges) != len(counts) + 1:
        return None
    names = {"least": "least", "median": "median", "mean": "mean", "most": "most",
             "empty clusters": "n_empty"}  # fmt: skip
    x = [rounded(edge) for edge in edges]
    return make_panel(
        "sizes",
        "Cluster sizes",
        figures=[(name, figure(number_in(sizes, key), human_count)) for name, key in names.items()],
        series=[make_trace("clusters", x[:-1], [rounded(n, 6) for n in counts], right=x[1:])],
        x="size",
        y="clusters",
        numbers="whole",
        style="bars",
        log_x=True,
        from_zero=True,
        columns=("weight from", "weight to", "clusters"),
        rows=[(figure(a), figure(b), whole(n))
              for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)],
    )  # fmt: skip


def _numbers(values: object) -> list[float]:
    """Return ``values`` as a list if all are finite and nonnegative, otherwise an empty list."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        return []
    found = [float(value) for value in values if is_number(value) and value >= 0]
    return found if len(found) == len(values) <= MOST_ROWS else []


MAKERS: tuple[Callable[[JobView], Panel | None], ...] = (
    _cost,
    _gain,
    _plain("speed", "Rows per second", {"all workers": "rows_per_second"}, "rows per second",
           human_count, numbers="whole", from_zero=True),
    _plain("work", "Distances computed", {"computed": "distances"}, "fraction of all",
           lambda value: f"{100 * value:.3g}%", log=True, numbers="share"),
    _sizes,
)  # fmt: skip
