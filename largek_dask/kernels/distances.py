"""Distances of rows to the nearest centre, the two nearest centres, or all centres.

A common `shift` (the mean of the data) is subtracted from rows and centres, so that the product
form |x|² - 2 x·c + |c|² does not lose digits if the data are far from the origin. With up to
`DIRECT_FEATURES` features, the direct form is used instead: a sum of (x - c)². If the product form
leaves a label in doubt, float64 sums (x - c)² decide (:mod:`~.doubts`). The form depends only on
the number of features, so all results for one set of centres are consistent to the last bit.

Distances are summed feature by feature, with one fused multiply-add per feature. So the result for
a row depends neither on the row's position nor on the vector width of the machine (:mod:`~.dense`).
Ties go to the lowest index. Rows may have any real type and are converted block by block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.errors import ParameterError
from largek_dask.kernels.arguments import check_rows, converted, output, stretches, two_outputs
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
    NUMBERED,
    SOME,
    TWO,
    Tile,
    direct_features,
    select_tile,
)

_DOUBTFUL_SCORES = 1 << 16
"""Maximum number of scores computed at a time for rows in doubt, limited by the cache size."""

Array = NDArray[Any]
Labels = NDArray[np.int32]

PAIRS_WITHOUT = 1 << 27
"""Number of row-centre pairs that are compared with the kernel for two centres before the faster
kernel for one centre is compiled. Comparing takes tenths of a second, compiling over a second."""
_compared: dict[tuple[Any, ...], int] = {}
"""Number of row-centre pairs compared so far, per kernel that is not yet compiled."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedCenters:
    """Centres packed for the kernels by :func:`pack_centers`.

    Pickles contain only ``centers`` and ``shift``. All arrays are read-only.
    """

    centers: Array
    """(k, d) centres."""
    shift: Array
    """(d,) origin that is subtracted from rows and centres, near the mean of the data."""
    cache: PackedCache
    """Cache of the forms of the centres for dense and for sparse rows."""

    @property
    def dense(self) -> panels.DenseForm:
        """Form of the centres for dense rows, created at the first access."""
        return self.cache.get(panels.dense_form, self.shift)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The compute dtype: float32 or float64."""
        return self.centers.dtype

    @property
    def values(self) -> Array:
        """(k, d) array ``centers - shift``, computed at each access."""
        return self.centers - self.shift

    @property
    def n_clusters(self) -> int:
        return int(self.centers.shape[0])

    @property
    def n_features(self) -> int:
        return int(self.centers.shape[1])

    @property
    def direct(self) -> int:
        """Number of features if scores use the direct form (x - c)², otherwise 0."""
        return direct_features(self.n_features)

    @property
    def nbytes(self) -> int:
        """Size in bytes of the arrays that have one row per centre."""
        return 2 * self.centers.nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        return pack_centers, (self.centers, self.shift)


def pack_centers(centers: Array, shift: Array) -> PackedCenters:
    """Prepare (k, d) centres for the kernels; the centres' dtype determines the compute dtype.

    The (d,) array `shift` should be near the mean of the data. Any finite shift gives correct
    results, but distances are more precise with a shift near the mean.
    """
    centers, shift = np.asarray(centers), np.asarray(shift)
    if centers.ndim != 2 or 0 in centers.shape:
        raise ParameterError(
            f"centres must be 2D with at least one row and column; got {centers.shape}."
        )
    d = centers.shape[1]
    if shift.shape != (d,):
        raise ParameterError(f"shift must have the shape ({d},) of a centre; got {shift.shape}.")
    dtype = compute_dtype(centers.dtype)
    centers, shift = _owned(centers, dtype), _owned(shift, dtype)
    return PackedCenters(readonly(centers), readonly(shift), PackedCache(readonly(centers)))


def _owned(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return the array if it owns its data and is read-only, otherwise a copy."""
    settled = array.base is None and not array.flags.writeable and array.flags.c_contiguous
    return array if settled and array.dtype == dtype else np.array(array, dtype, order="C")


def nearest(x: Table, packed: PackedCenters, labels_out: Labels | None = None) -> Labels:
    """Return the (n,) int32 index of the nearest centre of every row; ties go to the lowest index.

    Rows are dense, of any real type, or sparse. Labels are written to `labels_out` if it is given.
    """
    labels = output(labels_out, (check_rows(x, packed.n_features),), np.dtype(np.int32))
    _search(x, packed, (labels,))
    return labels


def nearest_two(x: Table, packed: PackedCenters) -> tuple[Labels, Array, Labels, Array]:
    """Return the nearest and the second nearest centre of every row.

    Returns
    -------
    labels : int32 array (n,)
        As :func:`nearest`.
    first : array (n,)
        Squared distances to the nearest centres, rounded to the compute dtype and never negative;
        :func:`squared_distances` returns more precise distances.
    second_labels : int32 array (n,)
        The second nearest centres (ties go to the lowest index); -1 if there is only one centre.
    second : array (n,)
        Squared distances to the second nearest centres; infinity if there is only one centre.
    """
    out = two_outputs(check_rows(x, packed.n_features), packed.dtype)
    _search(x, packed, out)
    return out


def scores(x: Table, packed: PackedCenters) -> Array:
    """Return (n, k) squared distances of all rows to all centres, in the compute dtype.

    Dense rows use the direct form for any number of features; sparse rows use the direct form only
    if the product form would lose digits. The distance of a row to an equal centre is exactly 0,
    and distances that do not underflow have a small relative error.
    """
    out = np.empty((check_rows(x, packed.n_features), packed.n_clusters), packed.dtype)
    if isinstance(x, SparseBlock):
        sparse.scores_sparse(x, packed.cache.get(sparse.pack_narrow), out)
        sparse_doubts.mend_scores(x, packed.centers, packed.cache, out)
        return out
    form = packed.cache.get(panels.direct_form)
    for rows, block in converted(x, packed.dtype, packed.centers.size):
        _score(block, packed, packed.direct or SOME, form, out[rows])
    return out


def _score(
    block: Array, packed: PackedCenters, direct: int, form: panels.DenseForm, out: Array
) -> None:
    tile = select_tile().for_form(direct)
    run = dense.scores(tile, packed.dtype, direct)
    # The scores of 256 centres stay in the first-level cache until they are written.
    width = tile.vectors * tile.lanes_of(packed.dtype.itemsize)
    blocks = panels.Blocking(panels=1, tiles=1, features=packed.n_features)
    held = (-(-256 * width // packed.n_features), 0)
    space = panels.workspace(tile, packed.dtype, False, packed.n_features, blocks, held)
    run(block, form.offsets, form.factors, form.starts, space, out)


def squared_distances(x: Table, packed: PackedCenters, labels: Labels) -> NDArray[np.float64]:
    """Return the (n,) float64 squared distances of rows to the centres of their labels.

    Rows are converted to the compute dtype; the rest is computed in float64, in an order that
    depends only on the number of features. An IndexError is raised if a label is not the index of a
    centre.
    """
    n = check_rows(x, packed.n_features)
    labels = np.ascontiguousarray(labels, np.int32)
    if labels.shape != (n,):
        raise ParameterError(f"labels must have the shape ({n},); got shape {labels.shape}.")
    if n and not 0 <= labels.min() <= labels.max() < packed.n_clusters:
        raise IndexError(f"labels must be valid indices of the {packed.n_clusters} centres.")
    if isinstance(x, SparseBlock):
        return sparse.squared_distances(x, packed.centers, packed.cache, labels)
    out = np.empty(n)
    run = panels.square_distances(packed.dtype)
    for rows, block in converted(x, packed.dtype):
        run(block, packed.centers, readonly(labels[rows]), out[rows])
    return out


def _search(x: Table, packed: PackedCenters, out: tuple[Array, ...]) -> None:
    """Write labels only, or all four results of :func:`nearest_two`."""
    if isinstance(x, SparseBlock):
        two, n_stored = len(out) > 1, x.stored.stop - x.stored.start
        for rows in stretches(len(x), n_stored // max(1, len(x)) * packed.n_clusters):
            found = sparse_doubts.nearest_two_sparse(x[rows], packed.centers, packed.cache, two)
            for part, values in zip(out, found, strict=False):
                part[rows] = values
        return
    for rows, block in converted(x, packed.dtype, packed.centers.size):
        parts = out if len(block) == len(x) else tuple(part[rows] for part in out)
        doubtful, limits = _run(block, packed, parts)
        if len(doubtful):
            found = decide(block, doubtful, limits, packed)
            with np.errstate(over="ignore"):
                for part, decided in zip(parts, found, strict=False):
                    part[doubtful] = decided


def _run(
    block: Array, packed: PackedCenters, out: tuple[Array, ...]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Search a block of rows; return the rows in doubt and the limits on their scores."""
    n_features, k, two = packed.n_features, packed.n_clusters, len(out) > 1
    mode = TWO if two else BEST if packed.direct else NUMBERED
    if not two and panels.blockwise(len(block), n_features, k):
        mode = BLOCK
    kernel = select_tile(), packed.dtype, mode, n_features
    if packed.direct and not two and not _pays(kernel, len(block) * k):
        # Most fits need the kernel for two centres anyway, and both kernels find the same labels.
        mode = TWO
    if not two:
        none = np.empty(0, packed.dtype)
        second_labels = np.empty(len(block) if mode == TWO else 0, np.int32)
        out = (*out, none, second_labels, none)
    tile, blocks, run = _method(select_tile(), packed.dtype, mode, n_features, k)
    sizes = 0, k if mode == BLOCK else 0
    space = panels.workspace(tile, packed.dtype, mode == TWO, n_features, blocks, sizes)
    form = packed.dense
    rounding = form.numbered if mode == NUMBERED else form.rounding
    room = 0 if packed.direct else len(block)
    doubtful, limits = np.empty(room, np.int64), np.empty(room)
    count: int = run(
        block, packed.centers, form.offsets, form.factors, form.starts, blocks.as_tuple(),
        space, rounding.coarse, rounding.as_tuple(), dense.LITTLE, doubtful,
        limits, *out,
    )  # fmt: skip
    return doubtful[:count], limits[:count]


def _pays(kernel: tuple[Any, ...], pairs: int) -> bool:
    """Return True if enough pairs were compared to make compiling the kernel worthwhile."""
    done = _compared[kernel] = _compared.get(kernel, 0) + pairs
    return done > PAIRS_WITHOUT


def decide(
    x: Array, rows: NDArray[np.int64], limits: NDArray[np.float64], packed: PackedCenters
) -> tuple[Labels, NDArray[np.float64], Labels, NDArray[np.float64]]:
    """Return the two nearest centres of the given rows of x, found by float64 sums (x - c)².

    Centres whose score exceeds the row's entry in the (m,) array `limits` are excluded.
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
        # rounded up
        limit = np.nextafter(limits[some].astype(packed.dtype), packed.dtype.type(np.inf))
        parts = (part[some] for part in out)
        doubts.choose_rows(block, packed.centers, readonly(scored), readonly(limit), *parts)
    return out


@cache
def _method(
    tile: Tile, dtype: np.dtype[Any], mode: int, n_features: int, k: int
) -> tuple[Tile, panels.Blocking, panels.Kernel]:
    direct = direct_features(n_features)
    tile = tile.for_form(direct)
    blocks = panels.blocking(tile, dtype.itemsize, n_features, k)
    divided = blocks.features < n_features
    return tile, blocks, dense.search(tile, dtype, mode, direct, divided)
