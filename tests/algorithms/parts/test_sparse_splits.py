"""Splits of clusters of sparse rows, without ever writing their zeros out."""

from __future__ import annotations

import numpy as np

from largek_dask.algorithms.parts import splits
from largek_dask.kernels.exact.fixed_point import FixedPoint
from tests.kernels.test_sparse import block_of


def test_are_those_of_the_same_rows_dense(monkeypatch):
    r = np.random.default_rng(5)
    x = (r.normal(size=(400, 40)) * (r.random((400, 40)) < 0.2)).astype(np.float32)
    x[:200] += (np.arange(40) < 3) * np.float32(2)
    centers = np.stack([x[:200].mean(axis=0), x[200:].mean(axis=0)])
    grid = FixedPoint.choose(np.zeros(40, np.float32), 8.0, n_rows=400)
    rest = np.ones(400), centers, np.arange(2), grid
    dense = splits.held_out_splits(x, *rest)
    written = []
    monkeypatch.setattr(
        splits, "dense_rows", lambda rows: written.append(len(rows)) or rows[:].toarray()
    )
    sparse = splits.held_out_splits(block_of(x), *rest)
    np.testing.assert_allclose(sparse.halves, dense.halves, rtol=1e-6)
    np.testing.assert_allclose(sparse.gains, dense.gains, rtol=1e-5)
    assert (dense.gains > 0).all()
    assert max(written) <= 2, "only the rows that centres are made of are written out"
