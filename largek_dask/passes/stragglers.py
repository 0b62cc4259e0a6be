"""Workers that keep a pass waiting although others have long been done.

How long is too long is measured: a multiple of what the others needed for their shares of the same
pass. Who computes a chunk changes no result, so a wrong guess costs time only.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from largek_dask import config

__all__ = ["Pace", "Stragglers"]

FACTOR = 4.0
"""How many times the others' median is too long."""
FIRST_SECONDS = 30.0
"""How long a straggler gets no chunks; twice as long each time that it is one again."""


class Pace:
    """How long the shares of a pass take, all handed out at the same time."""

    def __init__(self, n_shares: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._n_shares = n_shares
        self._clock = clock
        self._begin = clock()
        self._done: list[float] = []

    def done(self) -> None:
        """A share has come back."""
        self._done.append(self._clock() - self._begin)

    def is_over(self) -> str | None:
        """Why whoever is not done now is a straggler; None: it is too soon to tell.

        At least half of the shares have to be there, and the others need much longer.
        """
        if not self._done or 2 * len(self._done) < self._n_shares:
            return None
        others = statistics.median(self._done)
        waited = self._clock() - self._begin
        if waited <= max(float(config.get("passes.straggler-seconds")), FACTOR * others):
            return None
        return f"has not answered for {waited:.0f} s, and the others needed {others:.1f} s"


class Stragglers:
    """Workers that get no chunks for a while."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}
        self._penalty: dict[str, float] = {}

    def add(self, address: str) -> None:
        """A worker has kept everybody waiting."""
        penalty = self._penalty.get(address, FIRST_SECONDS)
        self._penalty[address] = 2 * penalty
        self._until[address] = self._clock() + penalty

    def left_out(self, workers: dict[str, int]) -> dict[str, int]:
        """The workers without stragglers; all of them if there are no others."""
        now = self._clock()
        able = {a: n for a, n in workers.items() if self._until.get(a, now) <= now}
        return able or workers
