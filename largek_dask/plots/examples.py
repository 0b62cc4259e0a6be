"""What a report shows of the rows: those nearest to and farthest from some centres, and a sample.

One pass over the rows that are looked at, here or on a cluster. Of every chunk only what may be
shown comes back, so that neither the rows nor the number of clusters matter for memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, Rng
from largek_dask.algorithms.parts.totals import Additive
from largek_dask.algorithms.problem import Labelling
from largek_dask.kernels.blocks import dense_rows, rows_at
from largek_dask.kernels.distances import PackedCenters, pack_centers, squared_distances
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.rows import compute_dtype
from largek_dask.model.base import Model
from largek_dask.model.separation import sampled_rows
from largek_dask.passes.base import BasePasses
from largek_dask.passes.chunks import ChunkView

__all__ = ["Examples", "Looked", "find_examples"]

MOST_BEHIND = 1_500
"""Rows that are drawn behind the centres."""
MOST_NUMBERS = 4_000_000
"""Numbers of these rows together: of very long rows fewer are drawn."""


@dataclass(frozen=True, slots=True)
class Looked:
    """Some rows of a cluster, in the order of their distances."""

    rows: NDArray[np.int64]
    """(m,) indices."""
    distances: NDArray[np.float64]
    """(m,) to the cluster's centre."""
    x: NDArray[Any]
    """(m, d) the rows, normalised where the model does."""


@dataclass(frozen=True, slots=True)
class Examples:
    """What was found of the rows."""

    n_looked: int
    """Rows that were looked at and belong to a cluster."""
    is_sample: bool
    """Whether these are a sample of all rows."""
    nearest: dict[int, Looked]
    """By chosen cluster."""
    farthest: dict[int, Looked]
    """By chosen cluster, the farthest first."""
    behind: NDArray[Any]
    """(m, d) rows to be drawn behind the centres."""
    mean_distances: NDArray[np.float64]
    """(k,) of the rows of each cluster that were looked at to its centre; NaN without any."""


@dataclass
class ExampleTotal(Additive):
    """What is known of some chunks."""

    distances: ExactSums
    """Weighted distances, one sum a cluster."""
    weights: ExactSums
    parts: dict[int, tuple[dict[int, tuple[Looked, Looked]], NDArray[Any]]]
    """By chunk: of every chosen cluster rows near and far, and those to be drawn."""
    n_looked: int = 0

    @classmethod
    def of(cls, k: int) -> ExampleTotal:
        """Of no row."""
        return cls(ExactSums(k), ExactSums(k), {})


@dataclass(frozen=True, slots=True, eq=False)
class Looking:
    """What is looked for; travels to workers."""

    labelling: Labelling
    centers: PackedCenters
    rows: NDArray[np.int64] | None
    """Ascending indices of the rows that are looked at; None: all."""
    behind: NDArray[np.int64]
    """Those among them that are drawn, ascending."""
    chosen: tuple[int, ...]
    """Clusters whose rows are shown."""
    most: int
    """Rows that are shown at each end."""


def find_examples(
    passes: BasePasses, model: Model, chosen: Sequence[int], most: int, sample: int, seed: int
) -> Examples:
    """Return what one pass over the rows, or over a sample, finds.

    ``most`` rows are returned at either end of each chosen cluster. Sampled rows are those of
    ``Separation.of`` with this seed.
    """
    centers = model._cluster_centers()
    assert centers is not None
    n, k = passes.n_rows, len(centers)
    dtype = np.promote_types(centers.dtype, compute_dtype(passes.rows.dtype))
    rows, chunks = None, None
    if sample < n:
        rows, chunks = sampled_rows(passes, sample, seed)
    looking = Looking(
        model._labelling(dtype),
        pack_centers(centers.astype(dtype, copy=False), model.arrays.shift),
        rows,
        _drawn(n if rows is None else len(rows), passes.n_features, rows, seed),
        tuple(map(int, chosen)),
        most,
    )
    total: ExampleTotal = passes.reduce(
        _look_chunk,
        looking,
        start=partial(ExampleTotal.of, k),
        combine=ExampleTotal.combine,
        chunks=chunks,
    )
    parts = [total.parts[i] for i in sorted(total.parts)]
    ends = {j: [found[j] for found, _ in parts if j in found] for j in looking.chosen}
    weights = total.weights.values
    return Examples(
        n_looked=total.n_looked,
        is_sample=rows is not None,
        nearest={j: _best([near for near, _ in found], most) for j, found in ends.items() if found},
        farthest={
            j: _best([far for _, far in found], most, -1) for j, found in ends.items() if found
        },
        behind=np.concatenate([x for _, x in parts]),
        mean_distances=np.divide(
            total.distances.values, weights, out=np.full(k, np.nan), where=weights > 0
        ),
    )


def _drawn(n: int, n_features: int, rows: NDArray[np.int64] | None, seed: int) -> NDArray[np.int64]:
    """Rows to be drawn, among those that are looked at."""
    most = min(n, MOST_BEHIND, max(1, MOST_NUMBERS // n_features))
    rng = Rng(seed).generator(0, "behind")
    places = np.sort(rng.choice(n, most, replace=False, shuffle=False))
    return places if rows is None else rows[places]


def _look_chunk(chunk: Chunk, total: ExampleTotal, looking: Looking) -> None:
    """Look at a chunk's rows."""
    stop = chunk.start + len(chunk)
    x, weight, numbers, bad = chunk.x, chunk.weight, chunk.numbers(), chunk.bad
    if looking.rows is not None:
        begin, end = np.searchsorted(looking.rows, (chunk.start, stop))
        numbers = looking.rows[begin:end]
        places = numbers - chunk.start
        x = rows_at(x, places)
        weight = None if weight is None else weight[places]
        bad = None if bad is None else bad[places]
    how = looking.labelling
    sums = {name: ExactSums(length) for name, length in how.sums.items()}
    view = ChunkView(chunk.index, chunk.start, x, weight, known=numbers)
    labels = how.chunk_fn(view, sums, *how.broadcast)
    distances = np.sqrt(squared_distances(x, looking.centers, labels))
    counts = np.ones(len(labels), bool) if weight is None else weight > 0
    if bad is not None:
        counts &= ~bad
    total.n_looked += int(np.count_nonzero(counts))
    total.distances.add(distances, weight, labels)
    total.weights.add(np.ones(len(labels)), weight, labels)
    found: dict[int, tuple[Looked, Looked]] = {}
    for j in looking.chosen:
        places = np.flatnonzero((labels == j) & counts)
        if len(places):
            order = places[np.lexsort((numbers[places], distances[places]))]
            found[j] = tuple(  # type: ignore[assignment]
                Looked(numbers[at], distances[at], dense_rows(rows_at(x, at)))
                for at in (order[: looking.most], order[: -looking.most - 1 : -1])
            )
    drawn = np.isin(numbers, looking.behind, assume_unique=True) & counts
    total.parts[chunk.index] = found, dense_rows(rows_at(x, np.flatnonzero(drawn)))


def _best(parts: Sequence[Looked], most: int, sign: int = 1) -> Looked:
    """The nearest of all that chunks have found, or with ``sign`` -1 the farthest."""
    rows, distances = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("rows", "distances")
    )
    order = np.lexsort((sign * rows, sign * distances))[:most]
    x = np.concatenate([part.x for part in parts])
    return Looked(rows[order], distances[order], x[order])
