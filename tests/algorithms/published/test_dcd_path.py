"""Algorithm 7.1 as published: every partition up to k, each from the one before."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.path_arrays import PathArrays, centers_in, rows_of_path
from largek_dask.algorithms.path_problem import PathProblem
from largek_dask.algorithms.published.dcd_bundle import DCDBundle
from largek_dask.algorithms.starts.auxiliary_points import starting_points
from largek_dask.data.sources import open_rows
from largek_dask.driver.plan import footprint_of
from largek_dask.errors import ParameterError
from largek_dask.kernels.convex import AuxiliaryFunction, MeasuredRows
from largek_dask.kernels.threads import ALONE
from largek_dask.passes.local import LocalPasses
from tests.algorithms.conftest import blobs
from tests.algorithms.partition_path.rules import optimum
from tests.helpers.covering import in_turns
from tests.oracles import dcd as oracles
from tests.passes.toys import rows_of

PAPER = {
    "d15112": {2: 3.68403e11, 3: 2.53240e11, 5: 1.32707e11, 10: 0.64892e11},
    "eeg": {2: 8178.13809e8, 3: 1833.88058e8, 5: 1.33858e8},
}
"""The paper's lowest values, which its method meets (tables 3 and 4, E = 0.00)."""


def run(x, k, method=None, *, weight=None, sizes=None, n_threads=1, **options):
    """All states, what was told of each step, and the model of the last state."""
    method = (method or DCDBundle()).bind(PathProblem(k))
    rows = open_rows(x, sample_weight=weight) if sizes is None else rows_of(x, sizes, weight)
    method.problem.check(rows)
    states, told, rng = [], [], Rng(0)
    with LocalPasses(rows, n_threads=n_threads, **options) as passes:
        states.append(method.init(passes, rng))
        for _ in range(k + 2):
            state, info = method.step(passes, rng, states[-1])
            states.append(state)
            told.append(info)
            if info.converged:
                break
    assert told[-1].converged
    assert not any(info.converged for info in told[:-1])
    return SimpleNamespace(
        states=states, told=told, model=method.model(states[-1]), last=states[-1]
    )


def objective(x, weight, centers):
    x = np.asarray(x, np.float64)
    near = oracles.two_nearest(x, np.asarray(centers, np.float64))[1]
    return near.sum() if weight is None else weight @ near


@pytest.mark.parametrize(
    ("dtype", "method", "weighted"),
    in_turns(["f8", "f4", "u1"], [DCDBundle(), DCDBundle(descent="plain")], [False, True]),
)
def test_path(dtype, method, weighted):
    x = blobs(300, 3, 5)
    x = np.round(x * 5 + 100).astype(dtype) if dtype == "u1" else x.astype(dtype)
    weight = np.random.default_rng(0).uniform(0.5, 2, len(x)) if weighted else None
    k = 7
    found = run(x, k, method, weight=weight)
    assert [len(state.inertia) for state in found.states] == [*range(1, k + 1), k]
    assert [info.extra["partitions"] for info in found.told] == [*range(2, k + 1), k]
    model = found.model
    assert isinstance(model, PathArrays)
    assert model.path.shape == (rows_of_path(k), 3)
    assert model.path.dtype == model.centers.dtype == np.dtype("f8" if dtype == "f8" else "f4")
    np.testing.assert_array_equal(model.centers, centers_in(model.path, k))
    assert (np.diff(model.inertia) < 0).all()
    for size in range(1, k + 1):
        expected = objective(x, weight, centers_in(model.path, size))
        assert model.inertia[size - 1] == pytest.approx(
            expected, rel=1e-12 if dtype == "f8" else 1e-6
        )
        labels = oracles.two_nearest(np.asarray(x, float), centers_in(model.path, size))[0]
        own = centers_in(model.counts_of_path, size)
        np.testing.assert_allclose(own, np.bincount(labels, weight), rtol=1e-6)
    assert model.lower_bound[0] == pytest.approx(model.inertia[0], rel=1e-6)
    assert (model.lower_bound <= model.inertia).all()
    np.testing.assert_array_equal(centers_in(model.path, 1)[0], model.path[0])
    for info in found.told[:-1]:
        extra = info.extra
        assert extra["evaluations"] > extra["solutions"] >= 1
        assert extra["starts"] >= extra["solutions"]
    assert found.told[-1].cost == model.inertia[-1]


WIDE = {"gamma_1": 0.2, "gamma_2": 0.2, "apart": 0.0}


@pytest.mark.parametrize("method", [DCDBundle(**WIDE), DCDBundle(descent="plain", **WIDE)])
def test_never_below_the_optimum(method):
    reached = 0
    for seed in range(6):
        r = np.random.default_rng(seed)
        x = r.integers(0, 6, (8, 2)).astype(float)
        found = run(x, 3, method)
        for size in range(2, 4):
            best = optimum(x, None, size)
            assert found.model.inertia[size - 1] >= best * (1 - 1e-12)
            reached += found.model.inertia[size - 1] <= best * (1 + 1e-6)
    assert reached >= 9


def test_rows_too_near_for_squares_end_the_path():
    x = np.array([[0.0], [1e-170], [2e-170], [1.0]])
    found = run(x, 4)
    assert len(found.last.inertia) == 2
    assert found.told[-1].extra["distinct"]
    assert found.model.inertia[1] == pytest.approx(0, abs=1e-12)


def test_weights_are_repeated_rows():
    x = np.round(blobs(150, 2, 4) * 8) / 8
    weight = np.random.default_rng(0).integers(0, 4, len(x)).astype(float)
    assert set(weight) == {0, 1, 2, 3}
    often = np.repeat(np.arange(len(x)), weight.astype(int))
    a, b = run(x, 5, weight=weight), run(x[often], 5)
    np.testing.assert_array_equal(a.last.path, b.last.path)
    np.testing.assert_array_equal(a.last.inertia, b.last.inertia)
    assert [info.extra for info in a.told] == [info.extra for info in b.told]


def test_far_from_the_origin():
    x = blobs(200, 2, 4, spread=3)
    near, far = run(x.astype("f8"), 5), run(x.astype("f8") + 1e6, 5)
    np.testing.assert_allclose(far.model.inertia, near.model.inertia, rtol=1e-6)


def test_skipped_rows():
    x = blobs(200, 2, 4)
    spoilt = np.concatenate([x[:50], [[np.nan, 1]], x[50:], [[2, np.inf]]]).astype(x.dtype)
    a, b = run(x, 4), run(spoilt, 4, on_bad_rows="skip")
    np.testing.assert_array_equal(a.last.path, b.last.path)


def test_starting_points_as_they_are_defined():
    """S_1 by brute force."""
    x = blobs(160, 2, 4).astype("f8")
    x -= x.mean(axis=0)
    rows = MeasuredRows.of(x)
    auxiliary = AuxiliaryFunction(rows, np.array([[0.5, 0.5], [3.0, -2]]))
    found = starting_points(auxiliary.arranged, x, (0.4, 0.85), 0.0, ALONE)
    w, r = np.ones(len(x)), oracles.two_nearest(x, np.array([[0.5, 0.5], [3.0, -2]]))[1]
    z = np.array([oracles.gain(x, w, r, y)[0] for y in x])
    kept = z >= 0.4 * z.max()
    means = np.stack([oracles.descend(x, w, r, y, 1)[0] for y in x[kept]])
    gains = np.array([oracles.gain(x, w, r, c)[0] for c in means])
    chosen = gains >= 0.85 * gains.max()
    assert 0 < kept.sum() < len(x)
    assert 0 < chosen.sum() < kept.sum()
    expected = np.unique(np.round(means[chosen], 9), axis=0)
    np.testing.assert_allclose(np.unique(np.round(found, 9), axis=0), expected, atol=2e-9)
    # those that are near one another count once, the best of them
    near = 0.3 * r.sum() / len(x)
    merged = starting_points(auxiliary.arranged, x, (0.4, 0.85), near, ALONE)
    assert 0 < len(merged) < len(found)
    squares = ((merged[:, None] - merged[None]) ** 2).sum(axis=2)
    assert (squares[~np.eye(len(merged), dtype=bool)] > near).all()
    best = max(oracles.gain(x, w, r, y)[0] for y in merged)
    assert best >= gains.max() * 0.9


def test_parameters():
    for wrong, message in [
        ({"descent": "newton"}, "descent must be"),
        ({"gamma_1": 1.5}, "gamma_1 must be from 0"),
        ({"gamma_2": float("nan")}, "gamma_2 must be from 0"),
        ({"apart": -1.0}, "apart must be from 0"),
        ({"auxiliary_tolerance": -1.0}, "out of range"),
    ]:
        with pytest.raises(ParameterError, match=message):
            DCDBundle(**wrong)


def test_tables_that_it_cannot_work_on():
    def table(n, d, sparse=False):
        return SimpleNamespace(n_rows=n, n_features=d, row_values=d, is_sparse=sparse)

    with pytest.raises(ParameterError, match=r"300 rows of 2 features take 21600 bytes.*21599\."):
        run(blobs(300, 2, 4), 3, memory_limit=21_599)
    assert run(blobs(300, 2, 4), 3, memory_limit=21_600).told[-1].extra["partitions"] == 3
    with pytest.raises(ParameterError, match="dense rows only"):
        PathProblem(3).check(table(10, 3, sparse=True))


def test_what_a_plan_tells():
    def footprint(k):
        return footprint_of(open_rows(blobs(300, 2, 4)), DCDBundle().bind(PathProblem(k)))

    assert footprint(20).held_rows == 300
    assert footprint(20).held_bytes == 300 * 72
    assert footprint(20).model_copies * 20 >= rows_of_path(20)
    assert footprint(1).model_copies == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPER)
def test_the_papers_values(name):
    folder = os.environ.get("LARGEK_DATA")
    if not folder:
        pytest.skip("LARGEK_DATA names no folder")
    x = np.load(Path(folder) / f"{name}.npz")["X"]
    known = PAPER[name]
    found = run(x, max(known))
    for size, value in known.items():
        assert found.model.inertia[size - 1] <= value * 1.00005
    for before, after in pairwise(found.states):
        assert after.inertia[-1] <= before.inertia[-1]
