"""The objective of k-means as a difference of two convex functions: values and subgradients.

With m the total weight, ``f_k(x) = f_1(x) - f_2(x)`` (N. Karmitsa, A. Bagirov, S. Taheri, equations
6 to 8), where ``f_1(x) = (1/m) sum_a w_a sum_j |x_j - a|^2`` is smooth and
``f_2(x) = (1/m) sum_a w_a max_j sum_(s != j) |x_s - a|^2`` has a corner wherever a row has two
nearest centres. One assignment gives everything: with n_j the weight and S_j the sum of the rows of
cluster j, block j of ``grad f_1 - xi_2`` is ``(2/m)(n_j x_j - S_j)``, for a xi_2 of the
subdifferential of f_2 (equations 18 to 22). Each way to assign the rows that tie gives another
one.

The auxiliary function of one more centre y (equations 10 to 14) is
``g(y) = (1/m) sum_a w_a min(r_a, |y - a|^2)``. With B(y) the rows nearer to y than r_a, n_B their
weight and S_B their sum, ``grad g_1 - xi_2 = (2/m)(n_B y - S_B)``.

Sums are exact or compensated (:mod:`.auxiliary`), so a row of weight w is w equal rows.
"""

from __future__ import annotations

from dataclasses import dataclass

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
from largek_dask.kernels.exact.squares import Squares
from largek_dask.kernels.exact.statistics import RowScan, Statistics
from largek_dask.kernels.exact.sums import ClusterSums

__all__ = ["AuxiliaryFunction", "ClusteringFunction", "Evaluation", "MeasuredRows"]

TIE = 2.0**-40
"""Relative difference up to which two squared distances count as equal: centres are
rounded, too."""

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Evaluation:
    """Values and gradients of ``f = f_1 - f_2`` at a point; arrays have the point's shape."""

    value: float
    """f, in the unit of squared distances."""
    gradient: Array
    """The gradient of f_1."""
    subgradient: Array
    """A subgradient of f_2."""


@dataclass(frozen=True, eq=False, slots=True)
class MeasuredRows:
    """Rows with their statistics."""

    x: Table
    """(n, d) of any type that a table of dense rows may have."""
    weight: Array | None
    """(n,); None if every row weighs 1."""
    statistics: Statistics
    """Mean, total weight and the grid of sums."""

    @classmethod
    def of(cls, x: Table, weight: Array | None = None) -> MeasuredRows:
        """Prepare rows that all count: finite, with weights above 0."""
        scan = RowScan(x.shape[1], x.dtype)
        scan.add(x, weight)
        return cls(x, weight, scan.finish())

    @property
    def total(self) -> float:
        """Total weight (m)."""
        return self.statistics.total_weight

    def pack(self, centers: Array) -> PackedCenters:
        """Pack centres, to be searched in float64 for rows of any type."""
        shift = self.statistics.shift.astype(np.float64)
        return pack_centers(np.ascontiguousarray(centers), shift)


class ClusteringFunction:
    """f_k of k centres.

    Parameters
    ----------
    rows : MeasuredRows
    k : int

    Notes
    -----
    Sums are kept from one point to the next: only rows that change clusters are read for
    them. They are exact, so a value does not depend on where it was evaluated before.
    """

    def __init__(self, rows: MeasuredRows, k: int) -> None:
        self.rows = rows
        self._sums = ClusterSums(k, rows.statistics.n_features, rows.statistics.grid)
        self._labels: NDArray[np.int32] | None = None

    def evaluate(self, centers: Array) -> Evaluation:
        """Return value and subgradients at (k, d) centres, tied rows with their first centre."""
        packed = self.rows.pack(centers)
        labels = nearest(self.rows.x, packed)
        gradient = 2.0 * (centers - self.rows.statistics.mean)
        value = self._value(packed, labels)
        return Evaluation(value, gradient, gradient - self._difference(centers, labels))

    def value(self, centers: Array) -> float:
        """Return the value alone."""
        packed = self.rows.pack(centers)
        return self._value(packed, nearest(self.rows.x, packed))

    def second(self, centers: Array) -> Array | None:
        """Return another subgradient of f_2: tied rows are given to their second centre.

        None if no row ties.
        """
        packed = self.rows.pack(centers)
        x, weight = self.rows.x, self.rows.weight
        if packed.n_clusters == 1:
            return None
        labels, _, others, _ = nearest_two(x, packed)
        first = squared_distances(x, packed, labels)
        tied = squared_distances(x, packed, others) - first <= TIE * first
        if weight is not None:
            tied &= weight > 0
        if not tied.any():
            return None
        given = np.where(tied, others, labels).astype(np.int32)
        gradient: Array = 2.0 * (centers - self.rows.statistics.mean)
        return gradient - self._difference(centers, given)

    def _value(self, packed: PackedCenters, labels: NDArray[np.int32]) -> float:
        squares = Squares()
        squares.add(squared_distances(self.rows.x, packed, labels), self.rows.weight)
        return squares.value / self.rows.total

    def _difference(self, centers: Array, labels: NDArray[np.int32]) -> Array:
        """Return ``grad f_1 - xi_2`` with rows in the clusters of their labels."""
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
    """The auxiliary function of one more centre, in addition to (k, d) centres.

    Parameters
    ----------
    rows : MeasuredRows
    centers : (k, d) float64

    Attributes
    ----------
    arranged : ArrangedRows
        The rows, arranged for scans of many points.
    without : float
        Objective of the (k, d) centres, not divided by the total weight.
    """

    def __init__(self, rows: MeasuredRows, centers: Array) -> None:
        self.rows = rows
        packed = rows.pack(centers)
        labels = nearest(rows.x, packed)
        r = squared_distances(rows.x, packed, labels)
        order = order_by_distance(labels, r, len(centers))
        weight = np.ones(len(r)) if rows.weight is None else rows.weight
        x = np.asarray(rows.x, np.float64)
        self.arranged: ArrangedRows = arrange(x, weight, centers, order, r)
        squares = Squares()
        squares.add(r, rows.weight)
        self.without = squares.value

    def evaluate(self, y: Array) -> Evaluation:
        """Return value and subgradients at a point (d,); tied rows stay with their centres."""
        gains, mass, sums = members_at(self.arranged, y[None])
        value = (self.without - float(gains[0])) / self.rows.total
        gradient: Array = 2.0 * (y - self.rows.statistics.mean)
        return Evaluation(value, gradient, gradient - self._difference(y, mass[0], sums[0]))

    def value(self, y: Array) -> float:
        """Return the value alone."""
        return self.evaluate(y).value

    def second(self, y: Array) -> Array | None:
        """Return another subgradient of f_2: of the tied rows, the farthest is given to y.

        None if no row ties, or if the tied rows lie at y.
        """
        arranged = self.arranged
        squares = np.zeros(len(arranged.r))
        for column, at in zip(arranged.columns, y, strict=True):
            squares += (column - at) ** 2
        inside = squares < arranged.r
        tied = np.abs(squares - arranged.r) <= TIE * arranged.r
        tied &= squares > 0
        if len(arranged.weight):
            tied &= arranged.weight > 0
        if not tied.any():
            return None
        row = int(np.argmax(np.where(tied, squares, -1.0)))
        _, mass, sums = members_at(arranged, y[None])
        weight = float(arranged.weight[row]) if len(arranged.weight) else 1.0
        sign = -weight if inside[row] else weight
        given = sums[0] + sign * arranged.columns[:, row]
        gradient: Array = 2.0 * (y - self.rows.statistics.mean)
        return gradient - self._difference(y, mass[0] + sign, given)

    def _difference(self, y: Array, mass: float, sums: Array) -> Array:
        """Return ``grad g_1 - xi_2`` if y has rows of this weight and sum."""
        return (2.0 / self.rows.total) * (mass * y - sums)
