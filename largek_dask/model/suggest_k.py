r"""How many clusters there are: what rules say of the objectives of 1 to k clusters; a decision.

Pure functions of a curve W: W_l is the least sum of ``w ||x - c||^2`` that was found with l
clusters. Four rules of the literature vote, each by W alone; they always name something, also on
one Gaussian or on a cube, and are told for what they are. The decision asks three things of l:

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
3. *A bend*: ln W falls from l - 1 to l by `BEND` times as much as from l to l + 1. A curved line is
   below a Gaussian as well, and its W_l falls as 1/l²: by 1.7 times as much at l = 2, and by less
   at all others.

Of several such l the one is named that is farthest below the Gaussian, for its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.exact.transcendental import exp as exponentials
from largek_dask.kernels.exact.transcendental import log as logarithms
from largek_dask.kernels.jit import readonly

__all__ = [
    "RULES",
    "SuggestedK",
    "calinski_harabasz",
    "gaussian_ratios",
    "hartigan",
    "krzanowski_lai",
    "spectrum_of",
    "sugar_james",
    "suggest_k",
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
_LEAST = 2.0**-80
"""Share of W_1 that an objective of 0 is taken for."""
_ENOUGH = 10.0
"""Hartigan's figure above which one cluster more pays."""


@dataclass(frozen=True, slots=True)
class SuggestedK:
    """How many clusters there are, if that is clear, and why; ``print`` says it in words."""

    k: int | None
    """The number named; None where no number stands out."""
    runner_up: int | None
    """The next best that passes the same tests; None if none does."""
    clear: bool
    """Whether the number named is more than a lower bound: it isn't where the curve ends there."""
    votes: Mapping[str, int | None]
    """What each of `RULES` names; None if nothing."""
    stability: Floats
    """(k,) adjusted Rand index of the partitions found on two halves of a sample."""
    gaussian: Floats
    """(k,) objective over the least that a Gaussian of the same spectrum could have; NaN for one
    cluster."""
    words: str
    """The decision in a sentence."""

    def __str__(self) -> str:
        told = ", ".join(f"{rule} {k or 'none'}" for rule, k in self.votes.items())
        return f"{self.words} Rules by the curve alone: {told}."


def suggest_k(
    inertia: Floats,
    stability: Floats,
    *,
    weight: float,
    n_features: int,
    spectrum: Floats | None = None,
) -> SuggestedK:
    """Name the number of clusters, or say that none stands out.

    Parameters
    ----------
    inertia : (k,) float64
        Objectives of 1 to k clusters, sums of ``w ||x - c||^2``.
    stability : (k,) float64
        Adjusted Rand index of the partitions found on two halves of a sample; NaN where it is not
        known.
    weight : float
        Number of rows; with weights their sum, where a weight of 2 counts as two rows.
    n_features : int
    spectrum : (d,) float64, optional
        Eigenvalues of the scatter matrix, descending (:func:`spectrum_of`). Without, rows are taken
        to be as wide in all directions, which is the least to be asked of a curve.
    """
    inertia = np.asarray(inertia, np.float64)
    votes = {rule: named(inertia, weight, n_features) for rule, named in RULES.items()}
    ratios = gaussian_ratios(inertia, n_features, spectrum)
    stable = stability >= STABLE  # (NaN is not)
    sizes = np.arange(1, len(inertia) + 1)
    below = ratios < BELOW * (1 - FEW * np.sqrt(sizes / weight)).clip(0.0)
    bent = _bends(inertia) >= BEND
    ends = sizes == len(inertia)
    passed = np.flatnonzero(stable & below & (bent | ends))
    # the lowest of equal ones
    ranked = [int(at) + 1 for at in passed[np.argsort(ratios[passed], kind="stable")]]
    k = ranked[0] if ranked else None
    runner_up = ranked[1] if len(ranked) > 1 else None
    clear = k is not None and bool(bent[k - 1])
    words = _words(k, runner_up, clear, inertia, stability, stable[1:], (stable & below)[1:])
    return SuggestedK(k, runner_up, clear, votes, readonly(stability), readonly(ratios), words)


def _words(
    k: int | None,
    runner_up: int | None,
    clear: bool,
    inertia: Floats,
    stability: Floats,
    stable: NDArray[np.bool_],
    below: NDArray[np.bool_],
) -> str:
    """The decision in a sentence; the last two are those of 2 clusters and more."""
    if k is not None:
        agree = f"halves of the data agree (adjusted Rand index {stability[k - 1]:.2f})"
        if not clear:
            return (
                f"No clear k: {k} clusters or more. At {k} {agree}, but the curve ends there: "
                "look at more clusters."
            )
        other = "" if runner_up is None else f"; the runner-up is {runner_up}"
        return (
            f"{k} clusters: {agree}, they are cut far better than one Gaussian could be, and the "
            f"curve bends there{other}."
        )
    if len(inertia) < 2 or inertia[0] <= 0:
        return "No clear k: there is nothing to compare one cluster with."
    if not stable.any():
        if np.isnan(stability[1:]).all():
            return "No clear k: there are too few rows to compare halves of them."
        best = int(np.nanargmax(stability[1:])) + 1
        return (
            "No clear k: halves of the data disagree at every number of clusters (adjusted Rand "
            f"index {stability[best]:.2f} at most, with {best + 1})."
        )
    if not below.any():
        return (
            "No clear k: where halves of the data agree, one Gaussian of the same spectrum could "
            "be cut as well."
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


def gaussian_ratios(inertia: Floats, n_features: int, spectrum: Floats | None = None) -> Floats:
    """(k,) objectives over the least that a Gaussian with the same spectrum could have.

    Of both only what lies in the directions that a best code of l points would use. Below 0
    where more is known of the other directions than is left; NaN for one cluster.
    """
    out = np.full(len(inertia), nan)
    total = float(inertia[0])
    if total <= 0:
        return out
    if spectrum is None:
        spectrum = np.full(n_features, total / n_features)
    used = spectrum[spectrum > spectrum[0] * _LEAST] / spectrum[0]
    unit = float(spectrum[0])
    logs = np.cumsum(logarithms(used))
    sizes = logarithms(np.arange(1.0, len(inertia) + 1))
    for size in range(2, len(inertia) + 1):
        for active in range(1, len(used) + 1):
            level = exponentials(np.array([(logs[active - 1] - 2 * sizes[size - 1]) / active]))[0]
            if active == len(used) or level >= used[active]:
                break
        others = float(used[active:].sum())
        out[size - 1] = (inertia[size - 1] / unit - others) / (active * level)
    return out


def _curve(inertia: Floats) -> Floats:
    """Logarithms of an objective over the first, an empty curve where that is 0."""
    if len(inertia) == 0 or inertia[0] <= 0:
        return np.empty(0)
    return logarithms(np.maximum(inertia / inertia[0], _LEAST))


def _bends(inertia: Floats) -> Floats:
    """(k,) the fall of ln W from l - 1 to l over that to l + 1; 0 for the first and last.

    Infinity where nothing is left at l.
    """
    out = np.zeros(len(inertia))
    curve = _curve(inertia)
    if len(curve) < 2:
        return out
    falls = np.maximum(curve[:-1] - curve[1:], 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        out[1:-1] = np.where(falls[:-1] > 0, falls[:-1] / falls[1:], 0.0)
    gone = np.flatnonzero(inertia == 0)
    if len(gone):
        out[gone[0]] = np.inf
    return out


def calinski_harabasz(inertia: Floats, weight: float, n_features: int) -> int | None:
    """Calinski and Harabasz' "variance ratio": largest ((W_1 - W_l) / (l - 1)) / (W_l / (n - l)).

    T. Calinski and J. Harabasz, "A dendrite method for cluster analysis", Communications in
    Statistics 3 (1974). From 2 clusters on, where n > l.
    """
    sizes = np.arange(2, len(inertia) + 1)
    sizes = sizes[sizes < weight]
    if not len(sizes) or inertia[0] <= 0:
        return None
    within = np.maximum(inertia[sizes - 1], inertia[0] * _LEAST)
    return int(sizes[np.argmax((inertia[0] - within) / (sizes - 1) / (within / (weight - sizes)))])


def krzanowski_lai(inertia: Floats, weight: float, n_features: int) -> int | None:
    """Krzanowski and Lai: largest |D_l / D_(l+1)|, D_l = (l - 1)^(2/d) W_(l-1) - l^(2/d) W_l.

    W. J. Krzanowski and Y. T. Lai, "A criterion for determining the number of groups in a data set
    using sum-of-squares clustering", Biometrics 44 (1988). From 2 to k - 1 clusters.
    """
    curve = _curve(inertia)
    if len(curve) < 3:
        return None
    logs = curve + logarithms(np.arange(1.0, len(curve) + 1)) * (2 / n_features)
    differences = -np.diff(exponentials(logs - logs.max()))
    after = np.abs(differences[1:])
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.where(differences[:-1] == 0, 0.0, np.abs(differences[:-1]) / after)
    return int(np.argmax(found)) + 2


def hartigan(inertia: Floats, weight: float, n_features: int) -> int | None:
    """Hartigan's rule: the first l with (W_l / W_(l+1) - 1) (n - l - 1) of 10 or less.

    J. A. Hartigan, "Clustering algorithms" (1975), p. 90. From 1 to k - 1 clusters; None if there
    is none, as is usual of very many rows.
    """
    if len(inertia) < 2 or inertia[0] <= 0:
        return None
    within = np.maximum(inertia, inertia[0] * _LEAST)
    sizes = np.arange(1, len(inertia))
    found = (within[:-1] / within[1:] - 1) * (weight - sizes - 1)
    enough = np.flatnonzero(found <= _ENOUGH)
    return int(sizes[enough[0]]) if len(enough) else None


def sugar_james(inertia: Floats, weight: float, n_features: int) -> int | None:
    """The jump of Sugar and James: largest W_l^(-d/2) - W_(l-1)^(-d/2), the first less 0.

    C. A. Sugar and G. M. James, "Finding the number of clusters in a dataset: an
    information-theoretic approach", Journal of the American Statistical Association 98 (2003),
    with the identity for the covariance.
    """
    curve = _curve(inertia)
    if not len(curve):
        return None
    powers = exponentials((curve.min() - curve) * (n_features / 2))
    return int(np.argmax(np.diff(powers, prepend=0.0))) + 1


RULES = {
    "Calinski-Harabasz": calinski_harabasz,
    "Krzanowski-Lai": krzanowski_lai,
    "Hartigan": hartigan,
    "Sugar-James": sugar_james,
}
"""What votes by the curve alone."""
