"""Groups of centres, their drift, and the effect of rounding on bounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.bounds.group_search import GroupColumns
from largek_dask.kernels.distances import PackedCenters, nearest, pack_centers, squared_distances

__all__ = ["BoundedCenters", "Drift", "Groups", "Margins", "group_centers"]

_GROUPING_STEPS = 5

Array = NDArray[Any]
Labels = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """A partition of k centres into groups, made by :func:`group_centers`."""

    offsets: NDArray[np.int64]
    """(G + 1,) group g is ``lists[offsets[g] : offsets[g + 1]]``, never empty."""
    lists: Labels
    """(k,) the centres of one group after the other, ascending in each."""
    of: Labels
    """(k,) the group of each centre."""

    @property
    def n_groups(self) -> int:
        """Number of groups G."""
        return len(self.offsets) - 1


def group_centers(centers: Array, shift: Array, n_groups: int) -> Groups:
    """Put (k, d) centres that lie together into at most `n_groups`; `shift` is near their mean.

    A few Lloyd steps start from evenly spaced centres; one group or k need no distances.
    """
    k = len(centers)
    if n_groups < 1:
        raise ParameterError(f"n_groups must be at least 1, got {n_groups}.")
    of = np.arange(k, dtype=np.int32) if n_groups >= k else np.zeros(k, np.int32)
    if 1 < n_groups < k:
        seeds = centers[np.arange(n_groups) * k // n_groups].astype(np.float64)
        for _ in range(_GROUPING_STEPS):
            of = nearest(centers, pack_centers(seeds.astype(centers.dtype), shift))
            counts = np.bincount(of, minlength=n_groups)
            filled = np.flatnonzero(counts)
            first = np.cumsum(counts) - counts
            together = centers[np.argsort(of, kind="stable")].astype(np.float64)
            sums = np.add.reduceat(together, first[filled], axis=0)
            seeds[filled] = sums / counts[filled, None]
        of = np.unique(of, return_inverse=True)[1].astype(np.int32)
    lists = np.argsort(of, kind="stable").astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(of))]).astype(np.int64)
    return Groups(readonly(offsets), readonly(lists), readonly(of))


@dataclass(frozen=True, slots=True, eq=False)
class Drift:
    """Cumulative movement of centres since bounds began; rounded up, float64."""

    centers: NDArray[np.float64]
    """(k,) sum of each centre's movements."""
    groups: NDArray[np.float64]
    """(G,) sum of the movements of the centre of each group that was fastest in a step."""

    @classmethod
    def zero(cls, groups: Groups) -> Drift:
        return cls(np.zeros(len(groups.of)), np.zeros(groups.n_groups))

    def advance(self, old: PackedCenters, new: PackedCenters, groups: Groups) -> Drift:
        """Return the drift after one more step, from `old` to `new` centres."""
        before, after = _space(old), _space(new)
        margins = Margins.of(new)
        ways = squared_distances(after.centers, before, np.arange(len(groups.of), dtype=np.int32))
        moved = (after.centers != before.centers).any(axis=1)
        with np.errstate(over="ignore"):
            way = np.where(moved, np.sqrt(ways * (1 + margins.exact) + margins.absolute), 0.0)
            fastest = np.maximum.reduceat(way[groups.lists], groups.offsets[:-1])
            return Drift(_add_up(self.centers, way), _add_up(self.groups, fastest))


def _add_up(total: NDArray[np.float64], more: NDArray[np.float64]) -> NDArray[np.float64]:
    # never below the true sums
    return np.where(more > 0, np.nextafter(total + more, np.inf), total)


class Margins(NamedTuple):
    r"""Error bounds of computed numbers.

    Everything here is in the kernels' own space: rows ``x = fl(row - shift)`` and centres
    ``c = fl(center - shift)`` with many features, rows and centres as they are with few (direct
    form). They are given numbers there, so distances D obey the triangle inequality exactly.

    *Scores*, with unit roundoff u of the compute dtype and γ_n = n u / (1 - n u) (Higham 2002,
    lemma 3.1; it holds for fused and separate multiply-adds in any order):

    * product form: the score s_c begins with fl(|c|²) and takes d multiply-adds of
      ``x_f * -2 c_f``, so it is ``D² - |x|²`` within γ_{d+2} (|c|² + 2 |x| |c|) by
      Cauchy-Schwarz. `product` is γ_{d+6}; two of the others are for the rounding of x and c
      (:class:`~.doubts.Rounding`), the rest covers the float64 arithmetic on scores below. |x| is
      at most D_a + |c_a| for the row's own centre a.
    * direct form: differences, squares and sums of non-negative terms, so the score is D² within
      the factor 1 ± γ_{d+2}. `relative` is γ_{d+6}.
    * Products that underflow add at most half the least positive number each: `absolute`.
    * If anything may overflow (`limit`), the margin is infinite, every group is searched,
      and the kernels decide as they always do.

    *Distances* to one centre, and ways of centres, are sums of squares in float64, within the
    factor 1 ± (d + 4) 2^-53. `exact` is more than that, with 2^-40 on top for the dozen float64
    operations that follow.

    *The test.* The kernels choose a over c for certain if ``D_c² - margin_c > D_a² + margin_a``:
    then s_a < s_c, and the sum (x - c)² by which a row in doubt is decided is larger too. Hence
    they do if that holds for the lower and upper bounds. Equal distances never pass it: then
    the group is searched and the lowest index wins.

    *Bounds from scores.* The winner w of a row has the exact distance D_w. So
    ``D_c² >= D_w² + (s_c - s_w) - margin_c - margin_w``, and in the direct form
    ``D_c² >= s_c (1 - relative) - absolute``.
    """

    product: float
    relative: float
    exact: float
    absolute: float
    limit: float

    @classmethod
    def of(cls, packed: PackedCenters) -> Margins:
        """Return the margins of computations with these centres."""
        kind = np.finfo(packed.dtype)
        d, roundoff = packed.n_features, float(kind.eps) / 2
        share = (d + 6) * roundoff
        gamma = share / (1 - share) if share < 0.5 else np.inf
        exact = 2.0**-40 + (d + 8) * 2.0**-51
        return cls(
            product=0.0 if packed.direct else gamma,
            relative=exact + (gamma if packed.direct else 0.0),
            exact=exact,
            absolute=(d + 8) * float(kind.smallest_subnormal),
            limit=float(kind.max) / 8,
        )


def _space(packed: PackedCenters) -> PackedCenters:
    """Return the centres in the kernels' space, where rows have the same scores."""
    if packed.direct:
        return packed
    return pack_centers(packed.values, np.zeros_like(packed.shift))


class BoundedCenters:
    """Centres with everything that a pass needs to test bounds against them.

    `drift` is that up to these centres. Pickles as the parameters; the rest is computed once, on
    arrival.
    """

    __slots__ = ("columns", "drift", "groups", "lengths", "margins", "packed", "radii", "space")

    def __init__(self, packed: PackedCenters, groups: Groups, drift: Drift) -> None:
        self.packed, self.groups, self.drift = packed, groups, drift
        self.space = _space(packed)
        self.columns = GroupColumns(self.space, groups.offsets, groups.lists)
        self.margins = Margins.of(packed)
        origin = np.zeros((1, packed.n_features), packed.dtype)
        first = np.zeros(packed.n_clusters, np.int32)
        norms = squared_distances(self.space.centers, pack_centers(origin, origin[0]), first)
        self.lengths = np.sqrt(norms * (1 + self.margins.exact) + self.margins.absolute)
        """(k,) lengths of the centres, rounded up."""
        self.radii = np.maximum.reduceat(self.lengths[groups.lists], groups.offsets[:-1])
        """(G,) the longest in each group."""

    @property
    def n_groups(self) -> int:
        """Number of lower bounds per row."""
        return self.groups.n_groups

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundedCenters, (self.packed, self.groups, self.drift)

    def rows(self, x: Array) -> Array:
        """Return (n, d) rows in the kernels' space, a new array."""
        if self.packed.direct:
            return np.array(x, self.packed.dtype, order="C")
        rows: Array = x.astype(self.packed.dtype, copy=False) - self.packed.shift
        return rows

    @property
    def tables(self) -> tuple[Array, ...]:
        """Arrays for compiled code: both drifts, lengths, radii, and the groups of centres."""
        drift, groups = self.drift, self.groups
        arrays = drift.centers, drift.groups, self.lengths, self.radii, groups.of
        return tuple(map(readonly, arrays))
