"""A folder on a file system that remembers what it has listed, as those of object stores do."""

from __future__ import annotations

from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

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
