"""What is found of every row, in files of other formats than Zarr."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pytest
import zarr

import largek_dask as lk
from largek_dask.driver import labels
from largek_dask.driver.labels import LabelStore
from largek_dask.driver.storage import Folder
from largek_dask.errors import MissingDependencyError, OutputError, ParameterError

SUFFIXES = (".npy", ".csv", ".parquet")
ROWS = 700


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store of 7 chunks; row 150 is bad."""
    x = np.random.default_rng(1).normal(size=(ROWS, 3)).astype(np.float32)
    x[150, 1] = np.nan
    url = str(tmp_path_factory.mktemp("data") / "rows.zarr")
    lk.ingest(x, url, chunk_rows=100, progress=False)
    return url


@pytest.fixture(scope="module")
def model(data: str) -> Any:
    return lk.KMeans(5, random_state=0, on_bad_rows="skip", max_iter=3).fit(data).model_


@pytest.fixture(scope="module")
def mixture(data: str) -> Any:
    fit = lk.Mixture(4, covariance="iso", random_state=0, on_bad_rows="skip", max_iter=3).fit(data)
    return fit.model_


def read_back(url: str, column: str) -> np.ndarray:
    """Values as the libraries that read such files give them."""
    match os.path.splitext(url)[1]:
        case ".npy":
            with fsspec.open(url, "rb") as file:
                return np.load(file)
        case ".csv":
            # As Python reads a number, to the last bit.
            frame = pd.read_csv(url, converters={column: float})
        case _:
            frame = pd.read_parquet(url)
    assert list(frame.columns) == [column]
    return frame[column].to_numpy()


@pytest.mark.usefixtures("chunks_as_stored")
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("place", ["local", "memory"])
def test_labels_in_a_file(
    data: str, model: Any, suffix: str, place: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(labels, "PIECE_ROWS", 300)
    folder = str(tmp_path) if place == "local" else f"memory://labels{suffix}"
    rows = lk.open_rows(data)
    assert rows.n_chunks == 7
    assert model.predict(rows, out=f"{folder}/labels{suffix}") is None
    found = read_back(f"{folder}/labels{suffix}", "label")
    np.testing.assert_array_equal(found, model.predict(data))
    assert found[150] == -1
    if suffix != ".csv":
        assert found.dtype == np.int32
    # Nothing is left beside it.
    assert Folder(folder).names() == [f"labels{suffix}"]


def test_probabilities_are_a_zarr_group(data: str, mixture: Any, tmp_path: Path) -> None:
    for name in ("p.npy", "p.csv", "p.npz"):
        with pytest.raises(ParameterError, match=r"use a name such as .*p\.zarr"):
            mixture.predict_proba(data, out=str(tmp_path / name))


def test_probabilities_that_fail_leave_nothing(
    data: str, mixture: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """What a failed run has begun would be in the way of the next one."""
    target = str(tmp_path / "p.zarr")
    written: list[str] = []

    def fail(*_: Any, **__: Any) -> None:
        written.extend(os.listdir(tmp_path))
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr("largek_dask.data.store_writer.CSRWriter.append", fail)
        with pytest.raises(OSError, match="full"):
            mixture.predict_proba(data, out=target)
    assert written == ["p.zarr"]
    assert os.listdir(tmp_path) == []
    mixture.predict_proba(data, out=target)
    with pytest.raises(OutputError, match="already exists"):
        mixture.predict_proba(data, out=target)


@pytest.mark.parametrize("name", ["labels", "labels.zarr", "labels.2026", "labels.ZARR"])
def test_what_names_no_file_is_zarr(data: str, model: Any, name: str, tmp_path: Path) -> None:
    model.predict(data, out=str(tmp_path / name))
    found = zarr.open_array(str(tmp_path / name), mode="r")[...]
    np.testing.assert_array_equal(found, model.predict(data))


@pytest.mark.parametrize(
    "name", ["labels.xlsx", "labels.npz", "labels.csv.gz", "labels.h5", "s3://b/labels.JSON"]
)
def test_another_suffix_is_refused_with_what_there_is(
    data: str, model: Any, name: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    allowed = r"\.zarr .*\.npy, \.csv or \.parquet\."
    with pytest.raises(ParameterError, match=allowed):
        model.predict(data, out=name)
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("chunks_as_stored")
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_killed_run_goes_on(
    data: str, model: Any, suffix: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """Both where it was stopped while labelling, and while the file was written."""
    target = str(tmp_path / f"labels{suffix}")
    monkeypatch.setattr("largek_dask.driver.labels.GROUP_ROWS", 200)
    recorded: list[int] = []
    record = LabelStore.record

    def stop(self: LabelStore, done: int, sums: Any) -> None:
        record(self, done, sums)
        recorded.append(done)
        if len(recorded) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LabelStore, "record", stop)
        with pytest.raises(KeyboardInterrupt):
            model.predict(data, out=target)
    assert recorded == [0, 2, 4]
    assert not os.path.exists(target)

    def tear(file: Any, *_: Any) -> None:
        file.write(b"half of it")
        assert any(name.endswith(".partial") for name in os.listdir(tmp_path))
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(labels, "WRITERS", {**labels.WRITERS, suffix: tear})
        with pytest.raises(OutputError, match=rf"labels{suffix} cannot be written.*full"):
            model.predict(data, out=target)
    assert not os.path.exists(target)

    went_on: list[int] = []
    monkeypatch.setattr(
        LabelStore,
        "record",
        lambda self, done, sums: went_on.append(record(self, done, sums) or done),
    )
    model.predict(data, out=target)
    # All chunks were labelled already: only the file was left to be written.
    assert went_on == []
    np.testing.assert_array_equal(read_back(target, "label"), model.predict(data))
    assert os.listdir(tmp_path) == [f"labels{suffix}"]


def test_unfinished_values_of_another_kind_are_refused(
    data: str, mixture: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LabelStore, "finish", stop)
        with pytest.raises(KeyboardInterrupt):
            mixture.predict(data, out=str(tmp_path / "values.npy"))
    with pytest.raises(OutputError, match=r"values\.npy\.partial\.zarr has unfinished labels"):
        mixture.score_samples(data, out=str(tmp_path / "values.npy"))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_there_is_not_touched(data: str, model: Any, suffix: str, tmp_path: Path) -> None:
    target = tmp_path / f"labels{suffix}"
    target.write_text("mine")
    with pytest.raises(OutputError, match="already exists; nothing was changed"):
        model.predict(data, out=str(target))
    assert target.read_text() == "mine"


def test_without_pyarrow(data: str, model: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'largek_dask\[parquet\]'"):
        model.predict(data, out=str(tmp_path / "labels.parquet"))
    assert os.listdir(tmp_path) == []
