"""Figures of the runs of `benchmarks.vrkm`, over seeds: when a level is reached, where runs end.

A record of a set has ``seeds``; each of these the objective of 20 Lloyd passes (``base``), the
energy at which Lloyd's algorithm ends (``end``), and ``runs`` by method (`vrkm_runs.told`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.vrkm_methods import LLOYD
from benchmarks.vrkm_runs import SAME

__all__ = [
    "after", "at_base", "end_of", "ends", "excesses", "median", "near_base", "near_end",
    "passes_of", "ratios", "reach", "spread", "to_level",
]  # fmt: skip

NEAR = 1.005
"""Times the objective of 20 Lloyd passes."""
OF_END = 1.002
"""Times the energy at which Lloyd's algorithm ends."""

FAR = 1e3
"""Figures of this size are told no closer."""

Record = dict[str, Any]
Point = tuple[float, float]


def reach(run: Record, level: float) -> Point | None:
    """Passes and CPU seconds of the first step at or below an energy; None: never.

    Energies that differ by rounding alone are the same (`vrkm_runs.SAME`).
    """
    points, level = zip(run["passes"], run["seconds"], run["energies"], strict=True), level * SAME
    return next((point[:2] for point in points if point[2] is not None and point[2] <= level), None)


def after(run: Record, passes: float) -> float:
    """Energy after ``passes`` at most: NaN before the first step, infinite if it is none.

    Steps of several passes are looked at where they end.
    """
    made = np.searchsorted(run["passes"], passes + 1e-6, side="right")
    if not made:
        return np.nan
    energy = run["energies"][made - 1]
    return np.inf if energy is None else float(energy)


def median(values: Iterable[float]) -> float:
    """Of figures some of which may be infinite, for what never came."""
    return float(np.median(list(values)))


def spread(values: Sequence[float], form: str, never: str = "never") -> str:
    """Median, and quartiles in brackets; these are figures of single seeds."""

    def told(value: float) -> str:
        if np.isnan(value):
            return "–"
        return format(value, form) if value < FAR else "> 1000" if value < np.inf else never

    if len(values) == 1 or np.isnan(values).any():
        return told(median(values))
    low, high = (told(v) for v in np.percentile(values, [25, 75], method="nearest"))
    return f"{told(median(values))} ({low} to {high})"


def to_level(
    record: Record, method: str, level: Callable[[Record], float], which: int
) -> list[float]:
    """Passes (0) or seconds (1) of a method to a level, by seed; infinite: never."""
    found = [reach(seed["runs"][method], level(seed)) for seed in record["seeds"]]
    return [np.inf if point is None else point[which] for point in found]


def near_base(seed: Record) -> float:
    """1.005 times the objective of 20 Lloyd passes."""
    return float(NEAR * seed["base"])


def at_base(seed: Record) -> float:
    """The objective of 20 Lloyd passes."""
    return float(seed["base"])


def near_end(seed: Record) -> float:
    """A little above Lloyd's end."""
    return float(OF_END * seed["end"])


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Ours over theirs, seed by seed: infinite where we never came, 0 where only they did not."""
    return [
        np.inf if not np.isfinite(a) else 0.0 if not np.isfinite(b) else a / b
        for a, b in zip(ours, theirs, strict=True)
    ]


def excesses(record: Record, method: str, passes: float) -> list[float]:
    """Per cent above the objective of 20 Lloyd passes, by seed."""
    return [
        100 * (after(seed["runs"][method], passes) / seed["base"] - 1) for seed in record["seeds"]
    ]


def ends(record: Record, method: str, above: str = LLOYD) -> list[float]:
    """Per cent of the end above another method's end, by seed."""
    return [
        100 * (end_of(seed["runs"][method]) / end_of(seed["runs"][above]) - 1)
        for seed in record["seeds"]
    ]


def end_of(run: Record) -> float:
    """Energy after the last step."""
    last = run["energies"][-1]
    return np.inf if last is None else float(last)


def passes_of(record: Record, method: str) -> list[float]:
    """Passes until nothing changes; infinite: cut before."""
    runs = [seed["runs"][method] for seed in record["seeds"]]
    return [run["passes"][-1] if run["ended"] else np.inf for run in runs]
