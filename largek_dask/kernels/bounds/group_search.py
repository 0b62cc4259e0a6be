"""The nearest two centres of single rows within groups of centres."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.dense.panels import Kernel, label_dtype
from largek_dask.kernels.distances import PackedCenters
from largek_dask.kernels.emit import reduce_lanes, scan_six_rows
from largek_dask.kernels.jit import njit

__all__ = ["WIDTH", "GroupColumns", "search_groups"]

WIDTH = 16
"""Centres of a block."""
_NEAR_BYTES = 128 << 10
"""Bytes of centres that rows meet before the next rows do: within the second-level cache."""

Array = NDArray[Any]


class GroupColumns:
    """The centres of each group, transposed in blocks of `WIDTH`, the last one padded.

    Parameters
    ----------
    space : PackedCenters
    offsets, lists : int64 (G + 1,), int32 (k,)
        ``lists[offsets[g] : offsets[g + 1]]`` are the centres of group g, ascending.
    """

    __slots__ = ("blocks", "columns", "direct", "lists", "offsets", "starts")

    def __init__(self, space: PackedCenters, offsets: Array, lists: Array) -> None:
        sizes = np.diff(offsets)
        blocks = np.concatenate([[0], np.cumsum(-(-sizes // WIDTH))]).astype(np.int64)
        places = np.repeat(blocks[:-1] * WIDTH - offsets[:-1], sizes) + np.arange(len(lists))
        factors = np.zeros((blocks[-1] * WIDTH, space.n_features), space.dtype)
        starts = np.full(len(factors), np.inf, space.dtype)
        form = space.dense
        factors[places], starts[places] = form.factors[lists], form.starts[lists]
        columns = factors.reshape(-1, WIDTH, space.n_features).transpose(0, 2, 1)
        self.columns = readonly(np.ascontiguousarray(columns).ravel())
        self.starts, self.blocks = readonly(starts), readonly(blocks)
        self.offsets, self.lists = readonly(offsets), readonly(lists)
        self.direct = space.direct


def search_groups(
    rows: Array, pairs: NDArray[np.int64], ends: NDArray[np.int64], groups: GroupColumns
) -> tuple[NDArray[np.int32], Array, Array]:
    """Find the nearest centre, its score and the second score of rows within groups.

    Parameters
    ----------
    rows : array (m, d)
        In the kernels' space, C-ordered, of the compute dtype.
    pairs, ends : int64 arrays (n_pairs,), (G + 1,)
        The rows ``pairs[ends[g] : ends[g + 1]]`` meet group g.
    groups : GroupColumns

    Returns
    -------
    candidates : int32 array (n_pairs,)
        Ties go to the lowest; the lowest of all if no score is finite.
    first, second : arrays (n_pairs,) of the compute dtype
        Scores with the bits of the dense kernels: squared distances, less the row's squared
        length in the product form. Infinity where there is no second.
    """
    n = len(pairs)
    candidates, first, second = (
        np.full(n, fill, kind)
        for fill, kind in ((0, np.int32), (np.inf, rows.dtype), (np.inf, rows.dtype))
    )
    d = rows.shape[1]
    near = max(1, _NEAR_BYTES // (WIDTH * d * rows.itemsize))
    _search(rows.dtype, int(groups.direct > 0))(
        readonly(rows).reshape(-1), d, pairs, ends, groups.columns, groups.starts, groups.blocks,
        groups.offsets, groups.lists, near, candidates, first, second,
    )  # fmt: skip
    return candidates, first, second


@cache
def _search(dtype: np.dtype[Any], direct: int) -> Kernel:
    labels_of = label_dtype(dtype)

    @njit
    def run(
        rows, d, pairs, ends, columns, starts, blocks, offsets, lists, near, candidates, first,
        second,
    ):  # fmt: skip
        places = np.empty(6, np.int64)
        values, labels = np.empty(96, dtype), np.empty(48, labels_of)
        for g in range(ends.size - 1):
            begin, end = ends[g], ends[g + 1]
            for block in range(blocks[g], blocks[g + 1], near):
                last = min(block + near, blocks[g + 1])
                for p in range(begin, end, 6):
                    values[:] = np.inf
                    labels[:] = 0
                    for q in range(6):
                        # the last row stands in for those that are missing
                        places[q] = pairs[min(p + q, end - 1)] * d
                    for b in range(block, last):
                        scan_six_rows(
                            direct, rows, places, columns, b * WIDTH * d, d, starts,
                            b * WIDTH, values, labels, (b - blocks[g]) * WIDTH,
                        )  # fmt: skip
                    for q in range(min(6, end - p)):
                        reduce_lanes(values, labels, 8 * q)
                        best, runner = values[8 * q], values[8 * q + 48]
                        # of equal scores those of earlier blocks come first
                        if best < first[p + q]:
                            runner = min(runner, first[p + q])
                            first[p + q], candidates[p + q] = best, labels[8 * q]
                        else:
                            runner = best
                        second[p + q] = min(runner, second[p + q])
            for p in range(begin, end):
                candidates[p] = lists[offsets[g] + candidates[p]]

    return run
