"""Exact sums of rows that belong to several components of a mixture, each by a share.

One pass over the rows gives everything that an M-step needs, and the free energy of the E-step.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.exact.fixed_point import LOW_BITS, LOW_SCALE, FixedPoint, power_above
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.soft_loops import (
    DIGIT,
    add_masses,
    add_squares,
    adding,
    corrections,
    respond,
)
from largek_dask.kernels.exact.sum_loops import (
    ONES,
    REALS,
    first_refused,
    merge_low,
    refusal,
    weights_of,
)
from largek_dask.kernels.rows import native_blocks

SHARE_BITS = {4: 24, 8: 44}
"""Bits of a responsibility, by bytes of the compute dtype."""
MOST_CANDIDATES = 4096
"""Maximum candidates of a row: with more, rounding could exceed the largest responsibility."""
_ENTRIES = 1 << 15
"""Responsibilities of a block of rows."""
_DIGITS = 34
"""Bits below its extent that a grid of up to 2^27 rows has; with fewer, sums are wide."""


class SoftSums:
    """Sums over rows of everything that an M-step of a Gaussian mixture needs.

    No order of adding or merging changes a bit, and a row of integer weight w is w equal rows.

    Parameters
    ----------
    n_components, n_features : int
    grid : FixedPoint
        Chosen for the rows that will be added.
    covariance : {"iso", "isoflex", "diag"}
        One variance in all, one per component, or one per component and feature.

    Notes
    -----
    *Responsibilities* of a row for its candidates are rounded to whole multiples of h = 2^-B, and
    the most responsible candidate takes the rounding error, so that they add up to exactly 1.
    Then every sum here is that of an M-step for responsibilities s' instead of the true s. It
    raises ``F(s', model) = F(s, model) - sum gamma KL(s' || s)``, so at most the divergence
    is lost. With C' candidates that is at most ``(C' - 1) h / 2`` per row, and a second-order term
    below ``C'^3 h^2 / 4``: a candidate at s >= h / 2 loses at most ``delta^2 / s <= h / 2`` for its
    error delta <= h / 2, one below is rounded to 0 and loses s < h / 2, and the most responsible
    one has s >= 1 / C'. F may fall by 2^-18 of its size in float32 and by 1e-12 in float64. B = 24
    keeps the loss at C' = 5 below 2^-23, and B = 44 below 1.2e-13, per row: enough as long as F is
    above 1/32 and 1/8 nats per row.

    *Sums* of ``gamma s' (x - shift)`` are integers on ``grid``. A row adds to each sum at most what
    it would add as a whole, so the grid's proof holds as it is. Those of float64 data always have
    a low limb, for shares down to 2^-44, and so have those of any grid of fewer than 34 bits below
    its extent: of integer data, whose steps are 1, and of large weights. The error of a mean is at
    most half a step times the number of its rows over its mass.

    If the grid has extents of features (``FixedPoint.extents``), each feature has as many bits
    below its own extent as the grid has below that of all: its step is 2^-(bits + extent - e_f),
    and the proof is that of the grid, whose bounds depend on ``bits + extent`` alone. Columns of
    other units leave a feature as many digits as if it were the only one.

    *Masses* of rows of integer weights are exact: two digits of base 2^22, whose sums remain below
    2^58 since the total weight is at most 2^36. Those of other weights have two limbs.

    *Squares*, for variances, are those about the old means. One per component and
    feature is a sum of two limbs with its own step 2^-b: rows and means lie within 2^e of the shift
    (the grid's extent; means further out are replaced by the nearest point within, since any
    reference serves), so squares are at most ``2^(2e + 2)``, their sum at most
    ``W 2^(2e + 2) <= 2^(64 + e - bits)``, as ``W <= 2^(62 - e - bits)`` on every grid. With
    ``b = bits - e - 3`` it remains below 2^61, and a single one, since ``bits <= 50 - e`` (less the
    bits of the largest weight, if that is real), within the 2^50 that can be rounded by adding
    1.5 * 2^52. The low limb reaches 50 bits further: with 10^6 rows, one of them 10^6 away, to
    2^-48 in squares of the others' units. The fewer ones of "iso" and "isoflex" are sums without
    any rounding.
    """

    __slots__ = (
        "_log_likelihood",
        "_low",
        "_low_masses",
        "_low_squares",
        "_masses",
        "_squares",
        "_sums",
        "covariance",
        "grid",
    )

    def __init__(
        self, n_components: int, n_features: int, grid: FixedPoint, covariance: str
    ) -> None:
        if grid.shift.shape != (n_features,):
            raise ValueError(f"the grid has {len(grid.shift)} features, not {n_features}")
        if covariance not in ("iso", "isoflex", "diag"):
            raise ValueError(f"covariance is {covariance!r}, neither 'iso', 'isoflex' nor 'diag'")
        self.grid = grid
        self.covariance = covariance
        shape = n_components, n_features
        self._sums: NDArray[np.int64] = np.zeros(shape, np.int64)
        self._low: NDArray[np.int64] = np.zeros(shape if self._is_wide else (0, 0), np.int64)
        self._masses: NDArray[np.int64] = np.zeros(n_components, np.int64)
        self._low_masses: NDArray[np.int64] = np.zeros(n_components, np.int64)
        self._log_likelihood = ExactSums()
        self._squares: Any = ExactSums(1 if covariance == "iso" else n_components)
        self._low_squares: NDArray[np.int64] = np.zeros((0, 0), np.int64)
        if covariance == "diag":
            self._squares = np.zeros(shape, np.int64)
            self._low_squares = np.zeros(shape, np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of this object when it is sent."""
        arrays = [self._sums, self._low, self._masses, self._low_masses, self._low_squares]
        own = self.grid.extents
        arrays += [self.grid.shift] if own is None else [self.grid.shift, own]
        exact = int(self._log_likelihood.nbytes + self._squares.nbytes)
        return exact + sum(part.nbytes for part in arrays)

    def add(
        self,
        x: NDArray[Any],
        weight: NDArray[np.float64] | None,
        candidates: NDArray[np.int32],
        squares: NDArray[np.float64],
        packed: Any,
    ) -> None:
        """Add rows to the components of their candidates.

        Parameters
        ----------
        x : (n, d)
        weight : (n,) float64, optional
            Rows of weight 0 are absent.
        candidates : (n, C') int32
            Components that a row may belong to, each at most once; -1 is none.
        squares : (n, C') float64
            Their squared distances, for "diag" divided by the variances.
        packed : PackedMixture
            Mixture that gives the responsibilities; its means, constants and halves are used.

        Raises
        ------
        ValueError
            A weight that the grid cannot represent (as in ``ClusterSums.add``), or more than
            ``MOST_CANDIDATES``. Nothing is added then.
        """
        grid, n_candidates = self.grid, candidates.shape[1]
        if n_candidates > MOST_CANDIDATES:
            raise ValueError(f"{n_candidates} candidates per row, at most {MOST_CANDIDATES}")
        known, kind = weights_of(weight, len(x), grid)
        refused = first_refused(known, kind, 2.0**grid.weight_bits, self._is_wide)
        if refused >= 0:
            raise refusal(refused, known, grid)
        about = self._reference(packed.means) if self.covariance == "diag" else None
        mass_scale = 2.0**grid.weight_bits if kind == REALS else self._unit
        steps = grid.shift.astype(np.float64), _powers(self._bits)
        mixture = readonly(packed.constants), readonly(packed.halves), self._unit
        n_rows = max(1, _ENTRIES // n_candidates)
        room = min(n_rows, len(x))
        rows, components = np.empty((2, room * n_candidates), np.int64)
        shares, energy = np.empty((2, room * n_candidates))
        likelihoods = np.empty(room)
        for at, block in _blocks(x, n_rows):
            own = known[at]
            n = respond(
                readonly(candidates[at]), readonly(squares[at]), own, *mixture,
                rows, components, shares, energy, likelihoods,
            )  # fmt: skip
            self._log_likelihood.add(likelihoods[: len(block)], None if kind == ONES else own)
            each = own if kind == ONES else own[rows[:n]]
            parts = readonly(rows[:n]), readonly(components[:n]), readonly(shares[:n])
            entries = *parts, readonly(each)
            add_masses(*entries[1:], kind, mass_scale, self._masses, self._low_masses)
            adding(self._is_wide)(block, *entries, kind, *steps, self._sums, self._low)
            if about is not None:
                scale = _powers(self._own_square_bits)
                add_squares(block, *entries, kind, about, scale, self._squares, self._low_squares)
            else:
                cells = None if self.covariance == "iso" else entries[1]
                self._squares.add(energy[:n], None if kind == ONES else each, cells)

    def merge(self, other: SoftSums) -> SoftSums:
        """Add another accumulator of the same grid to this one, and return it."""
        self._sums += other._sums
        if self._is_wide:
            merge_low(self._sums, self._low, other._low)
        self._masses += other._masses
        if self.grid.integer_weights:
            self._low_masses += other._low_masses
        else:
            merge_low(self._masses, self._low_masses, other._low_masses)
        self._log_likelihood.merge(other._log_likelihood)
        if self.covariance == "diag":
            self._squares += other._squares
            merge_low(self._squares, self._low_squares, other._low_squares)
        else:
            self._squares.merge(other._squares)
        return self

    @property
    def bound(self) -> float:
        """Free energy: the weighted sum over rows of the log of the sum of joint densities."""
        return self._log_likelihood.value

    @property
    def masses(self) -> NDArray[np.float64]:
        """(k,) sums of weighted responsibilities."""
        low_bits, unit = self._mass_units
        carried = self._masses + (self._low_masses >> low_bits)
        rest = self._low_masses & ((1 << low_bits) - 1)
        out: NDArray[np.float64] = (carried + rest * 2.0**-low_bits) * (unit * 2.0**low_bits)
        return out

    @property
    def total(self) -> float:
        """Total weight of the rows added."""
        low_bits, unit = self._mass_units
        low = _exact_sum(self._low_masses)
        return float((_exact_sum(self._masses) << low_bits) + low) * unit

    @property
    def squares(self) -> float:
        """Weighted sum of squared distances from the old means, by responsibility.

        For "diag" it is not divided by variances.
        """
        if self.covariance != "diag":
            return float(self._squares.value)
        total, bits = Fraction(0), self._own_square_bits.tolist()
        for high, low, own in zip(self._squares.T, self._low_squares.T, bits, strict=True):
            steps = (_exact_sum(high) << LOW_BITS) + _exact_sum(low)
            total += steps * Fraction(2) ** -(LOW_BITS + own)
        return float(total)

    def means(self, fallback: NDArray[Any]) -> NDArray[Any]:
        """Return (k, d) means in the coordinates of the data, compute dtype.

        Components without mass keep their row of ``fallback``.
        """
        masses = self.masses
        means: NDArray[np.float64] = self._totals / np.where(masses > 0, masses, 1)[:, None]
        means *= _powers(-self._bits)
        means += self.grid.shift.astype(np.float64)
        empty = masses <= 0
        means[empty] = fallback[empty]
        return means.astype(self.grid.shift.dtype)

    def variances(self, old_means: NDArray[Any], new_means: NDArray[Any]) -> NDArray[np.float64]:
        """Return sums of weighted squares about ``new_means``, by responsibility; not yet divided.

        Parameters
        ----------
        old_means : (k, d)
            Means of the mixture by which rows were added.
        new_means : (k, d)
            As they are stored, rounded: they need not be the exact means.

        Returns
        -------
        squares : (1, 1), (k, 1) or (k, d)
            For "iso", "isoflex", "diag".

        Notes
        -----
        From squares R about the old means m, with S and N the sums and masses:
        ``R - 2 (mu - m) (S - N m) + N (mu - m)^2``, never from ``E x^2 - mu^2``, which cancels
        if components are tight compared with the data's extent.
        """
        diag = self.covariance == "diag"
        old = self._reference(old_means) if diag else readonly(old_means.astype(np.float64))
        lacking: NDArray[np.float64] = np.empty(self._sums.shape)
        corrections(
            readonly(self._totals), self.masses, _powers(-self._bits),
            self.grid.shift.astype(np.float64), old, readonly(new_means.astype(np.float64)),
            lacking,
        )  # fmt: skip
        if diag:
            known = self._squares + self._low_squares * (1 / LOW_SCALE)
            found = known * _powers(-self._own_square_bits) + lacking
        else:
            k, d = lacking.shape
            rest = ExactSums(self._squares.n_cells)
            cells = None if self.covariance == "iso" else np.repeat(np.arange(k), d)
            rest.add(lacking.reshape(-1), None, cells)
            found = (self._squares.values + rest.values)[:, None]
        out: NDArray[np.float64] = np.maximum(found, 0.0)
        return out

    @property
    def _is_wide(self) -> bool:
        return _is_wide(self.grid)

    @property
    def _finer(self) -> NDArray[np.int64]:
        """(d,) bits by which a feature's own extent is below that of the grid."""
        own, d = self.grid.extents, len(self.grid.shift)
        return np.zeros(d, np.int64) if own is None else self.grid.extent - own

    @property
    def _bits(self) -> NDArray[np.int64]:
        """(d,) sums of a feature count steps of 2^-bits."""
        return np.minimum(self.grid.bits + self._finer, 1000)

    @property
    def _unit(self) -> float:
        """A responsibility of 1, in steps."""
        return 2.0 ** SHARE_BITS[self.grid.shift.itemsize]

    @property
    def _own_square_bits(self) -> NDArray[np.int64]:
        """(d,) squares of a feature count steps of 2^-bits.

        As many steps as cannot overflow; fewer only if squares are below 2^-800. Above
        -1000, as no sum of squares overflows float64.
        """
        return np.minimum(self.grid.bits - self.grid.extent - 3 + 2 * self._finer, 900)

    @property
    def _mass_units(self) -> tuple[int, float]:
        """Bits of the low part of a mass, and the value of its last one."""
        if self.grid.integer_weights:
            return DIGIT, 1 / self._unit
        return LOW_BITS, 2.0 ** -(LOW_BITS + self.grid.weight_bits)

    @property
    def _totals(self) -> NDArray[np.float64]:
        """(k, d) sums in steps of 2^-_bits."""
        if not self._is_wide:
            return self._sums.astype(np.float64)
        out: NDArray[np.float64] = self._sums + self._low * (1 / LOW_SCALE)
        return out

    def _reference(self, means: NDArray[Any]) -> NDArray[np.float64]:
        """Return what squares of "diag" are about: the old means, moved to within the extent."""
        shift, far = self.grid.shift.astype(np.float64), _powers(self.grid.extent - self._finer)
        return readonly(np.clip(means.astype(np.float64), shift - far, shift + far))


def resolved_bits(grid: FixedPoint, weight: float) -> int:
    """Return the bits below its extent of the mean of a feature of rows of this weight."""
    lost = 0 if grid.integer_weights else 1 - power_above(weight)
    digits = grid.bits + grid.extent - lost + LOW_BITS * _is_wide(grid)
    return min(np.finfo(np.float64).nmant, digits)


def _is_wide(grid: FixedPoint) -> bool:
    """Return True if sums have a low limb."""
    return grid.wide or grid.shift.dtype == np.float64 or grid.bits + grid.extent < _DIGITS


def _powers(exponents: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (d,) powers of two."""
    return readonly(np.ldexp(1.0, exponents))


def _blocks(x: NDArray[Any], n_rows: int) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield at most ``n_rows`` rows at a time, in a type that kernels are compiled for."""
    for at, block in native_blocks(x):
        for begin in range(0, len(block), n_rows):
            part = block[begin : begin + n_rows]
            yield slice(at.start + begin, at.start + begin + len(part)), part


def _exact_sum(values: NDArray[np.int64]) -> int:
    """Return the sum of any number of integers, of any size."""
    half = (1 << 32) - 1
    return (int((values >> 32).sum()) << 32) + int((values & half).sum())
