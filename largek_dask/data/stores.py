"""Open Zarr stores by URL, with errors that explain what is wrong and what to do."""

from __future__ import annotations

import errno
import gzip
import importlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import fsspec
import numpy as np
import zarr
from dask.utils import format_bytes
from fsspec import AbstractFileSystem
from fsspec.asyn import AsyncFileSystem
from fsspec.core import split_protocol
from numpy.typing import NDArray
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore

from largek_dask.data.storage_errors import trouble
from largek_dask.errors import DataError, IncompleteStoreError, MissingDependencyError, OutputError
from largek_dask.kernels.exact.statistics import Statistics
from largek_dask.kernels.rows import compute_dtype
from largek_dask.version import __version__, check_format

ATTRIBUTE = "largek"
"""Attribute that contains the metadata of this package in a store."""
FORMAT = 1
"""Format number of the metadata and statistics that this package writes to a store."""
MOST_NAMED = 20
"""Maximum number of names in a message."""

_CONTAINERS = ("abfs", "abfss", "wasb", "wasbs")
"""Protocols whose URLs name a container before the "@", not a user."""
_USER = re.compile(r"([A-Za-z0-9+.-]+)://([^/?#]*)@")
_QUERY = re.compile(
    r"[?&]((?:[^=&]*[-_.])?(?:sig|signature|token|(?:api|access)?key|secret|password|credentials?))=",
    re.I,
)


def check_no_secret(url: str) -> None:
    """Raise ValueError if an address, which models and logs contain, has a secret."""
    for protocol, user in _USER.findall(url):
        if protocol.lower() not in _CONTAINERS or ":" in user:
            raise ValueError(
                f"has a user name or a password before the '@' ({protocol}://...@), but addresses "
                "are written into models, logs and events; pass both in storage_options"
            )
    if split_protocol(url)[0] is not None and (found := _QUERY.search(url)):
        raise ValueError(
            f"has a secret in its query ({found[1]}=...), but addresses are written into models, "
            "logs and events; pass the secret in storage_options"
        )


def normalize(url: str | os.PathLike[str]) -> str:
    """Return an absolute path for a local file or store, and any other URL unchanged.

    Raises DataError if the URL is empty or contains a secret.
    """
    text = os.fspath(url)
    if not text.strip():
        raise DataError(
            f"the address {text!r} is empty; pass the URL or path of a file or store, or '.' for "
            "the current folder."
        )
    try:
        check_no_secret(text)
    except ValueError as error:
        raise DataError(f"the address {error}.") from None
    protocol, path = split_protocol(text)
    if protocol in (None, "file", "local"):
        return os.path.abspath(os.path.expanduser(str(path)))
    return text if text.endswith("://") else text.rstrip("/")


def is_local(location: str) -> bool:
    """Return True if a normalized location is a local path."""
    return split_protocol(location)[0] is None


def require(package: str, extra: str, what: str) -> Any:
    """Import an optional package, or raise MissingDependencyError."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingDependencyError(
            f"{what} need {package}, which is not installed: pip install 'largek_dask[{extra}]'"
        ) from error


def disk_usage(path: str) -> Any:
    """Return ``shutil.disk_usage`` of a folder, or of its nearest parent that exists."""
    while not os.path.isdir(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return shutil.disk_usage(path)


def check_space(path: str, n_bytes: int, what: str, advice: str = "choose another folder") -> None:
    """Raise OutputError if a local disk does not have enough space for ``what``."""
    if n_bytes > (free := disk_usage(path).free):
        full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        raise OutputError(
            f"{what} take about {format_bytes(n_bytes)}, but {path} has only {format_bytes(free)} "
            f"free; free some space, or {advice}."
        ) from full


S3 = ("s3", "s3a")
HTTP = ("http", "https")
GCS = ("gs", "gcs")
AZURE = ("abfs", "abfss", "az")
DRIVERS = {
    **dict.fromkeys(S3, "'largek_dask[s3]'"),
    **dict.fromkeys(GCS, "gcsfs"),
    **dict.fromkeys(AZURE, "adlfs"),
}
"""Package that pip installs for each protocol of URLs."""
S3_CALLS: dict[str, Any] = {
    "connect_timeout": 4,
    "read_timeout": 8,
    "retries": {"total_max_attempts": 1},
}
"""Default ``config_kwargs`` of botocore, with short timeouts and no retries. The retries of
botocore (25 times 15 s) cannot be cancelled, but the retries in ``retry.py`` can."""
HTTP_CALLS = {"sock_connect": 4.0, "sock_read": 8.0}
"""Timeouts for aiohttp, in seconds; by default, aiohttp ends any request after five minutes."""
GCS_SECONDS = 300.0
"""Timeout of one gcsfs request, in seconds. By default, gcsfs has no timeout. It sends up to 50
MiB per request, and tries each request six times."""
AZURE_CALLS = {"connection_timeout": 4, "read_timeout": 8}
"""Timeouts of adlfs for reads and writes, in seconds; other requests may take 300 s. adlfs tries
each request four times, and does not time out an upload that stalls."""


def options_for(url: str, storage_options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the user's storage options together with default timeouts."""
    options = dict(storage_options or {})
    protocol = split_protocol(url)[0]
    if protocol in S3:
        given = options.get("config_kwargs") or {}
        if isinstance(given, Mapping):
            options["config_kwargs"] = {**S3_CALLS, **given}
    elif protocol in HTTP:
        from aiohttp import ClientTimeout

        client = dict(options.get("client_kwargs") or {})
        silence = client.get("timeout", HTTP_CALLS["sock_read"])
        if isinstance(silence, (int, float)):
            # Jobs give the timeout as a number, because their options are stored as JSON.
            client["timeout"] = ClientTimeout(**{**HTTP_CALLS, "sock_read": silence})
        options["client_kwargs"] = client
    elif protocol in GCS:
        from aiohttp import ClientTimeout

        options.setdefault("requests_timeout", ClientTimeout(GCS_SECONDS, **HTTP_CALLS))
    elif protocol in AZURE:
        options = {**AZURE_CALLS, **options}
    return options


def protocols_of(fs: Any) -> frozenset[str]:
    """Return the protocols that a file system serves."""
    return frozenset((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)


def limited(fs: Any) -> Any:
    """Return a file system; for S3, set timeouts of uploads and turn off the retries of s3fs.

    Storage options cannot change timeouts and retries, because Zarr requires JSON options, and s3fs
    has no option for retries.
    """
    if not protocols_of(fs).isdisjoint(S3):
        from largek_dask.data.uploads import UploadSession

        fs.retries = 1
        fs.config_kwargs = {"http_session_cls": UploadSession, **fs.config_kwargs}
    return fs


def is_there(fs: Any, path: str) -> bool:
    """Return True if a path exists; raise all errors other than a missing path.

    In most file systems, ``exists`` returns False for any error, including timeouts.
    """
    try:
        if getattr(fs, "asynchronous", False):
            sync(fs._info(path))
        else:
            fs.info(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        # fsspec raises FileNotFoundError for all HTTP failures.
        behind = error.__cause__
        if behind is not None and trouble(behind) == "away" and protocols_of(fs) & {*HTTP}:
            raise behind from None
        return False
    return True


def filesystem(url: str, storage_options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """Return the fsspec file system of a URL and the path inside it.

    Raises MissingDependencyError if the package of the protocol is not installed, and DataError if
    the protocol is unknown or does not accept the options.
    """
    protocol = split_protocol(url)[0] or "file"
    try:
        fs, path = fsspec.url_to_fs(url, **options_for(url, storage_options))
    except ImportError as error:
        advice = f"pip install {DRIVERS[protocol]}" if protocol in DRIVERS else str(error)
        raise MissingDependencyError(
            f"{url} needs a driver for {protocol}:// that is not installed: {advice}"
        ) from error
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{url} cannot be opened: {error}; check the address and storage_options."
        ) from error
    return limited(fs), str(path)


def file_stamp(url: str, storage_options: Mapping[str, Any] | None = None) -> str:
    """Return a text that changes whenever a file is written again."""
    if is_local(url):
        status = os.stat(url)
        return f"{status.st_size}-{status.st_mtime_ns}"
    fs, path = filesystem(url, storage_options)
    if "s3" in fs.protocol:
        # The details in a cached listing differ from those of a single file, except the ETag.
        return str(fs.info(path)["ETag"])
    return str(fs.ukey(path))


def remote_store(
    url: str, storage_options: Mapping[str, Any] | None = None, *, read_only: bool
) -> FsspecStore:
    """Return the Zarr store at a URL."""
    options = options_for(url, storage_options)
    store = FsspecStore.from_url(url, storage_options=options, read_only=read_only)
    limited(store.fs)
    return store


def open_node(
    url: str, column: str | None = None, storage_options: Mapping[str, Any] | None = None
) -> Any:
    """Open the ``zarr.Array`` or ``zarr.Group`` at a URL; raise DataError if there is none."""
    where = f"{url}/{column}" if column else url
    if is_local(url):
        if not os.path.exists(url):
            gone = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url)
            raise DataError(f"{url} does not exist: check the address.") from gone
        if not os.path.isdir(url):
            raise DataError(
                f"{url} is a file, but a Zarr store is a folder; pass the address of the folder."
            )
    else:
        filesystem(url, storage_options)
    try:
        store = url if is_local(url) else remote_store(url, storage_options, read_only=True)
        return zarr.open(store, path=column, mode="r")
    except FileNotFoundError as error:
        what = f"{url} does not exist or is not a Zarr array or group"
        if column:
            what = f"{url} has no array or group named {column!r}{_those_in(store)}"
        raise DataError(f"{what}; check the address.") from error
    except json.JSONDecodeError as error:
        raise IncompleteStoreError(
            f"{where} cannot be opened: its metadata are not valid JSON ({error}), perhaps because "
            "of a power failure during writing. Write the store again (largek ingest --force), or "
            "remove it."
        ) from error
    except Exception as error:
        # Storage drivers raise their own error classes (no access, no such bucket).
        raise DataError(
            f"{where} cannot be opened: {type(error).__name__}: {error}; check the address and "
            "storage_options."
        ) from error


def _those_in(store: Any) -> str:
    try:
        return f", only {members_of(zarr.open_group(store, mode='r'))}"
    except Exception:
        # Report the missing column instead of this error.
        return ""


def members_of(group: Any) -> str:
    """List the names of the arrays and groups in a Zarr or HDF5 group, for messages."""
    names: list[str] = []
    if isinstance(group, zarr.Group):
        names += [name for name, _ in group.members()]
    else:
        group.visit(names.append)
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return (", ".join(sorted(names)[:MOST_NAMED]) or "nothing") + more


def fill_value(array: Any) -> Any:
    """Return the value that Zarr reads for a missing chunk; 0 if the metadata contain ``null``."""
    return 0 if array.fill_value is None else array.fill_value


def metadata_key(array: Any) -> str:
    """Return the key of an array's metadata, which every store contains."""
    return "zarr.json" if array.metadata.zarr_format == 3 else ".zarray"


def read_stored(array: Any, start: int, stop: int, *, complete: bool) -> NDArray[Any]:
    """Return rows ``start`` to ``stop`` of an array, and verify that they are stored.

    Zarr reads a missing chunk as fill values, even if the whole store is unreachable. Therefore, a
    request checks whether each chunk that was read as fill values exists. If ``complete`` is True,
    all chunks must exist. An HDF5 dataset has no missing chunks.

    Raises FileNotFoundError if the store is gone, and ValueError, whose message names the chunk, if
    a chunk is damaged, or is missing from a complete array.
    """
    if not isinstance(array, zarr.Array):
        return np.asarray(array[start:stop])
    try:
        x = np.asarray(array[start:stop])
    except Exception as error:
        # Codecs raise errors of any class, and gzip raises an OSError.
        is_damage = trouble(error) is None or isinstance(error, gzip.BadGzipFile)
        if isinstance(error, MemoryError) or not is_damage:
            raise
        key = _first_damaged(array, start, stop)
        if key is None:
            raise
        raise ValueError(f"{name_chunk(array, key)} is damaged ({error})") from error
    filled = list(_filled(array, x, start, stop))
    if not filled:
        return x
    are_stored = [_is_stored(array, key) for key in filled]
    if not all(are_stored):
        if not _is_stored(array, metadata_key(array)):
            raise FileNotFoundError(errno.ENOENT, "the store is gone", str(array.store_path))
        if complete:
            raise ValueError(f"{name_chunk(array, filled[are_stored.index(False)])} is missing")
    # Read again, because chunks that exist now may have been missing before.
    return np.asarray(array[start:stop]) if any(are_stored) else x


def name_chunk(array: Any, key: str) -> str:
    """Return the key and the location of a stored chunk, for messages."""
    found = location_of(array)
    if found is None:
        return f"the stored chunk {key!r}"
    where = "/".join(part for part in (*found[:2], key) if part)
    return f"the stored chunk {key!r} ({where})"


def _first_damaged(array: Any, start: int, stop: int) -> str | None:
    for key, begin, end, inner in _stored_pieces(array, start, stop):
        try:
            array[(slice(begin, end), *inner)]
        except Exception:
            # The caller reports the first error, so this error can be ignored.
            return key
    return None


def _filled(array: Any, x: NDArray[Any], start: int, stop: int) -> Iterator[str]:
    """Yield the keys of chunks that were read entirely as fill values."""
    fill = fill_value(array)
    for key, begin, end, inner in _stored_pieces(array, start, stop):
        part = x[(slice(begin - start, end - start), *inner)]
        # A fill value of NaN does not equal itself.
        if (part == fill if fill == fill else part != part).all():
            yield key


def stored_keys(array: Any, start: int, stop: int) -> Iterator[str]:
    """Return the keys of the stored chunks that hold these rows."""
    return (key for key, *_ in _stored_pieces(array, start, stop))


def _stored_pieces(
    array: Any, start: int, stop: int
) -> Iterator[tuple[str, int, int, tuple[slice, ...]]]:
    """Yield the key, row range and column slices of each stored chunk that contains these rows."""
    sizes = array.shards or array.chunks
    if start >= stop:
        return
    rows = range(start // sizes[0], (stop - 1) // sizes[0] + 1)
    others = [range(-(-n // size)) for n, size in zip(array.shape[1:], sizes[1:], strict=True)]
    for row, *places in itertools.product(rows, *others):
        begin, end = max(start, row * sizes[0]), min(stop, (row + 1) * sizes[0])
        inner = tuple(slice(i * n, (i + 1) * n) for i, n in zip(places, sizes[1:], strict=True))
        yield array.metadata.encode_chunk_key((row, *places)), begin, end, inner


def _is_stored(array: Any, key: str) -> bool:
    place = array.store_path / key
    if isinstance(place.store, FsspecStore):
        return is_there(place.store.fs, f"{place.store.path.rstrip('/')}/{place.path}")
    return bool(sync(place.exists()))


def location_of(node: Any) -> tuple[str, str | None, dict[str, Any] | None] | None:
    """Return URL, column and options of a Zarr node; None if only this process can open it."""
    store = node.store
    column = node.path or None
    if isinstance(store, LocalStore):
        return os.path.abspath(store.root), column, None
    if isinstance(store, FsspecStore):
        fs = getattr(store.fs, "sync_fs", store.fs)
        options = {k: v for k, v in fs.storage_options.items() if k != "asynchronous"}
        return normalize(fs.unstrip_protocol(store.path)), column, options
    return None


def read_statistics(
    notes: Any, shape: tuple[int, int], dtype: np.dtype[Any], where: str
) -> Statistics:
    """Parse stored statistics; raise DataError if they do not fit rows of this shape and dtype."""
    try:
        found = Statistics.from_dict(notes)
        if (found.n_total, found.n_features) != shape:
            raise ValueError(
                f"the statistics are for {found.n_total} rows with {found.n_features} features"
            )
        if {found.mean.shape, found.shift.shape} != {shape[1:]}:
            raise ValueError(f"the mean has the wrong shape {found.mean.shape}")
        if np.promote_types(found.dtype, compute_dtype(dtype)) != found.dtype:
            raise ValueError(
                f"the statistics are for {found.dtype} features, but the rows are {dtype}"
            )
        return found
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        is_explained = isinstance(error, (ValueError, OverflowError))
        why = error if is_explained else "they are incomplete or have an unknown form"
        raise DataError(
            f"the statistics in {where} cannot be read by largek_dask {__version__} ({why}). They "
            "are damaged, or a newer largek_dask wrote them; upgrade largek_dask, or write the "
            "store again with this version (largek ingest)."
        ) from None


def check_complete(node: Any, where: str) -> dict[str, Any]:
    """Return the metadata that this package wrote to a store, or ``{}`` if there are none.

    Raises IncompleteStoreError if the store is incomplete, and DataError if a later version of the
    package wrote it.
    """
    notes = node.attrs.get(ATTRIBUTE)
    if not isinstance(notes, dict):
        return {}
    if "kind" not in notes:
        # Models and labels have their own format numbers.
        check_format(notes, where, DataError, FORMAT)
    if isinstance(statistics := notes.get("statistics"), dict):
        versioned = {"version": notes.get("version", ""), **statistics}
        check_format(versioned, f"the statistics of {where}", DataError, FORMAT)
    if notes.get("complete") is False:
        raise IncompleteStoreError(
            f"{where} is incomplete: the program that wrote it was stopped before the end. "
            "Write it again (largek ingest --force) or remove it."
        )
    return notes


def _found(fs: Any, root: str) -> dict[str, Any]:
    """Return all files below a folder; raise an error if a folder cannot be listed.

    fsspec's ``find`` skips folders that cannot be listed; ``on_error="raise"`` affects only the top
    folder.
    """
    found: dict[str, Any] = {}
    is_async = isinstance(fs, AsyncFileSystem)
    name, usual = ("_find", AsyncFileSystem) if is_async else ("find", AbstractFileSystem)
    if getattr(type(fs), name) is not getattr(usual, name):
        found = fs.find(root, detail=True)
        return found
    folders = [root.rstrip("/")]
    while folders:
        folder = folders.pop()
        for entry in fs.ls(folder, detail=True):
            path = entry["name"].rstrip("/")
            if entry["type"] != "directory":
                found[path] = entry
            elif path != folder:
                folders.append(path)
    return found


def list_stamps(
    location: str, column: str | None, storage_options: Mapping[str, Any] | None
) -> dict[str, str]:
    """Return the size and modification time (or ETag) of each file of a node, by key."""
    stamps = {}
    if is_local(location):
        folders = [""]
        while folders:
            folder = folders.pop()
            with os.scandir(os.path.join(location, column or "", folder)) as entries:
                for entry in entries:
                    key = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.is_dir():
                        folders.append(key)
                    else:
                        status = entry.stat()
                        stamps[key] = f"{status.st_size}-{status.st_mtime_ns}"
        return stamps
    fs, path = filesystem(location, storage_options)
    root = f"{path}/{column}" if column else path
    # Another process may have changed the folder since it was last listed.
    fs.invalidate_cache()
    for name, entry in _found(fs, root).items():
        fields = (entry.get(k) for k in ("ETag", "etag", "LastModified", "mtime", "created"))
        version = next((str(f) for f in fields if f is not None), "")
        stamps[name.removeprefix(root).lstrip("/")] = f"{entry['size']}-{version}"
    return stamps
