"""Compute times and passes until a run reaches an energy, and format them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

SAME = 1 + 1e-6
"""Energies of float32 rows that differ by less than this factor are treated as equal."""
FAR = 1e3
"""Larger values are written as "> 1000"."""
Run = dict[str, Any]
"""Run with ``seconds`` and ``energies`` of some of its steps, in order."""


def time_to(run: Run, level: float) -> float | None:
    """Return CPU seconds until the energy is at most ``level``, or None."""
    for seconds, value in zip(run["seconds"], run["energies"], strict=True):
        if value <= level:
            return float(seconds)
    return None


def median_time(runs: Sequence[Run], level: float) -> float:
    """Return the median of :func:`time_to`; infinite if most runs do not reach the level."""
    times = [time_to(run, level) for run in runs]
    return median(np.inf if t is None else t for t in times)


def first_at(run: Run, level: float) -> tuple[float, float] | None:
    """Return passes and CPU seconds of the first step at or below an energy, or None."""
    points = zip(run["passes"], run["seconds"], run["energies"], strict=True)
    level *= SAME
    return next((point[:2] for point in points if point[2] is not None and point[2] <= level), None)


def median(values: Iterable[float]) -> float:
    """Return the median of values, some of which may be infinite."""
    return float(np.median(list(values)))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return ratios by seed; infinite if ours is infinite, 0 if only theirs is infinite."""
    return [
        np.inf if not np.isfinite(a) else 0.0 if not np.isfinite(b) else a / b
        for a, b in zip(ours, theirs, strict=True)
    ]


def spread(values: Sequence[float], form: str, never: str = "never") -> str:
    """Format the median over seeds, with quartiles in brackets."""

    def written(value: float) -> str:
        if np.isnan(value):
            return "–"
        return format(value, form) if value < FAR else "> 1000" if value < np.inf else never

    if len(values) == 1 or np.isnan(values).any():
        return written(median(values))
    low, high = (written(v) for v in np.percentile(values, [25, 75], method="nearest"))
    return f"{written(median(values))} ({low} to {high})"
