"""Exact sums of rows that are shared between the components of a mixture.

One pass over the rows computes all sums for an M-step and the free energy of the E-step.
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
"""Number of bits in a responsibility, by item size of the compute dtype."""
MOST_CANDIDATES = 4096
"""Maximum number of candidates per row: with more candidates, rounding errors could exceed the
largest responsibility."""
_ENTRIES = 1 << 15
"""Maximum number of responsibilities in a block of rows."""
_DIGITS = 34
"""Sums have a second limb if the grid has fewer bits than this below its extent. Grids for up to
2^27 rows have enough bits."""


class SoftSums:
    """All sums over rows that an M-step of a Gaussian mixture needs.

    Results do not depend on the order of adding or merging. A row of integer weight w counts as w
    equal rows.

    Parameters
    ----------
    n_components, n_features : int
    grid : FixedPoint
        Chosen for the rows that will be added.
    covariance : {"iso", "isoflex", "diag"}
        One common variance, one per component, or one per component and feature.

    Notes
    -----
    *Responsibilities* of a row for its candidates are rounded to whole multiples of h = 2^-B, and
    the most responsible candidate absorbs the rounding error, so that they add up to exactly 1.
    So every sum belongs to an M-step for responsibilities s' instead of the true s. This M-step
    raises ``F(s', model) = F(s, model) - sum gamma KL(s' || s)``, so at most the divergence is
    lost. With C' candidates it is at most ``(C' - 1) h / 2`` per row, plus a second-order term
    below ``C'^3 h^2 / 4``: a candidate with s >= h / 2 and error delta <= h / 2 loses at most
    ``delta^2 / s <= h / 2``, a candidate with s < h / 2 is rounded to 0 and loses s, and the most
    responsible candidate has s >= 1 / C'. F may fall by 2^-18 of its size in float32 and by 1e-12
    in float64. For C' = 5, B = 24 keeps the loss per row below 2^-23, and B = 44 below 1.2e-13:
    enough as long as F is above 1/32 and 1/8 nats per row, respectively.

    *Sums* of ``gamma s' (x - shift)`` are integers on ``grid``. Shares are at most 1, so the
    overflow bounds of the grid still hold. Sums have a second limb for float64 data, whose shares
    are multiples of 2^-44, and for grids with fewer than 34 bits below the extent, such as grids
    for integer data (with steps of 1) or for large weights. The error of a mean is at most half a
    step times the number of rows of the component, divided by the mass of the component.

    If each feature has its own extent e_f (``FixedPoint.extents``), the step of a feature is
    2^-(bits + extent - e_f), so that all features have the same number of bits below their extents.
    The overflow bounds still hold, since they depend only on ``bits + extent``. So the precision of
    a feature does not depend on the units of other features.

    *Masses* are exact if weights are integers: they have two digits of base 2^22, and sums of
    digits remain below 2^58, because the total weight is at most 2^36. Otherwise masses have two
    limbs.

    *Squares* are needed for variances and are relative to the old means. For "diag", the sum for
    each component and feature has two limbs and its own step 2^-b. Rows are within 2^e of the
    shift, where e is the extent of the grid. Means outside this range are replaced by the nearest
    point inside, since any reference point is valid. So squares are at most ``2^(2e + 2)``, and
    their sum is at most ``W 2^(2e + 2) <= 2^(64 + e - bits)``, because ``W <= 2^(62 - e - bits)``
    on every grid. With ``b = bits - e - 3``, the sum remains below 2^61 steps. A single square is
    at most 2^50 steps, so adding 1.5 * 2^52 rounds the square, because ``bits <= 50 - e`` (minus
    the bits of the largest weight, if weights are real). The low limb adds 50 bits: with 10^6 rows
    of size 1 and one of them 10^6 away, squares have a resolution of 2^-48. For "iso" and
    "isoflex", sums of squares are not rounded at all.
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
            raise ValueError(f"the grid has {len(grid.shift)} features, expected {n_features}")
        if covariance not in ("iso", "isoflex", "diag"):
            raise ValueError(f"covariance must be 'iso', 'isoflex' or 'diag', got {covariance!r}")
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
        """Add rows to the sums of their candidate components.

        Parameters
        ----------
        x : (n, d)
        weight : (n,) float64, optional
            Rows of weight 0 are ignored.
        candidates : (n, C') int32
            Components to which a row may belong, without duplicates; -1 for no component.
        squares : (n, C') float64
            Squared distances to the candidates, for "diag" divided by the variances.
        packed : PackedMixture
            Mixture that determines the responsibilities; its means, constants and halves are used.

        Raises
        ------
        ValueError
            If the grid cannot represent a weight (as in ``ClusterSums.add``), or if there are more
            than ``MOST_CANDIDATES`` candidates. Then nothing is added.
        """
        grid, n_candidates = self.grid, candidates.shape[1]
        if n_candidates > MOST_CANDIDATES:
            raise ValueError(
                f"{n_candidates} candidates per row are too many; use at most {MOST_CANDIDATES}"
            )
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
        """Add an accumulator with the same grid in place, and return ``self``."""
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
        """Free energy: the weighted sum over rows of ``log(sum of joint densities)``."""
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
        """Total weight of all added rows."""
        low_bits, unit = self._mass_units
        low = _exact_sum(self._low_masses)
        return float((_exact_sum(self._masses) << low_bits) + low) * unit

    @property
    def squares(self) -> float:
        """Sum of squared distances from the old means, weighted by responsibility.

        For "diag", squares are not divided by variances.
        """
        if self.covariance != "diag":
            return float(self._squares.value)
        total, bits = Fraction(0), self._own_square_bits.tolist()
        for high, low, own in zip(self._squares.T, self._low_squares.T, bits, strict=True):
            steps = (_exact_sum(high) << LOW_BITS) + _exact_sum(low)
            total += steps * Fraction(2) ** -(LOW_BITS + own)
        return float(total)

    def means(self, fallback: NDArray[Any]) -> NDArray[Any]:
        """Return (k, d) means in data coordinates, in the compute dtype.

        A component without mass takes its mean from ``fallback``.
        """
        masses = self.masses
        means: NDArray[np.float64] = self._totals / np.where(masses > 0, masses, 1)[:, None]
        means *= _powers(-self._bits)
        means += self.grid.shift.astype(np.float64)
        empty = masses <= 0
        means[empty] = fallback[empty]
        return means.astype(self.grid.shift.dtype)

    def variances(self, old_means: NDArray[Any], new_means: NDArray[Any]) -> NDArray[np.float64]:
        """Return numerators of variances: sums of squares about ``new_means``, weighted by shares.

        Parameters
        ----------
        old_means : (k, d)
            Means of the mixture with which rows were added.
        new_means : (k, d)
            New means as stored: they are rounded, and need not be the exact means.

        Returns
        -------
        squares : (1, 1), (k, 1) or (k, d)
            For "iso", "isoflex", "diag".

        Notes
        -----
        With R the squares about the old means m, and S and N the sums and masses, the result is
        ``R - 2 (mu - m) (S - N m) + N (mu - m)^2``. It is not ``E x^2 - mu^2``, which would lose
        digits by cancellation if components are tight compared with the data's extent.
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
        """(d,) extent of the grid minus the extent of each feature, in bits."""
        own, d = self.grid.extents, len(self.grid.shift)
        return np.zeros(d, np.int64) if own is None else self.grid.extent - own

    @property
    def _bits(self) -> NDArray[np.int64]:
        """(d,) number of bits per feature: sums have steps of 2^-bits."""
        return np.minimum(self.grid.bits + self._finer, 1000)

    @property
    def _unit(self) -> float:
        """Number of steps that represent a responsibility of 1."""
        return 2.0 ** SHARE_BITS[self.grid.shift.itemsize]

    @property
    def _own_square_bits(self) -> NDArray[np.int64]:
        """(d,) number of bits per feature: sums of squares have steps of 2^-bits.

        The step is the finest that cannot overflow, except that there are at most 900 bits. The
        number of bits exceeds -1000, because no sum of squares overflows float64.
        """
        return np.minimum(self.grid.bits - self.grid.extent - 3 + 2 * self._finer, 900)

    @property
    def _mass_units(self) -> tuple[int, float]:
        """Number of bits in the low part of a mass, and the value of the lowest bit."""
        if self.grid.integer_weights:
            return DIGIT, 1 / self._unit
        return LOW_BITS, 2.0 ** -(LOW_BITS + self.grid.weight_bits)

    @property
    def _totals(self) -> NDArray[np.float64]:
        """(k, d) sums, in units of each feature's step."""
        if not self._is_wide:
            return self._sums.astype(np.float64)
        out: NDArray[np.float64] = self._sums + self._low * (1 / LOW_SCALE)
        return out

    def _reference(self, means: NDArray[Any]) -> NDArray[np.float64]:
        """Return the reference for squares of "diag": the old means, clipped to the extent."""
        shift, far = self.grid.shift.astype(np.float64), _powers(self.grid.extent - self._finer)
        return readonly(np.clip(means.astype(np.float64), shift - far, shift + far))


def resolved_bits(grid: FixedPoint, weight: float) -> int:
    """Return the precision of a mean for rows of this total weight, in bits below the extent."""
    lost = 0 if grid.integer_weights else 1 - power_above(weight)
    digits = grid.bits + grid.extent - lost + LOW_BITS * _is_wide(grid)
    return min(np.finfo(np.float64).nmant, digits)


def _is_wide(grid: FixedPoint) -> bool:
    """Return True if sums have a second limb."""
    return grid.wide or grid.shift.dtype == np.float64 or grid.bits + grid.extent < _DIGITS


def _powers(exponents: NDArray[np.int64]) -> NDArray[np.float64]:
    return readonly(np.ldexp(1.0, exponents))


def _blocks(x: NDArray[Any], n_rows: int) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield blocks of at most ``n_rows`` rows, in a type for which kernels are compiled."""
    for at, block in native_blocks(x):
        for begin in range(0, len(block), n_rows):
            part = block[begin : begin + n_rows]
            yield slice(at.start + begin, at.start + begin + len(part)), part


def _exact_sum(values: NDArray[np.int64]) -> int:
    """Return the sum of any number of integers as a Python integer, which cannot overflow."""
    half = (1 << 32) - 1
    return (int((values >> 32).sum()) << 32) + int((values & half).sum())
