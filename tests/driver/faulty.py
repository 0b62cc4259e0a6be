"""A file system in memory that dies at a chosen write or removal and stays dead."""

from __future__ import annotations

from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class FaultyFileSystem(MemoryFileSystem):
    """``faulty://``: like ``memory://``, until ``dies_at`` changes have been made."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    changes: ClassVar[int] = 0
    dies_at: ClassVar[int | None] = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.replace("faulty://", "memory://"))

    @classmethod
    def reset(cls, dies_at: int | None = None) -> None:
        cls.changes, cls.dies_at = 0, dies_at

    @classmethod
    def clear(cls) -> None:
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.reset()

    def _count(self) -> None:
        cls = type(self)
        if cls.dies_at is not None and cls.changes >= cls.dies_at:
            raise OSError("the machine is off")
        cls.changes += 1

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        self._count()
        super().pipe_file(path, value, mode=mode, **kwargs)

    def rm(self, path: Any, recursive: bool = False, maxdepth: Any = None) -> None:
        self._count()
        super().rm(path, recursive=recursive, maxdepth=maxdepth)


fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)
