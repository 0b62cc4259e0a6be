"""Write stores from every format; refusals change nothing, kills leave nothing readable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tracemalloc
from types import SimpleNamespace

import dask
import dask.array as da
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
import zarr

import largek_dask as lk
from largek_dask.data import ingest as ingest_module
from largek_dask.data import shuffle as shuffle_module
from largek_dask.data import store_writer, tables
from largek_dask.data.ingest import ingest
from largek_dask.data.sources import open_rows
from largek_dask.errors import (
    DataError,
    IncompleteStoreError,
    MissingDependencyError,
    OutputError,
    ParameterError,
)
from largek_dask.kernels.exact.statistics import RowScan, Statistics
from tests.data.helpers import files_under, quiet, read_all
from tests.helpers.covering import slow


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "u1", "i2", "i8"])
def test_ingest__rows_come_back_with_their_statistics(dtype, x, tmp_path):
    source = (x * 10).astype(dtype)
    rows = quiet(source, tmp_path / "out.zarr", chunk_rows=300)
    assert rows.dtype == np.dtype(dtype)
    assert rows.location == str(tmp_path / "out.zarr")
    np.testing.assert_array_equal(read_all(rows), source)
    scan = RowScan(7, source.dtype)
    scan.add(source)
    stored = Statistics.from_dict(rows.stored_statistics())
    assert stored.to_dict() == scan.finish().to_dict()
    array = zarr.open_array(tmp_path / "out.zarr")
    assert array.metadata.zarr_format == 3
    assert array.chunks == (300, 7)
    # floats are plain bytes behind a checksum, integers are compressed
    assert (rows._direct is not None) == (source.dtype.kind == "f")
    assert open_rows(rows, sample_weight=np.ones(1_000)).stored_statistics() is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_total": 999}, "the statistics are for 999 rows with 7 features"),
        ({"mean": ["0x0p0"]}, "statistics have 1 float64 features, expected 7"),
        ({"shift": ["nan"] * 7}, "mean and origin must be finite"),
        ({"max_abs": "inf"}, "extents, .* must be finite and not negative"),
        ({"total_weight": "-0x1p0"}, "weights .* must be finite and not negative"),
        ({"dtype": "float32"}, "the statistics are for float32 features, but the rows are float64"),
        ({"grid": None}, "they are incomplete"),
        ({"mean": None}, "they are incomplete"),
    ],
)
def test_ingest__statistics_that_cannot_be_of_the_rows_are_refused(changes, message, x, tmp_path):
    quiet(x.astype("f8"), tmp_path / "out.zarr", chunk_rows=300)
    node = json.loads((tmp_path / "out.zarr" / "zarr.json").read_text())
    node["attributes"]["largek"]["statistics"].update(changes)
    (tmp_path / "out.zarr" / "zarr.json").write_text(json.dumps(node))
    wanted = rf"statistics in .*out\.zarr cannot be read .*{message}.* write the store again"
    with pytest.raises(DataError, match=wanted):
        lk.KMeans(3, random_state=0).fit(tmp_path / "out.zarr")


def write_sources(folder, x):
    frame = pd.DataFrame(x, columns=[f"c{i}" for i in range(7)])
    frame.to_csv(folder / "header.csv", index=False)
    frame.to_csv(folder / "plain.csv", index=False, header=False)
    frame.to_csv(folder / "semicolon.csv", index=False, sep=";")
    frame.to_csv(folder / "tabs.tsv.gz", index=False, sep="\t")
    frame.to_parquet(folder / "x.parquet", row_group_size=130)
    (folder / "parts.parquet").mkdir()
    frame[:400].to_parquet(folder / "parts.parquet" / "part-0.parquet")
    frame[400:].to_parquet(folder / "parts.parquet" / "part-1.parquet")
    lists = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 7)
    names = pa.array([str(i) for i in range(len(x))])
    pq.write_table(pa.table({"id": names, "embedding": lists}), folder / "lists.parquet")
    with h5py.File(folder / "x.h5", "w") as file:
        file["group/table"] = x
        file["labels"] = np.zeros(len(x))
    np.save(folder / "x.npy", np.asfortranarray(x))
    matrix = sp.csr_matrix(x)
    with h5py.File(folder / "cells.h5ad", "w") as file:
        group = file.create_group("X")
        group.attrs["encoding-type"] = "csr_matrix"
        group.attrs["shape"] = np.array(matrix.shape)
        for name in ("data", "indices", "indptr"):
            group[name] = getattr(matrix, name)
    zarr.create_array(folder / "v2.zarr", data=x, chunks=(99, 3), zarr_format=2)


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("header.csv", None),
        ("plain.csv", None),
        ("semicolon.csv", None),
        ("tabs.tsv.gz", None),
        ("x.parquet", None),
        ("parts.parquet", None),
        ("lists.parquet", "embedding"),
        ("x.h5", None),
        ("x.h5", "group/table"),
        ("cells.h5ad", None),
        ("x.npy", None),
        ("v2.zarr", None),
    ],
)
def test_ingest__every_format(name, column, x, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "BLOCK_BYTES", 1)
    write_sources(tmp_path, np.tile(x, (2, 1)))
    rows = quiet(tmp_path / name, tmp_path / "out.zarr", column=column, chunk_rows=600)
    kind = np.float64 if "csv" in name or "tsv" in name else np.float32
    assert rows.dtype == kind
    assert rows.n_rows == 2_000
    np.testing.assert_array_equal(read_all(rows).astype(np.float32), np.tile(x, (2, 1)))
    small = quiet(tmp_path / name, tmp_path / "half.zarr", column=column, dtype="float16")
    np.testing.assert_array_equal(read_all(small), np.tile(x, (2, 1)).astype(np.float16))


@pytest.mark.parametrize("shuffle", [None, 3])
def test_ingest__holds_a_few_chunks_whatever_the_length(shuffle, tmp_path, monkeypatch):
    monkeypatch.setattr(shuffle_module, "BUCKET_BYTES", 1 << 18)
    np.save(tmp_path / "x.npy", np.zeros((400_000, 8), np.float32, order="F"))
    quiet(np.zeros((5_000, 8), np.float32), tmp_path / "warm.zarr", shuffle=shuffle)
    with dask.config.set({"largek.data.memory-chunk-bytes": 1 << 18}):
        tracemalloc.start()
        quiet(tmp_path / "x.npy", tmp_path / "out.zarr", chunk_rows=8_192, shuffle=shuffle)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    # of 12.8 MB: one block, one chunk, one bucket
    assert peak < 4e6


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "x,city\n1,Paris\n2,Rome\n", r"a\.csv .*: 'city' \('Paris' in data row 0"),
        ("b.csv", "x,y\n1,2\n3,oops\n", r"'y' \('oops' in data row 1\).*drop=\['y'\]"),
        ("c.csv", "", r"c\.csv has no rows"),
        ("d.csv", "x,y\n", r"no rows"),
        ("e.csv", "1,2\n3,4,5,6\n", r"e\.csv is (not a table|damaged)"),
        ("f.parquet", "junk", r"f\.parquet cannot be read as Parquet"),
        ("g.h5", "junk", r"g\.h5 cannot be read as HDF5"),
        ("absent.csv", None, r"absent\.csv does not exist"),
        ("absent.parquet", None, r"absent\.parquet does not exist"),
    ],
)
def test_ingest__says_what_is_wrong_with_a_file(name, content, message, tmp_path):
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=message):
        quiet(tmp_path / name, tmp_path / "out.zarr")
    with pytest.raises(DataError):
        open_rows(tmp_path / "out.zarr")


def test_ingest__missing_packages_name_the_extra(x, tmp_path, monkeypatch):
    write_sources(tmp_path, x)
    for package, name, extra in [
        ("pandas", "header.csv", "parquet"),
        ("pyarrow", "x.parquet", "parquet"),
        ("h5py", "x.h5", "hdf5"),
    ]:
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(MissingDependencyError, match=rf"largek_dask\[{extra}\]"):
                quiet(tmp_path / name, tmp_path / "out.zarr")
    assert not (tmp_path / "out.zarr").exists()


def test_ingest__progress_is_on_standard_error_and_only_if_asked_for(x, tmp_path, capsys):
    for progress in (True, False):
        ingest(x, str(tmp_path / f"{progress}.zarr"), progress=progress)
        assert bool(capsys.readouterr().err) == progress


def test_ingest__refuses_wrong_parameters_before_writing(x, tmp_path):
    for options, message in [
        ({"chunk_rows": 0}, "chunk_rows=0"),
        ({"dtype": "int8"}, "dtype=int8 cannot represent float32, the dtype of the source"),
        ({"dtype": "nonsense"}, "not a numpy dtype"),
        ({"shuffle": -1}, "shuffle=-1"),
    ]:
        with pytest.raises(ParameterError, match=message):
            quiet(x, tmp_path / "out.zarr", **options)
    assert not (tmp_path / "out.zarr").exists()


class Untouchable:
    """A source that must not be read."""

    @property
    def shape(self):
        raise AssertionError("the source was read")


def test_ingest__an_output_that_exists_is_found_before_reading_and_not_harmed(x, tmp_path):
    quiet(x, tmp_path / "out.zarr")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "holiday.jpg").write_text("dear")
    (tmp_path / "file.zarr").write_text("dear")
    before = files_under(tmp_path)
    for name, force, message in [
        ("out.zarr", False, r"out\.zarr already exists; nothing was changed"),
        ("photos", False, "already exists"),
        ("photos", True, "not a Zarr store, so force does not replace it"),
        ("file.zarr", True, "not a Zarr store, so force does not replace it"),
        ("file.zarr/inside.zarr", False, "cannot be"),
    ]:
        source = x if name.endswith("inside.zarr") else Untouchable()
        with pytest.raises(OutputError, match=message):
            quiet(source, tmp_path / name, force=force)
    assert files_under(tmp_path) == before
    np.testing.assert_array_equal(read_all(quiet(-x, tmp_path / "out.zarr", force=True)), -x)


def test_ingest__too_little_disk_is_found_before_writing(x, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(OutputError, match=r"kiB, but .* has only 100 B free"):
        quiet(x, tmp_path / "out.zarr")
    assert not (tmp_path / "out.zarr").exists()


def test_ingest__a_source_that_ends_early_is_not_data(x, tmp_path, monkeypatch):
    monkeypatch.setattr(tables.RowsTable, "blocks", lambda self: iter([self._rows.read(0)[:400]]))
    with pytest.raises(DataError, match="has 400 rows instead of 1000"):
        quiet(x, tmp_path / "out.zarr")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("failure", [DataError("line 300 is text"), KeyboardInterrupt()])
@pytest.mark.parametrize("kind", ["dense", "shuffled", "sparse"])
def test_ingest__what_fails_is_not_in_the_way_of_the_next_try(
    kind, failure, x, tmp_path, monkeypatch
):
    source = sp.csr_matrix(x) if kind == "sparse" else x
    options = {"chunk_rows": 100, "shuffle": 3 if kind == "shuffled" else None}
    begun = []

    def fail(self):
        yield self._rows.read(0)[:400]
        begun.extend(os.listdir(tmp_path))
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(tables.RowsTable, "blocks", fail)
        with pytest.raises(type(failure)):
            quiet(source, tmp_path / "out.zarr", **options)
    assert "out.zarr" in begun
    assert os.listdir(tmp_path) == []
    assert quiet(source, tmp_path / "out.zarr", **options).shape == x.shape


def test_ingest__storage_that_fails_for_good_is_said_to_keep_the_rest(x, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(5, "the disk is gone")

    def fail_again(self):
        monkeypatch.setattr("largek_dask.data.store_writer.remove_store", fail)
        fail()

    monkeypatch.setattr(tables.RowsTable, "blocks", fail_again)
    with pytest.raises(OSError, match="the disk is gone") as caught:
        quiet(x, tmp_path / "out.zarr")
    assert "out.zarr could not be removed" in caught.value.__notes__[0]
    monkeypatch.undo()
    # The next try is told what stands there.
    with pytest.raises(OutputError, match=r"out\.zarr already exists; .*--force"):
        quiet(x, tmp_path / "out.zarr")
    assert quiet(x, tmp_path / "out.zarr", force=True).shape == x.shape


KILLED = """
import os, sys
import numpy as np
from largek_dask.data import tables
from largek_dask.data.ingest import ingest

out, ready, force, shuffle = sys.argv[1:]
blocks = tables.RowsTable.blocks

def stop_in_the_middle(self):
    for number, block in enumerate(blocks(self)):
        if number == 3:
            os.write(int(ready), b"!")
            os.read(0, 1)  # waits for ever: the other side never writes
        yield block

tables.RowsTable.blocks = stop_in_the_middle
x = np.ones((5 * 1_024, 600), np.float32)
ingest(x, out, chunk_rows=500, progress=False, force=bool(int(force)),
       shuffle=int(shuffle) if shuffle else None)
"""


@pytest.mark.parametrize(("force", "shuffle"), [(1, ""), *slow((0, ""), (0, "3"))])
def test_ingest__a_kill_leaves_a_store_that_is_refused(force, shuffle, x, tmp_path):
    out = tmp_path / "out.zarr"
    if force:
        quiet(x, out)
    ready, write_end = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(out), str(write_end), str(force), shuffle],
        stdin=subprocess.PIPE,
        pass_fds=[write_end],
    )
    os.close(write_end)
    try:
        # an empty answer would mean that it ended before it got there
        assert os.read(ready, 1) == b"!"
    finally:
        os.close(ready)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdin.close()
    assert (out / "c" / "2" / "0").exists() == (not shuffle)
    with pytest.raises(IncompleteStoreError, match=r"out\.zarr is incomplete.*--force"):
        open_rows(out)
    # nothing else is left beside it, and it can be replaced
    assert os.listdir(tmp_path) == ["out.zarr"]
    np.testing.assert_array_equal(read_all(quiet(x, out, force=True)), x)


def test_ingest__replacing_a_store_takes_its_description_away_first(x, tmp_path, monkeypatch):
    quiet(x, tmp_path / "out.zarr")
    fs_class = type(store_writer.filesystem(str(tmp_path))[0])

    def refuse(self, path, recursive=False):
        if recursive:
            raise OSError("killed here")
        os.remove(path)

    monkeypatch.setattr(fs_class, "rm", refuse)
    with pytest.raises(OutputError, match="killed here"):
        quiet(x, tmp_path / "out.zarr", force=True)
    with pytest.raises(DataError, match="is not a Zarr"):
        open_rows(tmp_path / "out.zarr")


def test_rows__a_missing_chunk_of_an_ingested_store_is_an_error(x, tmp_path, small_chunks):
    source = x.copy()
    source[200:300] = 0
    for shuffle, dtype, key in [(None, "f4", "c/4/0"), (None, "i4", "c/2/0"), (1, "f4", "c/4/0")]:
        out = tmp_path / f"{shuffle}-{dtype}.zarr"
        kind = np.dtype(dtype)
        rows = quiet(source.astype(kind), out, chunk_rows=100, shuffle=shuffle)
        # a chunk of zeros is stored, and read as what it is
        np.testing.assert_array_equal(
            np.sort(read_all(rows), axis=0), np.sort(source.astype(kind), axis=0)
        )
        (out / key).unlink()
        with pytest.raises(DataError, match=rf"chunk {key[2]} \(rows .*{key}.* is missing"):
            rows.read(int(key[2]))


def test_ingest__shuffle_is_a_seeded_permutation_in_shards(x, tmp_path, monkeypatch):
    monkeypatch.setattr(ingest_module, "INNER_ROWS", 100)
    monkeypatch.setattr(shuffle_module, "BUCKET_BYTES", 7 * 4 * 150)
    first = quiet(x, tmp_path / "a.zarr", shuffle=1, chunk_rows=310)
    array = zarr.open_array(tmp_path / "a.zarr")
    assert (array.shards, array.chunks) == ((300, 7), (100, 7))
    found = read_all(first)
    assert not np.array_equal(found, x)
    order = np.lexsort(found.T)
    np.testing.assert_array_equal(found[order], x[np.lexsort(x.T)])
    # the same rows in the same order from another kind of source, other rows for another seed
    np.save(tmp_path / "x.npy", x)
    again = quiet(
        da.from_array(x, chunks=(77, 7)), tmp_path / "b.zarr", shuffle=1, chunk_rows=1_000
    )
    np.testing.assert_array_equal(read_all(again), found)
    other = quiet(x, tmp_path / "c.zarr", shuffle=2)
    assert not np.array_equal(read_all(other), found)
    # rows of bad numbers are counted where they are written
    bad = x.copy()
    bad[3] = np.nan
    rows = quiet(bad, tmp_path / "d.zarr", shuffle=1)
    at = np.flatnonzero(np.isnan(read_all(rows)[:, 0]))
    assert rows.stored_statistics()["first_bad"] == at[0]
