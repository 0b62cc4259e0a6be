"""Scores of a clustering, with known classes or without: ``lk.scores``.

``accuracy``, ``nmi``, ``ari`` and ``purity`` compare labels with classes. A label of -1, which this
package gives to rows with NaN or infinity, leaves a row out.

``silhouette``, ``davies_bouldin`` and ``calinski_harabasz`` take a model and rows, and measure how
far clusters lie apart; see ``largek_dask.selection.separation``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.problem import SKIPPED
from largek_dask.driver.plan import check_output_fits
from largek_dask.errors import ParameterError, ParameterWarning, warn, without_causes
from largek_dask.selection.separation import Separation

if TYPE_CHECKING:
    from distributed import Client
    from scipy.sparse import csr_matrix

__all__ = [
    "accuracy",
    "ari",
    "calinski_harabasz",
    "check_integers",
    "davies_bouldin",
    "nmi",
    "purity",
    "silhouette",
]


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
    >>> lk.scores.accuracy([0, 0, 1, 1, 2], [5, 5, 3, 3, 3])
    0.8
    """
    from scipy.optimize import linear_sum_assignment

    cells = _contingency(labels, truth)
    check_output_fits(
        cells.shape,
        np.dtype(np.float64).itemsize,
        "The accuracy matches clusters with classes in a dense table; nmi, ari and purity "
        "need none.",
    )
    matched = linear_sum_assignment(cells.toarray(), maximize=True)
    return float(cells[matched].sum() / cells.sum())


@without_causes
def nmi(labels: Any, truth: Any) -> float:
    """Normalised mutual information: ``sklearn.metrics.normalized_mutual_info_score``.

    By the arithmetic mean of entropies (NMI_sum of Vinh, Epps and Bailey, "Information theoretic
    measures for clusterings comparison", 2010). Not adjusted for chance.

    Parameters
    ----------
    labels, truth : array-like of integers (n,)
        As of :func:`accuracy`.

    Returns
    -------
    float
        0 (independent) to 1 (the same partition).

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
    from sklearn.metrics import normalized_mutual_info_score

    return float(normalized_mutual_info_score(*_kept(labels, truth)))


@without_causes
def ari(labels: Any, truth: Any) -> float:
    """Adjusted Rand index: ``sklearn.metrics.adjusted_rand_score``.

    Pairs of rows that are together in both, beyond what chance gives (Hubert and Arabie,
    "Comparing partitions", 1985).

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
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(*_kept(labels, truth)))


@without_causes
def purity(labels: Any, truth: Any) -> float:
    """Fraction of rows that are of the most frequent class of their cluster.

    It rises with the number of clusters, up to 1 where each row has its own (Manning, Raghavan and
    Schütze, "Introduction to Information Retrieval", 2008, section 16.3).

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
    cells = _contingency(labels, truth)
    return float(cells.max(axis=1).sum() / cells.sum())


def _contingency(labels: Any, truth: Any) -> csr_matrix:
    """Return the sparse (clusters, classes) table of numbers of rows."""
    from sklearn.metrics.cluster import contingency_matrix

    return contingency_matrix(*_kept(labels, truth), sparse=True, dtype=np.int64)


@without_causes
def silhouette(
    clustering: Any,
    rows: Any,
    *,
    sample_weight: Any = None,
    client: Client | None = None,
    n_threads: int | None = None,
) -> float:
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
    sample_weight : array-like (n,) or URL, optional
        A row of weight 2 counts as two rows, one of 0 not at all.
    client : distributed.Client, optional
        Its cluster computes; None: threads of this process. The bits are the same.
    n_threads : int, optional
        Threads of this process.

    Returns
    -------
    float
        -1 to 1. A row that is its centre, such as that of a cluster of one row, counts 1; one on
        two centres at once 0.

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
    """
    where = {"sample_weight": sample_weight, "client": client, "n_threads": n_threads}
    return _separation("silhouette", clustering, rows, where)


@without_causes
def davies_bouldin(
    clustering: Any,
    rows: Any,
    *,
    sample_weight: Any = None,
    client: Client | None = None,
    n_threads: int | None = None,
) -> float:
    """Davies-Bouldin index: how wide clusters are beside how far they lie apart; less is better.

    The mean over clusters of the largest (S_i + S_j) / M_ij, with S the mean distance of a
    cluster's rows to their mean and M the distance between two means (Davies and Bouldin, "A
    cluster separation measure", 1979; as ``sklearn.metrics.davies_bouldin_score``). It takes two
    passes over the rows, and the distances between all pairs of means. Clusters without rows do not
    count, and means in the same place are not compared.

    Parameters
    ----------
    clustering, rows, sample_weight, client, n_threads
        As of :func:`silhouette`.

    Returns
    -------
    float
        0 or more.

    Raises
    ------
    ParameterError, BadRowsError, DataError
        As of :func:`silhouette`.

    Examples
    --------
    >>> import numpy as np
    >>> import largek_dask as lk
    >>> x = np.array([[0.0], [2.0], [10.0], [12.0]])
    >>> km = lk.KMeans(2, random_state=0).fit(x)
    >>> lk.scores.davies_bouldin(km, x)
    0.2
    """
    where = {"sample_weight": sample_weight, "client": client, "n_threads": n_threads}
    return _separation("davies_bouldin", clustering, rows, where)


@without_causes
def calinski_harabasz(
    clustering: Any,
    rows: Any,
    *,
    sample_weight: Any = None,
    client: Client | None = None,
    n_threads: int | None = None,
) -> float:
    """Calinski-Harabasz index: variance between clusters over that within; more is better.

    B / (k - 1) over W / (n - k), with W the squared distances of rows to the means of their
    clusters, B those of these means to the mean of all rows, and n the weight of the rows (Calinski
    and Harabasz, "A dendrite method for cluster analysis", 1974; as
    ``sklearn.metrics.calinski_harabasz_score``). It takes two passes over the rows. Clusters
    without rows do not count.

    Parameters
    ----------
    clustering, rows, sample_weight, client, n_threads
        As of :func:`silhouette`.

    Returns
    -------
    float
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
    where = {"sample_weight": sample_weight, "client": client, "n_threads": n_threads}
    return _separation("calinski_harabasz", clustering, rows, where)


def _separation(name: str, clustering: Any, rows: Any, where: Mapping[str, Any]) -> float:
    score: float = getattr(Separation.of(clustering, rows, names=(name,), **where), name)
    return score


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
