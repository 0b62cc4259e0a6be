"""Truncated search: a row is compared only with the centres listed for its cluster.

The state of a row is its label and two distance bounds: `upper` for the row's own centre, `lower`
for the nearest other centre in the list. While ``upper < lower``, no other listed centre is nearer,
and the row is skipped. When centres move, :func:`widen_bounds` loosens both bounds. These are
Hamerly's bounds (SDM 2010), valid only within the list.

The result for a row depends only on the row, its state and the broadcast values (centres, lists,
drifts), so a pass can be divided among any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.errors import ParameterError
from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.bounds.pruned import nearest_two_pruned
from largek_dask.kernels.dense import gathered, panels
from largek_dask.kernels.distances import PackedCenters
from largek_dask.kernels.jit import njit
from largek_dask.kernels.rows import NATIVE
from largek_dask.kernels.threads import Threads, shared, split
from largek_dask.kernels.tile import select_tile

Array = NDArray[Any]
Labels = NDArray[np.int32]
Places = NDArray[np.int64]

_CONVERTED_VALUES = 1 << 16
_SORTED = 1 << 12
_LEAST_SORTED = 1 << 14
"""Minimum number of rows that a thread sorts."""
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
    # Each part has its own row counts, so there are only as many parts as threads.
    step = max(_LEAST_SORTED, k, -(-n // n_threads))
    n_parts = max(1, -(-n // step))
    # Row counts by part and label, which are later replaced by start positions.
    places = np.zeros((n_parts, k), np.int64)
    if upper is None or lower is None:
        sort, bounds = _sort_all, list[Array]()
    else:
        loose = np.empty((n_parts, _SORTED), np.uint8)
        chosen = np.empty((n_parts, _SORTED + 1), np.int32)
        sort, bounds = _sort_loose, [readonly(upper), readonly(lower), loose, chosen]
    order = np.empty(0, np.int32)
    sort(n_threads, n_parts, readonly(labels), step, True, places, order, *bounds)
    starts = np.zeros(k + 1, np.int64)
    np.cumsum(places.sum(axis=0), out=starts[1:])
    places[:] = np.cumsum(places, axis=0) - places + starts[:-1]
    order = np.empty(starts[k], np.int32)
    sort(n_threads, n_parts, readonly(labels), step, False, places, order, *bounds)
    return order, starts


@shared
def _sort_all(part, thread, labels, step, counts, places, order):
    """Count the rows per label if ``counts``, otherwise write their numbers to ``order``."""
    own = places[part]
    for i in range(part * step, min((part + 1) * step, labels.size)):
        j = labels[i]
        if j >= 0:
            if not counts:
                order[own[j]] = i
            own[j] += 1


@shared
def _sort_loose(part, thread, labels, step, counts, places, order, upper, lower, loose, chosen):
    """Like :func:`_sort_all`, but omit rows with ``upper < lower``."""
    own, is_loose, rows = places[part], loose[part], chosen[part]
    last = min((part + 1) * step, labels.size)
    for begin in range(part * step, last, _SORTED):
        end = min(begin + _SORTED, last)
        of, above, below = labels[begin:end], upper[begin:end], lower[begin:end]
        # Two loops avoid an unpredictable branch, and the first loop is vectorized.
        for i in range(end - begin):
            is_loose[i] = (of[i] >= 0) & (not above[i] < below[i])
        found = np.int64(0)
        for i in range(end - begin):
            rows[found] = begin + i
            found += np.int64(is_loose[i])
        for p in range(found):
            j = labels[rows[p]]
            if not counts:
                order[own[j]] = rows[p]
            own[j] += 1


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

    def run(self, cuts: Sequence[int], threads: int | Threads = 1) -> tuple[int, Labels, Labels]:
        """Search the groups ``cuts[0] .. cuts[-1]``; threads share the parts between cuts.

        Returns
        -------
        n_distances : int
            Number of distances that were computed.
        moved, groups : int32 array (m,)
            Rows whose label is not the number of their group, and their groups.
        """
        x, order, starts, lists, packed = self._rows
        bounds = np.asarray(cuts, np.int64)
        threads = Threads(threads) if isinstance(threads, int) else threads
        if not (x.dtype in NATIVE and x.flags.c_contiguous):
            return self._run_converted(bounds, threads)
        form, dtype, d, n_parts = packed.dense, packed.dtype, packed.n_features, len(bounds) - 1
        n_threads = max(1, min(threads.n, n_parts))
        tile = select_tile().for_form(packed.direct)
        sizes = int(lists.lengths.max(initial=1)), 0
        blocks = panels.Blocking(panels=1, tiles=1, features=d)
        largest = int(np.diff(starts).max(initial=0))
        evaluated, n_moved = np.zeros((2, n_parts), np.int64)
        moved, groups = np.empty((2, len(order)), np.int32)
        gathered.search_gathered(tile, dtype, x.dtype, packed.direct)(
            threads, n_parts, readonly(x), packed.centers, readonly(order), readonly(starts),
            readonly(lists.offsets), readonly(lists.centers), form.offsets, form.factors,
            form.starts, self._keep, bounds,
            panels.workspaces(n_threads, tile, dtype, True, d, blocks, sizes),
            *gathered.scratch(tile, dtype, largest, lists.n_groups, n_threads), *self._state,
            evaluated, n_moved, moved, groups,
        )  # fmt: skip
        found = [slice(at, at + n) for at, n in zip(starts[bounds[:-1]], n_moved, strict=True)]
        return (
            int(evaluated.sum()),
            np.concatenate([moved[at] for at in found]),
            np.concatenate([groups[at] for at in found]),
        )

    def _run_converted(self, bounds: Places, threads: Threads) -> tuple[int, Labels, Labels]:
        _, order, starts, *_ = self._rows

        def search(part: tuple[int, int]) -> int:
            return search_converted(self._convert, *self._rows, self._state, range(*part))

        evaluated = sum(threads.map(search, pairwise(bounds.tolist())))
        of = np.repeat(np.arange(len(starts) - 1, dtype=np.int32), np.diff(starts))
        own = slice(starts[bounds[0]], starts[bounds[-1]])
        is_moved = self._state[0][order[own]] != of[own]
        return evaluated, order[own][is_moved], of[own][is_moved]

    def _convert(self, *block: Any) -> int:
        return ListSearch(*block, keep=self._keep).run((0, 1))[0]


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
    x: Array,
    packed: PackedCenters,
    labels: Labels,
    upper: Array,
    lower: Array,
    rows: slice | Places,
) -> None:
    """Find the two nearest of all centres for some rows, and update their labels and bounds."""
    labels[rows], best, _, second = nearest_two_pruned(x[rows], packed)
    upper[rows], lower[rows] = np.sqrt(best), np.sqrt(second)


def widen_bounds(
    labels: Labels,
    upper: Array,
    lower: Array,
    drift: NDArray[np.float64],
    reach: NDArray[np.float64],
    n_threads: int = 1,
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
    step, n_parts = split(n_threads, len(labels), 1)
    given = readonly(labels), upper, lower, readonly(drift), readonly(reach)
    _widen_bounds(n_threads, n_parts, step, *given)


@shared
def _widen_bounds(part, thread, step, labels, upper, lower, drift, reach):
    for i in range(part * step, min((part + 1) * step, labels.size)):
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
    k: int,
    max_loss: float,
    scale: float,
    n_threads: int = 1,
) -> NDArray[np.int64]:
    """Return (2, k) sums: the cost of removing each cluster, and the current cost of its rows.

    A row whose cluster is removed moves to the second nearest centre, at a loss of ``w (lower² -
    upper²)``; its current cost is ``w upper²``. Both are clipped to the range from 0 to `max_loss`
    before they are multiplied by w, and rounded to multiples of 1 / scale (:func:`loss_scale`), so
    that sums do not depend on the order of addition. Rows with label -1 are omitted.
    """
    given = _NONE if weight is None else readonly(weight)
    step, n_parts = split(n_threads, len(labels), 1)
    out = np.zeros((n_threads, 2, k), np.int64)
    known = readonly(labels), readonly(upper), readonly(lower), given, max_loss, scale
    _losses(n_threads, n_parts, step, *known, out)
    total: NDArray[np.int64] = out.sum(axis=0)
    return total


@shared
def _losses(part, thread, step, labels, upper, lower, weight, max_loss, scale, out):
    removal, current = out[thread, 0], out[thread, 1]
    for i in range(part * step, min((part + 1) * step, labels.size)):
        j = labels[i]
        if j < 0:
            continue
        u, low = np.float64(upper[i]), np.float64(lower[i])
        loss, cost = min(max(low * low - u * u, 0.0), max_loss), min(u * u, max_loss)
        if weight.size > 0:
            loss *= weight[i]
            cost *= weight[i]
        removal[j] += np.int64(loss * scale + 0.5)
        current[j] += np.int64(cost * scale + 0.5)
