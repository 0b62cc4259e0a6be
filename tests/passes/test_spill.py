"""Rows of one process that are written for workers are the same rows, wherever they are opened."""

from __future__ import annotations

import os
import pickle
from types import SimpleNamespace

import dask
import numpy as np
import pytest
import scipy.sparse

import largek_dask as lk
from largek_dask.errors import OutputError
from largek_dask.kernels.blocks import SparseBlock
from largek_dask.passes.spill import remove_spilled, spill, spill_folder

N, D = 1_000, 4


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("largek_dask.data.memory_rows.MIN_CHUNK_ROWS", 1)
    monkeypatch.setattr("largek_dask.data.memory_rows.SPARSE_CHUNK_ROWS", 1)
    with dask.config.set({"largek.data.memory-chunk-bytes": 150 * D * 4}):
        yield


def opened(sparse, weighted):
    r = np.random.default_rng(0)
    x = r.normal(size=(N, D)).astype(np.float32)
    if sparse:
        x = scipy.sparse.csr_array(np.where(x > 0, x, 0))
    rows = lk.open_rows(x, sample_weight=r.integers(0, 5, N).astype(float) if weighted else None)
    assert rows.n_chunks > 3
    assert rows.is_sparse is sparse
    return rows


def plain(block):
    if isinstance(block, SparseBlock):
        return scipy.sparse.csr_array(
            (block.data, block.indices, block.indptr), block.shape
        ).todense()
    return np.asarray(block)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("sparse", [False, True])
def test_they_come_back_as_they_were(sparse, weighted, tmp_path):
    rows = opened(sparse, weighted)
    written = spill(rows, str(tmp_path / "new" / "folder"))
    for other in (written, pickle.loads(pickle.dumps(written))):
        np.testing.assert_array_equal(other.chunk_table, rows.chunk_table)
        assert (other.dtype, other.shape) == (rows.dtype, rows.shape)
        assert (other.is_sparse, other.shuffled) == (sparse, rows.shuffled)
        assert (other.weight is not None) is weighted
        for i in range(rows.n_chunks):
            np.testing.assert_array_equal(plain(other.read(i)), plain(rows.read(i)))
            if weighted:
                np.testing.assert_array_equal(other.read_weight(i), rows.read_weight(i))
        assert other.describe_source(other.location) == "the data"


def test_too_little_space_is_said_with_figures_and_leaves_nothing(tmp_path, monkeypatch):
    rows, folder = opened(False, False), str(tmp_path / "new")
    free = [rows.nbytes - 1]
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=free[0]))
    with pytest.raises(OutputError, match=r" free; .*spill-folder"):
        spill(rows, folder)
    assert not os.path.exists(folder)
    free[0] += 1
    assert spill(rows, folder).n_rows == N, "just enough"


def test_what_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    rows, folder = opened(False, True), str(tmp_path / "new")

    def broken(i, *span):
        raise error

    monkeypatch.setattr(type(rows), "read_weight", broken)
    error: Exception = OSError("a cable is loose")
    with pytest.raises(
        OutputError, match=r"cannot be written to .*new for the workers: a cable is"
    ):
        spill(rows, folder)
    assert not os.path.exists(folder)
    error = ValueError("not a matter of the disk")
    with pytest.raises(ValueError, match="not a matter"):
        spill(rows, folder)
    assert not os.path.exists(folder)


def test_folders_are_new_ones_where_the_setting_says(tmp_path):
    with dask.config.set({"largek.passes.spill-folder": str(tmp_path)}):
        names = {spill_folder() for _ in range(3)}
    assert len(names) == 3
    assert {os.path.dirname(name) for name in names} == {str(tmp_path)}
    with dask.config.set({"largek.passes.spill-folder": None}):
        made = spill_folder()
    assert os.path.isdir(made)
    for _ in range(2):
        remove_spilled(made)
        assert not os.path.exists(made)
