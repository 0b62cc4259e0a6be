"""Scores of a clustering: ``lk.scores``.

``accuracy``, ``nmi``, ``ari`` and ``purity`` compare labels with known classes. ``silhouette``,
``davies_bouldin`` and ``calinski_harabasz`` measure the separation of clusters by distances of rows
to centres, never by distances between rows. Rows are read once or twice, chunk by chunk, in this
process or on a cluster, and results are identical for any chunks and workers.
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
from largek_dask.kernels.exact.fixed_point import FixedPoint
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.squares import row_squares
from largek_dask.kernels.exact.sums import ClusterSums
from largek_dask.kernels.rows import compute_dtype
from largek_dask.kernels.threads import Threads
from largek_dask.model.base import Model
from largek_dask.passes.chunks import bad_row_error

if TYPE_CHECKING:
    from distributed import Client
    from scipy.sparse import csr_matrix

    from largek_dask.passes.base import BasePasses

__all__ = ["accuracy", "ari", "calinski_harabasz", "davies_bouldin", "nmi", "purity", "silhouette"]

NAMES = ("silhouette", "davies_bouldin", "calinski_harabasz")
"""Names of the scores that measure separation."""
BY_MEANS = {*NAMES[1:]}
"""Names of the scores that need the means of clusters, and therefore a second pass."""
PAIRS = 1 << 22
"""Maximum number of distances between centres in memory at a time."""


# --- known classes --------------------------------------------------------------------------------


@without_causes
def accuracy(labels: Any, truth: Any) -> float:
    """Fraction of rows whose cluster is matched to their class, by the best one-to-one matching.

    If there are more clusters than classes, rows of unmatched clusters count as wrong (see
    :func:`purity`). The matching is exact (Kuhn, "The Hungarian method for the assignment problem",
    1955); it needs a dense table of clusters by classes, with 8 bytes per entry.

    Parameters
    ----------
    labels, truth : array-like of integers (n,)
        Cluster and class of every row; rows with -1 in either are left out.

    Returns
    -------
    float
        Score in (0, 1].

    Raises
    ------
    ParameterError
        Labels are not one integer per row, have different lengths or are below -1, or no row is
        left.
    NotEnoughMemoryError
        The dense table does not fit into memory.

    Warns
    -----
    ParameterWarning
        ``truth`` has only -1 and one other value, so its two classes may be -1 and 1.

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

    The score ranges from 0 (independent) to 1 (the same partition), and is not adjusted for chance.
    Parameters and errors are those of :func:`accuracy`; no dense table is needed.
    """
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(*_kept(labels, truth)))


@without_causes
def ari(labels: Any, truth: Any) -> float:
    """Adjusted Rand index: ``sklearn.metrics.adjusted_rand_score``.

    The score ranges from -0.5 to 1; it is 1 for the same partition and about 0 for a random one.
    Parameters and errors are those of :func:`accuracy`; no dense table is needed.
    """
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(*_kept(labels, truth)))


@without_causes
def purity(labels: Any, truth: Any) -> float:
    """Fraction of rows that belong to the most frequent class of their cluster, in (0, 1].

    Purity increases with the number of clusters, up to 1 if each row is a cluster (Manning,
    Raghavan and Schütze, "Introduction to Information Retrieval", 2008, section 16.3). Parameters
    and errors are those of :func:`accuracy`; no dense table is needed.
    """
    cells = _contingency(labels, truth)
    return float(cells.max(axis=1).sum() / cells.sum())


def _contingency(labels: Any, truth: Any) -> csr_matrix:
    """Return the sparse (clusters, classes) table of row counts."""
    from sklearn.metrics.cluster import contingency_matrix

    return contingency_matrix(*_kept(labels, truth), sparse=True, dtype=np.int64)


def _kept(labels: Any, truth: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Check labels and classes; return the labels and classes of rows that have both."""
    labels, truth = check_integers(labels, "labels"), check_integers(truth, "truth")
    if len(labels) != len(truth):
        raise ParameterError(
            f"labels has {len(labels):,} entries, but truth has {len(truth):,}; pass one integer "
            "per row in both."
        )
    kept = (labels != SKIPPED) & (truth != SKIPPED)
    if not kept.any():
        raise ParameterError(
            f"there are no rows to score, because all {len(kept):,} rows are excluded by -1 in "
            "labels or truth."
        )
    if (truth == SKIPPED).any() and (truth[kept] == truth[kept][0]).all():
        warn(
            f"-1 in truth excludes {np.count_nonzero(~kept):,} rows, and all other rows belong to "
            "one class. If -1 is a class, number the classes from 0.",
            ParameterWarning,
        )
    return labels[kept], truth[kept]


def check_integers(values: Any, name: str) -> NDArray[Any]:
    """Return clusters or classes of rows as an array (n,) of integers of at least -1.

    Raises ParameterError, whose message names them ``name``, if they are anything else.
    """
    if isinstance(values, np.ma.MaskedArray):
        raise ParameterError(
            f"{name} is a masked array; fill it first, e.g. with {name}.filled(-1), which excludes "
            "masked rows."
        )
    found = np.asarray(values)
    if found.ndim != 1:
        raise ParameterError(f"{name} has shape {found.shape}; give one integer per row.")
    # numpy converts an empty list to an array of floats.
    if found.dtype.kind not in "iu" and len(found):
        raise ParameterError(
            f"{name} has dtype {found.dtype}, but integers are required; convert the values, e.g. "
            f"with np.unique({name}, return_inverse=True)[1]."
        )
    if (found < SKIPPED).any():
        row = int(np.argmax(found < SKIPPED))
        raise ParameterError(
            f"{name} is {found[row]} in row {row:,}; use integers of at least 0, or -1 to exclude "
            "a row."
        )
    return found


# --- separation -----------------------------------------------------------------------------------


class Options(TypedDict, total=False):
    """Options of the scores that measure separation."""

    sample_weight: Any
    client: Client | None
    n_threads: int | None


@without_causes
def silhouette(clustering: Any, rows: Any, **options: Unpack[Options]) -> float:
    """Simplified silhouette, from distances of rows to their own and to the nearest other centre.

    The score is the mean over rows of (b - a) / max(a, b), where a is the distance to the row's own
    centre and b is the distance to the nearest other centre (Hruschka, de Castro and Campello,
    "Evolutionary algorithms for clustering gene-expression data", 2004). Takes one pass over the
    rows, or two if labels are given. ``sklearn.metrics.silhouette_score`` uses the distances
    between all pairs of rows and gives a different number.

    Parameters
    ----------
    clustering : Model, fitted estimator, or array of integers (n,)
        A model, whose ``predict`` gives the clusters of the rows, or labels, for which the centres
        are the means of the rows of each cluster. Rows with the label -1 and rows that a model
        skips are excluded. Clusters that had no rows in the fit are ignored.
    rows : anything that ``open_rows`` takes
        (n, d) rows, dense or sparse; they are normalised if the rows of the fit were.
    sample_weight : array-like (n,) or URL, optional
        A row of weight 2 counts as two rows; a row of weight 0 is ignored.
    client : distributed.Client, optional
        Compute on the client's cluster; None: on threads of this process. Results are identical.
    n_threads : int, optional
        Number of threads of this process.

    Returns
    -------
    float
        Score from -1 to 1; higher is better.

    Raises
    ------
    ParameterError
        Fewer than two clusters have rows, or the number of columns differs from the model's.
    BadRowsError, DataError
        A row holds NaN or infinity and is not skipped, or no row is left.

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
    """Davies-Bouldin index, as in ``sklearn.metrics.davies_bouldin_score``; lower is better.

    The index is the mean over clusters i of the largest (S_i + S_j) / M_ij, where S_i is the mean
    distance of the rows of cluster i to their mean, and M_ij is the distance between two means. It
    is at least 0. The computation takes two passes over the rows and ignores clusters without rows.
    Parameters and errors are those of :func:`silhouette`.
    """
    return separation(clustering, rows, ("davies_bouldin",), **options)["davies_bouldin"]


@without_causes
def calinski_harabasz(clustering: Any, rows: Any, **options: Unpack[Options]) -> float:
    """Calinski-Harabasz index, as in ``sklearn.metrics.calinski_harabasz_score``; higher is better.

    The index is the ratio of the variance between the means of clusters to the variance within
    clusters. It is at least 0, and 1 if all rows equal the means of their clusters. The computation
    takes two passes over the rows and ignores clusters without rows. Parameters and errors are
    those of :func:`silhouette`; ``ParameterError`` is also raised if the total weight does not
    exceed the number of clusters.
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
    """Compute several separation scores in the same passes over the rows."""
    with _opened(clustering, rows, sample_weight, client, n_threads) as (passes, model, labels):
        if model is None:
            assert labels is not None
            return _of_labels(passes, labels, names)
        clusters, silhouettes = _clusters_of(model, passes.rows.dtype), "silhouette" in names
        by_means = not BY_MEANS.isdisjoint(names)
        first = _first_pass(passes, clusters, silhouettes=silhouettes, by_means=by_means)
        found = {"silhouette": first.silhouette} if silhouettes else {}
        return found | _about_means(passes, clusters, first, names)


@contextmanager
def _opened(
    clustering: Any, rows: Any, sample_weight: Any, client: Client | None, n_threads: int | None
) -> Iterator[tuple[BasePasses, Model | None, NDArray[np.int32] | None]]:
    """Open the rows; yield passes over them, and the model or the labels."""
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
            f"clustering has {len(labels):,} labels, but there are {opened.n_rows:,} rows; pass "
            "one label per row."
        )
    # Renumber labels without gaps, except -1.
    kept, numbers = labels != SKIPPED, np.full(len(labels), SKIPPED, np.int32)
    numbers[kept] = np.unique(labels[kept], return_inverse=True)[1]
    # Excluded rows may contain any values.
    on_bad_rows: Any = "skip" if not kept.all() else "raise"
    with open_passes(opened, client=client, n_threads=n_threads, on_bad_rows=on_bad_rows) as passes:
        yield passes, None, numbers


@dataclass(frozen=True, slots=True, eq=False)
class Clusters:
    """Centres of clusters and the labelling of rows, as sent to workers."""

    centers: PackedCenters
    """Centres of all clusters."""
    others: PackedCenters
    """Centres of the clusters that have rows."""
    numbers: NDArray[np.int32]
    """Index of the cluster of each centre in ``others``."""
    labelling: Labelling | None = None
    """Labelling of a model; None if rows belong to the nearest of ``others``."""
    labels: NDArray[np.int32] | None = None
    """(n,) given labels of all rows."""

    @classmethod
    def about(
        cls, centers: NDArray[Any], shift: NDArray[Any], used: NDArray[np.bool_], **how: Any
    ) -> Clusters:
        """Return clusters with these centres (k, d); ``used`` marks the clusters that have rows."""
        numbers = np.flatnonzero(used).astype(np.int32)
        _check_number(len(numbers))
        packed = pack_centers(centers, shift)
        kept = packed if used.all() else pack_centers(centers[numbers], shift)
        return cls(packed, kept, numbers, **how)

    @property
    def n_clusters(self) -> int:
        """Number of clusters, including clusters without rows."""
        return self.centers.n_clusters


def _clusters_of(model: Model, dtype: np.dtype[Any]) -> Clusters:
    """Return the clusters of a model for rows of a dtype."""
    centers = model._cluster_centers()
    if centers is None:
        raise ParameterError(
            f"these scores need centres, but a model of the kind {model.kind!r} has none; pass "
            "labels instead."
        )
    used = model.counts > 0
    by_nearest = model._labels_by_nearest and bool(used.all())
    labelling = None if by_nearest else model._labelling(dtype)
    wide = np.promote_types(centers.dtype, compute_dtype(dtype))
    return Clusters.about(centers.astype(wide), model.arrays.shift, used, labelling=labelling)


def _labels(chunk: Chunk, clusters: Clusters) -> NDArray[np.int32] | None:
    """Return the clusters of a chunk's rows; None if rows belong to the nearest centres."""
    if clusters.labels is not None:
        return clusters.labels[chunk.numbers()]
    if clusters.labelling is None:
        return None
    how = clusters.labelling
    sums = {name: ExactSums(length) for name, length in how.sums.items()}
    return how.chunk_fn(chunk, sums, *how.broadcast)


def _two_nearest(x: Table, centers: PackedCenters) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the two nearest centres of every row, computed in float64 for very distant rows."""
    first, _, second, _ = nearest_two_pruned(x, centers)
    far = too_far(squared_distances(x, centers, first), centers.dtype)
    if len(far):
        wide = (part.astype(np.float64) for part in (centers.centers, centers.shift))
        rows = dense_rows(x[far]).astype(np.float64)
        first[far], _, second[far], _ = nearest_two(rows, pack_centers(*wide))
    return first, second


def _silhouettes(
    x: Table, own: NDArray[np.int32] | None, clusters: Clusters
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Return the labels and silhouettes of rows; a silhouette is 0 if both distances are 0."""
    first, second = _two_nearest(x, clusters.others)
    nearest = clusters.numbers[first]
    own = nearest if own is None else own
    other = np.where(nearest == own, second, first)
    a = np.sqrt(squared_distances(x, clusters.centers, own))
    b = np.sqrt(squared_distances(x, clusters.others, other))
    larger = np.maximum(a, b)
    return own, np.divide(b - a, larger, out=np.zeros_like(larger), where=larger > 0)


# --- passes over rows -----------------------------------------------------------------------------


@dataclass
class SeparationTotal(Additive):
    """Total of the first pass."""

    sums: ClusterSums | None
    """Sums of rows by cluster, if means are needed."""
    silhouettes: ExactSums
    weight: ExactSums
    n_rows: int = 0
    """Number of rows of positive weight that are not excluded."""
    bad: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    """By chunk, the number of labelled rows with NaN or infinity, and the first of these rows."""

    @property
    def silhouette(self) -> float:
        return self.silhouettes.value / self.weight.value

    @classmethod
    def of(cls, k: int, d: int, grid: FixedPoint | None) -> SeparationTotal:
        sums = None if grid is None else ClusterSums(k, d, grid)
        return cls(sums, ExactSums(), ExactSums())


@dataclass
class DistanceTotal(Additive):
    """Total of the second pass: distances of rows to the means of their clusters."""

    distances: ExactSums
    """Sums of distances by cluster."""
    squares: ExactSums
    """Sum of squared distances over all clusters."""

    @classmethod
    def of(cls, k: int) -> DistanceTotal:
        return cls(ExactSums(k), ExactSums())


def _weights(chunk: Chunk, labels: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the weights of rows; 0 for excluded rows."""
    weight = np.ones(len(labels)) if chunk.weight is None else chunk.weight.copy()
    weight[labels == SKIPPED] = 0
    return weight


def _first_chunk(
    chunk: Chunk, total: SeparationTotal, clusters: Clusters, with_silhouettes: bool
) -> None:
    """Label a chunk's rows; add the rows and their silhouettes to the total."""
    own = _labels(chunk, clusters)
    if with_silhouettes:
        given = None if own is None else np.maximum(own, 0)
        labels, silhouettes = _silhouettes(chunk.x, given, clusters)
        own = labels if own is None else own
    elif own is None:
        own, _ = _two_nearest(chunk.x, clusters.centers)
    weight = _weights(chunk, own)
    if clusters.labels is not None and chunk.bad is not None:
        rows = chunk.start + np.flatnonzero(chunk.bad & (own != SKIPPED))
        if len(rows):
            total.bad[chunk.index] = np.array([len(rows), rows[0]])
    if with_silhouettes:
        total.silhouettes.add(silhouettes, weight)
    total.weight.add(np.ones(len(own)), weight)
    total.n_rows += int(np.count_nonzero(weight))
    if total.sums is not None:
        counted = np.where(weight > 0, own, SKIPPED).astype(np.int32)
        total.sums.add(chunk.x, counted, chunk.weight)


def _second_chunk(
    chunk: Chunk, total: DistanceTotal, clusters: Clusters, means: PackedCenters
) -> None:
    """Add the distances of a chunk's rows to the means of their clusters."""
    own = _labels(chunk, clusters)
    if own is None:
        own, _ = _two_nearest(chunk.x, clusters.centers)
    weight = _weights(chunk, own)
    labels = np.maximum(own, 0)
    squares = squared_distances(chunk.x, means, labels)
    total.distances.add(np.sqrt(squares), weight, labels)
    total.squares.add(squares, weight)


def _of_labels(
    passes: BasePasses, labels: NDArray[np.int32], names: Sequence[str]
) -> dict[str, float]:
    """Compute scores of clusters given by labels, whose centres are the means of their rows."""
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
            f"{n_bad:,} labelled rows contain NaN or infinity; give them the label -1 to exclude "
            f"them. The first: {first}"
        )
    if not total.n_rows:
        raise DataError(
            "there are no rows to score, because all rows have weight 0 or the label -1; pass rows "
            "with positive weights and with labels of at least 0."
        )
    return total


def _about_means(
    passes: BasePasses, clusters: Clusters, first: SeparationTotal, names: Sequence[str]
) -> dict[str, float]:
    """If any requested scores need the cluster means, compute these scores in a second pass."""
    if BY_MEANS.isdisjoint(names):
        return {}
    assert first.sums is not None
    used = np.flatnonzero(first.sums.counts > 0)
    k = len(used)
    _check_number(k)
    means, counts = first.sums.means_float64(clusters.centers.centers), first.sums.counts[used]
    about = pack_centers(means, clusters.centers.shift.astype(np.float64))
    spread: DistanceTotal = passes.reduce(
        _second_chunk,
        clusters,
        about,
        start=partial(DistanceTotal.of, clusters.n_clusters),
        combine=DistanceTotal.combine,
    )
    means, found = means[used], {}
    if "davies_bouldin" in names:
        ratios = _worst(spread.distances.values[used] / counts, means, passes.threads)
        found["davies_bouldin"] = math.fsum(ratios) / k
    if "calinski_harabasz" in names:
        weight, within = first.weight.value, spread.squares.value
        if weight <= k:
            raise ParameterError(
                "calinski_harabasz needs a total weight above the number of clusters, but the "
                f"weights sum to {weight:.6g} and there are {k:,} clusters; multiply the weights "
                "by a constant, or use fewer clusters."
            )
        # Sums along the first axis add row by row, so results do not depend on the processor.
        middle = (means * counts[:, None]).sum(axis=0) / math.fsum(counts)
        between = math.fsum(counts * row_squares(means, middle))
        # As in scikit-learn, the index is 1 if all rows equal the means of their clusters.
        found["calinski_harabasz"] = (
            1.0 if within == 0 else between / (k - 1) / (within / (weight - k))
        )
    return found


def _worst(
    spread: NDArray[np.float64], centers: NDArray[np.float64], threads: Threads
) -> NDArray[np.float64]:
    """Return the largest ratio of each cluster, over all clusters with a different mean."""
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
        have = "1 cluster has" if n_clusters else "no cluster has"
        raise ParameterError(
            f"{have} rows, but scores without known classes need at least two clusters with rows."
        )
