"""Base class of local and cluster passes: statistics, rows, row state, retries, reports."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from largek_dask import config
from largek_dask.algorithms.base import Chunk, ChunkFunction, RowSlice, RowState, TakenRows
from largek_dask.data.rows import Rows
from largek_dask.data.storage_errors import trouble
from largek_dask.data.stores import read_statistics
from largek_dask.errors import CancelledFit, DataError, ParameterError
from largek_dask.kernels.blocks import Table, rows_at
from largek_dask.kernels.exact.statistics import RowScan, Statistics
from largek_dask.kernels.projection import Directions
from largek_dask.kernels.rows import compute_dtype
from largek_dask.kernels.threads import Threads
from largek_dask.passes.chunks import Preparation, bad_row_error, name_bad_columns
from largek_dask.passes.gather import fetch
from largek_dask.passes.spec import PassSpec, StateSpec
from largek_dask.passes.telemetry import EventCallback, PassReport, ProgressReporter
from largek_dask.retry import TICK_SECONDS, retry

if TYPE_CHECKING:
    from largek_dask.passes.subset import Subset, SubsetRows, Subsets

logger = logging.getLogger(__name__)

T = TypeVar("T")

LONGEST_PAUSE = 8.0
"""Longest pause between two attempts while storage is unavailable, in seconds."""

LogCallback = Callable[..., None]
"""``callback(kind, message)``: kind is "waiting", "workers", "slow", "retry", "storage" (storage
does not answer) or "back" (storage answers again)."""


class PassOptions(TypedDict, total=False):
    """Options of all kinds of passes; see :class:`BasePasses`."""

    normalize: Literal["l2"] | None
    on_bad_rows: Literal["raise", "skip"]
    statistics: Statistics | None
    cancelled: Callable[[], bool] | None
    deadline: float | None
    log: LogCallback | None
    on_event: EventCallback | None


class BasePasses(ABC):
    """Base class of passes over the rows of a table; see ``algorithms.base.Passes`` for ``reduce``.

    Parameters
    ----------
    normalize : "l2" or None
        "l2": rows are scaled to unit length.
    on_bad_rows : "raise" or "skip"
        Treatment of rows with NaN or infinity. Skipped rows have weight 0.
    statistics : Statistics, optional
        Statistics of the rows, if known; otherwise they are read from the store's attributes or
        computed by a scan.
    cancelled : callable, optional
        Called between chunks; True ends the pass with ``CancelledFit``.
    deadline : float, optional
        Time (``time.monotonic``) after which passes end with ``CancelledFit``.
    log : callable, optional
        See :meth:`log`.
    on_event : callable, optional
        ``on_event(kind, **values)`` receives events: "progress" of a long pass, "worker" when a
        worker joins or leaves (see ``driver.events``).
    """

    n_threads: int | None = None
    """Number of threads that compute at the same time; None if the number may change."""
    threads_here: int = 1
    """Number of threads of this process for work between passes."""
    workers: Sequence[str] = ()
    """Addresses of the workers that compute; empty if this process computes."""
    n_workers: int = 0
    worker_threads: int = 0
    """Number of threads of all workers together."""
    state_limit: int | None = None
    """Bytes of row state that all processes together may keep; None if unknown."""
    places: NDArray[np.int64] | None = None
    """See ``algorithms.base.Passes.places``."""

    def __init__(
        self,
        rows: Rows,
        *,
        normalize: Literal["l2"] | None = None,
        on_bad_rows: Literal["raise", "skip"] = "raise",
        statistics: Statistics | None = None,
        cancelled: Callable[[], bool] | None = None,
        deadline: float | None = None,
        log: LogCallback | None = None,
        on_event: EventCallback | None = None,
    ) -> None:
        if normalize not in (None, "l2"):
            raise ParameterError(f"normalize={normalize!r} is unknown; use None or 'l2'.")
        if on_bad_rows not in ("raise", "skip"):
            raise ParameterError(f"on_bad_rows={on_bad_rows!r} is unknown; use 'raise' or 'skip'.")
        self.rows = rows
        self.n_rows = rows.n_rows
        self.n_features = rows.n_features
        self.is_sparse = rows.is_sparse
        self.row_values = rows.row_values
        self.n_chunks = rows.n_chunks
        self.chunk_table = rows.chunk_table
        self.normalize = normalize
        self.on_bad_rows = on_bad_rows
        self.cancelled = cancelled
        self.deadline = deadline
        self.is_given_up: Callable[[], bool] = lambda: False
        """Function called while waiting for storage; a True result raises the error of the
        storage."""
        self._has_worked = False
        """True once a pass has succeeded, which shows that all required data exist."""
        self.last = PassReport()
        """Cost of the last pass."""
        self.total = PassReport()
        """Cost of all passes so far."""
        self.by_worker: dict[str, PassReport] = {}
        """Cost of all passes so far, by worker address; empty without a cluster."""
        self.left: set[str] = set()
        """Workers in ``by_worker`` that have left."""
        self.subset_seconds = 0.0
        """Computing time of passes over subsets of the rows, in seconds, summed over threads."""
        self._subsets: Subsets | None = None
        self._statistics = statistics
        self._callbacks: list[LogCallback] = [] if log is None else [log]
        self._on_event = on_event
        self._progress_reporter = (
            None if on_event is None else ProgressReporter(self.progress, on_event)
        )
        # Maps the name of a row state to its run and the last generation written.
        self._runs: dict[str, tuple[int, int]] = {}
        # Maps the name of a row state to the rows of its last two generations.
        self._written: dict[str, dict[int, RowSlice | None]] = {}
        self._n_runs = 0

    def reduce(
        self,
        chunk_fn: ChunkFunction,
        *broadcast: Any,
        start: Callable[[], Any],
        combine: Callable[[Any, Any], Any],
        state: RowState | None = None,
        rows: RowSlice | None = None,
        chunks: Sequence[int] | None = None,
        joined: bool = False,
    ) -> Any:
        """Run one map-reduce over the chunks; see ``algorithms.base.Passes.reduce``.

        Chunks without rows in the ``RowSlice`` are skipped, unless the pass keeps row state.
        ``combine(a, b)`` must copy the parts of ``b`` that it uses, because ``b`` may be a retained
        total.

        Only one run at a time can use the name of a row state. A pass without a replay, or with a
        generation that does not follow the last generation, begins a new run without the earlier
        state.
        """
        spec = PassSpec(
            chunk_fn=chunk_fn,
            broadcast=broadcast,
            start=start,
            combine=combine,
            state=None if state is None else self._state_spec(state, rows),
            rows=rows,
            # Chunks cannot be shown as one array if their rows are normalised or skipped.
            joined=joined and self._shown_as_they_lie(),
            preparation=self._preparation(),
        )
        replay = () if state is None else state.replay
        return self._timed(spec, replay, self._checked(chunks))

    def _checked(self, chunks: Sequence[int] | None) -> Sequence[int]:
        if chunks is None:
            return range(self.n_chunks)
        chosen = sorted({int(index) for index in chunks})
        if chosen and not 0 <= chosen[0] <= chosen[-1] < self.n_chunks:
            raise ParameterError(
                f"chunk indices must be from 0 to {self.n_chunks - 1}, got {chosen}."
            )
        return chosen

    def _timed(
        self, spec: PassSpec, replay: tuple[tuple[Any, ...], ...], chunks: Sequence[int]
    ) -> Any:
        self.last = report = PassReport(passes=1)
        if self._progress_reporter is not None:
            self._progress_reporter.begin()
        began = time.perf_counter()
        try:
            self.raise_if_stopped()
            found = self.retry(lambda: self._run(spec, replay, chunks, report))
        finally:
            report.seconds = time.perf_counter() - began
            self.total.add(report)
        self._has_worked = True
        return found

    def count_subset(self, report: PassReport, on_workers: bool) -> None:
        """Add the cost of a pass over a subset."""
        if on_workers:
            self.total.add(report)
        else:
            self.subset_seconds += report.compute

    def on_workers(
        self,
        rows: NDArray[np.int64],
        weight: NDArray[np.float64] | None,
        statistics: Statistics,
        directions: Directions | None,
        *,
        any_order: bool,
    ) -> BasePasses | None:
        """Return passes that workers run over some rows; None if they are not worth it.

        ``rows`` (n,) are distinct global indices; see :meth:`ClusterPasses.on_workers`.
        """
        return None

    def compute(self, function: Callable[..., Any], *given: Any, distances: int) -> Any:
        """See ``algorithms.base.Passes.compute``."""
        x, weight, _ = self.take()
        return function(x, weight, self.threads, *given)

    def on_one_worker(self, statistics: Statistics) -> BasePasses | None:
        """Return passes over a single row, which one worker runs; None without workers."""
        return None

    def retry(self, call: Callable[[], T]) -> T:
        """Return the result of a call, retrying it while storage is unavailable.

        The call is retried for ``stores.patience-seconds``, with growing pauses. Once a pass has
        succeeded, errors of missing, forbidden or full storage are retried too. A retried pass
        counts every chunk once.
        """
        reported: list[Exception] = []

        def limit(error: Exception) -> float | None:
            kind = trouble(error)
            if kind is None or (kind == "lacking" and not self._has_worked):
                return None
            return float(config.get("stores.patience-seconds"))

        def report(error: Exception, seconds: float) -> None:
            reported.append(error)
            self._say("storage", f"{error}; retrying for {seconds:.0f} s")

        def cancelled() -> bool:
            self.raise_if_stopped()
            return self.is_given_up()

        found = retry(
            call,
            limit,
            pause=max(TICK_SECONDS, float(config.get("stores.pause-seconds"))),
            longest_pause=LONGEST_PAUSE,
            from_first_error=True,
            cancelled=cancelled,
            report=report,
        )
        if reported:
            self._say("back", "storage answers again: continuing")
        return found

    @abstractmethod
    def _run(
        self,
        spec: PassSpec,
        replay: tuple[tuple[Any, ...], ...],
        chunks: Sequence[int],
        report: PassReport,
    ) -> Any:
        """Run one pass, fill in its report and return the total."""

    def _state_spec(self, state: RowState, rows: RowSlice | None) -> StateSpec:
        run = self._runs.get(state.name)
        if run is None or not state.replay or state.generation not in (run[1], run[1] + 1):
            self._n_runs += 1
            run = (self._n_runs, state.generation)
            self._written[state.name] = {}
        self._runs[state.name] = (run[0], state.generation)
        written, before = self._written[state.name], state.generation - 1
        rebuild_rows, n_before = self._written_for(state)
        if state.replay and rebuild_rows is None:
            if before not in written and rows is not None:
                raise ValueError(
                    f"row state {state.name!r}: a pass over a share of the rows needs "
                    f"rebuild_rows; pass the rows for which generation {before} was written"
                )
            rebuild_rows = written.get(before)
        if state.rebuild is None:
            kept = {before: written[before]} if before in written else {}
            self._written[state.name] = {**kept, state.generation: rows}
        return StateSpec(
            name=state.name,
            epoch=run[0],
            generation=state.generation,
            first=not state.replay,
            retain=state.retain,
            rebuild=state.rebuild,
            rebuild_start=state.rebuild_start,
            rebuild_rows=rebuild_rows,
            n_before=n_before,
        )

    def _written_for(self, state: RowState) -> tuple[RowSlice | None, int | None]:
        """Return the row slice and the number of chunks of the last generation."""
        return state.rebuild_rows, None

    def _preparation(self) -> Preparation:
        known = self._statistics
        return Preparation(
            normalize=self.normalize,
            on_bad_rows=self.on_bad_rows,
            # Statistics do not cover rows of weight 0, which may contain NaN or infinity.
            check=known is None or known.n_bad > 0 or self.rows.weight is not None,
            shift=np.zeros(self.n_features) if known is None else known.shift,
        )

    def _shown_as_they_lie(self) -> bool:
        return self.normalize is None and not self.statistics.n_bad

    def begin_run(self) -> None:
        """Begin another start of an algorithm: drop all state of earlier starts.

        The earlier state must be dropped, because a start resumed from a checkpoint may begin with
        the generation that follows the last generation of an earlier start.
        """
        self._runs.clear()
        if self._subsets is not None:
            self._subsets.clear()

    def _stop(self) -> BaseException | None:
        if self._progress_reporter is not None:
            self._progress_reporter.look()
        if self.cancelled is not None and self.cancelled():
            return CancelledFit("the driver asked for a stop")
        if self.deadline is not None and time.monotonic() > self.deadline:
            return CancelledFit("the time limit has passed")
        return None

    @property
    def threads(self) -> Threads:
        """The threads of this process, for work between passes."""
        return Threads(self.threads_here, self.raise_if_stopped)

    def raise_if_stopped(self) -> None:
        """Raise CancelledFit if a stop was requested or the time limit has passed."""
        if (error := self._stop()) is not None:
            raise error

    def progress(self) -> tuple[int, int]:
        """Return (number of finished chunks, number of all chunks), or (0, 0) between passes."""
        return 0, 0

    @property
    def statistics(self) -> Statistics:
        """Mean, extent, weight and grid of the rows, computed by a scan at first use unless stored.

        Raises BadRowsError for NaN or infinity if ``on_bad_rows`` is "raise", and DataError if no
        row has any weight, or a weight is invalid.
        """
        if self._statistics is None:
            stored = self.rows.stored_statistics()
            if stored is not None and self.normalize is None and self.rows.weight is None:
                found = read_statistics(
                    stored, self.rows.shape, self.rows.dtype, self.rows.location or "the store"
                )
            else:
                dtype = self.rows.dtype
                if self.normalize is not None:
                    dtype = compute_dtype(dtype)
                # Bypass `reduce`, which would refuse or skip the bad rows that this scan counts.
                spec = PassSpec(
                    chunk_fn=scan_chunk,
                    broadcast=(),
                    start=partial(RowScan, self.n_features, dtype),
                    combine=RowScan.merge,
                    preparation=Preparation(normalize=self.normalize),
                )
                scan: RowScan = self._timed(spec, (), range(self.n_chunks))
                found = scan.finish()
            self._check(found)
            self._statistics = found
        return self._statistics

    def _check(self, found: Statistics) -> None:
        if found.n_bad and self.on_bad_rows == "raise":
            assert found.first_bad is not None
            index = int(np.searchsorted(self.rows.chunk_table, found.first_bad, "right")) - 1
            raise bad_row_error(self.rows, found.first_bad, index)
        if found.n_bad and not found.n_rows:
            columns = name_bad_columns(self.rows, self.rows.read(0))
            where = f" ({columns}: no number in {self.rows.name_chunk(0)})" if columns else ""
            raise DataError(
                f"all {found.n_bad} rows contain NaN or infinity{where}; clean the data, or drop "
                "these columns."
            )
        if not found.total_weight > 0:
            raise DataError("all sample weights are zero; at least one must be positive.")
        least = found.grid.least_weight(found.max_abs)
        if found.min_weight < least:
            raise DataError(_too_light(found, least))

    def take(self, rows: NDArray[np.int64] | None = None) -> TakenRows:
        """Return the rows with these global indices, in this order; None means all rows."""
        rows = np.arange(self.n_rows) if rows is None else np.asarray(rows, np.int64)
        if not len(rows):
            nothing = np.empty((0, self.n_features), self.statistics.dtype)
            return TakenRows(nothing, None, rows)
        if rows.min() < 0 or rows.max() >= self.n_rows:
            raise ParameterError(f"row indices must be from 0 to {self.n_rows - 1}, got {rows}.")
        taken = self._take_in_memory(rows)
        return fetch(self, rows, self.statistics.dtype) if taken is None else taken

    def _take_in_memory(self, rows: NDArray[np.int64]) -> TakenRows | None:
        """Return the rows if the table is one array in this process, else None."""
        whole = self.in_one_piece()
        if whole is None:
            return None
        x, weight = whole
        if not (len(rows) == self.n_rows and rows[0] == 0 and (np.diff(rows) == 1).all()):
            x, weight = rows_at(x, rows, self.threads.n), None if weight is None else weight[rows]
        if weight is not None and not weight.all():
            # Only chunks replace NaN in rows of weight 0, so do not return these rows directly.
            return None
        return TakenRows(x.astype(self.statistics.dtype, copy=False), weight, rows)

    def in_one_piece(self) -> tuple[Table, NDArray[np.float64] | None] | None:
        """Return all rows and weights if they are one array in this process, else None.

        Rows of weight 0 may contain any values, even NaN.
        """
        return None

    def subset(
        self,
        rows: SubsetRows,
        weights: NDArray[np.float64] | None = None,
        *,
        own_weights: bool = False,
        cuts: Sequence[int] = (),
    ) -> Subset:
        """Return passes over some of the rows; see ``algorithms.base.Passes.subset``."""
        if self._subsets is None:
            # Import here, because `passes.subset` imports this module.
            from largek_dask.passes.subset import Subsets

            self._subsets = Subsets()
        return self._subsets.find(self, rows, weights, own_weights=own_weights, cuts=cuts)

    def forget_subset(self, passes: Subset) -> None:
        if self._subsets is not None:
            self._subsets.forget(passes)

    def log(self, callback: LogCallback) -> None:
        """Call ``callback(kind, message)`` for each message to the user during a pass."""
        self._callbacks.append(callback)

    def _say(self, kind: str, message: str, **about: str) -> None:
        if not self._callbacks:
            # Without callbacks, log the message, so that the user knows why the pass waits.
            logger.warning(message)
        for callback in self._callbacks:
            callback(kind, message, **about)

    @abstractmethod
    def close(self) -> None:
        """End the threads and drop all state."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def scan_chunk(chunk: Chunk, total: RowScan) -> None:
    """Add a chunk to the statistics; rows with NaN or infinity are only counted."""
    total.add(chunk.x, chunk.weight, chunk.start)


def _too_light(found: Statistics, least: float) -> str:
    """Return advice for weights whose range is too wide for exact sums."""
    low, high = found.min_weight, found.max_weight
    if least > high:
        return (
            f"sample weights of {low:.3g} to {high:.3g} are too small: multiply them by a constant."
        )
    return (
        f"sample weights range from {low:.3g} to {high:.3g}, a factor of {high / low:.3g}: for a "
        f"total weight of {found.total_weight:.3g}, centres of rows lighter than {least:.3g} "
        "cannot be found. Leave such rows out (weight 0), or give them more weight."
    )
