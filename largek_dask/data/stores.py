"""Opening Zarr by URL, with errors that say what is wrong and what to do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import fsspec
import zarr
from fsspec.core import split_protocol
from zarr.storage import FsspecStore, LocalStore

from largek_dask.errors import DataError, IncompleteStoreError, MissingDependencyError

__all__ = [
    "ATTRIBUTE",
    "check_complete",
    "filesystem",
    "is_local",
    "list_stamps",
    "location_of",
    "normalize",
    "open_node",
]

ATTRIBUTE = "largek"
"""Name of the attribute in which this package keeps its own notes on a store."""

_EXTRAS = {"s3": "s3", "s3a": "s3"}
_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs", "abfss": "adlfs"}


def normalize(url: str | os.PathLike[str]) -> str:
    """An absolute path for anything local, the URL itself otherwise."""
    text = os.fspath(url)
    protocol, path = split_protocol(text)
    if protocol in (None, "file", "local"):
        return os.path.abspath(os.path.expanduser(str(path)))
    return text if text.endswith("://") else text.rstrip("/")


def is_local(location: str) -> bool:
    """Whether a location that :func:`normalize` made is a path of this machine."""
    return split_protocol(location)[0] is None


def filesystem(url: str, storage_options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """The fsspec file system of a URL and the path inside it.

    Raises
    ------
    MissingDependencyError
        The package that serves the protocol is not installed; the message says which extra is.
    DataError
        No such protocol, or the options do not fit it.
    """
    protocol = split_protocol(url)[0] or "file"
    try:
        fs, path = fsspec.url_to_fs(url, **dict(storage_options or {}))
    except ImportError as error:
        if protocol in _EXTRAS:
            advice = f"pip install 'largek_dask[{_EXTRAS[protocol]}]'"
        elif protocol in _PACKAGES:
            advice = f"pip install {_PACKAGES[protocol]}"
        else:
            advice = str(error)
        raise MissingDependencyError(
            f"{url} needs a driver for {protocol}:// that is not installed: {advice}"
        ) from error
    except (TypeError, ValueError) as error:
        raise DataError(f"{url} cannot be opened: {error}") from error
    return fs, str(path)


def open_node(
    url: str,
    component: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """The ``zarr.Array`` or ``zarr.Group`` at a URL or path.

    Raises
    ------
    DataError
        Nothing there, or something that is not Zarr.
    MissingDependencyError
        See :func:`filesystem`.
    """
    where = f"{url}/{component}" if component else url
    if is_local(url):
        if not os.path.exists(url):
            raise DataError(f"{url} does not exist.")
        if not os.path.isdir(url):
            raise DataError(f"{url} is a file, but a Zarr store is a folder.")
        options = None
    else:
        filesystem(url, storage_options)
        options = dict(storage_options or {})
    try:
        return zarr.open(url, path=component, mode="r", storage_options=options)
    except FileNotFoundError as error:
        if is_local(url) and not component:
            what = f"{url} is a folder, but holds no Zarr array or group"
        elif component:
            what = f"{url} has no array or group named {component!r}"
        else:
            what = f"{url} does not exist or is not Zarr"
        raise DataError(f"{what}.") from error
    except Exception as error:
        # drivers raise errors of their own kinds (no access, no such bucket, broken JSON)
        raise DataError(f"{where} cannot be opened: {type(error).__name__}: {error}") from error


def location_of(node: Any) -> tuple[str, str | None, dict[str, Any] | None] | None:
    """URL, component and storage options of an open zarr node, None if only this process has it."""
    store = node.store
    component = node.path or None
    if isinstance(store, LocalStore):
        return os.path.abspath(store.root), component, None
    if isinstance(store, FsspecStore):
        fs = getattr(store.fs, "sync_fs", store.fs)
        options = {k: v for k, v in fs.storage_options.items() if k != "asynchronous"}
        return fs.unstrip_protocol(store.path).rstrip("/"), component, options
    return None


def check_complete(node: Any, where: str) -> dict[str, Any]:
    """What this package noted on a store, ``{}`` if it wrote none.

    Raises
    ------
    IncompleteStoreError
        The writing of the store did not end.
    """
    notes = node.attrs.get(ATTRIBUTE)
    if not isinstance(notes, dict):
        return {}
    if notes.get("complete") is False:
        raise IncompleteStoreError(
            f"{where} is incomplete: the program that wrote it was stopped before the end. "
            "Write it again (largek ingest --force) or remove it."
        )
    return notes


def list_stamps(
    location: str, component: str | None, storage_options: Mapping[str, Any] | None
) -> dict[str, str]:
    """Size and modification time (or ETag) of everything stored under a node, by its key."""
    stamps = {}
    if is_local(location):
        root = os.path.join(location, component or "")
        for folder, _, names in os.walk(root):
            for name in names:
                path = os.path.join(folder, name)
                status = os.stat(path)
                key = os.path.relpath(path, root).replace(os.sep, "/")
                stamps[key] = f"{status.st_size}-{status.st_mtime_ns}"
        return stamps
    fs, path = filesystem(location, storage_options)
    root = f"{path}/{component}" if component else path
    # another process may have written since this one listed
    fs.invalidate_cache()
    for name, entry in fs.find(root, detail=True).items():
        fields = (entry.get(k) for k in ("ETag", "etag", "LastModified", "mtime", "created"))
        version = next((str(f) for f in fields if f is not None), "")
        stamps[name.removeprefix(root).lstrip("/")] = f"{entry['size']}-{version}"
    return stamps
