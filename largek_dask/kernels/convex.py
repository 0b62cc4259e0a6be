"""Values and subgradients of the k-means objective as a difference of convex functions.

Let m be the total weight. The objective is ``f_k(x) = f_1(x) - f_2(x)`` (N. Karmitsa, A. Bagirov,
S. Taheri, equations 6 to 8). Here ``f_1(x) = (1/m) sum_a w_a sum_j |x_j - a|^2`` is smooth, and
``f_2(x) = (1/m) sum_a w_a max_j sum_(s != j) |x_s - a|^2`` has a kink wherever a row has two
nearest centres.

Each assignment of rows to nearest centres gives a subgradient xi_2 of f_2 (equations 18 to 22):
block j of ``grad f_1 - xi_2`` is ``(2/m)(n_j x_j - S_j)``, where n_j is the weight and S_j the sum
of the rows of cluster j. Different assignments of tied rows give different subgradients.

The auxiliary function for one more centre y is ``g(y) = (1/m) sum_a w_a min(r_a, |y - a|^2)``
(equations 10 to 14), where r_a is the squared distance of row a to its nearest centre. If n_B is
the weight and S_B the sum of the rows that are nearer to y, then ``grad g_1 - xi_2 = (2/m)(n_B y -
S_B)``.

Sums are exact or compensated (:mod:`.auxiliary`), so a row of weight w counts as w equal rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.auxiliary import ArrangedRows, arrange, members_at, order_by_distance
from largek_dask.kernels.blocks import Table
from largek_dask.kernels.distances import (
    PackedCenters,
    nearest,
    nearest_two,
    pack_centers,
    squared_distances,
)
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.statistics import RowScan, Statistics
from largek_dask.kernels.exact.sums import ClusterSums

TIE = 2.0**-40
"""Relative tolerance within which two squared distances count as tied."""
UNDECIDED = 2.0**-30
"""Relative tolerance within which a tied row has no preferred centre."""

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Evaluation:
    """Value and gradients of ``f = f_1 - f_2`` at a point."""

    value: float
    """Value of f, in the unit of squared distances."""
    gradient: Array
    """The gradient of f_1."""
    subgradient: Array
    """A subgradient of f_2."""


class DCFunction(Protocol):
    """Difference ``f = f_1 - f_2`` of two convex functions of an array."""

    def evaluate(self, x: Array) -> Evaluation:
        """Return the value, the gradient of f_1 and a subgradient of f_2."""

    def value(self, x: Array) -> float:
        """Return only the value."""

    def other_subgradient(self, x: Array) -> Array | None:
        """Return a second subgradient of f_2, or None if the subgradient is unique."""


@dataclass(eq=False, slots=True)
class CountedFunction:
    """Function that counts evaluations, and calls ``check`` before each; ``check`` may raise."""

    function: DCFunction
    check: Callable[[], object]
    n: int = 0

    def evaluate(self, x: Array) -> Evaluation:
        self._count()
        return self.function.evaluate(x)

    def value(self, x: Array) -> float:
        self._count()
        return self.function.value(x)

    def other_subgradient(self, x: Array) -> Array | None:
        return self.function.other_subgradient(x)

    def _count(self) -> None:
        self.check()
        self.n += 1


def inner(a: Array, b: Array) -> float:
    """Return the inner product; each product is rounded, and the sum is rounded once."""
    return math.fsum((a * b).ravel().tolist())


def multipliers(xi: tuple[Array, ...], beta: tuple[float, ...], D: Array) -> Array:
    """Return the convex weights λ that minimise ``|Σ λ_i ξ_i|²_D + 2 Σ λ_i β_i``.

    The minimum is at a corner, on an edge or inside the triangle of convex weights (equation 30).
    """
    G, b, corners = np.array([[inner(u, D * v) for v in xi] for u in xi]), np.array(beta), np.eye(3)
    found = list(corners)
    for i, j in combinations(range(3), 2):
        bend = G[i, i] - 2.0 * G[i, j] + G[j, j]
        share = (G[j, j] - G[i, j] + b[j] - b[i]) / bend if bend > 0 else -1.0
        if 0 < share < 1:
            found.append(share * corners[i] + (1.0 - share) * corners[j])
    # Inside the triangle, the derivatives along two edges are 0 at the minimum.
    p, q, s = (G[i, j] - G[i, 2] - G[j, 2] + G[2, 2] for i, j in ((0, 0), (0, 1), (1, 1)))
    u, v = (G[2, 2] - G[i, 2] + b[2] - b[i] for i in range(2))
    determinant = p * s - q * q
    if determinant > 0:
        first, other = (u * s - v * q) / determinant, (p * v - q * u) / determinant
        if first > 0 and other > 0 and first + other < 1:
            found.append(np.array([first, other, 1.0 - first - other]))
    return min(found, key=lambda lam: inner(G, np.outer(lam, lam)) + 2.0 * inner(lam, b))


@dataclass(frozen=True, eq=False, slots=True)
class MeasuredRows:
    x: Table
    """(n, d) dense rows of any type."""
    weight: Array | None
    """(n,) weights; None if every weight is 1."""
    statistics: Statistics

    @classmethod
    def of(cls, x: Table, weight: Array | None = None) -> MeasuredRows:
        """Compute the statistics of finite rows with positive weights."""
        scan = RowScan(x.shape[1], x.dtype)
        scan.add(x, weight)
        return cls(x, weight, scan.finish())

    @property
    def total(self) -> float:
        """Total weight (m)."""
        return self.statistics.total_weight

    def pack(self, centers: Array) -> PackedCenters:
        """Pack centres for a search in float64."""
        shift = self.statistics.shift.astype(np.float64)
        return pack_centers(np.ascontiguousarray(centers), shift)


class ClusteringFunction:
    """K-means objective f_k as a function of k centres.

    Each evaluation updates the cluster sums by reading only the rows that change clusters. The sums
    are exact, so a value does not depend on earlier evaluations.
    """

    def __init__(self, rows: MeasuredRows, k: int) -> None:
        self.rows = rows
        self._sums = ClusterSums(k, rows.statistics.n_features, rows.statistics.grid)
        self._labels: NDArray[np.int32] | None = None

    def evaluate(self, centers: Array) -> Evaluation:
        """Return the value and subgradients at (k, d) centres; ties go to the first centre."""
        packed = self.rows.pack(centers)
        labels = nearest(self.rows.x, packed)
        gradient = 2.0 * (centers - self.rows.statistics.mean)
        value = self._value(packed, labels)
        return Evaluation(value, gradient, gradient - self._difference(centers, labels))

    def value(self, centers: Array) -> float:
        packed = self.rows.pack(centers)
        return self._value(packed, nearest(self.rows.x, packed))

    def other_subgradient(self, centers: Array) -> Array | None:
        """Return a subgradient found by moving tied rows, or None if no row is tied."""
        packed = self.rows.pack(centers)
        if packed.n_clusters == 1:
            return None
        labels, _, others, _ = nearest_two(self.rows.x, packed)
        first = squared_distances(self.rows.x, packed, labels)
        tied = squared_distances(self.rows.x, packed, others) - first <= TIE * first
        tied &= first > 0
        if self.rows.weight is not None:
            tied &= self.rows.weight > 0
        if not tied.any():
            return None
        rows, near = np.flatnonzero(tied), first[tied]
        x = np.ascontiguousarray(self.rows.x[rows])
        to_each = [
            squared_distances(x, packed, np.full(len(x), j, np.int32)) for j in range(len(centers))
        ]
        among = np.stack(to_each, axis=1) - near[:, None] <= TIE * near[:, None]
        x = x.astype(np.float64)

        def difference(choice: NDArray[np.int32]) -> Array:
            given = labels.copy()
            given[rows] = choice
            return self._difference(centers, given)

        def pulls(v: Array) -> Array:
            each = [((c - x) * own).sum(axis=1) for c, own in zip(centers, v, strict=True)]
            return np.where(among, np.stack(each, axis=1), -np.inf)

        gradient: Array = 2.0 * (centers - self.rows.statistics.mean)
        return gradient - _longest(x, near, labels[rows], among, pulls, difference)

    def _value(self, packed: PackedCenters, labels: NDArray[np.int32]) -> float:
        squares = ExactSums()
        squares.add(squared_distances(self.rows.x, packed, labels), self.rows.weight)
        return squares.value / self.rows.total

    def _difference(self, centers: Array, labels: NDArray[np.int32]) -> Array:
        """Return ``grad f_1 - xi_2`` if every row belongs to the cluster of its label."""
        if self._labels is None:
            self._sums.add(self.rows.x, labels, self.rows.weight)
        else:
            self._sums.move(self.rows.x, self._labels, labels, self.rows.weight)
        self._labels = labels
        grid = self._sums.grid
        sums = self._sums.totals * 2.0**-grid.bits
        about = centers - grid.shift.astype(np.float64)
        difference: Array = (2.0 / self.rows.total) * (self._sums.counts[:, None] * about - sums)
        return difference


class AuxiliaryFunction:
    """Objective as a function of one new centre that is added to (k, d) given centres."""

    def __init__(self, rows: MeasuredRows, centers: Array) -> None:
        self.rows = rows
        packed = rows.pack(centers)
        labels = nearest(rows.x, packed)
        r = squared_distances(rows.x, packed, labels)
        order = order_by_distance(labels, r, len(centers))
        weight = np.ones(len(r)) if rows.weight is None else rows.weight
        x = np.asarray(rows.x, np.float64)
        self.arranged: ArrangedRows = arrange(x, weight, centers, order, r)
        """Rows, arranged for scans of many points."""
        squares = ExactSums()
        squares.add(r, rows.weight)
        self.without = squares.value
        """Objective of the given centres, not divided by the total weight."""

    def evaluate(self, y: Array) -> Evaluation:
        """Return the value and subgradients at a (d,) point; tied rows keep their given centres."""
        gains, mass, sums = members_at(self.arranged, y[None])
        value = (self.without - float(gains[0])) / self.rows.total
        gradient: Array = 2.0 * (y - self.rows.statistics.mean)
        return Evaluation(value, gradient, gradient - self._difference(y, mass[0], sums[0]))

    def value(self, y: Array) -> float:
        return self.evaluate(y).value

    def other_subgradient(self, y: Array) -> Array | None:
        """Return a subgradient found by moving tied rows, or None if no row is tied.

        Rows that coincide with y are ignored.
        """
        arranged = self.arranged
        squares = np.zeros(len(arranged.r))
        for column, at in zip(arranged.columns, y, strict=True):
            squares += (column - at) ** 2
        tied = np.abs(squares - arranged.r) <= TIE * arranged.r
        tied &= squares > 0
        if len(arranged.weight):
            tied &= arranged.weight > 0
        if not tied.any():
            return None
        x = np.ascontiguousarray(arranged.columns[:, tied].T)
        weight = arranged.weight[tied] if len(arranged.weight) else np.ones(len(x))
        inside = (squares < arranged.r)[tied].astype(np.int32)
        _, mass, sums = members_at(arranged, y[None])

        def difference(choice: NDArray[np.int32]) -> Array:
            signed = (choice - inside) * weight
            moved = [math.fsum(column * signed) for column in x.T]
            return self._difference(y, mass[0] + math.fsum(signed), sums[0] + moved)

        def pulls(v: Array) -> Array:
            return np.stack([np.zeros(len(x)), ((y - x) * v).sum(axis=1)], axis=1)

        gradient: Array = 2.0 * (y - self.rows.statistics.mean)
        among = np.ones((len(x), 2), np.bool_)
        return gradient - _longest(x, squares[tied], inside, among, pulls, difference)

    def _difference(self, y: Array, mass: float, sums: Array) -> Array:
        """Return ``grad g_1 - xi_2``, given the weight and sum of the rows nearest to y."""
        return (2.0 / self.rows.total) * (mass * y - sums)


def _longest(
    x: Array,
    squares: Array,
    choice: NDArray[np.int32],
    among: NDArray[np.bool_],
    pulls: Callable[[Array], Array],
    difference: Callable[[NDArray[np.int32]], Array],
) -> Array:
    """Return the longest ``v = grad f_1 - xi_2`` that is found by reassigning tied rows.

    This follows Step 3 of Algorithm 5.2. First only the farthest tied row and its copies change
    sides, which gives the direction ``u = -v / |v|`` and changes v only by O(1/m). Then every tied
    row moves to the side that maximises ``<xi_2, u>``, because f'(x; u) is the minimum of ``<grad
    f_1 - xi_2, u>`` over the subdifferential. This is repeated while v gets longer, and again for
    rows without a preferred side, whose centres do not move along u.

    Parameters
    ----------
    x : (t, d)
        Tied rows.
    squares : (t,)
        Squared distances of the tied rows to their nearest centres.
    choice : (t,)
        Index of the side that each row is on.
    among : (t, q)
        True for the sides that a row may be on.
    pulls : callable
        Returns (t, q) contributions of each side of a row to ``<v, v'>``, without factors that
        depend only on the row.
    difference : callable
        Returns v for a choice of sides.
    """
    undecided, every = np.ones(len(x), np.bool_), np.arange(len(x))
    while True:
        row = int(np.argmax(np.where(undecided, squares, -1.0)))
        copies = (x == x[row]).all(axis=1)
        side = next(j for j in np.flatnonzero(among[row]) if j != choice[row])
        choice = np.where(copies, side, choice).astype(np.int32)
        v = difference(choice)
        while True:
            pulled, square = pulls(v), (v**2).sum()
            most = pulled.max(axis=1) - UNDECIDED * np.sqrt(square * squares)
            stay = pulled[every, choice] >= most
            moved = np.where(stay, choice, pulled.argmax(axis=1)).astype(np.int32)
            longer = v if stay.all() else difference(moved)
            if not (longer**2).sum() > square:
                break
            choice, v = moved, longer
        undecided &= ((pulled >= most[:, None]).sum(axis=1) > 1) & ~copies
        if not undecided.any():
            return v
