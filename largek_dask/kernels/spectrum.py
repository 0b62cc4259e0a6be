"""The scatter matrix of rows, and its eigenvalues, with error bounds.

Eigenvalues are found by Jacobi rotations: a few plain products per step in a fixed order, without
any library whose bits depend on the processor. Every rotation adds a bound on its rounding error,
computed from the lengths of the two rows that it changes; so the error bound applies to the actual
run, not to the worst case.

Source: C. G. J. Jacobi (1846); G. H. Golub and C. F. Van Loan, "Matrix computations" (4th edition,
2013), section 8.5; A. J. Hoffman and H. W. Wielandt, "The variation of the spectrum of a normal
matrix" (1953), for the effect of a change of a matrix on its eigenvalues.
"""

from __future__ import annotations

from fractions import Fraction
from math import frexp, ldexp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.exact.numbers import N_LIMBS, ExactSums, peel
from largek_dask.kernels.jit import njit
from largek_dask.kernels.rows import native_blocks

Floats = NDArray[np.float64]

_SWEEPS = 60
"""Maximum number of sweeps; ten are usually enough. Remaining entries count as an error."""
_ROTATED = 2.0**-48
"""Rounding error of a rotation, relative to the length of the two rows: two products and a sum per
entry, and an angle whose cosine and sine are rounded twice."""
_NEGLIGIBLE = 2.0**-56
"""Entries this small relative to the matrix are not rotated away, but count as an error."""
_SUMMED = 2.0**-49
"""Relative rounding error of products: differences, two products, and the part of the mean."""
_VANISHED = 2.0**-1000
"""Upper bound on the error of products that underflow."""
_MOST = 2**1000
"""Maximum sum of absolute products."""
_VALUES = 1 << 15
_ABS_BITS = 0x7FFFFFFFFFFFFFFF


class ScatterSums:
    """Exact sums of the rounded products of all pairs of d features of rows.

    The sums use at most 24 limbs of (d + 1) (d + 2) / 2 numbers.
    """

    __slots__ = ("n_features", "sums")

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features
        self.sums = ExactSums((n_features + 1) * (n_features + 2) // 2)
        """Sums of w y_a y_b for a <= b, with y_d = 1, row by row of this triangle."""

    @property
    def nbytes(self) -> int:
        return self.sums.nbytes

    def add(self, x: NDArray[Any], weight: Floats | None, shift: NDArray[Any]) -> None:
        """Add finite dense rows (n, d) of any real type.

        `shift` (d,) is the origin of y = x - shift; digits are lost unless it is near the mean.
        """
        about = readonly(shift.astype(np.float64))
        limbs = np.zeros((N_LIMBS, self.sums.n_cells), np.int64)
        for rows, block in native_blocks(x):
            own = np.ones(len(block)) if weight is None else weight[rows]
            with np.errstate(over="ignore"):  # overflows are counted
                skipped = _add_products(block, readonly(own), about, limbs)
            self.sums.n_not_finite += int(skipped)
        self.sums.add_table(limbs)

    def merge(self, other: ScatterSums) -> ScatterSums:
        """Add another object's rows to this one, and return it."""
        self.sums.merge(other.sums)
        return self

    def matrix(self) -> tuple[Floats, float]:
        """Return the sum of ``w (x - mean) (x - mean)'``, each entry rounded once, and its error.

        The error is a bound in the Frobenius norm; it is infinite if numbers are too large.

        With u = 2^-53: the error of y is at most u |y|, so the relative error of w y_a y_b is at
        most 4 u. The error of the part of the mean, (sum w y_a) (sum w y_b) / W, is at most as
        large, since (sum w |y|)^2 <= W sum w y^2. Over all entries, the error is at most 16 u times
        the trace about the shift.
        """
        d = self.n_features
        scatter = np.zeros((d, d))
        if self.sums.n_not_finite:
            return scatter, np.inf
        sums, exponent = self.sums.integers()
        total = sums[-1]
        if total == 0:
            return scatter, 0.0
        unit = Fraction(2) ** exponent
        if sum(abs(value) for value in sums) * unit > _MOST:
            return scatter, np.inf
        first = [a * (d + 1) - a * (a - 1) // 2 for a in range(d)]
        linear = [sums[first[a] + d - a] for a in range(d)]
        for a in range(d):
            for b in range(a, d):
                found = sums[first[a] + b - a] * total - linear[a] * linear[b]
                scatter[a, b] = scatter[b, a] = float(Fraction(found, total) * unit)
        trace = float(sum(sums[at] for at in first) * unit)
        return scatter, _SUMMED * trace + d * _VANISHED


def eigenvalues(matrix: Floats) -> tuple[Floats, float]:
    """Return the descending eigenvalues of a finite symmetric (d, d) matrix, and their error.

    The error is a bound on ``sqrt(sum((values - true_values)^2))``. Only the upper triangle is
    used.
    """
    d = len(matrix)
    largest = float(np.abs(matrix).max(initial=0.0))
    if largest == 0.0:
        return np.zeros(d), 0.0
    # scaling by a power of two is exact, and keeps squares from overflow and underflow
    power = frexp(largest)[1]
    work = np.empty((d, d))
    for a in range(d):
        for b in range(a, d):
            work[a, b] = work[b, a] = ldexp(float(matrix[a, b]), -power)
    values = np.empty(d)
    error = float(_jacobi(work, values))
    values = np.sort(values)[::-1]
    # for numbers that scaling has made subnormal, or 0
    error += d * _VANISHED
    return np.array([ldexp(value, power) for value in values.tolist()]), ldexp(error, power)


@njit
def _add_products(x, weight, shift, limbs):
    """Add w y_a y_b of rows to the limbs; return the number of products that were not finite."""
    n, d = x.shape
    width = limbs.shape[1]
    step = min(max(_VALUES // width, 16), 1 << 15)
    products = np.empty((min(step, n), width))
    row = np.empty(d + 1)
    skipped = 0
    for begin in range(0, n, step):
        rows = min(step, n - begin)
        largest: Any = 0
        for i in range(rows):
            w = weight[begin + i]
            for f in range(d):
                row[f] = np.float64(x[begin + i, f]) - shift[f] if w != 0.0 else 0.0
            row[d] = 1.0
            at = 0
            for a in range(d + 1):
                scaled = w * row[a]
                for b in range(a, d + 1):
                    product = scaled * row[b]
                    products[i, at + b - a] = product
                    largest = max(largest, np.float64(product).view(np.int64) & _ABS_BITS)
                at += d + 1 - a
        skipped += peel(products[:rows], limbs, largest)
    return skipped


@njit
def _jacobi(a, values):
    """Rotate a symmetric matrix until it is diagonal; return the error of its diagonal."""
    d = a.shape[0]
    whole = 0.0
    for i in range(d):
        for j in range(d):
            whole += a[i, j] * a[i, j]
    limit = _NEGLIGIBLE * np.sqrt(whole)
    error = 0.0
    for _ in range(_SWEEPS):
        turned = False
        for p in range(d - 1):
            for q in range(p + 1, d):
                if abs(a[p, q]) > limit:
                    error += _rotate(a, p, q)
                    turned = True
        if not turned:
            break
    off = 0.0
    for i in range(d):
        values[i] = a[i, i]
        for j in range(d):
            if j != i:
                off += a[i, j] * a[i, j]
    # the sums of squares and of bounds are rounded as well
    return (error + np.sqrt(off)) * (1.0 + 2.0**-20)


@njit
def _rotate(a, p, q):
    """Make entry (p, q) zero, which changes rows and columns p and q; return the error."""
    d = a.shape[0]
    entry = a[p, q]
    ratio = (a[q, q] - a[p, p]) / (2.0 * entry)
    # the smaller of the two possible angles
    root = np.sqrt(1.0 + ratio * ratio)
    t = 1.0 / (ratio + root) if ratio >= 0.0 else 1.0 / (ratio - root)
    c = 1.0 / np.sqrt(1.0 + t * t)
    s = t * c
    length = a[p, p] * a[p, p] + a[q, q] * a[q, q] + entry * entry
    a[p, p] -= t * entry
    a[q, q] += t * entry
    a[p, q] = 0.0
    a[q, p] = 0.0
    for i in range(d):
        if i != p and i != q:
            left, right = a[p, i], a[q, i]
            length += left * left + right * right
            a[p, i] = c * left - s * right
            a[q, i] = s * left + c * right
            a[i, p] = a[p, i]
            a[i, q] = a[q, i]
    return _ROTATED * np.sqrt(length)
