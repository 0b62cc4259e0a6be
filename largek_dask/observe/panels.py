"""The panels of a board, made of what its events have told.

Each function makes one kind of panel, or None where there is nothing to show; the shape of a panel
is told in ``observe.board``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from largek_dask.driver.stopping import ENDS
from largek_dask.driver.words import human_seconds, printable
from largek_dask.observe.heard import Heard, Line, number_in
from largek_dask.observe.history import Point, Series, X, Y
from largek_dask.observe.showing import NONE, Seen, left_of, precise, whole

__all__ = ["limited_by", "panels", "rounded", "shown"]

MOST_TEXT = 400
"""Characters of a text that are shown."""
TIME, PASSES = 4, 5
"""Where a point of the cost has its wall time (ms) and its passes over the data."""
FIRST_STEPS = 0.1
"""Share of the steps that count as the first, whose values may be far from all others."""

Panel = dict[str, Any]


def panels(seen: Seen, heard: Heard) -> list[Panel]:
    """All panels that have something to show, in their order."""
    return [panel for make in MAKERS if (panel := make(seen, heard)) is not None]


# --- words and numbers ----------------------------------------------------------------------------


def shown(text: object) -> str:
    """Text that neither forges a line nor is longer than anybody reads."""
    words = printable(str(text)[: 2 * MOST_TEXT])
    return words if len(words) <= MOST_TEXT else f"{words[: MOST_TEXT - 1]}…"


def rounded(value: float | None, digits: int = 4) -> float | int | None:
    """A finite number of at most so many figures, as short JSON; None for any other."""
    if value is None or not math.isfinite(value):
        return None
    found = float(f"{value:.{digits}g}")
    if not math.isfinite(found):
        return None
    return int(found) if abs(found) < 1e15 and found == int(found) else found


def limited_by(seen: Seen, heard: Heard) -> str | None:
    """Which rule is going to end the job, as the estimate has it."""
    status = seen.status
    left, step = number_in(status, "eta_s"), number_in(status, "step")
    elapsed, limit = number_in(status, "elapsed"), number_in(status, "max_time")
    most, takes = number_in(status, "max_iter"), heard.step_seconds()
    if left is None:
        return None
    if limit is not None and elapsed is not None and left >= 0.99 * (limit - elapsed):
        return "max_time"
    if most is not None and step is not None and takes is not None:
        # The estimate is of the mean of the last steps, this of the usual one.
        return "max_iter" if left >= 0.8 * (most - step) * takes else "convergence"
    return None


# --- panels ---------------------------------------------------------------------------------------


def _panel(
    kind: str,
    title: str,
    words: str,
    *,
    figures: Iterable[tuple[str, str]] = (),
    series: Sequence[dict[str, Any]] = (),
    axes: Sequence[str] = ("elapsed",),
    y: str = "",
    log: bool = False,
    skip: float | None = None,
    columns: Sequence[str] = (),
    rows: Iterable[Sequence[str]] = (),
) -> Panel:
    return {
        "kind": kind,
        "title": title,
        "words": words,
        "figures": [[name, shown(text)] for name, text in figures],
        "x": axes[0],
        "axes": list(axes),
        "y": y,
        "log": log,
        "series": list(series),
        "skip": rounded(skip),
        "table": {
            "columns": list(columns),
            "rows": [[shown(text) for text in row] for row in rows],
        },
    }


def _alive(seen: Seen, heard: Heard) -> Panel | None:
    if not seen.status.get("state"):
        return None
    state, takes = shown(seen.state), heard.step_seconds()
    figures = [("state", state)]
    if note := seen.status.get("note"):
        figures.append(("waits", str(note)))
    progress = seen.status.get("progress")
    done, n_chunks = number_in(progress, "done"), number_in(progress, "n_chunks")
    if done is not None and n_chunks and seen.state not in ENDS:
        figures.append(("this pass", f"{whole(done)} of {whole(n_chunks)} chunks"))
    if takes is not None:
        figures.append(("a step takes", human_seconds(takes)))
    if words := left_of(seen):
        figures.append(("done", words))
    return _panel("alive", "Alive", f"The job is {state}.", figures=figures)


def _cost(seen: Seen, heard: Heard) -> Panel | None:
    if not heard.costs:
        return None
    objective = seen.objective
    less = objective.sense == "min"
    of_all = [series for line, series in heard.costs.items() if not line.on_sample]
    best = _best(of_all or list(heard.costs.values()), less)
    last = _last(of_all or list(heard.costs.values()))
    name = objective.of_step
    told = f"{name[:1].upper()}{name[1:]} {precise(last[Y])} last"
    words = f"{told}, {precise(best[Y])} at its {'lowest' if less else 'highest'}."
    lines = [
        {"name": _line_name(line), **_cost_columns(series, best[Y])}
        for line, series in heard.costs.items()
    ]
    steps = [point for line in heard.costs.values() for point in line.points() if point]
    steps.sort(key=lambda point: point[X])
    skip = steps[int(FIRST_STEPS * len(steps))][X] if len(steps) >= 10 else None
    return _panel(
        "cost",
        f"{name[:1].upper()}{name[1:]}",
        words,
        figures=[("last", precise(last[Y])),
                 ("lowest" if less else "highest", precise(best[Y]))],
        series=lines,
        axes=("elapsed", "time", "passes"),
        y=f"{name} ({objective.unit}){'' if less else ', more is better'}",
        skip=skip,
        columns=("line", "last", "lowest" if less else "highest", "points"),
        rows=[_cost_row(line, series, less) for line, series in heard.costs.items()],
    )  # fmt: skip


def _best(lines: Sequence[Series], less: bool) -> Point:
    ends = [found[0] if less else found[1] for line in lines if (found := line.extremes())]
    return (min if less else max)(ends, key=lambda point: point[Y])


def _last(lines: Sequence[Series]) -> Point:
    return max((last for line in lines if (last := line.last())), key=lambda point: point[X])


def _line_name(line: Line) -> str:
    rows = "on a sample" if line.on_sample else "on all rows"
    return rows if line.start is None else f"start {line.start + 1}, {rows}"


def _cost_columns(series: Series, best: float) -> dict[str, Any]:
    points = series.points()
    return {
        "x": _column(points, X, 5),
        "y": _column(points, Y, 8),
        "time": _column(points, TIME, 12),
        "passes": _column(points, PASSES, 4),
        # 0 has no place on a logarithmic axis.
        "above": [
            rounded(abs(point[Y] - best)) or None if point is not None else None for point in points
        ],
    }


def _cost_row(line: Line, series: Series, less: bool) -> tuple[str, ...]:
    last, best = series.last(), _best([series], less)
    return (
        _line_name(line),
        precise(last[Y]) if last else NONE,
        precise(best[Y]),
        whole(sum(point is not None for point in series.points())),
    )


def _column(points: Iterable[Point | None], place: int, digits: int) -> list[float | int | None]:
    """A coordinate of points; null where the line is interrupted."""
    return [None if point is None else rounded(point[place], digits) for point in points]


MAKERS: tuple[Callable[[Seen, Heard], Panel | None], ...] = (_alive, _cost)
