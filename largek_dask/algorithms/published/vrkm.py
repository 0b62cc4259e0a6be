"""VRKM and VRKM++: k-means by variance-reduced gradients.

Y. Zhao, Y. Ming, X. Liu, E. Zhu, K. Zhao, J. Yin, Large-scale k-means clustering via variance
reduction, Neurocomputing 307 (2018). A step is an epoch.

========================================  =========================================================
Lines of Algorithm 3, VRKM (4, VRKM++)
========================================  =========================================================
1: starting centres                       :meth:`VRKM.init`
3: partition                              ``partition_chunk``
4 to 6 (4, 5): position correction        :meth:`VRKM.step`, by equation 8
7, 8: batch gradient                      ``snapshot_gradient``, by the partition's sums
9 to 15 (6 to 12): inner loop             :func:`~largek_dask.kernels.stochastic.vrkm_rows`, or
                                          :meth:`VRKM._rounds`
16, 17 (13, 14): C_T is the next C̃        :meth:`VRKM.step`
========================================  =========================================================

Departures from the paper, and choices that the paper leaves open:

* In a round (``round_rows`` above 1), rows share their centres, which move by the sum of the
  gradients of the rows. Rounds are successive slices of the seeded order of every chunk, so no row
  is used again before all rows have been used. Single rows are drawn with replacement, as
  published.
* The gradient of a row is multiplied by its weight, in units of the mean weight.
* ``epoch="2^s"`` grows up to 2n, the largest epoch in figure 6.
* If η is so large that centres move far outside the data, the fit ends with the centres before that
  epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Real
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms import base
from largek_dask.algorithms.base import Chunk, Info, Passes, Rng, RowSlice, RowState
from largek_dask.algorithms.kmeans import CenterArrays, KMeansProblem
from largek_dask.algorithms.parts.gathered import bytes_of_gathered, check_held, gather_rows
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.parts.relocation import relocate_empty
from largek_dask.algorithms.parts.totals import Additive, AssignmentTotal, Tally
from largek_dask.algorithms.starts.seeding import initial_centers
from largek_dask.errors import ParameterError, ParameterWarning, warn
from largek_dask.kernels.bounds.pruned import nearest_pruned
from largek_dask.kernels.distances import PackedCenters, pack_centers
from largek_dask.kernels.exact.movement import squared_movement
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.sums import ClusterSums
from largek_dask.kernels.stochastic import has_diverged, round_step, snapshot_gradient, vrkm_rows

FAR = 2.0**10
"""Maximum movement of a centre in an epoch, relative to the extent of the rows. A larger movement
means that η is too large."""


@dataclass(frozen=True, slots=True)
class VRKMState:
    centers: NDArray[np.float64]
    counts: NDArray[np.float64]
    shift: NDArray[Any]
    place: int = 0
    """Start of the next round, as a position in the seeded order."""
    history: History[NDArray[Any]] = field(default_factory=History)
    """Centres C̃ of the last epoch, from which lost labels are recomputed."""

    @property
    def step(self) -> int:
        return self.history.generation


@dataclass(frozen=True)
class VRKM(base.Algorithm[VRKMState, KMeansProblem]):
    """k-means by variance-reduced gradients (Zhao et al. 2018); each step is one epoch.

    Parameters
    ----------
    eta : float or "K/n"
        Learning rate η: share of its distance by which a centre moves towards a row.
    round_rows : int or "auto"
        Number of rows that share their centres; "auto" is a hundredth of all rows. With 1, rows are
        used one by one, and held in memory.
    epoch : "n", "2^s" or float
        Number of rows in the inner loop of an epoch (T): all rows, 2 to the power of the epoch, or
        this share of all rows.
    plus_plus : bool
        True for VRKM++; False for VRKM, which adds the batch gradient, zero except for rounding
        (equation 9).

    Examples
    --------
    >>> import numpy as np, largek_dask as lk
    >>> x = np.repeat(np.eye(3, dtype=np.float32), 50, axis=0)
    >>> km = lk.KMeans(3, algorithm=lk.VRKM(), random_state=0).fit(x)
    >>> float(km.inertia_)
    0.0
    """

    eta: float | Literal["K/n"] = "K/n"
    round_rows: int | Literal["auto"] = "auto"
    epoch: float | Literal["n", "2^s"] = "n"
    plus_plus: bool = True
    solves: ClassVar[type[KMeansProblem]] = KMeansProblem

    def __post_init__(self) -> None:
        rows: Any = self.round_rows
        whole = isinstance(rows, int | np.integer) and not isinstance(rows, bool) and rows >= 1
        for name, good, allowed in (
            ("eta", _is_share(self.eta, "K/n"), "'K/n' or a finite number above 0"),
            ("round_rows", whole or rows == "auto", "'auto' or at least 1"),
            ("epoch", _is_share(self.epoch, "n", "2^s"), "'n', '2^s' or a finite number above 0"),
            ("plus_plus", isinstance(self.plus_plus, bool), "True or False"),
        ):
            if not good:
                raise ParameterError(f"{name} must be {allowed}, got {getattr(self, name)!r}.")

    @classmethod
    def paper(
        cls, plus_plus: bool = True, eta: Any = "K/n", epoch: Any = "n", round_rows: int = 1
    ) -> VRKM:
        """Return VRKM++ (Algorithm 4) or VRKM (Algorithm 3), which process rows one by one."""
        return cls(eta, round_rows, epoch, plus_plus)

    def footprint(self, table: base.PlannedTable) -> base.Footprint:
        each = base.Footprint(passes_before=self.problem.passes_to_start())
        if self.round_rows == 1:
            held = bytes_of_gathered(table, table.itemsize, 8)
            return replace(each, held_rows=table.n_rows, held_bytes=held)
        n_rounds = self._round_sizes(table.n_rows, 1)[1]
        return replace(each, row_bytes=16, fixed_row_bytes=12, step_reads=n_rounds + 1)

    def init(self, passes: Passes, rng: Rng) -> VRKMState:
        """Return the initial centres, by default random rows (line 1)."""
        if self.round_rows == 1:
            n_bytes = bytes_of_gathered(passes, passes.statistics.dtype.itemsize, 8)
            check_held(passes, n_bytes, "VRKM with round_rows=1", "round_rows='auto'")
        how, k = self.problem.init, self.problem.n_clusters
        how = "random" if isinstance(how, str) and how == "auto" else how
        c = initial_centers(passes, rng, k, how).astype(np.float64)
        return VRKMState(c, np.zeros(k), passes.statistics.shift)

    def step(self, passes: Passes, rng: Rng, state: VRKMState) -> tuple[VRKMState, Info]:
        """Run an epoch: partition, position correction, inner loop (lines 3 to 16)."""
        rows = gather_rows(passes, rng) if self.round_rows == 1 else None
        seen = passes if rows is None else rows.passes
        known, packed = seen.statistics, _pack(state.centers, state.shift)
        (k, d), n = state.centers.shape, known.n_rows
        start = partial(AssignmentTotal, k, d, known.grid, Labels)
        sent = partial(_sent, state, rows is not None)
        total: AssignmentTotal[Labels] = seen.reduce(
            partition_chunk,
            packed,
            state.step + 1,
            rows is not None,
            start=start,
            combine=AssignmentTotal.combine,
            state=state.history.next_state("labels", sent, retain=True),
        )
        c_new, counts = total.sums.means_float64(state.centers), total.sums.counts
        gradient = None if self.plus_plus else snapshot_gradient(c_new, total.sums)
        extra, empty = {}, np.flatnonzero(counts == 0)
        if len(empty) and self.problem.empty_clusters == "relocate":
            moved, n_moved, _ = relocate_empty(seen, packed, c_new.astype(state.shift.dtype), empty)
            c_new[empty], extra = moved[empty], {"relocated": float(n_moved)}
        squares = total.squares.value
        cost = total.sums.cost(packed.centers, squares)
        eta = (k / n if self.eta == "K/n" else float(self.eta)) * (n / known.total_weight)
        history = state.history.then(packed.centers, anchor=True)
        after = replace(state, centers=c_new, counts=counts, history=history)
        if rows is None:
            sent = partial(_sent, after, False)
            labels_of = history.read_state("labels", sent, partition_chunk, start)
            after, t = self._rounds(passes, rng, after, labels_of, eta, gradient)
        else:
            labels = np.concatenate([own for _, own in sorted(total.tally.labels.items())])
            share = self._epoch_rows(len(labels), after.step) / len(labels)
            i_t = rows.draws(rng, state.step, "vrkm rows", share)
            c_t, _ = vrkm_rows(rows.x, rows.weight, labels, i_t, c_new, eta, gradient)
            after, t = replace(after, centers=c_t), len(i_t)
        if has_diverged(after.centers, c_new, FAR * known.max_abs):
            text = f"eta={self.eta!r} moved centres far outside the data in epoch {after.step}"
            warn(f"{text}: the fit ends with those before. Use a smaller eta.", ParameterWarning)
            after = replace(after, centers=state.centers)
            return after, Info(cost=cost, rows=seen.n_rows + t, converged=True)
        shift = squared_movement(after.centers, state.centers)
        return after, Info(
            cost=cost,
            rows=seen.n_rows + t,
            n_changed=total.tally.n_changed,
            shift=shift * known.total_weight * d / squares if squares > 0 else 0.0,
            converged=np.array_equal(after.centers, state.centers),
            extra=extra,
        )

    def _rounds(
        self, passes: Passes, rng: Rng, state: VRKMState, labels: RowState, eta: float, batch: Any
    ) -> tuple[VRKMState, int]:
        """Run the inner loop in rounds of one pass each; return the state with C_T, and T."""
        c_new, n = state.centers, passes.n_rows
        size, n_rounds = self._round_sizes(n, state.step)
        labels = replace(labels, rebuild_rows=RowSlice(rng, 0, n, n))
        c_t, place, t = c_new, state.place, 0
        for _ in range(n_rounds):
            end = min(place + size, n)
            rows = RowSlice(rng, place, end, n)
            total: SharedRoundTotal = passes.reduce(
                round_chunk,
                _pack(c_t, state.shift),
                start=partial(SharedRoundTotal.of, *c_t.shape, passes.statistics.grid),
                combine=SharedRoundTotal.combine,
                state=labels,
                rows=rows,
                joined=not passes.is_sparse,
            )
            c_t = round_step(c_t, c_new, total.known, total.change, eta, batch)
            t, place = t + total.n_rows, 0 if end == n else end
            if has_diverged(c_t, c_new, FAR * passes.statistics.max_abs):
                break
        return replace(state, centers=c_t, place=place), t

    def _epoch_rows(self, n: int, s: int) -> int:
        """Return T, the number of rows of the s-th epoch."""
        if isinstance(self.epoch, str):
            return n if self.epoch == "n" else min(2**s, 2 * n)
        return max(1, round(self.epoch * n))

    def _round_sizes(self, n: int, s: int) -> tuple[int, int]:
        """Return the rows per round and the number of rounds of the s-th epoch."""
        t = self._epoch_rows(n, s)
        size = min(max(1, n // 100) if self.round_rows == "auto" else self.round_rows, t, n)
        return size, max(1, round(t / n * -(-n // size)))

    def model(self, state: VRKMState) -> CenterArrays:
        return CenterArrays(state.centers.astype(state.shift.dtype), state.counts, state.shift)


def _is_share(value: Any, *words: str) -> bool:
    """Return True if the value is one of these words or a finite number above 0."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return isinstance(value, str) and value in words
    return 0.0 < float(value) < np.inf


def _pack(c: NDArray[np.float64], shift: NDArray[Any]) -> PackedCenters:
    return pack_centers(c.astype(shift.dtype), shift)


def _sent(state: VRKMState, collect: bool, c: NDArray[Any]) -> tuple[Any, ...]:
    return pack_centers(c, state.shift), state.step, collect


@dataclass
class Labels(Tally):
    """Tally with the labels of each chunk, if requested, by the index of its first row."""

    labels: dict[int, NDArray[np.int32]] = field(default_factory=dict)


@dataclass
class SharedRoundTotal(Additive):
    counts: NDArray[np.int64]
    """(k,) number of rows per cluster of the partition, over chunks without weights."""
    weights: ExactSums
    """(k,) weight per cluster of the partition, over chunks with weights."""
    change: ClusterSums
    """Changes of the sums as rows move to the clusters of their nearest centres."""
    n_rows: int = 0
    n_weighted: int = 0

    @property
    def known(self) -> NDArray[np.float64]:
        """(k,) weight per cluster of the partition."""
        counts = self.counts.astype(np.float64)
        return counts + self.weights.values if self.n_weighted else counts

    @classmethod
    def of(cls, *shape: Any) -> SharedRoundTotal:
        """Return an empty total, given k, d and the grid of the sums."""
        return cls(np.zeros(shape[0], np.int64), ExactSums(shape[0]), ClusterSums(*shape))


def partition_chunk(
    chunk: Chunk, total: AssignmentTotal[Labels], c: PackedCenters, step: int, collect: bool
) -> None:
    """Label a chunk's rows by their nearest centre; rows of weight 0 get the label -1."""
    labels, _ = nearest_pruned(chunk.x, c)
    if chunk.weight is not None:
        labels[chunk.weight <= 0] = -1
    total.begin(step)
    old = None if chunk.state is None else chunk.state["labels"]
    total.assign(chunk.x, chunk.weight, old, labels, chunk.counted)
    if collect:
        total.tally.labels[chunk.start] = labels
    chunk.keep(labels=labels)


def round_chunk(chunk: Chunk, total: SharedRoundTotal, c: PackedCenters) -> None:
    """Add changes of sums as rows of the round move to the clusters of their nearest centres."""
    assert chunk.state is not None
    known = chunk.state["labels"]
    known = known if chunk.rows is None else known[chunk.rows]
    size = max(1, -(-len(chunk) // chunk.threads.n))

    def share(begin: int) -> SharedRoundTotal:
        change = total.change
        part = total if begin == 0 else SharedRoundTotal.of(*change.sums.shape, change.grid)
        for at, x, weight in chunk.pieces(slice(begin, begin + size)):
            old, (labels, _) = known[at], nearest_pruned(x, c)
            labels[old < 0] = -1
            if weight is None:
                part.counts += np.bincount(old, minlength=len(part.counts))
            else:
                part.weights.add(weight, None, old)
                part.n_weighted += len(old)
            part.change.move(x, old, labels, weight)
            part.n_rows += len(old)
        return part

    for part in chunk.threads.map(share, range(0, len(chunk), size))[1:]:
        total.merge(part)
