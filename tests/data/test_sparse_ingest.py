"""Sparse sources are stored as CSR groups in AnnData's layout."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys

import dask
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from sklearn.datasets import dump_svmlight_file

from largek_dask.data import store_writer, svmlight
from largek_dask.data.csr_blocks import block_of
from largek_dask.data.csr_rows import CSRRows
from largek_dask.data.sources import open_rows
from largek_dask.data.zarr_rows import ZarrRows
from largek_dask.errors import DataError, IncompleteStoreError
from largek_dask.kernels.exact.statistics import RowScan
from tests.data.helpers import quiet, read_all


@pytest.fixture
def matrix():
    dense = sp.random(900, 40, density=0.1, dtype=np.float32, random_state=2).toarray()
    dense[5] = dense[-1] = 0
    dense[:, 39] = 1
    return sp.csr_matrix(dense)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(store_writer, "CHUNK_VALUES", 1_000)
    monkeypatch.setattr(svmlight, "BLOCK_BYTES", 5_000)
    with dask.config.set({"largek.data.read-chunk-bytes": 3_000}):
        yield


def test_ingest__a_matrix_becomes_a_csr_group(matrix, tmp_path):
    rows = quiet(matrix, tmp_path / "out.zarr")
    assert isinstance(rows, CSRRows)
    assert rows.n_chunks > 2
    np.testing.assert_array_equal(read_all(rows), matrix.toarray())
    scan = RowScan(40, np.float32)
    scan.add(block_of(matrix.data, matrix.indices, matrix.indptr, 40))
    assert rows.stored_statistics() == scan.finish().to_dict()
    assert rows.fingerprint()["content"] == open_rows(matrix).fingerprint()["content"]
    other = matrix.copy()
    other.data[7] += 1
    assert rows.fingerprint()["content"] != open_rows(other).fingerprint()["content"]
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    assert group.attrs["encoding-type"] == "csr_matrix"
    parts = [group[name][:] for name in ("data", "indices", "indptr")]
    again = sp.csr_matrix(tuple(parts), shape=group.attrs["shape"])
    assert (again != matrix).nnz == 0
    # ingest of such a store is another one
    twice = quiet(tmp_path / "out.zarr", tmp_path / "twice.zarr", chunk_rows=100, dtype="float16")
    assert np.diff(twice.chunk_table).max() == 100
    assert pickle.loads(pickle.dumps(twice)).n_chunks == 9
    expected = matrix.toarray().astype(np.float16)
    np.testing.assert_array_equal(read_all(twice), expected)
    assert twice.dtype == np.float32


@pytest.mark.parametrize("zero_based", [True, False])
@pytest.mark.parametrize("suffix", ["svm", "svmlight", "libsvm"])
def test_ingest__svmlight_in_pieces(zero_based, suffix, matrix, tmp_path):
    matrix = matrix.copy()
    matrix[0, 0] = 5  # else nobody could tell where columns begin
    path = tmp_path / f"x.{suffix}"
    dump_svmlight_file(matrix, np.arange(900), str(path), zero_based=zero_based, comment="text")
    assert path.stat().st_size > 3 * svmlight.BLOCK_BYTES
    rows = quiet(path, tmp_path / "out.zarr", dtype="float32")
    assert isinstance(rows, CSRRows)
    np.testing.assert_array_equal(read_all(rows), matrix.toarray())
    with pytest.raises(DataError, match=r"largek ingest .*x\.\w+ OUT\.zarr"):
        open_rows(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rows"),
        ("1\n2\n", "has no columns"),
        ("1 2:3 apples\n", "is not in svmlight format"),
        ("one 2:3\n", "is not in svmlight format"),
        ("1 1:1 3000000000:1\n", "is not in svmlight format"),
    ],
)
def test_ingest__says_what_is_wrong_with_svmlight(text, message, tmp_path):
    (tmp_path / "x.svm").write_text(text)
    with pytest.raises(DataError, match=message):
        quiet(tmp_path / "x.svm", tmp_path / "out.zarr")
    assert not (tmp_path / "out.zarr").exists()


def test_ingest__sparse_rows_are_shuffled_as_dense_ones(matrix, tmp_path):
    rows = quiet(matrix, tmp_path / "out.zarr", shuffle=1)
    assert isinstance(rows, ZarrRows)
    key = lambda x: x[np.lexsort(x.T)]  # noqa: E731
    np.testing.assert_array_equal(key(read_all(rows)), key(matrix.toarray()))


KILLED = """
import os, sys
import numpy as np, scipy.sparse as sp
from largek_dask.data import store_writer
from largek_dask.data.ingest import ingest

store_writer.CHUNK_VALUES = 100
append = store_writer.CSRWriter.append

def stop_after(self, block):
    append(self, block)
    os.write(int(sys.argv[2]), b"!")
    os.read(0, 1)  # waits for ever: the other side never writes

store_writer.CSRWriter.append = stop_after
ingest(sp.csr_matrix(np.eye(5000)), sys.argv[1], progress=False)
"""


@pytest.mark.slow
def test_ingest__a_kill_leaves_a_store_that_is_refused(matrix, tmp_path):
    out = tmp_path / "out.zarr"
    ready, write_end = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(out), str(write_end)],
        stdin=subprocess.PIPE,
        pass_fds=[write_end],
    )
    os.close(write_end)
    try:
        assert os.read(ready, 1) == b"!"
    finally:
        os.close(ready)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdin.close()
    assert (out / "data" / "c" / "2").exists()
    with pytest.raises(IncompleteStoreError, match=r"out\.zarr is incomplete.*--force"):
        open_rows(out)
    np.testing.assert_array_equal(read_all(quiet(matrix, out, force=True)), matrix.toarray())


def test_block_of__puts_in_order_and_refuses(matrix):
    block = block_of([1, 2, 3, 4, 5], [3, 1, 3, 0, 0], [0, 3, 3, 5], 4)
    assert block.indices.tolist() == [1, 3, 0]
    assert block.data.tolist() == [2, 4, 9]
    assert block.indptr.tolist() == [0, 2, 2, 3]
    # nothing is copied, and the user's arrays stay as they are
    fitting = block_of(matrix.data, matrix.indices, matrix.indptr, 40)
    assert np.shares_memory(fitting.data, matrix.data)
    assert np.shares_memory(fitting.indices, matrix.indices)
    assert matrix.data.flags.writeable
    for indices, indptr in (([4], [0, 1]), ([-1], [0, 1]), ([0], [0, 2]), ([0], [0, 1, 0, 1])):
        with pytest.raises(ValueError, match=r"indptr must start at 0|outside the range 0 to 3"):
            block_of([1.0], indices, indptr, 4)
    wide = sp.csr_matrix(([1.0], ([0], [2**31])), shape=(1, 2**31 + 1))
    with pytest.raises(DataError, match="2,147,483,647"):
        open_rows(wide)
    matrix.indices[3] = 40
    with pytest.raises(DataError, match="sparse matrix is invalid"):
        open_rows(matrix)
