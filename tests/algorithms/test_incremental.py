"""Rounds over a table of labels, against the formulas in plain numpy, and on awkward data."""

from __future__ import annotations

import dataclasses
import warnings
from itertools import pairwise

import dask
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import largek_dask as lk
from largek_dask.algorithms import incremental
from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.incremental import CALM_SHARE, IncrementalLloyd
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.data.sources import open_rows
from largek_dask.errors import ParameterError
from largek_dask.kernels.exact.extrapolated import LEAST_SHARE
from largek_dask.kernels.exact.sums import ClusterSums
from largek_dask.passes.engine import Engine
from largek_dask.passes.local import LocalPasses
from tests import oracles
from tests.algorithms.conftest import bits, blobs
from tests.helpers.checks import faults_of_fit, faults_of_means, recorded_warnings, watched_passes
from tests.helpers.covering import in_turns
from tests.passes.toys import rows_of

RNG = Rng(5)
K = 7


@pytest.fixture
def small_samples(monkeypatch):
    """A first sample of an eighth of the rows, so that few rows double several times."""
    begin_small(monkeypatch)


def begin_small(monkeypatch):
    monkeypatch.setattr(incremental, "LEAST_ROWS", 100)
    monkeypatch.setattr(incremental, "ROWS_A_CENTER", 20)
    monkeypatch.setattr(incremental, "TIMES_SAMPLE", 2)


def ends(begin, end, n_rounds):
    return [begin + (end - begin) * q // n_rounds for q in range(n_rounds + 1)]


def rows_of_rounds(table, stages, n_rounds, rng=RNG):
    """Global rows of each round: of every stage, and of every chunk's order, one share."""
    n = int(table[-1])
    rounds = [[] for _ in range(n_rounds)]
    for index, (start, stop) in enumerate(pairwise(table)):
        size = int(stop - start)
        order = start + oracles.row_order(rng, index, size)
        for begin, end in pairwise(stages):
            cuts = [cut * size // n for cut in ends(begin, end, n_rounds)]
            for chosen, span in zip(rounds, pairwise(cuts), strict=True):
                chosen.extend(order[slice(*span)])
    return [np.array(chosen, np.int64) for chosen in rounds]


class Twin:
    """The same epochs, every sum from scratch."""

    def __init__(self, passes, x, weight, centers, n_rounds, smoothing):
        self.x, self.weight, self.grid = x, weight, passes.statistics.grid
        self.table, self.n_rounds, self.smoothing = passes.chunk_table, n_rounds, smoothing
        self.centers = np.array(centers)
        self.factor = (n_rounds - 1) / 2
        self.labels = np.full(len(x), -1, np.int32)
        self.is_calm = False
        self.best, self.n_halved, self.before = np.inf, 0, None

    def sums(self, labels):
        out = ClusterSums(len(self.centers), self.x.shape[1], self.grid)
        out.add(self.x, labels, self.weight)
        return out

    def values(self, labels):
        found = self.sums(labels)
        s = found.totals * 2.0**-self.grid.bits
        return s, found.weights * 2.0**-self.grid.weight_bits, found

    def cost(self):
        s, v, _ = self.values(self.labels)
        there = (self.labels >= 0) & (True if self.weight is None else self.weight > 0)
        weight = np.ones(len(self.x)) if self.weight is None else self.weight
        squares = (weight * np.square(self.x - self.grid.shift).sum(axis=1))[there].sum()
        return squares - (np.square(s).sum(axis=1)[v > 0] / v[v > 0]).sum(), squares

    def nearest(self, rows):
        found = oracles.squared_distances(self.x[rows], self.centers).argmin(axis=1)
        if self.weight is not None:
            found[self.weight[rows] <= 0] = -1
        return found

    def epoch(self, stages):
        """One epoch over all rows of these stages; how many labels changed."""
        n = len(self.x)
        everything = stages[-1] == n
        anew = self.before is None or (everything and self.before[-1] != n)
        if anew:
            self.labels[:] = -1
            self.ahead, self.ahead_weights = (
                np.zeros(self.centers.shape),
                np.zeros(len(self.centers)),
            )
        shift, n_changed, n_rows = self.grid.shift.astype(float), 0, 0
        if self.before != stages:
            self.best = np.inf
        parts = [0, n] if everything else [0, *stages]
        for rows in rows_of_rounds(self.table, parts, self.n_rounds):
            n_rows += len(rows)
            old_labels = self.labels.copy()
            self.labels[rows] = self.nearest(rows)
            changed = self.labels != old_labels
            n_changed += int(changed.sum())
            if anew:
                continue
            had = old_labels >= 0
            was = self.sums(np.where(had, old_labels, -1))
            now = self.sums(np.where(had, self.labels, -1))
            ds = (now.totals - was.totals) * 2.0**-self.grid.bits
            dv = (now.weights - was.weights) * 2.0**-self.grid.weight_bits
            factor = 0.0 if self.is_calm else self.factor
            self.ahead = (1 - self.smoothing) * self.ahead + self.smoothing * factor * ds
            self.ahead_weights = (
                1 - self.smoothing
            ) * self.ahead_weights + self.smoothing * factor * dv
            s, v, found = self.values(self.labels)
            total = v + self.ahead_weights
            use = (v > 0) & (total > LEAST_SHARE * v)
            use &= self.ahead.any(axis=1) | (self.ahead_weights != 0)
            plain = found.means_float64(self.centers)
            with np.errstate(divide="ignore", invalid="ignore"):
                ahead = (s + self.ahead) / total[:, None] + shift
            self.centers = np.where(use[:, None], ahead, plain)
        if anew:
            self.centers = self.sums(self.labels).means_float64(self.centers)
        cost, squares = self.cost()
        if cost > self.best + 1e-12 * squares and self.factor and not self.is_calm:
            self.n_halved += 1
            self.factor = 0.0 if self.n_halved > 3 else self.factor / 2
            self.rest()
        self.best, self.before = min(cost, self.best), stages
        if everything and not anew and n_changed < CALM_SHARE * n_rows and not self.is_calm:
            self.is_calm = True
            self.rest()
        return n_changed

    def rest(self):
        self.ahead[:], self.ahead_weights[:] = 0, 0
        self.centers = self.sums(self.labels).means_float64(self.centers)


def steps(passes, algorithm, centers, n_steps):
    """States and infos of each step, up to a fixed point."""
    problem = KMeansProblem(len(centers), centers, "keep")
    algorithm = algorithm.bind(problem)
    return steps_from(algorithm.init(passes, RNG), passes, algorithm, n_steps)


def steps_from(state, passes, algorithm, n_steps):
    """The same from a state on."""
    out = []
    for _ in range(n_steps):
        state, info = algorithm.step(passes, RNG, state)
        out.append((state, info))
        if info.converged:
            break
    return out


def weights_of(kind, n, r):
    if kind == "none":
        return None
    weight = r.integers(0, 4, n).astype(float) if kind == "integer" else r.uniform(0, 2, n)
    weight[r.random(n) < 0.1] = 0
    return weight


@pytest.mark.parametrize(
    ("weights", "form"),
    in_turns(["none", "integer", "real"], [(1, 0.5), (3, 0.5), (10, 0.5), (10, 1.0)]),
)
def test_epochs_are_those_of_the_formulas(weights, form, small_samples):
    """Bit for bit: two samples, then all rows, in chunks smaller than the rounds and large ones."""
    n_rounds, smoothing = form
    x = blobs(1_600, 6, 12, seed=3, spread=1.0).astype(np.float64)
    weight = weights_of(weights, len(x), np.random.default_rng(0))
    sizes = [700, 4, 396, 1, 499]
    centers = x[:K].copy()
    with LocalPasses(rows_of(x, sizes, weight), n_threads=1) as passes:
        assert passes.n_chunks == 5
        twin = Twin(passes, x, weight, centers, n_rounds, smoothing)
        found = steps(passes, IncrementalLloyd(n_rounds, smoothing), centers, 60)
        stages = [state.stages for state, _ in found]
        assert found[0][0].stages[0] == 200
        for i, (state, info) in enumerate(found):
            n_changed = twin.epoch(stages[i - 1] if i else (200,))
            assert np.array_equal(state.centers, twin.centers), f"epoch {i}"
            assert info.n_changed == n_changed
            sums, totals = twin.sums(twin.labels).limbs()
            assert np.array_equal(state.sums, sums)
            assert np.array_equal(state.weights, totals)
            cost, squares = twin.cost()
            there = state.counts.sum() / passes.statistics.total_weight
            assert info.cost == pytest.approx(cost / there, rel=1e-9, abs=1e-12 * squares)
    assert stages[-1] == (200, 400, 800, 1600)
    assert found[-1][1].converged
    assert n_rounds == 1 or any(state.expected_sums.any() for state, _ in found)


def fit(x, k=K, **options):
    options = {"max_iter": 60, "tol": 0, "random_state": 0, "n_threads": 1} | options
    return lk.KMeans(k, algorithm=options.pop("algorithm", lk.IncrementalLloyd()), **options).fit(x)


def test_ends_where_lloyds_algorithm_stands_still():
    x = blobs(9_000, 6, 20, seed=1, spread=1.0)
    km = fit(x, 20)
    assert km.stop_reason_ == "converged"
    factors = [step["extra"]["factor"] for step in km.history_]
    assert factors[0] == 4.5
    assert factors[-1] == 0, "the last epochs expect nothing"
    again = lk.KMeans(20, algorithm=lk.Lloyd(), init=km.cluster_centers_, tol=0).fit(x)
    assert again.n_iter_ <= 2
    assert np.array_equal(again.cluster_centers_, km.cluster_centers_)
    assert np.array_equal(again.labels_, km.labels_)
    assert faults_of_means(km, x) == []


@given(
    st.integers(1, 60), st.integers(1, 3), st.integers(1, 6), st.integers(1, 12),
    st.sampled_from(["none", "integer", "real"]), st.booleans(), st.booleans(),
    st.integers(0, 2**31),
)  # fmt: skip
def test_the_objective_never_rises_where_nothing_is_expected(
    n, d, k, n_rounds, weights, is_sorted, repeated, seed
):
    r = np.random.default_rng(seed)
    x = r.integers(-3, 4, (n, d)).astype(float) if repeated else r.standard_cauchy((n, d))
    if is_sorted:
        x = x[np.argsort(x[:, 0], kind="stable")]
    weight = weights_of(weights, n, r)
    if weight is not None:
        weight[0] = 1
    k = min(k, n)
    sizes = [n // 2, n - n // 2] if n > 1 else [n]
    with LocalPasses(rows_of(x, sizes, weight), n_threads=1) as passes:
        algorithm = IncrementalLloyd(n_rounds).bind(KMeansProblem(k, x[:k].copy(), "keep"))
        state = dataclasses.replace(algorithm.init(passes, RNG), factor=0.0)
        costs = []
        for _ in range(12):
            state, info = algorithm.step(passes, RNG, state)
            assert not state.expected_sums.any()
            costs.append(info.cost)
        squares = state.squares
    # What scores and centres are rounded by, and the difference of squares that the cost is.
    assert np.diff(costs).max(initial=0) <= 1e-11 * squares
    assert np.isfinite(costs).all()


def test_what_does_not_pay_is_halved_and_given_up():
    x = blobs(6_000, 6, 60, seed=4, spread=0.8).astype(np.float64)
    centers = x[:30].copy()
    with LocalPasses(rows_of(x, [3000, 3000]), n_threads=1) as passes:
        algorithm = IncrementalLloyd(10).bind(KMeansProblem(30, centers, "keep"))
        state = dataclasses.replace(algorithm.init(passes, RNG), factor=100.0)
        lowest, factors, costs = np.inf, [], []
        for _ in range(200):
            before = state
            state, info = algorithm.step(passes, RNG, state)
            if before.known == before.rows == passes.n_rows and not before.is_calm:
                risen = info.cost > lowest
                expected = [0.0, before.factor / 2] if risen else [before.factor]
                assert state.factor in expected
                if risen:
                    assert not state.expected_sums.any()
                    assert not state.expected_weights.any()
            lowest = min(lowest if before.known == before.rows else np.inf, info.cost)
            factors.append(state.factor)
            costs.append(info.cost)
            if info.converged:
                break
    assert info.converged
    assert factors[-1] < 100, "it has risen"
    assert np.isfinite(costs).all()


# --- where rows are, and what is lost -------------------------------------------------------------


def states_of(x, sizes, *, n_threads=1, memory_limit=None, n_steps=9):
    with LocalPasses(rows_of(x, sizes), n_threads=n_threads, memory_limit=memory_limit) as passes:
        found = steps(passes, IncrementalLloyd(4), x[:K].copy(), n_steps)
        return [(s.centers.tobytes(), s.sums.tobytes(), i.cost) for s, i in found], passes


def in_place(monkeypatch):
    """As where all rows are more than what is held of them: every pass goes over the table."""
    monkeypatch.setattr(IncrementalLloyd, "_gathers", lambda *_: False)


def test_held_rows_or_those_of_the_table(monkeypatch, small_samples):
    """All rows are gathered, or stay where they are; one piece of memory, or chunks."""
    x = blobs(1_600, 6, 12, seed=3, spread=1.0)
    sizes = [700, 4, 396, 1, 499]
    expected, held = states_of(x, sizes)
    assert held.total.passes < 10, "the passes of rounds are those of the rows that are held"
    in_place(monkeypatch)
    for n_threads in (1, 2, 5):
        found, passes = states_of(x, sizes, n_threads=n_threads)
        assert found == expected
        assert passes.total.passes > 20
    shown = []
    count = Engine._count

    def counted(self, ticket, slot, block, *others):
        shown.append(block.index)
        return count(self, ticket, slot, block, *others)

    monkeypatch.setattr(Engine, "_count", counted)
    with LocalPasses(open_rows(x), n_threads=1) as passes:
        steps(passes, IncrementalLloyd(4), x[:K].copy(), 9)
    assert -1 in shown, "an array in memory is shown as one chunk"


def test_lost_labels_are_found_again(small_samples, monkeypatch):
    in_place(monkeypatch)
    x = blobs(1_600, 6, 12, seed=3, spread=1.0)
    sizes = [700, 4, 396, 1, 499]
    expected, kept = states_of(x, sizes)
    found, passes = states_of(x, sizes, memory_limit=1_500)
    assert found == expected
    assert passes.total.rebuilt > 0 == kept.total.rebuilt


@pytest.mark.parametrize(("held", "n_threads"), in_turns([False, True], [5, 1, 2]))
def test_an_array_in_memory(n_threads, held, monkeypatch):
    if not held:
        in_place(monkeypatch)
    x = blobs(30_000, 6, 12, seed=3, spread=1.0)
    weight = np.random.default_rng(0).uniform(0, 1, len(x))
    weight[::7] = 0
    x[::7][:5] = np.nan
    expected = None
    for data in (x, np.asfortranarray(x)):
        km = lk.KMeans(
            30, algorithm=lk.IncrementalLloyd(), random_state=1, n_threads=n_threads, tol=0
        )
        small = {"largek.data.memory-chunk-bytes": 1 << 16}
        with watched_passes() as seen, dask.config.set(small):
            km.fit(data, sample_weight=weight)
        assert seen[0].n_chunks > 1
        expected = expected or bits(km)
        assert bits(km) == expected


# --- samples, and sizes at which something else is done ------------------------------------------


def test_what_cannot_be_held_is_not_begun_with():
    for n, k in ((80_001, 8), (1_600_003, 1_000)):
        first = incremental.first_rows(n, k, row_values=16)
        assert first == -(-n // 16)
        held = incremental.GATHERED_VALUES // first
        assert incremental.first_rows(n, k, held) == first
        assert incremental.first_rows(n, k, held + 1) == n


def test_rounds_are_fewer_where_centres_are_large(monkeypatch):
    x = blobs(4_000, 6, 8, seed=1, spread=1.0)
    centers = x[:8].copy()
    monkeypatch.setattr(incremental, "MODEL_VALUES", 3 * 8 * 6)
    assert {s["extra"]["rounds"] for s in fit(x, 8, init=centers, max_iter=4).history_} == {3}
    monkeypatch.setattr(incremental, "MODEL_VALUES", 2 * 8 * 6 - 1)
    km = fit(x, 8, init=centers)
    assert {s["extra"]["rounds"] for s in km.history_} == {1}
    lloyd = lk.KMeans(8, algorithm=lk.Lloyd(), init=centers, tol=0, max_iter=60).fit(x)
    assert np.array_equal(km.cluster_centers_, lloyd.cluster_centers_)


def test_rounds_of_sparse_rows():
    """An update of all centres is not to cost more than the distances of a round."""
    r = np.random.default_rng(0)
    x = sp.random(3_000, 900, 0.02, "csr", np.float32, rng=r)
    km = fit(x, 6)
    assert x.nnz == 54_000
    assert {s["extra"]["rounds"] for s in km.history_} == {8}
    assert faults_of_fit(km, x) == []
    thin = sp.random(3_000, 90_000, 1e-4, "csr", np.float32, rng=r)
    assert {s["extra"]["rounds"] for s in fit(thin, 6, max_iter=3).history_} == {2}


AWKWARD = {
    "one row": (np.ones((1, 3)), None, 1),
    "a row a cluster": (blobs(40, 6, 5, seed=1), None, 40),
    "fewer distinct rows": (np.repeat(blobs(5, 6, 5, seed=1), 30, axis=0), None, 9),
    "equal rows": (np.ones((200, 2)), None, 3),
    "duplicates": (np.repeat(blobs(60, 6, 5, seed=1), 4, axis=0), None, 6),
    "an outlier": (np.concatenate([blobs(900, 6, 5, seed=1), [[1e6] * 6]]), None, 5),
    "most weigh nothing": (
        blobs(900, 6, 5, seed=1), (np.arange(900) % 9 == 0).astype(float), 5
    ),
    "sorted": (np.sort(blobs(900, 6, 5, seed=1), axis=0), None, 5),
}  # fmt: skip


@pytest.mark.parametrize(("name", "rounds"), in_turns([*AWKWARD], [1, 10, 2]))
def test_awkward_rows(name, rounds):
    x, weight, k = AWKWARD[name]
    x = x.astype(np.float32)
    km = lk.KMeans(
        k, algorithm=lk.IncrementalLloyd(rounds=rounds), random_state=0, tol=0, max_iter=100
    )
    with recorded_warnings() as told:
        km.fit(x, sample_weight=weight)
    assert faults_of_fit(km, x, weight, told=told) == []
    assert km.stop_reason_ == "converged"


def test_a_cluster_that_loses_all_its_rows():
    """Relocated between epochs, or kept; nothing is expected of it."""
    x = np.concatenate([blobs(400, 2, 3, seed=1, spread=9.0), np.full((3, 2), 500.0)])
    x = x.astype(np.float32)
    init = np.concatenate([x[:4], [[1e4, 1e4]]]).astype(np.float32)
    moved = fit(x, 5, init=init)
    assert any(step["extra"].get("relocated") for step in moved.history_)
    assert len(np.unique(moved.labels_)) == 5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept = fit(x, 5, init=init, empty_clusters="keep")
    assert not any(step["extra"].get("relocated") for step in kept.history_)
    assert np.array_equal(kept.cluster_centers_[4], init[4])


def test_bad_parameters():
    for options, message in [
        ({"rounds": 0}, "rounds must be an integer of at least 1, got 0"),
        ({"rounds": True}, "rounds must be an integer"),
        ({"rounds": 2.5}, "rounds must be an integer"),
        ({"smoothing": 0}, "smoothing must be above 0 and at most 1, got 0"),
        ({"smoothing": 1.5}, "smoothing must be above 0 and at most 1"),
        ({"smoothing": np.nan}, "smoothing must be above 0"),
    ]:
        with pytest.raises(ParameterError, match=message):
            lk.IncrementalLloyd(**options)
