"""The tables of `benchmarks.nmbatch`, computed from its result and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks import peers
from benchmarks.curves import DENSE, LLOYD, MINIBATCH, NMBATCH, OWN_START, PUBLISHED, Run, time_to

__all__ = [
    "EXCESSES",
    "ahead_table",
    "bounds_table",
    "compared",
    "end_of",
    "exact_seconds",
    "rival_points",
    "rivals_table",
    "seconds_to",
    "table",
    "worst_ratio",
]

EXCESSES = (0.02, 0.01, 0.002)
"""Energies above Lloyd's end that the first table asks for."""
LEAST_EXCESS = 0.001
"""Energy above Lloyd's end down to which nmbatch is compared with Lloyd's own way."""
POINTS = (3, 6, 12, 25, 50)
"""Passes after which exact rivals are looked at."""

Record = dict[str, Any]


def end_of(record: Record) -> float:
    """Energy at which Lloyd's algorithm ends."""
    return float(record["runs"][LLOYD][0]["energies"][-1])


def seconds_to(record: Record, method: str, level: float) -> float | None:
    """Median CPU seconds of a method's runs to an energy; None: never.

    Later runs are cut sooner than the first: where most have been cut before that energy, the
    first one's time counts alone.
    """
    times = [time_to(run, level) for run in record["runs"].get(method, [])]
    if not times:
        return None
    middle = float(np.median([np.inf if t is None else t for t in times]))
    return middle if middle < np.inf else times[0]


def exact_seconds(record: Record, level: float) -> float | None:
    """CPU seconds of the better of the exact peers to an energy that Lloyd's algorithm meets."""
    lloyd = record["runs"][LLOYD][0]
    for passes, value in zip(lloyd["steps"], lloyd["energies"], strict=True):
        if value <= level:
            return min(peers.seconds_of(record["rivals"][lib], passes) for lib in peers.EXACT)
    return None


def name_of(record: Record) -> str:
    """The set without the number of clusters."""
    return str(record["case"].rsplit("-", 1)[0])


def _percent(record: Record, value: float) -> str:
    """An energy relative to Lloyd's end."""
    excess = 100 * (value / end_of(record) - 1)
    return f"{excess:+.1f} %" if abs(excess) >= 1 else f"{excess:+.2f} %"


def _ends(record: Record, method: str) -> str:
    """Where a method ends, relative to Lloyd's end; marked if it was cut."""
    run = record["runs"][method][0]
    excess = 100 * (min(run["energies"]) / end_of(record) - 1)
    return f"{excess:+.2f} %{'' if run['ended'] else ' (cut)'}"


def table(result: dict[str, Any]) -> str:
    """The short table: seconds to an energy, exact peer and nmbatch."""
    levels = [f"to +{100 * excess:g} %" for excess in EXCESSES]
    lines = [
        f"| set | rows × features | k | {' | '.join(levels)} | nmbatch ends | as published ends |",
        "|---" * (5 + len(EXCESSES)) + "|",
    ]
    for r in result["records"]:
        cells = [name_of(r), f"{r['n']:,} × {r['d']}", str(r["k"])]
        for excess in EXCESSES:
            level = end_of(r) * (1 + excess)
            theirs, ours = exact_seconds(r, level), seconds_to(r, NMBATCH, level)
            assert theirs is not None
            cells.append(
                f"{theirs:.2f} → never"
                if ours is None
                else f"{theirs:.2f} → {ours:.2f} ({theirs / ours:.1f}x)"
            )
        cells += [_ends(r, NMBATCH), _ends(r, PUBLISHED)]
        lines.append("| " + " | ".join(cells) + " |")
    rounds = min((len(r["runs"][NMBATCH]) for r in result["records"]), default=0)
    lines += [
        "",
        "CPU seconds on one thread until the energy over all rows is within 2, 1 and 0.2 % of "
        "where Lloyd's algorithm ends: the faster of scikit-learn's and faiss's Lloyd → nmbatch, "
        "from the same random rows, set-up and first scan counted, medians of "
        f"{rounds} interleaved runs. Ends of the first run, relative to Lloyd's; (cut): a limit "
        f"of time came first. {result['cpu']}. Made by `python -m benchmarks.nmbatch --write`.",
    ]
    return "\n".join(lines)


def worst_ratio(record: Record) -> tuple[float, float] | None:
    """Where nmbatch is farthest behind bounded Lloyd: seconds / its seconds, and excess energy.

    Over the energies for which the first step of nmbatch was looked up; None: it does not reach
    the last of them.
    """
    lloyd, worst = record["runs"][LLOYD][0], (0.0, 0.0)
    for value in record["compared"]:
        ours, theirs = seconds_to(record, NMBATCH, value), time_to(lloyd, value)
        assert theirs is not None
        if ours is None:
            return None
        worst = max(worst, (ours / theirs, value / end_of(record) - 1))
    return worst


def compared(lloyd: Run, most: int) -> list[float]:
    """Some of the energies that Lloyd's algorithm meets, down to 0.1 % above its end."""
    least = lloyd["energies"][-1] * (1 + LEAST_EXCESS)
    met = [value for value in lloyd["energies"] if value >= least]
    return [met[i] for i in np.unique(np.linspace(0, len(met) - 1, most).astype(int))]


def bounds_table(result: dict[str, Any]) -> str:
    """Exact k-means to no change, and nmbatch against it at every energy."""
    lines = [
        "| set | k | passes to no change | better peer, s | dense Lloyd, s | with bounds, s "
        "| faster than dense | distances computed | nmbatch / bounded Lloyd at worst |",
        "|---" * 9 + "|",
    ]
    for r in result["records"]:
        dense, bounded = r["runs"][DENSE][0], r["runs"][LLOYD][0]
        share = 100 * (bounded["mean_share"] or 1.0)
        passes = bounded["n_steps"]
        peer = min(peers.seconds_of(r["rivals"][lib], passes) for lib in peers.EXACT)
        worst = worst_ratio(r)
        about = (
            "does not reach +0.1 %"
            if worst is None
            else f"{worst[0]:.2f} at +{100 * worst[1]:.1f} %"
        )
        lines.append(
            f"| {name_of(r)} | {r['k']} | {'' if bounded['ended'] else 'more than '}{passes} "
            f"| {peer:.1f} | {dense['all']:.1f}{'' if dense['ended'] else ' *'} "
            f"| {bounded['total']:.1f} | {dense['all'] / bounded['total']:.2f}x | {share:.0f} % "
            f"| {about} |"
        )
    lines += [
        "",
        "CPU seconds on one thread. * timed for some seconds, and the remaining passes counted at "
        "that pace, as all passes of the peers are. The last column: the largest ratio of "
        "nmbatch's seconds to those of Lloyd with bounds, over energies that the latter meets "
        f"down to 0.1 % above its end. {result['cpu']}. Made by "
        "`python -m benchmarks.nmbatch --write`.",
    ]
    return "\n".join(lines)


def rival_points(record: Record) -> Iterator[tuple[str, list[tuple[float, float]]]]:
    """What each rival reaches: its name, and points of energy and CPU seconds, in time's order."""
    lloyd = record["runs"][LLOYD][0]
    reached = dict(zip(lloyd["steps"], lloyd["energies"], strict=True))
    for rival, measured in record["rivals"].items():
        if isinstance(measured, dict):
            steps = [min(reached, key=lambda step, p=p: abs(step - p)) for p in POINTS]
            yield (
                f"{rival} KMeans",
                [(reached[s], peers.seconds_of(measured, s)) for s in dict.fromkeys(steps)],
            )
        else:
            yield rival, [(point["energy"], point["seconds"]) for point in measured]
    for run in record["runs"].get(MINIBATCH, [])[:1]:
        points = list(zip(run["energies"], run["seconds"], strict=True))
        wanted = [run["total"] / part for part in (16, 8, 4, 2, 1)]
        picked = [min(points, key=lambda point, w=w: abs(point[1] - w)) for w in wanted]
        yield MINIBATCH, list(dict.fromkeys(picked))


def _ahead(record: Record, points: list[tuple[float, float]]) -> list[str]:
    """The energies that a rival has sooner than both starts of nmbatch, and how much sooner."""
    found = []
    runs = [run for method in (NMBATCH, OWN_START) for run in record["runs"][method]]
    for value, seconds in points:
        times = [seconds_to(record, method, value) for method in (NMBATCH, OWN_START)]
        ours = min((t for t in times if t is not None), default=np.inf)
        excess = _percent(record, value)
        if seconds < ours < np.inf:
            found.append(f"{excess} {ours / seconds:.1f}x")
        elif ours == np.inf and any(run["ended"] or run["total"] > seconds for run in runs):
            # where all were cut before the rival's time, nothing can be said
            found.append(f"{excess} (not reached)")
    return found


def rivals_table(result: dict[str, Any]) -> str:
    """Whole curves: at the energies that each rival reaches, its seconds and ours."""
    most = max(len(POINTS), *(len(calls) for calls in peers.SUPER.values()))
    lines = [
        "| set | k | rival | from few passes |" + " |" * (most - 2) + " to many |",
        "|---" * (3 + most) + "|",
    ]
    for r in result["records"]:
        if OWN_START not in r["runs"]:
            continue
        for rival, points in rival_points(r):
            cells = [name_of(r), str(r["k"]), rival]
            for value, seconds in points:
                times = [seconds_to(r, method, value) for method in (NMBATCH, OWN_START)]
                ours = " / ".join("–" if t is None else f"{t:.2f}" for t in times)
                cells.append(f"{_percent(r, value)}: {seconds:.2f} → {ours}")
            lines.append("| " + " | ".join(cells + [""] * (3 + most - len(cells))) + " |")
    lines += [
        "",
        "Energy above Lloyd's end: the rival's CPU seconds → nmbatch's from the common random rows "
        "/ from its own start (– not reached before its limit of time). One thread, set-up "
        f"counted; {result['cpu']}. Made by `python -m benchmarks.nmbatch --write`.",
    ]
    return "\n".join(lines)


def ahead_table(result: dict[str, Any]) -> str:
    """Where a rival is ahead of nmbatch from both starts."""
    lines = [
        "| set | k | rival | ahead at an energy of, and how many times sooner |",
        "|---" * 4 + "|",
    ]
    for r in result["records"]:
        for rival, points in rival_points(r) if OWN_START in r["runs"] else ():
            if sooner := _ahead(r, points):
                lines.append(f"| {name_of(r)} | {r['k']} | {rival} | {', '.join(sooner)} |")
    lines += [
        "",
        "Energy above Lloyd's end. (not reached): by nmbatch from neither start, though it had the "
        "time. Made by `python -m benchmarks.nmbatch --write`.",
    ]
    return "\n".join(lines)
