"""CSR groups in AnnData's layout."""

from __future__ import annotations

import pickle

import dask
import numpy as np
import pytest
import scipy.sparse as sp
import zarr

from largek_dask.data.csr_rows import CSRRows
from largek_dask.data.sources import open_rows
from largek_dask.errors import DataError
from largek_dask.kernels.rows import compute_dtype
from tests.data.helpers import read_all

N, D = 700, 30


@pytest.fixture
def matrix():
    dense = sp.random(N, D, density=0.1, dtype=np.float32, random_state=2).toarray()
    dense[5] = 0
    return sp.csr_matrix(dense)


def write_sparse(group, matrix, **attributes):
    """A sparse matrix as AnnData writes it."""
    for name in ("data", "indices", "indptr"):
        values = getattr(matrix, name)
        array = group.create_array(name, shape=values.shape, chunks=(64,), dtype=values.dtype)
        array[:] = values
    defaults = {
        "encoding-type": f"{matrix.format}_matrix",
        "encoding-version": "0.1.0",
        "shape": list(matrix.shape),
    }
    group.attrs.update(defaults | attributes)


def write_anndata(where, matrix, zarr_format=3):
    root = zarr.open_group(where, mode="w", zarr_format=zarr_format)
    root.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
    root.create_group("obs")
    write_sparse(root.create_group("X"), matrix)
    write_sparse(root.create_group("layers").create_group("counts"), matrix * 2)
    return root


@pytest.fixture
def few_rows():
    with dask.config.set({"largek.data.read-chunk-bytes": 1}):
        yield


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_csr_rows__an_anndata_store_opens_as_it_is(zarr_format, matrix, tmp_path, few_rows):
    root = write_anndata(tmp_path / "cells.zarr", matrix, zarr_format)
    rows = open_rows(tmp_path / "cells.zarr")
    assert isinstance(rows, CSRRows)
    assert (rows.location, rows.column) == (str(tmp_path / "cells.zarr"), "X")
    assert rows.chunk_table.tolist() == [0, 256, 512, 700]
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(read_all(rows), matrix.toarray())
    np.testing.assert_array_equal(read_all(pickle.loads(pickle.dumps(rows))), matrix.toarray())
    assert len(rows.fingerprint()["stamps"]) == 3
    for other in (
        open_rows(tmp_path / "cells.zarr", column="layers/counts"),
        open_rows(root, column="layers/counts"),
        open_rows(root["layers/counts"]),
    ):
        assert other.column == "layers/counts"
        np.testing.assert_array_equal(read_all(other), 2 * matrix.toarray())


@pytest.mark.parametrize("dtype", ["f2", "f8", "u1", "i8"])
def test_csr_rows__stored_types(dtype, matrix, tmp_path):
    dense = np.abs(matrix.toarray() * 50).astype(dtype)
    rows, columns = np.nonzero(dense)
    stored = sp.csr_matrix((np.ones(len(rows)), (rows, columns)), shape=dense.shape)
    # scipy has no float16: the values are put in by hand
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    write_sparse(group, stored)
    del group["data"]
    group.create_array("data", shape=(len(rows),), chunks=(64,), dtype=dtype)[:] = dense[
        rows, columns
    ]
    opened = open_rows(tmp_path / "x.zarr")
    assert opened.dtype == compute_dtype(dtype)
    np.testing.assert_array_equal(read_all(opened), dense)


def test_csr_rows__a_group_in_memory(matrix):
    group = zarr.open_group(zarr.storage.MemoryStore(), mode="w")
    write_sparse(group, matrix)
    rows = open_rows(group)
    assert rows.location is None
    np.testing.assert_array_equal(read_all(rows), matrix.toarray())


def test_csr_rows__what_is_wrong_is_said(matrix, tmp_path):
    def store(name, **attributes):
        group = zarr.open_group(tmp_path / name, mode="w")
        write_sparse(group, matrix, **attributes)
        return group

    store("csc.zarr", **{"encoding-type": "csc_matrix"})
    with pytest.raises(DataError, match=r"csc\.zarr is stored by columns \(CSC\).*tocsr"):
        open_rows(tmp_path / "csc.zarr")
    store("noshape.zarr", shape=None)
    with pytest.raises(DataError, match=r"without the attribute 'shape'"):
        open_rows(tmp_path / "noshape.zarr")
    store("short.zarr", shape=[N - 1, D])
    with pytest.raises(
        DataError, match=r"not a valid CSR matrix: for shape \(699, 30\), indptr has 701"
    ):
        open_rows(tmp_path / "short.zarr")
    store("column.zarr")["indices"][7] = D
    with pytest.raises(DataError, match=r"chunk 0 \(rows 0 to 699\).*column index.* 0 to 29"):
        open_rows(tmp_path / "column.zarr").read(0)
    store("order.zarr")["indptr"][3] = 10_000
    with pytest.raises(DataError, match=r"chunk 0 .*indptr must start at 0"):
        open_rows(tmp_path / "order.zarr").read(0)
    store("torn.zarr")
    path = tmp_path / "torn.zarr" / "data" / "c" / "1"
    path.write_bytes(path.read_bytes()[:10])
    with pytest.raises(DataError, match=r"chunk 0 .*torn\.zarr cannot be read"):
        open_rows(tmp_path / "torn.zarr").read(0)
