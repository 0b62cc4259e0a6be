"""Decrease of the cost from splitting a cluster of dense rows in two."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.dense import panels
from largek_dask.kernels.dense.gathered import convert_rows
from largek_dask.kernels.dense.panels import inner
from largek_dask.kernels.emit import as_readonly, scan, square_lengths
from largek_dask.kernels.jit import njit
from largek_dask.kernels.rows import NATIVE, compute_dtype
from largek_dask.kernels.threads import on_threads
from largek_dask.kernels.tile import SCORES, Micro, Tile, select_tile

_POWER_STEPS = 3
_STEPS = 4
_WORTH = 1.005
"""Minimum ratio of successive gains of 2-means; 2-means stops if the ratio is smaller."""
_PARTS, _LEAST, _MOST = 8, 8, 64
"""Number of parts per thread, and minimum and maximum number of clusters per part."""

Array = NDArray[Any]
Labels = NDArray[np.int32]
Places = NDArray[np.int64]


def split_clusters(
    x: Array,
    order: Labels,
    starts: Places,
    clusters: NDArray[Any],
    centers: Array,
    weight: NDArray[np.float64] | None = None,
    max_rows: int = 256,
    n_threads: int = 1,
) -> tuple[NDArray[np.float64], Array]:
    """Split each given cluster in two; return the decreases of the cost and the new means.

    A plane orthogonal to the direction of largest variance divides the rows in two, and a few steps
    of 2-means move the plane. The direction is found by a few steps of the power method, which
    start from the farthest row.

    Parameters
    ----------
    x : array (n, d)
        Rows of any real type.
    order, starts : int32 (m,), int64 (k + 1,)
        ``order[starts[j] : starts[j + 1]]`` are the rows of cluster j.
    clusters : integer array (c,)
        Clusters to split.
    centers : array (k, d)
    weight : float64 array (n,), optional
        Not negative.
    max_rows : int
        Maximum number of rows of a cluster that are used; these are evenly spaced.
    n_threads : int
        The result does not depend on it.

    Returns
    -------
    gains : float64 array (c,)
        Decrease of the weighted sum of squared distances of all rows of the cluster; 0 for a
        cluster that is not split.
    halves : array (c, 2, d) of the compute dtype
        The two means, or the centre twice for a cluster that is not split.
    """
    dtype, d = compute_dtype(centers.dtype), x.shape[1]
    clusters = np.ascontiguousarray(clusters, np.int64)
    gains = np.zeros(len(clusters))
    halves = np.repeat(centers[clusters][:, None].astype(dtype), 2, axis=1)
    if not (x.dtype in NATIVE and x.flags.c_contiguous):
        x = np.ascontiguousarray(x, dtype)
    given = np.empty(0) if weight is None else np.ascontiguousarray(weight, np.float64)
    tile = select_tile()
    width = tile.vectors * tile.lanes_of(dtype.itemsize)
    n_panels = -(-max_rows // width)
    run = _halve(tile, dtype, x.dtype)

    step = min(_MOST, max(_LEAST, -(-len(clusters) // (_PARTS * n_threads))))

    def work(begin: int) -> None:
        part = slice(begin, begin + step)
        blocks = panels.Blocking(panels=n_panels, tiles=1, features=d)
        space = panels.workspace(tile, dtype, False, d, blocks, (0, 0))
        run(
            readonly(x), readonly(order), readonly(starts), readonly(clusters[part]),
            readonly(given), max_rows, space, np.zeros(-(-d // 8) * 8, dtype),
            np.empty(max_rows, np.int32), np.zeros(max_rows * d + 8, dtype),
            np.empty(max_rows, dtype), np.empty(n_panels * width, dtype), np.empty((4, d), dtype),
            gains[part], halves[part],
        )  # fmt: skip

    on_threads(n_threads, work, range(0, len(clusters), step))
    return gains, halves


@inner
def _add_up(block, share, count, d, sums):
    """Compute the sum of rows, weighted by ``share``."""
    for f in range(d):
        sums[f] = 0
    for p in range(count):
        part = share[p]
        if part != 0:
            for f in range(d):
                sums[f] += part * block[p * d + f]


@inner
def _square(values, at, d):
    square = values[at] * values[at]
    for f in range(1, d):
        square += values[at + f] * values[at + f]
    return square


@cache
def _projection(tile: Tile, dtype: panels.Dtype) -> panels.Kernel:
    lanes = tile.lanes_of(dtype.itemsize)
    width, spec = tile.vectors * lanes, Micro(1, tile.vectors, lanes, SCORES).code

    @inner
    def project(panel, count, d, direction, zeros, space, along):
        _, _, _, values, winners, _, _, _, _ = space
        for at in range(0, count, width):
            scan(
                spec, panel, at * d, direction, d, 0, d, zeros, 0, 1,
                values, winners, 0, along, at, along, -1,
            )  # fmt: skip

    return project


@cache
def _widest(tile: Tile, dtype: panels.Dtype) -> panels.Kernel:
    """Compile a function that approximates the direction of largest variance of rows."""
    real, width = dtype.type, tile.vectors * tile.lanes_of(dtype.itemsize)
    project = _projection(tile, dtype)

    @inner
    def principal(panel, block, count, d, weights, zeros, space, along, direction, sums):
        """Write the direction; return False if all weighted rows equal the centre."""
        norms, far, at = space[2], real(0), -1
        for begin in range(0, count, width):
            square_lengths(width, 1, panel, begin * d, width, d, norms)
            for q in range(min(width, count - begin)):
                square = norms[q] * weights[begin + q]
                if square > far:
                    far, at = square, begin + q
        if at < 0:
            return False
        scale = real(1) / np.sqrt(_square(block, at * d, d))
        for f in range(d):
            direction[f] = block[at * d + f] * scale
        for _ in range(_POWER_STEPS):
            project(panel, count, d, as_readonly(direction), zeros, space, along)
            for p in range(count):
                along[p] *= weights[p]
            _add_up(block, along, count, d, sums)
            square = _square(sums, 0, d)
            if not square > 0:
                return True
            scale = real(1) / np.sqrt(square)
            for f in range(d):
                direction[f] = sums[f] * scale
        return True

    return principal


@cache
def _cut(tile: Tile, dtype: panels.Dtype) -> panels.Kernel:
    """Compile a function that divides rows in two and returns the decrease of the cost."""
    real, project = dtype.type, _projection(tile, dtype)

    @inner
    def cut(panel, block, count, d, weights, zeros, space, along, vectors, halves):
        """Run steps of 2-means; write the best means, relative to the centre; return the gain."""
        direction, sums, everything = vectors[0], vectors[1], vectors[2]
        _add_up(block, weights, count, d, everything)
        total = 0.0
        for p in range(count):
            total += weights[p]
        # First divide at the mean of the rows used, which may differ from the centre.
        limit, gain = real(0), 0.0
        for f in range(d):
            limit += everything[f] * direction[f]
        limit *= real(1.0 / total)
        for _ in range(_STEPS):
            project(panel, count, d, as_readonly(direction), zeros, space, along)
            part = 0.0
            for p in range(count):
                along[p] = weights[p] if along[p] > limit else real(0)
                part += along[p]
            if not (part > 0.0 and part < total):
                break
            _add_up(block, along, count, d, sums)
            one, two = real(1.0 / part), real(1.0 / (total - part))
            gap, lean = 0.0, 0.0
            for f in range(d):
                a, b = sums[f] * one, (everything[f] - sums[f]) * two
                direction[f] = a - b
                gap += np.float64(a - b) * np.float64(a - b)
                lean += np.float64(a - b) * np.float64(a + b)
            new = part * (total - part) / total * gap
            if not new > gain:
                break
            for f in range(d):
                halves[0, f] = sums[f] * one
                halves[1, f] = (everything[f] - sums[f]) * two
            enough = new <= gain * _WORTH
            gain, limit = new, real(0.5 * lean)
            if enough:
                break
        return gain

    return cut


@cache
def _halve(tile: Tile, dtype: panels.Dtype, stored: panels.Dtype) -> panels.Kernel:
    real, width = dtype.type, tile.vectors * tile.lanes_of(dtype.itemsize)
    pack, copy = panels.pack_rows(dtype, width), convert_rows(dtype, stored)
    principal, cut = _widest(tile, dtype), _cut(tile, dtype)
    read, write = panels.real_arrays, panels.outputs

    @njit(
        (
            *read(stored, 2), *read("i4", 1), *read("i8", 1, 1), *read("f8", 1), types.int64,
            panels.workspace_type(dtype), *write(dtype, 1), *write("i4", 1),
            *write(dtype, 1, 1, 1, 2), *write("f8", 1), *write(dtype, 3),
        ),
        refcounts=False,
    )  # fmt: skip
    def run(
        x, order, starts, clusters, weight, max_rows, space, zeros, chosen, block, weights, along,
        vectors, gains, halves,
    ):  # fmt: skip
        n, d = x.shape
        rows, panel, spare = x.reshape(n * d), space[0], space[1]
        nothing = as_readonly(zeros)
        for number in range(clusters.size):
            begin = starts[clusters[number]]
            all_rows = starts[clusters[number] + 1] - begin
            count = min(all_rows, max_rows)
            if count < 2:
                continue
            for p in range(count):
                chosen[p] = order[begin + p * all_rows // count]
            pair = halves[number]
            copy(rows, chosen, count, d, pair[0], block)
            for p in range(count):
                weights[p] = weight[chosen[p]] if weight.size > 0 else real(1)
            for at in range(0, count, width):
                pack(
                    as_readonly(block), at, min(width, count - at), d, nothing, panel, at * d, spare
                )
            if not principal(
                panel, block, count, d, weights, nothing, space, along, vectors[0], vectors[1]
            ):
                continue
            center = vectors[3]
            for f in range(d):
                center[f] = pair[0, f]
            gain = cut(panel, block, count, d, weights, nothing, space, along, vectors, pair)
            gains[number] = gain * all_rows / count
            if gain > 0.0:
                for f in range(d):
                    pair[0, f] += center[f]
                    pair[1, f] += center[f]

    return run
