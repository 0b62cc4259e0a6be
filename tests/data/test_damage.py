"""Errors name the key and location of a damaged chunk."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import scipy.sparse as sp
import zarr
from fsspec import AbstractFileSystem
from zarr.codecs import Crc32cCodec, GzipCodec, ZstdCodec

import largek_dask as lk
from largek_dask.data.sources import open_rows, read_integers
from largek_dask.data.stores import list_stamps
from largek_dask.errors import DataError
from tests.data.helpers import read_all
from tests.data.test_csr_rows import write_anndata
from tests.faults.stores import FaultyFileSystem
from tests.helpers.memory_files import MemoryFiles

CHECKED = {"compressors": [Crc32cCodec()]}
LAYOUTS: dict[str, tuple[dict[str, Any], str, bool]] = {
    "checksum": ({"chunks": (100, 7), **CHECKED}, "c/3/0", True),
    "zstd": ({"chunks": (100, 7), "compressors": [ZstdCodec()]}, "c/3/0", True),
    "shards": ({"chunks": (50, 7), "shards": (100, 7), **CHECKED}, "c/3/0", True),
    "gzip": ({"chunks": (100, 7), "compressors": [GzipCodec()]}, "c/3/0", False),
    "columns": ({"chunks": (100, 4), **CHECKED}, "c/3/1", False),
    "shards of columns": ({"chunks": (50, 2), "shards": (100, 4), **CHECKED}, "c/3/1", False),
    "v2": ({"chunks": (100, 7), "zarr_format": 2}, "3.0", False),
}
"""Options, the key of a chunk of the rows 300 to 399, and whether it is read without Zarr."""


def make(where: Any, x: np.ndarray, options: dict[str, Any]) -> Any:
    array = zarr.create_array(where, shape=x.shape, dtype=x.dtype, **options)
    array[:] = x
    return array


def flip(data: bytes) -> bytes:
    """Reverse some bytes in the middle of the data."""
    middle = len(data) // 2
    return data[:middle] + bytes(b ^ 0xFF for b in data[middle : middle + 8]) + data[middle + 8 :]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_local_chunk(layout: str, x: np.ndarray, tmp_path: Path) -> None:
    """The chunk is one of ten that are read together."""
    options, key, is_direct = LAYOUTS[layout]
    make(tmp_path / "x.zarr", x, options)
    file = tmp_path / "x.zarr" / key
    data = file.read_bytes()
    # Zstandard by itself has no checksum.
    file.write_bytes(data[:-20] if layout in ("zstd", "v2") else flip(data))
    rows = open_rows(tmp_path / "x.zarr")
    assert rows.n_chunks == 1
    assert (rows._direct is not None) == is_direct
    told = re.escape(f"the stored chunk {key!r} ({file}) is damaged (")
    with pytest.raises(DataError, match=rf"chunk 0 \(rows 0 to 999\) of .*x\.zarr .*{told}"):
        rows.read(0)


def test_one_of_several_rows_of_chunks(x: np.ndarray, tmp_path: Path, small_chunks: Any) -> None:
    """Other chunks can still be read."""
    make(tmp_path / "x.zarr", x, LAYOUTS["gzip"][0])
    file = tmp_path / "x.zarr" / "c" / "3" / "0"
    file.write_bytes(flip(file.read_bytes()))
    rows = open_rows(tmp_path / "x.zarr")
    np.testing.assert_array_equal(rows.read(2), x[200:300])
    with pytest.raises(DataError, match=r"chunk 3 \(rows 300 to 399\).*'c/3/0' \(/"):
        rows.read(3)
    with pytest.raises(DataError, match=r"'c/3/0' \(/"):
        lk.KMeans(2, random_state=0).fit(str(tmp_path / "x.zarr"))


def test_behind_fsspec(x: np.ndarray) -> None:
    make("memory://damaged/x.zarr", x, LAYOUTS["checksum"][0])
    fs = fsspec.filesystem("memory")
    fs.pipe("/damaged/x.zarr/c/3/0", flip(fs.cat("/damaged/x.zarr/c/3/0")))
    told = r"the stored chunk 'c/3/0' \(memory://.*damaged/x\.zarr/c/3/0\) is damaged"
    with pytest.raises(DataError, match=told):
        read_all(open_rows("memory://damaged/x.zarr"))


def test_a_component(x: np.ndarray, tmp_path: Path) -> None:
    zarr.open_group(tmp_path / "g.zarr", mode="w")
    make(tmp_path / "g.zarr" / "a", x, LAYOUTS["columns"][0])
    file = tmp_path / "g.zarr" / "a" / "c" / "3" / "1"
    file.write_bytes(flip(file.read_bytes()))
    with pytest.raises(DataError, match=re.escape(f"'c/3/1' ({file}) is damaged")):
        read_all(open_rows(tmp_path / "g.zarr", column="a"))


@pytest.mark.parametrize("name", ["data", "indices", "indptr"])
def test_a_sparse_group(name: str, tmp_path: Path) -> None:
    matrix = sp.random(700, 30, density=0.1, dtype=np.float32, random_state=2, format="csr")
    write_anndata(tmp_path / "cells.zarr", matrix)
    file = tmp_path / "cells.zarr" / "X" / name / "c" / "2"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match=re.escape(f"the stored chunk 'c/2' ({file}) is damaged")):
        read_all(open_rows(tmp_path / "cells.zarr"))


def test_weights_and_known_classes(x: np.ndarray, tmp_path: Path) -> None:
    for name, dtype in (("weight", "f8"), ("truth", "i4")):
        array = zarr.create_array(tmp_path / name, shape=(1_000,), chunks=(100,), dtype=dtype)
        array[:] = np.arange(1, 1_001)
        file = tmp_path / name / "c" / "3"
        file.write_bytes(file.read_bytes()[:-20])
    told = r"the stored chunk 'c/3' \(.*{}/c/3\) is damaged"
    with pytest.raises(DataError, match="sample_weight .*" + told.format("weight")):
        open_rows(x, sample_weight=str(tmp_path / "weight")).read_weight(0)
    with pytest.raises(DataError, match="--labels .*" + told.format("truth")):
        read_integers(str(tmp_path / "truth"), 1_000, what="--labels")


def test_a_chunk_of_ingest_that_is_not_there(x: np.ndarray, tmp_path: Path) -> None:
    lk.ingest(x, tmp_path / "x.zarr", chunk_rows=100, progress=False)
    file = tmp_path / "x.zarr" / "c" / "3" / "0"
    file.unlink()
    rows = open_rows(tmp_path / "x.zarr")
    for direct in (True, False):
        if not direct:
            rows._direct = None
        told = re.escape(f"the stored chunk 'c/3/0' ({file}) is missing")
        with pytest.raises(DataError, match=told):
            rows.read(0)


def test_a_chunk_that_nobody_can_look_for_is_not_missing(monkeypatch: Any) -> None:
    """fsspec's own ``exists`` returns False for any error."""
    FaultyFileSystem.clear()
    url = "faulty://unknown/x.zarr"
    lk.ingest(np.zeros((300, 2), np.float32), url, chunk_rows=100, progress=False)
    away = [True]

    def info(self: Any, path: str, **kwargs: Any) -> Any:
        if away[0] and "/c/" in path:
            raise TimeoutError("no answer")
        return MemoryFiles.info(self, path, **kwargs)

    monkeypatch.setattr(FaultyFileSystem, "info", info)
    monkeypatch.setattr(FaultyFileSystem, "exists", AbstractFileSystem.exists)
    monkeypatch.setattr("largek_dask.retry.time.sleep", lambda _: None)
    rows = open_rows(url)
    assert not FaultyFileSystem().exists("/unknown/x.zarr/c/0/0")
    with pytest.raises(DataError, match="no answer"):
        rows.read(0)
    away[0] = False
    assert not rows.read(0).any()
    FaultyFileSystem.clear()


def test_a_folder_that_nobody_can_list_is_not_empty(monkeypatch: Any) -> None:
    """Otherwise its chunks would lack stamps, as if all had been rewritten."""
    FaultyFileSystem.clear()
    url = "faulty://unlisted/x.zarr"
    lk.ingest(np.ones((300, 2), np.float32), url, chunk_rows=100, progress=False)
    away = [False]

    def ls(self: Any, path: str, *args: Any, **kwargs: Any) -> Any:
        if away[0] and path.endswith("/c"):
            raise TimeoutError("no answer")
        return MemoryFiles.ls(self, path, *args, **kwargs)

    monkeypatch.setattr(FaultyFileSystem, "ls", ls)
    monkeypatch.setattr(FaultyFileSystem, "find", AbstractFileSystem.find)
    monkeypatch.setattr("largek_dask.retry.time.sleep", lambda _: None)
    stamps = list_stamps(url, None, None)
    assert any("/" in key for key in stamps)
    away[0] = True
    with pytest.raises(TimeoutError, match="no answer"):
        list_stamps(url, None, None)
    with pytest.raises((DataError, TimeoutError), match="no answer"):
        open_rows(url).fingerprint()
    FaultyFileSystem.clear()


def test_storage_that_is_away_is_not_asked_chunk_by_chunk(
    x: np.ndarray, tmp_path: Path, monkeypatch: Any
) -> None:
    """That would take long, and the data may be intact."""
    make(tmp_path / "x.zarr", x, LAYOUTS["columns"][0])
    rows = open_rows(tmp_path / "x.zarr")
    assert rows._direct is None
    calls: list[Any] = []

    def fail(*_: Any) -> None:
        calls.append(1)
        raise ConnectionError("no answer")

    monkeypatch.setattr(zarr.Array, "__getitem__", fail)
    monkeypatch.setattr("largek_dask.retry.time.sleep", lambda _: None)
    with pytest.raises(DataError, match="no answer"):
        rows.read(0)
    # As often as it is tried, not ten times as often.
    assert 1 <= len(calls) < 10
