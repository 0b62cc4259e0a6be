"""Small things that several data tests share."""

from __future__ import annotations

import os

import numpy as np


def read_all(rows):
    """All rows of ``Rows``, with the contract of every chunk checked on the way."""
    parts = []
    for i in range(rows.n_chunks):
        start, stop = rows.chunk_rows(i)
        part = rows.read(i)
        assert part.shape == (stop - start, rows.n_features)
        assert part.dtype == rows.dtype
        assert part.dtype.isnative
        assert part.flags.c_contiguous
        assert not part.flags.writeable
        parts.append(part)
    assert rows.chunk_table.dtype == np.int64
    assert rows.chunk_table[0] == 0
    assert rows.chunk_table[-1] == rows.n_rows
    assert (np.diff(rows.chunk_table) > 0).all()
    return np.concatenate(parts)


def files_under(folder):
    """Path -> bytes of every file, to see that nothing was touched."""
    found = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, folder)] = file.read()
    return found
