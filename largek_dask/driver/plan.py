"""Check a fit's parameters, memory and disk space before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from dask.utils import format_bytes
from numpy.typing import NDArray

from largek_dask import config
from largek_dask.algorithms.base import Algorithm, Footprint, PlannedTable
from largek_dask.algorithms.problem import Problem
from largek_dask.data.rows import Rows
from largek_dask.driver.labels import LABEL_BYTES
from largek_dask.errors import DataError, NotEnoughMemoryError, ParameterError
from largek_dask.kernels.exact.statistics import Statistics
from largek_dask.kernels.rows import compute_dtype
from largek_dask.passes.local import available_cpus, state_budget
from largek_dask.passes.rowstate import GENERATIONS, process_memory

if TYPE_CHECKING:
    from distributed import Client

    from largek_dask.passes.base import BasePasses


def check_problem(
    rows: Rows, problem: Problem, *, n_threads: int | None, client: Client | None
) -> None:
    """Raise ParameterError or NotEnoughMemoryError if a fit of these rows is impossible."""
    k = problem.n_clusters
    if k > rows.n_rows:
        raise ParameterError(
            f"n_clusters={k} is more than the number of rows (n_samples={rows.n_rows}); use "
            "fewer clusters."
        )
    problem.check(rows)
    check_memory(k, rows, n_threads, client)


def check_rows_that_count(n_clusters: int, statistics: Statistics) -> None:
    """Raise ParameterError if there are fewer valid rows than clusters."""
    if n_clusters > statistics.n_rows:
        raise ParameterError(
            f"n_clusters={n_clusters} is more than the number of rows of positive weight without "
            f"NaN or infinity (n_samples={statistics.n_rows}); use fewer clusters."
        )


def check_scale(statistics: Statistics) -> None:
    """Raise DataError if rows are so close together that squared distances underflow."""
    kind, extent = np.finfo(statistics.dtype), statistics.max_abs
    # Squares of differences a thousand times smaller must still be normal numbers.
    if 0 < extent < np.sqrt(float(kind.smallest_normal) / float(kind.eps)):
        exponent = -int(np.frexp(extent)[1])
        # Sparse rows are not shifted.
        origin = "the mean of its column" if statistics.shift.any() else "0"
        raise DataError(
            f"all values are within {extent:.3g} of {origin}, so squared distances underflow "
            f"{statistics.dtype}; multiply the data by 2.0**{exponent}, "
            "and divide the centres by this factor"
        )


def check_reach(passes: BasePasses, centers: NDArray[Any]) -> None:
    """Raise DataError if rows are so far from centres that squared distances overflow."""
    statistics = passes.statistics
    apart = np.abs(centers.astype(np.float64) / 2 - statistics.shift.astype(np.float64) / 2).max()
    if not 2 * apart + statistics.max_abs < _reach(centers):
        raise beyond_reach(centers)


def beyond_reach(centers: NDArray[Any]) -> DataError:
    return DataError(
        f"rows lie too far from the centres of the model: squares of distances above "
        f"{_reach(centers):.3g} overflow {centers.dtype}. Remove such rows, or divide these data "
        "and those of the fit by a constant."
    )


def _reach(centers: NDArray[Any]) -> float:
    """Return the maximum distance for which squared distances do not overflow."""
    return float(np.sqrt(float(np.finfo(centers.dtype).max) / centers.shape[1]))


def memory_needed(
    n_clusters: int, n_features: int, itemsize: int, n_threads: int, wide: bool = False
) -> int:
    """Return the bytes of centres and sums in one process, without rows and row state.

    The estimate includes six copies of the centres (before and after a step, packed, sent, written,
    and one for temporary arrays), and 64-bit sums and weights: one copy per thread, one retained
    copy and one merged copy. Wide sums (see ``kernels.exact.fixed_point``) have two limbs, and need
    another copy to combine the limbs.
    """
    sums = (2 * (n_threads + 2) + 1 if wide else n_threads + 2) * (n_features + 1) * 8
    return n_clusters * (n_features * 6 * itemsize + sums)


def check_memory(
    n_clusters: int, rows: Rows, n_threads: int | None, client: Client | None, wide: bool = False
) -> None:
    """Raise NotEnoughMemoryError if the centres and sums do not fit in memory."""
    itemsize = compute_dtype(rows.dtype).itemsize
    for where, threads, available in _processes(n_threads, client):
        needed = memory_needed(n_clusters, rows.n_features, itemsize, threads, wide)
        if needed > available:
            why = " (weights, or rows, differ so much that sums are twice as large)" if wide else ""
            raise NotEnoughMemoryError(
                f"{n_clusters} clusters of {rows.n_features} features need about "
                f"{format_bytes(needed)} with {threads} threads{why}, but {where} has "
                f"{format_bytes(available)}. Use fewer clusters, fewer threads or a machine "
                "with more memory."
            )


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of a fit in one computing process, in bytes."""

    model: int
    """Bytes of centres, packed centres and exact sums."""
    chunks: int
    """Bytes of chunks that are being read or computed."""
    cached: int
    """Bytes of cached chunks; all jobs of a process share one cache."""
    row_state: int
    available: int

    @property
    def needed(self) -> int:
        """Bytes without the cache."""
        return self.model + self.chunks + self.row_state


@dataclass(frozen=True, slots=True)
class FitMemory:
    """Memory of a fit in bytes, independent of the number of processes."""

    model: int
    """Bytes of centres and sums, excluding the sums of each thread."""
    sums: int
    """Bytes of the sums of one thread."""
    chunk: int
    """Bytes of the largest chunk; each thread has one chunk, and two chunks are prefetched."""
    data: int
    row_state: int
    """Bytes of the row state of all rows, if all of it fits in memory."""

    def per_process(
        self, n_processes: int, n_threads: int, available: int, memory_limit: int | None
    ) -> ProcessMemory:
        """Estimate the memory of one process, which may use ``available`` bytes.

        ``memory_limit`` is the maximum row state per process in bytes; None means the default.
        """
        return ProcessMemory(
            model=self.model + n_threads * self.sums,
            chunks=self.chunk * (n_threads + 2),
            cached=min(int(config.get("passes.cache-bytes")), self.data // n_processes),
            row_state=min(self.row_state // n_processes, state_budget(memory_limit, available)),
            available=available,
        )


def footprint_of(
    rows: Rows,
    algorithm: Algorithm[Any, Any],
    n_threads: int | None = None,
    budget: int | None = None,
) -> Footprint:
    """Return the footprint of an algorithm and its problem, in the compute dtype of the rows."""
    itemsize, shape = compute_dtype(rows.dtype).itemsize, (rows.n_rows, rows.n_features)
    table = PlannedTable(*shape, rows.row_values, rows.is_sparse, itemsize, n_threads, budget)
    return algorithm.footprint(table)


def fit_memory(rows: Rows, n_clusters: int, footprint: Footprint) -> FitMemory:
    """Estimate the memory of a fit, including the previous row state kept for retries."""
    d, itemsize = rows.n_features, compute_dtype(rows.dtype).itemsize
    # Assume wide sums for weighted rows, as only a scan shows whether they are needed.
    wide = rows.weight is not None
    model = memory_needed(n_clusters, d, itemsize, 0, wide)
    own = footprint.row_bytes
    both = GENERATIONS * own - (GENERATIONS - 1) * min(own, footprint.fixed_row_bytes)
    return FitMemory(
        model=model,
        sums=memory_needed(n_clusters, d, itemsize, 1, wide) - model,
        # For sparse rows, this counts only the bytes of stored values.
        chunk=-(-int(np.diff(rows.chunk_table).max()) * rows.nbytes // rows.n_rows),
        data=rows.nbytes,
        row_state=both * (rows.n_rows if footprint.held_rows is None else footprint.held_rows),
    )


FILES = 1 << 20
"""Estimated total bytes of all small files; not tuned."""


def state_needed(rows: Rows, n_clusters: int, footprint: Footprint) -> int:
    """Estimate the largest size of an algorithm's state, in memory and in a checkpoint."""
    return _center_bytes(rows, n_clusters) * footprint.model_copies


def _center_bytes(rows: Rows, n_clusters: int) -> int:
    return n_clusters * (rows.n_features * compute_dtype(rows.dtype).itemsize + 8)


def space_needed(
    rows: Rows, n_clusters: int, footprint: Footprint, *, n_init: int, labels: bool
) -> int:
    """Estimate the bytes that a fit writes: checkpoints of each start, a model, and any labels.

    One extra checkpoint is counted, because an old checkpoint is removed only after the next one is
    complete.
    """
    # While a model is replaced, both versions take space.
    state, models = state_needed(rows, n_clusters, footprint), 2 * _center_bytes(rows, n_clusters)
    kept = max(1, int(config.get("checkpoints.keep"))) + 1
    written = n_init * kept * state + models
    return written + FILES + (rows.n_rows * LABEL_BYTES if labels else 0)


def check_output_fits(
    shape: tuple[int, int], itemsize: int, advice: str = "Take fewer rows at a time."
) -> None:
    """Raise NotEnoughMemoryError, with ``advice``, if an array does not fit in memory."""
    needed = shape[0] * shape[1] * itemsize
    available = _available()
    if needed > available:
        raise NotEnoughMemoryError(
            f"An array of shape {shape} needs {format_bytes(needed)}, but this machine has "
            f"{format_bytes(available)}. {advice}"
        )


def _available() -> int:
    return int(min(process_memory(), psutil.virtual_memory().available))


def _processes(n_threads: int | None, client: Client | None) -> list[tuple[str, int, int]]:
    """Return the name, number of threads and available bytes of each computing process."""
    if client is None:
        return [("this machine", n_threads or available_cpus(), _available())]
    from largek_dask.passes.network import workers_known_to

    return [
        (f"worker {address}", int(worker["nthreads"]), int(worker["memory_limit"]))
        for address, worker in workers_known_to(client).items()
        if worker["memory_limit"]
    ]
