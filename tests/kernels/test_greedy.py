from __future__ import annotations

import numpy as np
import pytest

from largek_dask.kernels.dense.greedy import greedy_rows
from tests import oracles


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "d", "k", "m"), [(1, 1, 1, 1), (7, 3, 4, 2), (83, 5, 9, 4)])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_are_those_of_the_oracle(dtype, n, d, k, m, weighted):
    r = np.random.default_rng(n + m)
    x = r.integers(-20, 20, (n, d)).astype(dtype)
    weight = r.integers(0, 3, n).astype(np.float64) if weighted else np.ones(n)
    weight[n // 2] = 1
    uniforms = r.random((k, m))
    columns = np.ascontiguousarray(x.T)
    found = greedy_rows(columns, weight, uniforms)
    # Sums of integers have no rounding, so both choose alike.
    np.testing.assert_array_equal(found, oracles.greedy_rows(x, weight, uniforms))
    assert (weight[found] > 0).all()


def test_far_rows_are_taken_first():
    x = np.zeros((1_000, 2), np.float32)
    x[:, 0] = np.arange(1_000) / 1e3
    x[77], x[500] = (1e6, 0), (0, -1e6)
    found = greedy_rows(np.ascontiguousarray(x.T), np.ones(1_000), np.full((3, 2), 0.3))
    assert set(found[1:].tolist()) == {77, 500}


def test_fewer_distinct_rows_than_centres():
    x = np.repeat(np.eye(3, dtype=np.float32), 4, axis=0)
    found = greedy_rows(np.ascontiguousarray(x.T), np.ones(12), np.full((6, 3), 1 - 2.0**-53))
    assert len(np.unique(found[:3] // 4)) == 3
    assert (found[3:] == found[0]).all()


def test_one_start_does_not_hang_on_the_origin():
    r = np.random.default_rng(0)
    x = r.integers(0, 50, (200, 3)).astype(np.float64)
    uniforms = r.random((8, 3))
    first, other = (
        greedy_rows(np.ascontiguousarray(rows.T), np.ones(200), uniforms) for rows in (x, x + 1e6)
    )
    np.testing.assert_array_equal(first, other)
