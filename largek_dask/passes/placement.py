"""Place chunks on workers, share the memory of a process between jobs, and find stragglers.

Placement is sticky, balanced by threads, and moves as few chunks as possible. A straggler keeps a
pass waiting for a multiple of what the others needed. Results do not depend on the worker that
computes a chunk, so a wrong guess costs time only.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from largek_dask import config

__all__ = ["Pace", "Stragglers", "place", "ranges", "room_of", "shares", "unranges"]

FACTOR = 4.0
"""A straggler takes longer than this times the others' median; not tuned."""
FIRST_SECONDS = 30.0
"""Time without chunks of a straggler; doubles each time that it is one again."""


def place(
    owner: Mapping[int, str], chunks: Iterable[int], workers: Mapping[str, int]
) -> dict[int, str]:
    """Return an owner for every chunk: a function of the arguments, whatever their order.

    Every worker gets between the floor and the ceiling of its share (chunks in proportion to
    threads). Chunks stay where they are as far as these bounds allow. ``owner`` may name other
    chunks and workers that are gone; ``workers`` has threads by address.
    """
    order = sorted(chunks)
    addresses = sorted(workers)
    threads = {address: max(1, workers[address]) for address in addresses}
    total = sum(threads.values())
    low = {a: len(order) * threads[a] // total for a in addresses}
    high = {a: -(-len(order) * threads[a] // total) for a in addresses}

    held: dict[str, list[int]] = {address: [] for address in addresses}
    orphans: list[int] = []
    for chunk in order:
        home = owner.get(chunk)
        if home in held and len(held[home]) < high[home]:
            held[home].append(chunk)
        else:
            orphans.append(chunk)
    # How many each worker is to have: what it has, raised to the floor, then the rest to
    # whoever has least for its threads. Those above the floor give where orphans do not do.
    want = {a: max(len(held[a]), low[a]) for a in addresses}
    while sum(want.values()) > len(order):
        giver = max(addresses, key=lambda a: (want[a] - low[a], a))
        want[giver] -= 1
    while sum(want.values()) < len(order):
        taker = min(addresses, key=lambda a: (want[a] >= high[a], want[a] / threads[a], a))
        want[taker] += 1
    for address in addresses:
        while len(held[address]) > want[address]:
            orphans.append(held[address].pop())
    # In order and in one piece a worker: neighbouring chunks are often stored together.
    orphans.sort()
    for address in addresses:
        n = want[address] - len(held[address])
        held[address] += orphans[:n]
        orphans = orphans[n:]
    return {chunk: address for address in addresses for chunk in held[address]}


def shares(placed: Mapping[int, str]) -> dict[str, list[int]]:
    """The chunks of every worker that has any, ascending."""
    out: dict[str, list[int]] = {}
    for chunk in sorted(placed):
        out.setdefault(placed[chunk], []).append(chunk)
    return out


def ranges(chunks: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Chunks as ascending half-open ranges: short to send."""
    out: list[list[int]] = []
    for chunk in sorted(chunks):
        if out and out[-1][1] == chunk:
            out[-1][1] = chunk + 1
        else:
            out.append([chunk, chunk + 1])
    return tuple((begin, end) for begin, end in out)


def unranges(parts: Sequence[tuple[int, int]]) -> list[int]:
    """The chunks of :func:`ranges`."""
    return [chunk for begin, end in parts for chunk in range(begin, end)]


def room_of(job: str, limits: Mapping[str, int], wanted: Mapping[str, int]) -> int:
    """Return how many bytes one of the jobs of a process may keep.

    All of its limit but what the others keep; if that is too much for all of them, equal parts, or
    what a job wants if that is less. ``limits`` are the bytes that each job might keep alone,
    ``wanted`` those that it has use for.
    """
    left = max(limits.values())
    least_first = sorted((min(limits[name], wanted[name]), name) for name in limits)
    others = 0
    for number, (want, name) in enumerate(least_first):
        given = min(want, left // (len(least_first) - number))
        left -= given
        others += 0 if name == job else given
    return min(limits[job], max(limits.values()) - others)


class Pace:
    """Durations of the shares of a pass, which are all handed out at the same time."""

    def __init__(self, n_shares: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._n_shares = n_shares
        self._clock = clock
        self._begin = clock()
        self._done: list[float] = []

    def done(self) -> None:
        """Note that a share has come back."""
        self._done.append(self._clock() - self._begin)

    def is_over(self) -> str | None:
        """Return why workers that are not done now are stragglers; None if they are not yet.

        At least half of the shares have come back, and the others take much longer.
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
        """Note that a worker is a straggler."""
        penalty = self._penalty.get(address, FIRST_SECONDS)
        self._penalty[address] = 2 * penalty
        self._until[address] = self._clock() + penalty

    def left_out(self, workers: dict[str, int]) -> dict[str, int]:
        """Return the workers without stragglers; all of them if there are no others."""
        now = self._clock()
        able = {a: n for a, n in workers.items() if self._until.get(a, now) <= now}
        return able or workers
