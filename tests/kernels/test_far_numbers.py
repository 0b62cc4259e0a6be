"""Numbers far from 0 and from each other: distances, and what sums resolve."""

from __future__ import annotations

import numpy as np
import pytest

from largek_dask.kernels.code_cache import unsaved
from largek_dask.kernels.dense.doubts import distances_of_far
from largek_dask.kernels.exact.fixed_point import FixedPoint
from largek_dask.kernels.exact.soft_sums import resolved_bits
from largek_dask.kernels.exact.squares import FeatureSquares
from largek_dask.kernels.exact.statistics import RowScan, Statistics

X = np.random.default_rng(0).normal(size=(50, 3))


@pytest.mark.parametrize("power", [-600, 0, 1000])
def test_distances_of_rows_however_far(power: int) -> None:
    centers = X[:7] + 1
    expected = np.sqrt(((X[:, None] - centers) ** 2).sum(axis=-1))
    found = distances_of_far(np.ldexp(X, power), np.ldexp(centers, power))
    np.testing.assert_allclose(np.ldexp(found, -power), expected, rtol=1e-14)


def test_resolved_bits_and_statistics_that_are_refused() -> None:
    scan = RowScan(3, np.float64)
    scan.add(X, None, 0)
    known = scan.finish()
    assert isinstance(known.grid, FixedPoint)
    assert 20 < resolved_bits(known.grid, 50.0) <= 52
    assert FeatureSquares(known.shift).nbytes >= 3 * 8
    values = known.to_dict()
    infinity = float.hex(np.inf)
    for wrong in ({"n_features": 4}, {"mean": [infinity] * 3}, {"max_abs": infinity}):
        with pytest.raises(ValueError):
            Statistics.from_dict(values | wrong)
    assert unsaved() is None or isinstance(unsaved(), OSError)
