"""Write files and folders that survive a power failure.

The content of a file is safe once ``fsync`` of the file has returned, and its name is safe once
``fsync`` of the folder has returned. A writer first syncs the data, then writes and syncs the small
file that publishes the data, and only then reports success. Object stores reply only after the data
are stored.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import zarr
from zarr.storage import LocalStore

from largek_dask.data.stores import stored_keys

UNSYNCABLE = frozenset([errno.EINVAL, errno.EBADF, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS])
"""Error numbers of file systems that cannot sync folders, such as FUSE and SMB."""
AT_ONCE = 8
"""Number of concurrent syncs, which a journalling file system can commit together (not tuned)."""


def sync_file(path: str) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def sync_folder(path: str) -> None:
    """Sync the entries of a folder to the disk, if the file system supports it."""
    if os.name == "nt":  # pragma: no cover
        return
    try:
        number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        # A folder may be writable but not readable.
        return
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in UNSYNCABLE:
            raise
    finally:
        os.close(number)


def make_folders(path: str, mode: int = 0o777) -> None:
    """Create a folder and its parents, and sync the new directory entries to the disk."""
    if os.path.isdir(path):
        return
    if (outer := os.path.dirname(path)) != path:
        make_folders(outer, mode)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
    sync_folder(outer)


def sync_tree(path: str) -> None:
    """Sync a folder, its contents and its directory entry to the disk."""
    waiting: list[Callable[[], None]] = [partial(sync_folder, os.path.dirname(path))]
    for folder, _, names in os.walk(path, onerror=_raise):
        waiting.append(partial(sync_folder, folder))
        waiting += (partial(sync_file, os.path.join(folder, name)) for name in names)
    with ThreadPoolExecutor(min(AT_ONCE, len(waiting))) as pool:
        for done in [pool.submit(sync) for sync in waiting]:
            done.result()


def _raise(error: OSError) -> None:
    raise error


def sync_rows(array: zarr.Array[Any], start: int, stop: int) -> None:
    """Sync the chunks that contain these rows, and the entries of their folders, to the disk."""
    if isinstance(array.store, LocalStore):
        files = list(_files(array, start, stop))
        for file in files:
            sync_file(file)
        for folder in {os.path.dirname(file) for file in files}:
            sync_folder(folder)


def make_chunk_folder(array: zarr.Array[Any]) -> None:
    """Create the chunk folder of a new one-dimensional array, and sync the array to the disk."""
    if isinstance(array.store, LocalStore):
        for file in _files(array, 0, 1):
            make_folders(os.path.dirname(file))
        sync_tree(os.path.join(array.store.root, array.path).rstrip(os.sep))


def torn_chunk(array: zarr.Array[Any], stop: int | None = None) -> str | None:
    """Return the first chunk file of an uncompressed array that is missing or has the wrong size.

    Only rows before ``stop`` are checked. Returns None if there is no such file, or if the array is
    not local, because object stores write objects atomically.
    """
    if not isinstance(array.store, LocalStore):
        return None
    size = math.prod(array.chunks) * array.dtype.itemsize
    for file in _files(array, 0, array.shape[0] if stop is None else stop):
        if not os.path.isfile(file) or os.path.getsize(file) != size:
            return file
    return None


def _files(array: zarr.Array[Any], start: int, stop: int) -> Iterator[str]:
    assert isinstance(array.store, LocalStore)
    for key in stored_keys(array, start, stop):
        yield os.path.join(array.store.root, *array.path.split("/"), *key.split("/"))


def declare(node: Any, attributes: dict[str, Any]) -> None:
    """Publish a Zarr array or group by setting attributes in one write."""
    node.update_attributes(attributes)
    if isinstance(node.store, LocalStore):
        root = os.path.join(node.store.root, node.path)
        sync_file(os.path.join(root, "zarr.json"))
        sync_folder(root)
