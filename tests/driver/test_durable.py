"""What has been reported is on the disk: every file as it is, and every name in its folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import scipy.sparse
import zarr

import largek_dask as lk
from largek_dask.data import durable
from largek_dask.data.store_writer import write_weighted_rows
from largek_dask.driver.event_log import JsonLines
from largek_dask.driver.labels import LabelStore
from largek_dask.driver.storage import Folder
from largek_dask.errors import OutputError
from largek_dask.model import Model, load_model
from tests.helpers.checks import fit_asked

X = np.random.default_rng(0).standard_normal((600, 3)).astype(np.float32)
FLEETING = (".beat",)
"""Ends of names of files that say nothing after a power failure."""


class Disk:
    """What has been synced: of each file its inode, time and size, of each folder its names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced: dict[str, Any] = {}
        self.n_syncs = 0
        self._sync = os.fsync
        monkeypatch.setattr(os, "fsync", self._note)

    def _note(self, number: int) -> None:
        self._sync(number)
        self.n_syncs += 1
        path = os.readlink(f"/proc/self/fd/{number}")
        self.synced[state_key(path)] = state_of(path)

    def lost(self, *roots: Path) -> list[str]:
        """What a power failure might take."""
        lost = []
        for root in roots:
            if not self.keeps(root.parent, root.name):
                lost.append(f"name {root}")
            for folder, inner, names in os.walk(root):
                lost += [
                    f"name {folder}/{name}"
                    for name in (*inner, *names)
                    if not self.keeps(Path(folder), name)
                ]
                paths = (f"{folder}/{name}" for name in names if not name.endswith(FLEETING))
                lost += [
                    f"data {path}"
                    for path in paths
                    if self.synced.get(state_key(path)) != state_of(path)
                ]
        return lost

    def keeps(self, folder: Path, name: str) -> bool:
        """Whether the name is on the disk, of the file or folder that has it now."""
        if name.endswith(FLEETING):
            return True
        number = os.stat(folder / name).st_ino
        return (name, number) in self.synced.get(state_key(str(folder)), ())


def state_key(path: str) -> int:
    """What is synced is a file, whatever it is called later."""
    return os.stat(path).st_ino


def state_of(path: str) -> Any:
    if os.path.isdir(path):
        return {(entry.name, entry.inode()) for entry in os.scandir(path)}
    told = os.stat(path)
    return told.st_mtime_ns, told.st_size


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def model() -> Model:
    return Model.of(fit_asked(lk.open_rows(X), algorithm=lk.Lloyd(), n_clusters=4, max_iter=3))


def predicted(place: Path) -> None:
    model().predict(X, out=str(place))


def write_weighted(place: Path) -> None:
    write_weighted_rows(place, X, np.ones(len(X)), np.arange(len(X)), {})


def fitted(place: Path) -> None:
    with dask.config.set({"largek.checkpoints.seconds": 0.0}):
        lk.KMeans(4, random_state=0, n_init=2, checkpoint=str(place), max_iter=4).fit(X)


def log_events(place: Path) -> None:
    sink = JsonLines(Folder(str(place)))
    sink({"event": "step", "step": 1})
    sink({"event": "step", "step": 2})
    sink.close()


WRITES: dict[str, Callable[[Path], object]] = {
    "a/b/record": lambda place: Folder(str(place.parent)).publish(place.name, b"text"),
    "a/b/replaced": lambda place: [
        Folder(str(place.parent)).publish(place.name, text) for text in (b"one", b"two")
    ],
    "a/b/private": lambda place: Folder(str(place.parent)).private().publish(place.name, b"text"),
    "a/b/created": lambda place: Folder(str(place.parent)).create(place.name, b"text"),
    "a/b/large": lambda place: Folder(str(place.parent)).publish(
        place.name, lambda file: file.write(b"x" * 100_000)
    ),
    "a/arrays.zarr": lambda place: Folder(str(place.parent)).write_arrays(
        place.name, {"one": X, "two": np.arange(5)}
    ),
    "a/model.zarr": lambda place: model().save(str(place)),
    "a/labels.zarr": predicted,
    "a/labels.npy": predicted,
    "a/labels.csv": predicted,
    "a/rows.zarr": lambda place: lk.ingest(X, place, chunk_rows=100, progress=False),
    "a/shuffled.zarr": lambda place: lk.ingest(X, place, shuffle=1, progress=False),
    "a/sparse.zarr": lambda place: lk.ingest(
        scipy.sparse.csr_matrix(np.where(X > 0, X, 0)), place, progress=False
    ),
    "a/weighted.zarr": write_weighted,
    "a/fit": fitted,
    "a/log": log_events,
}


@pytest.mark.usefixtures("chunks_as_stored")
@pytest.mark.parametrize("name", WRITES)
def test_what_has_been_written_is_on_the_disk(disk: Disk, tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    WRITES[name](place)
    assert place.exists()
    assert disk.n_syncs >= 2
    # Folders that were made for it, too.
    assert (
        disk.lost(*[outer for outer in (place, *place.parents) if tmp_path in outer.parents]) == []
    )


def test_a_file_without_a_sync_would_be_found(disk: Disk, tmp_path: Path) -> None:
    Folder(str(tmp_path / "a")).publish("sign", b"text", is_durable=False)
    assert disk.lost(tmp_path / "a") == [f"name {tmp_path}/a/sign", f"data {tmp_path}/a/sign"]


def test_labels_are_on_the_disk_before_a_worker_reports(disk: Disk, tmp_path: Path) -> None:
    table = np.arange(0, 601, 100)
    store = LabelStore(str(tmp_path / "labels.zarr"), table, {"model": "a"})
    store.begin("a")
    assert store.writer is not None
    for start in table[:-1].tolist():
        store.writer.write(start, np.full(100, start, np.int32))
        assert disk.lost(tmp_path / "labels.zarr") == []
    assert len(list((tmp_path / "labels.zarr" / "c").iterdir())) == 6


def test_what_is_removed_stays_removed(disk: Disk, tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    for name in ("one", "two"):
        folder.publish(name, b"text")
    folder.remove("one")
    assert {name for name, _ in disk.synced[state_key(str(tmp_path))]} == {"two"}


def test_steps_sync_nothing(disk: Disk, tmp_path: Path) -> None:
    counts = []

    def count(_: Any) -> None:
        counts.append(disk.n_syncs)

    with dask.config.set({"largek.checkpoints.seconds": 1e9}):
        fit_asked(
            lk.open_rows(X), algorithm=lk.Lloyd(), n_clusters=20, max_iter=8, seed=0,
            checkpoint=str(tmp_path / "fit"), callbacks=[count],
        )  # fmt: skip
    assert len(counts) > 4
    assert counts[0] > 0
    assert len(set(counts)) == 1
    assert disk.n_syncs > counts[-1], "the last checkpoint is synced"


def fail(monkeypatch: pytest.MonkeyPatch, number: int, *, times: float = float("inf")) -> list[int]:
    """Have syncs fail so many times, by this number."""
    sync, failed = os.fsync, [0]

    def refuse(handle: int) -> None:
        if failed[0] < times:
            failed[0] += 1
            raise OSError(number, os.strerror(number))
        sync(handle)

    monkeypatch.setattr(os, "fsync", refuse)
    return failed


QUICK = {"largek.stores.tries": 2, "largek.stores.pause-seconds": 0.0}


@pytest.mark.parametrize("name", [name for name in WRITES if name not in ("a/fit", "a/log")])
def test_a_sync_that_fails_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    failed = fail(monkeypatch, errno.EIO)
    with dask.config.set(QUICK), pytest.raises(OutputError, match="Input/output error"):
        WRITES[name](tmp_path / name)
    assert failed[0]
    if name.endswith(".zarr") and (tmp_path / name).exists():
        with pytest.raises((lk.errors.DataError, lk.errors.ModelFormatError)):
            (load_model if "model" in name else lk.open_rows)(str(tmp_path / name))


def test_after_a_sync_that_fails_everything_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second sync of the same file would succeed, though its data are lost."""
    disk = Disk(monkeypatch)
    failed = fail(monkeypatch, errno.EIO, times=1)
    with dask.config.set(QUICK):
        Folder(str(tmp_path)).publish("record", b"text")
    assert failed == [1]
    assert disk.lost(tmp_path / "record") == []
    assert [path.name for path in tmp_path.iterdir()] == ["record"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_folders_that_cannot_be_synced_are_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As on some file systems of FUSE and SMB; files are synced all the same."""
    sync = os.fsync

    def refuse(handle: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(number, os.strerror(number))
        sync(handle)

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match=os.strerror(number)):
        os.fsync(os.open(tmp_path, os.O_RDONLY))
    WRITES["a/model.zarr"](tmp_path / "model.zarr")
    assert load_model(str(tmp_path / "model.zarr")).n_clusters == 4


def test_a_chunk_that_is_torn_is_named(tmp_path: Path) -> None:
    array = zarr.create_array(
        str(tmp_path / "x"), shape=(10, 2), chunks=(4, 2), dtype="f4", compressors=None
    )
    array[:] = 1
    assert durable.torn_chunk(array) is None
    last = tmp_path / "x" / "c" / "2" / "0"
    last.write_bytes(last.read_bytes()[:5])
    assert durable.torn_chunk(array, 8) is None
    assert durable.torn_chunk(array) == str(last)
    last.unlink()
    assert durable.torn_chunk(array) == str(last)
