"""Place chunks on workers, divide a process's memory between jobs, and find stragglers.

Each worker gets chunks in proportion to its threads, and as few chunks as possible move. A
straggler is a worker that takes much longer than the others. Results do not depend on placement, so
a wrong guess costs only time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from largek_dask import config

FACTOR = 4.0
"""Minimum ratio of a straggler's time to the median time of the other workers; not tuned."""
FIRST_SECONDS = 30.0
"""Time for which a straggler gets no chunks, in seconds; doubles each time."""


def place(
    owner: Mapping[int, str], chunks: Iterable[int], workers: Mapping[str, int]
) -> dict[int, str]:
    """Return an owner of every chunk, independent of the order of items in the arguments.

    Each worker gets chunks in proportion to its threads, rounded down or up. Within these bounds,
    chunks keep their owners. ``owner`` may contain other chunks, and workers that have left;
    ``workers`` maps addresses to numbers of threads.
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
    # Each worker keeps its chunks, and gets at least its share rounded down (`low`).
    # If workers then want more chunks than there are, some workers give chunks away.
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
    # Sort orphans, so that workers get contiguous chunks, which are often stored together.
    orphans.sort()
    for address in addresses:
        n = want[address] - len(held[address])
        held[address] += orphans[:n]
        orphans = orphans[n:]
    return {chunk: address for address in addresses for chunk in held[address]}


def shares(placed: Mapping[int, str]) -> dict[str, list[int]]:
    """Return the chunks of each worker that has any, in ascending order."""
    out: dict[str, list[int]] = {}
    for chunk in sorted(placed):
        out.setdefault(placed[chunk], []).append(chunk)
    return out


def ranges(chunks: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Encode chunks as ascending half-open ranges, to send less data."""
    out: list[list[int]] = []
    for chunk in sorted(chunks):
        if out and out[-1][1] == chunk:
            out[-1][1] = chunk + 1
        else:
            out.append([chunk, chunk + 1])
    return tuple((begin, end) for begin, end in out)


def unranges(parts: Sequence[tuple[int, int]]) -> list[int]:
    """Return the chunks encoded by :func:`ranges`."""
    return [chunk for begin, end in parts for chunk in range(begin, end)]


def room_of(job: str, limits: Mapping[str, int], wanted: Mapping[str, int]) -> int:
    """Return the bytes that one job may keep in a process that is shared by several jobs.

    The result is the job's limit minus the bytes that other jobs want. If all jobs together want
    more than is available, each job gets an equal part, or less if it wants less. ``limits``
    contains the bytes that each job could keep if it were alone, and ``wanted`` the bytes that each
    could use.
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
    """Durations of the shares of a pass, all of which begin at the same time."""

    def __init__(self, n_shares: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._n_shares = n_shares
        self._clock = clock
        self._begin = clock()
        self._done: list[float] = []

    def done(self) -> None:
        """Record that a share is finished."""
        self._done.append(self._clock() - self._begin)

    def is_over(self) -> str | None:
        """Return the reason why the unfinished workers are stragglers; None if they are not.

        Workers are stragglers if at least half of the shares are finished and theirs take much
        longer.
        """
        if not self._done or 2 * len(self._done) < self._n_shares:
            return None
        others = statistics.median(self._done)
        waited = self._clock() - self._begin
        if waited <= max(float(config.get("passes.straggler-seconds")), FACTOR * others):
            return None
        return f"has not answered for {waited:.0f} s, and the others needed {others:.1f} s"


class Stragglers:
    """Slow workers that temporarily get no chunks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}
        self._penalty: dict[str, float] = {}

    def add(self, address: str) -> None:
        """Add a worker to the stragglers."""
        penalty = self._penalty.get(address, FIRST_SECONDS)
        self._penalty[address] = 2 * penalty
        self._until[address] = self._clock() + penalty

    def left_out(self, workers: dict[str, int]) -> dict[str, int]:
        """Return the workers that are not stragglers; all workers if all are stragglers."""
        now = self._clock()
        able = {a: n for a, n in workers.items() if self._until.get(a, now) <= now}
        return able or workers
