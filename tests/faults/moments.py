"""Named moments of a job, and orders to hold it up there; also a preload for Dask's processes.

A process that was started with ``--preload tests.faults.moments`` and the folder of a test in its
environment notes every time it comes to a point (``visits/``), and obeys orders that lie in
``orders/``: the first process that comes to an order's moment for the n-th time takes the order,
reports its pid, and waits there until it is released or dies.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
import time
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

from largek_dask import fault_injection
from tests.faults.deadly import DeadlyFileSystem

FOLDER = "LARGEK_FAULTS"
"""Variable of the environment that names the folder."""
TICK = 0.01


@dataclasses.dataclass(frozen=True)
class Moment:
    """Where to strike."""

    when: str
    """"before" or "after"."""
    point: str
    """One of ``fault_injection.POINTS``."""
    role: str = "scheduler"
    """Or "worker"."""
    nth: int = 1
    """How often a process has to come there, counted from the order on."""
    from_step: int = 6
    """The order is given when the job comes to this step; 0: before it is submitted."""
    action: str = "meet"
    """"meet": report and wait; "eat": report, then take more memory than there is."""

    def __str__(self) -> str:
        return f"{self.when} {self.point} no. {self.nth} on a {self.role}"


class Meeting:
    """An order to hold up whoever comes to a moment, as the test sees it."""

    def __init__(self, folder: Path, moment: Moment) -> None:
        assert moment.point in fault_injection.POINTS
        self.moment = moment
        self._order = folder / "orders" / f"{uuid4().hex}.json"
        self._met, self._go = self._order.with_suffix(".met"), self._order.with_suffix(".go")
        draft = self._order.with_suffix(".draft")
        draft.write_text(json.dumps(dataclasses.asdict(moment)))
        draft.rename(self._order)

    def wait(self, seconds: float = 60.0) -> int:
        """The pid of the process that is held up."""
        until = time.monotonic() + seconds
        while not self._met.exists():
            if time.monotonic() > until:
                self._order.unlink(missing_ok=True)
                raise TimeoutError(f"nobody came to: {self.moment}")
            time.sleep(TICK)
        return int(self._met.read_text())

    def release(self) -> None:
        """Let it go on, if it still lives."""
        self._order.unlink(missing_ok=True)
        self._go.touch()


class Watcher:
    """What Dask's processes do at every point."""

    counts: ClassVar[dict[tuple[str, str, str], int]] = {}

    def __init__(self, folder: Path, role: str) -> None:
        self._visits, self._orders = folder / "visits", folder / "orders"
        self._role = role
        self._lock = threading.Lock()

    def __call__(self, when: str, point: str) -> None:
        with open(self._visits / f"{when} {point} {os.getpid()}", "ab") as visits:
            visits.write(b".")
        for name in os.listdir(self._orders):
            if name.endswith(".json") and self._is_due(name, when, point):
                self._obey(self._orders / name)

    def _is_due(self, name: str, when: str, point: str) -> bool:
        try:
            order = _read(self._orders / name)
        except FileNotFoundError:
            # Somebody else has taken it.
            return False
        if (order.when, order.point, order.role) != (when, point, self._role):
            return False
        with self._lock:
            key = (name, when, point)
            self.counts[key] = self.counts.get(key, 0) + 1
            return self.counts[key] == order.nth

    def _obey(self, order: Path) -> None:
        taken = order.with_suffix(".taken")
        try:
            order.rename(taken)
        except FileNotFoundError:
            return
        draft = order.with_suffix(".pid")
        draft.write_text(str(os.getpid()))
        draft.rename(order.with_suffix(".met"))
        eaten = []
        while not order.with_suffix(".go").exists():
            time.sleep(TICK)
            if _read(taken).action == "eat":
                eaten.append(b"x" * (20 << 20))


def _read(path: Path) -> Moment:
    return Moment(**json.loads(path.read_text()))


def prepare(folder: Path) -> None:
    """Make a test's folder."""
    for name in ("visits", "orders"):
        (folder / name).mkdir(parents=True, exist_ok=True)


def visited(folder: Path) -> set[tuple[str, str]]:
    """All moments that any process has come to."""
    found = (path.name.split() for path in (folder / "visits").iterdir())
    return {(when, point) for when, point, _ in found}


def count_visits(folder: Path, point: str) -> int:
    """How often all processes together have come to a point."""
    return sum(path.stat().st_size for path in (folder / "visits").glob(f"before {point} *"))


def dask_setup(server: Any) -> None:
    """Called by Dask in every process that it starts."""
    role = "scheduler" if type(server).__name__ == "Scheduler" else "worker"
    fault_injection.watch(Watcher(Path(os.environ[FOLDER]), role))
    if role == "worker":
        DeadlyFileSystem.arm()
