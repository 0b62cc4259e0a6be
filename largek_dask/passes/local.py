"""Passes on threads of this process: the default, and the reference for passes on clusters."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any, ClassVar, Unpack

import numpy as np
from dask.system import cpu_count
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


def available_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def driver_cpus() -> int:
    """Return the number of cores that the driver of a cluster's passes may use."""
    given = os.environ.get("SLURM_CPUS_PER_TASK", "")
    limits = [available_cpus(), int(cpu_count()), *([int(given)] if given.isdecimal() else [])]
    return max(1, min(limits))


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
