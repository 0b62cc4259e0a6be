"""Make files and folders of a local disk survive a power failure.

Data survive once ``fsync`` of their file has returned, a name once ``fsync`` of its folder has.
A writer syncs before it reports: data first, then the one small file that publishes them. Object
stores answer only when they have stored.
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
"""Errors of file systems that sync no folders: FUSE and SMB, among others."""
AT_ONCE = 8
"""Syncs at the same time: a journal commits together what it is asked for at once. Not tuned."""


def sync_file(path: str) -> None:
    """Write a file's data to the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def sync_folder(path: str) -> None:
    """Write the names in a folder to the disk, if its file system can do that."""
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
    """Make a folder and its parents, and write their names to the disk."""
    if os.path.isdir(path):
        return
    if (outer := os.path.dirname(path)) != path:
        make_folders(outer, mode)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode)
    sync_folder(outer)


def sync_tree(path: str) -> None:
    """Write a folder, everything in it and its own name to the disk."""
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
    """Write the stored chunks of some rows to the disk, and their names in their folder.

    That folder is on the disk already: see :func:`make_chunk_folder`.
    """
    if isinstance(array.store, LocalStore):
        files = list(_files(array, start, stop))
        for file in files:
            sync_file(file)
        for folder in {os.path.dirname(file) for file in files}:
            sync_folder(folder)


def make_chunk_folder(array: zarr.Array[Any]) -> None:
    """Make the folder of the chunks of a new array of one dimension, and write all to the disk."""
    if isinstance(array.store, LocalStore):
        for file in _files(array, 0, 1):
            make_folders(os.path.dirname(file))
        sync_tree(os.path.join(array.store.root, array.path).rstrip(os.sep))


def torn_chunk(array: zarr.Array[Any], stop: int | None = None) -> str | None:
    """Return the first file of an uncompressed array that is missing or has another size.

    Only the rows before ``stop`` are checked. None if there is none, or if the array is not local:
    object stores do not tear objects.
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
    """Give a Zarr array or group attributes in one write, which publishes what it holds."""
    node.update_attributes(attributes)
    if isinstance(node.store, LocalStore):
        root = os.path.join(node.store.root, node.path)
        sync_file(os.path.join(root, "zarr.json"))
        sync_folder(root)
