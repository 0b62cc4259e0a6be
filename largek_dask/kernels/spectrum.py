"""The scatter matrix of rows, and its eigenvalues, with error bounds.

Eigenvalues are found by Jacobi's rotations: a few plain products per step in a fixed order, and no
library whose bits depend on the processor. Every rotation adds a bound of its rounding to the error
bound, by the lengths of the two rows that it changes; so the bound is that of this very run, not of
the worst one.

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
"""Maximum number of sweeps, of which ten usually suffice; what is left then counts as an error."""
_ROTATED = 2.0**-48
"""Rounding of a rotation, relative to the length of the two rows: of two products and a sum per
entry, and of an angle whose cosine and sine are off by two roundings."""
_NEGLIGIBLE = 2.0**-56
"""Entries that are this small relative to the whole matrix are left; they count as an error."""
_SUMMED = 2.0**-49
"""Rounding of a row's products: of differences, of two products and of the mean's part."""
_VANISHED = 2.0**-1000
"""Upper bound of what products lose that are subnormal, or 0."""
_MOST = 2**1000
"""Maximum sum of the absolute products."""
_VALUES = 1 << 15
_ABS_BITS = 0x7FFFFFFFFFFFFFFF


class ScatterSums:
    """Exact sums of the products of rows' d features; the products are rounded.

    The sums take at most 24 limbs of (d + 1) (d + 2) / 2 numbers.
    """

    __slots__ = ("n_features", "sums")

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features
        self.sums = ExactSums((n_features + 1) * (n_features + 2) // 2)
        """Sums of w y_a y_b for a <= b, y_d being 1, row after row of this triangle."""

    @property
    def nbytes(self) -> int:
        return self.sums.nbytes

    def add(self, x: NDArray[Any], weight: Floats | None, shift: NDArray[Any]) -> None:
        """Add finite dense rows (n, d) of any real type.

        `shift` (d,) is the origin of y = x - shift: near the mean, or digits are lost.
        """
        about = readonly(shift.astype(np.float64))
        limbs = np.zeros((N_LIMBS, self.sums.n_cells), np.int64)
        for rows, block in native_blocks(x):
            own = np.ones(len(block)) if weight is None else weight[rows]
            with np.errstate(over="ignore"):  # counted
                skipped = _add_products(block, readonly(own), about, limbs)
            self.sums.n_not_finite += int(skipped)
        self.sums.add_table(limbs)

    def merge(self, other: ScatterSums) -> ScatterSums:
        """Add another object's rows to this one, and return it."""
        self.sums.merge(other.sums)
        return self

    def matrix(self) -> tuple[Floats, float]:
        """Return the sum of ``w (x - mean) (x - mean)'``, each entry rounded once, and its error.

        The error bounds the Frobenius norm; it is infinite if numbers are too large.

        With u = 2^-53: y is off by u |y| at most, w y_a y_b then by 4 u of itself, and the part of
        the mean, (sum w y_a) (sum w y_b) / W, by at most as much again, since
        (sum w |y|)^2 <= W sum w y^2. Over all entries that is at most 16 u times the trace about
        the shift.
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
    """Return the eigenvalues of a finite symmetric matrix (d, d), descending, and their error.

    The error bounds ``sqrt(sum of (values - true ones)^2)``. Only the upper triangle is used.
    """
    d = len(matrix)
    largest = float(np.abs(matrix).max(initial=0.0))
    if largest == 0.0:
        return np.zeros(d), 0.0
    # a power of two changes no digit, and no square is too large or too small then
    power = frexp(largest)[1]
    work = np.empty((d, d))
    for a in range(d):
        for b in range(a, d):
            work[a, b] = work[b, a] = ldexp(float(matrix[a, b]), -power)
    values = np.empty(d)
    error = float(_jacobi(work, values))
    values = np.sort(values)[::-1]
    # for numbers that scaling has rounded to subnormal ones, or to 0
    error += d * _VANISHED
    return np.array([ldexp(value, power) for value in values.tolist()]), ldexp(error, power)


@njit
def _add_products(x, weight, shift, limbs):
    """Add w y_a y_b of rows to the limbs; return how many were not finite."""
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
    # sums of squares and of bounds are rounded as well
    return (error + np.sqrt(off)) * (1.0 + 2.0**-20)


@njit
def _rotate(a, p, q):
    """Make one entry 0 (rows and columns p and q change); return the error."""
    d = a.shape[0]
    entry = a[p, q]
    ratio = (a[q, q] - a[p, p]) / (2.0 * entry)
    # the smaller of two angles
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
