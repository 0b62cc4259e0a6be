"""A folder on a file system that remembers what it has listed, as those of object stores do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import dask
import fsspec
import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from largek_dask.driver import storage
from largek_dask.driver.storage import Folder


class RememberingFileSystem(MemoryFileSystem):
    """Lists a folder once, and again only after it was told to forget."""

    protocol = "remembering"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    listed: ClassVar[dict[str, Any]] = {}

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.replace("remembering://", "memory://"))

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        key = f"{path} {detail}"
        if key not in self.listed:
            self.listed[key] = super().ls(path, detail=detail, **kwargs)
        return self.listed[key]

    def invalidate_cache(self, path: str | None = None) -> None:
        self.listed.clear()


fsspec.register_implementation("remembering", RememberingFileSystem, clobber=True)


def test_names__are_those_that_are_there_now() -> None:
    """Others write there too: schedulers that claim a job, workers that write labels."""
    folder = Folder("remembering://job")
    folder.publish("one", b"1")
    assert folder.names() == ["one"]
    assert RememberingFileSystem.listed, "it is remembered"
    RememberingFileSystem.store["/job/two"] = RememberingFileSystem.store["/job/one"]
    assert folder.names() == ["one", "two"]


@pytest.mark.parametrize("kind", ["local", "remembering"])
def test_stamps__tell_what_has_been_replaced(kind: str, tmp_path: Path) -> None:
    """Also by as many bytes."""
    folder = Folder("remembering://stamps" if kind == "remembering" else str(tmp_path / "folder"))
    assert folder.stamps() == {}
    for name in ("one", "two", f"{storage.PROBE}left"):
        folder.publish(name, b"1")
    before = folder.stamps()
    assert sorted(before) == ["one", "two"]
    assert folder.stamps() == before
    folder.publish("two", b"2")
    folder.publish("three", b"3")
    after = folder.stamps()
    assert sorted(after) == ["one", "three", "two"]
    assert after["one"] == before["one"]
    assert after["two"] != before["two"]


class NamedFileSystem(MemoryFileSystem):
    """Goes by other names, and notes which folders it is asked to make."""

    cachable = False
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def __init__(self, protocol: str | tuple[str, ...]) -> None:
        super().__init__()
        self.protocol = protocol
        self.made: list[str] = []

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.made.append(path)
        super().makedirs(path, exist_ok=exist_ok)


@pytest.mark.parametrize(
    ("protocol", "has_folders"),
    [
        ("s3", False),
        ("abfs", False),
        (("gs", "gcs"), False),
        (("s3", "s3a"), False),
        ("memory", True),
        (("sftp", "ssh"), True),
        (("hdfs", "arrow_hdfs"), True),
    ],
    ids=str,
)
def test_folders_are_made_only_where_there_are_any(
    protocol: str | tuple[str, ...], has_folders: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = NamedFileSystem(protocol)
    monkeypatch.setattr(storage, "filesystem", lambda url, options: (fs, "/bucket/one"))
    folder = Folder("elsewhere://bucket/one")
    folder.publish("a/b", b"1")
    assert folder.read("a/b") == b"1"
    assert (fs.made == []) is not has_folders


class SilentFileSystem(AbstractFileSystem):
    """Answers nothing, and has the ``exists`` that most file systems have."""

    protocol = "silent"

    def info(self, path: str, **kwargs: Any) -> Any:
        raise TimeoutError(f"no answer for {path}")


fsspec.register_implementation("silent", SilentFileSystem, clobber=True)


@pytest.mark.parametrize("name", ["labels.zarr", ""])
def test_exists__what_nobody_answers_is_neither_yes_nor_no(name: str) -> None:
    folder = Folder("silent://job")
    assert not folder.fs.exists(folder.path(name)), "to fsspec it is not there"
    with dask.config.set({"largek.stores.tries": 1}), pytest.raises(TimeoutError, match="job"):
        folder.exists(name)
