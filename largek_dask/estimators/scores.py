"""How far a clustering agrees with classes that are known: ``lk.scores``.

All scores come from one contingency table: how many rows are in cluster i and in class j. It is
sparse, so it never has more entries than there are rows, whatever the number of clusters.

A label of -1 is what this package gives to rows with NaN or infinity, and scikit-learn to rows
without a class. In either of the two arrays it leaves the row out of every score.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix

from largek_dask.algorithms.parts.agreement import adjusted_rand
from largek_dask.algorithms.problem import SKIPPED
from largek_dask.driver.plan import check_output_fits
from largek_dask.errors import ParameterError, ParameterWarning, warn

__all__ = ["Contingency", "accuracy", "ari", "check_integers", "nmi", "purity"]

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
            raise ParameterError("labels and truth are empty: there is no row to score.")
        kept = (labels != SKIPPED) & (truth != SKIPPED)
        n_left_out = len(kept) - int(np.count_nonzero(kept))
        has_unknown = bool((truth == SKIPPED).any())
        if n_left_out == len(kept):
            raise ParameterError(
                f"no row is left to score: all {len(kept):,} have the label -1 in labels or truth, "
                "which leaves a row out."
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
        raise ParameterError(f"{name} is not one integer a row: {error}") from error
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
            f"{name} holds {found[row]} in row {row:,}: clusters and classes are numbered from 0 "
            "on, and -1 leaves a row out."
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
