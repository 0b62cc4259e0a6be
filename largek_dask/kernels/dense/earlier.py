"""Find the most similar earlier row, by cosine similarity, of each row of an ordered list.

The similarity of rows x and z is ``min(x·z / sqrt(x·x z·z), 1)``. The products are summed in
float64 in a fixed order, so the similarity depends only on the two rows. Equal rows have a
similarity of exactly 1.

Most pairs of rows are excluded by float32 products of normalised rows, and similarities are only
computed for the remaining pairs. Let u be the unit roundoff, and let γ_n be ``n u / (1 - n u)``.
The relative error of a normalised row is at most u. The error of a product of d terms is at most
``γ_d |x| |z|``, with or without fused multiply-adds (Higham 2002, lemma 3.1). Therefore, products
and similarities differ by less than ``error = γ_{d+4} + (d + 8) 2^-50``; the second term covers
underflow and the float64 sums. A row with a product below ``b - error`` has a similarity below b.
If p is the largest product, the largest similarity is at least ``p - error``, so rows with products
below ``p - 2 error`` can be excluded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.dense.panels import (
    PAD,
    Blocking,
    Dtype,
    Kernel,
    blocking,
    inner,
    outputs,
    pack_rows,
    real_arrays,
    workspace,
    workspace_type,
)
from largek_dask.kernels.emit import row_product, scan
from largek_dask.kernels.jit import njit
from largek_dask.kernels.rows import compute_dtype, normalize_rows
from largek_dask.kernels.tile import SCORES, Micro, Tile, select_tile

SINGLE = np.dtype(np.float32)
NONE = -1
"""Value of `found` for rows without earlier rows."""
LARGEST = 200
"""Maximum magnitude of binary exponents in float64 rows; rows beyond it are rescaled."""


@dataclass(frozen=True, slots=True, eq=False)
class OrderedRows:
    """Consecutive rows of an ordered list, prepared for :func:`search_earlier`."""

    x: NDArray[Any]
    """(m, d) rows in the compute dtype."""
    units: NDArray[np.float32]
    """(p, d) normalised rows, padded with rows of zeros."""
    squares: NDArray[np.float64]
    """(m,) squared norms of the rows."""
    numbers: NDArray[np.int64]
    """(m,) table index of each row; the lowest index wins ties."""
    found: NDArray[np.int64]
    """(m,) table index of the most similar earlier row so far, or `NONE`."""
    similarity: NDArray[np.float64]
    """(m,) similarity to the most similar earlier row so far; -2 without earlier rows."""


def order_rows(x: NDArray[Any], numbers: NDArray[np.int64]) -> OrderedRows:
    """Prepare (m, d) finite rows and their (m,) table indices for the search."""
    x = np.ascontiguousarray(x, compute_dtype(x.dtype))
    if x.dtype == np.float64:
        # Scaling by powers of two prevents overflow and does not change similarities.
        exponents = np.frexp(np.abs(x).max(axis=1, initial=0))[1]
        exponents[np.abs(exponents) <= LARGEST] = 0
        if exponents.any():
            x = np.ldexp(x, -exponents[:, None])
    units = np.zeros((len(x) + -len(x) % PAD, x.shape[1]), SINGLE)
    units[: len(x)] = normalize_rows(x)
    squares = np.empty(len(x))
    _square_rows(readonly(x), squares)
    found, similarity = np.full(len(x), NONE, np.int64), np.full(len(x), -2.0)
    return OrderedRows(x, units, squares, numbers, found, similarity)


def search_earlier(
    rows: OrderedRows, others: OrderedRows, offset: int, begin: int = 0, end: int | None = None
) -> None:
    """Compare rows ``begin`` to ``end`` with ``others``; update `found` and `similarity`.

    Row i is compared with the first ``i + offset`` rows of ``others``. Of equally similar rows, the
    row with the lowest table index is chosen. The results do not depend on the order of calls.
    """
    d, n, at = rows.x.shape[1], len(others.x), slice(begin, end)
    tile = select_tile()
    sizes = blocking(tile, SINGLE.itemsize, d, n)
    blocks = Blocking(sizes.panels, sizes.tiles, d)
    starts, shift = np.zeros(len(others.units), SINGLE), np.zeros(d + 2 * PAD, SINGLE)
    room = -(-sizes.tiles * tile.centres * tile.vectors * tile.lanes // d)
    space = workspace(tile, SINGLE, False, d, blocks, (room, 0))
    _search(tile, rows.x.dtype)(
        rows.x[at], rows.units[at], rows.squares[at], others.x, others.units, others.squares,
        others.numbers, offset + begin, rounding(d), blocks.panels, blocks.tiles, starts, shift,
        space, rows.found[at], rows.similarity[at],
    )  # fmt: skip


def rounding(n_features: int) -> float:
    """Return ``error`` as defined in the module's docstring; infinity if d is too large."""
    share = (n_features + 4) * float(np.finfo(SINGLE).eps) / 2
    return share / (1 - share) + (n_features + 8) * 2.0**-50 if share < 0.5 else np.inf


@njit
def _square_rows(x, out):
    n, d = x.shape
    flat = x.reshape(n * d)
    for i in range(n):
        out[i] = row_product(flat, i * d, flat, i * d, d)


@cache
def _search(tile: Tile, dtype: Dtype) -> Kernel:
    """Compile the kernel of :func:`search_earlier`."""
    width, centres = tile.vectors * tile.lanes, tile.centres
    spec = Micro(centres, tile.vectors, tile.lanes, SCORES).code
    pack, meet, read = pack_rows(SINGLE, width), _meet(width), real_arrays

    @njit(
        (
            *read(dtype, 2), *read(SINGLE, 2), *read("f8", 1),
            *read(dtype, 2), *read(SINGLE, 2), *read("f8", 1), *read("i8", 1),
            types.int64, types.float64, types.int64, types.int64, *read(SINGLE, 1, 1),
            workspace_type(SINGLE), *outputs("i8", 1), *outputs("f8", 1),
        ),
        refcounts=False,
    )  # fmt: skip
    def run(
        x, units, squares, others, other_units, other_squares, numbers, offset, error, n_panels,
        n_tiles, starts, shift, space, found, similarity,
    ):  # fmt: skip
        (m, d), n = x.shape, others.shape[0]
        rows, flat = x.reshape(m * d), others.reshape(n * d)
        unit_rows = units.reshape(units.size)
        factors = other_units.reshape(other_units.size)
        panels, spare, _, values, labels, _, products, _, _ = space
        step = n_tiles * centres
        for block in range(0, m, n_panels * width):
            end = min(block + n_panels * width, m)
            for p in range(block, end, width):
                count = min(width, end - p)
                pack(unit_rows, p, count, d, shift, panels, (p - block) * d, spare)
            for first in range(0, min(n, end - 1 + offset), step):
                length = min(step, n - first)
                for p in range(block, end, width):
                    count = min(width, end - p)
                    scan(
                        spec, panels, (p - block) * d, factors, d, 0, d, starts, first,
                        (length + centres - 1) // centres, values, labels, 0, products, 0,
                        unit_rows, -1,
                    )  # fmt: skip
                    meet(
                        products, p, count, first, length, rows, squares, flat, other_squares,
                        numbers, d, offset, error, values, found, similarity,
                    )  # fmt: skip

    return run


@cache
def _meet(width: int) -> Kernel:
    """Compile the update of a panel of rows from products with a block of other rows."""

    @inner
    def meet(
        products, p, count, first, length, rows, squares, flat, other_squares, numbers, d, offset,
        error, largest, found, similarity,
    ):  # fmt: skip
        for q in range(width):
            largest[q] = -np.inf
        # Number of rows in the block that precede all rows of the panel; usually the whole block.
        common = max(min(length, p + offset - first), 0)
        for j in range(common):
            block = products[j * width : (j + 1) * width]
            for q in range(width):
                largest[q] = max(largest[q], block[q])
        for q in range(count):
            i, stop = p + q, min(length, p + q + offset - first)
            top = np.float64(largest[q])
            for j in range(common, stop):
                top = max(top, np.float64(products[j * width + q]))
            best = similarity[i]
            if stop <= 0 or top < best - error:
                continue
            limit = max(best, top - error) - error
            for j in range(stop):
                if np.float64(products[j * width + q]) < limit:
                    continue
                c = first + j
                number = numbers[c]
                if best == 1.0 and number > found[i]:
                    continue  # Another similarity of 1 would lose the tie.
                both = np.sqrt(squares[i] * other_squares[c])
                own = min(row_product(rows, i * d, flat, c * d, d) / both, 1.0)
                if own > best or (own == best and number < found[i]):
                    best, found[i] = own, number
                    limit = max(limit, best - error)
            similarity[i] = best

    return meet
