"""Missing chunks of a store are counted, with a warning."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy as np
import pytest
import scipy.sparse as sp
import zarr

import largek_dask as lk
from largek_dask.data import missing_chunks as module
from largek_dask.data.sources import open_rows, read_integers
from largek_dask.errors import DataError, MissingChunksWarning
from tests.data.helpers import read_all
from tests.data.test_csr_rows import write_anndata
from tests.helpers.covering import in_turns

LAYOUTS: dict[str, dict[str, Any]] = {
    "v3": {"chunks": (100, 7)},
    "v2": {"chunks": (100, 7), "zarr_format": 2},
    "two columns of chunks": {"chunks": (100, 4)},
    "shards": {"chunks": (50, 7), "shards": (100, 7)},
}
LOST = (3, 7)
"""Rows of chunks to remove, of ten."""


def make(where: Any, x: np.ndarray, layout: str = "v3", **options: Any) -> Any:
    """A store of ten rows of chunks."""
    array = zarr.create_array(
        where, shape=x.shape, dtype=x.dtype, fill_value=0, **LAYOUTS[layout], **options
    )
    array[:] = x
    return array


def lose(folder: Path, array: Any) -> str:
    """Remove the first chunk of two rows of chunks; return the key of the first."""
    keys = [array.metadata.encode_chunk_key((i, 0)) for i in LOST]
    for key in keys:
        assert (folder / key).is_file()
        (folder / key).unlink()
    return str(keys[0])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_local_store(layout: str, x: np.ndarray, tmp_path: Path, small_chunks: Any) -> None:
    array = make(tmp_path / "x.zarr", x, layout)
    read_all(open_rows(tmp_path / "x.zarr"))
    key = lose(tmp_path / "x.zarr", array)
    expected = 20 if layout == "two columns of chunks" else 10
    told = f"lacks 2 of {expected} .*'{key}'"
    for source in (str(tmp_path / "x.zarr"), zarr.open_array(tmp_path / "x.zarr", mode="r")):
        with pytest.warns(MissingChunksWarning, match=told):
            rows = open_rows(source)
    filled = x.copy()
    for i in LOST:
        filled[100 * i : 100 * (i + 1), : array.chunks[1]] = 0
    np.testing.assert_array_equal(read_all(rows), filled)


def test_rows_that_are_open_are_not_listed_again(
    x: np.ndarray, tmp_path: Path, monkeypatch: Any
) -> None:
    """Count once on opening: not in a fit, nor in workers that unpickle the rows."""
    lose(tmp_path / "x.zarr", make(tmp_path / "x.zarr", x))
    listings: list[Any] = []
    listed = module.list_stamps
    monkeypatch.setattr(module, "list_stamps", lambda *at: listings.append(at) or listed(*at))
    with pytest.warns(MissingChunksWarning):
        rows = open_rows(tmp_path / "x.zarr")
    assert len(listings) == 1
    lk.KMeans(2, algorithm="lloyd", random_state=0, max_iter=2).fit(rows)
    open_rows(rows).__reduce__()[0](*rows.__reduce__()[1])
    open_rows(tmp_path / "x.zarr", count_missing=False)
    assert len(listings) == 1
    with pytest.warns(MissingChunksWarning, match="lacks 2 of 10"):
        lk.KMeans(2, algorithm="lloyd", random_state=0, max_iter=2).fit(str(tmp_path / "x.zarr"))


def test_a_store_of_ingest_is_not_listed(x: np.ndarray, tmp_path: Path, monkeypatch: Any) -> None:
    """It is marked complete: reading a missing chunk is an error."""
    lk.ingest(x, tmp_path / "x.zarr", chunk_rows=100, progress=False)
    monkeypatch.setattr(module, "list_stamps", None)
    rows = open_rows(tmp_path / "x.zarr")
    (tmp_path / "x.zarr" / "c" / "3" / "0").unlink()
    with pytest.raises(DataError, match=r"c/3/0.* is missing"):
        read_all(rows)


def test_a_store_behind_fsspec(x: np.ndarray) -> None:
    url = "memory://missing/x.zarr"
    make(url, x)
    open_rows(url)
    fs = fsspec.filesystem("memory")
    for i in LOST:
        fs.rm(f"/missing/x.zarr/c/{i}/0")
    with pytest.warns(MissingChunksWarning, match=r"lacks 2 of 10 .*'c/3/0'"):
        open_rows(url)


@pytest.mark.parametrize(
    ("name", "places", "told"),
    [
        ("data", (2, 9), "X/data/c/2'"),
        ("indices", (2,), "X/indices/c/2'"),
        ("indptr", (2,), "X/indptr/c/2'"),
    ],
)
def test_sparse_groups(name: str, places: tuple[int, ...], told: str, tmp_path: Path) -> None:
    matrix = sp.random(700, 30, density=0.1, dtype=np.float32, random_state=2, format="csr")
    write_anndata(tmp_path / "cells.zarr", matrix)
    open_rows(tmp_path / "cells.zarr")
    stored = sum(-(-len(getattr(matrix, part)) // 64) for part in ("data", "indices", "indptr"))
    for place in places:
        (tmp_path / "cells.zarr" / "X" / name / "c" / str(place)).unlink()
    match = rf"lacks {len(places)} of {stored} .*'{told}"
    with pytest.warns(MissingChunksWarning, match=match):
        open_rows(tmp_path / "cells.zarr")


def test_where_nobody_can_tell(x: np.ndarray, tmp_path: Path, monkeypatch: Any) -> None:
    lose(tmp_path / "x.zarr", make(tmp_path / "x.zarr", x))

    def refuse(*_: Any) -> None:
        raise PermissionError("no listing for you")

    with monkeypatch.context() as patch:
        patch.setattr(module, "list_stamps", refuse)
        open_rows(tmp_path / "x.zarr")
    # A listing without what has just been read is none either.
    monkeypatch.setattr(module, "list_stamps", lambda *_: {})
    open_rows(tmp_path / "x.zarr")


def test_weights_and_known_classes(x: np.ndarray, tmp_path: Path) -> None:
    for name, dtype in (("weight", "f8"), ("truth", "i4")):
        array = zarr.create_array(tmp_path / name, shape=(1_000,), chunks=(100,), dtype=dtype)
        array[:] = np.arange(1, 1_001)
        (tmp_path / name / "c" / "3").unlink()
    told = "sample_weight .*weight lacks 1 of 10 .*'c/3'"
    with pytest.warns(MissingChunksWarning, match=told):
        open_rows(x, sample_weight=str(tmp_path / "weight"))
    with pytest.warns(MissingChunksWarning, match="--labels .*truth lacks 1 of 10"):
        found = read_integers(str(tmp_path / "truth"), 1_000, what="--labels")
    assert not found[300:400].any()


def test_a_warning_made_an_error_refuses_such_a_store(x: np.ndarray, tmp_path: Path) -> None:
    lose(tmp_path / "x.zarr", make(tmp_path / "x.zarr", x))
    with warnings.catch_warnings():
        warnings.simplefilter("error", MissingChunksWarning)
        with pytest.raises(MissingChunksWarning):
            lk.ingest(tmp_path / "x.zarr", tmp_path / "out.zarr", progress=False)
    assert not (tmp_path / "out.zarr").exists()
    with pytest.warns(MissingChunksWarning, match="lacks 2 of 10"):
        lk.ingest(tmp_path / "x.zarr", tmp_path / "out.zarr", progress=False)
    # From now on they are rows like all others.
    assert not read_all(open_rows(tmp_path / "out.zarr"))[300:400].any()


@pytest.mark.parametrize(
    ("kind", "layout"),
    in_turns(
        [*((dtype, None) for dtype in ("f4", "f8", "i4", "u1", "?")), ("f4", 7), ("f4", np.nan)],
        [{"compressors": None}, {}, {"chunks": (100, 2)}],
    ),
)
def test_chunks_of_version_2_are_read_as_zarr_reads_them(
    kind: tuple[str, Any], layout: dict[str, Any], tmp_path: Path, small_chunks: Any
) -> None:
    (dtype, fill), path = kind, tmp_path / "x.zarr"
    options = {"chunks": (100, 4), "zarr_format": 2, "fill_value": fill, **layout}
    array = zarr.create_array(path, shape=(1_000, 4), dtype=dtype, **options)
    array[:500] = 1
    if fill is None:
        notes = json.loads((path / ".zarray").read_text())
        (path / ".zarray").write_text(json.dumps({**notes, "fill_value": None}))
        array = zarr.open_array(path, mode="r")
        assert array.fill_value is None
    with pytest.warns(MissingChunksWarning, match=f"fill value {fill or 0:g}"):
        rows = open_rows(path)
    assert rows.n_chunks > 1
    np.testing.assert_array_equal(read_all(rows), array[:])
    weight = zarr.create_array(
        tmp_path / "w.zarr", shape=(1_000,), dtype="f4", **{**options, "chunks": (100,)}
    )
    weight[:500] = 1
    with pytest.warns(MissingChunksWarning):
        weighted = open_rows(np.ones((1_000, 2)), sample_weight=str(tmp_path / "w.zarr"))
    if fill is None or fill == fill:
        np.testing.assert_array_equal(weighted.read_weight(0), weight[:])


@pytest.mark.parametrize("fill", [None, np.nan])
def test_a_store_that_is_gone_is_not_read_as_its_fill_value(
    fill: Any, tmp_path: Path, small_chunks: Any
) -> None:
    """Fill values include ``null``, and NaN, which does not equal itself."""
    path = tmp_path / "x.zarr"
    array = zarr.create_array(
        path, shape=(200, 4), chunks=(100, 4), dtype="f4", zarr_format=2, fill_value=fill
    )
    array[:] = 1
    if fill is None:
        notes = json.loads((path / ".zarray").read_text())
        (path / ".zarray").write_text(json.dumps({**notes, "fill_value": None}))
    rows = open_rows(path)
    shutil.move(path, tmp_path / "elsewhere")
    settings = {"largek.stores.pause-seconds": 0.0, "largek.stores.patience-seconds": 0}
    with dask.config.set(settings), pytest.raises(DataError, match="the store is gone"):
        rows.read(0)
