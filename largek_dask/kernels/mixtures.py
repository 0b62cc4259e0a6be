r"""Components of a Gaussian mixture, packed for the kernels.

Components have one common variance (``"iso"``), one variance each (``"isoflex"``), or one variance
per component and feature (``"diag"``). All results are based on the *log joint* of a row and a
component, ``log pi_c + log N(x; c)``, which is always computed in float64 as

.. math:: \mathrm{constants}_c - \mathrm{halves}_c \cdot \mathrm{squares}

Here squares are ``sum (x - mean)²``, or ``sum (x - mean)² precision`` for ``"diag"``. They are
computed in the direct form, from the original numbers, in the order of
:func:`~largek_dask.kernels.emit.square_distance`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.distances import PackedCenters, pack_centers
from largek_dask.kernels.exact.transcendental import log
from largek_dask.kernels.jit import njit

_TWO_PI = 6.283185307179586
_PAD = 8

Array = NDArray[Any]
Floats = NDArray[np.float64]


@njit
def log_joint(constant, half, square):
    """Return the log joint of a row and a component, rounded after each of the two operations."""
    return constant - half * square


@dataclass(frozen=True, slots=True, eq=False)
class MixtureForm:
    """Read-only factors and initial scores of components for the register tile.

    Scores of ``"iso"`` are those of k-means. Scores of ``"isoflex"`` and ``"diag"`` are negative
    log joints, and need additional features of a row: its squared length relative to the shift for
    ``"isoflex"``, and the square of each feature for ``"diag"``.
    """

    factors: Array
    """(k padded, n) factors of features, as in :class:`~.dense.panels.DenseForm`, and of additional
    features."""
    starts: Array
    """(k padded,) initial scores; infinity for padding and retired components."""
    offsets: Array
    """(d padded,) origin that is subtracted from rows."""
    level: float
    """Largest absolute constant, which contributes to the rounding errors of scores."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedMixture:
    """Components packed for the kernels by :func:`pack_mixture`.

    All arrays are read-only. Pickling stores only the first four arrays, and unpickling packs the
    components again.
    """

    means: Array
    """(k, d) means in the compute dtype."""
    variances: Floats
    """Variances of shape (1, 1) for ``"iso"``, (k, 1) for ``"isoflex"``, or (k, d) for
    ``"diag"``."""
    log_weights: Floats
    """(k,) log weights; minus infinity for retired components."""
    shift: Array
    """(d,) origin near the mean of the data, which is subtracted from rows and means."""
    constants: Floats
    """(k,) log weight plus log normalisation; minus infinity for retired components."""
    halves: Floats
    """(k,) factors of the sums of squares: half the precision, or 1/2 for ``"diag"``."""
    precisions: Floats
    """(k, d) precisions for ``"diag"``; otherwise an empty (0, 0) array."""
    centers: PackedCenters
    """Means, packed as centres of k-means."""

    @property
    def n_components(self) -> int:
        """Number of components, including retired ones."""
        return int(self.means.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.means.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.means.dtype

    @property
    def covariance(self) -> str:
        """Kind of variances: ``"iso"``, ``"isoflex"`` or ``"diag"``."""
        if self.variances.shape == (1, 1):
            return "iso"
        return "isoflex" if self.variances.shape[1] == 1 else "diag"

    @property
    def direct(self) -> int:
        """Number of features if ``"iso"`` uses the direct form, otherwise 0."""
        return self.centers.direct if self.covariance == "iso" else 0

    @property
    def alive(self) -> NDArray[np.bool_]:
        """(k,) mask of components that are not retired."""
        return self.log_weights > -np.inf

    @property
    def form(self) -> MixtureForm:
        """Packed form of the components for dense rows."""
        return self.centers.cache.get(_form, self)

    @property
    def weighted_form(self) -> MixtureForm:
        """Packed form for dense rows, as if each component had its own variance."""
        return self.centers.cache.get(_weighted_form, self)

    @property
    def nbytes(self) -> int:
        """Size of the arrays with k rows, in bytes."""
        wide = self.variances.nbytes + self.precisions.nbytes
        return self.centers.nbytes + wide + 3 * self.constants.nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        return pack_mixture, (self.means, self.variances, self.log_weights, self.shift)


def pack_mixture(
    means: Array, variances: Floats, log_weights: Floats, shift: Array
) -> PackedMixture:
    """Pack components for the kernels.

    Parameters
    ----------
    means : array (k, d)
        The tile's scores have their compute dtype.
    variances : array (1, 1), (k, 1) or (k, d)
        Positive and finite; their shape determines the kind of mixture.
    log_weights : array (k,)
        Minus infinity retires a component.
    shift : array (d,)
        Origin near the data's mean.
    """
    centers = pack_centers(means, shift)
    k, d = centers.centers.shape
    variances = np.array(variances, np.float64, order="C")
    log_weights = np.array(log_weights, np.float64)
    if variances.shape not in ((1, 1), (k, 1), (k, d)):
        raise ParameterError(
            f"variances of {k} components with {d} features must have shape (1, 1), ({k}, 1) or "
            f"({k}, {d}), got {variances.shape}."
        )
    if not ((variances > 0) & (variances < np.inf)).all():
        raise ParameterError("variances must be positive and finite.")
    if log_weights.shape != (k,) or not (log_weights < np.inf).all():
        raise ParameterError(f"log_weights must be {k} numbers, finite or minus infinity.")
    wide = variances.shape[1] > 1
    constants = log_weights - _normalisation(variances, d)
    halves = np.full(k, 0.5) if wide else np.repeat(0.5 / variances[:, 0], k // len(variances))
    precisions = 1 / variances if wide else np.empty((0, 0))
    return PackedMixture(
        means=centers.centers,
        variances=readonly(variances),
        log_weights=readonly(log_weights),
        shift=centers.shift,
        constants=readonly(constants),
        halves=readonly(halves),
        precisions=readonly(precisions),
        centers=centers,
    )


def pack_equal(means: Array, variance: float, shift: Array) -> PackedMixture:
    """Pack components with a common variance and equal weights."""
    k = len(means)
    log_weights = np.full(k, -log(np.array([k]))[0])
    return pack_mixture(means, np.array([[variance]]), log_weights, shift)


def _normalisation(variances: Floats, d: int) -> Floats:
    """Return half the sum of log(2 pi variance) over the features, as a (k,) or (1,) array."""
    logs = log((_TWO_PI * variances).ravel()).reshape(variances.shape)
    if variances.shape[1] == 1:
        return 0.5 * (d * logs[:, 0])
    total = np.zeros(len(logs))
    for column in logs.T:
        total += column
    return 0.5 * total


def _form(centers: Array, packed: PackedMixture) -> MixtureForm:
    if packed.covariance != "iso":
        return packed.weighted_form
    dense = packed.centers.dense
    starts = dense.starts.copy()
    starts[: packed.n_components][~packed.alive] = np.inf
    return MixtureForm(dense.factors, readonly(starts), dense.offsets, 0.0)


def _weighted_form(centers: Array, packed: PackedMixture) -> MixtureForm:
    k, d = packed.means.shape
    weights = packed.precisions * 0.5 if packed.covariance == "diag" else packed.halves[:, None]
    padded = -(-k // _PAD) * _PAD
    factors = np.zeros((padded, d + weights.shape[1]), packed.dtype)
    starts = np.full(padded, np.inf, packed.dtype)
    offsets = np.zeros(-(-d // _PAD) * _PAD, packed.dtype)
    offsets[:d] = packed.shift
    _fill(readonly(packed.centers.values), readonly(weights), packed.constants, factors, starts)
    alive = packed.constants[packed.alive]
    level = float(np.abs(alive).max(initial=0.0))
    return MixtureForm(readonly(factors), readonly(starts), readonly(offsets), level)


@njit
def _fill(values, weights, constants, factors, starts):
    """Write the factors of features and additional features, and the initial scores."""
    k, d = values.shape
    last = weights.shape[1] - 1
    for c in range(k):
        total = 0.0
        for f in range(d):
            weight, value = weights[c, min(f, last)], np.float64(values[c, f])
            total += weight * value * value
            factors[c, f] = -2.0 * weight * value
        for e in range(last + 1):
            factors[c, d + e] = weights[c, e]
        starts[c] = total - constants[c]
