r"""Decide how many clusters there are, from the objectives of 1 to k clusters.

Pure functions of a curve W: W_l is the least sum of ``w ||x - c||^2`` that was found with l
clusters, for all l up to k or for some. The decision asks three things of l:

1. *Stability*: the partitions found on two halves of a sample agree (adjusted Rand index of
   `STABLE` or more).
2. *More than one Gaussian*: W_l is clearly below what l points could be to a Gaussian with the same
   spectrum at the very best. Halves of a cigar, or of a line, agree as well, on cutting it in two.
   By Shannon's bound no code of l points for a Gaussian whose scatter matrix has the eigenvalues
   λ has a sum of squares below

       D_l = Σ_i min(θ, λ_i),   θ such that  Σ_i max(0, ln(λ_i / θ)) / 2 = ln l

   ("reverse water-filling": A. N. Kolmogorov, 1956; T. M. Cover and J. A. Thomas, "Elements of
   information theory", 2nd edition, 2006, theorem 10.3.3). A Gaussian is above it (1.45 times at
   l = 2 in one dimension), a line, a square and a cube cut evenly are at it, and only
   groups are far below it. Directions with λ_i < θ, which no code of l points would use, count for
   nothing here: W_l less their sum, over the rest of D_l, is to be below `BELOW`, and lower for few
   rows, which by chance look like groups.
3. *A bend*: ln W falls from l - w to l by `BEND` times as much as from l to l + w, where w is 1, or
   a twentieth of l. A curved line is below a Gaussian as well, and its W_l falls as 1/l²: by 1.7
   times as much at l = 2, and by less at all others.

Of several such l the one is named that is farthest below the Gaussian, for its size; of some that
are about as far, the one where the curve bends most. Where the curves of two halves of the rows are
known, each by itself has to name a number as well, by 2 and 3, that is no farther off than w (2 at
least): how far they are apart is how uncertain the number is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.exact.transcendental import exp as exponentials
from largek_dask.kernels.exact.transcendental import log as logarithms

__all__ = [
    "Curve",
    "SuggestedK",
    "gaussian_ratios",
    "spectrum_of",
    "suggest_k",
    "window",
]

Floats = NDArray[np.float64]

STABLE = 0.9
"""Adjusted Rand index from which halves are said to agree."""
BELOW = 0.8
"""Share of what a Gaussian would leave at best. Of evenly cut cubes it is 1 (0.94 for the best
lattice in three dimensions, 0.86 in eight), of two groups 4 standard deviations apart 0.8."""
FEW = 2.0
"""Times sqrt(l / n), by which `BELOW` is lowered: W_l of n rows comes out lower by chance."""
BEND = 3.0
"""Times the next fall that a fall has to be. Of a line it is 1.7 times or less, of a
rectangle 2.8."""
ABOUT = 1.1
"""Times the lowest share of what a Gaussian would leave: up to there shares are about as low.
Beyond the number of groups they hardly change, and chance makes small bends."""
STILL_FALLS = 0.75
"""Fraction of the mean fall of ln W per cluster from which the last two have not levelled off (not
tuned)."""
LEAST = 2.0**-80
"""Share of W_1 that stands for an objective of 0."""
WINDOW = 20
"""Divisor of a number of clusters that gives the half width of the window around it."""
FARTHEST = 2
"""By how many clusters a half may be off at least, however few there are."""


def window(n_clusters: int) -> int:
    """Return how far to both sides of a number of clusters a curve is examined for a bend."""
    return max(1, n_clusters // WINDOW)


class Curve(NamedTuple):
    """Objectives against numbers of clusters, and what it takes to judge them."""

    sizes: NDArray[np.int64]
    """(m,) numbers of clusters, ascending from 1."""
    inertia: Floats
    """(m,) sums of ``w ||x - c||^2``."""
    weight: float
    """Number of rows; with weights their sum, where a weight of 2 counts as two rows."""
    n_features: int
    spectrum: Floats | None = None
    """(d,) eigenvalues of the scatter matrix, descending (:func:`spectrum_of`). Without, rows are
    taken to be as wide in all directions, which is the least to be asked of a curve."""

    def named(self) -> int | None:
        """Return the number suggested by the curve alone, without halves."""
        ratios = gaussian_ratios(self.inertia, self.n_features, self.spectrum, self.sizes)
        bends = self._bends()
        passed = np.flatnonzero(self._below(ratios) & (bends >= BEND))
        return int(self.sizes[_ranked(passed, ratios, bends)[0]]) if len(passed) else None

    def _below(self, ratios: Floats) -> NDArray[np.bool_]:
        few = (1 - FEW * np.sqrt(self.sizes / self.weight)).clip(0.0)
        below: NDArray[np.bool_] = ratios < BELOW * few  # (NaN is not)
        return below

    def _bends(self) -> Floats:
        return _bends(self.inertia, self.sizes)


@dataclass(frozen=True, slots=True)
class SuggestedK:
    """Suggested number of clusters, if one stands out, and why; ``print`` explains it."""

    k: int | None
    """The number named; None where no number stands out."""
    runner_up: int | None
    """The next best that passes the same tests; None if none does."""
    clear: bool
    """False if the suggested number is only a lower bound, as the curve ends there."""
    stability: Floats
    """(m,) adjusted Rand index of the partitions found on two halves of a sample."""
    gaussian: Floats
    """(m,) objective over the least that a Gaussian of the same spectrum could have; NaN for one
    cluster."""
    words: str
    """The decision in a sentence."""
    n_clusters: NDArray[np.int64]
    """(m,) the numbers of clusters of the curve, ascending."""
    inertia: Floats
    """(m,) its objectives."""
    halves: tuple[int | None, int | None] | None = None
    """Numbers suggested by the curves of two halves of the rows; None if unknown."""
    passed: tuple[int, ...] = ()
    """All numbers that pass the tests, the best one first."""

    @property
    def range(self) -> tuple[int, int] | None:
        """Least and most of the number named and of what either half names; None without one.

        Where halves have not been asked, of all numbers that pass the same tests.
        """
        if self.k is None:
            return None
        others = self.passed if self.halves is None else (self.k, *self.halves)
        known = [k for k in others if k is not None]
        return min(known), max(known)

    def __str__(self) -> str:
        return self.words


def suggest_k(
    inertia: Floats,
    stability: Floats,
    *,
    weight: float,
    n_features: int,
    spectrum: Floats | None = None,
    sizes: NDArray[np.int64] | None = None,
    halves: Sequence[Curve] | None = None,
) -> SuggestedK:
    """Name the number of clusters, or say that none stands out.

    Parameters
    ----------
    inertia : (m,) float64
        Objectives of 1 to k clusters, sums of ``w ||x - c||^2``.
    stability : (m,) float64
        Adjusted Rand index of the partitions found on two halves of a sample; NaN where it is not
        known.
    weight, n_features, spectrum
        As in :class:`Curve`.
    sizes : (m,) int64, optional
        How many clusters each objective is of, ascending from 1; by default all up to m.
    halves : sequence of two Curve, optional
        Those of two halves of the rows. Each has to name about the same number.
    """
    inertia = np.asarray(inertia, np.float64)
    sizes = _sizes(inertia, sizes)
    curve = Curve(sizes, inertia, weight, n_features, spectrum)
    ratios = gaussian_ratios(inertia, n_features, spectrum, sizes)
    stable = stability >= STABLE  # (NaN is not)
    below = curve._below(ratios)
    bends = curve._bends()
    bent = bends >= BEND
    ends = np.arange(len(sizes)) == len(sizes) - 1
    passed = np.flatnonzero(stable & below & (bent | ends))
    ranked = _ranked(passed, ratios, bends)
    named_by = None if halves is None else (halves[0].named(), halves[1].named())
    falling = bool(below[-1]) and _still_falls(inertia, sizes)
    facts = _Facts(sizes, inertia, stability, stable, stable & below, ranked, named_by, falling)
    clear = bool(ranked) and bool(bent[ranked[0]])
    unsure = clear and facts.doubted()
    found = [int(sizes[at]) for at in ranked]
    return SuggestedK(
        k=None if unsure or not found else found[0],
        runner_up=found[1] if len(found) > 1 and not unsure else None,
        clear=clear and not unsure,
        stability=readonly(stability),
        gaussian=readonly(ratios),
        words=facts.words(clear),
        n_clusters=readonly(sizes),
        inertia=readonly(inertia),
        halves=named_by,
        passed=tuple(found),
    )


def _ranked(passed: NDArray[np.int64], ratios: Floats, bends: Floats) -> list[int]:
    """Places that pass the tests, the best one first: the lowest, of about as low the most bent."""
    if not len(passed):
        return []
    least = float(ratios[passed].min())
    low = ratios <= least + (ABOUT - 1) * abs(least)
    order = sorted(passed.tolist(), key=lambda at: (-bends[at] if low[at] else 0.0, ratios[at], at))
    return sorted(order, key=lambda at: not low[at])


class _Facts(NamedTuple):
    """Facts from which a decision is explained."""

    sizes: NDArray[np.int64]
    inertia: Floats
    stability: Floats
    stable: NDArray[np.bool_]
    below: NDArray[np.bool_]
    """And stable."""
    ranked: list[int]
    """Places of those that pass the tests, the best one first."""
    halves: tuple[int | None, int | None] | None
    still_falls: bool
    """The curve ends below that of a Gaussian, and has not levelled off."""

    def doubted(self) -> bool:
        """Return whether a half suggests no number, or another one than the best."""
        if self.halves is None:
            return False
        k = int(self.sizes[self.ranked[0]])
        near = max(FARTHEST, window(k))
        return any(half is None or abs(half - k) > near for half in self.halves)

    def words(self, clear: bool) -> str:
        """The decision in a sentence."""
        if not self.ranked:
            return self._why_none()
        first, *others = self.ranked
        k = int(self.sizes[first])
        agree = f"halves of the data agree (adjusted Rand index {self.stability[first]:.2f})"
        if not clear:
            return (
                f"No clear k: {k} clusters or more. At {k} {agree}, but the curve ends there: "
                "look at more clusters."
            )
        by_halves = ""
        if self.halves is not None:
            one, other = (half or "none" for half in self.halves)
            by_halves = f" and name {one} and {other} by themselves"
            if self.doubted():
                return (
                    f"No clear k: all of the data name {k}, halves of them alone {one} and {other}."
                )
        other = "" if not others else f"; the runner-up is {int(self.sizes[others[0]])}"
        return (
            f"{k} clusters: {agree}{by_halves}, they are cut far better than one Gaussian could "
            f"be, and the curve bends there{other}."
        )

    def _why_none(self) -> str:
        stability = self.stability[1:]
        if len(self.inertia) < 2 or self.inertia[0] <= 0:
            return "No clear k: there is nothing to compare one cluster with."
        if self.still_falls:
            k = int(self.sizes[-1])
            return (
                f"No clear k: {k} clusters or more. They are cut far better than one Gaussian "
                "could be, and the curve still falls there: look at more clusters."
            )
        if not self.stable[1:].any():
            if np.isnan(stability).all():
                return "No clear k: there are too few rows to compare halves of them."
            best = int(np.nanargmax(stability)) + 1
            return (
                "No clear k: halves of the data disagree at every number of clusters (adjusted "
                f"Rand index {self.stability[best]:.2f} at most, with {self.sizes[best]})."
            )
        if not self.below[1:].any():
            return (
                "No clear k: where halves of the data agree, one Gaussian of the same spectrum "
                "could be cut as well."
            )
        return "No clear k: the curve has no bend where halves of the data agree."


def spectrum_of(lower_bound: Floats, n_features: int) -> Floats | None:
    """Eigenvalues of the scatter matrix from the spectral bounds of 1 to k clusters.

    Parameters
    ----------
    lower_bound : (k,) float64
        Sums of all but the 0, 1, ..., k - 1 largest; of one feature, only the first is looked at.
    n_features : int
        d

    Returns
    -------
    (d,) float64, descending; None where the bounds say nothing. What is not known of them one by
    one, beyond k - 1, is taken to be equal.
    """
    if lower_bound[0] <= 0:
        return None
    if n_features == 1:
        return lower_bound[:1].copy()
    known = min(len(lower_bound) - 1, n_features)
    out = np.zeros(n_features)
    out[:known] = lower_bound[:known] - lower_bound[1 : known + 1]
    if known < n_features:
        out[known:] = lower_bound[known] / (n_features - known)
    # what rounding was counted against is not in any order
    return np.sort(out)[::-1].copy()


def gaussian_ratios(
    inertia: Floats,
    n_features: int,
    spectrum: Floats | None = None,
    sizes: NDArray[np.int64] | None = None,
) -> Floats:
    """(m,) objectives over the least that a Gaussian with the same spectrum could have.

    Of both only what lies in the directions that a best code of l points would use. Below 0
    where more is known of the other directions than is left; NaN for one cluster.
    """
    out = np.full(len(inertia), nan)
    total = float(inertia[0])
    if total <= 0:
        return out
    if spectrum is None:
        spectrum = np.full(n_features, total / n_features)
    used = spectrum[spectrum > spectrum[0] * LEAST] / spectrum[0]
    unit = float(spectrum[0])
    logs = np.cumsum(logarithms(used))
    bits = logarithms(_sizes(inertia, sizes).astype(float))
    for i in range(1, len(inertia)):
        for active in range(1, len(used) + 1):
            level = exponentials(np.array([(logs[active - 1] - 2 * bits[i]) / active]))[0]
            if active == len(used) or level >= used[active]:
                break
        others = float(used[active:].sum())
        out[i] = (inertia[i] / unit - others) / (active * level)
    return out


def _curve(inertia: Floats) -> Floats:
    """Logarithms of an objective over the first, an empty curve where that is 0."""
    if len(inertia) == 0 or inertia[0] <= 0:
        return np.empty(0)
    return logarithms(np.maximum(inertia / inertia[0], LEAST))


def _bends(inertia: Floats, sizes: NDArray[np.int64]) -> Floats:
    """(m,) the fall of ln W from l - w to l over that to l + w; 0 where one of these is not known.

    Infinity where nothing is left at l.
    """
    out = np.zeros(len(inertia))
    curve = _curve(inertia)
    if len(curve) < 2:
        return out
    places = {int(size): i for i, size in enumerate(sizes)}
    for i, size in enumerate(sizes.tolist()):
        before, after = (places.get(size + step * window(size)) for step in (-1, 1))
        if before is None or after is None or inertia[after] >= inertia[before]:
            continue
        fall, next_fall = curve[before] - curve[i], max(curve[i] - curve[after], 0.0)
        if fall > 0:
            out[i] = fall / next_fall if next_fall > 0 else np.inf
    gone = np.flatnonzero(inertia == 0)
    if len(gone):
        out[gone[0]] = np.inf
    return out


def _still_falls(inertia: Floats, sizes: NDArray[np.int64]) -> bool:
    """Return whether the last clusters lower ln W as much as those before, each.

    Of groups that share a centre each cluster more splits one; on a smooth curve it lowers ln W by
    less and less.
    """
    falls = -np.diff(_curve(inertia)) / np.diff(sizes)
    return len(falls) > 2 and float(falls[-2:].mean()) >= STILL_FALLS * float(falls.mean())


def _sizes(inertia: Floats, sizes: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Numbers of clusters; if they are not said, all from 1 on."""
    return np.arange(1, len(inertia) + 1) if sizes is None else sizes
