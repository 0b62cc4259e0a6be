"""Nested batches: what moves of centres mend, and starts on a sample."""

from __future__ import annotations

import dask
import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.nmbatch import NMBatch
from largek_dask.data.sources import open_rows
from largek_dask.passes.local import LocalPasses
from tests import oracles
from tests.algorithms.conftest import blobs


@pytest.mark.parametrize("moves_on", [False, True])
def test_moves_mend_a_poor_start(moves_on):
    """Three centres in one blob and one between two others: Lloyd's steps keep it so."""
    r = np.random.default_rng(4)
    means = np.array([[0.0, 0], [100, 0], [0, 100], [100, 100], [50, 200]])
    x = means[r.integers(5, size=8000)] + r.normal(size=(8000, 2))
    init = np.array([[0.0, -1], [0, 1], [50, 0], [0, 100], [75, 150]])
    algorithm = NMBatch(b0=500, moves=moves_on).bind(KMeansProblem(5, init))
    with LocalPasses(open_rows(x)) as passes:
        state = algorithm.init(passes, Rng(0))
        for _ in range(60):
            state, info = algorithm.step(passes, Rng(0), state)
            if info.converged:
                break
    assert info.converged
    _, inertia = oracles.assign(x, state.centers)
    assert (inertia / len(x) < 2.2) == moves_on


@pytest.mark.parametrize("n", [1, 149, 151])
def test_a_sample_may_be_smaller_than_the_number_of_clusters(n):
    x = np.random.default_rng(0).normal(size=(n, 3))
    algorithm = NMBatch().bind(KMeansProblem(150))
    with LocalPasses(open_rows(x)) as passes:
        found = algorithm.init(passes, Rng(1)).centers
    assert found.shape == (150, 3)
    assert np.isfinite(found).all()


@pytest.mark.slow
def test_start_and_moves_are_the_same_at_every_vector_width():
    x = blobs(9000, 6, 140, seed=3)
    digests = set()
    for tile in ("plain", "avx2"):
        with dask.config.set({"largek.kernels.tile": tile}):
            km = lk.KMeans(130, algorithm="nmbatch", max_iter=8, random_state=2).fit(x)
        assert any(record["extra"].get("moved_centers") for record in km.history_)
        digests.add(km.model_.digest())
    assert len(digests) == 1
