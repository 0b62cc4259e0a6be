"""Initial centres from a sample of rows in the driver's process.

*Two levels*: about sqrt(k) coarse centres are found on a part of the sample. Each coarse cell gets
a share of the k centres in proportion to its number of rows, and these centres are found on the
rows of the cell alone. This takes about 2 sqrt(k) distances per row and step instead of k.

*Best of several*: with few clusters of dense rows, the result depends mostly on the start, and a
start is cheap compared with passes over all rows. Several greedy k-means++ starts are therefore
tried.

*Rounds*, for sparse rows: rows are drawn in proportion to their squared distance to the nearest row
drawn before, as in k-means++ (D. Arthur, S. Vassilvitskii, SODA 2007), but each round doubles the
number of drawn rows. This takes log k passes over the sample, with k distances per row in total.

For sparse rows, computing distances to many centres costs little more than reading the rows, and
rows with few common features do not form coarse cells. Rounds are therefore the better start if
their passes are affordable.

Rows ``x`` (n, d) with n >= 1 have weights ``weight`` (n,) or None. If n <= k, rows are repeated. No
result depends on the number of threads.
"""

from __future__ import annotations

from math import isqrt, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Rng
from largek_dask.kernels.blocks import SparseBlock, Table
from largek_dask.kernels.bounds.lists import order_by_label
from largek_dask.kernels.dense.cells import cell_means
from largek_dask.kernels.dense.greedy import greedy_rows
from largek_dask.kernels.distances import PackedCenters, nearest, pack_centers, squared_distances
from largek_dask.kernels.exact.fixed_point import FixedPoint
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.sums import ClusterSums
from largek_dask.kernels.rows import compute_dtype
from largek_dask.kernels.sampling import draw_by_d2, update_d2
from largek_dask.kernels.threads import Threads, on_threads

COARSE_ROWS = 100
"""Number of sampled rows per coarse centre."""
LEVEL_STEPS = 5
FIRST_STEPS, BEST_STEPS = 3, 10
"""Number of Lloyd steps from every start, and from each of the best starts."""
KEPT = 4
"""One in this many starts is kept after ``FIRST_STEPS`` steps."""
MOST_STARTS = 64
PASSES, LEAST_WORK = 16, 1 << 25
"""Maximum cost of all starts: a number of passes over all rows, or a number of products (a few
hundredths of a second) if that is more."""
FAR_COST = 10.0
"""Maximum ratio of the mean cost of the k costliest rows to the mean cost of all rows for which
rows drawn by weight alone are a good start. The ratio is 1.2 for texts, and 4 to 8 for counts of
cells."""
LEAST_PIECE = 2_048

Labels = NDArray[np.int32]
Weights = NDArray[np.float64]


def _pieces(n: int, n_threads: int) -> list[slice]:
    step = max(LEAST_PIECE, -(-n // n_threads))
    return [slice(begin, begin + step) for begin in range(0, n, step)]


def _nearest(x: Table, packed: PackedCenters, n_threads: int) -> Labels:
    labels = np.empty(len(x), np.int32)
    on_threads(n_threads, lambda at: nearest(x[at], packed, labels[at]), _pieces(len(x), n_threads))
    return labels


def update_distances(x: Table, packed: PackedCenters, d2: Weights, threads: Threads) -> int:
    """Update squared distances for new centres; return the number of distances computed."""
    threads.map(lambda at: update_d2(x[at], packed, d2[at]), _pieces(len(x), threads.n))
    return len(x) * packed.n_clusters


def cost_of(x: Table, weight: Weights | None, centers: NDArray[Any], shift: NDArray[Any]) -> float:
    packed, total = pack_centers(centers, shift), ExactSums(1)
    total.add(squared_distances(x, packed, nearest(x, packed)), weight)
    return float(total.value)


def coarse_centers(x: NDArray[Any], k: int, shift: NDArray[Any]) -> NDArray[Any]:
    """Return (about sqrt(k), d) coarse centres of dense rows, which are in random order."""
    m = max(1, min(isqrt(k), len(x)))
    n = min(len(x), COARSE_ROWS * m)
    order, starts = np.arange(n, dtype=np.int32), np.array([0, n])
    return cell_means(x[:n], order, starts, np.array([m]), np.arange(m), shift, LEVEL_STEPS)[0]


def two_level_start(
    x: NDArray[Any], weight: Weights | None, k: int, shift: NDArray[Any], n_threads: int
) -> tuple[NDArray[Any], NDArray[Any], Labels]:
    """Return initial centres of dense rows, which are in random order.

    Returns
    -------
    centers : (k, d)
    coarse : (about sqrt(k), d)
    labels : (n,) int32
        Approximately the nearest centre of each row.
    """
    coarse = coarse_centers(x, k, shift)
    if len(x) <= k:
        rows = x.astype(coarse.dtype, copy=False)
        return np.resize(rows, (k, x.shape[1])), coarse, np.arange(len(x), dtype=np.int32)
    cells = _nearest(x, pack_centers(coarse, shift), n_threads)
    order, starts = order_by_label(cells, len(coarse))
    sizes = shares(np.diff(starts), k)
    # Rows are in random order, so the first rows of a cell are a random sample.
    first = np.repeat(starts[:-1], sizes)
    rank = np.arange(k) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    centers, labels = cell_means(
        x, order, starts, sizes, first + rank, shift, LEVEL_STEPS, weight, n_threads=n_threads
    )
    return centers, coarse, labels


def sparse_start(
    x: SparseBlock, weight: Weights | None, k: int, grid: FixedPoint, n_threads: int
) -> NDArray[Any]:
    """Return (k, d) initial centres of sparse rows, which are in random order.

    Rows have the compute dtype, and ``grid`` is the grid of the sampled table.
    """
    n, d = x.shape
    if n <= k:
        return np.resize(x.toarray(), (k, d))
    n_coarse = max(1, isqrt(k))
    few = slice(0, COARSE_ROWS * n_coarse)
    coarse = _sparse_lloyd(x[few], None if weight is None else weight[few], n_coarse, grid)
    cells = _nearest(x, pack_centers(coarse, grid.shift), n_threads)
    order, starts = order_by_label(cells, n_coarse)
    sizes = shares(np.diff(starts), k)
    ends = np.cumsum(sizes)
    centers = np.empty((k, d), coarse.dtype)

    def search(cell: int) -> None:
        own, m = order[starts[cell] : starts[cell + 1]], int(sizes[cell])
        own_weight = None if weight is None else weight[own]
        centers[ends[cell] - m : ends[cell]] = _sparse_lloyd(x[own], own_weight, m, grid)

    on_threads(n_threads, search, np.flatnonzero(sizes).tolist())
    return centers


def _sparse_lloyd(x: SparseBlock, weight: Weights | None, m: int, grid: FixedPoint) -> NDArray[Any]:
    """Run Lloyd steps from the first m rows; return (m, d) centres."""
    centers: NDArray[Any] = x[:m].toarray()
    for _ in range(LEVEL_STEPS):
        labels = nearest(x, pack_centers(centers, grid.shift))
        sums = ClusterSums(m, x.n_features, grid)
        sums.add(x, labels, weight)
        centers = sums.means(centers)
        empty = np.flatnonzero(np.bincount(labels, minlength=m) == 0)
        if len(empty):
            packed = pack_centers(centers, grid.shift)
            costs = squared_distances(x, packed, labels).astype(np.float64)
            # Rows of equal cost in a cluster are usually equal, so use only one of them.
            _, rows = np.unique(np.stack([labels, costs], axis=1), axis=0, return_index=True)
            rows = rows[costs[rows] > 0]
            mass = costs[rows] if weight is None else costs[rows] * weight[rows]
            far = rows[np.argsort(-mass, kind="stable")[: len(empty)]]
            centers[empty[: len(far)]] = x[far].toarray()
    return centers


def shares(counts: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """Divide k in proportion to ``counts`` by largest remainders.

    No share exceeds its count, and every positive count gets at least 1, if k is large enough. k
    must not exceed the sum of the counts.
    """
    wanted = counts * (k / int(counts.sum()))
    sizes = np.minimum(np.maximum(np.floor(wanted), counts > 0), counts).astype(np.int64)
    for sign, left in ((1, k - int(sizes.sum())), (-1, int(sizes.sum()) - k)):
        while left > 0:
            open_to = sizes < counts if sign > 0 else sizes > (1 if sizes.max() > 1 else 0)
            rank = np.argsort(np.where(open_to, sign * (sizes - wanted), np.inf), kind="stable")
            chosen = rank[: min(left, int(np.count_nonzero(open_to)))]
            sizes[chosen] += sign
            left -= len(chosen)
    out: NDArray[np.int64] = sizes
    return out


def n_starts(n_rows: int, n_sampled: int, n_features: int, k: int) -> int:
    """Return the number of starts to make on a sample of a table."""
    a_row = n_features * k
    one = n_sampled * a_row * (FIRST_STEPS + BEST_STEPS // KEPT + _candidates(k))
    return max(1, min(MOST_STARTS, max(PASSES * n_rows * a_row, LEAST_WORK) // max(one, 1)))


def greedy_start(
    x: NDArray[Any],
    weight: Weights | None,
    k: int,
    shift: NDArray[Any],
    rng: Rng,
    n_starts: int,
    n_threads: int,
) -> tuple[NDArray[Any], float]:
    """Return (k, d) initial centres of dense rows, and the weighted cost."""
    dtype, n = compute_dtype(x.dtype), len(x)
    if n <= k:
        return np.resize(x.astype(dtype), (k, x.shape[1])), 0.0
    columns = np.ascontiguousarray(x.T, dtype)
    mass = np.ones(n) if weight is None else weight
    shape = k, _candidates(k)

    def begin(start: int) -> NDArray[np.int64]:
        return greedy_rows(columns, mass, rng.generator(start, "greedy").random(shape))

    def after_lloyd(picks: list[NDArray[np.int64]], n_steps: int) -> list[NDArray[Any]]:
        # Handle each start as a cell; all cells contain the same rows.
        m = len(picks)
        order = np.tile(np.arange(n, dtype=np.int32), m)
        places = np.concatenate([start * n + rows for start, rows in enumerate(picks)])
        starts, sizes = np.arange(m + 1) * n, np.full(m, k)
        many = {"n_full": n_steps, "n_threads": n_threads}
        found = cell_means(x, order, starts, sizes, places, shift, n_steps, weight, **many)[0]
        return np.split(found, m)

    picks = on_threads(n_threads, begin, range(n_starts))
    costs = [cost_of(x, weight, own, shift) for own in after_lloyd(picks, FIRST_STEPS)]
    best = sorted(range(n_starts), key=costs.__getitem__)[: -(-n_starts // KEPT)]
    found = after_lloyd([picks[start] for start in best], BEST_STEPS)
    costs = [cost_of(x, weight, own, shift) for own in found]
    least = min(range(len(best)), key=costs.__getitem__)
    return found[least], costs[least]


def _candidates(k: int) -> int:
    return 2 + int(log(k))


def rounds_start(
    x: SparseBlock,
    weight: Weights,
    k: int,
    grid: FixedPoint,
    generator: np.random.Generator,
    n_threads: int,
) -> NDArray[Any]:
    """Draw sparse rows in rounds, then run one Lloyd step; return (k, d) initial centres.

    Rows must have positive weight and the compute dtype, in an order independent of chunks.
    ``grid`` is the grid of the sampled table.
    """
    n, d = x.shape
    if n <= k:
        return np.resize(x.toarray(), (k, d))
    d2 = np.full(n, np.inf)
    new, _ = draw_by_d2(weight, None, generator.random(1))
    drawn = new
    while len(drawn) < k:
        update_distances(x, pack_centers(x[new].toarray(), grid.shift), d2, Threads(n_threads))
        most = min(len(drawn), k - len(drawn))
        picks, _ = draw_by_d2(d2, weight, generator.random(most))
        if not len(picks):
            # Every row coincides with a centre, so repeat some of the drawn rows.
            break
        new = _different(x, picks)
        drawn = np.concatenate([drawn, new])
    centers: NDArray[Any] = x[np.resize(drawn, k)].toarray()
    sums = ClusterSums(k, d, grid)
    sums.add(x, _nearest(x, pack_centers(centers, grid.shift), n_threads), weight)
    return sums.means(centers)


def different_rows(
    x: SparseBlock,
    weight: Weights,
    k: int,
    grid: FixedPoint,
    generator: np.random.Generator,
    n_threads: int,
) -> tuple[NDArray[Any], Labels] | None:
    """Draw k different sparse rows by weight; return them and the labels (n,) of all rows.

    Return None if this start is not good enough: too many rows are equal, or a few rows, which
    drawing by D² would find, cost far more than all others. For the parameters see
    :func:`rounds_start`.
    """
    picks, _ = draw_by_d2(weight, None, generator.random(4 * k))
    rows = _different(x, picks)[:k]
    if len(rows) < k:
        return None
    centers: NDArray[Any] = x[rows].toarray()
    packed = pack_centers(centers, grid.shift)
    labels = _nearest(x, packed, n_threads)
    costs = squared_distances(x, packed, labels) * weight
    highest = np.partition(costs, len(x) - k)[-k:]
    # Multiply instead of dividing, because both means may be 0.
    if highest.mean() > FAR_COST * costs.mean():
        return None
    return centers, labels


def _different(x: SparseBlock, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first of each group of equal rows."""
    kinds: dict[tuple[bytes, bytes], int] = {}
    for row in rows.tolist():
        at = slice(x.indptr[row], x.indptr[row + 1])
        kinds.setdefault((x.indices[at].tobytes(), x.data[at].tobytes()), row)
    return np.array(list(kinds.values()), np.int64)
