"""How far the clusters of a model lie apart: scores that need no known classes.

Simplified silhouette, Davies-Bouldin and Calinski-Harabasz: each is made of distances to a few
centres a row, never of those between rows. All rows are read once or twice, chunk by chunk, here or
on a cluster, and sums have no rounding: any chunks and workers give the same bits. Or a sample of
rows is, drawn by index from a seed; then every score has a standard error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, Rng
from largek_dask.algorithms.parts.totals import Additive
from largek_dask.algorithms.problem import SKIPPED, Labelling
from largek_dask.data.rows import Rows
from largek_dask.data.sources import open_rows
from largek_dask.driver.fit import open_passes
from largek_dask.driver.options import is_integer
from largek_dask.errors import DataError, ParameterError, ParameterWarning, warn
from largek_dask.kernels.blocks import Table, dense_rows, rows_at
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
from largek_dask.passes.chunks import ChunkView, bad_row_error

if TYPE_CHECKING:
    from distributed import Client

    from largek_dask.passes.base import BasePasses

__all__ = ["NAMES", "Score", "Separation", "sampled_rows"]

NAMES = ("silhouette", "davies_bouldin", "calinski_harabasz")
"""The scores of a :class:`Separation`."""
PAIRS = 1 << 22
"""Distances between centres that are held at once."""


class Score(float):
    """A number that also says how many rows it is of, and how far a sample may be off.

    Parameters
    ----------
    value : float
    standard_error : float
        Of a sample; 0 where all rows were taken.
    n_rows : int
        Rows that it was found from; those that are left out do not count.

    Examples
    --------
    >>> from largek_dask.model.separation import Score
    >>> found = Score(0.5, standard_error=0.0125, n_rows=1_000)
    >>> found, found + 1, found.standard_error
    (0.5 ± 0.013, 1.5, 0.0125)
    """

    __slots__ = ("n_rows", "standard_error")

    standard_error: float
    n_rows: int

    def __new__(cls, value: float, standard_error: float = 0.0, n_rows: int = 0) -> Self:
        """A float, and what is known of it."""
        made = super().__new__(cls, value)
        made.standard_error, made.n_rows = float(standard_error), int(n_rows)
        return made

    def __getnewargs__(self) -> Any:
        return float(self), self.standard_error, self.n_rows

    def __repr__(self) -> str:
        error = f" ± {self.standard_error:.2g}" if self.standard_error else ""
        return f"{float(self)!r}{error}"


@dataclass(frozen=True, slots=True)
class Separation:
    """How far clusters lie apart, by all three scores: they share passes over the rows."""

    n_clusters: int
    """Clusters that had rows."""
    silhouette: Score | None = None
    davies_bouldin: Score | None = None
    calinski_harabasz: Score | None = None

    @staticmethod
    def is_told_of(model: Model) -> bool:
        """Whether there are such scores of a model: its clusters have centres."""
        return model._cluster_centers() is not None

    @classmethod
    def of(
        cls,
        clustering: Any,
        rows: Any,
        *,
        names: tuple[str, ...] = NAMES,
        sample: int | None = None,
        seed: int = 0,
        sample_weight: Any = None,
        client: Client | None = None,
        n_threads: int | None = None,
    ) -> Separation:
        """Find the scores of these names, the others are None.

        ``largek_dask.estimators.scores`` says what they are, and what all of this means.

        Parameters
        ----------
        clustering : Model, fitted estimator, or int array (n,)
        rows : whatever ``open_rows`` takes
        names : tuple of str
        sample : int, optional
            Rows to draw; None, or as many as there are: all.
        seed : int
        sample_weight : array-like (n,) or URL, optional
        client : distributed.Client, optional
        n_threads : int, optional

        Raises
        ------
        ParameterError
            Fewer than two clusters with rows, no more weight than clusters, rows of another width,
            a sample of given labels, or other than a clustering.
        DataError
            A row with a label holds NaN or infinity.
        """
        with _opened(clustering, rows, sample_weight, client, n_threads) as (passes, model, labels):
            if sample is not None and not (is_integer(sample) and sample >= 2):
                raise ParameterError(
                    f"sample must be None or a number of rows of at least 2, got {sample!r}."
                )
            if sample is not None and sample < passes.n_rows:
                if model is None:
                    raise ParameterError(
                        "sample= needs a model: the centres of clusters that are given as labels "
                        "are the means of all their rows. Leave sample out."
                    )
                return _of_sample(
                    passes, _clusters_of(model, passes.rows.dtype), names, sample, seed
                )
            if model is None:
                assert labels is not None
                return _of_labels(passes, labels, names)
            return _of_all(passes, _clusters_of(model, passes.rows.dtype), names)

    def figures(self) -> dict[str, float]:
        """The scores that were asked for by their names, and standard errors where there are."""
        told: dict[str, float] = {}
        for name in NAMES:
            score: Score | None = getattr(self, name)
            if score is not None:
                told[name] = float(score)
                if score.standard_error:
                    told[f"{name}_standard_error"] = score.standard_error
        return told


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
    """How rows get their clusters, and the centres that distances are to; travels to workers."""

    centers: PackedCenters
    """Those of all clusters."""
    others: PackedCenters
    """Those of clusters that have rows: they may be the nearest other one of a row."""
    numbers: NDArray[np.int32]
    """The clusters that these are of."""
    labelling: Labelling | None = None
    """How a model labels rows, where that is not by the nearest of ``others``."""
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
    """Those of a model, for rows of a type; one without a row in the fit is nobody's neighbour."""
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
    """What the first pass adds up."""

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
        """Of nothing."""
        sums = None if grid is None else ClusterSums(k, d, grid)
        return cls(sums, ExactSums(), ExactSums())


@dataclass
class SpreadTotal(Additive):
    """What the second pass adds up: distances of rows to the means of their clusters."""

    distances: ExactSums
    """One sum a cluster."""
    squares: ExactSums
    """All squared distances together."""

    @classmethod
    def of(cls, k: int) -> SpreadTotal:
        """Of nothing."""
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


def _mean(first: SeparationTotal) -> Score:
    return Score(first.silhouettes.value / first.weight.value, 0.0, first.n_rows)


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
        ratios, _, _ = _worst(distances, means, passes.threads)
        found["davies_bouldin"] = Score(math.fsum(ratios) / len(used), 0.0, first.n_rows)
    if "calinski_harabasz" in names:
        weight, within = first.weight.value, spread.squares.value
        _check_weight(weight, len(used))
        between = math.fsum(counts * _squares_about_middle(means, counts))
        found["calinski_harabasz"] = Score(
            _ratio(between, within, weight, len(used)), 0.0, first.n_rows
        )
    return found


# --- a sample -------------------------------------------------------------------------------------


@dataclass
class SampleTotal(Additive):
    """What was found of the rows of a sample, by chunk."""

    parts: dict[int, tuple[NDArray[Any], ...]]
    """Labels, distances to own and to other centres, weights."""

    @classmethod
    def nothing(cls) -> SampleTotal:
        """Of no chunk."""
        return cls({})


def _sampled_chunk(
    chunk: Chunk, total: SampleTotal, rows: NDArray[np.int64], clusters: Clusters
) -> None:
    """Measure those of a chunk's rows that are in the sample, ``rows`` by index."""
    begin, end = np.searchsorted(rows, (chunk.start, chunk.start + len(chunk)))
    places = rows[begin:end] - chunk.start
    weight = np.ones(len(places)) if chunk.weight is None else chunk.weight[places]
    x = rows_at(chunk.x, places)
    view = ChunkView(chunk.index, chunk.start, x, weight, known=rows[begin:end])
    total.parts[chunk.index] = (*_measured(x, _labels(view, clusters), clusters), weight)


def sampled_rows(passes: BasePasses, n: int, seed: int) -> tuple[NDArray[np.int64], list[int]]:
    """The rows of a sample, ascending, whatever the chunks are; and the chunks that hold them."""
    rng = Rng(seed).generator(0, "separation")
    rows = np.sort(rng.choice(passes.n_rows, n, replace=False, shuffle=False))
    return rows, np.unique(np.searchsorted(passes.chunk_table, rows, side="right") - 1).tolist()


def _of_sample(
    passes: BasePasses, clusters: Clusters, names: tuple[str, ...], n: int, seed: int
) -> Separation:
    """Estimates by some rows; the model's centres stand for the means of clusters."""
    rows, chunks = sampled_rows(passes, n, seed)
    total: SampleTotal = passes.reduce(
        _sampled_chunk,
        rows,
        clusters,
        start=SampleTotal.nothing,
        combine=SampleTotal.combine,
        chunks=chunks,
    )
    parts = [total.parts[i] for i in sorted(total.parts)]
    labels, own, other, weight = (np.concatenate(part) for part in zip(*parts, strict=True))
    if not weight.any():
        raise DataError(f"none of the {n:,} rows of the sample has a weight: draw more.")
    found = Sampled(labels, own, other, weight, passes.n_rows, clusters)
    return Separation(
        len(clusters.numbers),
        found.silhouette() if "silhouette" in names else None,
        found.davies_bouldin(passes.threads) if "davies_bouldin" in names else None,
        found.calinski_harabasz() if "calinski_harabasz" in names else None,
    )


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """Rows of a sample; scores are smooth functions of means over them.

    A standard error is that of the mean of what every row contributes to first order (the delta
    method), with the correction for a finite table.
    """

    labels: NDArray[np.int32]
    own: NDArray[np.float64]
    """Distances to own centres."""
    other: NDArray[np.float64]
    """Distances to the nearest other ones."""
    weight: NDArray[np.float64]
    n_rows: int
    """Rows of the table."""
    clusters: Clusters

    def silhouette(self) -> Score:
        """Mean over the rows."""
        found = _silhouettes(self.own, self.other)
        mean = math.fsum(self.weight * found) / math.fsum(self.weight)
        return self._score(mean, self.weight * (found - mean))

    def davies_bouldin(self, threads: Threads) -> Score:
        """Of the clusters that have rows in the sample."""
        k = self.clusters.n_clusters
        weights = np.bincount(self.labels, self.weight, k)
        used = np.flatnonzero(weights > 0)
        self._warn_of_few(used)
        spread = np.bincount(self.labels, self.weight * self.own, k)[used] / weights[used]
        centers = self.clusters.centers.centers[used].astype(np.float64)
        ratios, partners, distances = _worst(spread, centers, threads)
        # What a change of a cluster's mean distance changes: its own ratio, and those of others.
        slopes = np.divide(1.0, distances, out=np.zeros_like(distances), where=distances > 0)
        gradient = np.zeros(k)
        gradient[used] = (slopes + np.bincount(partners, slopes, len(used))) / len(used)
        share, mean = np.zeros(k), np.zeros(k)
        share[used], mean[used] = weights[used] / math.fsum(self.weight), spread
        factor = np.divide(gradient, share, out=np.zeros(k), where=share > 0)[self.labels]
        value = math.fsum(ratios) / len(used)
        return self._score(value, self.weight * factor * (self.own - mean[self.labels]))

    def calinski_harabasz(self) -> Score:
        """With as many rows as the table has."""
        k, clusters = len(self.clusters.numbers), self.clusters
        per_row = math.fsum(self.weight) / len(self.weight)
        weight = self.n_rows * per_row
        _check_weight(weight, k)
        counts: NDArray[Any] = np.bincount(self.labels, self.weight, clusters.n_clusters)
        between = _squares_about_middle(clusters.centers.centers.astype(np.float64), counts)
        squares, apart = self.own**2, between[self.labels]
        within, total = (math.fsum(self.weight * part) for part in (squares, apart))
        value = _ratio(total, within, weight, k)
        if within == 0:
            return self._score(value, np.zeros(len(squares)))
        ratio = total / within
        change = (weight - k) * self.weight * (apart - ratio * squares) / (within / len(squares))
        change += self.n_rows * (self.weight - per_row) * ratio
        return self._score(value, change / (k - 1) * per_row)

    def _score(self, value: float, contributions: NDArray[np.float64]) -> Score:
        """A score, with what every row contributes to it, times the mean weight of a row."""
        n = len(contributions)
        per_row = math.fsum(self.weight) / n
        apart = (contributions - math.fsum(contributions) / n) / per_row
        variance = math.fsum(apart**2) / (n * (n - 1)) * (1 - n / self.n_rows)
        return Score(value, math.sqrt(variance), int(np.count_nonzero(self.weight)))

    def _warn_of_few(self, used: NDArray[np.intp]) -> None:
        rows = np.bincount(self.labels, self.weight > 0, self.clusters.n_clusters)[used]
        n_few = len(self.clusters.numbers) - int(np.count_nonzero(rows >= 2))
        if n_few > 0:
            warn(
                f"{n_few:,} of {len(self.clusters.numbers):,} clusters have fewer than two rows in "
                f"the sample of {len(self.labels):,}: davies_bouldin leaves out those without any, "
                "and its standard error is too small. Draw more rows.",
                ParameterWarning,
            )


# --- what scores are made of ----------------------------------------------------------------------


def _worst(
    spread: NDArray[np.float64], centers: NDArray[np.float64], threads: Threads
) -> tuple[NDArray[np.float64], NDArray[np.intp], NDArray[np.float64]]:
    """Of every cluster the one that it is told apart from least: ratio, which one, distance.

    Centres in the same place are not compared, as scikit-learn does.
    """
    k = len(spread)
    packed = pack_centers(centers, np.zeros(centers.shape[1]))
    step = max(1, PAIRS // k)

    def block(begin: int) -> tuple[NDArray[Any], ...]:
        distances = np.sqrt(scores(centers[begin : begin + step], packed))
        apart = np.where(distances > 0, distances, np.inf)
        ratios = (spread[begin : begin + step, None] + spread) / apart
        partners = ratios.argmax(axis=1)
        at = np.arange(len(partners)), partners
        return ratios[at], partners, distances[at]

    found = threads.map(block, range(0, k, step))
    ratios, partners, distances = (np.concatenate(part) for part in zip(*found, strict=True))
    return ratios, partners, distances


def _squares_about_middle(
    centers: NDArray[np.float64], weights: NDArray[Any]
) -> NDArray[np.float64]:
    """(k,) squared distances of centres to their mean."""
    # Sums down an axis add row by row, whatever the processor.
    middle = (centers * weights[:, None]).sum(axis=0) / math.fsum(weights)
    return row_squares(centers, middle)


def _ratio(between: float, within: float, weight: float, k: int) -> float:
    """Calinski and Harabasz' ratio; 1 where all rows lie on their centres, as in scikit-learn."""
    return 1.0 if within == 0 else between / (k - 1) / (within / (weight - k))


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
