"""Separation of the clusters of a model: scores that need no known classes.

Simplified silhouette, Davies-Bouldin and Calinski-Harabasz: each is made of distances to a few
centres per row, never of those between rows. All rows are read once or twice, chunk by chunk, here
or on a cluster, and sums have no rounding: any chunks and workers give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk
from largek_dask.algorithms.parts.totals import Additive
from largek_dask.algorithms.problem import SKIPPED, Labelling
from largek_dask.data.rows import Rows
from largek_dask.data.sources import open_rows
from largek_dask.driver.fit import open_passes
from largek_dask.errors import DataError, ParameterError
from largek_dask.kernels.blocks import Table, dense_rows
from largek_dask.kernels.dense.doubts import too_far
from largek_dask.kernels.distances import (
    PackedCenters,
    nearest_two,
    pack_centers,
    scores,
    squared_distances,
)
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.squares import row_squares
from largek_dask.kernels.exact.sums import ClusterSums, FixedPoint
from largek_dask.kernels.rows import compute_dtype
from largek_dask.kernels.threads import Threads
from largek_dask.model.base import Model
from largek_dask.passes.chunks import bad_row_error

if TYPE_CHECKING:
    from distributed import Client

    from largek_dask.passes.base import BasePasses

__all__ = ["NAMES", "Separation"]

NAMES = ("silhouette", "davies_bouldin", "calinski_harabasz")
"""The scores of a :class:`Separation`."""
PAIRS = 1 << 22
"""Distances between centres that are held at once."""


@dataclass(frozen=True, slots=True)
class Separation:
    """Scores of the separation of clusters, which share passes over the rows."""

    n_clusters: int
    """Clusters that had rows."""
    silhouette: float | None = None
    davies_bouldin: float | None = None
    calinski_harabasz: float | None = None

    @staticmethod
    def is_told_of(model: Model) -> bool:
        """Return whether the clusters of a model have centres, as these scores require."""
        return model._cluster_centers() is not None

    @classmethod
    def of(
        cls,
        clustering: Any,
        rows: Any,
        *,
        names: tuple[str, ...] = NAMES,
        sample_weight: Any = None,
        client: Client | None = None,
        n_threads: int | None = None,
    ) -> Separation:
        """Find the scores of these names, the others are None.

        ``largek_dask.selection.scores`` says what they are, and what all of this means.

        Parameters
        ----------
        clustering : Model, fitted estimator, or int array (n,)
        rows : whatever ``open_rows`` takes
        names : tuple of str
        sample_weight : array-like (n,) or URL, optional
        client : distributed.Client, optional
        n_threads : int, optional

        Raises
        ------
        ParameterError
            Fewer than two clusters with rows, no more weight than clusters, rows of another width,
            or other than a clustering.
        DataError
            A row with a label holds NaN or infinity.
        """
        with _opened(clustering, rows, sample_weight, client, n_threads) as (passes, model, labels):
            if model is None:
                assert labels is not None
                return _of_labels(passes, labels, names)
            return _of_all(passes, _clusters_of(model, passes.rows.dtype), names)

    def figures(self) -> dict[str, float]:
        """Return the scores that were asked for, by name."""
        found = {name: getattr(self, name) for name in NAMES}
        return {name: score for name, score in found.items() if score is not None}


@contextmanager
def _opened(
    clustering: Any, rows: Any, sample_weight: Any, client: Client | None, n_threads: int | None
) -> Iterator[tuple[BasePasses, Model | None, NDArray[np.int32] | None]]:
    """Passes over the rows, with the model or the labels that were given."""
    model = getattr(clustering, "model_", clustering)
    if isinstance(model, Model):
        opened = model._open(rows, sample_weight)
        with model._passes(opened, client, n_threads) as passes:
            yield passes, model, None
        return
    opened = open_rows(rows, sample_weight=sample_weight)
    labels = _numbered(clustering, opened)
    # What is left out may hold anything.
    on_bad_rows: Any = "skip" if (labels == SKIPPED).any() else "raise"
    with open_passes(opened, client=client, n_threads=n_threads, on_bad_rows=on_bad_rows) as passes:
        yield passes, None, labels


def _numbered(labels: Any, rows: Rows) -> NDArray[np.int32]:
    """Labels numbered without gaps, -1 as it is."""
    found = np.asarray(labels)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise ParameterError(
            "give a model, a fitted estimator, or the cluster of every row as an array of "
            f"integers (n,), not {type(labels).__name__} of shape {found.shape} and type "
            f"{found.dtype}."
        )
    if len(found) != rows.n_rows:
        raise ParameterError(
            f"there are {len(found):,} labels and {rows.n_rows:,} rows: give one for each row."
        )
    if (found < SKIPPED).any():
        row = int(np.argmax(found < SKIPPED))
        raise ParameterError(
            f"row {row:,} has the label {found[row]}: number clusters from 0 on; -1 "
            "leaves a row out."
        )
    kept = found != SKIPPED
    numbers = np.full(len(found), SKIPPED, np.int32)
    numbers[kept] = np.unique(found[kept], return_inverse=True)[1]
    return numbers


# --- rows and their centres -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """Labelling of rows, and the centres to measure distances to; sent to workers."""

    centers: PackedCenters
    """Centres of all clusters."""
    others: PackedCenters
    """Centres of clusters with rows, which may be the nearest other one of a row."""
    numbers: NDArray[np.int32]
    """The clusters that these are of."""
    labelling: Labelling | None = None
    """Labelling of a model; None for the nearest of ``others``."""
    labels: NDArray[np.int32] | None = None
    """(n,) labels that were given for all rows."""

    @classmethod
    def about(
        cls, centers: NDArray[Any], shift: NDArray[Any], used: NDArray[np.bool_], **how: Any
    ) -> Clusters:
        """Clusters with these centres, (k, d), of which those that are ``used`` have rows."""
        numbers = np.flatnonzero(used).astype(np.int32)
        _check_number(len(numbers))
        packed = pack_centers(centers, shift)
        kept = packed if used.all() else pack_centers(centers[numbers], shift)
        return cls(packed, kept, numbers, **how)

    @property
    def n_clusters(self) -> int:
        """Clusters, those without rows included."""
        return self.centers.n_clusters


def _clusters_of(model: Model, dtype: np.dtype[Any]) -> Clusters:
    """Return those of a model for rows of a dtype; clusters without rows in the fit are ignored."""
    centers = model._cluster_centers()
    if centers is None:
        raise ParameterError(
            f"a model of the kind {model.kind!r} has no centres, and these scores are of centres: "
            "give labels."
        )
    used = model.counts > 0
    by_nearest = model._labels_by_nearest and bool(used.all())
    labelling = None if by_nearest else model._labelling(dtype)
    wide = np.promote_types(centers.dtype, compute_dtype(dtype))
    return Clusters.about(centers.astype(wide), model.arrays.shift, used, labelling=labelling)


def _labels(chunk: Chunk, clusters: Clusters) -> NDArray[np.int32] | None:
    """The clusters of a chunk's rows; None where the nearest centre will tell."""
    if clusters.labels is not None:
        return clusters.labels[chunk.numbers()]
    if clusters.labelling is None:
        return None
    how = clusters.labelling
    sums = {name: ExactSums(length) for name, length in how.sums.items()}
    return how.chunk_fn(chunk, sums, *how.broadcast)


def _two_nearest(x: Table, centers: PackedCenters) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The nearest and the second nearest centre of every row, however far out it lies."""
    first, _, second, _ = nearest_two(x, centers)
    far = too_far(squared_distances(x, centers, first), centers.dtype)
    if len(far):
        wide = (part.astype(np.float64) for part in (centers.centers, centers.shift))
        rows = dense_rows(x[far]).astype(np.float64)
        first[far], _, second[far], _ = nearest_two(rows, pack_centers(*wide))
    return first, second


def _measured(
    x: Table, own: NDArray[np.int32] | None, clusters: Clusters
) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.float64]]:
    """Labels of rows, distances to their own centres, and to the nearest other ones."""
    first, second = _two_nearest(x, clusters.others)
    nearest = clusters.numbers[first]
    own = nearest if own is None else own
    other = np.where(nearest == own, second, first)
    distances = np.sqrt(squared_distances(x, clusters.centers, own))
    return own, distances, np.sqrt(squared_distances(x, clusters.others, other))


def _silhouettes(own: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """(b - a) / max(a, b) of every row; 0 where both centres lie on it."""
    larger = np.maximum(own, other)
    return np.divide(other - own, larger, out=np.zeros_like(larger), where=larger > 0)


# --- all rows -------------------------------------------------------------------------------------


@dataclass
class SeparationTotal(Additive):
    """Total of the first pass."""

    sums: ClusterSums | None
    """Rows by cluster, where means are asked for."""
    silhouettes: ExactSums
    weight: ExactSums
    n_rows: int = 0
    """Rows that count."""
    bad: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    """Number of rows with NaN or infinity that were given a label, and the first, by chunk."""

    @classmethod
    def of(cls, k: int, d: int, grid: FixedPoint | None) -> SeparationTotal:
        """Return an empty total."""
        sums = None if grid is None else ClusterSums(k, d, grid)
        return cls(sums, ExactSums(), ExactSums())


@dataclass
class SpreadTotal(Additive):
    """Total of the second pass: distances of rows to the means of their clusters."""

    distances: ExactSums
    """One sum a cluster."""
    squares: ExactSums
    """All squared distances together."""

    @classmethod
    def of(cls, k: int) -> SpreadTotal:
        """Return an empty total."""
        return cls(ExactSums(k), ExactSums())


def _weighed(chunk: Chunk, labels: NDArray[np.int32]) -> NDArray[np.float64]:
    """Weights of rows, 0 of those that are left out."""
    weight = np.ones(len(labels)) if chunk.weight is None else chunk.weight.copy()
    weight[labels == SKIPPED] = 0
    return weight


def _first_chunk(
    chunk: Chunk, total: SeparationTotal, clusters: Clusters, silhouettes: bool
) -> None:
    """Label a chunk's rows; add their silhouettes, and themselves to the sums of clusters."""
    own = _labels(chunk, clusters)
    if silhouettes:
        given = None if own is None else np.maximum(own, 0)
        found, near, other = _measured(chunk.x, given, clusters)
        own = found if own is None else own
    elif own is None:
        own, _ = _two_nearest(chunk.x, clusters.centers)
    weight = _weighed(chunk, own)
    if clusters.labels is not None and chunk.bad is not None:
        rows = chunk.start + np.flatnonzero(chunk.bad & (own != SKIPPED))
        if len(rows):
            total.bad[chunk.index] = np.array([len(rows), rows[0]])
    if silhouettes:
        total.silhouettes.add(_silhouettes(near, other), weight)
    total.weight.add(np.ones(len(own)), weight)
    total.n_rows += int(np.count_nonzero(weight))
    if total.sums is not None:
        counted = np.where(weight > 0, own, SKIPPED).astype(np.int32)
        total.sums.add(chunk.x, counted, chunk.weight)


def _second_chunk(
    chunk: Chunk, total: SpreadTotal, clusters: Clusters, means: PackedCenters
) -> None:
    """Add the distances of a chunk's rows to the means of their clusters."""
    own = _labels(chunk, clusters)
    if own is None:
        own, _ = _two_nearest(chunk.x, clusters.centers)
    weight = _weighed(chunk, own)
    labels = np.maximum(own, 0)
    squares = squared_distances(chunk.x, means, labels)
    total.distances.add(np.sqrt(squares), weight, labels)
    total.squares.add(squares, weight)


def _of_all(passes: BasePasses, clusters: Clusters, names: tuple[str, ...]) -> Separation:
    """The scores of a model on all rows."""
    by_means = bool({"davies_bouldin", "calinski_harabasz"} & set(names))
    first = _first_pass(passes, clusters, silhouettes="silhouette" in names, by_means=by_means)
    found: dict[str, Any] = {"n_clusters": len(clusters.numbers)}
    if "silhouette" in names:
        found["silhouette"] = _mean(first)
    if first.sums is not None:
        found |= _about_means(passes, clusters, first, names)
    return Separation(**found)


def _of_labels(passes: BasePasses, labels: NDArray[np.int32], names: tuple[str, ...]) -> Separation:
    """The scores of clusters that are given as labels, about the means of their rows."""
    k, shift = int(labels.max(initial=-1)) + 1, passes.statistics.shift
    nowhere = np.zeros((k, passes.n_features), passes.statistics.dtype)
    clusters = Clusters.about(nowhere, shift, np.ones(k, bool), labels=labels)
    first = _first_pass(passes, clusters, silhouettes=False, by_means=True)
    assert first.sums is not None
    found: dict[str, Any] = {"n_clusters": int(np.count_nonzero(first.sums.counts))}
    if "silhouette" in names:
        means = first.sums.means(nowhere)
        about = Clusters.about(means, shift, first.sums.counts > 0, labels=labels)
        found["silhouette"] = _mean(_first_pass(passes, about, silhouettes=True, by_means=False))
    found |= _about_means(passes, clusters, first, names)
    return Separation(**found)


def _first_pass(
    passes: BasePasses, clusters: Clusters, *, silhouettes: bool, by_means: bool
) -> SeparationTotal:
    grid = passes.statistics.grid if by_means else None
    total: SeparationTotal = passes.reduce(
        _first_chunk,
        clusters,
        silhouettes,
        start=partial(SeparationTotal.of, clusters.n_clusters, passes.n_features, grid),
        combine=SeparationTotal.combine,
    )
    if total.bad:
        n_bad = sum(int(count) for count, _ in total.bad.values())
        index = min(total.bad)
        first = bad_row_error(passes.rows, int(total.bad[index][1]), index)
        raise DataError(
            f"{n_bad:,} rows that have a label hold NaN or infinity: give them the label -1, which "
            f"leaves a row out. The first: {first}"
        )
    if not total.n_rows:
        raise DataError(
            "no row is left to score: none has a weight, or all have the label -1. Give some "
            "a weight above 0 and a cluster."
        )
    return total


def _mean(first: SeparationTotal) -> float:
    return first.silhouettes.value / first.weight.value


def _about_means(
    passes: BasePasses, clusters: Clusters, first: SeparationTotal, names: tuple[str, ...]
) -> dict[str, Any]:
    """Scores of the means of clusters, by a second pass; nothing where none is asked for."""
    if not {"davies_bouldin", "calinski_harabasz"} & set(names):
        return {}
    assert first.sums is not None
    counts = first.sums.counts
    used = np.flatnonzero(counts > 0)
    _check_number(len(used))
    means = first.sums.means_float64(clusters.centers.centers)
    about = pack_centers(means, clusters.centers.shift.astype(np.float64))
    spread: SpreadTotal = passes.reduce(
        _second_chunk,
        clusters,
        about,
        start=partial(SpreadTotal.of, clusters.n_clusters),
        combine=SpreadTotal.combine,
    )
    means, counts = means[used], counts[used]
    found: dict[str, Any] = {"n_clusters": len(used)}
    if "davies_bouldin" in names:
        distances = spread.distances.values[used] / counts
        ratios = _worst(distances, means, passes.threads)
        found["davies_bouldin"] = math.fsum(ratios) / len(used)
    if "calinski_harabasz" in names:
        weight, within = first.weight.value, spread.squares.value
        _check_weight(weight, len(used))
        between = math.fsum(counts * _squares_about_middle(means, counts))
        # As in scikit-learn, 1 where all rows lie on their centres.
        k = len(used)
        found["calinski_harabasz"] = (
            1.0 if within == 0 else between / (k - 1) / (within / (weight - k))
        )
    return found


# --- what scores are made of ----------------------------------------------------------------------


def _worst(
    spread: NDArray[np.float64], centers: NDArray[np.float64], threads: Threads
) -> NDArray[np.float64]:
    """Return the largest ratio of every cluster to another one.

    Centres in the same place are not compared, as scikit-learn does.
    """
    k = len(spread)
    packed = pack_centers(centers, np.zeros(centers.shape[1]))
    step = max(1, PAIRS // k)

    def block(begin: int) -> NDArray[np.float64]:
        distances = np.sqrt(scores(centers[begin : begin + step], packed))
        apart = np.where(distances > 0, distances, np.inf)
        worst: NDArray[np.float64] = ((spread[begin : begin + step, None] + spread) / apart).max(1)
        return worst

    return np.concatenate(threads.map(block, range(0, k, step)))


def _squares_about_middle(
    centers: NDArray[np.float64], weights: NDArray[Any]
) -> NDArray[np.float64]:
    """(k,) squared distances of centres to their mean."""
    # Sums down an axis add row by row, whatever the processor.
    middle = (centers * weights[:, None]).sum(axis=0) / math.fsum(weights)
    return row_squares(centers, middle)


def _check_number(n_clusters: int) -> None:
    if n_clusters < 2:
        had = "1 cluster has" if n_clusters else "no cluster has"
        raise ParameterError(
            f"{had} rows: how far clusters lie apart is known of two or more, so take more."
        )


def _check_weight(weight: float, k: int) -> None:
    if weight <= k:
        raise ParameterError(
            f"calinski_harabasz counts weights as numbers of rows: these add up to {weight:.6g}, "
            f"and there are {k:,} clusters. Multiply weights by a constant, or take fewer clusters."
        )
