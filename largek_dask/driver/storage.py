"""Read and write small files and arrays in a folder at any fsspec URL.

A process killed at any moment leaves either the old or the new state: arrays are written first,
then a small file with their names and checksums. On a local disk this also holds for power
failures, because each call syncs everything before it returns.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import posixpath
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, BinaryIO, TypeVar

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.storage import FsspecStore, LocalStore

from largek_dask.data.durable import make_folders, sync_file, sync_folder, sync_tree
from largek_dask.data.storage_errors import retry_io, unanswered, writing
from largek_dask.data.stores import (
    check_space,
    filesystem,
    is_local,
    is_there,
    normalize,
    protocols_of,
    remote_store,
)
from largek_dask.errors import LargekError, OutputError

SMALL_FILE = 256 << 20
"""Maximum size of a small file, in bytes."""
OBJECT_STORES = frozenset(["s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"])
"""Protocols on which no folders are created: they have no folders, or top folders are buckets."""
ARRAY_CHUNK = 64 << 20
"""Size of a stored chunk of an array, in bytes."""
LARGEST_ARRAY = 64 << 30
"""Maximum size of an array to read, in bytes."""
NO_LINKS = frozenset(
    [errno.EPERM, errno.EACCES, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK]
)
PROBE = ".writable-"
LEFTOVER = re.compile(rf"{re.escape(PROBE)}.*|.*\.[0-9a-f]{{32}}\.partial")
"""Pattern of file names that killed writes leave behind."""
T = TypeVar("T")


class DamagedError(LargekError):
    """Stored data are corrupt."""


def canonical_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def is_torn(document: bytes) -> bool:
    """Return whether a JSON document is empty or truncated, as after a power failure."""
    try:
        json.loads(document)
    except (ValueError, RecursionError) as error:
        return isinstance(error, ValueError)
    return False


def sha256_of(array: NDArray[Any]) -> str:
    """Return the SHA-256 hash of an array's values in little-endian C order."""
    canonical = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return hashlib.sha256(canonical.reshape(-1).view(np.uint8).data).hexdigest()


class Folder:
    """Folder on a file system that fsspec supports; the folder need not exist yet.

    ``storage_options`` are passed to the file system. Raises MissingDependencyError if the required
    driver is not installed, and DataError if the protocol is unknown.
    """

    def __init__(
        self, url: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
    ) -> None:
        self.url = normalize(url)
        self.is_local = is_local(self.url)
        self.storage_options = dict(storage_options or {})
        self.fs, root = filesystem(self.url, self.storage_options)
        self.root = root.rstrip("/")
        self._has_no_folders = not OBJECT_STORES.isdisjoint(protocols_of(self.fs))
        self._may_write: Callable[[], None] = _always
        self._is_private = False

    def __repr__(self) -> str:
        return f"<Folder {self.url}>"

    @classmethod
    def of(
        cls,
        place: str | os.PathLike[str] | Folder,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Folder:
        """Return the folder of a URL; a ``Folder`` is returned unchanged."""
        return place if isinstance(place, Folder) else cls(place, storage_options)

    def _with(self, **changes: Any) -> Folder:
        other = object.__new__(Folder)
        other.__dict__.update(self.__dict__, **changes)
        return other

    def sub(self, name: str) -> Folder:
        return self._with(url=f"{self.url}/{name}", root=self.path(name))

    def parent(self) -> tuple[Folder, str]:
        """Return the parent folder, and the name of this folder."""
        url, _, name = self.url.rpartition("/")
        root = self.root.rpartition("/")[0]
        return self._with(url=url or "/", root=root or "/"), name

    def guarded(self, may_write: Callable[[], None]) -> Folder:
        """Return this folder with a check that can forbid writes by raising an error.

        The check is called before each write and removal, also in subfolders.
        """
        return self._with(_may_write=may_write)

    def private(self) -> Folder:
        """Return this folder, changed to create local files that only their owner can access."""
        return self._with(_is_private=True)

    def path(self, name: str) -> str:
        """Return the path of ``name``, or of the folder itself, on the file system."""
        return posixpath.join(self.root, name) if name else self.root

    def names(self) -> list[str]:
        """List this folder; the list is empty if it does not exist.

        Skips leftovers of killed writes, and the empty object ``model/`` by which object stores
        represent an empty folder ``model``.
        """
        try:
            found = [str(path) for path in retry_io(self._listed)]
        except (FileNotFoundError, NotADirectoryError):
            return []
        itself = self.root.rstrip("/") + "/"
        names = (posixpath.basename(path.rstrip("/")) for path in found if path != itself)
        return sorted(name for name in names if not LEFTOVER.fullmatch(name))

    def _listed(self, detail: bool = False) -> list[Any]:
        self.fs.invalidate_cache()
        return list(self.fs.ls(self.root, detail=detail))

    def stamps(self) -> dict[str, int]:
        """Return a hash for each file in this folder; a file that is replaced gets another hash."""
        try:
            found = retry_io(lambda: self._listed(detail=True))
        except (FileNotFoundError, NotADirectoryError):
            return {}
        stamps = {}
        for about in found:
            name = posixpath.basename(str(about["name"]).rstrip("/"))
            if not LEFTOVER.fullmatch(name):
                # Use all fields that a file system returns, such as time, inode, hash or version.
                stamps[name] = hash(tuple(sorted((key, str(about[key])) for key in about)))
        return stamps

    def exists(self, name: str = "") -> bool:
        """Return whether a file or folder ``name`` exists, or raise OSError."""

        def ask() -> bool:
            self.fs.invalidate_cache()
            return is_there(self.fs, self.path(name))

        return retry_io(ask)

    def remove(self, name: str) -> None:
        """Remove a file or folder if it exists; raise OSError if removal fails.

        Raises OutputError if the disk does not sync the removal.
        """
        self._may_write()
        if retry_io(lambda: self._removed(name)) and self.is_local:
            try:
                with contextlib.suppress(FileNotFoundError):
                    sync_folder(os.path.dirname(self.path(name)))
            except OSError as error:
                raise OutputError(
                    f"the removal of {self.url}/{name} is not synced and may be undone by a power "
                    f"failure: {error}; check the disk."
                ) from error

    def check_space(self, n_bytes: int, what: str) -> None:
        """Raise OutputError if a local disk does not have enough space for ``what``."""
        if self.is_local:
            check_space(self.root, n_bytes, what)

    def _removed(self, name: str) -> bool:
        """Remove a file or folder; return False if it does not exist."""
        path = self.path(name)
        with contextlib.suppress(FileNotFoundError):
            if self.is_local and os.path.isfile(description := f"{path}/zarr.json"):
                # Remove metadata first, so that a partly removed array does not look complete.
                os.remove(description)
                sync_folder(path)
            if not self.exists(name):
                return False
            self.fs.rm(path, recursive=True)
            if self._has_no_folders:
                self._remove_emptied(path)
        return True

    def _remove_emptied(self, path: str) -> None:
        """Remove the empty nested folders that a store such as SeaweedFS keeps for some minutes.

        Recursive listings omit empty folders, so each level is listed separately, and inner folders
        are removed first.
        """
        self.fs.invalidate_cache()
        folders, found = [], [path]
        while found:
            folder = found.pop()
            with contextlib.suppress(FileNotFoundError):
                entries = self.fs.ls(folder, detail=True)
                # Skip a path that has become a file in the meantime.
                if not any(entry["name"] == folder for entry in entries):
                    folders.append(folder)
                    found += [e["name"].rstrip("/") for e in entries if e["type"] == "directory"]
        for folder in reversed(folders):
            with contextlib.suppress(FileNotFoundError):
                self.fs.rm_file(folder)

    def _make_parent(self, target: str) -> None:
        parent = posixpath.dirname(target)
        if self.is_local:
            make_folders(parent, 0o700 if self._is_private else 0o777)
        elif not self._has_no_folders:
            self.fs.makedirs(parent, exist_ok=True)

    @contextlib.contextmanager
    def _unfinished(
        self, target: str, write: Callable[[BinaryIO], object], *, is_durable: bool = True
    ) -> Iterator[str]:
        """Write a temporary file on the same local disk, and remove the file after the block."""
        name = f"{target}.{uuid.uuid4().hex}.partial"
        mode = 0o600 if self._is_private else 0o666
        try:
            with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                write(file)
                if is_durable:
                    file.flush()
                    os.fsync(file.fileno())
            yield name
            if is_durable:
                sync_folder(os.path.dirname(target))
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.remove(name)

    def publish(
        self, name: str, data: bytes | Callable[[BinaryIO], object], *, is_durable: bool = True
    ) -> None:
        """Write a file atomically, replacing any existing file.

        On a local disk a temporary file is renamed; an object store receives one PUT. If ``data``
        is a function, ``data(file)`` writes a long file to a local disk first, and is called again
        for each retry. Unless ``is_durable``, a power failure may leave an empty or truncated file.
        Raises OutputError.
        """
        self._may_write()
        target = self.path(name)
        with writing(f"{self.url}/{name}"):
            if self.is_local:
                retry_io(lambda: self._replaced(target, _writer_of(data), is_durable))
            elif callable(data):
                self._upload(target, data)
            else:
                retry_io(lambda: self._put(target, data))

    def _replaced(self, target: str, write: Callable[[BinaryIO], object], is_durable: bool) -> None:
        self._make_parent(target)
        with self._unfinished(target, write, is_durable=is_durable) as unfinished:
            os.replace(unfinished, target)

    def _put(self, target: str, data: bytes) -> None:
        self._make_parent(target)
        self.fs.pipe_file(target, data)

    def _upload(self, target: str, write: Callable[[BinaryIO], object]) -> None:
        number, unfinished = tempfile.mkstemp(prefix="largek-")
        try:
            with open(number, "wb") as file:
                write(file)
            retry_io(lambda: self._sent(unfinished, target))
        finally:
            os.remove(unfinished)

    def _sent(self, source: str, target: str) -> None:
        """Upload a file: in one request to an object store, otherwise under a temporary name."""
        if self._has_no_folders:
            self.fs.put_file(source, target)
            return
        self._make_parent(target)
        unfinished = f"{target}.partial"
        self.fs.put_file(source, unfinished)
        self.fs.mv(unfinished, target)

    @contextlib.contextmanager
    def appearing(self, name: str) -> Iterator[str]:
        """Yield a temporary name for a file or folder, and rename it to ``name`` on success.

        While the folder ``NAME.partial`` exists, ``name`` is incomplete. It is removed after an
        error or, if the process is killed, by the next writer. Concurrent writers have different
        temporary names, so no file mixes their data.
        """
        partial = f"{name}.partial"
        temporary = f"{partial}/{uuid.uuid4().hex}"
        self.remove(partial)
        try:
            self._make_parent(self.path(temporary))
            yield temporary
            self._may_write()
            old, new = self.path(temporary), self.path(name)
            if self.is_local:
                (sync_tree if os.path.isdir(old) else sync_file)(old)
                os.rename(old, new)
                sync_folder(self.root)
            else:
                self.fs.mv(old, new, recursive=True)
        finally:
            self.remove(partial)

    def create(self, name: str, data: bytes) -> bool:
        """Create a small file exclusively: only one of several concurrent writers succeeds.

        On a local disk this uses a hard link if possible, otherwise an exclusive file that is then
        replaced; a kill in between leaves an empty file. S3 receives a conditional PUT. Some other
        file systems only check before they write. Returns False if the file exists. After a retry,
        the existing file may be the writer's own, so check its content.
        """
        self._may_write()
        target = self.path(name)
        with writing(f"{self.url}/{name}"):
            return retry_io(lambda: self._created(target, data))

    def _created(self, target: str, data: bytes) -> bool:
        self._make_parent(target)
        try:
            if not self.is_local:
                self.fs.pipe_file(target, data, mode="create")
                return True
            with self._unfinished(target, _writer_of(data)) as unfinished:
                _become(unfinished, target)
        except OSError as error:
            if not _exists_already(error):
                raise
            if self.is_local:
                # The writer (perhaps our own first attempt) may not have synced the file yet.
                sync_folder(os.path.dirname(target))
            return False
        return True

    def read(self, name: str, limit: int = SMALL_FILE) -> bytes:
        """Return the content of a small file; raise DamagedError if it exceeds ``limit`` bytes."""

        def ask() -> bytes:
            self.fs.invalidate_cache()
            # Some servers return no size.
            if (self.fs.size(self.path(name)) or 0) > limit:
                raise DamagedError(f"{self.url}/{name} is larger than {limit} bytes.")
            found: bytes = self.fs.cat_file(self.path(name))
            return found

        return retry_io(ask)

    def read_from(self, name: str, begin: int) -> bytes:
        """Return the bytes of a file from offset ``begin``, or raise FileNotFoundError."""

        def ask() -> bytes:
            self.fs.invalidate_cache()
            if self.fs.size(self.path(name)) <= begin:
                return b""
            found: bytes = self.fs.cat_file(self.path(name), start=begin)
            return found

        return retry_io(ask)

    def check_writable(self) -> None:
        """Write and remove a small file to test the folder, or raise OutputError."""
        name = f"{PROBE}{uuid.uuid4().hex}"
        self.publish(name, b"", is_durable=False)
        self.remove(name)

    def store(self, name: str, *, read_only: bool = False) -> LocalStore | FsspecStore:
        if self.is_local:
            return LocalStore(self.path(name), read_only=read_only)
        return remote_store(f"{self.url}/{name}", self.storage_options, read_only=read_only)

    def write_arrays(
        self, name: str, arrays: Mapping[str, NDArray[Any]]
    ) -> dict[str, dict[str, Any]]:
        """Write arrays as a Zarr group that replaces any earlier group, or raise OutputError.

        Returns the record of each array (dtype, shape, sha256) for :meth:`read_arrays`.
        """
        self._may_write()
        with writing(f"{self.url}/{name}"):
            group = retry_io(lambda: self._new_group(name))
            # Retry arrays one by one, as writing all at once might never succeed on a flaky store.
            records = {
                key: retry_io(partial(_write_array, group, key, array))
                for key, array in arrays.items()
            }
            if self.is_local:
                # Do not retry: a second sync would report success although data are lost.
                sync_tree(self.path(name))
            return records

    def _new_group(self, name: str) -> zarr.Group:
        self._removed(name)
        if self.is_local:
            make_folders(self.path(name))
        return zarr.create_group(self.store(name), zarr_format=3)

    def read_arrays(
        self, name: str, records: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, NDArray[Any]]:
        """Read the arrays of a group, verify each against its record, and make them read-only.

        The chunks of all arrays are checked before any array is read, so a small store that claims
        to contain gigabytes costs neither memory nor time. Raises DamagedError if an array differs
        from its record or lacks chunks, and OSError if storage is temporarily unavailable.
        """
        where = f"{self.url}/{name}"
        opened = {
            key: _intact(f"{where}/{key}", partial(self._opened, name, key, record))
            for key, record in records.items()
        }
        arrays = {}
        for key, stored in opened.items():
            array = _intact(f"{where}/{key}", partial(_content_of, stored))
            if sha256_of(array) != records[key]["sha256"]:
                raise DamagedError(f"{where}/{key} does not match its recorded SHA-256 hash.")
            array.flags.writeable = False
            arrays[key] = array
        return arrays

    def _opened(self, name: str, key: str, record: Mapping[str, Any]) -> zarr.Array[Any]:
        """Return the stored array of a record after checking that all of its chunks exist."""
        where = f"{self.url}/{name}/{key}"
        shape, dtype = _checked_record(record)
        stored = zarr.open_array(self.store(name, read_only=True), path=key, mode="r")
        if stored.shape != shape or stored.dtype != dtype.newbyteorder("="):
            raise DamagedError(
                f"{where} has shape {stored.shape} and dtype {stored.dtype}, but {shape} and "
                f"{dtype} were recorded."
            )
        piece = math.prod(stored.chunks) * dtype.itemsize
        if piece > max(ARRAY_CHUNK, math.prod(shape) * dtype.itemsize) or (
            stored.compressors or stored.filters
        ):
            raise DamagedError(f"{where} is compressed or has chunks that are too large.")
        counts = [-(-n // size) for n, size in zip(shape, stored.chunks, strict=True)]
        self.fs.invalidate_cache()
        for place in np.ndindex(*counts):
            chunk = stored.metadata.encode_chunk_key(place)
            held = self._bytes_of(f"{name}/{key}/{chunk}")
            if held != piece:
                raise DamagedError(
                    f"{where} has shape {shape}, which is {math.prod(counts)} chunks of {piece} "
                    f"bytes, but its chunk {chunk} "
                    + ("is missing." if held is None else f"has {held} bytes.")
                )
        return stored

    def _bytes_of(self, name: str) -> int | None:
        try:
            held = self.fs.size(self.path(name))
            # Some servers return no size.
            return len(self.fs.cat_file(self.path(name))) if held is None else int(held)
        except (FileNotFoundError, NotADirectoryError):
            return None


def _writer_of(data: bytes | Callable[[BinaryIO], object]) -> Callable[[BinaryIO], object]:
    return data if callable(data) else lambda file: file.write(data)


def _checked_record(record: Mapping[str, Any]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype of a recorded array, or raise DamagedError."""
    shape, dtype = tuple(record["shape"]), np.dtype(record["dtype"])
    if dtype.kind not in "biuf" or not all(type(n) is int and n >= 0 for n in shape):
        raise DamagedError(
            f"dtype {dtype} and shape {list(shape)} are not valid for a stored array"
        )
    if math.prod(shape) * dtype.itemsize > LARGEST_ARRAY:
        raise DamagedError(
            f"an array of {dtype} with shape {list(shape)} is too large; at most {LARGEST_ARRAY} "
            "bytes are read"
        )
    return shape, dtype


def _write_array(group: zarr.Group, key: str, array: NDArray[Any]) -> dict[str, Any]:
    """Write an array into a group, and return the record of the array."""
    row_bytes = max(1, array.nbytes // max(1, len(array)))
    rows = max(1, min(len(array), ARRAY_CHUNK // row_bytes))
    dtype = array.dtype.newbyteorder("<")
    stored = group.create_array(
        key,
        shape=array.shape,
        dtype=dtype,
        chunks=(rows, *(max(1, n) for n in array.shape[1:])),
        compressors=None,
        filters=None,
        config={"write_empty_chunks": True},
        # An earlier attempt that failed may have created the array.
        overwrite=True,
    )
    stored[...] = array
    return {"dtype": dtype.str, "shape": list(array.shape), "sha256": sha256_of(array)}


def _content_of(stored: zarr.Array[Any]) -> NDArray[Any]:
    return np.asarray(stored[...], stored.dtype.newbyteorder("=")).reshape(stored.shape)


def _intact(where: str, ask: Callable[[], T]) -> T:
    """Call ``ask`` with retries; raise DamagedError if a file is corrupt."""
    try:
        return retry_io(ask)
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        if unanswered(error):
            raise
        raise DamagedError(f"{where} cannot be read: {error!r}") from error


def _exists_already(error: OSError) -> bool:
    """Return whether an error means that the file exists; s3fs detects this only for AWS."""
    answer = getattr(error.__cause__, "response", {}).get("Error", {})
    return isinstance(error, FileExistsError) or answer.get("Code") == "PreconditionFailed"


def _become(unfinished: str, target: str) -> None:
    """Rename a file, or raise FileExistsError; some file systems also keep the old name."""
    try:
        os.link(unfinished, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        os.replace(unfinished, target)


def _always() -> None:
    """Forbid nothing."""
