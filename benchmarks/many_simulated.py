"""A pass on very many workers, simulated from what one costs on a few.

Three kinds of processes wait in line for work: the driver, the scheduler and the workers, each one
thread at a time, as Python is. What a piece of work takes of them is measured on real ones
(`benchmarks.many`), as CPU seconds a task and a megabyte; what lies between is a network in which
every host sends and receives at `LINK` megabytes a second. How a broadcast and a sum go from worker
to worker is what `passes/spreading.py` and `passes/cluster.py` do.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import nnls

__all__ = ["LINK", "PARTS", "Costs", "Line", "Simulation", "fitted", "seconds_of_pass"]

LINK = 1_250.0
"""Megabytes a second that a host sends, and receives: ten gigabits."""
LATENCY = 2e-4
"""Seconds of a message on its way."""
PARTS = ("ask", "broadcast", "tasks", "sum")
"""Parts of a pass, in order: who is there; the model to all; a task a worker; totals to one."""


@dataclass(frozen=True)
class Line:
    """CPU seconds of one kind of process: ``fixed + worker n + (mb + worker_mb n) MB``."""

    fixed: float = 0.0
    worker: float = 0.0
    mb: float = 0.0
    worker_mb: float = 0.0

    def at(self, n: int, mb: float = 0.0) -> float:
        """For n workers and so many megabytes."""
        return self.fixed + self.worker * n + (self.mb + self.worker_mb * n) * mb


def fitted(points: list[tuple[int, float, float]]) -> Line:
    """The line through (workers, megabytes, seconds), none of its parts negative.

    Errors count as shares of what is measured, so that few workers count as much as many.
    """
    rows = np.array([(1, n, mb, n * mb) for n, mb, _ in points], float)
    seconds = np.array([max(second, 0.0) for *_, second in points])
    least = max(seconds.max() * 1e-3, 1e-9)
    weight = 1 / np.maximum(seconds, least)
    found, _ = nnls(rows * weight[:, None], seconds * weight)
    return Line(*found.tolist())


@dataclass(frozen=True)
class Costs:
    """What is measured, each a :class:`Line` by kind of process.

    Of `workers` it is what all of them take together; of `first` what that one takes beyond the
    others which sends a broadcast on its way.
    """

    ask: dict[str, Line]
    """The scheduler is asked who is there."""
    tasks: dict[str, Line]
    """An empty pass of small payload: asking, and a task a worker."""
    apart: dict[str, Line]
    """The same, where the scheduler is told of each task alone."""
    broadcast: dict[str, Line]
    tree: dict[str, Line]
    """What totals take that are added up in a tree, beyond an empty pass."""
    inline: dict[str, Line]
    """What totals take that come to the driver, beyond an empty pass."""


class Simulation:
    """Events in the order of their time, and processes that do one thing after the other."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.free: dict[Any, float] = {}
        """When each process, or direction of a link, is done with what it has been given."""
        self.busy: dict[Any, float] = {}

    def at(self, time: float, then: Callable[[], None]) -> None:
        """Call something at a time."""
        self._count += 1
        heapq.heappush(self._events, (time, self._count, then))

    def use(self, who: Any, seconds: float, then: Callable[[], None]) -> None:
        """Have a process work, after what it has already; then go on."""
        end = max(self.now, self.free.get(who, 0.0)) + seconds
        self.free[who] = end
        self.busy[who] = self.busy.get(who, 0.0) + seconds
        self.at(end, then)

    def move(self, mb: float, source: Any, target: Any, link: float,
             then: Callable[[], None]) -> None:  # fmt: skip
        """Send bytes from one host to another; both links are theirs meanwhile."""
        ends = [(source, "out"), (target, "in")]
        end = max(self.now, *(self.free.get(one, 0.0) for one in ends)) + mb / link
        for one in ends:
            self.free[one] = end
        self.at(end + LATENCY, then)

    def run(self) -> float:
        """Until nothing is left to do; the time then."""
        while self._events:
            self.now, _, then = heapq.heappop(self._events)
            then()
        return self.now


@dataclass(frozen=True)
class Shape:
    """How totals and broadcasts go."""

    fan_in: Callable[[float, int], int]
    """Totals that one task adds up, by their megabytes and the number of workers."""
    branches: int = 2
    delegated: bool = False
    """Whoever has the value sees to a part of the others; else the first one asks all of them."""
    together: bool = True
    """The scheduler is told of all tasks at once."""


def seconds_of_pass(
    costs: Costs, shape: Shape, n: int, model_mb: float, totals_mb: float, link: float = LINK
) -> dict[str, float]:
    """Seconds of the parts of a pass beyond computing."""
    ask = sum(costs.ask[who].at(n) for who in ("driver", "scheduler")) + 2 * LATENCY
    return {
        "ask": (3 if n * totals_mb > TREE_MB else 2) * ask,
        "broadcast": seconds_of_broadcast(costs, shape, n, model_mb, link),
        "tasks": seconds_of_tasks(costs, costs.tasks if shape.together else costs.apart, n),
        "sum": seconds_of_sum(costs, shape, n, totals_mb, link),
    }


TREE_MB = 64.0
"""Megabytes of totals together that come to the driver as they are (`passes.tree-bytes`)."""


def seconds_of_tasks(costs: Costs, lines: dict[str, Line], n: int) -> float:
    """A task a worker, from the first one that is submitted to the last answer taken."""
    sim = Simulation()
    parts = {}
    for who in ("driver", "scheduler", "workers"):
        alone = lines[who].worker - 2 * costs.ask[who].worker
        parts[who] = max(alone, lines[who].worker / 4)

    def one(worker: int) -> None:
        # Submitted, handed on, done, told, the value asked for and passed on.
        sim.use("driver", parts["driver"] / 2, lambda: sim.use(
            "scheduler", parts["scheduler"] / 3, lambda: sim.use(
                worker, parts["workers"], lambda: sim.use(
                    "scheduler", 2 * parts["scheduler"] / 3, lambda: sim.use(
                        "driver", parts["driver"] / 2, lambda: None)))))  # fmt: skip

    for worker in range(n):
        one(worker)
    fixed = sum(lines[who].fixed for who in ("driver", "scheduler"))
    return fixed + sim.run()


def seconds_of_broadcast(costs: Costs, shape: Shape, n: int, mb: float, link: float) -> float:
    """From the driver by way of the scheduler to one worker, and from there along a tree."""
    sim, lines = Simulation(), costs.broadcast
    each = lines["workers"]
    # What a worker takes for a copy: half of it where it comes from.
    copy = (each.worker + each.worker_mb * mb) / 2
    asking = lines["first"].worker
    passing = lines["scheduler"].worker

    def fetch(source: int, target: int, then: Callable[[], None]) -> None:
        sim.use(source, copy, lambda: sim.move(mb, source, target, link, lambda: sim.use(
            target, copy, lambda: sim.use("scheduler", passing, then))))  # fmt: skip

    def from_first() -> None:
        waiting = deque(range(1, n))
        sources = deque([0] * shape.branches)

        def go_on() -> None:
            while waiting and sources:
                source, target = sources.popleft(), waiting.popleft()
                sim.use(0, asking, lambda s=source, t=target: fetch(s, t, lambda: got(s, t)))

        def got(source: int, target: int) -> None:
            sources.append(source)
            sources.extend([target] * shape.branches)
            go_on()

        go_on()

    def delegated(who: int, others: list[int]) -> None:
        """Ask one at a time, and leave half of the rest to it."""
        if not others:
            return
        target, *rest = others
        half = len(rest) // 2
        sim.use(who, asking, lambda: fetch(who, target, lambda: (
            delegated(target, rest[:half]), delegated(who, rest[half:]))))  # fmt: skip

    for who in ("driver", "scheduler"):
        sim.use(who, lines[who].fixed + lines[who].mb * mb, lambda: None)
    begin = sum(sim.free.values()) + 2 * mb / link
    sim = Simulation()
    sim.at(begin, lambda: delegated(0, list(range(1, n))) if shape.delegated else from_first())
    return sim.run()


def seconds_of_sum(costs: Costs, shape: Shape, n: int, mb: float, link: float) -> float:
    """Totals of all workers to one, in the driver."""
    if n * mb <= TREE_MB:
        lines = costs.inline
        moved = 2 * n * mb / link
        return moved + sum(lines[who].at(n, mb) for who in ("driver", "scheduler"))
    sim, lines = Simulation(), costs.tree
    fan_in = shape.fan_in(mb, n)
    # Measured with the fan-in of eight: a task a worker, and a seventh of one to add up.
    task = {who: lines[who].worker * 7 / 8 for who in ("driver", "scheduler", "workers")}
    if not shape.together:
        for who in ("driver", "scheduler"):
            task[who] *= max(1.0, costs.apart[who].worker / max(costs.tasks[who].worker, 1e-9))
    copy = lines["workers"].worker_mb * mb
    done = [0.0]

    def combine(level: list[int]) -> None:
        groups = [level[i : i + fan_in] for i in range(0, len(level), fan_in)]
        left = [len(groups)]

        def ended() -> None:
            left[0] -= 1
            if left[0] == 0 and len(groups) > 1:
                combine([group[0] for group in groups])
            done[0] = max(done[0], sim.now)

        for group in groups:
            begin_group(group, ended)

    def begin_group(group: list[int], ended: Callable[[], None]) -> None:
        target, missing = group[0], [len(group) - 1]

        def added() -> None:
            missing[0] -= 1
            if missing[0] <= 0:
                sim.use(target, task["workers"], lambda: sim.use(
                    "scheduler", task["scheduler"] / 2, ended))  # fmt: skip

        def begun() -> None:
            if len(group) == 1:
                added()
            for source in group[1:]:
                sim.use(source, copy / 2, lambda s=source: sim.move(
                    mb, s, target, link, lambda: sim.use(target, copy / 2, added)))  # fmt: skip

        sim.use("scheduler", task["scheduler"] / 2, begun)

    n_tasks, level = n, n
    while level > 1:
        level = -(-level // fan_in)
        n_tasks += level
    submitted = n_tasks * task["driver"]
    sim.use("scheduler", n * task["scheduler"], lambda: combine(list(range(n))))
    sim.run()
    end = max(done[0], submitted)
    fixed = sum(lines[who].fixed + lines[who].mb * mb for who in ("driver", "scheduler"))
    return end + fixed + 2 * mb / link
