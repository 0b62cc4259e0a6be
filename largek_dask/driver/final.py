"""The last pass: every row's label, the exact inertia, and no cluster left empty.

``inertia`` is the sum of ``w ||x - c||^2`` over the rows with the centres that are returned, summed
without rounding; nothing that an algorithm estimated on its way is taken over.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, ModelArrays
from largek_dask.algorithms.relocation import relocate_empty
from largek_dask.driver.labels import LabelStore, LabelWriter, group_chunks
from largek_dask.driver.storage import sha256_of
from largek_dask.kernels.blocks import dense_rows
from largek_dask.kernels.dense.doubts import nearest_of_far, too_far
from largek_dask.kernels.distances import (
    PackedCenters,
    nearest,
    pack_centers,
    squared_distances,
)
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.passes.base import BasePasses

__all__ = ["Assignment", "Final", "assign_rows", "finalize", "of_search", "seconds_of_last_pass"]

SKIPPED = -1
"""Label of a row with NaN or infinity."""
TRIAL_ROWS = 2_048
"""Rows on which the time of the last pass is found, the best of some trials."""
TRIALS = 3
MORE = 1.25
"""What the last pass takes beside finding the nearest centres: distances, sums, labels."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """Every row at its nearest centre."""

    labels: NDArray[np.int32] | None
    """(n,) labels, -1 for rows with NaN or infinity; None if they went to storage or nowhere."""
    inertia: float
    """Sum of ``w ||x - c||^2``, rounded once."""
    counts: NDArray[np.float64]
    """(k,) weight of the rows of each cluster."""
    n_bad: int
    """Rows with NaN or infinity."""


class AssignmentTotal:
    """What one process adds up: labels by chunk, inertia and weights."""

    __slots__ = ("labels", "sums")

    def __init__(self, n_clusters: int) -> None:
        self.labels: dict[int, NDArray[np.int32]] = {}
        self.sums = {
            "inertia": ExactSums(1),
            "counts": ExactSums(n_clusters),
            "n_bad": ExactSums(1),
        }

    @property
    def nbytes(self) -> int:
        """Bytes that travel when this total is sent."""
        return sum(labels.nbytes for labels in self.labels.values()) + sum(
            sums.nbytes for sums in self.sums.values()
        )

    @staticmethod
    def combine(a: AssignmentTotal, b: AssignmentTotal) -> AssignmentTotal:
        """Add ``b`` into ``a``."""
        a.labels.update(b.labels)
        for name, sums in a.sums.items():
            sums.merge(b.sums[name])
        return a


def assign_chunk(
    chunk: Chunk,
    total: AssignmentTotal,
    centers: PackedCenters,
    keep_labels: bool,
    writer: LabelWriter | None,
) -> None:
    """Label a chunk's rows and add their exact squared distances."""
    labels = nearest(chunk.x, centers)
    distances = squared_distances(chunk.x, centers, labels)
    far = too_far(distances, centers.dtype)
    if len(far):
        labels[far] = nearest_of_far(dense_rows(chunk.x[far]), centers.centers)
        distances = squared_distances(chunk.x, centers, labels)
    # Rows that are skipped weigh 0, so they count nowhere.
    total.sums["inertia"].add(distances, chunk.weight)
    total.sums["counts"].add(np.ones(len(labels)), chunk.weight, labels)
    if chunk.bad is not None:
        labels[chunk.bad] = SKIPPED
        total.sums["n_bad"].add(chunk.bad.astype(np.float64))
    if writer is not None:
        writer.write(chunk.start, labels)
    elif keep_labels:
        total.labels[chunk.index] = labels


def assign_rows(
    passes: BasePasses,
    arrays: ModelArrays,
    *,
    labels: bool = True,
    out: LabelStore | None = None,
    told: Callable[[int], None] | None = None,
) -> Assignment:
    """Assign every row to its nearest centre.

    Parameters
    ----------
    passes : LocalPasses or ClusterPasses
    arrays : ModelArrays
        The centres, and the shift with which the fit has packed them: so the labels are the
        same as in the fit, to the bit.
    labels : bool
        False: only inertia and counts.
    out : LabelStore, optional
        Where the labels go; without it they come back in memory. What is done there already is
        not done again.
    told : callable, optional
        Called with the number of rows done, after every group of chunks.

    Returns
    -------
    Assignment
    """
    packed = pack_centers(arrays.centers, arrays.shift)
    n_clusters = len(arrays.centers)
    table = passes.rows.chunk_table
    done, first = AssignmentTotal(n_clusters), 0
    if out is not None:
        first, sums = passes.outlast(lambda: out.begin(sha256_of(arrays.centers)))
        done.sums.update(sums)
    in_memory = np.empty(passes.n_rows, np.int32) if labels and out is None else None
    writer = None if out is None else out.writer
    for group in group_chunks(table[first:]):
        chunks = [first + i for i in group]
        total: AssignmentTotal = passes.reduce(
            assign_chunk,
            packed,
            labels,
            writer,
            start=partial(AssignmentTotal, n_clusters),
            combine=AssignmentTotal.combine,
            chunks=chunks,
        )
        start, stop = int(table[chunks[0]]), int(table[chunks[-1] + 1])
        if total.labels:
            together = np.concatenate([total.labels.pop(i) for i in chunks])
            if in_memory is not None:
                in_memory[start:stop] = together
            elif out is not None:
                passes.outlast(partial(out.write, start, together))
        AssignmentTotal.combine(done, total)
        if out is not None:
            passes.outlast(partial(out.record, chunks[-1] + 1, done.sums))
        if told is not None:
            told(stop)
    return Assignment(
        labels=in_memory,
        inertia=float(done.sums["inertia"].values[0]),
        counts=done.sums["counts"].values,
        n_bad=int(done.sums["n_bad"].values[0]),
    )


def seconds_of_last_pass(passes: BasePasses, arrays: ModelArrays) -> float:
    """About how long :func:`assign_rows` is going to take, by a trial on a few rows."""
    x = passes.take(np.arange(min(passes.n_rows, TRIAL_ROWS)))
    packed = pack_centers(arrays.centers, arrays.shift)
    seconds = []
    for _ in range(TRIALS):
        begun = time.monotonic()
        squared_distances(x, packed, nearest(x, packed))
        seconds.append(time.monotonic() - begun)
    return MORE * min(seconds) * passes.n_rows / len(x) / max(1, passes.driver_threads)


def of_search(
    arrays: ModelArrays, labels: NDArray[np.int32], inertia: float, counts: NDArray[np.float64]
) -> Final:
    """Where there was no time for the last pass: the labels of a search, as they are.

    Parameters
    ----------
    arrays : ModelArrays
    labels : int32 (n,)
        -1 for rows that were left out of the search.
    inertia : float
        With these labels.
    counts : (k,)
        Weight of the rows of each cluster.
    """
    arrays = replace(arrays, counts=counts)
    n_bad = int(np.count_nonzero(labels == SKIPPED))
    assignment = Assignment(labels, inertia, counts, n_bad)
    n_empty = int(np.count_nonzero(counts == 0))
    return Final(arrays, assignment, n_empty, None, labelled=True)


@dataclass(frozen=True, slots=True)
class Final:
    """A model whose every number has been computed anew over all rows."""

    arrays: ModelArrays
    assignment: Assignment
    n_empty: int
    """Clusters without rows that are left."""
    n_distinct: int | None
    """How many distinct rows there are where that is fewer than clusters, else None."""
    labelled: bool
    """The labels are in the assignment, or in storage."""


def finalize(
    passes: BasePasses,
    arrays: ModelArrays,
    *,
    empty_clusters: Literal["relocate", "keep"],
    labels: bool = True,
    out: LabelStore | None = None,
    told: Callable[[int], None] | None = None,
) -> Final:
    """Assign all rows to the centres that are returned; move those that nobody needs.

    A centre without rows goes to the row farthest from its own centre, until every cluster has
    rows or every distinct row a centre. One round is the rule, two are rare. Every round leaves at
    least one more centre on a row, from where nothing takes that row away, so there cannot be
    more rounds than centres.

    Parameters
    ----------
    passes, labels, out, told
        See :func:`assign_rows`.
    arrays : ModelArrays
        What the algorithm ended with.
    empty_clusters : "relocate" or "keep"
    """
    n_distinct = None
    rounds = len(arrays.centers)
    while True:
        found = assign_rows(passes, arrays, labels=labels, out=out, told=told)
        empty = np.flatnonzero(found.counts == 0)
        if not len(empty) or empty_clusters == "keep" or not rounds:
            break
        rounds -= 1
        packed = pack_centers(arrays.centers, arrays.shift)
        centers, _, distinct = relocate_empty(passes, packed, arrays.centers, empty)
        if distinct is not None:
            # What is left of an error is that of a mean of equal rows, or of an early end.
            n_distinct = len(distinct[0])
            centers = centers.copy()
            centers[distinct[0]] = distinct[1]
        if np.array_equal(centers, arrays.centers):
            break
        arrays = replace(arrays, centers=centers)
    return Final(
        arrays=replace(arrays, counts=found.counts),
        assignment=found,
        n_empty=len(empty),
        n_distinct=n_distinct,
        labelled=labels,
    )
