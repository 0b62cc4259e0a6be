"""The k-means problem: its parameters, model arrays and last pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from largek_dask.algorithms.base import Chunk, Passes, RowState, TableShape
from largek_dask.algorithms.choices import INITS, EmptyClusters
from largek_dask.algorithms.objective import INERTIA, Objective
from largek_dask.algorithms.parts.relocation import relocate_empty
from largek_dask.algorithms.problem import Final, Labelling, LabelRows, Problem
from largek_dask.algorithms.randomness import TakenRows
from largek_dask.algorithms.starts.seeding import check_init, drawn_centers, passes_of
from largek_dask.kernels.blocks import Table, dense_rows
from largek_dask.kernels.bounds.pruned import expect_rows, nearest_pruned
from largek_dask.kernels.dense.doubts import nearest_of_far, reach_of, too_far
from largek_dask.kernels.distances import PackedCenters, pack_centers, squared_distances
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.rows import compute_dtype

STATE = "nearest"
"""Name of the row state with the labels of the last pass."""
MOST_MOVED = 0.125
"""Maximum share of centres that have moved after the last pass, if rows are compared only with
these centres (not tuned)."""
FAR_VALUES = 1 << 22
"""Maximum number of values that are converted to dense rows at a time."""


@dataclass(frozen=True, slots=True)
class CenterArrays:
    """Centres, counts and shift of a fitted model.

    The stored arrays have the same names as the fields.
    """

    centers: NDArray[Any]
    """(k, d) centres, in the units of the data and the compute dtype."""
    counts: NDArray[np.float64]
    """(k,) total weight of the rows in each cluster."""
    shift: NDArray[Any]
    """(d,) vector that the kernels subtract from rows and centres before they compute distances."""

    def after_last_pass(
        self, centers: NDArray[Any], counts: NDArray[np.float64], inertia: float
    ) -> Self:
        """Return the model with the centres (k, d), counts (k,) and inertia of the last pass."""
        return replace(self, centers=centers, counts=counts)

    def packed_for(self, dtype: DTypeLike) -> PackedCenters:
        """Pack the centres for rows of the given dtype.

        The shift of the fit is used, so rows get exactly the same labels as in the fit.
        """
        wide = np.promote_types(self.centers.dtype, compute_dtype(dtype))
        return pack_centers(self.centers.astype(wide, copy=False), self.shift)


def nearest_center(arrays: CenterArrays, dtype: DTypeLike = np.float32) -> Labelling:
    """Return a labelling by the nearest centre, which also sums inertia and counts."""
    return Labelling(
        _nearest_chunk,
        (arrays.packed_for(dtype),),
        {"inertia": 1, "counts": len(arrays.centers)},
        {"centers": arrays.centers},
        expect=expect_rows,
    )


def _nearest_chunk(
    chunk: Chunk, sums: dict[str, ExactSums], centers: PackedCenters
) -> NDArray[np.int32]:
    return _counted(chunk, sums, centers, nearest_pruned(chunk.x, centers)[0])


def _nearest_moved_chunk(
    chunk: Chunk,
    sums: dict[str, ExactSums],
    centers: PackedCenters,
    moved: NDArray[np.int32],
    moved_centers: PackedCenters,
) -> NDArray[np.int32]:
    """Return the result of ``_nearest_chunk`` if the labels before some centres moved are known.

    ``moved`` (m,) are the ascending indices of these centres. The row state contains the labels.
    """
    assert chunk.state is not None
    labels, x = chunk.state["labels"].copy(), chunk.x
    others = moved[nearest_pruned(x, moved_centers)[0]]
    before, after = (squared_distances(x, centers, part) for part in (labels, others))
    nearer = (after < before) | ((after == before) & (others < labels))
    lost = np.isin(labels, moved)
    labels[nearer] = others[nearer]
    labels[lost] = nearest_pruned(x[lost], centers)[0]
    return _counted(chunk, sums, centers, labels)


def keep_nearest(chunk: Chunk, total: object, centers: PackedCenters) -> None:
    """Keep the labels of a chunk as its row state."""
    labels, _ = nearest_pruned(chunk.x, centers)
    exact_distances(chunk.x, centers, labels)
    chunk.keep(labels=labels)


def _counted(
    chunk: Chunk, sums: dict[str, ExactSums], centers: PackedCenters, labels: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Add rows to the inertia and the counts; return their labels, corrected for far rows."""
    distances = exact_distances(chunk.x, centers, labels)
    sums["inertia"].add(distances, chunk.weight)
    sums["counts"].add(np.ones(len(labels)), chunk.weight, labels)
    return labels


def exact_distances(
    x: Table, centers: PackedCenters, labels: NDArray[np.int32]
) -> NDArray[np.float64]:
    """Return (n,) squared distances of rows to their nearest centres, in float64.

    ``labels`` are the result of ``nearest``. Rounding errors may make them wrong for very distant
    rows; these labels are corrected in place.
    """
    distances = squared_distances(x, centers, labels)
    far = too_far(distances, centers.dtype, centers.cache.get(reach_of))
    if len(far):
        step = max(1, FAR_VALUES // centers.n_features)
        for begin in range(0, len(far), step):
            rows = far[begin : begin + step]
            labels[rows] = nearest_of_far(dense_rows(x[rows]), centers.centers)
        distances = squared_distances(x, centers, labels)
    return distances


@dataclass(frozen=True, slots=True)
class KMeansProblem(Problem):
    """Problem that all k-means algorithms solve."""

    objective: ClassVar[Objective] = INERTIA
    inits: ClassVar[tuple[str, ...]] = ("auto", *INITS)

    empty_clusters: EmptyClusters = "relocate"
    """"relocate": move centres of empty clusters to distant rows; "keep": leave them unchanged."""

    def check(self, table: TableShape) -> None:
        """Raise an error unless the starting centres are k rows of finite numbers."""
        several = not isinstance(self.init, str) and self.init.ndim == 3
        for init in self.init if several else [self.init]:
            check_init(init, self.n_clusters, table.n_features)

    def passes_to_start(self) -> int:
        return passes_of(self.init, self.n_clusters)

    def labelling(self, arrays: CenterArrays) -> Labelling:
        return nearest_center(arrays)

    def finish(self, passes: Passes, arrays: CenterArrays, label_rows: LabelRows) -> Final:
        """Assign all rows to the final centres; relocate the centres of empty clusters.

        The centre of an empty cluster moves to the row with the largest distance to its nearest
        centre, until no cluster is empty or every distinct row has a centre. There are at most k
        rounds, and usually one.
        """
        n_distinct = None
        searched, rounds = arrays, len(arrays.centers)
        labelling, state = self.labelling(arrays), RowState(STATE, 1)
        while True:
            found = label_rows(replace(labelling, state=state))
            counts = found.sums["counts"].values
            empty = np.flatnonzero(counts == 0)
            if not len(empty) or self.empty_clusters == "keep" or not rounds:
                break
            rounds -= 1
            packed = pack_centers(arrays.centers, arrays.shift)
            state = RowState(STATE, state.generation + 1, ((packed,),), keep_nearest, int)
            centers, _, distinct = relocate_empty(
                passes, packed, arrays.centers, empty, state=state
            )
            if distinct is not None:
                # Means of equal rows are rounded, so the rows themselves become centres.
                n_distinct = len(distinct[0])
                centers = centers.copy()
                centers[distinct[0]] = distinct[1]
            moved = np.flatnonzero((centers != arrays.centers).any(axis=1)).astype(np.int32)
            if not len(moved):
                break
            arrays = replace(arrays, centers=centers)
            labelling = self.labelling(arrays)
            # Labels of few features or sparse rows are not decided by ``squared_distances``.
            few = len(moved) <= MOST_MOVED * len(centers)
            if few and not (passes.is_sparse or packed.direct):
                some = moved, pack_centers(centers[moved], arrays.shift)
                broadcast = (*labelling.broadcast, *some)
                labelling = replace(labelling, chunk_fn=_nearest_moved_chunk, broadcast=broadcast)
        inertia = found.sum_of("inertia")
        return Final(
            searched.after_last_pass(arrays.centers, counts, inertia),
            inertia,
            found.labels,
            len(empty),
            n_distinct,
        )

    def unsearched(
        self, rows: TakenRows, shift: NDArray[Any], draws: np.random.Generator
    ) -> CenterArrays:
        """Return the given starting centres, or distinct rows of the sample."""
        centers = drawn_centers(rows, self.n_clusters, self.init, shift.dtype, draws)
        return CenterArrays(centers, np.zeros(self.n_clusters), shift)

    def complaint(
        self, final: Final, *, had_time: bool, last: Mapping[str, float | None]
    ) -> str | None:
        if not final.n_empty or self.empty_clusters == "keep":
            return None
        if final.n_distinct is not None:
            why = f"the rows have only {final.n_distinct} distinct values. Use fewer clusters"
        elif not had_time:
            why = "there was no time to move their centres. Give the fit more time"
        else:
            why = "each move of a centre to a far row emptied another one. Use fewer clusters"
        return f"{final.n_empty} of {self.n_clusters} clusters are empty: {why}."
