"""Projections and orthonormal bases that are bit-identical on every processor.

An inner product uses one fused multiply-add per feature in a fixed order, like scores of rows and
centres (:mod:`~.dense.search`). So results depend neither on the position of a row nor on the
vector width. Libraries whose results depend on the processor are not used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.errors import ParameterError
from largek_dask.kernels.arguments import check_rows, converted
from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.dense import panels
from largek_dask.kernels.dense import search as dense
from largek_dask.kernels.jit import njit
from largek_dask.kernels.rows import compute_dtype
from largek_dask.kernels.threads import on_slices
from largek_dask.kernels.tile import select_tile

Array = NDArray[Any]

_LANES = 8
"""Number of partial sums of an inner product."""
_DEPENDENT = 2.0**-26
"""A vector is treated as linearly dependent on earlier vectors if orthogonalization shortens it to
at most this fraction of its length."""


@dataclass(frozen=True, slots=True, eq=False)
class Directions:
    """Directions packed for the kernel."""

    vectors: Array
    """(m, d) read-only directions in the compute dtype."""
    origin: Array
    """(d,) read-only origin near the mean of the rows, in the compute dtype."""
    _padded: Array = field(repr=False)
    _offsets: Array = field(repr=False)

    @classmethod
    def of(cls, vectors: Array, origin: Array) -> Directions:
        """Pack (m, d) vectors, m >= 1, for projecting rows relative to a (d,) origin."""
        vectors, origin = np.asarray(vectors), np.asarray(origin)
        if vectors.ndim != 2 or 0 in vectors.shape or origin.shape != vectors.shape[1:]:
            raise ParameterError(
                f"directions and origin must have shapes (m, d) and (d,), got {vectors.shape} and "
                f"{origin.shape}."
            )
        dtype = compute_dtype(vectors.dtype)
        (m, d), origin = vectors.shape, origin.astype(dtype)
        padded = np.zeros((-(-m // panels.PAD) * panels.PAD, d), dtype)
        padded[:m] = vectors
        offsets = np.zeros(-(-d // 8) * 8, dtype)
        offsets[:d] = origin
        arrays = (padded[:m].copy(), origin, padded, offsets)
        return cls(*(readonly(array) for array in arrays))

    def same(self, other: Directions) -> bool:
        """Return True if `other` has the same vectors and the same origin."""
        return len(self.vectors) == len(other.vectors) and self.extends(other)

    def extends(self, other: Directions) -> bool:
        """Return True if these directions begin with those of `other` and have the same origin."""
        first = self.vectors[: len(other.vectors)]
        same_origin = np.array_equal(self.origin, other.origin)
        return same_origin and np.array_equal(first, other.vectors)

    def beyond(self, m: int) -> Directions:
        """Return the directions after the first m; at least one must remain."""
        return Directions.of(self.vectors[m:], self.origin)

    def __reduce__(self) -> tuple[Any, ...]:
        return Directions.of, (self.vectors, self.origin)


def project(x: Array, directions: Directions, n_threads: int = 1) -> Array:
    """Return the (n, m) projections ``(x - origin) @ vectors.T`` in the compute dtype.

    Rows `x` (n, d) may have any real type.
    """
    (m, d), dtype = directions.vectors.shape, directions.vectors.dtype
    n = check_rows(x, d)
    out: Array = np.empty((n, m), dtype)
    tile = select_tile()
    run, starts = dense.scores(tile, dtype, 0), np.zeros(len(directions._padded), dtype)
    # Process 256 directions at a time, so that products stay in the first-level cache.
    width, blocks = tile.vectors * tile.lanes_of(dtype.itemsize), panels.Blocking(1, 1, d)

    def see(at: slice) -> None:
        space = panels.workspace(tile, dtype, False, d, blocks, (-(-256 * width // d), 0))
        seen = out[at]
        for rows, block in converted(x[at], dtype):
            run(block, directions._offsets, directions._padded, readonly(starts), space, seen[rows])

    on_slices(n_threads, see, n, d)
    return out


def orthonormal(vectors: Array) -> NDArray[np.float64]:
    """Return an orthonormal basis (r, d) of the span of (m, d) vectors.

    The modified Gram-Schmidt process is applied twice per vector, so that inner products of the
    basis are at most about 1e-15 (G. H. Golub and C. F. Van Loan, "Matrix computations", 4th
    edition, 2013, section 5.2.8). Vectors are omitted if they are not finite or depend linearly on
    earlier vectors.
    """
    work = np.array(vectors, np.float64, order="C")
    # Scale by powers of two, which is exact, so that squares neither overflow nor underflow.
    largest = np.abs(work).max(axis=1, initial=0.0)
    usable = np.isfinite(largest) & (largest > 0)
    work = np.ldexp(work[usable], -np.frexp(largest[usable])[1][:, None])
    basis: NDArray[np.float64] = work[: int(_orthonormalize(work))].copy()
    return basis


@njit
def _orthonormalize(work):
    """Write an orthonormal basis to the first rows, and return the number of basis vectors."""
    m, d = work.shape
    parts = np.empty(_LANES)
    found = 0
    for j in range(m):
        before = np.sqrt(_product(work, j, j, parts))
        for _ in range(2):
            for i in range(found):
                along = _product(work, i, j, parts)
                for f in range(d):
                    work[j, f] -= along * work[i, f]
        left = np.sqrt(_product(work, j, j, parts))
        if left > _DEPENDENT * before:
            for f in range(d):
                work[found, f] = work[j, f] / left
            found += 1
    return found


@njit
def _product(work, i, j, parts):
    """Return the inner product of two rows, using independent partial sums."""
    d = work.shape[1]
    whole = d // _LANES * _LANES
    parts[:] = 0.0
    for begin in range(0, whole, _LANES):
        for q in range(_LANES):
            parts[q] += work[i, begin + q] * work[j, begin + q]
    for f in range(whole, d):
        parts[f - whole] += work[i, f] * work[j, f]
    total = 0.0
    for q in range(_LANES):
        total += parts[q]
    return total
