"""A file system in memory that dies, fails now and then, is slow or full, as a plan says."""

from __future__ import annotations

import copy
import errno
import threading
import time
from typing import Any, ClassVar

import fsspec

from tests.helpers.memory_files import LOCK, MemoryFiles


class Plan:
    """What happens at an operation; this one lets everything pass."""

    def read(self, path: str) -> None:
        """Called before anything is read, listed or looked for."""

    def change(self, path: str, data: bytes | None) -> bytes | None:
        """Called before anything is written or removed (no data); what is to be written."""
        return data


class Dies(Plan):
    """The machine is off from the change number ``at`` on, or from :meth:`die` on."""

    def __init__(self, at: int | None = None) -> None:
        self._at = at
        self._lock = threading.Lock()
        self.changes = 0
        self.dead = threading.Event()

    def die(self) -> None:
        """Now."""
        self.dead.set()

    def read(self, path: str) -> None:
        if self.dead.is_set():
            raise OSError("the machine is off")

    def change(self, path: str, data: bytes | None) -> bytes | None:
        with self._lock:
            if self._at is not None and self.changes >= self._at:
                self.die()
            self.read(path)
            self.changes += 1
        return data


class Remembers(Plan):
    """Keeps what was in the store before every change: all that a crash could leave."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.states: list[tuple[dict[str, Any], list[str]]] = []
        self.writes: list[tuple[str, bytes] | None] = []
        """What was about to be written then; None: something was about to be removed."""

    def change(self, path: str, data: bytes | None) -> bytes | None:
        with self._lock:
            store, folders = FaultyFileSystem.store, FaultyFileSystem.pseudo_dirs
            with LOCK:
                self.states.append((dict(store), list(folders)))
            self.writes.append(None if data is None else (path, data))
        return data

    def restore(self, number: int, *, torn: bool) -> None:
        """The store as a crash at a change leaves it; torn: with half of what was written then."""
        FaultyFileSystem.clear()
        store, folders = self.states[number]
        FaultyFileSystem.store.update(store)
        FaultyFileSystem.pseudo_dirs[:] = folders
        write = self.writes[number]
        if torn and write is not None:
            path, data = write
            FaultyFileSystem().pipe_file(path, data[: len(data) // 2])


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


class Away(Plan):
    """Nothing answers while it is away; what is asked meanwhile fails with this error.

    With ``part`` only files whose path has that in it are away.
    """

    def __init__(self, error: Exception, part: str = "") -> None:
        self._error, self._part = error, part
        self.gone = threading.Event()
        self.asked = 0
        """Operations that have failed."""

    def read(self, path: str) -> None:
        if self.gone.is_set() and self._part in path:
            self.asked += 1
            # A new one each time, which no traceback has grown on.
            raise copy.copy(self._error)

    def change(self, path: str, data: bytes | None) -> bytes | None:
        self.read(path)
        return data


class FaultyFileSystem(MemoryFiles):
    """``faulty://``: like ``memory://``, according to ``plan``."""

    protocol = "faulty"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    plan: ClassVar[Plan] = Plan()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFiles._strip_protocol(path.replace("faulty://", "memory://"))

    @classmethod
    def follow(cls, plan: Plan) -> None:
        """The faults strike from now on."""
        cls.plan = plan

    @classmethod
    def clear(cls) -> None:
        """Empty it, and let everything pass."""
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.plan = Plan()

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        value = self.plan.change(path, bytes(value)) or b""
        super().pipe_file(path, value, mode=mode, **kwargs)

    def rm(self, path: Any, recursive: bool = False, maxdepth: Any = None) -> None:
        self.plan.change(str(path), None)
        # One operation, however many looks it takes here.
        _Plain().rm(path, recursive=recursive, maxdepth=maxdepth)

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> bytes:
        self.plan.read(path)
        return super().cat_file(path, *args, **kwargs)

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        if mode == "rb":
            self.plan.read(path)
        return super()._open(path, mode, **kwargs)

    def ls(self, path: str, *args: Any, **kwargs: Any) -> Any:
        self.plan.read(path)
        return super().ls(path, *args, **kwargs)

    def exists(self, path: str, **kwargs: Any) -> bool:
        self.plan.read(path)
        return super().exists(path, **kwargs)

    def info(self, path: str, **kwargs: Any) -> Any:
        self.plan.read(path)
        return super().info(path, **kwargs)


class _Plain(MemoryFiles):
    """The same files without a plan."""

    cachable = False
    store = FaultyFileSystem.store
    pseudo_dirs = FaultyFileSystem.pseudo_dirs
    _strip_protocol = FaultyFileSystem._strip_protocol


fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)
