"""Passes on threads of this process: the default, and the reference for passes on clusters."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Unpack

import numpy as np
from numpy.typing import NDArray

from largek_dask import config
from largek_dask.data.rows import Rows
from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import Table
from largek_dask.passes.base import BasePasses, PassOptions
from largek_dask.passes.engine import Engine, Ticket
from largek_dask.passes.rowstate import process_memory
from largek_dask.passes.spec import PassSpec
from largek_dask.passes.telemetry import PassReport

OWN_GROUPS, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
"""Names of this process's control groups, and the folder of all control groups."""


def available_cpus() -> int:
    """Return the number of cores that this process may use, by affinity and quota.

    A quota of 1.5 cores allows two threads.
    """
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, math.ceil(min(cores, _quota())))


def _quota() -> float:
    """Return the smallest quota of this process's control groups, in cores; infinity if none."""
    quota = math.inf
    for line in OWN_GROUPS.read_text().splitlines() if OWN_GROUPS.exists() else ():
        _, controllers, name = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            # In a container, the name may be that on the host, and the group is the root.
            group = Path(name.lstrip("/"))
            folders = [GROUPS / controllers / part for part in (group, *group.parents)]
            quota = min(quota, *map(_quota_of, folders))
    return quota


def _quota_of(group: Path) -> float:
    """Return the quota of a control group of version 2, or else of version 1, in cores."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            quota, period = map(float, " ".join((group / n).read_text() for n in names).split())
        except (OSError, ValueError):  # "max" is no limit
            continue
        if quota > 0 < period:
            return quota / period
    return math.inf


def driver_cpus() -> int:
    """Return the number of cores that the driver of a cluster's passes may use."""
    given = os.environ.get("SLURM_CPUS_PER_TASK", "")
    return max(1, min([available_cpus(), *([int(given)] if given.isdecimal() else [])]))


def state_budget(memory_limit: int | None, memory: int) -> int:
    """Return the bytes of row state that a process with ``memory`` bytes may keep.

    ``memory_limit`` is the user's setting; None means the configured limit, or a quarter of
    ``memory`` if there is none.
    """
    if memory_limit is None:
        memory_limit = config.get("passes.row-state-bytes")
    return memory // 4 if memory_limit is None else int(memory_limit)


class LocalPasses(BasePasses):
    """Passes over rows on threads of this process.

    Use as a context manager, or call :meth:`close`. By default, ``n_threads`` is the number of
    cores that this process may use; ``memory_limit`` is the budget of row state in bytes.
    """

    lends: ClassVar[bool] = False
    """True if a retained total may be returned without a copy."""

    def __init__(
        self,
        rows: Rows,
        *,
        n_threads: int | None = None,
        memory_limit: int | None = None,
        **options: Unpack[PassOptions],
    ) -> None:
        super().__init__(rows, **options)
        self._ticket: Ticket | None = None
        self.n_threads = available_cpus() if n_threads is None else int(n_threads)
        if self.n_threads < 1:
            raise ParameterError(f"n_threads={n_threads} must be at least 1.")
        self.threads_here = self.n_threads
        self.state_limit = budget = state_budget(memory_limit, process_memory())
        cache = int(config.get("passes.cache-bytes"))
        self._engine = Engine(rows, self.n_threads, lambda: budget, lambda: cache)
        # End the threads even if `close` is never called.
        self._finalizer = weakref.finalize(self, self._engine.close)

    def _run(
        self,
        spec: PassSpec,
        replay: tuple[tuple[Any, ...], ...],
        chunks: Sequence[int],
        report: PassReport,
    ) -> Any:
        ticket = self._engine.open(spec, chunks, replay)
        ticket.report = report
        self._ticket = ticket
        try:
            self._engine.advance(ticket, self._stop)
        finally:
            self._ticket = None
        report.workers = 1
        return self._engine.collect(ticket, lent=self.lends)

    def progress(self) -> tuple[int, int]:
        """See ``BasePasses.progress``."""
        ticket = self._ticket
        return (0, 0) if ticket is None else (len(ticket.done), len(ticket.chunks))

    def in_one_piece(self) -> tuple[Table, NDArray[np.float64] | None] | None:
        """See ``BasePasses.in_one_piece``."""
        part = self._engine.joined() if self._shown_as_they_lie() else None
        return None if part is None else (part.x, part.weight)

    def close(self) -> None:
        self.begin_run()
        self._finalizer()
