"""Fixtures of the data tests."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def x():
    """A small table: 1,000 rows of 7 float32."""
    return np.random.default_rng(5).standard_normal((1_000, 7)).astype(np.float32)


@pytest.fixture
def small_chunks():
    """Read few rows per chunk, so that small data have many chunks."""
    import dask

    with dask.config.set({"largek.data.read-chunk-bytes": 7 * 4 * 100}):
        yield
