"""What can be known to go wrong before anything is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from largek_dask import config
from largek_dask.algorithms.base import Algorithm
from largek_dask.algorithms.problem import Problem
from largek_dask.data.rows import Rows
from largek_dask.driver.labels import LABEL_BYTES
from largek_dask.errors import DataError, NotEnoughMemoryError, ParameterError
from largek_dask.kernels.exact.statistics import Statistics, compute_dtype
from largek_dask.passes.local import available_cpus
from largek_dask.passes.rowstate import process_memory

if TYPE_CHECKING:
    from distributed import Client

__all__ = [
    "check_memory",
    "check_output_fits",
    "check_problem",
    "check_rows_that_count",
    "check_scale",
    "memory_needed",
    "space_needed",
]


def check_problem(
    rows: Rows, problem: Problem, *, n_threads: int | None, client: Client | None
) -> None:
    """Refuse what cannot work with these rows.

    Raises
    ------
    ParameterError
        There are fewer rows than clusters, or what the kind of problem refuses (starting centres
        that are not k rows of finite numbers, say).
    NotEnoughMemoryError
        The centres and their sums do not fit the memory there is.
    """
    k = problem.n_clusters
    if k > rows.n_rows:
        raise ParameterError(
            f"n_clusters={k} is more than there are rows (n_samples={rows.n_rows}): ask for fewer."
        )
    problem.check(rows)
    check_memory(k, rows, n_threads, client)


def check_rows_that_count(n_clusters: int, statistics: Statistics) -> None:
    """Refuse more clusters than rows that have a weight and no NaN.

    Raises
    ------
    ParameterError
        There are fewer of them than clusters.
    """
    if n_clusters > statistics.n_rows:
        raise ParameterError(
            f"n_clusters={n_clusters} is more than there are rows of positive weight without NaN "
            f"or infinity (n_samples={statistics.n_rows}): ask for fewer."
        )


def check_scale(statistics: Statistics) -> None:
    """Refuse rows that lie so close together that their squared distances underflow.

    Raises
    ------
    DataError
        With the power of two to multiply by: it changes no digit of any row.
    """
    kind, extent = np.finfo(statistics.dtype), statistics.max_abs
    # squares of differences a thousand times smaller are to be normal numbers as well
    if 0 < extent < np.sqrt(float(kind.smallest_normal) / float(kind.eps)):
        exponent = -int(np.frexp(extent)[1])
        # Sparse rows stay about 0.
        origin = "the mean of its column" if statistics.shift.any() else "0"
        raise DataError(
            f"no value is farther than {extent:.3g} from {origin}: squared distances underflow "
            f"{statistics.dtype}; multiply the data by 2.0**{exponent}, and divide what "
            "is found by it"
        )


def memory_needed(
    n_clusters: int, n_features: int, itemsize: int, n_threads: int, wide: bool = False
) -> int:
    """Bytes that centres and sums take in one process, without rows and row state.

    Six copies of the centres (the model before and after a step, packed, sent, written), and
    64-bit sums and weights once a thread, once retained and once merged. Wide sums (see
    ``kernels.fixed_point``) have two limbs, which are once more read as one.
    """
    sums = (2 * (n_threads + 2) + 1 if wide else n_threads + 2) * (n_features + 1) * 8
    return n_clusters * (n_features * 6 * itemsize + sums)


def check_memory(
    n_clusters: int, rows: Rows, n_threads: int | None, client: Client | None, wide: bool = False
) -> None:
    """Refuse a number of clusters whose centres and sums do not fit the memory there is.

    Raises
    ------
    NotEnoughMemoryError
        With the figures.
    """
    itemsize = compute_dtype(rows.dtype).itemsize
    for where, threads, available in _processes(n_threads, client):
        needed = memory_needed(n_clusters, rows.n_features, itemsize, threads, wide)
        if needed > available:
            why = " (weights, or rows, differ so much that sums are twice as large)" if wide else ""
            raise NotEnoughMemoryError(
                f"{n_clusters} clusters of {rows.n_features} features need about "
                f"{_gigabytes(needed)} with {threads} threads{why}, and {where} has "
                f"{_gigabytes(available)}. Ask for fewer clusters, use fewer threads, or a "
                "machine with more memory."
            )


FILES = 1 << 20
"""Bytes of everything small: events, descriptions, the last piece of each array."""


def space_needed(
    rows: Rows, n_clusters: int, algorithm: Algorithm[Any], *, n_init: int, labels: bool
) -> int:
    """About how many bytes a fit writes: checkpoints of every start, a model, perhaps labels.

    One checkpoint more than are kept: the next is whole before an old one goes.
    """
    centers = n_clusters * (rows.n_features * compute_dtype(rows.dtype).itemsize + 8)
    kept = max(1, int(config.get("checkpoints.keep"))) + 1
    # Models are replaced: for a moment there are two.
    written = centers * (n_init * kept * algorithm.state_copies + 2)
    return written + FILES + (rows.n_rows * LABEL_BYTES if labels else 0)


def check_output_fits(
    shape: tuple[int, int], itemsize: int, advice: str = "Take fewer rows at a time."
) -> None:
    """Refuse to make an array in memory that does not fit it; ``advice`` is what to do instead.

    Raises
    ------
    NotEnoughMemoryError
        With the figures.
    """
    needed = shape[0] * shape[1] * itemsize
    available = _available()
    if needed > available:
        raise NotEnoughMemoryError(
            f"An array of shape {shape} needs {_gigabytes(needed)}, and this machine has "
            f"{_gigabytes(available)}. {advice}"
        )


def _available() -> int:
    """Bytes that this process could still take."""
    return int(min(process_memory(), psutil.virtual_memory().available))


def _processes(n_threads: int | None, client: Client | None) -> list[tuple[str, int, int]]:
    """Name, threads and available bytes of every process that computes."""
    if client is None:
        return [("this machine", n_threads or available_cpus(), _available())]
    from largek_dask.passes.network import workers_known_to

    return [
        (f"worker {address}", int(worker["nthreads"]), int(worker["memory_limit"]))
        for address, worker in workers_known_to(client).items()
        if worker["memory_limit"]
    ]


def _gigabytes(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.1f} MB"
