"""Movement of centres against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from largek_dask.kernels.exact.movement import (
    beyond,
    center_terms,
    squared_lengths,
    squared_movement,
    squared_movements,
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (40, 33)])
def test_movement_is_the_sum_of_squared_differences(dtype, shape):
    r = np.random.default_rng(0)
    new, old = r.normal(size=(2, *shape)).astype(dtype)
    expected = ((new.astype(np.float64) - old) ** 2).sum()
    assert squared_movement(new, old) == pytest.approx(expected, rel=1e-12)
    assert squared_movement(new, new) == 0.0


def test_movement_takes_views_in_any_order():
    a = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    a.flags.writeable = False
    assert squared_movement(a, np.zeros((3, 4))) == (a**2).sum()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (40, 33)])
def test_movements_and_terms__are_sums_in_the_order_of_the_features(dtype, shape):
    r = np.random.default_rng(1)
    new, old = r.normal(size=(2, *shape)).astype(dtype)
    shift, sums = r.normal(size=shape[1]).astype(dtype), r.integers(-99, 99, shape)
    away, squared = new.astype(np.float64) - shift, np.zeros(shape[0])
    dot, norm = np.zeros(shape[0]), np.zeros(shape[0])
    for f in range(shape[1]):
        squared += (new[:, f].astype(np.float64) - old[:, f]) ** 2
        dot += away[:, f] * sums[:, f]
        norm += away[:, f] ** 2
    assert squared_movements(new, old).tobytes() == squared.tobytes()
    found = center_terms(new, shift, sums)
    assert found[0].tobytes() == dot.tobytes()
    assert found[1].tobytes() == norm.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1), (4, 3), (7, 3), (40, 33)])
def test_lengths__are_sums_in_the_order_of_the_features(dtype, shape):
    x = np.random.default_rng(2).normal(size=shape).astype(dtype)
    expected = np.zeros(shape[0])
    for f in range(shape[1]):
        expected += x[:, f].astype(np.float64) ** 2
    assert squared_lengths(x).tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_threads_give_the_same(dtype, monkeypatch):
    monkeypatch.setattr("largek_dask.kernels.threads.SLICE_VALUES", 6)
    new, old = np.random.default_rng(2).normal(size=(2, 11, 3)).astype(dtype)
    sums, shift = np.arange(33).reshape(11, 3), np.ones(3, dtype)
    expected = new + dtype(0.8) * (new - old)
    for n_threads in (1, 2, 5):
        assert beyond(old, new, 0.8, n_threads).tobytes() == expected.tobytes()
        movements = squared_movements(new, old, n_threads)
        assert movements.tobytes() == squared_movements(new, old).tobytes()
        for found, one in zip(
            center_terms(new, shift, sums, n_threads), center_terms(new, shift, sums), strict=True
        ):
            assert found.tobytes() == one.tobytes()
