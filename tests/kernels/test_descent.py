"""Local work on settled partitions: labels, bounds, centres and costs as brute force has them."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from largek_dask.kernels import descent
from largek_dask.kernels.descent import (
    CenteredRows,
    PartitionState,
    add_center,
    drop_center,
    label_rows,
    settle,
)
from largek_dask.kernels.single_moves import move_rows
from tests.helpers.covering import in_turns
from tests.oracles import dcd_search as oracles
from tests.oracles.dcd import two_nearest

COMPILED = not numba.config.DISABLE_JIT
KINDS = ["blobs", "uniform", "grid", "heavy", "outlier", "repeated"]


def make(kind, n, d, r):
    """Rows of one kind; whole numbers where many distances are to be equal."""
    if kind == "grid":
        return r.integers(-2, 3, (n, d)).astype(float)
    if kind == "blobs":
        x = 30 * r.standard_normal((8, d))[r.integers(8, size=n)] + r.standard_normal((n, d))
    elif kind == "uniform":
        x = r.random((n, d))
    elif kind == "heavy":
        x = r.standard_t(1.2, (n, d))
    elif kind == "outlier":
        x = r.standard_normal((n, d))
        x[n // 2] = 1e9
    else:
        x = r.standard_normal((12, d))[r.integers(12, size=n)]
    return x - x.mean(axis=0)


def weights(kind, n, r):
    """Weights, or none; ``whole`` for rows that could be repeated."""
    if kind == "wide":
        return 10 ** r.uniform(-4, 4, n)
    return r.integers(1, 5, n).astype(float) if kind == "whole" else None


def rounding(x):
    """Rounding of square roots of sums of squares."""
    return 1e-14 * np.abs(x).max()


def check_bounds(rows, p, slack=None):
    """All bounds hold."""
    x = rows.x
    slack = rounding(x) if slack is None else slack
    d = np.sqrt(oracles.distances(x, p.centers))
    own = d[np.arange(len(x)), p.labels]
    d[np.arange(len(x)), p.labels] = np.inf
    assert (own <= p.upper * (1 + 1e-9) + slack).all()
    assert (p.lower <= d.min(axis=1) * (1 + 1e-9) + slack).all()


def check_sums(rows, p, *, which=None):
    """Centres, counts and costs of clusters are those of the labels, to the bit."""
    x, weight = rows.x, rows.weight
    which = ~p.stale if which is None else which
    means = oracles.means_of(x, weight, p.labels, p.centers)
    np.testing.assert_array_equal(p.centers[which], means[which])
    counts = oracles.counts_of(weight, p.labels, len(means))
    np.testing.assert_array_equal(p.counts[which], counts[which])
    costs = oracles.costs_of(x, weight, p.labels, p.centers)
    np.testing.assert_array_equal(p.costs[which], costs[which])


def check_still(rows, p):
    """No row is nearer to another centre than to its own."""
    x = rows.x
    d = np.sqrt(oracles.distances(x, p.centers))
    own = d[np.arange(len(x)), p.labels]
    assert (own <= d.min(axis=1) * (1 + 1e-12) + 10 * rounding(x)).all()


def check_settled(rows, p):
    assert not p.stale.any()
    check_bounds(rows, p)
    check_sums(rows, p)
    check_still(rows, p)
    assert p.cost == oracles.summed(p.costs)


def started(rows, centers):
    """Rows labelled by centres that are not their means."""
    p, _ = label_rows(rows, centers)
    p.stale[:] = True
    return p


def settled(rows, centers):
    p = started(rows, centers)
    settle(rows, p)
    return p


def same(p, q):
    """Two partitions are equal to the bit, apart from their bounds."""
    for name in ("labels", "centers", "counts", "costs"):
        np.testing.assert_array_equal(getattr(p, name), getattr(q, name))


def exact(rows, p):
    """The same partition with bounds that are distances."""
    q = p.copy()
    _, first, _, second = two_nearest(rows.x, p.centers)
    q.upper, q.lower = np.sqrt(first), np.sqrt(second)
    return q


@pytest.mark.parametrize(
    ("kind", "shape"),
    in_turns(KINDS, [(1, 1, 1), (40, 1, 7), (300, 2, 40), (530, 3, 2), (257, 14, 9), (30, 2, 1)]),
)
def test_label_rows(kind, shape):
    n, d, k = shape
    r = np.random.default_rng(n)
    x = make(kind, n, d, r)
    rows = CenteredRows.of(x, weights("wide", n, r))
    centers = x[r.integers(n, size=k)]
    p, found = label_rows(rows, centers)
    first, d1, second, d2 = two_nearest(x, centers)
    if kind in ("grid", "repeated") and k >= 7:
        assert (d1 == d2).any()  # Ties, which go to the lower index.
    np.testing.assert_array_equal(p.labels, first)
    np.testing.assert_array_equal(found.first, d1)
    np.testing.assert_array_equal(found.second, d2)
    np.testing.assert_array_equal(found.label, np.maximum(second, 0))
    np.testing.assert_array_equal(p.upper, np.sqrt(d1))
    np.testing.assert_array_equal(p.lower, np.sqrt(d2))
    np.testing.assert_array_equal(p.counts, oracles.counts_of(rows.weight, first, k))
    np.testing.assert_array_equal(p.costs, oracles.costs_of(x, rows.weight, first, centers))
    np.testing.assert_array_equal(p.centers, centers)
    assert not p.stale.any()
    assert not np.shares_memory(p.centers, centers)
    assert len(rows) == n


def test_rows_are_read_only():
    x = np.asfortranarray(np.arange(6, dtype="f4").reshape(3, 2))
    rows = CenteredRows.of(x)
    np.testing.assert_array_equal(rows.x, x)
    np.testing.assert_array_equal(rows.columns, x.T)
    np.testing.assert_array_equal(rows.weight, 1)
    for array in (rows.x, rows.columns, rows.weight):
        assert array.dtype == np.float64
        assert array.flags.c_contiguous
        assert not array.flags.writeable


def test_a_copy_is_apart():
    r = np.random.default_rng(0)
    rows = CenteredRows.of(make("blobs", 50, 2, r))
    p = settled(rows, rows.x[:5])
    q = p.copy()
    for name in PartitionState.__slots__:
        np.testing.assert_array_equal(getattr(p, name), getattr(q, name))
        assert not np.shares_memory(getattr(p, name), getattr(q, name))


@pytest.mark.parametrize(("kind", "k"), in_turns(KINDS, [1, 2, 9]))
def test_add_center(kind, k):
    r = np.random.default_rng(k)
    x = make(kind, 300, 2, r)
    rows = CenteredRows.of(x)
    p, _ = label_rows(rows, x[r.integers(len(x), size=k)])
    before = p.copy()
    q = add_center(rows, p, x[r.integers(len(x))])
    same(p, before)
    first, d1, _, d2 = two_nearest(x, q.centers)
    np.testing.assert_array_equal(q.labels, first)
    # Distances are known to the bit where both were.
    np.testing.assert_array_equal(q.upper, np.sqrt(d1))
    np.testing.assert_array_equal(q.lower, np.sqrt(d2))
    gone = np.unique(p.labels[first == k])
    np.testing.assert_array_equal(np.flatnonzero(q.stale), np.append(gone, k))


@pytest.mark.parametrize("kind", KINDS)
def test_add_center_where_bounds_are_loose(kind):
    """Where an upper bound is loose it is no distance, neither to compare with nor to keep."""
    r = np.random.default_rng(5)
    x = make(kind, 400, 2, r)
    rows = CenteredRows.of(x)
    wrong = 0
    for _ in range(20):
        p, _ = label_rows(rows, x[r.integers(len(x), size=6)])
        p.upper *= r.uniform(1, 3, len(x))
        p.lower -= r.uniform(0, 3, len(x)) * p.upper
        y = x[r.integers(len(x))]
        q = add_center(rows, p, y)
        to_y = oracles.squares(x, y)
        own = oracles.distances(x, p.centers)[np.arange(len(x)), p.labels]
        wrong += ((own < to_y) & (to_y < p.upper**2)).sum()
        np.testing.assert_array_equal(q.labels, np.where(to_y < own, 6, p.labels))
        check_bounds(rows, q)
    assert wrong > 20


@pytest.mark.parametrize(("kind", "k"), in_turns(KINDS, [2, 3, 9]))
def test_drop_center(kind, k):
    r = np.random.default_rng(k)
    x = make(kind, 300, 3, r)
    rows = CenteredRows.of(x)
    p, _ = label_rows(rows, x[r.integers(len(x), size=k)])
    for which in {0, k // 2, k - 1}:
        before = p.copy()
        q = drop_center(rows, p, which)
        same(p, before)
        assert len(q.centers) == k - 1
        kept = p.centers.copy()
        kept[which] = kept[k - 1]
        np.testing.assert_array_equal(q.centers, kept[: k - 1])
        # Ties go to the one that had the lower number before.
        without = oracles.distances(x, p.centers)
        without[:, which] = np.inf
        first = without.argmin(axis=1)
        moved = p.labels == which
        np.testing.assert_array_equal(q.labels, np.where(first == k - 1, which, first))
        np.testing.assert_array_equal(q.upper, np.sqrt(without.min(axis=1)))
        np.testing.assert_array_equal(q.lower[~moved], p.lower[~moved])
        check_bounds(rows, q)
        joined = np.unique(q.labels[moved])
        np.testing.assert_array_equal(np.flatnonzero(q.stale), joined)
        others = np.setdiff1d(np.arange(k - 1), joined)
        counts = oracles.counts_of(rows.weight, q.labels, k - 1)
        np.testing.assert_array_equal(q.counts[others], counts[others])
        costs = oracles.costs_of(x, rows.weight, q.labels, q.centers)
        np.testing.assert_array_equal(q.costs[others], costs[others])


@pytest.mark.parametrize(
    ("kind", "d", "weighted"), in_turns(["blobs", "uniform", "heavy"], [1, 2, 3, 14], [False, True])
)
def test_settle_is_the_algorithm_of_lloyd(kind, d, weighted):
    r = np.random.default_rng(d)
    for k in (1, 2, 7, 30):
        x = make(kind, 300, d, r)
        rows = CenteredRows.of(x, weights("wide" if weighted else None, len(x), r))
        start = started(rows, x[r.choice(len(x), k, replace=False)])
        for most_steps, calm in [(0, 0), (1, 0), (3, 0), (1000, 5), (1000, 0)]:
            p = start.copy()
            steps = settle(rows, p, most_steps, calm)
            labels, centers, expected = oracles.lloyd(
                x, rows.weight, start.labels, start.centers, most_steps, calm
            )
            np.testing.assert_array_equal(p.labels, labels)
            np.testing.assert_array_equal(p.centers, centers)
            assert steps == expected
            check_bounds(rows, p)
            check_sums(rows, p, which=slice(None))
        check_settled(rows, p)
        if k == 7 and kind == "uniform":
            assert steps > 4


@pytest.mark.parametrize(("kind", "d", "seed"), in_turns(KINDS, [1, 2, 3, 14, 5], range(18)))
def test_bounds_hold_whatever_happens(kind, d, seed):
    """Centres that come and go, single rows that move, and descents cut anywhere."""
    r = np.random.default_rng([KINDS.index(kind), d, seed])
    n = int(r.choice([5, 60, 600] if COMPILED else [5, 60]))
    x = make(kind, n, d, r)
    rows = CenteredRows.of(x, weights(r.choice(["none", "wide", "whole"]), n, r))
    k = int(r.choice([1, 2, 5, 15, 40]))
    p = started(rows, x[r.integers(n, size=k)] + r.choice([0.0, 0.1]))
    check_bounds(rows, p)
    done = set()
    for _ in range(25):
        k = len(p.centers)
        before = oracles.objective(x, rows.weight, p.labels, k)
        what = r.choice(["add", "drop", "few", "calm", "all", "move"])
        what = "add" if what == "drop" and k == 1 else what
        done.add(what)
        if what == "add":
            y = [x[r.integers(n)], p.centers[r.integers(k)], r.permuted(x, axis=0)[0]]
            p = add_center(rows, p, y[r.integers(3)])
        elif what == "drop":
            p = drop_center(rows, p, int(r.integers(k)))
        elif what in ("few", "calm", "all"):
            most = int(r.integers(0, 6)) if what == "few" else 1000
            calm = int(r.integers(1, 1 + n // 4)) if what == "calm" else 0
            changed, start = p.stale.any(), p.copy()
            labels, centers, expected = oracles.lloyd(
                x, rows.weight, p.labels, p.centers, most, calm
            )
            # (centres, also those of clusters without rows, are the same to the bit)
            assert settle(rows, p, most, calm) == (expected if changed else 0)
            np.testing.assert_array_equal(p.labels, labels if changed else start.labels)
            np.testing.assert_array_equal(p.centers, centers if changed else start.centers)
        else:
            settle(rows, p, int(r.integers(0, 3)))
            sizes = np.bincount(p.labels, minlength=k)
            move_rows(rows, p, int(r.choice([1, 100])))
            assert (np.bincount(p.labels, minlength=k)[sizes > 0] > 0).all()
        check_bounds(rows, p)
        check_sums(rows, p)
        if what in ("few", "calm", "all"):
            check_sums(rows, p, which=slice(None))
        if what in ("few", "calm", "all", "move"):
            after = oracles.objective(x, rows.weight, p.labels, k)
            assert after <= before * (1 + 1e-12) + rounding(x) ** 2 * rows.weight.sum()
        if what == "all":
            check_settled(rows, p)
    assert len(done) > 3
    settle(rows, p)
    check_settled(rows, p)


@pytest.mark.parametrize(("k", "kind"), [(3, "heavy"), (40, "uniform"), (12, "blobs")])
def test_a_descent_goes_on_where_it_was_cut(kind, k):
    r = np.random.default_rng(k)
    x = make(kind, 500, 2, r)
    rows = CenteredRows.of(x)
    start = settled(rows, x[r.choice(len(x), k, replace=False)])
    longest = 0
    for _ in range(5):
        start = add_center(rows, drop_center(rows, start, 0), x[r.integers(len(x))])
        whole = start.copy()
        steps = settle(rows, whole)
        longest = max(longest, steps)
        for parts in ([1], [3], [1, 1, 2], [0, 2]):
            cut = start.copy()
            for part in parts:
                settle(rows, cut, part)
            settle(rows, cut)
            same(cut, whole)
            check_settled(rows, cut)
        start = whole
    assert longest > 4


def test_a_cluster_without_rows_keeps_its_place():
    x = np.array([[-4.0], [-2.0], [2.0], [4.0]])
    rows = CenteredRows.of(x)
    p = started(rows, np.array([[-3.0], [100.0], [3.0]]))
    settle(rows, p)
    np.testing.assert_array_equal(p.centers, [[-3.0], [100.0], [3.0]])
    np.testing.assert_array_equal(p.counts, [2, 0, 2])
    np.testing.assert_array_equal(p.costs, [2, 0, 2])
    check_settled(rows, p)
    # One that loses its rows on the way: the middle one, which lies between two others.
    x = np.array([[0.0], [10.0], [11.0], [20.0]])
    rows = CenteredRows.of(x)
    p = started(rows, np.array([[0.0], [10.4], [10.5], [20.0]]))
    np.testing.assert_array_equal(p.labels, [0, 1, 2, 3])
    p = drop_center(rows, p, 1)
    q = add_center(rows, p, np.array([10.5]))
    assert (q.labels != 3).all()
    settle(rows, q)
    assert q.counts[3] == q.costs[3] == 0
    np.testing.assert_array_equal(q.centers[3], [10.5])
    check_settled(rows, q)


def test_a_cluster_that_loses_all_its_rows_on_the_way():
    r = np.random.default_rng(0)
    emptied = 0
    for _ in range(100):
        x = r.standard_normal((12, 2))
        rows = CenteredRows.of(x, r.uniform(0.5, 2, 12))
        p, _ = label_rows(rows, x[:4])
        # Rows are anywhere at first, and nothing is known of them.
        p.labels[:] = np.append(np.arange(4), r.integers(4, size=8))
        p.upper[:], p.lower[:], p.stale[:] = 10.0, 0.0, True
        labels, centers, steps = oracles.lloyd(x, rows.weight, p.labels, p.centers)
        assert settle(rows, p) == steps
        np.testing.assert_array_equal(p.labels, labels)
        np.testing.assert_array_equal(p.centers, centers)
        check_settled(rows, p)
        empty = np.bincount(labels, minlength=4) == 0
        assert (p.counts[empty] == 0).all()
        assert (p.costs[empty] == 0).all()
        emptied += empty.any()
    assert emptied > 0


def far_apart(r, n_blobs=8):
    """Rows about middles that are far apart in a line, and where each belongs."""
    of = np.repeat(np.arange(n_blobs), 60)
    x = np.stack([1e3 * of, np.zeros(len(of))], axis=1) + r.standard_normal((len(of), 2))
    return x - x.mean(axis=0), of


@pytest.mark.parametrize("what", ["add", "drop", "cut"])
def test_work_is_local(what):
    """Rows of far clusters are not even read: they are NaN here."""
    r = np.random.default_rng(2)
    x, of = far_apart(r)
    starts = np.concatenate([x[0:480:60], x[1:480:60]])
    rows = CenteredRows.of(x)
    base = settled(rows, starts)
    changed = base.labels[0]
    if what == "drop":
        before = drop_center(rows, base, int(changed))
    else:
        before = add_center(rows, base, x[5])
    far = of > 1
    hidden = x.copy()
    hidden[far] = np.nan
    parts = [1, 1000] if what == "cut" else [1000]
    p, seen = before.copy(), before.copy()
    steps = 0
    for part in parts:
        steps += settle(CenteredRows.of(hidden), p, part)
        settle(rows, seen, part)
    # Something has happened, and it is what happens where all rows are in their places.
    assert steps > 0
    assert (p.centers != before.centers).any()
    same(p, seen)
    check_bounds(rows, p)
    check_settled(rows, p)
    far_clusters = np.unique(before.labels[far])
    assert len(far_clusters) == 12
    for name in ("centers", "counts", "costs"):
        kept = getattr(before, name)[far_clusters]
        np.testing.assert_array_equal(getattr(p, name)[far_clusters], kept)
    np.testing.assert_array_equal(p.labels[far], before.labels[far])


def test_bounds_leave_rows_out():
    """Of a cluster whose neighbour has moved a little, rows far from both are not read."""
    r = np.random.default_rng(4)
    x = r.uniform(-1, 1, (400, 2))
    x[:, 0] *= 10
    x -= x.mean(axis=0)
    rows = CenteredRows.of(x)
    base = exact(rows, settled(rows, x[r.choice(400, 8, replace=False)]))
    p = add_center(rows, base, x[0])
    # Clusters that have lost rows are summed again, so all of their rows are needed.
    kept = ~p.stale[p.labels]
    deep = kept & (p.upper < 0.2 * p.lower)
    assert deep.sum() > 20
    hidden = x.copy()
    hidden[deep] = np.nan
    q = p.copy()
    settle(CenteredRows.of(hidden), p, 1)
    settle(rows, q, 1)
    same(p, q)


@pytest.mark.skipif(COMPILED, reason="distances are counted where plain functions find them")
def test_few_distances_are_found(monkeypatch):
    """Bounds that are too loose are valid as well: they show in the work only."""
    r = np.random.default_rng(7)
    n, k, found = 600, 20, [0]
    x = make("uniform", n, 2, r)
    rows = CenteredRows.of(x)
    start = started(rows, x[:k])
    distances = descent._distances

    def count(columns, begin, center, into):
        found[0] += len(into)
        distances(columns, begin, center, into)

    monkeypatch.setattr(descent, "_distances", count)
    p = start.copy()
    steps = settle(rows, p)
    assert steps > 10
    assert 0 < found[0] < 0.042 * n * k * steps
    found[0] = steps = 0
    for j in range(6):
        steps += settle(rows, p := drop_center(rows, p, j))
        with monkeypatch.context() as uncounted:
            uncounted.setattr(descent, "_distances", distances)
            p = add_center(rows, p, x[r.integers(n)])
        steps += settle(rows, p)
    assert steps > 50
    assert 0 < found[0] < 0.025 * n * k * steps
