"""The two-level start: whose rows are few, and how centres are shared out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from largek_dask.algorithms.starts.samples import shares, two_level_start


@pytest.mark.parametrize("k", [200, 300])
def test_no_more_rows_than_centres_are_the_centres(k):
    x = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    centers, _, labels = two_level_start(x, None, k, np.zeros(3, np.float32), 1)
    np.testing.assert_array_equal(centers, np.resize(x, (k, 3)))
    np.testing.assert_array_equal(labels, np.arange(200))


@given(
    counts=st.lists(st.integers(0, 50), min_size=1, max_size=30).filter(any), part=st.floats(0, 1)
)
def test_shares(counts, part):
    counts = np.array(counts)
    k = max(1, int(part * counts.sum()))
    sizes = shares(counts, k)
    assert sizes.sum() == k
    assert (sizes <= counts).all()
    assert (sizes >= 0).all()
    if k < np.count_nonzero(counts):
        assert sizes.max() <= 1
        return
    assert (sizes[counts > 0] > 0).all()
    # Nowhere would one that is given to another cell bring both nearer to what they are due.
    beyond = sizes - counts * (k / counts.sum())
    gives, takes = beyond[sizes > 1], beyond[sizes < counts]
    if len(gives) and len(takes):
        assert gives.max() - takes.min() <= 1 + 1e-9
