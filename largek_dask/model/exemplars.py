"""Find the rows of each cluster that are nearest to and farthest from its centre."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk
from largek_dask.data.rows import Rows
from largek_dask.kernels.distances import PackedCenters
from largek_dask.model.predictions import labels_and_distances
from largek_dask.passes.base import BasePasses


@dataclass(frozen=True, slots=True)
class ExemplarRows:
    """Nearest or farthest rows of k clusters, at most n per cluster."""

    rows: NDArray[np.int64]
    """(k, n) row indices in the table; -1 if a cluster has fewer than n rows."""
    ids: NDArray[Any]
    """(k, n) row ids, or row indices if the table has no ids. If a cluster has fewer than n rows,
    missing entries are None, or -1 for ids in int64."""
    distances: NDArray[np.float64]
    """(k, n) distances to the centre; NaN if a cluster has fewer than n rows."""


@dataclass(frozen=True, slots=True)
class Exemplars:
    """Typical and atypical rows of each cluster."""

    nearest: ExemplarRows
    """Rows nearest to the centre, sorted by ascending distance."""
    farthest: ExemplarRows
    """Rows farthest from the centre, sorted by descending distance."""


class _Extremes:
    """Rows with the n smallest keys of each cluster; ties are sorted by row index."""

    def __init__(self, n_clusters: int, n: int) -> None:
        self.keys = np.full((n_clusters, n), np.inf)
        self.rows = np.full((n_clusters, n), -1, np.int64)

    def add(self, labels: NDArray[Any], keys: NDArray[Any], rows: NDArray[Any]) -> None:
        there = np.flatnonzero(self.rows.reshape(-1) >= 0)
        n = self.rows.shape[1]
        labels = np.concatenate([there // n, labels])
        keys = np.concatenate([self.keys.reshape(-1)[there], keys])
        rows = np.concatenate([self.rows.reshape(-1)[there], rows])
        order = np.lexsort((rows, keys, labels))
        labels = labels[order]
        rank = np.arange(len(labels)) - np.searchsorted(labels, labels)
        chosen = rank < n
        where = labels[chosen], rank[chosen]
        self.keys[where], self.rows[where] = keys[order[chosen]], rows[order[chosen]]

    def merge(self, other: _Extremes) -> None:
        found = np.flatnonzero(other.rows.reshape(-1) >= 0)
        rows, keys = other.rows.reshape(-1)[found], other.keys.reshape(-1)[found]
        self.add(found // self.rows.shape[1], keys, rows)


class _Total:
    """Nearest and farthest rows so far; the keys of the farthest rows are negated distances."""

    def __init__(self, n_clusters: int, n: int) -> None:
        self.near, self.far = _Extremes(n_clusters, n), _Extremes(n_clusters, n)

    @staticmethod
    def combine(total: _Total, other: _Total) -> _Total:
        total.near.merge(other.near)
        total.far.merge(other.far)
        return total


def find_exemplars(
    passes: BasePasses, packed: PackedCenters, measured: PackedCenters, is_cosine: bool, n: int
) -> Exemplars:
    """Find the ``n`` nearest and ``n`` farthest rows of each cluster, in one pass."""
    start = partial(_Total, packed.n_clusters, n)
    total = passes.reduce(
        _extremes_chunk, packed, measured, is_cosine, start=start, combine=_Total.combine
    )
    near = _with_ids(passes.rows, total.near, 1.0)
    return Exemplars(near, _with_ids(passes.rows, total.far, -1.0))


def _extremes_chunk(
    chunk: Chunk, total: _Total, packed: PackedCenters, measured: PackedCenters, is_cosine: bool
) -> None:
    labels, distances = labels_and_distances(chunk, packed, measured, is_cosine)
    good = np.flatnonzero(labels >= 0)
    labels, distances, rows = labels[good], distances[good], chunk.start + good
    total.near.add(labels, distances, rows)
    total.far.add(labels, -distances, rows)


def _with_ids(rows: Rows, found: _Extremes, sign: float) -> ExemplarRows:
    chosen = found.rows >= 0
    wanted = found.rows[chosen]
    ids: NDArray[Any] = np.empty(len(wanted), np.int64)
    chunks = np.searchsorted(rows.chunk_table, wanted, side="right") - 1
    for i in np.unique(chunks):
        here = chunks == i
        part = rows.read_ids(int(i))[wanted[here] - rows.chunk_table[i]]
        if not np.can_cast(part.dtype, np.int64):
            ids = ids.astype(object)
        ids[here] = part
    whole = np.full(found.rows.shape, None if ids.dtype == object else -1, ids.dtype)
    whole[chosen] = ids
    return ExemplarRows(found.rows, whole, np.where(chosen, sign * found.keys, np.nan))
