"""Copies of broadcasts stay where they are, until nobody wants the value any more.

Every two seconds Dask's active memory manager drops copies of a value beyond one for each task that
waits for it. While a broadcast goes from worker to worker no task waits for it yet: all copies but
one would be dropped that are there at such a moment, and fetched again, by all tasks from the same
few workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from distributed.active_memory_manager import ReduceReplicas

__all__ = ["OURS", "spare_copies"]

OURS = "largek_"
"""Begin of the names of all values of passes."""


class ReduceOthers(ReduceReplicas):  # type: ignore[misc]  # distributed has no types
    """Drops copies of all values but those of passes."""

    def run(self) -> Iterator[Any]:
        """What is to be dropped."""
        return (one for one in super().run() if not str(one.ts.key).startswith(OURS))


def spare_copies(dask_scheduler: Any = None) -> None:
    """Have a scheduler's memory manager leave copies of broadcasts alone; called on it."""
    manager = dask_scheduler.extensions.get("amm")
    for policy in [] if manager is None else list(manager.policies):
        if type(policy) is ReduceReplicas:
            manager.policies.remove(policy)
            manager.add_policy(ReduceOthers())
