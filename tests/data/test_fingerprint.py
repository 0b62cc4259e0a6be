"""Fingerprints recognize the same data and notice changes."""

from __future__ import annotations

import json
import os
import re

import dask
import numpy as np
import pytest
import zarr

from largek_dask.data import fingerprint
from largek_dask.data.fingerprint import same_data
from largek_dask.data.ingest import ingest
from largek_dask.data.sources import open_rows


@pytest.fixture
def store(x, tmp_path):
    array = zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(100, 7), dtype="f4")
    array[:] = x
    return tmp_path / "x.zarr"


def test_fingerprint__is_json_and_equal_in_another_place_and_format(x, store, tmp_path):
    np.save(tmp_path / "x.npy", x)
    prints = [open_rows(s).fingerprint() for s in (x, store, tmp_path / "x.npy")]
    for found in prints:
        assert json.loads(json.dumps(found)) == found
        assert found["content"] == prints[0]["content"]
    assert prints[0]["location"] is None
    assert prints[0]["stamps"] is None
    assert prints[1]["location"] == str(store)
    assert len(prints[1]["stamps"]) == open_rows(store).n_chunks
    assert same_data(prints[0], prints[2]) is None
    assert same_data(json.loads(json.dumps(prints[1])), open_rows(store).fingerprint()) is None


def test_same_data__names_what_differs(x, store):
    base = open_rows(x).fingerprint()
    other = x.copy()
    other[500, 3] += 1
    ones = np.ones(1_000)
    cases = [
        (open_rows(x[:-1]), r"shape \(1000, 7\) and now have shape \(999, 7\)"),
        (open_rows(x.astype("f8")), "dtype float32 and now have dtype float64"),
        (open_rows(other), "values of the rows have changed"),
        (open_rows(x, sample_weight=ones), "had no weights before"),
    ]
    for rows, message in cases:
        assert re.search(message, same_data(base, rows.fingerprint()))
    weighted = open_rows(x, sample_weight=ones).fingerprint()
    assert "no weights now" in same_data(weighted, base)
    reweighted = open_rows(x, sample_weight=2 * ones).fingerprint()
    assert "weights have changed" in same_data(weighted, reweighted)
    with dask.config.set({"largek.data.read-chunk-bytes": 2_800}):
        rechunked = open_rows(store).fingerprint()
    message = same_data(open_rows(store).fingerprint(), rechunked)
    assert "read in 1 chunks, but are now read in 10" in message


def test_same_data__knows_whether_rows_are_shuffled(x, tmp_path):
    """Batches of shuffled rows differ from those of a seeded permutation."""
    rows = ingest(x, tmp_path / "shuffled.zarr", shuffle=1, progress=False)
    copy = open_rows(np.concatenate([rows.read(i) for i in range(rows.n_chunks)]))
    shuffled, plain = rows.fingerprint(), copy.fingerprint()
    assert shuffled["content"] == plain["content"]
    assert shuffled["chunk_rows"] == plain["chunk_rows"]
    assert "not marked as shuffled before, and are marked" in same_data(plain, shuffled)
    assert "marked as shuffled before, and are not marked" in same_data(shuffled, plain)
    # what an earlier version noted
    del plain["shuffled"], shuffled["shuffled"]
    assert same_data(plain, copy.fingerprint()) is None
    assert "not marked" in same_data(shuffled, rows.fingerprint())


def test_same_data__notices_a_chunk_that_was_written_again(x, store, small_chunks):
    before = open_rows(store).fingerprint()
    path = store / "c" / "3" / "0"
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert f"Chunk 3 of {store} has been written again" in same_data(
        before, open_rows(store).fingerprint()
    )


def test_fingerprint__samples_large_data_at_the_same_rows_whatever_the_chunks(monkeypatch, x):
    monkeypatch.setattr(fingerprint, "WHOLE_BYTES", 0)
    monkeypatch.setattr(fingerprint, "SAMPLE_ROWS", 8)
    big = np.tile(x, (20, 1))
    first = open_rows(big)
    with dask.config.set({"largek.data.memory-chunk-bytes": 1}):
        second = open_rows(big)
    assert first.n_chunks != second.n_chunks
    assert first.fingerprint()["content"] == second.fingerprint()["content"]
    pieces = fingerprint._samples_by_chunk(second)
    assert sum(end - begin for _, (begin, end) in pieces) <= 16 * 8
    assert pieces[0][1][0] == 0
    assert pieces[-1][1][1] == len(big)
    # taken anew every time: an array may change under its rows
    before = first.fingerprint()
    big[-1, -1] += 1
    assert first.fingerprint()["content"] != before["content"]
