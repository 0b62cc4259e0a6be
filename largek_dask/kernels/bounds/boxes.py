r"""Nearest centres of many, most of them passed over: centres stand in boxes, sixteen in each.

Boxes are the leaves of a k-d tree, each as narrow as the centres in it; sixteen make a node, which
is the box around them. A row takes the nearest centre of a box near to it for its first guess. Then
only boxes that reach within that distance are opened, and of the centres in them those that may be
nearer are compared with it by the sums (x - c)² in float64 by which
:func:`~largek_dask.kernels.distances.nearest` decides. So labels are those that it gives, ties
included, however loose the bounds are.

*Coordinates.* Rows are points of few dimensions around centres that fill fewer still, so boxes of
all features would all be near. Here a point z (a row or a centre, less the shift) has W
coordinates: its components in the W - 1 directions in which centres differ most, and the length
of what is left of it. By Cauchy-Schwarz ``|Qx - Qc|² + (|x⊥| - |c⊥|)² <= |x - c|²``, so distances
there are never above those of the points. Up to eight features they are the features themselves.

*Rounding.* :class:`Slack` says how far points may be from where they should stand; by the triangle
inequality that much is added to the distance within which boxes are opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.bounds.box_search import BITS, LANES, search
from largek_dask.kernels.distances import PackedCenters

__all__ = ["Boxes", "Slack"]

AWAY = 2.0**60
"""Where points stand that are not there; centres lie within 1 of the origin."""
FARTHEST = 2.0**50
"""Rows farther out than this are left to the dense search."""

MOST_REACH = 2.0**300
"""Centres with a coordinate beyond this are all compared ..."""
LEAST_REACH = 2.0**-400
"""... and so are centres that are all nearer to the shift, whose squares may be rounded to 0."""

WIDTHS = (8, 16)
ENOUGH = 0.7
"""Coordinates are as few as have this share of the variance of the centres."""

ROW, DIRECT, POINTS, BOXES, WHOLE, SUM = 12_000, 1.9, 4, 12, (300, 6), 2_500
"""Cost in multiplications of the dense search: of a row; of a multiplication of the direct form; of
one in a test of points, of boxes; of a centre in all features, and a feature; of a sum in float64.
Measured; they decide who searches, never a label."""

Array = NDArray[Any]
Labels = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Slack:
    r"""How much farther than a row's guess boxes are opened, so that rounding passes over nothing.

    With v = 2^-53, w = 2^-24, γ_n = n v / (1 - n v) (Higham 2002, lemma 3.1), and all lengths those
    from the shift, a point that is stored is off by at most this share of its length:

    * 2 v for taking off the shift;
    * ``sqrt(W) γ_{d+2}`` for its W sums over d features, and ε for directions that are not quite
      orthonormal: the basis B is Q S with Q orthonormal and ``|S - I| <= ε = |B'B - I|``;
    * sqrt(η) for the length of what is left, as the squares that it is the difference of are off by
      η times the point's squared length, ``η = 2 (2 v + sqrt(W) γ_{d+2} + ε) + γ_{d+2W+4}`` (of
      the sums only, to first order), and ``|sqrt(a) - sqrt(b)| <= sqrt(|a - b|)``;
    * w for storing it in float32 (scaled so that centres lie within 1 of the origin).

    `share` is twice their sum, which covers the terms of second order as well, and what underflows
    where centres are `LEAST_REACH` away or more. A computed square of a distance between stored
    points is off by the factor ``1 ± γ_{n+3}`` of float32, n their coordinates: `stretch` has twice
    as much. Squares of distances to boxes are never above those to the points in them, since
    rounding is monotone.

    The guess has the distance D_a, computed as the square S within the factor
    ``1 ± (d + 8) 2^-52``. A centre that is at most as far, by sums that are rounded too, has a true
    distance of at most ``T = sqrt(S (1 + wide) + absolute)``, so its stored point is within
    ``T + share (|x| + reach)`` of the stored row, `reach` being the length of the longest centre.
    With up to eight features the dense search compares sums in the compute dtype, and `wide` and
    `absolute` are what those are worth: where a second centre is within T, the row is left to it.
    """

    share: float
    stretch: float
    wide: float
    absolute: float

    @classmethod
    def of(cls, dtype: np.dtype[Any], basis: NDArray[np.float64], direct: bool) -> Slack:
        """For rows of a compute dtype and (d, W) directions."""
        (d, width), kind = basis.shape, np.finfo(dtype)
        v, w = 2.0**-53, 2.0**-24
        gram = basis.T @ basis
        # (directions that are 0 stand for what is left, or for features that there are not)
        gap = float(np.linalg.norm(gram - np.diag(np.diag(gram) > 0.5)))
        apart = gap + 2 * d * width * v
        turned = 2 * v + np.sqrt(width) * 2 * (d + 2) * v + apart
        left = 0.0 if direct else float(np.sqrt(2 * turned + 2 * (d + width + 4) * v))
        u = float(kind.eps) / 2
        return cls(
            share=2 * (turned + left + w),
            stretch=1 + 2 * (max(d, width) + 4) * 2 * w,
            wide=8 * (d + 6) * u if direct else (d + 8) * 2.0**-50,
            absolute=(d + 8) * 8 * float(kind.smallest_subnormal),
        )

    def as_tuple(self) -> tuple[float, float, float, float]:
        """For compiled code."""
        return self.share, self.stretch, self.wide, self.absolute


class Boxes:
    """Centres in boxes, and boxes in nodes, sixteen and sixteen.

    Parameters
    ----------
    packed : PackedCenters
        Of at least one centre, none farther from the shift than `MOST_REACH`.
    """

    __slots__ = (
        "basis", "columns", "corners", "dense", "direct", "given", "names", "node_corners", "reach",
        "scale", "shift", "slack", "whole", "width",
    )  # fmt: skip

    def __init__(self, packed: PackedCenters) -> None:
        moved = packed.centers.astype(np.float64) - packed.shift.astype(np.float64)
        (k, d), self.direct = moved.shape, packed.direct > 0
        self.dense = k * d * (DIRECT if self.direct else 1.0)
        """Work of the dense search for a row."""
        self.basis = np.eye(d, WIDTHS[0]) if self.direct else directions(moved)
        self.width = width = self.basis.shape[1]
        squares = (moved * moved).sum(axis=1)
        self.reach = float(np.sqrt(squares.max())) * (1 + 2.0**-40)
        self.scale = 2.0 ** -int(np.clip(np.frexp(self.reach)[1], -1000, 1000))
        points = moved @ self.basis
        if not self.direct:
            points[:, -1] = np.sqrt(np.maximum(squares - (points * points).sum(axis=1), 0))
        points = (points * self.scale).astype(np.float32)
        n_boxes = LANES
        while n_boxes * LANES < k:
            n_boxes *= 2
        order = halved(points, n_boxes)
        self.names = readonly(_filled_boxes(order.astype(np.int32), 0).ravel())
        self.columns = _columns(_filled_boxes(points[order], AWAY))
        whole = np.zeros((k, -(-d // LANES) * LANES), np.float32)
        whole[:, :d] = moved * self.scale
        self.whole = readonly(_filled_boxes(whole[order], AWAY).ravel())
        low, high = points[order].min(axis=1), points[order].max(axis=1)
        low, high = (part.reshape(-1, LANES, width) for part in (low, high))
        self.corners = _columns(low), _columns(high)
        low, high = low.min(axis=1), high.max(axis=1)
        self.node_corners = _columns(_by_lanes(low)), _columns(_by_lanes(high))
        self.given, self.shift = packed.centers, readonly(packed.shift.astype(np.float64))
        self.slack = Slack.of(packed.dtype, self.basis, self.direct)

    def search(
        self, x: Array, begin: int, end: int, budget: float, out: tuple[Array, ...], left: Array
    ) -> tuple[int, int, int, float]:
        """Label rows ``begin .. end``, or as many of them as the budget is enough for.

        Parameters
        ----------
        x : array (n, d)
            Rows of the compute dtype, C-ordered.
        begin, end : int
        budget : float
            Work after which no further row is begun, in multiplications of the dense search.
        out : tuple of one int32 array (n,)
            Labels, written to.
        left : int64 array (n,)
            Receives the rows that are left to the dense search.

        Returns
        -------
        stopped, n_left, n_evaluated : int
            The first row that was not looked at; how many rows are left to the dense search; how
            many distances were computed, in all features.
        work : float
            In multiplications of the dense search.
        """
        limit = float(np.sqrt(np.finfo(x.dtype).max / 64)) - self.reach
        farthest = min(FARTHEST / self.scale, limit)
        d, step = x.shape[1], LANES * self.width
        costs = (ROW, BOXES * step, POINTS * step, WHOLE[0] + WHOLE[1] * d, SUM)
        held = (
            self.given.reshape(-1), self.names, self.columns, self.whole, *self.corners,
            *self.node_corners,
        )  # fmt: skip
        found: tuple[int, int, int, float] = search(self.width, self.direct)(
            readonly(x).reshape(-1), begin, end, d, self.shift, readonly(self.basis).reshape(-1),
            self.scale, held, self.reach, farthest, self.slack.as_tuple(), BITS,
            tuple(map(float, costs)), float(budget), *out, left,
        )  # fmt: skip
        return found


def directions(moved: NDArray[np.float64]) -> NDArray[np.float64]:
    """(d, W) directions in which (k, d) points differ most, the last one 0; W is one of `WIDTHS`.

    As few as tell most points apart (`ENOUGH`), and at most half as many as there are features.
    """
    d = moved.shape[1]
    apart = moved - moved.mean(axis=0)
    values, vectors = np.linalg.eigh(apart.T @ apart)
    values, vectors = values[::-1], vectors[:, ::-1]
    shares = np.cumsum(np.maximum(values, 0))
    enough = ENOUGH * (apart * apart).sum()
    allowed = [width for width in WIDTHS if width <= max(WIDTHS[0], d // 2)]
    width = next((w for w in allowed if shares[w - 2] >= enough), allowed[-1])
    basis = np.zeros((d, width))
    basis[:, : width - 1] = vectors[:, : width - 1]
    return basis


def halved(points: Array, n_boxes: int) -> NDArray[np.int64]:
    """(n_boxes, m) numbers of points: halves of halves, each along the widest coordinate.

    Parameters
    ----------
    points : array (k, W)
    n_boxes : int
        A power of two. Where k is no multiple of it, the last point stands in several places.
    """
    k = len(points)
    m = -(-k // n_boxes)
    order = np.minimum(np.arange(m * n_boxes), k - 1)[None]
    while len(order) < n_boxes:
        block = points[order]
        axis = block.var(axis=1).argmax(axis=1)
        along = np.take_along_axis(block, axis[:, None, None], 2)[:, :, 0]
        half = order.shape[1] // 2
        parts = np.argpartition(along, half, axis=1)
        order = np.take_along_axis(order, parts, 1).reshape(2 * len(order), half)
    return order


def _filled_boxes(table: Array, fill: float) -> Array:
    """(n, 16, …) of (n, m, …), m at most 16: with so many in each box."""
    out = np.full((len(table), LANES, *table.shape[2:]), fill, table.dtype)
    out[:, : table.shape[1]] = table
    return out


def _by_lanes(corners: Array) -> Array:
    """(⌈n / 16⌉, 16, W) of (n, W): the last ones stand far away."""
    n, width = corners.shape
    out = np.full((-(-n // LANES), LANES, width), AWAY, corners.dtype)
    out.reshape(-1, width)[:n] = corners
    return out


def _columns(table: Array) -> Array:
    """Sixteen points side by side, coordinate by coordinate, one after the other."""
    return readonly(np.ascontiguousarray(table.transpose(0, 2, 1)).ravel())
