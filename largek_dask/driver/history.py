"""Thin a fit's history to a bounded number of records.

It keeps the first step, the last, the one of the best cost, and every s-th, where s is the smallest
power of two that leaves at most ``MOST_STEPS``. The result does not depend on how often a history
was thinned before, so a resumed fit ends with the same records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from largek_dask.algorithms.objective import INERTIA, Objective

__all__ = ["MOST_STEPS", "sample_of", "thinned", "up_to"]

Record = TypeVar("Record", bound=Mapping[str, Any])

MOST_STEPS = 10_000
EXTRA = 3
"""The first, the last and the best record."""


def thinned(history: Sequence[Record], objective: Objective = INERTIA) -> list[Record]:
    """Return at most ``MOST_STEPS`` records of a history, which may have been thinned before.

    Each record has ``step``, ascending, and ``cost``; the objective defines the best cost.
    """
    if not history or history[-1]["step"] <= MOST_STEPS:
        return list(history)
    stride = 1
    while history[-1]["step"] // stride > MOST_STEPS - EXTRA:
        stride *= 2
    costs = [record["cost"] for record in history if record["cost"] is not None]
    best = (min if objective.sense == "min" else max)(costs, default=None)
    kept = []
    for record in history:
        is_best = best is not None and record["cost"] == best
        if is_best:
            best = None  # the first of equal ones
        if is_best or record is history[0] or record["step"] % stride == 0:
            kept.append(record)
    if kept[-1] is not history[-1]:
        kept.append(history[-1])
    return kept


def up_to(step: int, history: Sequence[Record]) -> list[Record]:
    """Return the records up to a step."""
    return [record for record in history if record["step"] <= step]


def sample_of(record: Mapping[str, Any], n_rows: int) -> int | None:
    """Return the number of rows in a step's sample; None if the step was over all rows.

    The cost of such a step is scaled from the sample to all rows. Centres are fitted to the sample,
    so the cost of all rows is higher.
    """
    extra = record.get("extra") or {}
    on_sample = extra.get("everywhere", 1) == 0 or extra.get("batch_rows", n_rows) < n_rows
    return int(record["rows"]) if on_sample else None
