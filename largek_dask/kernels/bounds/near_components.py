"""For each component of a mixture, those that its rows most probably come from as well.

With equal variances these are the nearest. Otherwise distance misleads: a wide component far away
explains a row better than a narrow one close by. The criterion is the expected log joint of a row
of the one under the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.errors import ParameterError
from largek_dask.kernels.bounds.neighbours import Pairs, nearest_centers, nearest_pairs
from largek_dask.kernels.dense.panels import PAD
from largek_dask.kernels.mixtures import PackedMixture

__all__ = ["nearest_components"]

Array = NDArray[Any]
Labels = NDArray[np.int32]


def nearest_components(packed: PackedMixture, m: int, n_threads: int = 1) -> Labels:
    r"""For each component, find the ones that its rows most probably come from as well.

    With unequal variances c' is ranked under c by the expected log joint of a row of c,

    .. math:: \log \pi_{c'} - \tfrac12 \sum_f \left[ \log 2\pi\sigma^2_{c'f}
       + \frac{\sigma^2_{cf} + (\mu_{cf} - \mu_{c'f})^2}{\sigma^2_{c'f}} \right]

    That is minus a score of the tile: the features of c, its mean and the expected squares of its
    rows, times those of c', its factors and the start of its scores.

    Parameters
    ----------
    packed : PackedMixture
    m : int
        1 to k.
    n_threads : int
        No result depends on it.

    Returns
    -------
    int32 array (k, m)
        Each component itself first, then the others, most probable first, in the compute dtype and
        with its rounding; ties go to the lowest index, and retired components come last. Of very
        many components, among those of near groups (:mod:`~.neighbours`).
    """
    k = packed.n_components
    if not 1 <= m <= k:
        raise ParameterError(f"m must be between 1 and {k}, got {m}.")
    if packed.covariance == "iso" and packed.alive.all():
        return nearest_centers(packed.centers, m, n_threads)
    return nearest_pairs(_pairs(packed), packed.centers, m, n_threads)


def _pairs(packed: PackedMixture) -> Pairs:
    """Return factors and starts of the components, and the features that they meet."""
    form, (k, d) = packed.weighted_form, packed.means.shape
    n_factors = form.factors.shape[1]
    found, factors = np.empty((2, k, n_factors + 1), packed.dtype)
    found[:, :n_factors] = form.factors[:k]
    # (retired ones begin at infinity, and that times 0 is NaN)
    found[:, n_factors] = np.minimum(form.starts[:k], np.finfo(packed.dtype).max)
    means = packed.centers.values.astype(np.float64)
    squares = means * means + packed.variances
    if packed.covariance != "diag":
        squares = np.cumsum(squares, axis=1)[:, -1:]
    factors[:, :d] = means
    factors[:, d:n_factors] = squares
    factors[:, n_factors] = 1
    nothing = np.zeros(-(-(n_factors + 1) // PAD) * PAD, packed.dtype)
    starts = np.zeros(k, packed.dtype)
    return Pairs(found, nothing, factors, starts, direct=0, distances=False)
