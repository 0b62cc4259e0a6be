"""Cache of compiled kernels in files, shared by all processes on a machine.

Each version has its own folder. The folder's name is a hash of every source file in ``kernels/``,
of the versions of Python, numba, llvmlite, numpy and this package, of numba's settings and of the
processor. (Numba's own cache key covers only the file that defines a function, so numba would load
outdated copies of functions that are inlined from other files.)

Each overload is one file, named after a hash of its key. A file is written under a temporary name
and then renamed, so the cache needs no index and no lock. A kernel whose file cannot be read is
compiled again; code that cannot be written stays in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pickle
import platform
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from llvmlite import binding
from platformdirs import user_cache_dir

from largek_dask import config
from largek_dask.version import __version__

log = logging.getLogger(__name__)

KEPT_VERSIONS = 4
DIGEST_BYTES = hashlib.sha256().digest_size
"""Size in bytes of the hash at the end of each file, which detects incomplete files."""
SOURCES = Path(__file__).parent
OPTIONS = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "CPU_NAME", "CPU_FEATURES")
"""Numba settings that change the generated code."""


def cache_folder() -> Path:
    """Return the folder of compiled code for this version and processor."""
    root = config.get("kernels.cache-dir") or user_cache_dir("largek_dask", appauthor=False)
    return Path(root) / "kernels" / f"v-{_version(SOURCES)}"


def is_cache_empty() -> bool:
    return next(cache_folder().glob("*.bin"), None) is None


def load(path: Path, key: tuple[str, ...], rebuild: Callable[[Any], Any]) -> Any:
    """Return ``rebuild`` applied to the saved code, or None if no intact file has this key."""
    try:
        content = path.read_bytes()
        if hashlib.sha256(content[:-DIGEST_BYTES]).digest() != content[-DIGEST_BYTES:]:
            raise ValueError("the file is empty or incomplete, perhaps after a power failure")
        saved_key, payload = pickle.loads(content)
        if saved_key != key:
            raise ValueError(f"the file holds the code of {saved_key}")
        _mark_used(path.parent)
        return rebuild(payload)
    except FileNotFoundError:
        return None
    except Exception as error:
        # After any error the kernel is compiled again.
        log.debug("cannot load %s: %r", path, error)
        return None


def save(path: Path, content: bytes) -> None:
    """Save pickled code to a file, if the folder is writable."""
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        _prepare(path.parent)
        try:
            aside.write_bytes(content + hashlib.sha256(content).digest())
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        report_unsaved(error)
        log.debug("cannot save %s: %r", path, error)


_unsaved: object = None


def report_unsaved(why: object) -> None:
    """Record the reason why this process cannot save compiled code."""
    global _unsaved
    _unsaved = why


def unsaved() -> object:
    """Return the reason why this process cannot save compiled code, or None."""
    return _unsaved


@cache
def _version(sources: Path) -> str:
    digest = hashlib.sha256()
    for text in (
        platform.python_implementation(),
        sys.version,
        numba.__version__,
        llvmlite.__version__,
        np.__version__,
        __version__,
        binding.get_default_triple(),
        binding.get_host_cpu_name(),
        binding.get_host_cpu_features().flatten(),
        *(f"{name}={getattr(numba.config, name)}" for name in OPTIONS),
    ):
        digest.update(text.encode() + b"\0")
    for path in sorted(sources.rglob("*.py")):
        digest.update(path.relative_to(sources).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:20]


@cache
def _mark_used(folder: Path) -> None:
    """Update the folder's timestamp, once per process."""
    with contextlib.suppress(OSError):  # another user's folder
        os.utime(folder)


@cache
def _prepare(folder: Path) -> None:
    """Create the folder and remove the least recently used versions, once per process."""
    folder.mkdir(parents=True, exist_ok=True)
    _mark_used(folder)
    for _, old in sorted(_versions(folder.parent), reverse=True)[KEPT_VERSIONS:]:
        shutil.rmtree(old, ignore_errors=True)


def _versions(root: Path) -> Iterator[tuple[int, Path]]:
    for path in root.glob("v-" + "?" * 20):
        with contextlib.suppress(FileNotFoundError):  # another process may have removed the folder
            yield path.stat().st_mtime_ns, path
