"""Exponentials and logarithms that are bit-identical on every machine.

Results of numpy and the C library differ in the last bit between processors and versions. The
functions of this module use only additions, multiplications and divisions of float64, in a fixed
order and without fused operations, so IEEE 754 determines every bit. There are no branches, so
loops over these functions are vectorized.

Errors are below 1 ulp (units in the last place), and at most 0.9 ulp in all tests.

Sources: W. J. Cody and W. Waite, "Software manual for the elementary functions" (1980), for the
range reduction; Sun Microsystems' fdlibm (1993), for the polynomial of the logarithm.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.exact.numbers import MAGIC, MAGIC_BITS
from largek_dask.kernels.jit import njit

_LEAST = -708.396418532264  # exp of a smaller number is subnormal
_LOG2_E = 1.4426950408889634
# log 2 = high + low; products of the high part with integers up to 2^20 are exact.
_LOG_2_HIGH, _LOG_2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_SUBNORMAL, _LIFT = 2.0**-1022, 2.0**54
_ROOT_HALF_BITS = 0x3FE6A09E667F3BCD  # of sqrt(1/2)
# log((1 + s) / (1 - s)) = 2s + s (_L1 s^2 + _L2 s^4 + ...), error below 2^-58 if |s| < 0.1716
_L1, _L2, _L3 = 6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01
_L4, _L5, _L6 = 2.222219843214978396e-01, 1.818357216161805012e-01, 1.531383769920937332e-01
_L7 = 1.479819860511658591e-01


@njit
def exp_of(t):
    """Return ``exp(t)`` for t <= 0, or 0 if the result would be subnormal."""
    s = _LEAST if t < _LEAST else t
    z = s * _LOG2_E + MAGIC
    n = z - MAGIC
    # t = n log 2 + r + rest with |r| <= log(2) / 2
    high, low = s - n * _LOG_2_HIGH, n * _LOG_2_LOW
    r = high - low
    rest = (high - r) - low
    r2 = r * r
    # Taylor series of (exp(r) - 1 - r) / r^2; separating even and odd powers halves the latency.
    even = 1 / 3628800 + r2 * (1 / 479001600)
    even = 0.5 + r2 * (1 / 24 + r2 * (1 / 720 + r2 * (1 / 40320 + r2 * even)))
    odd = 1 / 39916800 + r2 * (1 / 6227020800)
    odd = 1 / 6 + r2 * (1 / 120 + r2 * (1 / 5040 + r2 * (1 / 362880 + r2 * odd)))
    p = 1.0 + (r + (rest + r2 * (even + r * odd)))
    power = np.int64((np.float64(z).view(np.int64) - MAGIC_BITS + 1023) << 52).view(np.float64)
    return 0.0 if t < _LEAST else p * power


@njit
def log_of(v):
    """Return the natural logarithm, which is -inf for 0 and NaN for negative numbers."""
    size = abs(v)
    tiny = size < _SUBNORMAL
    # |v| = 2^n (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2)
    above = np.float64(size * _LIFT if tiny else size).view(np.int64) - _ROOT_HALF_BITS
    power = (above >> 52) - (54 if tiny else 0)
    n = np.int64(power + MAGIC_BITS).view(np.float64) - MAGIC
    f = np.int64((above & 0xFFFFFFFFFFFFF) + _ROOT_HALF_BITS).view(np.float64) - 1.0
    s = f / (2.0 + f)
    s2 = s * s
    s4 = s2 * s2
    even = s4 * (_L2 + s4 * (_L4 + s4 * _L6))
    odd = s2 * (_L1 + s4 * (_L3 + s4 * (_L5 + s4 * _L7)))
    half = 0.5 * f * f
    value: Any = n * _LOG_2_HIGH - ((half - (s * (half + (even + odd)) + n * _LOG_2_LOW)) - f)
    value = value if v < np.inf else v
    value = value if v > 0.0 else np.nan
    return -np.inf if v == 0.0 else value


def exp(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return :func:`exp_of` of each number in an array of any shape."""
    out = np.empty(values.shape)
    _exp(readonly(np.asarray(values, np.float64, order="C").reshape(-1)), out.reshape(-1))
    return out


def log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return :func:`log_of` of each number in an array of any shape."""
    out = np.empty(values.shape)
    _log(readonly(np.asarray(values, np.float64, order="C").reshape(-1)), out.reshape(-1))
    return out


@njit
def _exp(values, out):
    for i in range(values.shape[0]):
        out[i] = exp_of(values[i])


@njit
def _log(values, out):
    for i in range(values.shape[0]):
        out[i] = log_of(values[i])
