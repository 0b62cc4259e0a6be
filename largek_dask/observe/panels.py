"""The panels of a job, made from a :class:`JobView`.

Each function makes one kind of panel, or None where there is nothing to show; the shape of a panel
is told in ``observe.snapshot``.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.driver.events import is_number
from largek_dask.driver.formatting import (
    count_of,
    human_bytes,
    human_count,
    human_seconds,
    printable,
)
from largek_dask.driver.job_view import (
    MOST_WORKERS,
    OF_A_STEP,
    QUANTILES,
    WORK,
    WORKER,
    JobView,
    Line,
    number_in,
    short_name,
)
from largek_dask.driver.series import A_START, Point, Points, Series, X, Y
from largek_dask.observe.job_text import (
    NONE,
    WORKER_COLUMNS,
    figure,
    left_of,
    precise,
    waits_of,
    whole,
    worker_rows,
)

__all__ = ["Panel", "iso", "panels", "rounded", "shown"]

MOST_TEXT = 400
"""Characters of a text that are shown."""
TIME, PASSES = 4, 5
"""Where a point of the cost has its wall time (ms) and its passes over the data."""
FIRST_STEPS = 0.1
"""Share of the steps that count as the first, whose values may be far from all others."""

HOUR, TENTH = 3600.0, 0.1
LATEST = 253_402_300_799.0
"""The end of the year 9999, in seconds since 1970."""
FINE = 20_000
"""Parts of an axis that can be told apart: more than a screen has pixels."""
TENS = np.array([float(f"1e{i}") for i in range(23)])
"""Powers of ten that are doubles."""
MOST_POINTS = 128
"""Buckets of a line as it is sent: as many as a screen shows."""
WORKER_POINTS = 32
"""Buckets of the line of one worker among many."""
EXTREMES = ("", "last", "lowest", "highest")
"""Columns of a table of lines."""
MOST_ROWS = 100
"""Rows of a table."""
SLOWEST = 5
"""Workers that are named where there are too many to name all."""
NOTHING: tuple[Point, Point] = ((0.0,) * 4, (0.0,) * 4)
LIVE = frozenset(
    {*OF_A_STEP, "workers", "memory", "progress", "seconds", "sizes", "energy", "rows", "bytes",
     "retries", "rebuilt", "evictions", "n_rows", "start", "starts", "n_events", "last_event",
     "queue", "title", "objective", "result"}
)  # fmt: skip
"""Fields of a status that change while a job runs, or are told elsewhere."""

Panel = dict[str, Any]
Words = Callable[[float], str]
Column = list[float | int | None]
MARKED, MARK_SIZE = 8, 7
"""Points of a line that have a mark, which tells it from others without its colour; in pixels."""


def panels(view: JobView) -> list[Panel]:
    """All panels that have something to show, in their order."""
    return [panel for make in MAKERS if (panel := make(view)) is not None]


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
    return _short(found) if math.isfinite(found) else None


def _short(found: float) -> float | int:
    """The same number with fewer letters in JSON."""
    return int(found) if abs(found) < 1e15 and found == int(found) else found


def brief(value: float) -> str:
    """A number to three figures."""
    return f"{value:.3g}"


def percent(value: float) -> str:
    """A share to three figures."""
    return f"{100 * value:.3g}%"


def iso(seconds: float) -> str | None:
    """Seconds since 1970 in ISO form; None where they are none."""
    if not 0 < seconds < LATEST:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


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


def _alive(view: JobView) -> Panel | None:
    if not view.status.get("state"):
        return None
    state, takes = shown(view.state), view.step_seconds()
    figures = [("state", state)]
    figures += [("waits", text) for text in waits_of(view.status)]
    progress = view.status.get("progress")
    done, n_chunks = number_in(progress, "done"), number_in(progress, "n_chunks")
    if done is not None and n_chunks and not view.has_ended:
        figures.append(("this pass", f"{whole(done)} of {whole(n_chunks)} chunks"))
    if takes is not None:
        figures.append(("a step takes", human_seconds(takes)))
    if words := left_of(view):
        figures.append(("done", words))
    return _panel("alive", "Alive", f"The job is {state}.", figures=figures)


def _cost(view: JobView) -> Panel | None:
    if not view.costs:
        return None
    objective = view.objective
    less = objective.sense == "min"
    best = _best(_main_costs(view), less)
    last = _last(_main_costs(view))
    name = objective.of_step
    told = f"{name[:1].upper()}{name[1:]} {precise(last[Y])} last"
    words = f"{told}, {precise(best[Y])} at its {'lowest' if less else 'highest'}."
    drawn = {line: series.points() for line, series in view.costs.items()}
    steps = np.sort(np.concatenate([points[:, X] for points in drawn.values()]))
    steps = steps[np.isfinite(steps)]
    skip = 1e3 * float(steps[int(FIRST_STEPS * len(steps))]) if len(steps) >= 10 else None
    return _panel(
        "cost",
        f"{name[:1].upper()}{name[1:]}",
        words,
        figures=[("last", precise(last[Y])),
                 ("lowest" if less else "highest", precise(best[Y]))],
        series=[_cost_line(line, points, best[Y]) for line, points in drawn.items()],
        axes=("elapsed", "time", "passes") if last[TIME] > 0 else ("elapsed", "passes"),
        y=f"{name} ({objective.unit}){'' if less else ', more is better'}",
        skip=skip,
        columns=("line", "last", "lowest" if less else "highest", "points"),
        rows=[_cost_row(line, view.costs[line], points, less)
              for line, points in drawn.items()],
    )  # fmt: skip


def _main_costs(view: JobView) -> list[Series]:
    """Lines of the objective on all rows; those on samples where there is no other."""
    of_all = [series for line, series in view.costs.items() if not line.on_sample]
    return of_all or list(view.costs.values())


def _best(lines: Sequence[Series], less: bool) -> Point:
    ends = [found[0] if less else found[1] for line in lines if (found := line.extremes())]
    return (min if less else max)(ends, key=lambda point: point[Y])


def _last(lines: Sequence[Series]) -> Point:
    return max((last for line in lines if (last := line.last())), key=lambda point: point[X])


def _line_name(line: Line) -> str:
    rows = "on a sample" if line.on_sample else "on all rows"
    return rows if line.start is None else f"start {line.start + 1}, {rows}"


def _cost_line(line: Line, points: Points, best: float) -> dict[str, Any]:
    above = np.abs(points[:, Y] - best)
    return _line(
        _line_name(line),
        _along(points, X, 1e3),
        _rounded(points[:, Y], 8),
        time=_along(points, TIME),
        passes=_along(points, PASSES),
        # 0 has no place on a logarithmic axis.
        above=_rounded(np.where(above > 0, above, np.nan)),
    )


def _cost_row(line: Line, series: Series, points: Points, less: bool) -> tuple[str, ...]:
    last, best = series.last(), _best([series], less)
    return (
        _line_name(line),
        precise(last[Y]) if last else NONE,
        precise(best[Y]),
        whole(int(np.isfinite(points[:, X]).sum())),
    )


def _line(name: str, x: Column, y: Column, **columns: Column) -> dict[str, Any]:
    """A line, with the sizes of its marks: a few along it, and one at its end."""
    places = [i for i, value in enumerate(y) if value is not None]
    wanted = {places[round(i * (len(places) - 1) / (MARKED - 1))] for i in range(MARKED)
              } if places else set()  # fmt: skip
    mark: Column = [MARK_SIZE if i in wanted else 0 for i in range(len(y))]
    return {"name": shown(name), "x": x, "y": y, "mark": mark, **columns}


def _gain(view: JobView) -> Panel | None:
    changed, shift, gain = (view.series.get(name) for name in ("n_changed", "shift", "gain"))
    lines = {"rows that changed": changed, "movement of centres": shift, "gain of a step": gain}
    known = {name: series for name, series in lines.items() if series}
    figures = [*_gains(view), *((name, _last_of(series)) for name, series in known.items())]
    if not figures:
        return None
    told = "; ".join(f"{name} {text}" for name, text in figures)
    return _panel(
        "gain",
        "Does it still gain?",
        f"{told[:1].upper()}{told[1:]}.",
        figures=figures,
        y="share of the rows, or relative change",
        **_told(known, log=True),
    )


def _gains(view: JobView) -> list[tuple[str, str]]:
    """How much the objective has changed of late, relative to what it was."""
    lines = _main_costs(view)
    if not lines:
        return []
    # Of several starts the one that runs: the others have other ends.
    series = max(lines, key=lambda line: (line.last() or (0.0,) * 3)[X])
    last, found = series.last(), []
    assert last is not None
    for name, seconds in (("last hour", HOUR), ("last tenth", TENTH * last[X])):
        before = series.before(last[X] - seconds)
        if before is not None and before[Y] and before[X] < last[X]:
            found.append((name, f"{100 * (last[Y] - before[Y]) / abs(before[Y]):+.2g} %"))
    return found


def _when(view: JobView) -> Panel | None:
    status, figures = view.status, []
    if view.has_ended:
        return None
    left, limit = number_in(status, "eta_s"), status.get("limited_by")
    if left is not None:
        figures.append(("at most left", human_seconds(max(0.0, left))))
    if limit is not None:
        figures.append(("limited by", str(limit)))
    if (share := view.share_done()) is not None:
        figures.append(("done", f"{share:.0%}"))
    if view.labelled is not None:
        figures.append(("labels written", f"{view.labelled:.0%}"))
    series = view.series.get("eta_s")
    if not figures and not series:
        return None
    told = ", ".join(f"{name} {text}" for name, text in figures) or "nothing can be said yet"
    return _panel(
        "when",
        "When does it end?",
        f"{told[:1].upper()}{told[1:]}.",
        figures=figures,
        y="seconds",
        **_told({"at most left": series} if series else {}, human_seconds),
    )


def _events(view: JobView) -> Panel | None:
    marks = view.marks()
    if not marks:
        return None
    counts = [(kind, whole(n)) for kind, n in sorted(view.n_marks.items())]
    told = ", ".join(f"{n} × {kind}" for kind, n in counts)
    return _panel(
        "events",
        "What happened",
        f"{told}; last: {marks[-1].text}",
        figures=counts,
        columns=("at (UTC)", "after", "kind", "what"),
        rows=[
            (
                (iso(mark.seconds) or NONE)[:19].replace("T", " "),
                human_seconds(mark.elapsed),
                mark.kind,
                mark.text,
            )
            for mark in reversed(marks[-MOST_ROWS:])
        ],
    )


def _workers(view: JobView) -> Panel | None:
    speeds = view.speeds
    if len(speeds) < 2:
        return None
    slowest = sorted(speeds, key=lambda name: speeds[name])
    is_many = len(slowest) > MOST_WORKERS
    if is_many:
        lines = {name: view.series[name] for name in QUANTILES if name in view.series}
    else:
        lines = {
            name.removeprefix(WORKER): series
            for name, series in view.series.items()
            if name.startswith(WORKER)
        }
    figures = [
        ("workers", whole(len(slowest))),
        ("slowest", f"{slowest[0]}: {human_count(speeds[slowest[0]])}"),
        ("fastest", f"{slowest[-1]}: {human_count(speeds[slowest[-1]])}"),
    ]
    about = {short_name(row[0]): row[1:] for row in worker_rows(view)}
    named = slowest[:SLOWEST] if is_many else slowest
    return _panel(
        "workers",
        "Rows a second by worker",
        f"Slowest of {len(slowest):,} workers: {figures[1][1]} rows a second; fastest: "
        f"{figures[2][1]}.",
        figures=figures,
        series=[_means(name, series, WORKER_POINTS) for name, series in lines.items()],
        y="rows a second",
        columns=WORKER_COLUMNS,
        rows=[
            (name, *about.get(name, (figure(speeds[name]), *[NONE] * (len(WORKER_COLUMNS) - 2))))
            for name in named
        ],
    )


def _split(view: JobView) -> Panel | None:
    known = {kind: view.series[kind] for kind in WORK if view.series.get(kind)}
    total = view.seconds.get("total", 0.0)
    if not known or total <= 0:
        return None
    threads = view.threads
    named = {kind: "rows in the driver" if kind == "driver" else kind for kind in known}
    shares = {named[kind]: view.seconds.get(kind, 0.0) / (threads * total) for kind in known}
    shares["rest"] = max(0.0, 1.0 - sum(shares.values()))
    lines = [_means(named[kind], series, scale=1 / threads) for kind, series in known.items()]
    lines.append(_rest(lines))
    figures = [(kind, f"{share:.1%}") for kind, share in shares.items()]
    if compiled := view.seconds.get("compile"):
        figures.append(("compiling kernels", human_seconds(compiled)))
    told = ", ".join(f"{kind} {text}" for kind, text in figures)
    return _panel(
        "split",
        "Where the time goes",
        f"Of all time so far: {told}.",
        figures=figures,
        series=lines,
        y="share of the time of all threads",
        columns=("", "share of all time", "seconds of all threads"),
        rows=[
            (kind, f"{share:.2%}", human_seconds(share * threads * total))
            for kind, share in shares.items()
        ],
    )


def _rest(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What is left of the time where all kinds are told at the same steps."""
    x = lines[0]["x"]
    same = [line["y"] for line in lines if line["x"] == x]
    y = [
        None if None in at else rounded(max(0.0, 1.0 - sum(at)), 3)
        for at in zip(*same, strict=True)
    ]
    return _line("rest", x, y)


def _memory(view: JobView) -> Panel | None:
    names = {"row state": "state_bytes", "chunks": "cache_bytes"}
    lines = {
        shown: series
        for shown, name in names.items()
        if (series := view.series.get(name)) and (series.extremes() or NOTHING)[1][Y] > 0
    }
    workers = _worker_memory(view)
    if not lines and not workers:
        return None
    figures = [(name, _last_of(series, human_bytes)) for name, series in lines.items()]
    evictions = number_in(view.status, "evictions") or view.sums.get("evictions")
    if evictions:
        figures.append(("did not fit", count_of(int(evictions), "time")))
    if workers:
        figures.append(("fullest worker", f"{workers[0][0]}: {workers[0][3]}"))
    told = ", ".join(f"{name} {text}" for name, text in figures)
    return _panel(
        "memory",
        "Memory held",
        f"Last: {told}.",
        figures=figures,
        series=[_means(name, series) for name, series in lines.items()],
        y="bytes",
        columns=("worker", "memory", "limit", "share")
        if workers
        else ("", "last", "lowest", "highest"),
        rows=workers or [_row(name, series, human_bytes) for name, series in lines.items()],
    )


def _worker_memory(view: JobView) -> list[tuple[str, str, str, str]]:
    """Memory of workers against their limits, the fullest first; live figures of Dask."""
    found = []
    told = view.status.get("memory")
    for name, about in told.items() if isinstance(told, Mapping) else ():
        used, limit = number_in(about, "used"), number_in(about, "limit")
        if used is not None:
            share = used / limit if limit else 0.0
            found.append((share, used, short_name(name), limit or 0.0))
    return [
        (name, human_bytes(used), human_bytes(limit) if limit else NONE,
         f"{share:.0%}" if limit else NONE)
        for share, used, name, limit in sorted(found, reverse=True)[:MOST_ROWS]
    ]  # fmt: skip


def _plain(
    kind: str,
    title: str,
    names: Mapping[str, str],
    y: str,
    *,
    log: bool = False,
    words: Words = precise,
) -> Callable[[JobView], Panel | None]:
    """What makes a panel of nothing but lines: what they are called, and their series."""

    def make(view: JobView) -> Panel | None:
        known = {name: view.series[series] for name, series in names.items()
                 if view.series.get(series)}  # fmt: skip
        if not known:
            return None
        lines = _told(known, words, log=log)
        told = "; ".join(
            f"{name} {last} last, {low} at its lowest" for name, last, low, _ in lines["rows"]
        )
        return _panel(
            kind,
            title,
            f"{told[:1].upper()}{told[1:]}.",
            figures=[(name, last) for name, last, _, _ in lines["rows"]],
            y=y,
            **lines,
        )

    return make


def _batch(view: JobView) -> Panel | None:
    series = view.series.get("batch_rows")
    if not series:
        return None
    entered, before = [], 0.0
    for key, rows in view.batches:
        entered.append((key % A_START, rows - before, rows))
        before = rows
    last = series.last()
    assert last is not None
    told = f"{whole(last[Y])} rows last, in {count_of(len(entered), 'part')}"
    return _panel(
        "batch",
        "Rows of the batch",
        f"{told}.",
        figures=[("rows", whole(last[Y])), ("parts", whole(len(entered)))],
        series=[_points("rows of the batch", series)],
        y="rows",
        log=True,
        columns=("entered at step", "rows", "of the batch"),
        rows=[
            (whole(step), whole(rows), f"{rows / last[Y]:.1%}" if last[Y] else NONE)
            for step, rows, _ in entered
        ],
    )


def _mixture(view: JobView) -> Panel | None:
    energy = view.series.get("energy")
    last = energy.last() if energy else None
    if energy is None or last is None:
        return None
    figures = [("energy a row", precise(last[Y]))]
    if view.n_features:
        figures.append(("σ²", precise(last[Y] / view.n_features)))
    for name, kept in (("F a row", "lower_bound"), ("components alive", "alive")):
        if series := view.series.get(kept):
            figures.append((name, _last_of(series, precise)))
    told = ", ".join(f"{name} {text}" for name, text in figures)
    lines = _told({"energy a row": energy}, precise)
    if bound := view.series.get("lower_bound"):
        lines["rows"].append(_row("F a row", bound, precise))
    return _panel(
        "mixture",
        "The mixture",
        f"Last: {told}; energy {_lowest(energy, precise)} at its lowest.",
        figures=figures,
        y="mean squared distance to the means",
        **lines,
    )


def _path(view: JobView) -> Panel | None:
    found = sorted(view.by_partition.items())
    if not found:
        return None
    clusters, cost = found[-1]
    return _panel(
        "path",
        "Objective by number of clusters",
        f"{precise(cost)} with {count_of(clusters, 'cluster')}, {precise(found[0][1])} with "
        f"{found[0][0]:,}.",
        figures=[("at work on", count_of(clusters, "cluster"))],
        series=[_line("found so far", [n for n, _ in found],
                      [rounded(cost, 6) for _, cost in found])],
        axes=("clusters",),
        y=f"{view.objective.of_step} ({view.objective.unit})",
        columns=("clusters", view.objective.of_step),
        rows=[(whole(n), precise(cost)) for n, cost in found],
    )  # fmt: skip


def _sizes(view: JobView) -> Panel | None:
    told = view.sizes
    edges, counts = (_numbers(told.get(name)) for name in ("edges", "counts"))
    if not counts or len(edges) != len(counts) + 1:
        return None
    names = {"least": "least", "median": "median", "mean": "mean", "most": "most",
             "empty clusters": "n_empty"}  # fmt: skip
    figures = [(name, figure(number_in(told, key), human_count)) for name, key in names.items()]
    return _panel(
        "sizes",
        "Sizes of clusters",
        f"{', '.join(f'{name} {text}' for name, text in figures)}.",
        figures=figures,
        series=[_line(
            "clusters",
            [rounded(edge) for edge in edges[:-1]],
            [rounded(count, 6) for count in counts],
            right=[rounded(edge) for edge in edges[1:]],
        )],
        axes=("size",),
        y="clusters",
        columns=("weight from", "to", "clusters"),
        rows=[
            (figure(a), figure(b), whole(n))
            for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)
        ],
    )  # fmt: skip


def _numbers(values: object) -> list[float]:
    """A list of finite numbers that do not fall below 0; nothing if it is none."""
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        return []
    found = [float(value) for value in values if is_number(value) and value >= 0]
    return found if len(found) == len(values) <= MOST_ROWS else []


def _moved(view: JobView) -> Panel | None:
    series = view.series.get("bytes_per_second")
    total = number_in(view.status, "bytes") or view.sums.get("bytes", 0.0)
    copied = view.sums.get("copied", 0.0)
    if not series or not total:
        return None
    figures = [("read or moved", human_bytes(total)), ("picked out", human_bytes(copied))]
    return _panel(
        "bytes",
        "Bytes read and moved",
        f"{human_bytes(total)} so far, {_last_of(series, human_bytes)} a second last.",
        figures=figures,
        y="bytes a second",
        **_told({"read or moved a second": series}, human_bytes),
    )


def _job(view: JobView) -> Panel | None:
    told = [
        (name, _in_words(value))
        for name, value in view.status.items()
        if name not in LIVE and value not in (None, "", [], {})
    ]
    if not told:
        return None
    outputs = [(name, str(value)) for name, value in view.status.items() if name == "output"]
    return _panel(
        "job",
        "The job",
        f"{view.title}.",
        figures=outputs,
        columns=("", ""),
        rows=[(name.replace("_", " "), text) for name, text in told],
    )


def _in_words(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return ", ".join(value)
    return json.dumps(value, default=str)


# --- lines ----------------------------------------------------------------------------------------


def _means(
    name: str,
    series: Series,
    most: int = MOST_POINTS,
    *,
    positive: bool = False,
    scale: float = 1.0,
) -> dict[str, Any]:
    """A line of means, so that neighbours of one moment can be compared."""
    points = series.means(most)
    y = scale * points[:, Y]
    if positive:
        # 0 has no place on a logarithmic axis.
        y = np.where(y > 0, y, np.nan)
    return _line(name, _along(points, X, 1e3), _rounded(y))


def _points(name: str, series: Series) -> dict[str, Any]:
    """A line of points as they were told."""
    points = series.points(MOST_POINTS)
    return _line(name, _along(points, X, 1e3), _rounded(points[:, Y], 6))


def _along(points: Points, place: int, scale: float = 1.0) -> Column:
    """Where points lie on an axis, to a :data:`FINE` part of what is shown of it."""
    with np.errstate(over="ignore"):
        values = scale * points[:, place]
    known = values[np.isfinite(values)]
    span = float(np.ptp(known)) if len(known) else 0.0
    decimals = 3 if not 0 < span < math.inf else math.ceil(math.log10(FINE / span))
    return _column(_to_decimals(values, np.full(len(values), min(12, decimals))))


def _rounded(values: NDArray[np.float64], digits: int = 4) -> Column:
    """Numbers of at most as many figures; see :func:`rounded`, which does it for one."""
    with np.errstate(divide="ignore"):
        size = np.floor(np.log10(np.abs(values)))
    decimals = np.where(np.isfinite(size), digits - 1 - size, 0).astype(np.int64)
    return _column(_to_decimals(values, decimals))


def _to_decimals(values: NDArray[np.float64], decimals: NDArray[np.int64]) -> NDArray[np.float64]:
    """Each number to as many decimals; a negative number of them: to tens, hundreds and so on."""
    with np.errstate(over="ignore", invalid="ignore"):
        ten = TENS[np.minimum(np.abs(decimals), len(TENS) - 1)]
        finer, coarser = np.rint(values * ten) / ten, np.rint(values / ten) * ten
    found: NDArray[np.float64] = np.where(decimals >= 0, finer, coarser)
    # Other powers of ten are no doubles: such numbers are few, and rounded one by one.
    others = np.isfinite(values) & ((np.abs(decimals) >= len(TENS)) | ~np.isfinite(found))
    for i in np.flatnonzero(others):
        # The largest of all may have nothing to be rounded up to.
        with contextlib.suppress(OverflowError):
            found[i] = values[i]
            found[i] = round(float(values[i]), int(decimals[i]))
    return found


def _column(values: NDArray[np.float64]) -> Column:
    """Numbers as JSON has them shortest; None for those that are not finite."""
    return [_short(value) if math.isfinite(value) else None for value in values.tolist()]


def _told(
    lines: Mapping[str, Series], words: Words = brief, *, log: bool = False
) -> dict[str, Any]:
    """Lines of means and the table behind them, as a panel takes them."""
    return {
        "series": [_means(name, series, positive=log) for name, series in lines.items()],
        "log": log,
        "columns": EXTREMES,
        "rows": [_row(name, series, words) for name, series in lines.items()],
    }


def _last_of(series: Series, words: Words = brief) -> str:
    last = series.last()
    return NONE if last is None else words(last[Y])


def _lowest(series: Series, words: Words = brief) -> str:
    found = series.extremes()
    return NONE if found is None else words(found[0][Y])


def _row(name: str, series: Series, words: Words = brief) -> tuple[str, str, str, str]:
    """A line as a row of a table."""
    found = series.extremes()
    lowest, highest = (NONE, NONE) if found is None else (words(point[Y]) for point in found)
    return name, _last_of(series, words), lowest, highest


MAKERS: tuple[Callable[[JobView], Panel | None], ...] = (
    _alive,
    _cost,
    _gain,
    _when,
    _events,
    _plain(
        "speed",
        "Rows a second",
        {"all together": "rows_per_second"},
        "rows a second",
        words=human_count,
    ),
    _workers,
    _split,
    _memory,
    _plain(
        "work",
        "Work saved",
        {"of all distances": "distances"},
        "share computed",
        log=True,
        words=percent,
    ),
    _batch,
    _mixture,
    _plain("components", "Components alive", {"components": "alive"}, "components", words=whole),
    _plain(
        "rounds",
        "Rounds",
        {"rounds an epoch": "rounds", "factor of what is expected": "factor", "rate η": "eta"},
        "rounds, factor, rate",
        log=True,
    ),
    _plain(
        "partitions",
        "Partitions",
        {"at work on": "partitions", "settled": "settled"},
        "clusters, partitions",
        words=whole,
    ),
    _path,
    _sizes,
    _moved,
    _job,
)
