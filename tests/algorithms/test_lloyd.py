"""Lloyd's algorithm against a plain numpy twin, and what must hold in every step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import largek_dask as lk
from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.lloyd import Lloyd
from largek_dask.data.sources import open_rows
from largek_dask.passes.local import LocalPasses
from tests import oracles


def steps(x, init, n_steps, *, sample_weight=None, n_threads=1, empty_clusters="keep"):
    """Centres after each step and the infos."""
    rows = open_rows(x, sample_weight=sample_weight)
    algorithm = Lloyd().bind(KMeansProblem(len(init), init, empty_clusters))
    states, infos = [], []
    with LocalPasses(rows, n_threads=n_threads) as passes:
        state = algorithm.init(passes, Rng(0))
        for _ in range(n_steps):
            state, info = algorithm.step(passes, Rng(0), state)
            states.append(state)
            infos.append(info)
    return states, infos


def test_follows_the_textbook(rows_20k):
    x = rows_20k[:5000].astype(np.float64)
    states, infos = steps(x, x[:30], 12)
    centers = x[:30].copy()
    for state, info in zip(states, infos, strict=True):
        labels, inertia = oracles.assign(x, centers)
        assert info.cost == pytest.approx(inertia, rel=1e-9)
        centers = oracles.means(x, labels, centers)
        np.testing.assert_allclose(state.centers, centers, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(state.counts, np.bincount(labels, minlength=30))


@pytest.mark.parametrize("scale", [1, 1000])
def test_tol_is_relative_to_the_mean_variance(rows_20k, scale):
    x = scale * rows_20k[:3000].astype(np.float64)
    _, infos = steps(x, x[:20], 8)
    centers, expected = x[:20], []
    for _ in infos:
        labels, _ = oracles.assign(x, centers)
        moved = oracles.means(x, labels, centers)
        expected.append(np.square(moved - centers).sum() / x.var(axis=0).mean())
        centers = moved
    np.testing.assert_allclose([info.shift for info in infos], expected, rtol=1e-9)
    falls = [i for i in range(1, 8) if expected[i] < min(expected[:i])]
    assert len(falls) > 3
    for step in falls:
        for factor, reason in ((1.001, "tol"), (0.999, "max_iter")):
            options = {"tol": factor * expected[step], "max_iter": step + 1}
            km = lk.KMeans(20, algorithm=Lloyd(), init=x[:20], **options).fit(x)
            assert km.stop_reason_ == reason
            assert km.n_iter_ == step + 1


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    n=st.integers(1, 400),
    d=st.integers(1, 11),
    k=st.integers(1, 20),
    kind=st.sampled_from(["normal", "few distinct", "one value", "far"]),
    dtype=st.sampled_from([np.float32, np.float64, np.uint8, np.int16, np.int64]),
)
def test_cost_never_rises(seed, n, d, k, kind, dtype):
    r = np.random.default_rng(seed)
    x = r.normal(size=(n, d)) * 20 + 50
    if kind == "few distinct":
        x = x[r.integers(min(n, 3), size=n)]
    if kind == "one value":
        x[:] = 7
    if kind == "far" and np.dtype(dtype).itemsize > 1:
        x += 1e4
    x = x.clip(0, 250 if dtype is np.uint8 else None).astype(dtype)
    init = x[r.integers(n, size=k)].astype(np.float64)
    _, infos = steps(x, init, 6)
    costs = np.array([info.cost for info in infos])
    scale = max(costs[0], 1.0)
    assert (np.diff(costs) <= 1e-6 * scale).all(), costs


def test_changed_labels_are_counted(rows_20k):
    x = rows_20k[:3000].astype(np.float64)
    _, infos = steps(x, x[:20], 5)
    centers, before = x[:20].copy(), None
    for info in infos:
        labels, _ = oracles.assign(x, centers)
        changed = len(x) if before is None else np.count_nonzero(labels != before)
        assert info.n_changed == changed
        centers, before = oracles.means(x, labels, centers), labels


def test_empty_clusters_move_to_the_farthest_rows():
    x = np.array([[0.0], [0.1], [0.2], [10.0], [20.0]])
    init = np.array([[0.1], [500.0], [600.0]])
    states, infos = steps(x, init, 4, empty_clusters="relocate")
    assert infos[0].extra["relocated"] == 2
    # Farthest first, to the empty cluster of the lowest index.
    np.testing.assert_array_equal(states[0].centers[1:], [[20.0], [10.0]])
    assert (states[-1].counts == [3, 1, 1]).all()
    assert infos[-1].converged


def test_empty_clusters_may_be_kept():
    x = np.arange(10.0)[:, None]
    states, infos = steps(x, np.array([[4.0], [500.0]]), 3, empty_clusters="keep")
    assert states[-1].centers[1, 0] == 500.0
    assert states[-1].counts[1] == 0
    assert infos[-1].converged
