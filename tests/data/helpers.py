"""Helpers of the data tests."""

from __future__ import annotations

import os

import numpy as np

from largek_dask.data.ingest import ingest
from largek_dask.kernels.blocks import SparseBlock, dense_rows


def quiet(source, out, **options):
    """``ingest`` without progress."""
    return ingest(source, out, progress=False, **options)


def read_all(rows):
    """Read all rows of ``Rows``, and check the contract of each chunk."""
    parts = []
    for i in range(rows.n_chunks):
        start, stop = rows.chunk_rows(i)
        part = rows.read(i)
        assert part.shape == (stop - start, rows.n_features)
        assert part.dtype == rows.dtype
        assert part.dtype.isnative
        assert isinstance(part, SparseBlock) == rows.is_sparse
        arrays = [part.data, part.indices, part.indptr] if rows.is_sparse else [part]
        for array in arrays:
            assert array.flags.c_contiguous
            assert not array.flags.writeable
        if rows.is_sparse:
            # a chunk holds nothing of other chunks
            assert part.stored == slice(0, len(part.data))
        parts.append(dense_rows(part))
    assert rows.chunk_table.dtype == np.int64
    assert rows.chunk_table[0] == 0
    assert rows.chunk_table[-1] == rows.n_rows
    assert (np.diff(rows.chunk_table) > 0).all()
    return np.concatenate(parts)


def files_under(folder):
    """Return the bytes of every file by path, to check that none was changed."""
    found = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = file.read()
    return found
