"""Nested mini-batches against the paper's algorithm in plain numpy, and on awkward data."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from largek_dask.algorithms import nmbatch
from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.nmbatch import NMBatch
from largek_dask.data.sources import open_rows
from largek_dask.errors import ParameterError
from largek_dask.passes.local import LocalPasses
from tests import oracles
from tests.helpers.covering import in_turns
from tests.passes.toys import rows_of

SEED = 5
RNG = Rng(SEED)


class Spy:
    """Passes that note, a step, which rows of which chunk were assigned, and their labels."""

    def __init__(self, passes, monkeypatch):
        self.steps: list[dict[int, tuple[np.ndarray, np.ndarray]]] = []
        self.passes = passes
        real = nmbatch.nested_chunk

        def spying(chunk, total, centers, step, *rest):
            real(chunk, total, centers, step, *rest)
            while len(self.steps) < step:
                self.steps.append({})
            self.steps[step - 1][chunk.index] = (chunk.numbers(), chunk.kept["labels"])

        monkeypatch.setattr(nmbatch, "nested_chunk", spying)

    def rows_and_labels(self, step):
        """Global rows in ascending order, and their labels."""
        parts = self.steps[step].values()
        rows, labels = (np.concatenate([part[i] for part in parts]) for i in range(2))
        order = np.argsort(rows)
        return rows[order], labels[order]


def steps(passes, algorithm, init, n_steps, *, empty_clusters="keep", seed=SEED):
    """States and infos of each step, up to a fixed point."""
    k = init if isinstance(init, int) else len(init)
    problem = KMeansProblem(k, "auto" if isinstance(init, int) else init, empty_clusters)
    algorithm = algorithm.bind(problem)
    state = algorithm.init(passes, Rng(seed))
    out = []
    for _ in range(n_steps):
        state, info = algorithm.step(passes, Rng(seed), state)
        out.append((state, info))
        if info.converged:
            break
    return out


def prefix(table, b, rng=RNG):
    """Rows of a batch of ``b``: in every chunk the first share of its permutation."""
    n = int(table[-1])
    rows = []
    for index, (start, stop) in enumerate(pairwise(table)):
        size = int(stop - start)
        permutation = oracles.row_order(rng, index, size)
        rows.append(start + permutation[: b * size // n])
    return np.sort(np.concatenate(rows))


GATHER = [0, 1 << 40]
BY_RHO = NMBatch(stall=0.0, moves=False)
"""Batches grow as in the paper."""


@pytest.mark.parametrize(("rho", "gather"), in_turns([0.5, 1.0, 100.0], GATHER))
def test_is_algorithm_5(rho, rows_20k, gather, monkeypatch):
    x = rows_20k[:3000].astype(np.float64)
    algorithm = dataclasses.replace(BY_RHO, b0=200, rho=rho, gather=gather)
    rows = rows_of(x, [700, 1, 0, 1299, 1000])
    with LocalPasses(rows, n_threads=1) as passes:
        spy = Spy(passes, monkeypatch)
        got = steps(passes, algorithm, x[:15], 25)
    expected = oracles.nested_batches(
        x, x[:15], lambda b: prefix(rows.chunk_table, b), 200, rho, len(got)
    )
    grown = set()
    for step, (b, members, labels, centers) in enumerate(expected):
        state, info = got[step]
        assert state.previous_rows == b
        assert info.rows == len(members)
        assert info.extra["gathered"] == (gather > 0)
        rows_now, labels_now = spy.rows_and_labels(step)
        np.testing.assert_array_equal(rows_now, members)
        np.testing.assert_array_equal(labels_now, labels)
        np.testing.assert_allclose(state.centers, centers, rtol=1e-9, atol=1e-9)
        d2 = (
            (x[members] - got[step - 1][0].centers[labels]) ** 2
            if step
            else (x[members] - x[:15][labels]) ** 2
        ).sum()
        assert info.cost == pytest.approx(d2 * len(x) / len(members), rel=1e-9)
        grown.add(b)
    assert len(grown) > (1 if rho > 1 else 3)


def test_gathering_changes_no_bit(rows_20k):
    """In every step the same state and the same figures, wherever the rows are."""
    results = []
    for limit in (0, 4000, 1 << 40):
        with LocalPasses(open_rows(rows_20k), n_threads=2) as passes:
            algorithm = NMBatch(b0=500, gather=limit)
            results.append(steps(passes, algorithm, 40, 40, empty_clusters="relocate"))
    assert {info.extra["gathered"] for _, info in results[1]} == {0.0, 1.0}
    for other in results[1:]:
        assert len(other) == len(results[0])
        for (state, info), (expected, expected_info) in zip(other, results[0], strict=True):
            for name in ("centers", "counts"):
                assert getattr(state, name).tobytes() == getattr(expected, name).tobytes()
            assert state.rows == expected.rows
            assert (info.cost, info.n_changed) == (expected_info.cost, expected_info.n_changed)


@pytest.mark.parametrize("gather", GATHER)
def test_lost_row_state_changes_no_bit(gather, rows_20k):
    """Every step by passes that have just been opened: all labels are rebuilt, each time."""
    x = rows_20k[:6000]
    algorithm = NMBatch(b0=300, gather=gather).bind(KMeansProblem(20, x[:20], "relocate"))
    with LocalPasses(open_rows(x), n_threads=1) as passes:
        expected = steps(passes, algorithm, x[:20], 14, empty_clusters="relocate")
    assert len({state.rows for state, _ in expected}) > 3
    with LocalPasses(open_rows(x)) as passes:
        state = algorithm.init(passes, Rng(SEED))
    for after, info in expected:
        with LocalPasses(open_rows(x), n_threads=1) as passes:
            state, again = algorithm.step(passes, Rng(SEED), state)
        assert state.centers.tobytes() == after.centers.tobytes()
        assert (again.cost, again.n_changed) == (info.cost, info.n_changed)
        assert state.rows == after.rows


@pytest.mark.parametrize(
    "sizes",
    [[4000], [1000, 1000, 1000, 1000], [2500, 0, 3, 1, 0, 1, 1495], [1] * 100 + [3900], [3999, 1]],
    ids=["one", "equal", "zero and one", "many of one row", "last of one row"],
)
def test_every_entry_is_split_evenly(sizes, rows_20k, monkeypatch):
    """Section 3.3: of the rows that entered in step s, every chunk has its share, within one."""
    x = rows_20k[:4000]
    rows = rows_of(x, sizes)
    with LocalPasses(rows, n_threads=2) as passes:
        spy = Spy(passes, monkeypatch)
        found = steps(passes, NMBatch(b0=250, gather=0), x[:10], 60)
    n = len(x)
    before: dict[int, set[int]] = {}
    last = 0
    for step, (state, _) in enumerate(found):
        b = state.previous_rows
        for index, size in enumerate(sizes):
            members = set(spy.steps[step].get(index, (np.empty(0, int),))[0].tolist())
            assert before.get(index, set()) <= members, "batches are nested"
            entered = len(members) - len(before.get(index, set()))
            assert abs(entered - (b - last) * size / n) < 1
            before[index] = members
        last = b
    assert last == n


def test_ends_where_lloyd_ends(rows_20k):
    """At a fixed point over all rows: every label is the nearest, every centre a mean."""
    x = rows_20k[:4000].astype(np.float64)
    with LocalPasses(open_rows(x)) as passes:
        found = steps(passes, NMBatch(b0=500), 20, 300)
    state, info = found[-1]
    assert info.converged
    assert info.rows == len(x)
    labels, inertia = oracles.assign(x, state.centers)
    np.testing.assert_allclose(oracles.means(x, labels, state.centers), state.centers, rtol=1e-9)
    assert info.cost == pytest.approx(inertia, rel=1e-9)


def test_tolerance_does_not_stop_a_small_batch(rows_20k):
    with LocalPasses(open_rows(rows_20k)) as passes:
        found = steps(passes, NMBatch(b0=1000), 10, 60)
    small = [info for state, info in found if state.previous_rows < len(rows_20k)]
    assert small
    assert all(info.shift is None for info in small)
    # On all rows: only where no centre was moved, or is about to be, by anything but its mean.
    rest = [
        info.shift is None
        for state, info in found[len(small) :]
        if not state.looks and not info.extra.get("moved_centers")
    ]
    assert rest
    assert not any(rest)


def test_few_moves_leave_the_next_looks_to_the_last_batch(rows_20k):
    """From the first look that moves less than one centre in twenty on."""
    with LocalPasses(open_rows(rows_20k)) as passes:
        found = steps(passes, NMBatch(b0=1000), 30, 80)
    looks = [info for _, info in found if "moved_centers" in info.extra]
    few = next(i for i, info in enumerate(looks) if info.extra["moved_centers"] * 20 < 30)
    assert looks[few].rows < len(rows_20k)
    assert len(looks) > few + 1
    assert {info.rows for info in looks[few + 1 :]} == {len(rows_20k)}


def test_integer_weights_are_repeated_rows(rows_20k):
    """On the last batch, where the rows are the same; before it batches are drawn by row."""
    x = rows_20k[:800]
    weight = np.random.default_rng(1).integers(0, 4, size=len(x))
    everything = NMBatch(b0=10_000, moves=False)  # tried on a sample of rows
    with LocalPasses(open_rows(x, sample_weight=weight)) as passes:
        weighted = steps(passes, everything, x[:9], 9)
    with LocalPasses(open_rows(np.repeat(x, weight, axis=0))) as passes:
        repeated = steps(passes, everything, x[:9], 9)
    for (a, i), (b, j) in zip(weighted, repeated, strict=True):
        assert a.centers.tobytes() == b.centers.tobytes()
        assert i.cost == pytest.approx(j.cost, rel=1e-12)


def test_rows_without_weight_are_absent(rows_20k):
    x = rows_20k[:3000].copy()
    weight = np.ones(len(x))
    weight[::3] = 0
    x[::3] = 1e6
    with LocalPasses(open_rows(x, sample_weight=weight)) as passes:
        found = steps(passes, NMBatch(b0=300), 20, 100, empty_clusters="relocate")
    state, info = found[-1]
    assert info.converged
    assert state.counts.sum() == weight.sum()
    assert np.abs(state.centers).max() < 100


@pytest.mark.parametrize(
    ("sizes", "every", "rows"),
    [([5000] * 4, 1, 80), ([5000] * 4, 157, 10_240), ([2] * 2_000, 1, 2_560)],
    ids=["plain", "few weigh", "small chunks"],
)
def test_a_start_has_as_many_rows_as_clusters(sizes, every, rows, rows_20k):
    """However few rows of a batch have any weight, and however few rows a chunk has; no more."""
    x = rows_20k[: sum(sizes)]
    weight = np.where(np.arange(len(x)) % every == every - 1, 1.0 + np.arange(len(x)) % 3, 0)
    with LocalPasses(rows_of(x, sizes, weight), n_threads=1) as passes:
        (state, _), *_ = steps(passes, NMBatch(b0=5, moves=False), 40, 1)
    centers = state.centers[state.counts > 0]
    assert len(np.unique(centers, axis=0)) == len(centers) > 30
    assert state.previous_rows == rows


def awkward(kind: str) -> tuple[np.ndarray, int]:
    """Rows, and how many clusters to ask for."""
    r = np.random.default_rng(3)
    if kind == "few distinct":
        return r.normal(size=(4, 3))[r.integers(4, size=3000)], 9
    if kind == "one row":
        return np.array([[3.0, 4.0]]), 1
    if kind == "one value":
        return np.full((2500, 2), 7.0), 5
    if kind == "sorted":
        return np.repeat(np.arange(6.0), 1000)[:, None] * 10 + r.normal(size=(6000, 2)) * 0.01, 6
    if kind == "outlier":
        x = r.normal(size=(4000, 3))
        x[1234] = 1e6
        return x, 8
    return r.normal(size=(3000, 2)) + 1e4, 12  # far from the origin


@pytest.mark.parametrize(
    ("kind", "algorithm", "gather"),
    in_turns(
        ["few distinct", "one row", "one value", "sorted", "outlier", "far"],
        [NMBatch(), NMBatch(b0=20), dataclasses.replace(BY_RHO, b0=20)],
        [*GATHER, *GATHER[::-1]],
    ),
)
def test_awkward_data_come_to_an_end(kind, algorithm, gather):
    x, k = awkward(kind)
    algorithm = dataclasses.replace(algorithm, gather=gather)
    with LocalPasses(open_rows(x), n_threads=1) as passes:
        found = steps(passes, algorithm, k, 400, empty_clusters="relocate")
    state, info = found[-1]
    assert info.converged, info
    assert np.isfinite(state.centers).all()
    _, inertia = oracles.assign(x, state.centers)
    scale = float(((x - x.mean(axis=0)) ** 2).sum()) + 1e-12
    assert abs(info.cost - inertia) <= 1e-9 * scale
    if kind in ("few distinct", "one value"):
        assert inertia <= 1e-12 * scale
    if kind == "sorted":
        assert (state.counts == 1000).all()
    if kind == "outlier":
        assert (state.counts == 1).any()


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    n=st.integers(1, 300),
    d=st.integers(1, 9),
    k=st.integers(1, 20),
    b0=st.integers(1, 50),
    kind=st.sampled_from(["normal", "few distinct", "weighted"]),
    dtype=st.sampled_from([np.float32, np.float64, np.uint8, np.int16]),
)
def test_anything_ends_at_a_fixed_point(seed, n, d, k, b0, kind, dtype):
    r = np.random.default_rng(seed)
    x = r.normal(size=(n, d)) * 20 + 50
    if kind == "few distinct":
        x = x[r.integers(min(n, 3), size=n)]
    x = x.clip(0, 250).astype(dtype)
    weight = r.integers(0, 3, size=n).astype(float) if kind == "weighted" else None
    if weight is not None:
        weight[0] = 1
        k = min(k, int(np.count_nonzero(weight)))
    k = min(k, n)
    sizes = np.diff(np.sort([0, *r.integers(0, n + 1, size=3), n]))
    with LocalPasses(rows_of(x, sizes, weight), n_threads=1) as passes:
        found = steps(passes, NMBatch(b0=b0), k, 400, empty_clusters="relocate")
    state, info = found[-1]
    assert info.converged
    total = n if weight is None else weight.sum()
    assert state.counts.sum() == total


def test_wrong_parameters_are_refused():
    for parameters, message in [
        ({"b0": 0}, "b0 must be an integer of at least 1, got 0"),
        ({"b0": True}, "b0 must be"),
        ({"b0": "many"}, "b0 must be"),
        ({"gather": -1}, "gather must be an integer of at least 0, got -1"),
        ({"rho": -1.0}, "rho must be a number of at least 0"),
        ({"rho": "x"}, "rho must be"),
        ({"stall": float("nan")}, "stall must be a number of at least 0"),
    ]:
        with pytest.raises(ParameterError, match=message):
            NMBatch(**parameters)


def test_how_far_a_step_is_from_doubling_is_told(rows_20k):
    """A step whose ratio is above ``rho`` is followed by one of twice the rows."""
    with LocalPasses(open_rows(rows_20k)) as passes:
        found = steps(passes, dataclasses.replace(BY_RHO, b0=300, rho=2.0), rows_20k[:12], 40)
    told = [info.extra.get("growth_ratio") for _, info in found]
    assert all(ratio is None or 0 <= ratio < np.inf for ratio in told)
    rows = [info.rows for _, info in found]
    doubled = [after > before for before, after in pairwise(rows) if before < len(rows_20k)]
    assert {False, True} == set(doubled)
    assert doubled == [ratio is None or ratio > 2.0 for ratio in told[: len(doubled)]]
