"""Squared lengths and movements of centres, and cost terms, summed in feature order.

Kernels process four centres at a time, since each addition to a sum must wait for the previous one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.jit import njit
from largek_dask.kernels.threads import shared, split


def squared_movement(new: NDArray[Any], old: NDArray[Any]) -> float:
    """Return the sum of squared differences between two (k, d) arrays, in float64.

    Stopping rules need the same sum on every machine, so terms are added in order. Sums of numpy
    depend on the vector width.
    """
    return float(
        _squared_movement(
            readonly(np.ascontiguousarray(new).ravel()), readonly(np.ascontiguousarray(old).ravel())
        )
    )


@njit
def _squared_movement(new, old):
    total = 0.0
    for i in range(new.shape[0]):
        difference = np.float64(new[i]) - np.float64(old[i])
        total += difference * difference
    return total


def squared_movements(
    new: NDArray[Any], old: NDArray[Any], n_threads: int = 1
) -> NDArray[np.float64]:
    """Return (k,) squared distances between the rows of two (k, d) arrays, in float64."""
    out = np.zeros(len(new))
    new, old = readonly(np.ascontiguousarray(new)), readonly(np.ascontiguousarray(old))
    step, n_parts = split(n_threads, *new.shape)
    _squared_movements(n_threads, n_parts, step, new, old, out)
    return out


@shared
def _squared_movements(part, thread, step, new, old, out):
    d = new.shape[1]
    end = min((part + 1) * step, new.shape[0])
    for first in range(part * step, end, 4):
        i, last = first, end - 1
        j, p, q = min(first + 1, last), min(first + 2, last), min(first + 3, last)
        a, b, c, e = 0.0, 0.0, 0.0, 0.0
        for f in range(d):
            r, s = np.float64(new[i, f]) - old[i, f], np.float64(new[j, f]) - old[j, f]
            t, u = np.float64(new[p, f]) - old[p, f], np.float64(new[q, f]) - old[q, f]
            a, b, c, e = a + r * r, b + s * s, c + t * t, e + u * u
        out[q], out[p], out[j], out[i] = e, c, b, a


def beyond(
    before: NDArray[Any], after: NDArray[Any], factor: float, n_threads: int = 1
) -> NDArray[Any]:
    """Return ``after + factor * (after - before)``, (k, d), in the type of ``after``."""
    out = np.empty(after.shape, after.dtype)
    step, n_parts = split(n_threads, *out.shape)
    given = readonly(np.ascontiguousarray(before)), readonly(np.ascontiguousarray(after))
    _extrapolate(n_threads, n_parts, step, *given, after.dtype.type(factor), out)
    return out


@shared
def _extrapolate(part, thread, step, before, after, factor, out):
    for i in range(part * step, min((part + 1) * step, out.shape[0])):
        for f in range(out.shape[1]):
            out[i, f] = after[i, f] + (after[i, f] - before[i, f]) * factor


def squared_lengths(centers: NDArray[Any]) -> NDArray[np.float64]:
    """Return (k,) squared lengths of the rows of a C-contiguous (k, d) array, in float64."""
    out = np.empty(len(centers))
    _squared_lengths(readonly(centers), out)
    return out


@njit
def _squared_lengths(centers, out):
    k, d = centers.shape
    for first in range(0, k, 4):
        i, j, p, q = first, min(first + 1, k - 1), min(first + 2, k - 1), min(first + 3, k - 1)
        a, b, c, e = 0.0, 0.0, 0.0, 0.0
        for f in range(d):
            r, s = np.float64(centers[i, f]), np.float64(centers[j, f])
            t, u = np.float64(centers[p, f]), np.float64(centers[q, f])
            a, b, c, e = a + r * r, b + s * s, c + t * t, e + u * u
        out[q], out[p], out[j], out[i] = e, c, b, a


def center_terms(
    centers: NDArray[Any], shift: NDArray[Any], sums: NDArray[Any], n_threads: int = 1
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (k,) row-wise products of ``centers - shift`` and `sums`, and (k,) squared lengths.

    Parameters
    ----------
    centers, sums : (k, d)
    shift : (d,)
    """
    dot, norm = np.empty(len(centers)), np.empty(len(centers))
    centers, shift = readonly(np.ascontiguousarray(centers)), shift.astype(np.float64)
    step, n_parts = split(n_threads, *centers.shape)
    _center_terms(n_threads, n_parts, step, centers, readonly(shift), readonly(sums), dot, norm)
    return dot, norm


@shared
def _center_terms(part, thread, step, centers, shift, sums, dot, norm):
    d = centers.shape[1]
    end = min((part + 1) * step, centers.shape[0])
    for first in range(part * step, end, 4):
        a, last = first, end - 1
        b, c, e = min(first + 1, last), min(first + 2, last), min(first + 3, last)
        dot_a, dot_b, dot_c, dot_e = 0.0, 0.0, 0.0, 0.0
        norm_a, norm_b, norm_c, norm_e = 0.0, 0.0, 0.0, 0.0
        for f in range(d):
            p, q = np.float64(centers[a, f]) - shift[f], np.float64(centers[b, f]) - shift[f]
            r, s = np.float64(centers[c, f]) - shift[f], np.float64(centers[e, f]) - shift[f]
            dot_a, norm_a = dot_a + p * np.float64(sums[a, f]), norm_a + p * p
            dot_b, norm_b = dot_b + q * np.float64(sums[b, f]), norm_b + q * q
            dot_c, norm_c = dot_c + r * np.float64(sums[c, f]), norm_c + r * r
            dot_e, norm_e = dot_e + s * np.float64(sums[e, f]), norm_e + s * s
        dot[e], dot[c], dot[b], dot[a] = dot_e, dot_c, dot_b, dot_a
        norm[e], norm[c], norm[b], norm[a] = norm_e, norm_c, norm_b, norm_a
