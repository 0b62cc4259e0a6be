"""Distances of rows to centres: nearest centre, nearest two, all of them, within given lists.

Rows are moved by a common `shift` (the data's mean) while they are packed, so that
|x|² - 2 x·c + |c|² keeps its digits however far from the origin the data lie; of up to
`DIRECT_FEATURES` features the sum (x - c)² is taken itself. Where the product form leaves a row in
doubt, sums (x - c)² in float64 decide (:mod:`~.doubts`). Which of the two forms
depends on the number of features alone, never on the number of rows or centres: all that is
computed with one set of centres agrees to the bit.

Every (row, centre) pair is summed feature by feature with one fused multiply-add each, so a row's
result depends neither on its place nor on the vector width (:mod:`~.dense`).
Ties go to the lowest index. Rows are taken as they are stored and converted block by block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.errors import ParameterError
from largek_dask.kernels.arguments import (
    check_rows,
    converted,
    no_outputs,
    output,
    two_outputs,
)
from largek_dask.kernels.blocks import SparseBlock, Table, readonly
from largek_dask.kernels.dense import doubts, panels
from largek_dask.kernels.dense import search as dense
from largek_dask.kernels.packed_cache import PackedCache
from largek_dask.kernels.rows import compute_dtype
from largek_dask.kernels.sparse import doubts as sparse_doubts
from largek_dask.kernels.sparse import search as sparse
from largek_dask.kernels.tile import (
    BEST,
    BLOCK,
    DIRECT_FEATURES,
    NUMBERED,
    PAIR,
    SOME,
    TWO,
    Tile,
    direct_features,
    select_tile,
)

__all__ = [
    "DIRECT_FEATURES",
    "PackedCenters",
    "decide",
    "nearest",
    "nearest_in_lists",
    "nearest_two",
    "pack_centers",
    "scores",
    "squared_distances",
]

# scores of rows in doubt that are held at a time, within the second-level cache
_DOUBTFUL_SCORES = 1 << 16

Array = NDArray[Any]
Labels = NDArray[np.int32]

_NO_LIST = np.empty(0, np.int32)

WITHOUT = 1 << 27
"""Pairs of a row and a centre that a process compares before it compiles the kernel that finds the
nearest alone: some tenths of a second of work, compared with more than one for compiling."""
_compared: dict[tuple[Any, ...], int] = {}
"""Pairs compared so far, by the kernel that would have been the right one."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedCenters:
    """Centres packed for the kernels; made by :func:`pack_centers`.

    Pickles as (centers, shift) and is packed again on arrival. All arrays are read-only.
    """

    centers: Array
    """(k, d) centres."""
    shift: Array
    """(d,) origin subtracted from rows and centres, near the data's mean."""
    cache: PackedCache
    """Forms for sparse and for dense rows."""

    @property
    def dense(self) -> panels.DenseForm:
        """Form of the centres for dense rows; sparse ones do without."""
        return self.cache.get(panels.dense_form, self.shift)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The compute dtype: float32 or float64."""
        return self.centers.dtype

    @property
    def values(self) -> Array:
        """(k, d) ``centers - shift``, computed at every access."""
        return self.centers - self.shift

    @property
    def n_clusters(self) -> int:
        """Number of centres."""
        return int(self.centers.shape[0])

    @property
    def n_features(self) -> int:
        """Number of features."""
        return int(self.centers.shape[1])

    @property
    def direct(self) -> int:
        """Number of features if scores are sums of (x - c)² rather than products, else 0."""
        return direct_features(self.n_features)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays of k rows."""
        return 2 * self.centers.nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        return pack_centers, (self.centers, self.shift)


def pack_centers(centers: Array, shift: Array) -> PackedCenters:
    """Prepare centres for the kernels.

    Parameters
    ----------
    centers : array (k, d)
        k ≥ 1, d ≥ 1. Its compute dtype is that of everything computed with the result.
    shift : array (d,)
        Near the data's mean; any finite value gives correct results, a good one exact digits.

    Raises
    ------
    ParameterError
        Shapes do not fit, or there is no centre or no feature.
    """
    centers, shift = np.asarray(centers), np.asarray(shift)
    if centers.ndim != 2 or 0 in centers.shape:
        raise ParameterError(f"centres must be a table of at least one row, got {centers.shape}.")
    d = centers.shape[1]
    if shift.shape != (d,):
        raise ParameterError(f"shift must have shape ({d},) like a centre, got {shift.shape}.")
    dtype = compute_dtype(centers.dtype)
    centers, shift = _nobody_elses(centers, dtype), _nobody_elses(shift, dtype)
    return PackedCenters(readonly(centers), readonly(shift), PackedCache(readonly(centers)))


def _nobody_elses(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return a copy, unless the array owns its data and is read-only, so that it cannot change."""
    settled = array.base is None and not array.flags.writeable and array.flags.c_contiguous
    return array if settled and array.dtype == dtype else np.array(array, dtype, order="C")


def nearest(
    x: Table,
    packed: PackedCenters,
    labels_out: Labels | None = None,
    distances_out: Array | None = None,
) -> Labels:
    """Return the index of the nearest centre of every row; ties go to the lowest.

    Parameters
    ----------
    x : array (n, d)
        Rows of any real type, or sparse ones (:mod:`~.search`).
    packed : PackedCenters
    labels_out : int32 array (n,), optional
        Written to and returned.
    distances_out : array (n,) of the compute dtype, optional
        Receives squared distances with the rounding of the compute dtype (never negative);
        :func:`squared_distances` gives exact ones.

    Returns
    -------
    int32 array (n,)
    """
    n = check_rows(x, packed.n_features)
    labels = output(labels_out, (n,), np.dtype(np.int32))
    values = output(distances_out, (0 if distances_out is None else n,), packed.dtype)
    _search(x, packed, False, (labels, values, *no_outputs(packed.dtype)))
    return labels


def nearest_two(x: Table, packed: PackedCenters) -> tuple[Labels, Array, Labels, Array]:
    """Return the nearest and the second nearest centre of every row.

    Returns
    -------
    labels : int32 array (n,)
        As :func:`nearest`.
    first : array (n,)
        Squared distances to them, in the compute dtype, with its rounding.
    second_labels : int32 array (n,)
        The nearest of the other centres (ties: the lowest index); -1 if there is no other.
    second : array (n,)
        Squared distances to those; infinity if there is no other.
    """
    n = check_rows(x, packed.n_features)
    out = two_outputs(n, packed.dtype)
    _search(x, packed, True, out)
    return out


def nearest_in_lists(
    x: Array,
    packed: PackedCenters,
    row_offsets: NDArray[np.int64],
    list_offsets: NDArray[np.int64],
    lists: Labels,
) -> Labels:
    """Return the nearest centre of every row within the list of its segment.

    Parameters
    ----------
    x : array (n, d)
        Rows, grouped: rows ``row_offsets[s] .. row_offsets[s + 1]`` are segment s.
    packed : PackedCenters
    row_offsets, list_offsets : int64 array (n_segments + 1,)
        `row_offsets` from 0 to n.
    lists : int32 array
        ``lists[list_offsets[s] : list_offsets[s + 1]]`` are the centres of segment s, ascending,
        at least one if the segment has rows.

    Returns
    -------
    int32 array (n,)
        Indices of centres (not of places in the list); scores have the bits of :func:`nearest`.
    """
    n = check_rows(x, packed.n_features)
    row_offsets, list_offsets = (
        np.ascontiguousarray(offsets, np.int64) for offsets in (row_offsets, list_offsets)
    )
    lists = np.ascontiguousarray(lists, np.int32)
    longest = int(np.diff(list_offsets).max(initial=1))
    labels, (_, values) = np.empty(n, np.int32), no_outputs(packed.dtype)
    for rows, block in converted(x, packed.dtype):
        inside = np.clip(row_offsets - rows.start, 0, len(block))
        out = (labels[rows], values, *no_outputs(packed.dtype))
        _run(block, packed, False, (inside, list_offsets, lists), longest, out)
    return labels


def scores(x: Table, packed: PackedCenters, out: Array | None = None) -> Array:
    """Return squared distances of all rows to all centres.

    They are sums (x - c)² for any number of features (for sparse rows if the product form would
    lose digits): a row is at distance 0 from a centre that equals it, and every number that does
    not underflow is right to the rounding of its own size.

    Returns
    -------
    array (n, k) of the compute dtype, with its rounding, never negative
    """
    n = check_rows(x, packed.n_features)
    out = output(out, (n, packed.n_clusters), packed.dtype)
    if isinstance(x, SparseBlock):
        sparse.scores_sparse(x, packed.cache.get(sparse.pack_narrow), out)
        sparse_doubts.mend_scores(x, packed.centers, packed.cache, out)
        return out
    form = packed.cache.get(panels.direct_form)
    for rows, block in converted(x, packed.dtype):
        _score(block, packed, packed.direct or SOME, form, out[rows])
    return out


def _score(
    block: Array, packed: PackedCenters, direct: int, form: panels.DenseForm, out: Array
) -> None:
    tile = select_tile().for_form(direct)
    run = dense.scores(tile, packed.dtype, direct)
    # 256 centres at a time: their scores stay in the first-level cache until they are written
    width = tile.vectors * tile.lanes_of(packed.dtype.itemsize)
    blocks = panels.Blocking(panels=1, tiles=1, features=packed.n_features)
    held = (-(-256 * width // packed.n_features), 0)
    space = panels.workspace(tile, packed.dtype, False, packed.n_features, blocks, held)
    run(block, form.offsets, form.factors, form.starts, space, out)


def squared_distances(
    x: Table, packed: PackedCenters, labels: Labels, out: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """Return the squared distance of every row to the centre of its label, in float64.

    Rows are taken in the compute dtype, differences, squares and sums in float64, in an order
    that depends on the number of features alone.

    Raises
    ------
    IndexError
        A label that names no centre.
    """
    n = check_rows(x, packed.n_features)
    out = output(out, (n,), np.dtype(np.float64))
    labels = np.ascontiguousarray(labels, np.int32)
    if labels.shape != (n,):
        raise ParameterError(f"{n} rows need as many labels, got {labels.shape}.")
    if n and not 0 <= labels.min() <= labels.max() < packed.n_clusters:
        raise IndexError(f"labels must name one of {packed.n_clusters} centres")
    if isinstance(x, SparseBlock):
        return sparse.squared_distances(x, packed.centers, packed.cache, labels, out)
    run = panels.square_distances(packed.dtype)
    for rows, block in converted(x, packed.dtype):
        run(block, packed.centers, readonly(labels[rows]), out[rows])
    return out


def _search(x: Table, packed: PackedCenters, two: bool, out: tuple[Array, ...]) -> None:
    """Search the centres of every row."""
    if isinstance(x, SparseBlock):
        found = sparse_doubts.nearest_two_sparse(x, packed.centers, packed.cache, two)
        for part, values in zip(out, found, strict=True):
            part[:] = values[: len(part)]
        return
    everything = np.array((0, packed.n_clusters))
    for rows, block in converted(x, packed.dtype):
        parts = out if len(block) == len(x) else tuple(part[rows] for part in out)
        lists = (np.array((0, len(block))), everything, _NO_LIST)
        doubtful = _run(block, packed, two, lists, packed.n_clusters, parts)
        if len(doubtful[0]):
            _write(parts, doubtful[0], decide(block, *doubtful, packed), two)


def _run(
    block: Array,
    packed: PackedCenters,
    two: bool,
    lists: tuple[Array, Array, Array],
    longest: int,
    out: tuple[Array, ...],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Write the results for every row of a block; return the rows in doubt, and their limits."""
    n_features = packed.n_features
    mode = TWO if two else BEST if packed.direct else PAIR if len(out[1]) else NUMBERED
    blockwise = not two and panels.blockwise(len(block), n_features, longest)
    mode = BLOCK if blockwise else mode
    kernel = select_tile(), packed.dtype, mode, n_features
    if packed.direct and not two and not _pays(kernel, len(block) * longest):
        # The kernel that finds two exists in most fits. The nearest has the same bits by either.
        mode, two, blockwise = TWO, True, False
        second = np.empty(len(block), np.int32), np.empty(len(out[1]), packed.dtype)
        out = (*out[:2], *second)
    tile, blocks, run = _method(select_tile(), packed.dtype, mode, n_features, longest)
    sizes = (longest if lists[2].size > 0 else 0, longest if blockwise else 0)
    space = panels.workspace(tile, packed.dtype, two, n_features, blocks, sizes)
    form = packed.dense
    rounding = form.numbered if mode == NUMBERED else form.rounding
    room = 0 if packed.direct else len(block)
    doubtful, limits = np.empty(room, np.int64), np.empty(room)
    count: int = run(
        block, packed.centers, form.offsets, form.factors, form.starts, *lists, blocks.as_tuple(),
        space, rounding.coarse, rounding.as_tuple(), dense.LITTLE, doubtful,
        limits, *out,
    )  # fmt: skip
    return doubtful[:count], limits[:count]


def _pays(kernel: tuple[Any, ...], pairs: int) -> bool:
    """Return True if a kernel is worth compiling, by the pairs compared without it so far."""
    done = _compared[kernel] = _compared.get(kernel, 0) + pairs
    return done > WITHOUT


def decide(
    x: Array, rows: NDArray[np.int64], limits: NDArray[np.float64], packed: PackedCenters
) -> tuple[Labels, NDArray[np.float64], Labels, NDArray[np.float64]]:
    """Return the nearest two centres of some rows by sums (x - c)² in float64, ties to the lowest.

    Parameters
    ----------
    x : array (n, d)
        Rows of any real type.
    rows : int64 array (m,)
        Rows to decide.
    limits : float64 array (m,)
        Centres whose score is above a row's limit are excluded.
    packed : PackedCenters

    Returns
    -------
    labels, first, second_labels, second : arrays (m,)
        As :func:`nearest_two`, with squared distances in float64, of the remaining centres.
    """
    m, k = len(rows), packed.n_clusters
    out = np.empty(m, np.int32), np.empty(m), np.empty(m, np.int32), np.empty(m)
    step = max(1, _DOUBTFUL_SCORES // k)
    table = np.empty((min(m, step), k), packed.dtype)
    for begin in range(0, m, step):
        some = slice(begin, begin + step)
        block = readonly(np.ascontiguousarray(x[rows[some]], packed.dtype))
        scored = table[: len(block)]
        _score(block, packed, packed.direct, packed.dense, scored)
        # never below the limit
        limit = np.nextafter(limits[some].astype(packed.dtype), packed.dtype.type(np.inf))
        parts = (part[some] for part in out)
        doubts.choose_rows(block, packed.centers, readonly(scored), readonly(limit), *parts)
    return out


def _write(
    out: tuple[Array, ...], rows: NDArray[np.int64], found: tuple[Array, ...], two: bool
) -> None:
    """Write decided rows into the output."""
    for i in range(4 if two else 2):
        if len(out[i]):
            with np.errstate(over="ignore"):
                out[i][rows] = found[i]


@cache
def _method(
    tile: Tile, dtype: np.dtype[Any], mode: int, n_features: int, longest: int
) -> tuple[Tile, panels.Blocking, panels.Kernel]:
    """Return tile, blocking and kernel, cached: a chunk of 1 MB is too short to find them again."""
    direct = direct_features(n_features)
    tile = tile.for_form(direct)
    blocks = panels.blocking(tile, dtype.itemsize, n_features, longest)
    divided = blocks.features < n_features
    return tile, blocks, dense.search(tile, dtype, mode, direct, divided)
