"""Truncated search: a row is compared only with the centres listed for its cluster.

The state of a row is its label and two distance bounds: `upper` for the row's own centre, `lower`
for the nearest other centre in the list. While ``upper < lower``, no other listed centre is nearer,
and the row is skipped. When centres move, :func:`widen_bounds` loosens both bounds. These are
Hamerly's bounds (SDM 2010), valid only within the list.

The result for a row depends only on the row, its state and the broadcast values (centres, lists,
drifts), so a pass can be divided among any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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

Array = NDArray[Any]
Labels = NDArray[np.int32]
Places = NDArray[np.int64]

_CONVERTED_VALUES = 1 << 16
_SORTED = 1 << 12
_SHARED = 1 << 18
"""Minimum number of rows per sorting thread; starting a thread for fewer rows is slower."""
_NONE = readonly(np.empty(0))


@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """Lists of centres, one list per group of rows."""

    offsets: Places
    """(g + 1,) offsets: the list of group j is ``centers[offsets[j] : offsets[j + 1]]``."""
    centers: Labels
    """Indices of centres, ascending within each list."""

    @classmethod
    def of(cls, table: Labels) -> Lists:
        """Create g lists from a (g, m) table, in which each row holds distinct centres."""
        g, m = table.shape
        flat = np.sort(table, axis=1).reshape(-1).astype(np.int32, copy=False)
        return cls(readonly(np.arange(g + 1, dtype=np.int64) * m), readonly(flat))

    @property
    def n_groups(self) -> int:
        """Number of lists."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Places:
        """(g,) number of centres in each list."""
        return np.diff(self.offsets)


def order_by_label(
    labels: Labels,
    k: int,
    upper: Array | None = None,
    lower: Array | None = None,
    n_threads: int = 1,
) -> tuple[Labels, Places]:
    """Sort rows by label.

    Rows with label -1 are omitted. If `upper` and `lower` are given, rows with ``upper < lower``
    are omitted too, because no other listed centre is nearer. The result does not depend on
    `n_threads`.

    Returns
    -------
    order : int32 array
        Row numbers, ascending within a label.
    starts : int64 array (k + 1,)
        ``order[starts[j] : starts[j + 1]]`` are the rows with label j.
    """
    n = len(labels)
    step = max(_SHARED, -(-n // max(1, n_threads)))
    begins = range(0, max(n, 1), step)
    # Row counts by thread and label, which are later replaced by start positions.
    places = np.zeros((len(begins), k), np.int64)
    order = np.empty(0, np.int32)

    def sort(begin: int, counts: bool) -> None:
        given = readonly(labels), begin, min(begin + step, n), counts, places[begin // step], order
        if upper is None or lower is None:
            _sort_all(*given)
        else:
            scratch = np.empty(_SORTED, np.uint8), np.empty(_SORTED + 1, np.int32)
            _sort_loose(*given, readonly(upper), readonly(lower), *scratch)

    on_threads(n_threads, lambda begin: sort(begin, True), begins)
    starts = np.zeros(k + 1, np.int64)
    np.cumsum(places.sum(axis=0), out=starts[1:])
    places[:] = np.cumsum(places, axis=0) - places + starts[:-1]
    order = np.empty(starts[k], np.int32)
    on_threads(n_threads, lambda begin: sort(begin, False), begins)
    return order, starts


@njit
def _sort_all(labels, first, last, counts, places, order):
    """Count the rows per label if ``counts``, otherwise write their numbers to ``order``."""
    for i in range(first, last):
        j = labels[i]
        if j >= 0:
            if not counts:
                order[places[j]] = i
            places[j] += 1


@njit
def _sort_loose(labels, first, last, counts, places, order, upper, lower, loose, chosen):
    """Like :func:`_sort_all`, but omit rows with ``upper < lower``."""
    for begin in range(first, last, _SORTED):
        end = min(begin + _SORTED, last)
        own, above, below = labels[begin:end], upper[begin:end], lower[begin:end]
        # Two loops avoid an unpredictable branch, and the first loop is vectorized.
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


def moved_rows(
    order: Labels, starts: Places, labels: Labels, begin: int, end: int
) -> tuple[Labels, Labels]:
    """Return the rows of groups ``begin .. end`` whose label is not that of their group.

    Groups are clusters; the second array contains the label of each of these rows' groups.
    """
    room = np.empty((2, starts[end] - starts[begin]), np.int32)
    n = _moved(readonly(order), readonly(starts), readonly(labels), begin, end, *room)
    return room[0, :n].copy(), room[1, :n].copy()


@njit
def _moved(order, starts, labels, begin, end, rows, before):
    n = 0
    for j in range(begin, end):
        for p in range(starts[j], starts[j + 1]):
            if labels[order[p]] != j:
                rows[n], before[n] = order[p], j
                n += 1
    return n


class ListSearch:
    """Search for each row's nearest centre in the list of the row's group.

    Each searched row receives the label of its nearest listed centre (ties go to the lowest index)
    and the distances to the two nearest listed centres; the second is infinite if the list has only
    one centre. Several threads may search different groups at the same time.

    Parameters
    ----------
    x : array (n, d)
        Rows of any real type.
    order, starts : int32 (m,), int64 (g + 1,)
        Rows of each group, as :func:`order_by_label` returns them.
    lists : Lists
        Centres for the rows of each group; rows with an empty list keep their state.
    packed : PackedCenters
    state : tuple of int32 (n,) and two arrays (n,) of the compute dtype
        Labels, `upper` and `lower`, updated in place.
    keep : bool
        Keep `lower` if the label changes, although it is the distance to the second nearest centre
        of the old cluster's list. Without `keep` it becomes 0.
    """

    __slots__ = ("_fixed", "_keep", "_largest", "_new_scratch", "_rows", "_run", "_scratch",
                 "_state")  # fmt: skip

    # Prepare as much as possible here: Python is slower after a kernel has filled the caches.
    def __init__(
        self,
        x: Array,
        order: Labels,
        starts: Places,
        lists: Lists,
        packed: PackedCenters,
        state: tuple[Array, ...],
        *,
        keep: bool = False,
    ) -> None:
        self._rows, self._state, self._keep = (x, order, starts, lists, packed), state, keep
        self._largest = int(np.diff(starts).max(initial=0))
        self._run: Callable[..., tuple[int, int]] | None = None
        if not (x.dtype in NATIVE and x.flags.c_contiguous):
            return
        form, dtype, d = packed.dense, packed.dtype, packed.n_features
        tile = select_tile().for_form(packed.direct)
        self._run = gathered.search_gathered(tile, dtype, x.dtype, packed.direct)
        self._fixed = (
            readonly(x), packed.centers, readonly(order), readonly(starts),
            readonly(lists.offsets), readonly(lists.centers), form.offsets, form.factors,
            form.starts,
        )  # fmt: skip
        sizes = int(lists.lengths.max(initial=1)), 0

        def new_scratch() -> tuple[Any, ...]:
            blocks = panels.Blocking(panels=1, tiles=1, features=d)
            space = panels.workspace(tile, dtype, True, d, blocks, sizes)
            return space, *gathered.scratch(tile, dtype, self._largest, lists.n_groups)

        self._new_scratch, self._scratch = new_scratch, dict[int, tuple[Any, ...]]()

    def groups(self, begin: int, end: int) -> int:
        """Search groups ``begin .. end``; return the number of distances."""
        if self._largest == 0:
            return 0
        if self._run is None:
            return search_converted(self._convert, *self._rows, self._state, range(begin, end))
        scratch = self._scratch.get(get_ident())
        if scratch is None:
            scratch = self._scratch[get_ident()] = self._new_scratch()
        return self._run(*self._fixed, begin, end, self._keep, *scratch, *self._state)[1]

    def _convert(self, *block: Any) -> int:
        return ListSearch(*block, keep=self._keep).groups(0, 1)


def search_converted(
    search: Callable[..., int],
    x: Array,
    order: Labels,
    starts: Places,
    lists: Lists,
    packed: Any,
    state: tuple[Array, ...],
    groups: range,
) -> int:
    """Search rows of a type or layout that kernels do not accept, converting them in blocks.

    Each block holds rows of one group. The arrays of `state` are updated in place. Returns the sum
    of ``search(x, order, starts, lists, packed, state)`` over the blocks.
    """
    step = max(1, _CONVERTED_VALUES // packed.n_features)
    total = 0
    for j in groups:
        first, last = lists.offsets[j : j + 2]
        own = Lists(np.array([0, last - first]), lists.centers[first:last])
        for begin in range(starts[j], starts[j + 1], step):
            rows = order[begin : min(begin + step, starts[j + 1])]
            block = np.ascontiguousarray(x[rows], packed.dtype)
            parts = tuple(part[rows] for part in state)
            everyone = np.arange(len(rows), dtype=np.int32), np.array([0, len(rows)])
            total += search(block, *everyone, own, packed, parts)
            for part, values in zip(state, parts, strict=True):
                part[rows] = values
    return total


def search_all(
    x: Array, packed: PackedCenters, labels: Labels, upper: Array, lower: Array, rows: slice
) -> None:
    """Find the two nearest of all centres for some rows, and update their labels and bounds."""
    labels[rows], best, _, second = nearest_two(x[rows], packed)
    np.sqrt(best, out=upper[rows])
    np.sqrt(second, out=lower[rows])


def widen_bounds(
    labels: Labels,
    upper: Array,
    lower: Array,
    drift: NDArray[np.float64],
    reach: NDArray[np.float64],
) -> None:
    """Loosen the distance bounds of rows by the movement of centres, in place.

    Parameters
    ----------
    labels, upper, lower : arrays (n,)
        State of rows, updated in place; rows with label -1 are not changed.
    drift : array (k,)
        Movement of each centre.
    reach : array (k,)
        Largest movement of a centre in each cluster's list; infinity if the list has changed, which
        sets `lower` to 0.
    """
    _widen_bounds(readonly(labels), upper, lower, readonly(drift), readonly(reach))


@njit
def _widen_bounds(labels, upper, lower, drift, reach):
    for i in range(labels.size):
        j = labels[i]
        if j < 0:
            continue
        upper[i] += drift[j]
        if reach[j] == np.inf:
            lower[i] = 0
        else:
            lower[i] -= reach[j]


def largest_of_lists(values: NDArray[np.float64], lists: Lists) -> NDArray[np.float64]:
    """Return the (g,) maximum of the ``values`` (k,) of the centres in each list."""
    out = np.full(lists.n_groups, -np.inf)
    _largest(readonly(values), readonly(lists.offsets), readonly(lists.centers), out)
    return out


@njit
def _largest(values, offsets, centers, out):
    for j in range(out.size):
        for p in range(offsets[j], offsets[j + 1]):
            out[j] = max(out[j], values[centers[p]])


def loss_scale(max_loss: float, total_weight: float) -> float:
    """Return the power of two by which losses are multiplied before they are summed as integers.

    `max_loss` is an upper bound on the loss of a row, such as the squared diameter of the data.
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
    """Add the cost of removing each cluster to the (k,) array `out`.

    A row whose cluster is removed moves to the second nearest centre, at a loss of ``w (lower² -
    upper²)``; the difference is clipped to the range from 0 to `max_loss`. Losses are rounded to
    multiples of 1 / scale (:func:`loss_scale`), so that sums do not depend on the order of
    addition. Rows with label -1 are omitted.
    """
    given = _NONE if weight is None else readonly(weight)
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
