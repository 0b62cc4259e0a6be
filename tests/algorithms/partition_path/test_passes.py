"""Passes over all partitions at once are one pass over each of them, to the bit."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import dask
import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.lloyd import Lloyd
from largek_dask.algorithms.partition_path import passes as module
from largek_dask.algorithms.partition_path.passes import (
    begin_path,
    count_pass,
    count_ties,
    path_step,
)
from largek_dask.algorithms.path_arrays import centers_in, packed, rows_of_path
from largek_dask.data.sources import open_rows
from largek_dask.kernels.distances import (
    nearest,
    nearest_two,
    pack_centers,
    scores,
    squared_distances,
)
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.sums import ClusterSums
from largek_dask.passes.local import LocalPasses
from tests.algorithms.conftest import blobs
from tests.passes.toys import StoredRows, rows_of

N, K = 2000, 9
SIZES = {"one": [N], "several": [700, 1, 299, 1000], "many": [100] * 20}


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch):
    """A chunk is several blocks."""
    monkeypatch.setattr(module, "MOST_ROWS", 384)
    assert max(SIZES["several"]) > 2 * 384


def weights_of(kind):
    r = np.random.default_rng(3)
    if kind == "none":
        return None
    absent = r.random(N) < 0.1
    weight = {
        "integers": r.integers(1, 6, N).astype(float),
        "reals": r.uniform(0.5, 2, N),
        "wide": np.exp(4 * r.normal(size=N)),
    }[kind]
    weight[absent] = 0
    return weight


def rows_and_path(dtype, d, far=False):
    """Rows on a grid, so that some are as far from two centres, and centres drawn from them."""
    r = np.random.default_rng(d)
    x = r.integers(0, 9, (N, d)) if dtype in ("i2", "u1") else r.integers(0, 9, (N, d)) / 8 + 1
    x = x.astype(dtype)
    if far:
        x[5] = 1e13
    kind = np.float64 if dtype == "f8" else np.float32
    path = packed([x[r.choice(N, n, replace=False)].astype(kind) for n in range(1, K + 1)])
    path[rows_of_path(5) - 1] = -300  # the last of the partition into 5: without rows
    return x, path


def nearest_of_all(row, centers):
    """Index of the nearest centre, in exact arithmetic; the first of several."""

    def square(center):
        return sum(
            (Fraction(float(a)) - Fraction(float(b))) ** 2 for a, b in zip(row, center, strict=True)
        )

    return min(range(len(centers)), key=lambda at: square(centers[at]))


def bits(found):
    return {name: np.asarray(getattr(found, name)).tobytes() for name in found.__slots__}


def passes_of(x, weight=None, sizes="several", n_threads=1, **options):
    own = SIZES[sizes] if len(x) == N else [len(x)]
    return LocalPasses(rows_of(x, own, weight), n_threads=n_threads, **options)


CASES = [
    (dtype, d, kind, False)
    for dtype in ("f4", "f8", "i2", "u1")
    for d in (3, 12)
    for kind in ("none", "integers", "reals", "wide")
] + [
    (dtype, d, kind, True)
    for dtype in ("f4", "f8")
    for d in (3, 12)
    for kind in ("none", "integers", "wide")
]


@pytest.mark.parametrize(("dtype", "d", "kind", "far"), CASES[::3])
def test_each_partition_by_itself(dtype, d, kind, far):
    x, path = rows_and_path(dtype, d, far)
    weight = weights_of(kind)
    with passes_of(x, weight) as passes:
        assert passes.n_chunks == 4
        statistics = passes.statistics
        assert statistics.grid.wide == (far or kind == "wide")
        state = path_step(passes, begin_path(path, K))
        count = count_pass(passes, path, K)
    present = np.ones(N, bool) if weight is None else weight > 0
    total = float(np.count_nonzero(present)) if weight is None else weight.sum()
    n_ties = 0
    for n in range(1, K + 1):
        centers, own = centers_in(path, n), slice(rows_of_path(n - 1), rows_of_path(n))
        centers_packed = pack_centers(centers, statistics.shift)
        labels = nearest(x, centers_packed)
        sums = ClusterSums(n, d, statistics.grid)
        sums.add(x, labels, weight)
        assert centers_in(state.path, n).tobytes() == sums.means(centers).tobytes()
        assert state.counts[own].tobytes() == sums.counts.tobytes()
        if far:  # what is counted at last tells where the far row belongs
            labels[5] = nearest_of_all(x[5], centers)
            sums = ClusterSums(n, d, statistics.grid)
            sums.add(x, labels, weight)
        assert count.counts[own].tobytes() == sums.counts.tobytes()
        exact = ExactSums()
        exact.add(squared_distances(x, centers_packed, labels), weight)
        assert count.inertia[n - 1] == exact.value
        np.testing.assert_allclose(state.cost[n - 1], exact.value, rtol=1e-6 if far else 1e-9)
        moved = ((sums.means(centers).astype("f8") - centers.astype("f8")) ** 2).sum(axis=1)
        np.testing.assert_allclose(count.movement[n - 1], np.sqrt(moved.max()), rtol=1e-12)
        squares = [squared_distances(x, centers_packed, np.full(N, j, np.int32)) for j in range(n)]
        nearest_first = np.sort(np.stack(squares), axis=0)
        ties = 0
        if n > 1:
            ties = np.count_nonzero((nearest_first[0] == nearest_first[1])[present])
        assert count.ties[n - 1] == ties
        n_ties += ties
    assert n_ties > 20
    np.testing.assert_allclose(count.counts[:1], total)
    assert count.counts[rows_of_path(5) - 1] == 0
    assert (centers_in(state.path, 5)[4] == -300).all()


@pytest.mark.parametrize("d", [3, 12])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_distances_that_only_rounding_makes_equal_are_no_ties(dtype, d):
    """Two centres as far but for the last bits, seen from all rows."""
    x = blobs(N, d, 4).astype(dtype)
    first = x[:1] + 50
    second = first.copy()
    second[0, 0] = np.nextafter(second[0, 0], np.inf)
    path = np.concatenate([x[:1], first, second])
    with passes_of(x) as passes:
        found = count_pass(passes, path, 2).ties[1]
        packed_centers = pack_centers(centers_in(path, 2), passes.statistics.shift)
    a, b = (squared_distances(x, packed_centers, np.full(N, j, np.int32)) for j in (0, 1))
    assert found == np.count_nonzero(a == b) < N
    assert (a.astype(dtype) == b.astype(dtype)).sum() > found or dtype == "f8"


def test_a_tie_that_a_third_centre_seems_to_come_between():
    """The same features in another order are as far in float64, and not so in float32."""
    r = np.random.default_rng(0)
    row, hidden = np.zeros((1, 8), np.float32), 0
    for _ in range(2000):
        features = np.floor(r.uniform(1, 2, 8) * 2.0 ** r.integers(8, 16, 8)).astype(np.float32)
        centers = np.stack([r.permutation(features) for _ in range(3)])
        centers[1, 0] = np.nextafter(centers[1, 0], np.float32(np.inf))
        packed_centers = pack_centers(centers, row[0])
        found = nearest_two(row, packed_centers)
        assert count_ties(row, packed_centers, found) == 1
        scored = scores(row, packed_centers)[0]
        hidden += scored[[0, 2]].max() > np.nextafter(found[3][0], np.float32(np.inf))
    assert hidden > 1


@pytest.mark.parametrize("d", [3, 12])
@pytest.mark.parametrize("kind", ["none", "reals"])
def test_steps_are_those_of_lloyd(d, kind):
    x, weight = blobs(N, d, 6, spread=1.0), weights_of(kind)
    r = np.random.default_rng(0)
    path = packed([x[r.choice(N, n, replace=False)] for n in range(1, K + 1)])
    with passes_of(x, weight, n_threads=2) as passes:
        state = begin_path(path, K)
        for _ in range(4):
            state = path_step(passes, state)
        assert state.n_passes == 4
        assert state.settled[0]
        for n in state.live:
            init = centers_in(path, n).astype("f8")
            algorithm = Lloyd().bind(KMeansProblem(n, init, empty_clusters="keep"))
            other = algorithm.init(passes, Rng(0))
            for _ in range(4):
                other, info = algorithm.step(passes, Rng(0), other)
            own = slice(rows_of_path(n - 1), rows_of_path(n))
            assert centers_in(state.path, n).tobytes() == other.centers.tobytes()
            assert state.counts[own].tobytes() == other.counts.tobytes()
            assert state.cost[n - 1] == info.cost
            assert state.movement[n - 1] == info.shift > 0


def test_every_partition_stops_by_itself():
    x = blobs(N, 3, 4, spread=2.0)
    r = np.random.default_rng(0)
    path = packed([x[r.choice(N, n, replace=False)] for n in range(1, K + 1)])
    stopped = {}
    with passes_of(x) as passes:
        state = begin_path(path, K)
        assert state.length == K
        while state.live:
            before, state = state, path_step(passes, state)
            for n in set(before.live) - set(state.live):
                stopped[n] = state.n_passes, centers_in(state.path, n).tobytes()
            for n in set(range(1, K + 1)) - set(before.live):
                assert centers_in(state.path, n).tobytes() == stopped[n][1]
                assert state.cost[n - 1] == before.cost[n - 1]
        assert len({at for at, _ in stopped.values()}) > 2
        count = count_pass(passes, state.path, K)
        assert not count.movement.any()
        assert path_step(passes, state) is state
        np.testing.assert_allclose(state.cost, count.inertia, rtol=1e-9)
        # with a tolerance earlier, and as soon as it is kept
        rough = begin_path(path, K)
        while rough.live:
            before, rough = rough, path_step(passes, rough, tol=1e-3)
            for n in before.live:
                assert (n not in rough.live) == (rough.movement[n - 1] <= 1e-3)
        assert rough.n_passes < state.n_passes


def test_only_partitions_that_are_live_are_assigned(monkeypatch):
    x, path = rows_and_path("f4", 3)
    met = set()

    def watched(rows, centers):
        met.add(centers.n_clusters)
        return nearest(rows, centers)

    monkeypatch.setattr(module, "nearest", watched)
    state = begin_path(path, K)
    settled = state.settled.copy()
    settled[[0, 3, 8]] = True
    with passes_of(x) as passes:
        found = path_step(passes, replace(state, settled=settled))
    assert met == {2, 3, 5, 6, 7, 8}
    assert np.isinf(found.cost).tolist() == settled.tolist()


def test_skipped_rows_are_absent():
    x, path = rows_and_path("f4", 12)
    bad = np.arange(0, N, 7)
    damaged = x.copy()
    damaged[bad, 3] = np.nan
    damaged[bad[::2], 5] = np.inf
    found = []
    with passes_of(damaged, on_bad_rows="skip") as passes:
        assert passes.statistics.n_bad == len(bad)
        found.append((path_step(passes, begin_path(path, K)), count_pass(passes, path, K)))
    with passes_of(np.delete(x, bad, axis=0)) as passes:
        found.append((path_step(passes, begin_path(path, K)), count_pass(passes, path, K)))
    assert [bits(a) for a in found[0]] == [bits(b) for b in found[1]]


def test_one_reading_a_pass():
    x, path = rows_and_path("f4", 12)
    rows = StoredRows(x, 5)
    with dask.config.set({"largek.passes.cache-bytes": 0}), LocalPasses(rows) as passes:
        assert passes.statistics.n_rows == N
        for look in (
            lambda: path_step(passes, begin_path(path, K)),
            lambda: count_pass(passes, path, K),
        ):
            rows.reads.clear()
            look()
            assert sorted(rows.reads) == [0, 1, 2, 3, 4]


def test_the_objective_is_that_of_the_model():
    x, weight = blobs(N, 12, 6, spread=1.0), weights_of("reals")
    _, path = rows_and_path("f4", 12)
    km = lk.KMeans(K, algorithm="lloyd", max_iter=3, random_state=0).fit(x, sample_weight=weight)
    path[rows_of_path(K - 1) :] = km.model_.arrays.centers
    with LocalPasses(open_rows(x, sample_weight=weight)) as passes:
        count = count_pass(passes, path, K)
    assert count.inertia[-1] == km.inertia_
    np.testing.assert_allclose(count.counts[-K:], km.model_.arrays.counts)
