"""A file system in memory that does what a plan says: dies, fails now and then, is slow, or full."""

from __future__ import annotations

import errno
import threading
import time
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class Plan:
    """What happens at an operation; this one lets everything pass."""

    def read(self, path: str) -> None:
        """Called before anything is read, listed or looked for."""

    def change(self, path: str, data: bytes | None) -> bytes | None:
        """Called before anything is written or removed (no data); what is to be written."""
        return data


class Dies(Plan):
    """The machine is off from the change number ``at`` on, or from :meth:`die` on.

    Parameters
    ----------
    at : int
        How many changes come through before.
    torn : bool
        Half of the one that does not come through is written nevertheless.
    """

    def __init__(self, at: int | None = None, torn: bool = False) -> None:
        self._at, self._torn = at, torn
        self._lock = threading.Lock()
        self.changes = 0
        self.dead = threading.Event()

    def die(self) -> None:
        self.dead.set()

    def read(self, path: str) -> None:
        if self.dead.is_set():
            raise OSError("the machine is off")

    def change(self, path: str, data: bytes | None) -> bytes | None:
        self.read(path)
        with self._lock:
            last = self._at is not None and self.changes >= self._at
            if not last:
                self.changes += 1
                return data
            self.die()
        if self._torn and data:
            raise _HalfWritten(data[: len(data) // 2])
        raise OSError("the machine is off")


class FailsEvery(Plan):
    """Every n-th operation fails, as in a network."""

    def __init__(self, n: int) -> None:
        self._n, self.count = n, 0

    def read(self, path: str) -> None:
        self.count += 1
        if self.count % self._n == 0:
            raise OSError(errno.EIO, "a cable is loose")

    def change(self, path: str, data: bytes | None) -> bytes | None:
        self.read(path)
        return data


class Slow(Plan):
    """Every operation takes a while."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def read(self, path: str) -> None:
        time.sleep(self._seconds)

    def change(self, path: str, data: bytes | None) -> bytes | None:
        self.read(path)
        return data


class Full(Plan):
    """No space is left for files whose path has ``part`` in it."""

    def __init__(self, part: str) -> None:
        self._part = part
        self.hit = False

    def change(self, path: str, data: bytes | None) -> bytes | None:
        if data is not None and self._part in path:
            self.hit = True
            raise OSError(errno.ENOSPC, "No space left on device", path)
        return data


class _HalfWritten(Exception):
    """The machine goes off in the middle of a write."""

    def __init__(self, data: bytes) -> None:
        super().__init__("torn")
        self.data = data


class FaultyFileSystem(MemoryFileSystem):
    """``faulty://``: like ``memory://``, according to ``plan``."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    plan: ClassVar[Plan] = Plan()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.replace("faulty://", "memory://"))

    @classmethod
    def follow(cls, plan: Plan) -> None:
        """From now on."""
        cls.plan = plan

    @classmethod
    def clear(cls) -> None:
        """Empty it, and let everything pass."""
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.plan = Plan()

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        try:
            value = self.plan.change(path, bytes(value)) or b""
        except _HalfWritten as torn:
            super().pipe_file(path, torn.data, mode=mode, **kwargs)
            raise OSError("the machine is off") from torn
        super().pipe_file(path, value, mode=mode, **kwargs)

    def rm(self, path: Any, recursive: bool = False, maxdepth: Any = None) -> None:
        self.plan.change(str(path), None)
        super().rm(path, recursive=recursive, maxdepth=maxdepth)

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> bytes:
        self.plan.read(path)
        return super().cat_file(path, *args, **kwargs)

    def _open(self, path: str, *args: Any, **kwargs: Any) -> Any:
        self.plan.read(path)
        return super()._open(path, *args, **kwargs)

    def ls(self, path: str, *args: Any, **kwargs: Any) -> Any:
        self.plan.read(path)
        return super().ls(path, *args, **kwargs)

    def exists(self, path: str, **kwargs: Any) -> bool:
        self.plan.read(path)
        return super().exists(path, **kwargs)


fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)
