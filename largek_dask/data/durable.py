"""Have files and folders of a local disk survive a power failure.

Data survive once ``fsync`` of their file has returned, a name once ``fsync`` of its folder has.
Whoever writes syncs, before it reports: data first, then the one small file that publishes them.
Object stores answer only when they have stored, so nothing here concerns them.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import zarr
from zarr.storage import LocalStore

from largek_dask.data.stores import stored_keys

__all__ = ["declare", "make_folders", "sync_file", "sync_folder", "sync_rows", "sync_tree"]

UNSYNCABLE = frozenset([errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS])
"""Errors of file systems that sync no folders: FUSE and SMB, among others."""
AT_ONCE = 8
"""Files that are synced at the same time: a journal commits what it is asked for together."""


def sync_file(path: str) -> None:
    """Write a file's data to the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def sync_folder(path: str) -> None:
    """Write the names in a folder to the disk, where its file system can do that."""
    if os.name == "nt":  # pragma: no cover
        return
    try:
        number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        # A folder may be open for writing alone.
        return
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in UNSYNCABLE:
            raise
    finally:
        os.close(number)


def make_folders(path: str, mode: int = 0o777) -> None:
    """Make a folder and those that it lies in, and write their names to the disk."""
    if os.path.isdir(path):
        return
    if (outer := os.path.dirname(path)) != path:
        make_folders(outer, mode)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
    sync_folder(outer)


def sync_tree(path: str) -> None:
    """Write a folder, everything in it and its own name to the disk."""
    files: list[str] = []
    folders: list[str] = []
    for folder, _, names in os.walk(path, topdown=False, onerror=_raise):
        files += (os.path.join(folder, name) for name in names)
        folders.append(folder)
    with ThreadPoolExecutor(min(AT_ONCE, max(1, len(files)))) as pool:
        list(pool.map(sync_file, files))
    for folder in (*folders, os.path.dirname(path)):
        sync_folder(folder)


def _raise(error: OSError) -> None:
    raise error


def sync_rows(array: zarr.Array[Any], start: int, stop: int) -> None:
    """Write the stored chunks of some rows to the disk, and their names in the array."""
    if not isinstance(array.store, LocalStore):
        return
    root = os.path.join(array.store.root, array.path).rstrip(os.sep)
    files = [os.path.join(root, *key.split("/")) for key in stored_keys(array, start, stop)]
    for file in files:
        sync_file(file)
    # An inner folder's name lies in the one around it.
    for folder in sorted({outer for file in files for outer in _around(file, root)}, reverse=True):
        sync_folder(folder)


def _around(path: str, root: str) -> Iterator[str]:
    """The folders that a file lies in, out to ``root``."""
    while path != root:
        path = os.path.dirname(path)
        yield path


def declare(node: Any, attributes: dict[str, Any]) -> None:
    """Give a Zarr array or group attributes in one write, which publishes what it holds."""
    node.update_attributes(attributes)
    if isinstance(node.store, LocalStore):
        root = os.path.join(node.store.root, node.path)
        sync_file(os.path.join(root, "zarr.json"))
        sync_folder(root)
