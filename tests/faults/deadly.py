"""A file system of which one file kills every worker that reads it: ``deadly:///path``."""

from __future__ import annotations

import os
import signal
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

DEADLY = "LARGEK_DEADLY"
"""Variable of the environment with the begin of that file's path."""


class DeadlyFileSystem(LocalFileSystem):
    """Local files; harmless until a worker has called :meth:`arm`."""

    protocol = "deadly"
    begin: ClassVar[str | None] = None

    @classmethod
    def arm(cls) -> None:
        """Reading is deadly from now on, in this process."""
        cls.begin = os.environ.get(DEADLY)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, str):
            path = path.removeprefix("deadly://")
        return LocalFileSystem._strip_protocol(path)

    def _open(self, path: str, *args: Any, **kwargs: Any) -> Any:
        if self.begin is not None and path.startswith(self.begin):
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._open(path, *args, **kwargs)


fsspec.register_implementation("deadly", DeadlyFileSystem, clobber=True)
