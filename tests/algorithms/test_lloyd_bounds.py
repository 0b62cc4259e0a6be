"""Lloyd's algorithm with bounds: the same bits, fewer distances."""

from __future__ import annotations

from itertools import pairwise

import dask
import numpy as np
import pytest

from largek_dask.algorithms.base import PlannedTable, Rng
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.lloyd import Lloyd
from largek_dask.algorithms.parts import bounded
from largek_dask.algorithms.parts.bounded import group_count, row_bytes
from largek_dask.data.sources import open_rows
from largek_dask.errors import ParameterError
from largek_dask.passes.local import LocalPasses
from tests.algorithms.conftest import begin_bounds_early, blobs

K = 70


@pytest.fixture(autouse=True)
def little_work(monkeypatch):
    """Bounds even where a real fit would not find them worth their price."""
    monkeypatch.setattr(bounded, "LEAST_WORK", 0)


def degenerate(kind):
    rng = np.random.default_rng(3)
    x = blobs(1500, 9, 40, seed=2, spread=2.0)
    if kind == "grid":
        return rng.integers(0, 3, size=(1500, 3)).astype(np.float32)
    if kind == "few distinct":
        return x[rng.integers(30, size=1500)]
    if kind == "far":
        return x + np.float32(1e4)
    if kind == "outlier":
        x[700] = 1e6
    if kind == "float64":
        return x.astype(np.float64)
    if kind == "bytes":
        return (x * 8 + 120).clip(0, 255).astype(np.uint8)
    return x


def run(x, bounds, n_steps=25, **options):
    """Everything that a step returns, step by step, until nothing changes."""
    algorithm = Lloyd(bounds).bind(KMeansProblem(K, x[:K].astype(np.float64), "relocate"))
    out = []
    with LocalPasses(open_rows(x), **options) as passes:
        state = algorithm.init(passes, Rng(0))
        for _ in range(n_steps):
            state, info = algorithm.step(passes, Rng(0), state)
            out.append((state, info))
            if info.converged:
                break
        evictions = passes.total.evictions
    return out, evictions


def bits(out):
    return [
        (state.centers.tobytes(), state.counts.tobytes(), info.cost, info.n_changed)
        for state, info in out
    ]


@pytest.mark.parametrize(
    "kind", ["blobs", "grid", "few distinct", "far", "outlier", "float64", "bytes"]
)
def test_bounds_change_no_bit(kind, monkeypatch):
    x = degenerate(kind)
    expected = bits(run(x, None)[0])
    for centers_per_group in (1, 30, K):
        begin_bounds_early(monkeypatch)
        monkeypatch.setattr(bounded, "CENTERS_PER_GROUP", centers_per_group)
        monkeypatch.setattr(bounded, "MOST_GROUPS", K)
        out, _ = run(x, "auto", n_threads=2)
        assert out[1][1].extra["row_state_bytes"] == 8 + 4 * -(-K // centers_per_group)
        assert bits(out) == expected, centers_per_group


def test_fewer_distances():
    out, _ = run(degenerate("blobs"), "auto")
    assert out[-1][1].converged
    assert out[0][1].extra["distances"] == 1.0
    assert out[-1][1].extra["distances"] < 0.5
    assert out[-1][1].extra["row_state_bytes"] == 8 + 4 * 3


def test_bounds_begin_when_rows_are_calm():
    out, _ = run(degenerate("blobs"), "auto")
    for (state, info), (_, following) in pairwise(out):
        assert (following.extra["row_state_bytes"] > 4) == (state.bounds is not None)
        assert (state.bounds is None) or out[0][0].bounds is None
        if info.n_changed > 0.5 * 1500:
            assert state.bounds is None
    assert out[0][1].extra["row_state_bytes"] == 4


def test_lost_bounds_are_rebuilt(early_bounds):
    x = degenerate("blobs")
    expected = bits(run(x, None)[0])
    with dask.config.set({"largek.data.memory-chunk-bytes": 100 * 9 * 4}):
        for limit in (0, 20_000):
            out, evictions = run(x, "auto", memory_limit=limit)
            assert bits(out) == expected
            assert evictions > 0


@pytest.mark.parametrize("n_groups", [3, 1, 0])
def test_bounds_adapt_to_the_memory_of_the_fit(n_groups):
    x = degenerate("blobs")
    room = 1500 * row_bytes(max(1, n_groups)) - (n_groups == 0)
    out, _ = run(x, "auto", memory_limit=room)
    assert bits(out) == bits(run(x, None)[0])
    last = out[-1][0].bounds
    assert (0 if last is None else last.groups.n_groups) == n_groups


def test_unknown_bounds_are_refused():
    for bounds in ("elkan", True, 3, ""):
        with pytest.raises(ParameterError, match="bounds must be 'auto' or None"):
            Lloyd(bounds)


def test_how_many_groups(monkeypatch):
    def count(d, k, limit=None, is_sparse=False):
        return group_count(PlannedTable(10**6, d, d, is_sparse, 4, None, limit), k)

    monkeypatch.undo()
    assert count(18, 1000) == 16
    assert count(18, 1000, limit=50 * 10**6) == 8
    assert count(18, 1000, limit=1000) == 0
    assert count(18, 1000, is_sparse=True) == 0
    assert count(18, 50) == 0
    assert count(64, 100) == 0
    assert count(784, 50) == 2
    assert row_bytes(0) == 4
    assert row_bytes(16) == 72
