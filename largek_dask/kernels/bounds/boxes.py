r"""Nearest-centre search that skips most boxes of sixteen centres.

Boxes are the bounding boxes of the leaves of a k-d tree; a node is the bounding box of sixteen
boxes. The first guess for a row is the nearest centre of a nearby box. Only boxes within the
distance of the guess are searched. Centres that may be nearer are compared by float64 sums (x -
c)², so labels, including ties, equal those of :func:`~largek_dask.kernels.distances.nearest`.

*Coordinates.* Rows and centres, after subtraction of the shift, have W coordinates: their
components in the W - 1 directions in which centres differ most, and the length of the remainder. By
Cauchy-Schwarz ``|Qx - Qc|² + (|x⊥| - |c⊥|)² <= |x - c|²``, so distances in these coordinates never
exceed the true distances. With up to eight features, the coordinates are the features themselves.

*Rounding.* :class:`Slack` bounds the rounding errors of coordinates; by the triangle inequality,
the search distance is increased by this bound.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.bounds.box_search import BITS, LANES, BoxArrays, search
from largek_dask.kernels.distances import PackedCenters

AWAY = 2.0**60
"""Coordinate of padding points, far from all centres (which lie within 1 of the origin)."""
FARTHEST = 2.0**50
"""Maximum distance of a row from the origin; the dense search handles farther rows."""

LEAST_REACH, MOST_REACH = 2.0**-400, 2.0**300
"""Minimum and maximum length of the longest centre; outside this range, boxes are not used and rows
are compared with all centres. Below the minimum, squares may be rounded to 0."""

WIDTHS = (8, 16)
"""Allowed numbers of coordinates."""
ENOUGH = 0.7
"""Fraction of the centres' variance that the coordinates should retain."""

ROW, DIRECT, POINTS, BOXES, WHOLE, SUM = 12_000, 1.9, 4, 12, (300, 6), 2_500
"""Measured costs, in multiplications of the dense search: per row, per multiplication in the direct
form, per coordinate of a point test and of a box test, per float32 distance (constant, and per
feature) and per float64 distance. The costs decide which search runs and never change a label."""

Array = NDArray[Any]
Labels = NDArray[np.int32]


class Slack(NamedTuple):
    r"""Extra search distance, so that rounding errors never exclude the nearest centre.

    Let v = 2^-53, w = 2^-24 and γ_n = n v / (1 - n v) (Higham 2002, lemma 3.1), and measure lengths
    from the shift. The error of a stored point, relative to the point's length, is at most the sum
    of:

    * 2 v for subtracting the shift;
    * ``sqrt(W) γ_{d+2}`` for W sums over d features, and ε for directions that are not quite
      orthonormal: the basis B is Q S with Q orthonormal and ``|S - I| <= ε = |B'B - I|``;
    * sqrt(η) for the length of the remainder, a difference of squares whose error is η times the
      point's squared length, ``η = 2 (2 v + sqrt(W) γ_{d+2} + ε) + γ_{d+2W+4}`` (of the sums only,
      to first order), because ``|sqrt(a) - sqrt(b)| <= sqrt(|a - b|)``;
    * w for storing the point in float32 (scaled so that centres lie within 1 of the origin).

    `share` is twice the sum of these terms, which also covers second-order terms, and underflow if
    centres are at least `LEAST_REACH` away. The squared distance of two stored points with n
    coordinates has a relative error of at most γ_{n+3} of float32; `stretch` allows twice this
    error. Squared distances to boxes never exceed those to points in the boxes, since rounding is
    monotone.

    The computed squared distance S of a row to its guess has a relative error of at most ``(d + 8)
    2^-52``. A centre that is computed to be no farther than the guess has a true distance of at
    most ``T = sqrt(S (1 + wide) + absolute)``, so its stored point is within ``T + share (|x| +
    reach)`` of the stored row, where `reach` is the length of the longest centre. With up to eight
    features, `wide` and `absolute` bound the rounding errors of the dense search in the compute
    dtype; if a second centre is within T, the dense search labels the row.
    """

    share: float
    stretch: float
    wide: float
    absolute: float

    @classmethod
    def of(cls, dtype: np.dtype[Any], basis: NDArray[np.float64], direct: bool) -> Slack:
        """Return the slack for rows of type ``dtype`` and the (d, W) directions ``basis``."""
        (d, width), kind = basis.shape, np.finfo(dtype)
        v, w = 2.0**-53, 2.0**-24
        gram = basis.T @ basis
        # A zero direction is a placeholder for the remainder's length or for a missing feature.
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


class Boxes:
    """Centres grouped into boxes of sixteen, and boxes grouped into nodes of sixteen."""

    __slots__ = (
        "arrays", "basis", "dense", "direct", "reach", "scale", "shift", "slack", "width",
    )  # fmt: skip

    def __init__(self, packed: PackedCenters) -> None:
        moved = packed.centers.astype(np.float64) - packed.shift.astype(np.float64)
        (k, d), self.direct = moved.shape, packed.direct > 0
        self.dense = k * d * (DIRECT if self.direct else 1.0)
        """Work of the dense search per row, in multiplications."""
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
        whole = np.zeros((k, -(-d // LANES) * LANES), np.float32)
        whole[:, :d] = moved * self.scale
        low, high = points[order].min(axis=1), points[order].max(axis=1)
        low, high = (part.reshape(-1, LANES, width) for part in (low, high))
        self.arrays = BoxArrays(
            readonly(packed.centers.reshape(-1)),
            readonly(_filled_boxes(order.astype(np.int32), 0).ravel()),
            _columns(_filled_boxes(points[order], AWAY)),
            readonly(_filled_boxes(whole[order], AWAY).ravel()),
            *(_columns(part) for part in (low, high)),
            *(_columns(_by_lanes(part)) for part in (low.min(axis=1), high.max(axis=1))),
        )
        self.shift = readonly(packed.shift.astype(np.float64))
        self.slack = Slack.of(packed.dtype, self.basis, self.direct)

    def search(
        self,
        x: Array,
        begin: int,
        end: int,
        out: tuple[Array, ...],
        left: Array,
        budget: float = np.inf,
    ) -> tuple[int, int, int, float]:
        """Label rows ``begin .. end`` of x; stop early if the budget is exceeded.

        Parameters
        ----------
        x : array (n, d)
            Rows of the compute dtype, C-ordered.
        begin, end : int
        out : tuple of one int32 array (n,)
            Labels, written to.
        left : int64 array (n,)
            Receives the rows that are left to the dense search.
        budget : float
            Work after which no further row is started, in multiplications of the dense search.

        Returns
        -------
        stopped, n_left, n_evaluated : int
            First row that was not searched, number of rows left to the dense search, and number of
            distances computed in all features.
        work : float
            Work done, in multiplications of the dense search.
        """
        limit = float(np.sqrt(np.finfo(x.dtype).max / 64)) - self.reach
        farthest = min(FARTHEST / self.scale, limit)
        d, step = x.shape[1], LANES * self.width
        costs = (ROW, BOXES * step, POINTS * step, WHOLE[0] + WHOLE[1] * d, SUM)
        found: tuple[int, int, int, float] = search(self.width, self.direct)(
            readonly(x).reshape(-1), begin, end, d, self.shift, readonly(self.basis).reshape(-1),
            self.scale, tuple(self.arrays), self.reach, farthest, tuple(self.slack), BITS,
            tuple(map(float, costs)), float(budget), *out, left,
        )  # fmt: skip
        return found


def directions(moved: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the first W - 1 principal directions of (k, d) points, as a (d, W) array.

    The last column is 0. W is the smallest of `WIDTHS` whose directions retain the fraction
    `ENOUGH` of the variance, or else the largest allowed. A W above the smallest of `WIDTHS` is at
    most d / 2.
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
    """Divide (k, W) points into boxes by repeated halving; return (n_boxes, m) indices of points.

    `n_boxes` is a power of two. If k is not a multiple of `n_boxes`, the last point is in several
    boxes.
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
    """Pad an (n, m, …) array of boxes to sixteen points per box."""
    out = np.full((len(table), LANES, *table.shape[2:]), fill, table.dtype)
    out[:, : table.shape[1]] = table
    return out


def _by_lanes(corners: Array) -> Array:
    """Split (n, W) corners into groups of sixteen, and pad the last group."""
    n, width = corners.shape
    out = np.full((-(-n // LANES), LANES, width), AWAY, corners.dtype)
    out.reshape(-1, width)[:n] = corners
    return out


def _columns(table: Array) -> Array:
    """Transpose an (n, 16, W) array to (n, W, 16), and flatten it."""
    return readonly(np.ascontiguousarray(table.transpose(0, 2, 1)).ravel())
