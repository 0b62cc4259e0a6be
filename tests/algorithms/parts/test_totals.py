"""Totals of an assignment: however rows are cut and put together, they are one and the same."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from largek_dask.algorithms.parts import totals
from largek_dask.algorithms.parts.totals import Additive, AssignmentTotal, Tally
from largek_dask.kernels.exact.fixed_point import FixedPoint
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.sums import ClusterSums

K, D, N = 4, 3, 300


@dataclass(kw_only=True)
class WideTally(Tally):
    """A field of every kind."""

    sums: ExactSums
    by_chunk: dict[int, NDArray[np.int32]]
    array: NDArray[np.int64] | None = None

    @classmethod
    def empty(cls) -> WideTally:
        return cls(sums=ExactSums(2), by_chunk={})


class Rows:
    """Rows, their weights, and their clusters before and now; some have none."""

    def __init__(self, weighted: bool) -> None:
        r = np.random.default_rng(7)
        self.x = r.normal(3, 2, (N, D)).astype(np.float32)
        self.weight = r.choice([0.0, 1.0, 3.0], N) if weighted else None
        self.old, self.new = r.integers(-1, K, (2, N)).astype(np.int32)
        heaviest = 3 if weighted else 1
        self.grid = FixedPoint.choose(np.zeros(D, np.float32), 12.0, n_rows=heaviest * N)

    def total(self, **options: Any) -> AssignmentTotal[Tally]:
        return AssignmentTotal(K, D, self.grid, **options)

    def assign(self, total, at, old, counted=False):
        """Assign some of the rows."""
        weight = None if self.weight is None else self.weight[at]
        before = None if old is None else old[at]
        return total.assign(self.x[at], weight, before, self.new[at], counted)


def contents(total):
    """All that a total says of rows."""
    return total.sums.totals.tolist(), total.sums.counts.tolist(), total.squares.values.tolist()


@pytest.mark.parametrize("by_cluster", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_assign__says_what_the_rows_come_to(weighted, by_cluster):
    rows = Rows(weighted)
    total = rows.total(by_cluster=by_cluster)
    rows.assign(total, slice(None), None)
    weight = np.ones(N) if rows.weight is None else rows.weight
    squares = (rows.x.astype(np.float64) ** 2).sum(axis=1)
    for j in range(K):
        own = rows.new == j
        assert total.sums.counts[j] == weight[own].sum()
        mean = np.average(rows.x[own], axis=0, weights=weight[own])
        np.testing.assert_allclose(total.sums.means(np.zeros((K, D)))[j], mean, rtol=1e-5)
        if by_cluster:
            assert total.squares.values[j] == pytest.approx(squares[own] @ weight[own])
    if not by_cluster:
        # of all rows that weigh something, also of those without a cluster
        assert total.squares.values == pytest.approx([squares @ weight])


@pytest.mark.parametrize("by_cluster", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_assign__differences_lead_where_a_full_count_does(weighted, by_cluster):
    rows = Rows(weighted)
    before, moved, anew = (rows.total(by_cluster=by_cluster) for _ in range(3))
    moved.assign(rows.x, rows.weight, None, rows.old)
    before.assign(rows.x, rows.weight, None, rows.old)
    assert (rows.old != rows.new).any()
    moved.begin(1)
    moved_changed = rows.assign(moved, slice(None), rows.old, counted=True)
    anew.begin(1)
    changed = rows.assign(anew, slice(None), rows.old)
    assert contents(moved) == contents(anew) != contents(before)
    np.testing.assert_array_equal(moved_changed, changed)
    assert moved.tally == anew.tally


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("pieces", [1, 5])
def test_assign__few_rows_that_differ_are_looked_up(weighted, pieces, monkeypatch):
    rows = Rows(weighted)
    few = rows.old.copy()
    few[::50] = (few[::50] + 1) % K
    assert 0 < np.count_nonzero(few != rows.old) == N // 50
    rows.new = few
    monkeypatch.setattr(totals, "LOOKED_UP_BYTES", N // 50 // pieces * D * 4)
    moved, given = [], ClusterSums.move
    monkeypatch.setattr(
        ClusterSums, "move", lambda sums, x, *how: (moved.append(len(x)), given(sums, x, *how))
    )
    found = {}
    for looked_up in (0, 8):
        monkeypatch.setattr(totals, "LOOKED_UP", looked_up)
        total = rows.total()
        total.assign(rows.x, rows.weight, None, rows.old)
        moved.clear()
        changed = rows.assign(total, slice(None), rows.old, counted=True)
        found[looked_up] = contents(total), total.tally.n_changed, changed.tolist()
        assert sum(moved) == (N // 50 if looked_up else N)
    assert len(moved) == N // 50 // (N // 50 // pieces)
    assert found[0] == found[8]
    anew = rows.total()
    rows.assign(anew, slice(None), None)
    assert found[8][0] == contents(anew)


def test_assign__counts_changes_of_rows_that_weigh_something():
    rows = Rows(weighted=True)
    total = rows.total()
    changed = rows.assign(total, slice(None), rows.old)
    expected = (rows.old != rows.new) & (rows.weight > 0)
    np.testing.assert_array_equal(changed, np.flatnonzero(expected))
    assert ((rows.old != rows.new) & (rows.weight == 0)).any()
    assert total.tally == Tally(n_rows=N, n_changed=expected.sum(), n_evaluated=0)
    fresh = rows.total()
    changed = rows.assign(fresh, slice(None), None)
    np.testing.assert_array_equal(changed, np.flatnonzero((rows.new >= 0) & (rows.weight > 0)))


@pytest.mark.parametrize(
    ("order", "by_cluster"), [((0, 1, 2), False), ((2, 0, 1), True), ((1, 2, 0), False)]
)
def test_combine__in_any_order_is_the_total_of_all_rows(order, by_cluster):
    rows = Rows(weighted=True)
    whole = rows.total(by_cluster=by_cluster)
    whole.begin(5)
    rows.assign(whole, slice(None), rows.old)
    parts = []
    for at in (slice(0, 50), slice(50, 60), slice(60, N)):
        part = rows.total(by_cluster=by_cluster)
        part.begin(5)
        rows.assign(part, at, rows.old)
        parts.append(pickle.loads(pickle.dumps(part)))
    together = rows.total(by_cluster=by_cluster)
    for i in order:
        together = AssignmentTotal.combine(together, parts[i])
    assert contents(together) == contents(whole)
    assert together.step == 5
    assert together.tally == whole.tally


@pytest.mark.parametrize("stale_first", [False, True])
def test_combine__what_an_earlier_step_has_found_counts_no_more(stale_first):
    """A retained total that no chunk of this step has touched still holds its rows."""
    rows = Rows(weighted=False)
    stale, touched, whole = (rows.total() for _ in range(3))
    stale.begin(3)
    rows.assign(stale, slice(0, 100), None)
    touched.begin(4)
    rows.assign(touched, slice(100, N), None)
    rows.assign(whole, slice(None), None)
    assert stale.tally.n_changed
    a, b = (stale, touched) if stale_first else (touched, stale)
    expected = Tally(**vars(touched.tally))
    together = AssignmentTotal.combine(a, b)
    assert together.step == 4
    assert together.tally == expected
    assert contents(together) == contents(whole)


def test_begin__forgets_what_belongs_to_another_step_only():
    rows = Rows(weighted=False)
    total = rows.total()
    total.begin(2)
    rows.assign(total, slice(0, 10), None)
    total.begin(2)
    assert total.tally.n_rows == 10
    kept = contents(total)
    total.begin(3)
    assert total.tally == Tally()
    assert contents(total) == kept


def test_tally__adds_fields_of_every_kind():
    one, two = WideTally.empty(), WideTally.empty()
    one.n_rows, two.n_rows = 2, 3
    one.sums.add(np.array([1.5]), None, np.array([0]))
    two.sums.add(np.array([0.25]), None, np.array([0]))
    one.by_chunk[0], two.by_chunk[1] = np.arange(3, dtype=np.int32), np.arange(2, dtype=np.int32)
    two.array = np.array([4, 5])
    one.merge(two)
    assert one.n_rows == 5
    assert one.sums.values.tolist() == [1.75, 0]
    assert {chunk: len(part) for chunk, part in one.by_chunk.items()} == {0: 3, 1: 2}
    assert one.array.tolist() == [4, 5]
    one.merge(two)
    assert one.array.tolist() == [8, 10]
    assert two.array.tolist() == [4, 5], "what is added is left as it is"
    one.merge(WideTally.empty())
    assert one.array.tolist() == [8, 10]


@dataclass
class Named(Additive):
    """Sums by name, as of a last pass, and something else by chunk."""

    sums: dict[str, ExactSums]
    chunks: dict[int, tuple[float, NDArray[np.int64]]]


def named(value: float, chunk: int) -> Named:
    made = Named({"a": ExactSums(1), "b": ExactSums(2)}, {chunk: (value, np.arange(4))})
    made.sums["a"].add(np.array([value]))
    return made


def test_additive__adds_sums_by_name_and_leaves_what_is_added_as_it_is():
    first, second, third = named(0.5, 0), named(0.25, 1), named(4.0, 2)
    together = Named.combine(Named.combine(first, second), third)
    assert together is first
    assert together.sums["a"].value == 4.75
    assert together.sums["b"].values.tolist() == [0, 0]
    assert {chunk: mass for chunk, (mass, _) in together.chunks.items()} == {0: 0.5, 1: 0.25, 2: 4}
    assert second.sums["a"].value == 0.25
    assert list(second.chunks) == [1]
    size = sum(sums.nbytes for sums in together.sums.values())
    assert together.nbytes == size + 3 * 4 * 8
    with pytest.raises(AssertionError, match="would change it"):
        Named({}, {}).merge(second)


def test_empty__is_of_the_same_kind_and_step_without_rows():
    rows = Rows(weighted=False)
    total = rows.total(new_tally=WideTally.empty, by_cluster=True)
    total.begin(6)
    rows.assign(total, slice(0, 200), None)
    part = total.empty()
    assert (part.step, part.tally.n_rows, part.sums.counts.sum()) == (6, 0, 0)
    assert isinstance(part.tally, WideTally)
    rows.assign(part, slice(200, N), None)
    whole = rows.total(by_cluster=True)
    rows.assign(whole, slice(None), None)
    assert contents(AssignmentTotal.combine(total, part)) == contents(whole)
    assert total.tally.n_rows == N
