r"""Nearest-centre search that skips most centres by a distance bound in a few directions.

Let P be the projection onto p orthonormal directions, and Q the projection onto their orthogonal
complement. Then ``|x - c|² = |Px - Pc|² + |Qx - Qc|²`` is at least ``|Px - Pc|² + (|Qx| - |Qc|)² =
|x|² + |c|² - 2 (Px·Pc + |Qx| |Qc|)``. This lower bound is a product form of p + 1 features.

Rows are compared with all centres in the p + 1 features of this bound (:mod:`~.prefix_search`).
Only centres whose bound does not exceed the smallest distance found so far are compared in all
features. If distances differ by no more than rounding errors, float64 sums (x - c)² decide. So
labels equal those of :func:`~largek_dask.kernels.distances.nearest` for any directions. With the
principal directions of the centres, most centres are skipped.

*Sources.* C.-D. Bei and R. M. Gray (1985) stop sums of squares early. S.-W. Ra and J.-K. Kim (1993)
bound distances by means, and C.-H. Lee and L.-H. Chen (1994) also by norms; later authors use
principal components. ADSampling (J. Gao and C. Long, 2023) and SuperKMeans (2025) prune in few
directions with some probability of error. Labels are exact here (:class:`Margin`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.bounds.prefix_search import FEATURES, PrefixArrays, search
from largek_dask.kernels.dense import panels
from largek_dask.kernels.distances import PackedCenters
from largek_dask.kernels.exact.squares import row_squares
from largek_dask.kernels.projection import Directions, orthonormal, project
from largek_dask.kernels.tile import select_tile

Array = NDArray[Any]
Labels = NDArray[np.int32]

LEAST_REACH, MOST_REACH = 2.0**-40, 2.0**50
"""Allowed length of the longest centre; float32 squares then neither underflow nor overflow."""
FEWEST_MET, MET = 8, 0.6
"""Limits on the number of centres per row that are compared in all features. The average over a
panel of rows is at most `FEWEST_MET` or, if larger, the number that costs the fraction `MET` of a
dense pass. A row with more than four times this number is compared with all centres."""
SOME_CENTERS, ITERATIONS = 512, 4
"""Maximum number of centres from which principal directions are approximated, and number of
iterations."""
FULL, ROW, OVERHEAD = (8.0, 2_500.0), (20.0, 12_000.0), 1.1
"""Measured costs, in multiplications of the dense search: of a distance in all features (per
feature, and constant), of a row (likewise), and of a multiplication in few features. The costs
decide which search runs and never change a label."""
MOST_OFF = 2.0**-6
"""Maximum relative error of projections; if it is exceeded, no centre is skipped."""


def least_work(k: int, d: int, p: int) -> float:
    """Return the minimum cost of labelling a row, in multiplications of the dense search."""
    row, full = (a * d + b for a, b in (ROW, FULL))
    return row + full + OVERHEAD * (p * d + (p + 1) * k)


class Margin(NamedTuple):
    r"""Upper bounds on the rounding errors of computed distance bounds.

    Let X and C be a row and a centre minus the shift, and V the stored (p, d) directions with
    ``|VV' - I| <= ε``. Then V = S W with W orthonormal and ``|S - I| <= ε``, and P is W'W. Let u be
    the unit roundoff of the compute dtype and γ_n = n u / (1 - n u) (Higham 2002, lemma 3.1).

    * Each component of the computed VX is a sum over blocks of `FEATURES` features, so VX has an
      error of at most ``sqrt(p) γ_m (1 + ε) |X|``. Here m is the number of features per block, plus
      the number of blocks, plus 4 (for subtracting the shift and storing factors of centres). The
      distance of VX from WX is at most ε |X| larger. Let δ be the sum of both relative errors,
      which also holds for VC.
    * ``|WX|² >= |VX|² - (2 δ + δ²) |X|²``, so ``|QX|² = |X|² - |WX|²`` is at most the computed
      ``|X|² - |VX|²`` plus `left_out` |X|². The square root is rounded up, for rows and centres.
    * A score of p + 1 products has an error of at most ``γ_{p+8} (|C|² + 2 |X| |C|)``
      (:class:`~.Rounding`), which is `product`, plus ``2 (2 δ + δ²) |X| |C|``, which is `turned`.
    * Squared distances in the compute dtype and squared lengths of rows have a relative error of at
      most γ_m (:func:`~.near_square`); `wide` covers two such errors and float64 sums.

    `up` covers the rounding of square roots and score limits to the compute dtype, and `absolute`
    covers products that underflow. Factors slightly above 1 cover second-order terms.
    """

    longest: float
    wide: float
    absolute: float
    product: float
    turned: float
    up: float
    left_out: float

    @classmethod
    def of(cls, directions: Array, longest: float) -> Margin:
        """Return the margin for (p, d) stored directions and the length of the longest centre."""
        (p, d), kind = directions.shape, np.finfo(directions.dtype)
        exact, u = directions.astype(np.float64), float(kind.eps) / 2
        gap = float(np.linalg.norm(exact @ exact.T - np.eye(p))) + p * (d + 2) * 2.0**-52

        def gamma(n: int) -> float:
            return n * u / (1 - n * u)

        blocks = -(-d // FEATURES)
        share = math.sqrt(p) * gamma(min(d, FEATURES) + blocks + 4) * (1 + gap) + gap
        near = 4.2 * gamma(d // (64 // kind.dtype.itemsize) + p + 9)
        return cls(
            longest=longest * (1 + 2.0**-20),
            wide=near + (d + 8) * 2.0**-49,
            absolute=(d + p + 8) * 16 * float(kind.smallest_subnormal),
            product=gamma(p + 8) if share + near <= MOST_OFF else math.inf,
            turned=2.1 * (2 + share) * share,
            up=8 * u,
            left_out=(2 + share) * share + near,
        )


class Prefix:
    """Centres projected onto a few directions.

    The distance of the farthest centre from the shift is between `LEAST_REACH` and `MOST_REACH`.
    The (p, d) directions are nearly orthonormal; :class:`Margin` covers the deviation.
    """

    __slots__ = ("arrays", "dense", "form", "margin", "most", "p", "shape", "tile")

    def __init__(self, packed: PackedCenters, directions: Array) -> None:
        dtype, (k, d), self.p = packed.dtype, packed.centers.shape, len(directions)
        self.dense = float(k * d)
        """Work of the dense search per row, in multiplications."""
        squares = row_squares(packed.centers, packed.shift)
        self.margin = Margin.of(directions, float(np.sqrt(squares.max())))
        points = _project_blocks(packed.values, directions)
        rest = np.maximum(squares - (points * points).sum(axis=1), 0)
        tails = np.sqrt(rest + self.margin.left_out * squares) * (1 + self.margin.up)
        padded = -(-k // panels.PAD) * panels.PAD
        factors, starts = np.zeros((padded, self.p + 1), dtype), np.full(padded, np.inf, dtype)
        factors[:k, : self.p], factors[:k, self.p], starts[:k] = -2 * points, -2 * tails, squares
        columns = factors.reshape(-1, panels.PAD, self.p + 1).transpose(0, 2, 1)
        rows = np.zeros((-(-self.p // panels.PAD) * panels.PAD, d), dtype)
        rows[: self.p] = directions
        shift = np.zeros(-(-d // 8) * 8 + 8, dtype)
        shift[:d] = packed.shift
        arrays = shift, rows, np.zeros(len(rows), dtype), factors, starts, columns, packed.centers
        self.arrays = PrefixArrays(*(readonly(array.reshape(-1)) for array in arrays))
        self.shape, self.form, self.tile = (k, d), packed.dense, select_tile()
        self.most = 4 * max(FEWEST_MET, int(MET * self.dense / (FULL[0] * d + FULL[1])))

    def search(
        self, x: Array, begin: int, end: int, out: tuple[Array, ...], left: Array
    ) -> tuple[int, int, int, float]:
        """Label rows ``begin .. end``; see :meth:`~.boxes.Boxes.search` for arguments and results.

        If there are more than `panels.PAD` centres, `out` may consist of four arrays that receive
        the results of :func:`~largek_dask.kernels.distances.nearest_two`.
        """
        dtype, two = x.dtype, len(out) > 1
        tiles = len(self.arrays.zeros) // self.tile.centres
        blocks = panels.Blocking(panels=1, tiles=tiles, features=FEATURES - 1)
        space = panels.workspace(self.tile, dtype, False, FEATURES, blocks, (0, 0))
        form = self.form
        known = (form.factors.reshape(-1), form.starts, form.rounding.as_tuple()) if two else ()
        n_left, n_evaluated = search(self.tile, dtype, two)(
            readonly(x), begin, end, tuple(self.arrays), self.p, tuple(self.margin), MOST_REACH**2,
            self.most, space, left, known, out,
        )  # fmt: skip
        k, d = self.shape
        work = (end - begin) * least_work(k, d, self.p)
        work += (n_evaluated - (end - begin)) * (FULL[0] * d + FULL[1])
        return end, n_left, n_evaluated, work


def _project_blocks(x: Array, directions: Array) -> NDArray[np.float64]:
    """Return (n, p) projections of rows, as accurate as :class:`Margin` assumes."""
    seen = np.zeros((len(x), len(directions)))
    for f in range(0, x.shape[1], FEATURES):
        some = slice(f, f + FEATURES)
        origin = np.zeros(x[:, some].shape[1], directions.dtype)
        seen += project(x[:, some], Directions.of(directions[:, some], origin))
    return seen


def principal_directions(x: Array, n: int, known: Array | None = None) -> Array:
    """Approximate the first n principal directions of (k, d) points, as an (n, d) array.

    The method is subspace iteration (Halko, Martinsson and Tropp 2011, algorithm 4.4). One step is
    enough if n directions of similar points are `known`.
    """
    apart = x[:: -(-len(x) // SOME_CENTERS)]
    apart = apart - apart.mean(axis=0, dtype=np.float64).astype(x.dtype)
    columns, (m, d) = np.ascontiguousarray(apart.T), apart.shape
    here, there = np.zeros(d, x.dtype), np.zeros(m, x.dtype)
    signs, steps = np.random.default_rng(0).integers(0, 2, (n, d)) * 2.0 - 1.0, ITERATIONS
    block = signs
    if known is not None:
        block = np.concatenate([known[:n], signs[len(known) :]])
        steps = 1 if len(known) >= n else ITERATIONS // 2
    basis = orthonormal(block).astype(x.dtype)
    for _ in range(steps):
        seen = project(apart, Directions.of(basis, here))
        order = (seen * seen).sum(axis=0).argsort(kind="stable")[::-1]
        along = np.ascontiguousarray(seen.T[order])
        found = orthonormal(project(columns, Directions.of(along, there)).T)
        if len(found) < n:  # The points span fewer than n dimensions.
            found = orthonormal(np.concatenate([found, signs]))[:n]
        basis = found.astype(x.dtype)
    return basis
