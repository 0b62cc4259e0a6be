"""A history that stays small however many steps a fit takes.

Kept are the first step, the last, the one of the best cost, and every s-th, where s is the smallest
power of two that leaves no more than ``MOST_STEPS``. So what is left of a history does not depend
on how often it was thinned on its way: a fit that was resumed ends with the records of one that
was not.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from largek_dask.algorithms.objective import INERTIA, Objective

__all__ = ["MOST_STEPS", "gaps", "sample_of", "thinned", "up_to"]

Record = TypeVar("Record", bound=Mapping[str, Any])

MOST_STEPS = 10_000
"""Records that are kept of a history."""
EXTRA = 3
"""The first, the last and the best, which may lie between the others."""


def thinned(history: Sequence[Record], objective: Objective = INERTIA) -> list[Record]:
    """At most ``MOST_STEPS`` records of a history, which may have been thinned before.

    Parameters
    ----------
    history : sequence of mappings
        Each with ``step``, ascending, and ``cost``.
    objective : Objective
        Which says what the best cost is.
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
    """The records of a history up to a step."""
    counted = list(history)
    while counted and counted[-1]["step"] > step:
        counted.pop()
    return counted


def gaps(history: Sequence[Mapping[str, Any]]) -> list[int]:
    """How many steps each record stands for: itself, and those that were left out before it."""
    steps = [0]
    for record in history:
        steps.append(int(record.get("step", steps[-1] + 1)))
    return [after - before for before, after in itertools.pairwise(steps)]


def sample_of(record: Mapping[str, Any], n_rows: int) -> int | None:
    """How many rows the sample has that a step was about; None: it was about all of them.

    The cost of such a step is what all rows would cost if they were like the sample. Centres are
    fitted to that, so on all rows it is higher.
    """
    extra = record.get("extra") or {}
    on_sample = extra.get("everywhere", 1) == 0 or extra.get("batch_rows", n_rows) < n_rows
    return int(record["rows"]) if on_sample else None
