r"""Suggest the number of clusters from the objectives of partitions into 1 to k clusters.

The input is a curve W: W_l is the lowest known sum of ``w ||x - c||^2`` with l clusters, for some
or all l up to k. A suggested number l has to pass three tests:

1. *Stability*: the partitions of two halves of a sample agree (adjusted Rand index of `STABLE` or
   more).
2. *More than one Gaussian*: W_l is clearly below the lowest sum that l centres could reach for a
   Gaussian with the same spectrum. Stability is not enough, as two halves of the rows of a single
   elongated cluster agree on where to cut it. By Shannon's bound, no l centres for a Gaussian whose
   scatter matrix has the eigenvalues λ have a sum of squares below

       D_l = Σ_i min(θ, λ_i),   θ such that  Σ_i max(0, ln(λ_i / θ)) / 2 = ln l

   ("reverse water-filling": A. N. Kolmogorov, 1956; T. M. Cover and J. A. Thomas, "Elements of
   information theory", 2nd edition, 2006, theorem 10.3.3). A Gaussian is above the bound (1.45
   times at l = 2 in one dimension), and an evenly cut line, square or cube is at the bound. Only
   separate groups are far below the bound. Directions with λ_i < θ, which optimal centres do not
   use, are left out: W_l minus the sum of these λ_i, divided by the rest of D_l, has to be below
   `BELOW`. The threshold is lower for few rows, which may look like groups by chance.
3. *A bend*: the fall of ln W from l - w to l is at least `BEND` times the fall from l to l + w,
   where w is 1 or a twentieth of l. This excludes curved lines, which are also below the bound,
   because their W_l falls as 1/l²: the ratio of falls is 1.7 at l = 2, and smaller at larger l.

If several numbers pass, the number with the smallest ratio of W_l to D_l is suggested; among about
equal ratios, the number with the largest bend is suggested. If the curves of two halves of the rows
are known, tests 2 and 3 on each half must suggest a number that differs by at most w (or by at most
2 if w is 1). The difference shows how uncertain the number is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.exact.transcendental import exp as exponentials
from largek_dask.kernels.exact.transcendental import log as logarithms

Floats = NDArray[np.float64]

STABLE = 0.9
"""Minimum adjusted Rand index at which two halves agree."""
BELOW = 0.8
"""Maximum ratio of W_l to the lowest possible sum for a Gaussian. The ratio is 1 for evenly cut
cubes (0.94 for the best lattice in three dimensions, 0.86 in eight), and 0.8 for two groups that
are 4 standard deviations apart."""
FEW = 2.0
"""Multiple of sqrt(l / n) by which `BELOW` is lowered, because W_l is low by chance if there are
few rows per cluster."""
BEND = 3.0
"""Minimum ratio of one fall to the next fall at a bend; at most 1.7 for a line and 2.8 for a
rectangle."""
ABOUT = 1.1
"""Ratios up to this multiple of the smallest ratio count as about equal. Beyond the true number
of groups, ratios hardly change, and small bends occur by chance."""
STILL_FALLS = 0.75
"""The curve has not levelled off if the mean of its last two falls is at least this fraction of
the mean of all falls (not tuned)."""
LEAST = 2.0**-80
"""Fraction of W_1 that replaces an objective of 0."""
WINDOW = 20
"""Ratio of a number of clusters to the half width of the window around it."""
FARTHEST = 2
"""Difference that is always allowed between the numbers suggested by all rows and by a half."""


def window(n_clusters: int) -> int:
    """Return the half width of the window in which a curve is examined for a bend."""
    return max(1, n_clusters // WINDOW)


class Curve(NamedTuple):
    """Objectives by number of clusters, with the number and spectrum of the rows."""

    sizes: NDArray[np.int64]
    """(m,) numbers of clusters, ascending from 1."""
    inertia: Floats
    """(m,) sums of ``w ||x - c||^2``."""
    weight: float
    """Number of rows, or the sum of their weights."""
    n_features: int
    spectrum: Floats | None = None
    """(d,) eigenvalues of the scatter matrix, descending (:func:`spectrum_of`). If None, the
    eigenvalues are assumed to be equal, which gives the weakest test."""

    def suggested(self) -> int | None:
        """Return the number suggested by the curve alone, without stability and halves."""
        ratios, bends = self.gaussian_ratios(), self.bends()
        passed = np.flatnonzero(self.below(ratios) & (bends >= BEND))
        return int(self.sizes[_ranked(passed, ratios, bends)[0]]) if len(passed) else None

    def gaussian_ratios(self) -> Floats:
        """Return (m,) ratios of each objective to the lowest possible objective for a Gaussian.

        Only the directions that optimal centres of a Gaussian would use are counted. A ratio is
        negative if the sum over the other directions exceeds the objective, and NaN for one
        cluster.
        """
        out = np.full(len(self.inertia), np.nan)
        total = float(self.inertia[0])
        if total <= 0:
            return out
        spectrum = self.spectrum
        if spectrum is None:
            spectrum = np.full(self.n_features, total / self.n_features)
        used = spectrum[spectrum > spectrum[0] * LEAST] / spectrum[0]
        unit = float(spectrum[0])
        logs = np.cumsum(logarithms(used))
        bits = logarithms(self.sizes.astype(float))
        for i in range(1, len(out)):
            for active in range(1, len(used) + 1):
                level = exponentials(np.array([(logs[active - 1] - 2 * bits[i]) / active]))[0]
                if active == len(used) or level >= used[active]:
                    break
            others = float(used[active:].sum())
            out[i] = (self.inertia[i] / unit - others) / (active * level)
        return out

    def below(self, ratios: Floats) -> NDArray[np.bool_]:
        """Return an (m,) mask of objectives that are clearly below the bound for a Gaussian."""
        few = (1 - FEW * np.sqrt(self.sizes / self.weight)).clip(0.0)
        below: NDArray[np.bool_] = ratios < BELOW * few  # (NaN is not)
        return below

    def bends(self) -> Floats:
        """Return (m,) bends: the fall of ln W from l - w to l divided by the fall from l to l + w.

        A bend is 0 if unknown, and infinite at the first l with an objective of 0.
        """
        out, logs = np.zeros(len(self.inertia)), self._logs()
        if len(logs) < 2:
            return out
        places = {int(size): i for i, size in enumerate(self.sizes)}
        for i, size in enumerate(self.sizes.tolist()):
            before, after = (places.get(size + step * window(size)) for step in (-1, 1))
            if before is None or after is None or self.inertia[after] >= self.inertia[before]:
                continue
            fall, next_fall = logs[before] - logs[i], max(logs[i] - logs[after], 0.0)
            if fall > 0:
                out[i] = fall / next_fall if next_fall > 0 else np.inf
        out[np.flatnonzero(self.inertia == 0)[:1]] = np.inf
        return out

    def still_falls(self) -> bool:
        """Return True if the last clusters lower ln W about as much as earlier clusters.

        As long as groups share a centre, each additional cluster separates a group. On a smooth
        curve, each additional cluster lowers ln W by less than the previous cluster.
        """
        falls = -np.diff(self._logs()) / np.diff(self.sizes)
        return len(falls) > 2 and float(falls[-2:].mean()) >= STILL_FALLS * float(falls.mean())

    def _logs(self) -> Floats:
        """Return the logarithms of W_l / W_1; an empty array if W_1 is 0."""
        if self.inertia[0] <= 0:
            return np.empty(0)
        return logarithms(np.maximum(self.inertia / self.inertia[0], LEAST))


@dataclass(frozen=True, slots=True)
class SuggestedK:
    """Suggested number of clusters, if one stands out; ``print`` explains it."""

    k: int | None
    """The suggested number; None if no number stands out."""
    runner_up: int | None
    """The second best number that passes the tests; None if no other number passes."""
    clear: bool
    """True if a number is suggested and is not only a lower bound at the end of the curve."""
    stability: Floats
    """(m,) adjusted Rand index between the partitions of two halves of a sample."""
    gaussian: Floats
    """(m,) ratios of each objective to the lowest possible objective for a Gaussian with the
    same spectrum; NaN for one cluster."""
    words: str
    """Explanation of the decision, in one sentence."""
    n_clusters: NDArray[np.int64]
    """(m,) numbers of clusters of the curve, ascending."""
    inertia: Floats
    """(m,) objectives of the curve."""
    halves: tuple[int | None, int | None] | None = None
    """Numbers suggested by the curves of two halves of the rows; None if unknown."""
    passed: tuple[int, ...] = ()
    """All numbers that pass the tests, the best one first."""

    @property
    def range(self) -> tuple[int, int] | None:
        """Range of the numbers suggested by all rows and by the halves; None if there is no number.

        If there are no halves, the range of all numbers that pass the tests is returned.
        """
        if self.k is None:
            return None
        others = self.passed if self.halves is None else (self.k, *self.halves)
        known = [k for k in others if k is not None]
        return min(known), max(known)

    def __str__(self) -> str:
        return self.words


def suggest_from(
    curve: Curve, stability: Floats, halves: Sequence[Curve] | None = None
) -> SuggestedK:
    """Suggest a number of clusters from a curve, or explain why none stands out.

    ``stability`` (m,) is the adjusted Rand index between the partitions of two halves of a sample;
    NaN if unknown. ``halves`` are the curves of two halves of the rows.
    """
    sizes, ratios, bends = curve.sizes, curve.gaussian_ratios(), curve.bends()
    stable = stability >= STABLE  # (NaN is not)
    below, bent = curve.below(ratios), bends >= BEND
    ends = np.arange(len(sizes)) == len(sizes) - 1
    ranked = _ranked(np.flatnonzero(stable & below & (bent | ends)), ratios, bends)
    by_halves = None if halves is None else (halves[0].suggested(), halves[1].suggested())
    falling = bool(below[-1]) and curve.still_falls()
    tests = _Tests(curve, stability, stable, stable & below, ranked, by_halves, falling)
    clear = bool(ranked) and bool(bent[ranked[0]])
    unsure = clear and tests.doubted()
    passed = [int(sizes[at]) for at in ranked]
    return SuggestedK(
        k=None if unsure or not passed else passed[0],
        runner_up=passed[1] if len(passed) > 1 and not unsure else None,
        clear=clear and not unsure,
        stability=readonly(stability),
        gaussian=readonly(ratios),
        words=tests.words(clear),
        n_clusters=readonly(sizes),
        inertia=readonly(curve.inertia),
        halves=by_halves,
        passed=tuple(passed),
    )


def _ranked(passed: NDArray[np.int64], ratios: Floats, bends: Floats) -> list[int]:
    """Sort candidates by ratio, but candidates with about equally low ratios by bend."""
    if not len(passed):
        return []
    least = float(ratios[passed].min())
    low = ratios <= least + (ABOUT - 1) * abs(least)
    order = sorted(passed.tolist(), key=lambda at: (-bends[at] if low[at] else 0.0, ratios[at], at))
    return sorted(order, key=lambda at: not low[at])


class _Tests(NamedTuple):
    """Results of the tests, which are used to explain a decision."""

    curve: Curve
    stability: Floats
    stable: NDArray[np.bool_]
    stable_and_below: NDArray[np.bool_]
    ranked: list[int]
    """Positions of the numbers that pass, the best number first."""
    halves: tuple[int | None, int | None] | None
    still_falls: bool
    """True if the curve ends below the curve of a Gaussian and has not levelled off."""

    def doubted(self) -> bool:
        """Return True if a half suggests no number, or a number far from the best number."""
        if self.halves is None:
            return False
        k = int(self.curve.sizes[self.ranked[0]])
        near = max(FARTHEST, window(k))
        return any(half is None or abs(half - k) > near for half in self.halves)

    def words(self, clear: bool) -> str:
        if not self.ranked:
            return self._why_none()
        first, *others = self.ranked
        k = int(self.curve.sizes[first])
        agree = f"halves of the data agree (adjusted Rand index {self.stability[first]:.2f})"
        if not clear:
            return (
                f"No clear k: {k} clusters or more. With {k} clusters, {agree}, but the curve ends "
                "there; examine more clusters."
            )
        by_halves = ""
        if self.halves is not None:
            one, other = (half or "none" for half in self.halves)
            by_halves = f" and suggest {one} and {other} clusters"
            if self.doubted():
                return (
                    f"No clear k: all of the data suggest {k} clusters, but the two halves suggest "
                    f"{one} and {other}."
                )
        other = "" if not others else f"; the runner-up is {int(self.curve.sizes[others[0]])}"
        return (
            f"{k} clusters: {agree}{by_halves}, the partition is far better than for a single "
            f"Gaussian, and the curve bends there{other}."
        )

    def _why_none(self) -> str:
        stability = self.stability[1:]
        if len(self.curve.inertia) < 2 or self.curve.inertia[0] <= 0:
            return "No clear k: there is nothing to compare with one cluster."
        if self.still_falls:
            k = int(self.curve.sizes[-1])
            return (
                f"No clear k: {k} clusters or more. The partition is far better than for a single "
                "Gaussian, and the curve still falls at the end; examine more clusters."
            )
        if not self.stable[1:].any():
            if np.isnan(stability).all():
                return "No clear k: there are too few rows to compare two halves."
            best = int(np.nanargmax(stability)) + 1
            return (
                "No clear k: halves of the data disagree for every number of clusters (adjusted "
                f"Rand index {self.stability[best]:.2f} at most, with {self.curve.sizes[best]})."
            )
        if not self.stable_and_below[1:].any():
            return (
                "No clear k: where halves of the data agree, the partition is no better than for "
                "one Gaussian of the same spectrum."
            )
        return "No clear k: the curve has no bend where halves of the data agree."


def spectrum_of(lower_bound: Floats, n_features: int) -> Floats | None:
    """Return (d,) eigenvalues of the scatter matrix, descending, from spectral lower bounds.

    The bounds (k,) are sums of all but the 0, 1, ..., k - 1 largest eigenvalues; with one feature
    only the first bound is used. Unknown eigenvalues, beyond k - 1, are assumed to be equal.
    Returns None if the first bound is 0.
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
    # Because of rounding errors, differences of bounds may not be sorted.
    return np.sort(out)[::-1].copy()
