"""Scatter matrix of rows and its eigenvalues, with error bounds.

Eigenvalues are computed by Jacobi rotations in a fixed order, without libraries whose results
depend on the processor. The rounding error of every rotation is bounded by the norms of the two
rows that change, so the error bound applies to the actual computation, not to the worst case.

Sources: C. G. J. Jacobi (1846); G. H. Golub and C. F. Van Loan, "Matrix computations" (4th edition,
2013), section 8.5; A. J. Hoffman and H. W. Wielandt, "The variation of the spectrum of a normal
matrix" (1953), for the effect of errors in a matrix on its eigenvalues.
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
"""Maximum number of sweeps; ten sweeps are usually enough."""
_ROTATED = 2.0**-48
"""Bound on the rounding error of a rotation, relative to the norm of the two rows. Each entry is
the sum of two products, and the cosine and sine are also rounded."""
_NEGLIGIBLE = 2.0**-56
"""Entries below this fraction of the matrix norm are not rotated to 0, but are added to the
error."""
_SUMMED = 2.0**-49
"""Bound on the rounding error of the scatter matrix, relative to its trace."""
_VANISHED = 2.0**-1000
"""Upper bound on the error of products that underflow."""
_MOST = 2**1000
"""Maximum sum of absolute products."""
_VALUES = 1 << 15
_ABS_BITS = 0x7FFFFFFFFFFFFFFF


class ScatterSums:
    """Exact sums over rows of the rounded products of all pairs of features.

    Each of the (d + 1) (d + 2) / 2 sums needs at most 24 limbs.
    """

    __slots__ = ("n_features", "sums")

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features
        self.sums = ExactSums((n_features + 1) * (n_features + 2) // 2)
        """Sums of w y_a y_b for a <= b, where y_d = 1, stored row by row."""

    @property
    def nbytes(self) -> int:
        return self.sums.nbytes

    def add(self, x: NDArray[Any], weight: Floats | None, shift: NDArray[Any]) -> None:
        """Add finite dense rows (n, d) of any real type.

        Sums use y = x - shift. Digits are lost unless `shift` (d,) is near the mean.
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
        """Add the rows of another object in place, and return ``self``."""
        self.sums.merge(other.sums)
        return self

    def matrix(self) -> tuple[Floats, float]:
        """Return the scatter matrix, the sum of ``w (x - mean) (x - mean)'``, and its error.

        Each entry is rounded once. The error is a bound in the Frobenius norm, and is infinite if
        numbers are too large.

        Let u = 2^-53. The error of y is at most u |y|, so the relative error of w y_a y_b is at
        most 4 u. The error of the term for the mean, (sum w y_a) (sum w y_b) / W, is at most as
        large, since (sum w |y|)^2 <= W sum w y^2. The total error is at most 16 u times the trace
        about the shift.
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
    """Return the descending eigenvalues of a finite symmetric (d, d) matrix, and an error bound.

    The error bound is for ``sqrt(sum((values - true_values)^2))``. Only the upper triangle of the
    matrix is used.
    """
    d = len(matrix)
    largest = float(np.abs(matrix).max(initial=0.0))
    if largest == 0.0:
        return np.zeros(d), 0.0
    # Scale by a power of two, which is exact, so that squares neither overflow nor underflow.
    power = frexp(largest)[1]
    work = np.empty((d, d))
    for a in range(d):
        for b in range(a, d):
            work[a, b] = work[b, a] = ldexp(float(matrix[a, b]), -power)
    values = np.empty(d)
    error = float(_jacobi(work, values))
    values = np.sort(values)[::-1]
    # Scaling may make numbers subnormal or 0.
    error += d * _VANISHED
    return np.array([ldexp(value, power) for value in values.tolist()]), ldexp(error, power)


@njit
def _add_products(x, weight, shift, limbs):
    """Add products w y_a y_b to the limbs, and return the number of nonfinite products."""
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
    """Diagonalize a symmetric matrix by rotations, and return an error bound."""
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
    # The sums of squares and of error bounds are rounded as well.
    return (error + np.sqrt(off)) * (1.0 + 2.0**-20)


@njit
def _rotate(a, p, q):
    """Rotate rows and columns p and q so that entry (p, q) is 0, and return an error bound."""
    d = a.shape[0]
    entry = a[p, q]
    ratio = (a[q, q] - a[p, p]) / (2.0 * entry)
    # Choose the smaller of the two possible angles.
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
