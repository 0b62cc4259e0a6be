"""Running means against numpy."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from largek_dask.kernels.exact.extrapolated import moved_means
from largek_dask.kernels.exact.sums import ClusterSums, FixedPoint
from tests import oracles


@given(st.integers(1, 5), st.integers(1, 40), st.booleans(), st.booleans(), st.integers(0, 2**31))
def test_are_those_of_numpy_bit_for_bit(k, n, weighted, about_zero, seed):
    r = np.random.default_rng(seed)
    x = r.normal(size=(n, 6)).astype(np.float32)
    shift = np.zeros(6, np.float32) if about_zero else r.normal(size=6).astype(np.float32)
    weight = r.uniform(0.1, 3, n) if weighted else None
    grid = FixedPoint.choose(
        shift, 20.0, n_rows=n, total_weight=3.0 * n, max_weight=3.0, integer_weights=not weighted
    )
    sums = ClusterSums(k, 6, grid)
    sums.add(x, r.integers(0, k, n).astype(np.int32), weight)
    means = r.normal(size=(k, 6))
    share = np.where(sums.counts > 0, r.uniform(0, 1, k), 0.0)
    kept = means.copy()
    out = moved_means(means, sums, share)
    assert out.tobytes() == oracles.moved_means(means, sums.means_float64(means), share).tobytes()
    assert means.tobytes() == kept.tobytes(), "the means of before stay as they were"


def test_takes_means_in_any_order():
    grid = FixedPoint.choose(np.zeros(2, np.float32), 4.0, n_rows=2)
    sums = ClusterSums(2, 2, grid)
    sums.add(np.array([[2, 4], [2, 4]], np.float32), np.array([1, 1], np.int32))
    means = np.asfortranarray(np.array([[1.0, 1.0], [0.0, 0.0]]))
    means.flags.writeable = False
    out = moved_means(means, sums, np.array([0.0, 0.5]))
    assert out.tolist() == [[1, 1], [1, 2]]
