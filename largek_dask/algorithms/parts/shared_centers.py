"""Rounds: passes over slices of rows, during which the centres stay fixed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, Passes, RowSlice, RowState
from largek_dask.algorithms.parts.totals import Additive, AssignmentTotal, Tally
from largek_dask.kernels.bounds.pruned import nearest_pruned
from largek_dask.kernels.distances import PackedCenters, pack_centers
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.sums import ClusterSums


@dataclass
class Labels(Tally):
    """Labels of all rows, by the index of the first row of each chunk, if requested."""

    labels: dict[int, NDArray[np.int32]] = field(default_factory=dict)


@dataclass
class SharedRoundTotal(Additive):
    """Total over the rows of one round."""

    counts: NDArray[np.int64]
    """(k,) number of rows per cluster of the partition, over chunks without weights."""
    weights: ExactSums
    """(k,) weight per cluster of the partition, over chunks with weights."""
    change: ClusterSums
    """Changes of the sums as rows move to the clusters of their nearest centres."""
    n_rows: int = 0
    n_weighted: int = 0

    @property
    def known(self) -> NDArray[np.float64]:
        """(k,) weight per cluster of the partition."""
        counts = self.counts.astype(np.float64)
        return counts + self.weights.values if self.n_weighted else counts

    @classmethod
    def of(cls, *shape: Any) -> SharedRoundTotal:
        """Return an empty total, given k, d and the grid of the sums."""
        return cls(np.zeros(shape[0], np.int64), ExactSums(shape[0]), ClusterSums(*shape))


def partition_chunk(
    chunk: Chunk, total: AssignmentTotal[Labels], c: PackedCenters, step: int, collect: bool
) -> None:
    """Label a chunk's rows by their nearest centre; rows of weight 0 get the label -1."""
    labels, _ = nearest_pruned(chunk.x, c)
    if chunk.weight is not None:
        labels[chunk.weight <= 0] = -1
    total.begin(step)
    old = None if chunk.state is None else chunk.state["labels"]
    total.assign(chunk.x, chunk.weight, old, labels, chunk.counted)
    if collect:
        total.tally.labels[chunk.start] = labels
    chunk.keep(labels=labels)


def round_chunk(chunk: Chunk, total: SharedRoundTotal, c: PackedCenters) -> None:
    """Add changes of sums as rows of the round move to the clusters of their nearest centres."""
    assert chunk.state is not None
    known = chunk.state["labels"]
    known = known if chunk.rows is None else known[chunk.rows]
    size = max(1, -(-len(chunk) // chunk.threads.n))

    def share(begin: int) -> SharedRoundTotal:
        change = total.change
        part = total if begin == 0 else SharedRoundTotal.of(*change.sums.shape, change.grid)
        for at, x, weight in chunk.pieces(slice(begin, begin + size)):
            old, (labels, _) = known[at], nearest_pruned(x, c)
            labels[old < 0] = -1
            if weight is None:
                part.counts += np.bincount(old, minlength=len(part.counts))
            else:
                part.weights.add(weight, None, old)
                part.n_weighted += len(old)
            part.change.move(x, old, labels, weight)
            part.n_rows += len(old)
        return part

    for part in chunk.threads.map(share, range(0, len(chunk), size))[1:]:
        total.merge(part)


def round_of(
    passes: Passes, packed: PackedCenters, labels: RowState, rows: RowSlice
) -> SharedRoundTotal:
    """Run one round of rows in one pass, and return its total."""
    k, d = packed.n_clusters, packed.n_features
    total: SharedRoundTotal = passes.reduce(
        round_chunk,
        packed,
        start=partial(SharedRoundTotal.of, k, d, passes.statistics.grid),
        combine=SharedRoundTotal.combine,
        state=labels,
        rows=rows,
        joined=not passes.is_sparse,
    )
    return total


def pack(c: NDArray[np.float64], shift: NDArray[Any]) -> PackedCenters:
    """Pack centres rounded to the compute dtype."""
    return pack_centers(c.astype(shift.dtype), shift)
