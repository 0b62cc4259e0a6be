"""Run k-means inside every cell of a coarse partition, for all cells in one call."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.compiling import check_now
from largek_dask.kernels.dense import panels
from largek_dask.kernels.dense.gathered import convert_rows
from largek_dask.kernels.dense.panels import inner
from largek_dask.kernels.emit import as_readonly, scan
from largek_dask.kernels.jit import njit
from largek_dask.kernels.rows import NATIVE, compute_dtype
from largek_dask.kernels.threads import on_threads
from largek_dask.kernels.tile import BEST, Micro, Tile, direct_features, select_tile

_RUN = 48
"""Number of consecutive rows that a step uses or skips together, a multiple of all panel widths."""
_THINNED = 4
"""Maximum stride of the runs of rows that a step uses."""
_ENOUGH = 25
"""Minimum number of rows per centre in steps that skip rows."""

Array = NDArray[Any]
Labels = NDArray[np.int32]
Places = NDArray[np.int64]


def cell_means(
    x: Array,
    order: Labels,
    starts: Places,
    sizes: Places,
    picks: Places,
    shift: Array,
    n_steps: int = 5,
    weight: NDArray[np.float64] | None = None,
    *,
    n_full: int = 2,
    n_threads: int = 1,
) -> tuple[Array, Labels]:
    """Run k-means separately on the rows of every cell.

    Parameters
    ----------
    x : array (n, d)
        Rows of any real type.
    order, starts : int32 (m,), int64 (cells + 1,)
        ``order[starts[c] : starts[c + 1]]`` are the rows of cell c.
    sizes : int64 array (cells,)
        Number of centres of each cell, k in total; at most its number of rows.
    picks : int64 array (k,)
        Position in `order` of each centre's starting row, within its own cell.
    shift : array (d,)
        Origin of the computation, near the mean of the data.
    n_steps : int
        At least 1.
    weight : float64 array (n,), optional
        Not negative.
    n_full : int
        Number of final steps over all rows, at least 1. Earlier steps skip up to three quarters of
        the rows of cells with many rows per centre, and different rows in each step.
    n_threads : int
        The result does not depend on it.

    Returns
    -------
    centers : array (k, d) of the compute dtype
        Centres in the order of the cells. A centre that has lost all its rows in a full step moves
        to the row of its cell that is farthest from its own centre, unless all distances are 0.
    labels : int32 array (n,)
        Each row's centre before the last update of the means; -1 for rows outside all cells.
    """
    dtype, d, k = compute_dtype(x.dtype), x.shape[1], len(picks)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    centers, labels = np.empty((k, d), dtype), np.full(len(x), -1, np.int32)
    given = np.empty(0) if weight is None else np.ascontiguousarray(weight, np.float64)
    if not (x.dtype in NATIVE and x.flags.c_contiguous):
        x = np.ascontiguousarray(x, dtype)
    direct = direct_features(d)
    tile = select_tile().for_form(direct)
    run = _steps(tile, dtype, x.dtype, direct)
    blocks = panels.Blocking(panels=1, tiles=1, features=d)

    moved, zeros = readonly(shift.astype(dtype)), np.zeros(-(-d // 8) * 8, dtype)

    def work(cells: Places) -> None:
        rows, most = int(np.diff(starts)[cells].max()), int(sizes[cells].max())
        space = panels.workspace(tile, dtype, False, d, blocks, (most, 0))
        # Allocate once, because fresh memory costs a page fault per 4 KB.
        block, found = np.empty(rows * d + 8, dtype), np.empty(rows, np.int32)
        sums, totals = np.empty((most, d), dtype), np.empty(most)
        for c in cells.tolist():
            check_now()
            own = slice(offsets[c], offsets[c + 1])
            run(
                readonly(x), readonly(order[starts[c] : starts[c + 1]]),
                readonly(picks[own] - starts[c]), moved, readonly(zeros), readonly(given), n_steps,
                n_full, space, block, found, sums, totals, offsets[c], centers[own], labels,
            )  # fmt: skip

    on_threads(n_threads, work, _shares(starts, sizes, n_threads))
    return centers, labels


def _shares(starts: Places, sizes: Places, n_threads: int) -> list[Places]:
    """Divide the cells that have centres into parts with about equal numbers of rows."""
    cells = np.flatnonzero(sizes)
    ends = np.cumsum(np.diff(starts)[cells])
    shares = np.searchsorted(ends, ends[-1:] * np.arange(1, n_threads) / n_threads)
    return [part for part in np.split(cells, shares) if len(part)]


@cache
def _prepare(tile: Tile, dtype: panels.Dtype, direct: bool) -> panels.Kernel:
    """Compile a function that computes the factors and initial scores of centres."""
    centres, real = tile.centres, dtype.type

    @inner
    def prepare(means, factors, starts):
        size, d = means.shape
        for j in range((size + centres - 1) // centres * centres):
            square = 0.0
            for f in range(d):
                value = means[j, f] if j < size else real(0)
                square += np.float64(value) * np.float64(value)
                factors[j * d + f] = value if direct else real(-2) * value
            starts[j] = np.inf if j >= size else (0.0 if direct else square)

    return prepare


@cache
def _assign(tile: Tile, dtype: panels.Dtype, direct: int) -> panels.Kernel:
    """Compile a function that adds each row of a panel to the sum of the nearest centre."""
    lanes, centres, real = tile.lanes_of(dtype.itemsize), tile.centres, dtype.type
    width = tile.vectors * lanes
    spec = Micro(centres, tile.vectors, lanes, BEST, direct).code
    pack = panels.pack_rows(dtype, width)

    @inner
    def assign(rows, at, m, d, size, order, weight, zeros, space, block, found, sums, totals):
        panel, spare, _, values, winners, carried, factors, starts, _ = space
        pack(rows, at, m, d, zeros, panel, 0, spare)
        for q in range(width):
            values[q] = np.inf
            winners[q] = 0
        scan(
            spec, panel, 0, as_readonly(factors), d, 0, d, as_readonly(starts), 0,
            (size + centres - 1) // centres, values, winners, 0, carried, 0, carried, -1,
        )  # fmt: skip
        for q in range(m):
            j = winners[q]
            found[at + q] = j
            # Use slices: numba would emit slow gathers for indices that might be negative.
            row, total = block[(at + q) * d :], sums[j]
            if weight.size > 0:
                w = weight[order[at + q]]
                totals[j] += w
                for f in range(d):
                    total[f] += real(w) * row[f]
            else:
                totals[j] += 1.0
                for f in range(d):
                    total[f] += row[f]

    return assign


@cache
def _steps(tile: Tile, dtype: panels.Dtype, stored: panels.Dtype, direct: int) -> panels.Kernel:
    """Compile a kernel that runs all Lloyd steps of one cell."""
    real, width = dtype.type, tile.vectors * tile.lanes_of(dtype.itemsize)
    copy = convert_rows(dtype, stored)
    prepare, assign = _prepare(tile, dtype, direct > 0), _assign(tile, dtype, direct)
    read, write, long = panels.real_arrays, panels.outputs, types.int64

    @njit(
        (
            *read(stored, 2), *read("i4", 1), *read("i8", 1), *read(dtype, 1, 1), *read("f8", 1),
            long, long, panels.workspace_type(dtype), *write(dtype, 1), *write("i4", 1),
            *write(dtype, 2), *write("f8", 1), long, *write(dtype, 2), *write("i4", 1),
        ),
        refcounts=False,
    )  # fmt: skip
    def run(
        x, order, picks, shift, zeros, weight, n_steps, n_full, space, block, found, sums, totals,
        first, means, labels,
    ):  # fmt: skip
        n, d = x.shape
        size, count = means.shape[0], order.size
        _, _, _, _, _, _, factors, starts, _ = space
        copy(x.reshape(n * d), order, count, d, shift, block)
        rows = as_readonly(block)
        for q in range(8):
            block[count * d + q] = 0
        for j in range(size):
            for f in range(d):
                means[j, f] = block[picks[j] * d + f]
        thinned = max(1, min(_THINNED, count // (_ENOUGH * size)))
        for step in range(n_steps):
            every = 1 if step >= n_steps - n_full else thinned
            prepare(means, factors, starts)
            for j in range(size):
                totals[j] = 0.0
                for f in range(d):
                    sums[j, f] = 0
            for begin in range(step % every * _RUN, count, every * _RUN):
                for at in range(begin, min(begin + _RUN, count), width):
                    assign(
                        rows, at, min(width, count - at), d, size, order, weight, zeros, space,
                        block, found, sums, totals,
                    )  # fmt: skip
            for j in range(size):
                if totals[j] > 0.0:
                    share = real(1.0 / totals[j])
                    for f in range(d):
                        sums[j, f] *= share
                    continue
                for f in range(d):
                    sums[j, f] = means[j, f]
                if every == 1:
                    _reseat(rows, order, weight, found, means, sums, j, d)
            for j in range(size):
                for f in range(d):
                    means[j, f] = sums[j, f]
        for p in range(count):
            labels[order[p]] = first + found[p]
        for j in range(size):
            for f in range(d):
                means[j, f] += shift[f]

    return run


@inner
def _reseat(rows, order, weight, found, means, sums, j, d):
    """Move the empty centre j to the row that is farthest from the row's centre.

    The row is assigned to centre j, so that no other empty centre moves to the same row.
    """
    far, at = 0.0, -1
    for p in range(order.size):
        square = 0.0
        for f in range(d):
            gap = np.float64(rows[p * d + f]) - np.float64(means[found[p], f])
            square += gap * gap
        if weight.size > 0:
            square *= weight[order[p]]
        if square > far:
            far, at = square, p
    if at >= 0:
        found[at] = j
        for f in range(d):
            sums[j, f] = means[j, f] = rows[at * d + f]
