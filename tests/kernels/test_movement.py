"""Movement of centres against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from largek_dask.kernels.movement import squared_movement


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (40, 33)])
def test_is_the_sum_of_squared_differences(dtype, shape):
    r = np.random.default_rng(0)
    new, old = r.normal(size=(2, *shape)).astype(dtype)
    expected = ((new.astype(np.float64) - old) ** 2).sum()
    assert squared_movement(new, old) == pytest.approx(expected, rel=1e-12)
    assert squared_movement(new, new) == 0.0


def test_takes_views_in_any_order():
    a = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    a.flags.writeable = False
    assert squared_movement(a, np.zeros((3, 4))) == (a**2).sum()
