"""How good a clustering is, with classes that are known or without: ``lk.scores``.

``accuracy``, ``nmi``, ``ari`` and ``purity`` compare labels with classes. They come from one
contingency table: how many rows are in cluster i and in class j. It is sparse, so it never has more
entries than there are rows, whatever the number of clusters.

``silhouette``, ``davies_bouldin`` and ``calinski_harabasz`` take a model and rows, and tell how far
clusters lie apart; see ``largek_dask.model.separation``.

A label of -1 is what this package gives to rows with NaN or infinity, and scikit-learn to rows
without a class. In either of the two arrays it leaves the row out of every score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from largek_dask.algorithms.parts.agreement import adjusted_rand
from largek_dask.algorithms.problem import SKIPPED
from largek_dask.driver.plan import check_output_fits
from largek_dask.errors import ParameterError, ParameterWarning, warn, without_causes
from largek_dask.estimators.base import draw_seed
from largek_dask.model.separation import Score, Separation

if TYPE_CHECKING:
    from distributed import Client

__all__ = [
    "Contingency",
    "Score",
    "accuracy",
    "ari",
    "calinski_harabasz",
    "check_integers",
    "davies_bouldin",
    "nmi",
    "purity",
    "silhouette",
]

BLOCK_ROWS = 1 << 22
"""Rows that are counted at once; what they need beside the table is some 40 bytes each."""


@dataclass(frozen=True, slots=True, eq=False)
class Contingency:
    """The contingency table of a clustering and known classes, of which all scores are made.

    Take it where several scores are wanted, or how many rows they are of; ``accuracy``, ``nmi``,
    ``ari`` and ``purity`` of this module make one each.

    Examples
    --------
    >>> import largek_dask as lk
    >>> found = lk.scores.Contingency.of([0, 0, 1, 1, -1], [7, 7, 7, 3, 3])
    >>> found.cells.toarray().tolist()
    [[0, 2], [1, 1]]
    >>> found.n_rows, found.n_left_out, found.accuracy()
    (4, 1, 0.75)
    """

    cells: csr_matrix
    """(clusters, classes) numbers of rows, int64, sparse; without clusters and classes that have
    no row, both in the order of their numbers."""
    n_left_out: int
    """Rows with the label -1 in either array, which are not in the table."""

    @classmethod
    def of(cls, labels: Any, truth: Any) -> Contingency:
        """Count rows by cluster and class.

        Parameters
        ----------
        labels : array-like of integers (n,)
            The cluster of every row: any names from 0 on, -1 for rows to leave out.
        truth : array-like of integers (n,)
            The class of every row, likewise. There may be more or fewer classes than clusters.

        Raises
        ------
        ParameterError
            Other than one integer a row, two lengths, numbers below -1, or no row is left.

        Warns
        -----
        ParameterWarning
            One class is left of a truth with -1: its classes may be called -1 and 1.
        """
        labels, truth = check_integers(labels, "labels"), check_integers(truth, "truth")
        if len(labels) != len(truth):
            raise ParameterError(
                f"labels has {len(labels):,} rows and truth {len(truth):,}: both need one integer "
                "for each of the same rows."
            )
        if len(labels) == 0:
            raise ParameterError("labels and truth are empty: give at least one row to score.")
        kept = (labels != SKIPPED) & (truth != SKIPPED)
        n_left_out = len(kept) - int(np.count_nonzero(kept))
        has_unknown = bool((truth == SKIPPED).any())
        if n_left_out == len(kept):
            raise ParameterError(
                f"no row is left to score: all {len(kept):,} have the label -1 in labels or truth, "
                "which leaves a row out: give others to some."
            )
        if n_left_out:
            labels, truth = labels[kept], truth[kept]
        clusters, n_clusters = _numbered(labels)
        classes, n_classes = _numbered(truth)
        if has_unknown and n_classes == 1:
            warn(
                f"-1 in truth leaves a row out ({n_left_out:,} rows are), and then all rows are of "
                f"one class, {truth[0]}. If -1 is a class of its own, number classes from 0.",
                ParameterWarning,
            )
        return cls(_counted(clusters, classes, (n_clusters, n_classes)), n_left_out)

    @property
    def n_rows(self) -> int:
        """Rows in the table."""
        return int(self.cells.data.sum())

    @property
    def n_clusters(self) -> int:
        """Clusters that have a row."""
        return int(self.cells.shape[0])

    @property
    def n_classes(self) -> int:
        """Classes that have a row."""
        return int(self.cells.shape[1])

    def accuracy(self) -> float:
        """See :func:`accuracy`."""
        from scipy.optimize import linear_sum_assignment

        # Fewer rows than columns, and costs that are to be small: what scipy solves without a copy.
        cells = self.cells if self.n_clusters <= self.n_classes else self.cells.T
        check_output_fits(
            cells.shape,
            np.dtype(np.float64).itemsize,
            "The accuracy matches clusters with classes in a dense table; nmi, ari and purity "
            "need none.",
        )
        costs = (-cells.astype(np.float64)).toarray(order="C")
        return float(-costs[linear_sum_assignment(costs)].sum() / self.n_rows)

    def nmi(self) -> float:
        """See :func:`nmi`."""
        if self._is_same():
            return 1.0
        n = float(self.n_rows)
        clusters, classes = self._sizes()
        counts = self.cells.data.astype(np.float64)
        product = np.repeat(clusters, np.diff(self.cells.indptr)) * classes[self.cells.indices]
        shared = _sum(counts / n * np.log(counts * n / product))
        entropy = [_sum(sizes / n * np.log(n / sizes)) for sizes in (clusters, classes)]
        return min(1.0, max(0.0, shared / (sum(entropy) / 2)))

    def ari(self) -> float:
        """See :func:`ari`."""
        return adjusted_rand(self.cells.data, *self._sizes())

    def purity(self) -> float:
        """See :func:`purity`."""
        # No cluster of the table is empty.
        most = np.maximum.reduceat(self.cells.data, self.cells.indptr[:-1])
        return float(most.sum() / self.n_rows)

    def _is_same(self) -> bool:
        """Whether clusters and classes are the same sets of rows: one class each, and one only."""
        return bool(len(self.cells.data) == self.n_clusters == self.n_classes)

    def _sizes(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Rows of every cluster and of every class; exact up to 2^53."""
        clusters, classes = (
            np.asarray(self.cells.sum(axis=axis), np.float64).reshape(-1) for axis in (1, 0)
        )
        return clusters, classes


@without_causes
def accuracy(labels: Any, truth: Any) -> float:
    """Share of rows whose cluster stands for their class, with the best matching of the two.

    A cluster stands for one class at most, and a class has one cluster at most: where there are
    more clusters than classes, the rows of all others count as wrong (see :func:`purity`). The
    matching is exact (Kuhn, "The Hungarian method for the assignment problem", 1955; by Crouse's
    algorithm of 2016 in scipy). It takes a dense table of clusters times classes, 8 bytes each,
    and at worst min(clusters, classes)² · max(clusters, classes) operations.

    Parameters
    ----------
    labels, truth : array-like of integers (n,)
        Cluster and class of every row; rows with -1 in either are left out. How many these are is
        ``Contingency.of(labels, truth).n_left_out``.

    Returns
    -------
    float
        Above 0 to 1.

    Raises
    ------
    ParameterError
        Other than one integer a row, two lengths, numbers below -1, or no row is left.
    NotEnoughMemoryError
        The dense table does not fit the memory there is; found before it is made.

    Examples
    --------
    >>> import largek_dask as lk
    >>> lk.scores.accuracy([0, 0, 1, 1, 2], [5, 5, 3, 3, 3])
    0.8
    """
    return Contingency.of(labels, truth).accuracy()


@without_causes
def nmi(labels: Any, truth: Any) -> float:
    """Normalised mutual information: what clusters tell of classes, over their mean entropy.

    As ``sklearn.metrics.normalized_mutual_info_score`` with its arithmetic mean (NMI_sum of Vinh,
    Epps and Bailey, "Information theoretic measures for clusterings comparison", 2010). Strehl and
    Ghosh, "Cluster ensembles", 2002, who named it, divide by the geometric mean, which gives the
    same or more. Not adjusted for chance: it rises with the number of clusters.

    Parameters
    ----------
    labels, truth : array-like of integers (n,)
        As of :func:`accuracy`.

    Returns
    -------
    float
        0 (independent) to 1 (the same partition, also where both have one part only).

    Raises
    ------
    ParameterError
        As of :func:`accuracy`.

    Examples
    --------
    >>> import largek_dask as lk
    >>> lk.scores.nmi([0, 0, 1, 1], [8, 8, 4, 4]), lk.scores.nmi([0, 1, 0, 1], [8, 8, 4, 4])
    (1.0, 0.0)
    """
    return Contingency.of(labels, truth).nmi()


@without_causes
def ari(labels: Any, truth: Any) -> float:
    """Adjusted Rand index: pairs of rows that are together in both, beyond what chance gives.

    Hubert and Arabie, "Comparing partitions", 1985; as ``sklearn.metrics.adjusted_rand_score``.
    The pairs are counted without rounding.

    Parameters
    ----------
    labels, truth : array-like of integers (n,)
        As of :func:`accuracy`.

    Returns
    -------
    float
        -0.5 to 1: 1 for the same partition, about 0 for a random one.

    Raises
    ------
    ParameterError
        As of :func:`accuracy`.

    Examples
    --------
    >>> import largek_dask as lk
    >>> lk.scores.ari([0, 0, 1, 1], [8, 8, 4, 4]), lk.scores.ari([0, 1, 0, 1], [8, 8, 4, 4])
    (1.0, -0.5)
    """
    return Contingency.of(labels, truth).ari()


@without_causes
def purity(labels: Any, truth: Any) -> float:
    """Share of rows that are of the most frequent class of their cluster.

    Several clusters may stand for one class, so it rises with the number of clusters, up to 1
    where each row has its own (Manning, Raghavan and Schütze, "Introduction to Information
    Retrieval", 2008, section 16.3). Never below :func:`accuracy`.

    Parameters
    ----------
    labels, truth : array-like of integers (n,)
        As of :func:`accuracy`.

    Returns
    -------
    float
        Above 0 to 1.

    Raises
    ------
    ParameterError
        As of :func:`accuracy`.

    Examples
    --------
    >>> import largek_dask as lk
    >>> lk.scores.purity([0, 0, 1, 1, 2], [5, 5, 3, 3, 3])
    1.0
    """
    return Contingency.of(labels, truth).purity()


@without_causes
def silhouette(
    clustering: Any,
    rows: Any,
    *,
    sample: int | None = None,
    random_state: Any = None,
    sample_weight: Any = None,
    client: Client | None = None,
    n_threads: int | None = None,
) -> Score:
    """Simplified silhouette: how much nearer rows are to their own centre than to any other.

    The mean over rows of (b - a) / max(a, b), with a the distance to the row's own centre and b to
    the nearest of the other centres (Hruschka, de Castro and Campello, "Evolutionary algorithms for
    clustering gene-expression data", 2004). It takes one search for the two nearest centres.
    ``sklearn.metrics.silhouette_score`` takes distances between all pairs of rows instead, and
    gives another number: do not compare the two.

    Parameters
    ----------
    clustering : Model, fitted estimator, or array of integers (n,)
        Rows belong to clusters as its ``predict`` says (so do those of a mixture, and then a may be
        above b), or as labels say, whose centres are the means of their rows; rows of label -1
        are left out, as are those that a model skips. A cluster that had no row in the fit is
        nobody's neighbour.
    rows : whatever ``open_rows`` takes
        (n, d) rows, dense or sparse; normalised where the model does.
    sample : int, optional
        Take that many rows only, drawn without replacement by ``random_state``: the score has a
        ``standard_error`` then. None, or no fewer than there are: all rows. Not with labels.
    random_state : None, int, RandomState or Generator
        The same one draws the same rows, whatever the chunks and workers.
    sample_weight : array-like (n,) or URL, optional
        A row of weight 2 counts as two rows, one of 0 not at all.
    client : distributed.Client, optional
        Its cluster computes; None: threads of this process. The bits are the same.
    n_threads : int, optional
        Threads of this process.

    Returns
    -------
    Score
        -1 to 1, a float with ``standard_error`` (0 of all rows) and ``n_rows``. A row that is its
        centre, such as that of a cluster of one row, counts 1; one on two centres at once 0.

    Raises
    ------
    ParameterError
        Fewer than two clusters with rows, rows of another width, a sample of labels.
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
    """
    seed = 0 if sample is None else draw_seed(random_state)
    found = Separation.of(
        clustering,
        rows,
        names=("silhouette",),
        sample=sample,
        seed=seed,
        sample_weight=sample_weight,
        client=client,
        n_threads=n_threads,
    ).silhouette
    assert found is not None
    return found


@without_causes
def davies_bouldin(
    clustering: Any,
    rows: Any,
    *,
    sample: int | None = None,
    random_state: Any = None,
    sample_weight: Any = None,
    client: Client | None = None,
    n_threads: int | None = None,
) -> Score:
    """Davies-Bouldin index: how wide clusters are beside how far they lie apart; less is better.

    The mean over clusters of the largest (S_i + S_j) / M_ij, with S the mean distance of a
    cluster's rows to their mean and M the distance between two means (Davies and Bouldin, "A
    cluster separation measure", 1979; as ``sklearn.metrics.davies_bouldin_score``). It takes two
    passes over the rows, and the distances between all pairs of means. Clusters without rows do not
    count, and means in the same place are not compared.

    Parameters
    ----------
    clustering, rows, sample, random_state, sample_weight, client, n_threads
        As of :func:`silhouette`. In a sample the model's centres stand for the means of all rows,
        as those of a sample's few rows a cluster would be biased: what a model that was not run to
        its fixed point is off by then is not in the standard error.

    Returns
    -------
    Score
        0 or more.

    Raises
    ------
    ParameterError, BadRowsError, DataError
        As of :func:`silhouette`.

    Warns
    -----
    ParameterWarning
        Clusters have fewer than two rows in the sample.

    Examples
    --------
    >>> import numpy as np
    >>> import largek_dask as lk
    >>> x = np.array([[0.0], [2.0], [10.0], [12.0]])
    >>> km = lk.KMeans(2, random_state=0).fit(x)
    >>> lk.scores.davies_bouldin(km, x)
    0.2
    """
    seed = 0 if sample is None else draw_seed(random_state)
    found = Separation.of(
        clustering,
        rows,
        names=("davies_bouldin",),
        sample=sample,
        seed=seed,
        sample_weight=sample_weight,
        client=client,
        n_threads=n_threads,
    ).davies_bouldin
    assert found is not None
    return found


@without_causes
def calinski_harabasz(
    clustering: Any,
    rows: Any,
    *,
    sample: int | None = None,
    random_state: Any = None,
    sample_weight: Any = None,
    client: Client | None = None,
    n_threads: int | None = None,
) -> Score:
    """Calinski-Harabasz index: variance between clusters over that within; more is better.

    B / (k - 1) over W / (n - k), with W the squared distances of rows to the means of their
    clusters, B those of these means to the mean of all rows, and n the weight of the rows (Calinski
    and Harabasz, "A dendrite method for cluster analysis", 1974; as
    ``sklearn.metrics.calinski_harabasz_score``). It takes two passes over the rows. Clusters
    without rows do not count.

    Parameters
    ----------
    clustering, rows, sample, random_state, sample_weight, client, n_threads
        As of :func:`davies_bouldin`. A sample estimates the index of all rows, not its own.

    Returns
    -------
    Score
        0 or more; 1 where all rows lie on their means.

    Raises
    ------
    ParameterError
        As of :func:`silhouette`; or the rows weigh no more than there are clusters.
    BadRowsError, DataError
        As of :func:`silhouette`.

    Examples
    --------
    >>> import numpy as np
    >>> import largek_dask as lk
    >>> x = np.array([[0.0], [2.0], [10.0], [12.0]])
    >>> km = lk.KMeans(2, random_state=0).fit(x)
    >>> lk.scores.calinski_harabasz(km, x)
    50.0
    """
    seed = 0 if sample is None else draw_seed(random_state)
    found = Separation.of(
        clustering,
        rows,
        names=("calinski_harabasz",),
        sample=sample,
        seed=seed,
        sample_weight=sample_weight,
        client=client,
        n_threads=n_threads,
    ).calinski_harabasz
    assert found is not None
    return found


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
    try:
        found = np.asarray(values)
    except ValueError as error:
        # rows of different lengths
        raise ParameterError(f"{name} must be one integer a row: {error}") from error
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


def _numbered(values: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """Numbers without gaps for names from 0 on, in their order, and how many there are."""
    most = int(values.max())
    if most < max(BLOCK_ROWS, len(values)):
        # Nearly always, and far sooner than sorting.
        used = np.zeros(most + 1, bool)
        used[values] = True
        numbers = np.cumsum(used, dtype=np.min_scalar_type(-most - 2)) - 1
        return numbers[values], int(np.count_nonzero(used))
    names, numbers = np.unique(values, return_inverse=True)
    return numbers, len(names)


def _counted(clusters: NDArray[Any], classes: NDArray[Any], shape: tuple[int, int]) -> csr_matrix:
    """The table of these numbers, block by block: the rows are never held as its entries."""
    table = csr_matrix(shape, dtype=np.int64)
    for begin in range(0, len(clusters), BLOCK_ROWS):
        own = slice(begin, begin + BLOCK_ROWS)
        places = (clusters[own], classes[own])
        table = table + csr_matrix((np.ones(len(places[0]), np.int64), places), shape)
    table.sort_indices()
    return table


def _sum(terms: NDArray[np.float64]) -> float:
    """The sum, in an order that does not depend on what clusters and classes are called."""
    return float(np.sort(terms).sum())
