"""Truncated search: a row meets only the centres listed for its cluster.

A row keeps its label and two distances: `upper` to its own centre, `lower` to
the nearest other centre that it could have met. While ``upper < lower`` no centre of its list
is nearer, and it is passed over. When centres move, :func:`decay` widens the two; it
is the truncated form of Hamerly's bounds (SDM 2010), valid within the list only.

Results for a row depend on the row, its state and the broadcast (centres, lists, drifts)
alone: a pass may be cut anywhere, and shared by any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import get_ident
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.dense import gathered, panels
from largek_dask.kernels.distances import PackedCenters, nearest_two
from largek_dask.kernels.jit import njit
from largek_dask.kernels.rows import NATIVE
from largek_dask.kernels.threads import on_threads
from largek_dask.kernels.tile import select_tile

__all__ = [
    "ListSearch",
    "Lists",
    "decay",
    "loss_scale",
    "order_by_label",
    "removal_losses",
    "search_all",
    "search_lists",
]

Array = NDArray[Any]
Labels = NDArray[np.int32]
Places = NDArray[np.int64]

_CONVERTED_VALUES = 1 << 16
_SORTED = 1 << 12
_SHARED = 1 << 18
"""Minimum rows that a thread sorts: waking it takes longer than sorting fewer."""
_NO_WEIGHT = _NO_BOUND = readonly(np.empty(0))
_FEW_ROWS = 1 << 16
"""Up to this many rows numpy orders by label within some milliseconds."""


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """Centres that each group of rows meets."""

    offsets: Places
    """(g + 1,) rows of group j meet ``centers[offsets[j] : offsets[j + 1]]``; none: they stay."""
    centers: Labels
    """Ascending within each list."""

    @classmethod
    def of(cls, table: Labels) -> Lists:
        """Take the rows of a (g, m) table of distinct centres as lists."""
        g, m = table.shape
        flat = np.sort(table, axis=1).reshape(-1).astype(np.int32, copy=False)
        return cls(readonly(np.arange(g + 1, dtype=np.int64) * m), readonly(flat))

    def of_group(self, j: int) -> Labels:
        """Return the list of group j."""
        return self.centers[self.offsets[j] : self.offsets[j + 1]]

    @property
    def n_groups(self) -> int:
        """Number of lists."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Places:
        """(g,) number of centres of each list."""
        return np.diff(self.offsets)


def order_by_label(
    labels: Labels,
    k: int,
    upper: Array | None = None,
    lower: Array | None = None,
    n_threads: int = 1,
) -> tuple[Labels, Places]:
    """Sort rows by label.

    Parameters
    ----------
    labels : int32 array (n,)
        0 to k - 1; rows with -1 are left out.
    k : int
    upper, lower : arrays (n,), optional
        Rows with ``upper < lower`` are left out too: no listed centre is nearer.
    n_threads : int
        Threads that share the rows; the result is the same.

    Returns
    -------
    order : int32 array
        Row numbers, ascending within a label.
    starts : int64 array (k + 1,)
        ``order[starts[j] : starts[j + 1]]`` are the rows with label j.
    """
    n = len(labels)
    bounded = upper is not None and lower is not None
    if not bounded and n <= _FEW_ROWS:
        return _order_few(labels, k)
    above, below = (upper, lower) if bounded else (_NO_BOUND, _NO_BOUND)
    assert above is not None
    assert below is not None
    step = max(_SHARED, -(-n // max(1, n_threads)))
    begins = range(0, max(n, 1), step)
    # rows per label in each share; then the start of each
    places = np.zeros((len(begins), k), np.int64)
    order = np.empty(0, np.int32)

    def sort(begin: int, counts: bool) -> None:
        _sort_loose(
            readonly(labels), readonly(above), readonly(below), begin, min(begin + step, n),
            bounded, np.empty(_SORTED, np.uint8), np.empty(_SORTED + 1, np.int32), counts,
            places[begin // step], order,
        )  # fmt: skip

    on_threads(n_threads, lambda begin: sort(begin, True), begins)
    starts = np.zeros(k + 1, np.int64)
    np.cumsum(places.sum(axis=0), out=starts[1:])
    places[:] = np.cumsum(places, axis=0) - places + starts[:-1]
    order = np.empty(starts[k], np.int32)
    on_threads(n_threads, lambda begin: sort(begin, False), begins)
    return order, starts


def _order_few(labels: Labels, k: int) -> tuple[Labels, Places]:
    """Do the same for a few rows, by numpy: otherwise a kernel would be compiled for them alone."""
    rows = np.flatnonzero(labels >= 0)
    own = labels[rows]
    order = rows[np.argsort(own, kind="stable")].astype(np.int32)
    starts = np.zeros(k + 1, np.int64)
    np.cumsum(np.bincount(own, minlength=k), out=starts[1:])
    return order, starts


@njit
def _sort_loose(labels, upper, lower, first, last, bounded, loose, chosen, counts, places, order):
    """Count the searched rows of each label, or put them where `places` says."""
    if not bounded:
        for i in range(first, last):
            j = labels[i]
            if j >= 0:
                if not counts:
                    order[places[j]] = i
                places[j] += 1
        return
    for begin in range(first, last, _SORTED):
        end = min(begin + _SORTED, last)
        own, above, below = labels[begin:end], upper[begin:end], lower[begin:end]
        # two loops without a branch, which would be unpredictable; the first of them in vectors
        for i in range(end - begin):
            loose[i] = (own[i] >= 0) & (not above[i] < below[i])
        found = 0
        for i in range(end - begin):
            chosen[found] = begin + i
            found += loose[i]
        for p in range(found):
            j = labels[chosen[p]]
            if not counts:
                order[places[j]] = chosen[p]
            places[j] += 1


def search_lists(
    x: Array,
    order: Labels,
    starts: Places,
    lists: Lists,
    packed: PackedCenters,
    labels: Labels,
    upper: Array,
    lower: Array,
    *,
    begin: int = 0,
    end: int | None = None,
    keep: bool = False,
) -> tuple[int, int]:
    """Update labels and distances of grouped rows, in place.

    Parameters
    ----------
    x : array (n, d)
        Rows of any real type.
    order, starts : int32 (m,), int64 (g + 1,)
        ``order[starts[j] : starts[j + 1]]`` are the rows of group j, of clusters usually.
    lists : Lists
        Centres for the rows of each group; a group with an empty list is left as it is.
    packed : PackedCenters
    labels, upper, lower : int32 (n,), compute dtype (n,), (n,)
        State of rows; written for those that met their list: the nearest centre (ties: the lowest),
        the distances to it and to the second nearest of the list (infinity if there is none).
    begin, end : int
        Only groups ``begin .. end``: threads share a pass by groups.
    keep : bool
        Keep `lower` if the label changes. It is the distance to the best other centre of the
        searched list, which is not the new cluster's list: without `keep` it is set to 0.

    Returns
    -------
    n_moved : int
        Rows whose label changed.
    n_evaluated : int
        Distances computed: rows times the length of their list.
    """
    stop = len(starts) - 1 if end is None else end
    search = ListSearch(x, order, starts, lists, packed, (labels, upper, lower), keep=keep)
    return search.groups(begin, stop)


class ListSearch:
    """:func:`search_lists` for some groups at a time, by any number of threads.

    As much as possible is prepared in advance: after a kernel has filled the caches, the same lines
    of Python take several times as long.
    """

    __slots__ = ("_converted", "_fixed", "_keep", "_largest", "_packed", "_run", "_scratch",
                 "_sizes", "_state", "_tile")  # fmt: skip

    def __init__(
        self,
        x: Array,
        order: Labels,
        starts: Places,
        lists: Lists,
        packed: PackedCenters,
        state: tuple[Labels, Array, Array],
        *,
        keep: bool = False,
    ) -> None:
        self._packed, self._state, self._keep = packed, state, keep
        self._converted: Callable[[range], tuple[int, int]] | None = None
        self._largest = int(np.diff(starts).max(initial=0))
        if not (x.dtype in NATIVE and x.flags.c_contiguous):
            self._converted = partial(
                _search_converted, x, order, starts, lists, packed, state, keep=keep
            )
            return
        form = packed.dense
        self._tile = tile = select_tile().for_form(packed.direct)
        self._run = gathered.search_gathered(tile, packed.dtype, x.dtype, packed.direct)
        self._fixed = (
            readonly(x), packed.centers, readonly(order), readonly(starts),
            readonly(lists.offsets), readonly(lists.centers), form.offsets, form.factors,
            form.starts,
        )  # fmt: skip
        self._sizes = lists.n_groups, int(lists.lengths.max(initial=1))
        self._scratch: dict[int, tuple[Any, ...]] = {}

    def groups(self, begin: int, end: int) -> tuple[int, int]:
        """Search groups ``begin .. end``; return the results of :func:`search_lists`."""
        if self._largest == 0:
            return 0, 0
        if self._converted is not None:
            return self._converted(range(begin, end))
        scratch = self._scratch.get(get_ident())
        if scratch is None:
            scratch = self._scratch[get_ident()] = self._new_scratch()
        counts: tuple[int, int] = self._run(
            *self._fixed, begin, end, self._keep, *scratch, *self._state
        )
        return counts

    def _new_scratch(self) -> tuple[Any, ...]:
        """Return arrays for one thread."""
        packed, tile, (n_groups, longest) = self._packed, self._tile, self._sizes
        blocks = panels.Blocking(panels=1, tiles=1, features=packed.n_features)
        space = panels.workspace(tile, packed.dtype, True, packed.n_features, blocks, (longest, 0))
        return space, *gathered.scratch(tile, packed.dtype, self._largest, n_groups)


def _search_converted(
    x: Array,
    order: Labels,
    starts: Places,
    lists: Lists,
    packed: PackedCenters,
    state: tuple[Labels, Array, Array],
    groups: range,
    keep: bool,
) -> tuple[int, int]:
    """Run :func:`search_lists` on rows that the kernel does not take, by blocks of groups."""
    step = max(1, _CONVERTED_VALUES // packed.n_features)
    n_moved = n_evaluated = 0
    for j in groups:
        own = Lists(lists.offsets[j : j + 2] - lists.offsets[j], lists.of_group(j))
        for begin in range(starts[j], starts[j + 1], step):
            rows = order[begin : min(begin + step, starts[j + 1])]
            block = np.ascontiguousarray(x[rows], packed.dtype)
            parts = tuple(part[rows] for part in state)
            everyone = np.arange(len(rows), dtype=np.int32), np.array([0, len(rows)])
            counts = search_lists(block, *everyone, own, packed, *parts, keep=keep)
            n_moved, n_evaluated = n_moved + counts[0], n_evaluated + counts[1]
            for part, values in zip(state, parts, strict=True):
                part[rows] = values
    return n_moved, n_evaluated


def search_all(
    x: Array,
    packed: PackedCenters,
    labels: Labels,
    upper: Array,
    lower: Array,
    begin: int = 0,
    end: int | None = None,
) -> tuple[int, int]:
    """Find the nearest two of all centres for rows ``begin .. end``; none is passed over.

    Parameters
    ----------
    x : array (n, d)
    packed : PackedCenters
    labels, upper, lower : arrays (n,)
        Written to; `labels` have the bits of :func:`~.distances.nearest`, and `lower` holds for
        any list of a row's cluster.
    begin, end : int

    Returns
    -------
    n_moved, n_evaluated : int
        As :func:`search_lists`.
    """
    rows = slice(begin, len(x) if end is None else end)
    found, best, _, second = nearest_two(x[rows], packed)
    n_moved = int(np.count_nonzero(labels[rows] != found))
    labels[rows] = found
    np.sqrt(best, out=upper[rows])
    np.sqrt(second, out=lower[rows])
    return n_moved, len(found) * packed.n_clusters


def decay(
    labels: Labels,
    upper: Array,
    lower: Array,
    drift: NDArray[np.float64],
    reach: NDArray[np.float64],
) -> None:
    """Widen rows' distances by the movement of centres, in place.

    Parameters
    ----------
    labels, upper, lower : arrays (n,)
        Rows with label -1 stay as they are.
    drift : array (k,)
        Movement of each centre.
    reach : array (k,)
        Largest movement of a centre in a cluster's list; infinity: the list is another one now,
        `lower` becomes 0.
    """
    _decay(readonly(labels), upper, lower, readonly(drift), readonly(reach))


@njit
def _decay(labels, upper, lower, drift, reach):
    for i in range(labels.size):
        j = labels[i]
        if j < 0:
            continue
        upper[i] += drift[j]
        if reach[j] == np.inf:
            lower[i] = 0
        else:
            lower[i] -= reach[j]


def loss_scale(max_loss: float, total_weight: float) -> float:
    """Return the scale, a power of two, in which losses of rows are added as integers.

    Parameters
    ----------
    max_loss : float
        Upper bound of a row's loss (such as the squared diameter of the data); finite.
    total_weight : float
        Weight of all rows.
    """
    if not (np.isfinite(max_loss) and np.isfinite(total_weight)):
        raise ParameterError("max_loss and total_weight must be finite.")
    largest = np.frexp(max_loss)[1] + np.frexp(total_weight)[1]
    return float(2.0 ** int(np.clip(60 - largest, -1000, 1000)))


def removal_losses(
    labels: Labels,
    upper: Array,
    lower: Array,
    weight: NDArray[np.float64] | None,
    max_loss: float,
    scale: float,
    out: NDArray[np.int64],
) -> None:
    """Add to each cluster the losses of its rows if it were removed.

    A row would go from its own to the second nearest centre: ``w (lower² - upper²)``, rounded to
    steps of 1 / scale, so that the sums do not depend on their order.

    Parameters
    ----------
    labels, upper, lower : arrays (n,)
        Rows with label -1 are left out; a row's loss is between 0 and `max_loss`.
    weight : float64 array (n,), optional
    max_loss, scale : float
        See :func:`loss_scale`.
    out : int64 array (k,)
        Added to.
    """
    given = _NO_WEIGHT if weight is None else readonly(weight)
    _losses(readonly(labels), readonly(upper), readonly(lower), given, max_loss, scale, out)


@njit
def _losses(labels, upper, lower, weight, max_loss, scale, out):
    for i in range(labels.size):
        j = labels[i]
        if j < 0:
            continue
        u, low = np.float64(upper[i]), np.float64(lower[i])
        loss = min(max(low * low - u * u, 0.0), max_loss)
        if weight.size > 0:
            loss *= weight[i]
        out[j] += np.int64(loss * scale + 0.5)
