"""Sampling by squared distance, using uniform random numbers from the caller.

Sources: D. Arthur and S. Vassilvitskii, "k-means++: the advantages of careful seeding" (SODA 2007);
B. Bahmani et al., "Scalable k-means++" (VLDB 2012).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import Table, readonly
from largek_dask.kernels.distances import PackedCenters, nearest, scores, squared_distances
from largek_dask.kernels.exact.numbers import (
    BLOCK_VALUES,
    N_LIMBS,
    ExactSums,
    peel,
    two_product_error,
)
from largek_dask.kernels.jit import njit

_ABS_BITS = 0x7FFFFFFFFFFFFFFF
_NO_WEIGHT = readonly(np.empty(0))
_WIDE = 64
_SCORES = 1 << 18


def update_d2(
    x: Table,
    packed: PackedCenters,
    d2: NDArray[np.float64],
    labels: NDArray[np.int32] | None = None,
    offset: int = 0,
) -> None:
    """Update squared distances to the nearest centres in place after adding centres.

    The search for the nearest new centre is rounded to the compute dtype. The distance to this
    centre is then computed in float64, and is 0 for a row that equals the centre.

    Parameters
    ----------
    x : (n, d)
    packed : PackedCenters
        The new centres.
    d2 : (n,) float64
        Squared distance to the nearest centre so far; infinity if there was none.
    labels : (n,) int32, optional
        Index of the nearest centre, updated in place. Ties go to the earlier centre.
    offset : int
        Index of the first new centre.
    """
    if packed.n_clusters == 1:
        found = np.zeros(len(x), np.int32)
    else:
        found = nearest(x, packed)
    distances = squared_distances(x, packed, found)
    closer = distances < d2
    d2[closer] = distances[closer]
    if labels is not None:
        labels[closer] = found[closer] + offset


def potentials(
    x: Table,
    packed: PackedCenters,
    d2: NDArray[np.float64],
    weight: NDArray[np.float64] | None = None,
) -> ExactSums:
    """Return the objective ``sum w min(d2, |x - c|²)`` for each candidate c as a new centre.

    Sums are exact, but distances are rounded to the compute dtype. `d2` (n,) contains the squared
    distances to the nearest existing centres.
    """
    m = packed.n_clusters
    out = ExactSums(m)
    step = max(1, _SCORES // m)
    for begin in range(0, len(x), step):
        rows = slice(begin, begin + step)
        limbs = np.zeros((N_LIMBS, m), np.int64)
        out.n_not_finite += _potentials(
            readonly(scores(x[rows], packed)), readonly(d2[rows]),
            _NO_WEIGHT if weight is None else readonly(weight[rows]), limbs,
        )  # fmt: skip
        out.add_table(limbs)
    return out


@njit
def _potentials(distances, d2, weight, limbs):
    n, m = distances.shape
    # Several rows are added as if they were one row. Zeros fill the last group of rows.
    group = max(1, _WIDE // m)
    width = group * m
    step = group * max(1, BLOCK_VALUES // width)
    values = np.zeros(step * m)
    rests = np.zeros(step * m)
    skipped = 0
    for begin in range(0, n, step):
        rows = min(step, n - begin)
        wide = (rows + group - 1) // group
        largest: Any = 0
        largest_rest: Any = 0
        values[rows * m : wide * width] = 0.0
        rests[rows * m : wide * width] = 0.0
        for i in range(rows):
            bound = d2[begin + i]
            for j in range(m):
                value = min(bound, np.float64(distances[begin + i, j]))
                values[i * m + j] = value
                largest = max(largest, np.float64(value).view(np.int64) & _ABS_BITS)
        if weight.shape[0] > 0:
            largest = 0
            for i in range(rows):
                for j in range(i * m, i * m + m):
                    product = values[j] * weight[begin + i]
                    rests[j] = two_product_error(values[j], weight[begin + i], product)
                    values[j] = product
                    largest = max(largest, np.float64(product).view(np.int64) & _ABS_BITS)
                    rest = np.float64(rests[j]).view(np.int64) & _ABS_BITS
                    largest_rest = max(largest_rest, rest)
        skipped += peel(values[: wide * width].reshape((wide, width)), limbs, largest)
        if largest_rest > 0:
            skipped += peel(rests[: wide * width].reshape((wide, width)), limbs, largest_rest)
    return skipped


def draw_by_d2(
    d2: NDArray[np.float64], weight: NDArray[np.float64] | None, uniforms: NDArray[np.float64]
) -> tuple[NDArray[np.int64], float]:
    """Draw rows with replacement, with probability proportional to ``weight * d2``.

    Squared distances `d2` (n,) are finite and not negative. Random numbers `uniforms` (m,) are in
    [0, 1).

    Returns
    -------
    rows : (m,) int64
        Indices of rows with ``weight * d2`` above 0; empty if there are no such rows.
    mass : float
        Sum of ``weight * d2``, added in row order.
    """
    edges = np.cumsum(d2 if weight is None else d2 * weight)
    mass = float(edges[-1]) if len(edges) else 0.0
    if mass == 0.0:
        return np.empty(0, np.int64), mass
    # A target that is rounded up to the total mass selects the row that reaches the total.
    last = np.searchsorted(edges, mass, side="left")
    rows = np.minimum(np.searchsorted(edges, uniforms * mass, side="right"), last)
    return rows.astype(np.int64, copy=False), mass


def bernoulli_by_d2(
    d2: NDArray[np.float64],
    weight: NDArray[np.float64] | None,
    factor: float,
    uniforms: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Return rows drawn independently, each with probability ``min(1, factor * weight * d2)``.

    Squared distances `d2` (n,) are not negative. Random numbers `uniforms` (n,) are in [0, 1). Rows
    with ``weight * d2`` equal to 0 are never drawn.
    """
    mass = d2 if weight is None else d2 * weight
    return np.flatnonzero(uniforms < factor * mass)


def shuffle_places(order: NDArray[np.int32], uniforms: NDArray[np.float64], begin: int) -> None:
    """Shuffle positions ``begin .. begin + m`` of a permutation, in place.

    The Fisher-Yates shuffle starts from the front: position ``i`` is exchanged with a random
    position from ``i`` to the last, selected by one of the m `uniforms` in [0, 1). Positions before
    `begin` do not change.
    """
    _shuffle_places(order, readonly(uniforms), begin)


@njit
def _shuffle_places(order, uniforms, begin):
    n = order.shape[0]
    for i in range(begin, begin + uniforms.shape[0]):
        j = i + np.int64(uniforms[i - begin] * (n - i))
        order[i], order[j] = order[j], order[i]


def share_of_chunks(
    order: NDArray[Any], table: NDArray[np.int64], begin: int, end: int, of: int
) -> NDArray[Any]:
    """Concatenate the same fraction of each chunk of `order`.

    Chunks start at positions ``table[:-1]``, and the last entry of `table` is the number of rows.
    In a chunk of m rows, positions from ``begin * m // of`` to ``end * m // of`` are selected.
    """
    starts, sizes = table[:-1], np.diff(table)
    spans = starts + begin * sizes // of, starts + end * sizes // of
    return np.concatenate([order[first:last] for first, last in zip(*spans, strict=True)])
