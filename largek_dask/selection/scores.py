"""Scores of a clustering: ``lk.scores``.

``accuracy``, ``nmi``, ``ari`` and ``purity`` compare labels with known classes. ``silhouette``,
``davies_bouldin`` and ``calinski_harabasz`` measure how far clusters lie apart, by distances to a
few centres per row, never by those between rows: rows are read once or twice, chunk by chunk, here
or on a cluster, and any chunks and workers give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk
from largek_dask.algorithms.parts.totals import Additive
from largek_dask.algorithms.problem import SKIPPED, Labelling
from largek_dask.data.sources import open_rows
from largek_dask.driver.fit import open_passes
from largek_dask.driver.plan import check_output_fits
from largek_dask.errors import DataError, ParameterError, ParameterWarning, warn, without_causes
from largek_dask.kernels.blocks import Table, dense_rows
from largek_dask.kernels.bounds.pruned import nearest_two_pruned
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
    from scipy.sparse import csr_matrix

    from largek_dask.passes.base import BasePasses

__all__ = [
    "accuracy",
    "ari",
    "calinski_harabasz",
    "davies_bouldin",
    "nmi",
    "purity",
    "silhouette",
]

NAMES = ("silhouette", "davies_bouldin", "calinski_harabasz")
"""Scores of how far clusters lie apart."""
BY_MEANS = {*NAMES[1:]}
"""Those about the means of clusters, by a second pass."""
PAIRS = 1 << 22
"""Distances between centres that are held at once."""


# --- known classes --------------------------------------------------------------------------------


@without_causes
def accuracy(labels: Any, truth: Any) -> float:
    """Fraction of rows whose cluster stands for their class, by the best one-to-one matching.

    Rows of clusters beyond the number of classes count as wrong (see :func:`purity`). The matching
    is exact (Kuhn, "The Hungarian method for the assignment problem", 1955); it takes a dense table
    of clusters times classes, 8 bytes each.

    Parameters
    ----------
    labels, truth : array-like of integers (n,)
        Cluster and class of every row; rows with -1 in either are left out.

    Returns
    -------
    float
        Above 0 to 1.

    Raises
    ------
    ParameterError
        Other than one integer a row, two lengths, numbers below -1, or no row is left.
    NotEnoughMemoryError
        The dense table does not fit into memory.

    Warns
    -----
    ParameterWarning
        One class is left of a truth with -1: its classes may be called -1 and 1.

    Examples
    --------
    >>> import largek_dask as lk
    >>> labels, truth = [0, 0, 1, 1, 2], [5, 5, 3, 3, 3]
    >>> lk.scores.accuracy(labels, truth), lk.scores.purity(labels, truth)
    (0.8, 1.0)
    """
    from scipy.optimize import linear_sum_assignment

    cells = _contingency(labels, truth)
    check_output_fits(cells.shape, 8, "The accuracy needs this table; nmi, ari and purity do not.")
    matched = linear_sum_assignment(cells.toarray(), maximize=True)
    return float(cells[matched].sum() / cells.sum())


@without_causes
def nmi(labels: Any, truth: Any) -> float:
    """Normalised mutual information: ``sklearn.metrics.normalized_mutual_info_score``.

    0 (independent) to 1 (the same partition), not adjusted for chance. Parameters and errors are
    those of :func:`accuracy`; no dense table is needed.
    """
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(*_kept(labels, truth)))


@without_causes
def ari(labels: Any, truth: Any) -> float:
    """Adjusted Rand index: ``sklearn.metrics.adjusted_rand_score``.

    -0.5 to 1: 1 for the same partition, about 0 for a random one. Parameters and errors are those
    of :func:`accuracy`; no dense table is needed.
    """
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(*_kept(labels, truth)))


@without_causes
def purity(labels: Any, truth: Any) -> float:
    """Fraction of rows that are of the most frequent class of their cluster, above 0 to 1.

    It rises with the number of clusters, up to 1 where each row has its own (Manning, Raghavan and
    Schütze, "Introduction to Information Retrieval", 2008, section 16.3). Parameters and errors are
    those of :func:`accuracy`; no dense table is needed.
    """
    cells = _contingency(labels, truth)
    return float(cells.max(axis=1).sum() / cells.sum())


def _contingency(labels: Any, truth: Any) -> csr_matrix:
    """Return the sparse (clusters, classes) table of numbers of rows."""
    from sklearn.metrics.cluster import contingency_matrix

    return contingency_matrix(*_kept(labels, truth), sparse=True, dtype=np.int64)


def _kept(labels: Any, truth: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Check clusters and classes; return those of rows that have both."""
    labels, truth = check_integers(labels, "labels"), check_integers(truth, "truth")
    if len(labels) != len(truth):
        raise ParameterError(
            f"labels has {len(labels):,} rows and truth {len(truth):,}: both need one integer "
            "for each of the same rows."
        )
    kept = (labels != SKIPPED) & (truth != SKIPPED)
    if not kept.any():
        raise ParameterError(
            f"no row is left to score: each of {len(kept):,} has the label -1, which leaves a row "
            "out, in labels or truth."
        )
    if (truth == SKIPPED).any() and (truth[kept] == truth[kept][0]).all():
        warn(
            f"-1 in truth leaves a row out ({np.count_nonzero(~kept):,} rows are), and then all "
            "rows are of one class. If -1 is a class of its own, number classes from 0.",
            ParameterWarning,
        )
    return labels[kept], truth[kept]


def check_integers(values: Any, name: str) -> NDArray[Any]:
    """Clusters or classes of rows as an array (n,) of the integers that were given.

    Raises
    ------
    ParameterError
        Other than one integer a row, or one below -1; ``name`` is what the text calls them.
    """
    if isinstance(values, np.ma.MaskedArray):
        raise ParameterError(
            f"{name} is a masked array; fill it first, e.g. with {name}.filled(-1), which leaves "
            "masked rows out."
        )
    found = np.asarray(values)
    if found.ndim != 1:
        raise ParameterError(f"{name} has shape {found.shape}; give one integer per row.")
    # An empty list is one of floats to numpy.
    if found.dtype.kind not in "iu" and len(found):
        raise ParameterError(
            f"{name} holds {found.dtype}, not integers: number its values from 0 on, e.g. with "
            f"np.unique({name}, return_inverse=True)[1]."
        )
    if (found < SKIPPED).any():
        row = int(np.argmax(found < SKIPPED))
        raise ParameterError(
            f"{name} holds {found[row]} in row {row:,}: number clusters and classes from 0 on; "
            "-1 leaves a row out."
        )
    return found


# --- how far clusters lie apart -------------------------------------------------------------------


class Options(TypedDict, total=False):
    """Options of the scores that need no classes."""

    sample_weight: Any
    client: Client | None
    n_threads: int | None


@without_causes
def silhouette(clustering: Any, rows: Any, **options: Unpack[Options]) -> float:
    """Simplified silhouette: how much nearer rows are to their own centre than to any other.

    The mean over rows of (b - a) / max(a, b), with a the distance to the row's own centre and b to
    the nearest of the other centres (Hruschka, de Castro and Campello, "Evolutionary algorithms for
    clustering gene-expression data", 2004), in one pass over the rows, of labels in two.
    ``sklearn.metrics.silhouette_score`` takes distances between all pairs of rows instead, and
    gives another number.

    Parameters
    ----------
    clustering : Model, fitted estimator, or array of integers (n,)
        Rows belong to clusters as its ``predict`` says, or as labels say, whose centres are the
        means of their rows; rows of label -1 are left out, as are those that a model skips. A
        cluster that had no row in the fit is nobody's neighbour.
    rows : whatever ``open_rows`` takes
        (n, d) rows, dense or sparse; normalised where the model does.
    sample_weight : array-like (n,) or URL, optional
        A row of weight 2 counts as two rows, one of 0 not at all.
    client : distributed.Client, optional
        Its cluster computes; None: threads of this process. The bits are the same.
    n_threads : int, optional
        Threads of this process.

    Returns
    -------
    float
        -1 to 1, more is better.

    Raises
    ------
    ParameterError
        Fewer than two clusters with rows, or rows of another width.
    BadRowsError, DataError
        A row holds NaN or infinity, and is not skipped; no row is left.

    Examples
    --------
    >>> import numpy as np
    >>> import largek_dask as lk
    >>> x = np.array([[0.0], [2.0], [10.0], [12.0]])
    >>> km = lk.KMeans(2, random_state=0).fit(x)
    >>> lk.scores.silhouette(km, x)
    0.898989898989899
    >>> lk.scores.davies_bouldin(km, x), lk.scores.calinski_harabasz(km, x)
    (0.2, 50.0)
    """
    return separation(clustering, rows, ("silhouette",), **options)["silhouette"]


@without_causes
def davies_bouldin(clustering: Any, rows: Any, **options: Unpack[Options]) -> float:
    """Davies-Bouldin index, as ``sklearn.metrics.davies_bouldin_score``: 0 or more, less is better.

    The mean over clusters of the largest (S_i + S_j) / M_ij, with S the mean distance of a
    cluster's rows to their mean and M the distance between two means, in two passes over the rows.
    Clusters without rows do not count. Parameters and errors are those of :func:`silhouette`.
    """
    return separation(clustering, rows, ("davies_bouldin",), **options)["davies_bouldin"]


@without_causes
def calinski_harabasz(clustering: Any, rows: Any, **options: Unpack[Options]) -> float:
    """Calinski-Harabasz index, as ``sklearn.metrics.calinski_harabasz_score``: more is better.

    The variance between the means of clusters over that within, 0 or more, in two passes over the
    rows; 1 where all rows lie on their means. Clusters without rows do not count. Parameters and
    errors are those of :func:`silhouette`; a ``ParameterError`` also where there is no more weight
    than clusters.
    """
    return separation(clustering, rows, ("calinski_harabasz",), **options)["calinski_harabasz"]


def separation(
    clustering: Any,
    rows: Any,
    names: Sequence[str] = NAMES,
    *,
    sample_weight: Any = None,
    client: Client | None = None,
    n_threads: int | None = None,
) -> dict[str, float]:
    """Compute the scores of these names, which share passes over the rows."""
    with _opened(clustering, rows, sample_weight, client, n_threads) as (passes, model, labels):
        if model is None:
            assert labels is not None
            return _of_labels(passes, labels, names)
        clusters, asked = _clusters_of(model, passes.rows.dtype), "silhouette" in names
        by_means = not BY_MEANS.isdisjoint(names)
        first = _first_pass(passes, clusters, silhouettes=asked, by_means=by_means)
        found = {"silhouette": first.silhouette} if asked else {}
        return found | _about_means(passes, clusters, first, names)


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
    labels = check_integers(model, "clustering")
    if len(labels) != opened.n_rows:
        raise ParameterError(
            f"there are {len(labels):,} labels and {opened.n_rows:,} rows: give one for each row."
        )
    # Numbered without gaps, -1 as it is.
    kept, numbers = labels != SKIPPED, np.full(len(labels), SKIPPED, np.int32)
    numbers[kept] = np.unique(labels[kept], return_inverse=True)[1]
    # What is left out may hold anything.
    on_bad_rows: Any = "skip" if not kept.all() else "raise"
    with open_passes(opened, client=client, n_threads=n_threads, on_bad_rows=on_bad_rows) as passes:
        yield passes, None, numbers


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
    first, _, second, _ = nearest_two_pruned(x, centers)
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

    @property
    def silhouette(self) -> float:
        """Mean silhouette of a row."""
        return self.silhouettes.value / self.weight.value

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


def _of_labels(
    passes: BasePasses, labels: NDArray[np.int32], names: Sequence[str]
) -> dict[str, float]:
    """Scores of clusters that are given as labels, about the means of their rows."""
    k, shift = int(labels.max(initial=-1)) + 1, passes.statistics.shift
    nowhere = np.zeros((k, passes.n_features), passes.statistics.dtype)
    clusters = Clusters.about(nowhere, shift, np.ones(k, bool), labels=labels)
    first = _first_pass(passes, clusters, silhouettes=False, by_means=True)
    assert first.sums is not None
    found = {}
    if "silhouette" in names:
        means = first.sums.means(nowhere)
        about = Clusters.about(means, shift, first.sums.counts > 0, labels=labels)
        second = _first_pass(passes, about, silhouettes=True, by_means=False)
        found["silhouette"] = second.silhouette
    return found | _about_means(passes, clusters, first, names)


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


def _about_means(
    passes: BasePasses, clusters: Clusters, first: SeparationTotal, names: Sequence[str]
) -> dict[str, float]:
    """Scores of the means of clusters, by a second pass; nothing where none is asked for."""
    if BY_MEANS.isdisjoint(names):
        return {}
    assert first.sums is not None
    used = np.flatnonzero(first.sums.counts > 0)
    k = len(used)
    _check_number(k)
    means, counts = first.sums.means_float64(clusters.centers.centers), first.sums.counts[used]
    about = pack_centers(means, clusters.centers.shift.astype(np.float64))
    spread: SpreadTotal = passes.reduce(
        _second_chunk,
        clusters,
        about,
        start=partial(SpreadTotal.of, clusters.n_clusters),
        combine=SpreadTotal.combine,
    )
    means, found = means[used], {}
    if "davies_bouldin" in names:
        ratios = _worst(spread.distances.values[used] / counts, means, passes.threads)
        found["davies_bouldin"] = math.fsum(ratios) / k
    if "calinski_harabasz" in names:
        weight, within = first.weight.value, spread.squares.value
        if weight <= k:
            raise ParameterError(
                "calinski_harabasz counts weights as numbers of rows: these add up to "
                f"{weight:.6g}, and there are {k:,} clusters. Multiply weights by a constant, or "
                "take fewer clusters."
            )
        # Sums down an axis add row by row, whatever the processor.
        middle = (means * counts[:, None]).sum(axis=0) / math.fsum(counts)
        between = math.fsum(counts * row_squares(means, middle))
        # As in scikit-learn, 1 where all rows lie on their centres.
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


def _check_number(n_clusters: int) -> None:
    if n_clusters < 2:
        had = "1 cluster has" if n_clusters else "no cluster has"
        raise ParameterError(
            f"{had} rows: how far clusters lie apart is known of two or more, so take more."
        )
