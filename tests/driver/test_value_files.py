"""What is found of every row, in files of other formats than Zarr."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import zarr

import largek_dask as lk
from largek_dask.driver import value_files
from largek_dask.driver.labels import LabelStore
from largek_dask.driver.storage import Folder
from largek_dask.driver.value_files import stage_of, suffix_of
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
    monkeypatch.setattr(value_files, "PIECE_ROWS", 300)
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


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_densities_in_a_file(data: str, mixture: Any, suffix: str, tmp_path: Path) -> None:
    mixture.score_samples(data, out=str(tmp_path / f"density{suffix}"))
    found = read_back(str(tmp_path / f"density{suffix}"), "log_likelihood")
    np.testing.assert_array_equal(found, mixture.score_samples(data))
    assert np.isnan(found[150])
    assert found.dtype == np.float64


def test_groups_of_rows_in_parquet(data: str, model: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(value_files, "PIECE_ROWS", 300)
    model.predict(data, out=str(tmp_path / "labels.parquet"))
    assert pq.ParquetFile(tmp_path / "labels.parquet").num_row_groups == 3


def test_probabilities_in_a_file(data: str, mixture: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(value_files, "DENSE_VALUES", 400)
    expected = mixture.predict_proba(data, dense=False)
    mixture.predict_proba(data, out=str(tmp_path / "p.npy"))
    dense = expected.toarray()
    dense[150] = np.nan
    np.testing.assert_array_equal(np.load(tmp_path / "p.npy"), dense)
    assert sorted(os.listdir(tmp_path)) == ["p.npy"]
    for name in ("p.csv", "p.npz"):
        with pytest.raises(ParameterError, match=r"\.zarr \(or without a suffix\) or \.npy"):
            mixture.predict_proba(data, out=str(tmp_path / name))


@pytest.mark.parametrize("suffix", [".npy", ".zarr"])
def test_probabilities_that_fail_leave_nothing(
    data: str, mixture: Any, suffix: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """What a failed run has begun would be in the way of the next one."""
    target = str(tmp_path / f"p{suffix}")
    written: list[str] = []

    def fail(*_: Any, **__: Any) -> None:
        written.extend(os.listdir(tmp_path))
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr("largek_dask.data.store_writer.CSRWriter.append", fail)
        with pytest.raises(OSError, match="full"):
            mixture.predict_proba(data, out=target)
    assert written == [f"p{suffix}" + (".partial.zarr" if suffix == ".npy" else "")]
    assert os.listdir(tmp_path) == []
    mixture.predict_proba(data, out=target)
    with pytest.raises(OutputError, match="exists already"):
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
    allowed = r"\.zarr \(or without a suffix\), \.npy, \.csv or \.parquet\."
    with pytest.raises(ParameterError, match=allowed):
        model.predict(data, out=name)
    assert os.listdir(tmp_path) == []


def test_suffixes_in_any_case() -> None:
    assert suffix_of("/a.b/LABELS.NPY", SUFFIXES) == ".npy"
    assert suffix_of("/a.npy/labels", SUFFIXES) is None
    assert suffix_of("/a/.npy", SUFFIXES) is None


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

    def tear(file: Any, table: Any) -> None:
        file.write(b"half of it")
        assert any(name.endswith(".partial") for name in os.listdir(tmp_path))
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(value_files, "WRITERS", {**value_files.WRITERS, suffix: tear})
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
        patch.setattr(value_files.LabelFile, "finish", stop)
        with pytest.raises(KeyboardInterrupt):
            mixture.predict(data, out=str(tmp_path / "values.npy"))
    with pytest.raises(OutputError, match=r"values\.npy\.partial\.zarr holds unfinished labels"):
        mixture.score_samples(data, out=str(tmp_path / "values.npy"))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_there_is_not_touched(data: str, model: Any, suffix: str, tmp_path: Path) -> None:
    target = tmp_path / f"labels{suffix}"
    target.write_text("mine")
    with pytest.raises(OutputError, match="exists already; nothing was changed"):
        model.predict(data, out=str(target))
    assert target.read_text() == "mine"


def test_without_pyarrow(data: str, model: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'largek_dask\[parquet\]'"):
        model.predict(data, out=str(tmp_path / "labels.parquet"))
    assert os.listdir(tmp_path) == []


def test_room_is_looked_for_on_both(
    data: str, model: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """The store beside the file takes 4 bytes a row, a line of text up to 12."""
    asked: list[int] = []
    monkeypatch.setattr(Folder, "check_space", lambda _, needed, __: asked.append(needed))
    for suffix in ("zarr", "npy", "csv"):
        model.predict(data, out=str(tmp_path / f"labels.{suffix}"))
    assert asked == [ROWS * 4, ROWS * 8, ROWS * 16]


def test_where_values_are_gathered() -> None:
    assert stage_of(Folder("/a/labels.npy")).url == "/a/labels.npy.partial.zarr"
    assert stage_of(Folder("/a/labels.zarr")).url == "/a/labels.zarr"


@pytest.mark.parametrize("name", ["rows.npy", "rows.CSV", "model.pkl"])
def test_what_is_written_as_zarr_only_refuses_the_name_of_a_file(
    model: Any, name: str, tmp_path: Path
) -> None:
    from largek_dask.data.store_writer import write_weighted_rows

    x, out = np.ones((3, 2)), str(tmp_path / name)
    calls: list[Callable[[], Any]] = [
        lambda: lk.ingest(x, out, progress=False),
        lambda: write_weighted_rows(out, x, np.ones(3), np.arange(3), {}),
        lambda: model.save(out),
    ]
    for call in calls:
        with pytest.raises(
            ParameterError, match=rf"not a \.\w+ file.*call it .*{name[:4]}.*\.zarr"
        ):
            call()
    assert os.listdir(tmp_path) == []
