"""Open HDF5 files and AnnData stores, which hold tables among other arrays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import largek_dask as lk
from largek_dask.data.csr_rows import CSRRows
from largek_dask.data.group_tables import HDF5Rows
from largek_dask.data.sources import open_rows
from largek_dask.errors import DataError, ParameterError
from tests.data.helpers import read_all


@pytest.fixture
def matrix() -> Any:
    return sp.random(300, 8, density=0.3, dtype=np.float32, random_state=2, format="csr")


@pytest.fixture
def file(x: np.ndarray, matrix: Any, tmp_path: Path) -> Iterator[Any]:
    """A file with two tables, a sparse matrix as AnnData writes it, and a column."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("group/table", data=x, chunks=(100, 7))
        file.create_dataset("other", data=x * 2)
        file.create_dataset("column", data=np.arange(5))
        sparse = file.create_group("cells")
        for name in ("data", "indices", "indptr"):
            sparse.create_dataset(name, data=getattr(matrix, name))
        sparse.attrs["shape"] = matrix.shape
        sparse.attrs["encoding-type"] = "csr_matrix"
        yield file


def test_datasets_groups_and_files(file: Any, x: np.ndarray, small_chunks: Any) -> None:
    for source, column in [
        (file["group/table"], None),
        (file["group"], None),
        (file["group"], "table"),
        (file, "group"),
        (file, "group/table"),
    ]:
        rows = open_rows(source, column=column)
        assert isinstance(rows, HDF5Rows)
        np.testing.assert_array_equal(read_all(rows), x)
    weighted = open_rows(file["other"], sample_weight=np.arange(1_000))
    np.testing.assert_array_equal(weighted.read_weight(0), np.arange(1_000))


def test_sparse_groups(file: Any, matrix: Any) -> None:
    for source, column in [(file["cells"], None), (file, "cells")]:
        rows = open_rows(source, column=column)
        assert isinstance(rows, CSRRows)
        np.testing.assert_array_equal(read_all(rows), matrix.toarray())


@pytest.mark.parametrize(
    ("column", "told"),
    [
        (None, r"x\.h5 is a group that does not contain.*group/table, other\); set column"),
        ("nope", r"x\.h5 has no array or group named 'nope'"),
        ("column", r"1 dimensions.*reshape"),
    ],
)
def test_what_is_no_table(file: Any, column: str | None, told: str) -> None:
    with pytest.raises(DataError, match=told):
        open_rows(file, column=column)


def test_a_closed_or_damaged_file_is_named(file: Any) -> None:
    rows = open_rows(file["group/table"])
    file.close()
    with pytest.raises(DataError, match=r"chunk 0 \(rows 0 to 999\) of .*x\.h5/group/table cannot"):
        rows.read(0)


# --- the same through estimators ----------------------------------------------------------------

TAKING_ROWS = {
    "KMeans": (
        "fit", "fit_predict", "fit_transform", "partial_fit", "predict", "transform", "score",
    ),
    "Mixture": (
        "fit", "fit_predict", "predict", "predict_proba", "score_samples", "score", "bic", "aic",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, ns in TAKING_ROWS.items() for n in ns])
def test_every_method_takes_what_says_how_rows_are_opened(
    kind: str, name: str, x: np.ndarray
) -> None:
    group = zarr.open_group(f"memory://{kind}-{name}/g.zarr", mode="w")
    for part, values in (("a", x), ("b", 3 * x)):
        array = group.create_array(part, shape=x.shape, dtype=x.dtype, chunks=(100, 7))
        array[:] = values
    url = f"memory://{kind}-{name}/g.zarr"

    def called(*args: Any, **source: Any) -> Any:
        estimator = getattr(lk, kind)(3, random_state=0, max_iter=2)
        if "fit" not in name:
            estimator.fit(x)
        found = getattr(estimator, name)(*args, **source)
        return estimator.model_.digest() if found is estimator else found

    with pytest.raises(DataError, match="set column to"):
        called(url)
    options = {"column": "b", "storage_options": {"skip_instance_cache": False}}
    np.testing.assert_array_equal(called(url, **options), called(3 * x))
    with pytest.raises(DataError, match="named 'c'"):
        called(url, column="c")
    with pytest.raises(ParameterError, match="selects an array inside a store, but the source is"):
        called(x, column="a")
    with pytest.raises(TypeError, match="unexpected keyword argument 'compnent'"):
        called(url, compnent="a")


def test_what_a_store_has_is_named(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    group.create_array("table", data=np.ones((3, 2)))
    group.create_array("other", data=np.ones((3, 2)))
    for source in (str(tmp_path / "x.zarr"), group):
        with pytest.raises(DataError, match=r"no array or group named 'nope'.*other, table"):
            open_rows(source, column="nope")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["images"] = np.ones((3, 2, 2))
        with pytest.raises(DataError, match=r"exactly one table \(it contains images\)"):
            open_rows(file)
