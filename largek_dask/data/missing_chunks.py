"""Count the chunks that a store lacks, which Zarr reads as its fill value, by one listing.

Zarr's writers leave out chunks of fill values unless told otherwise, and a lost chunk looks the
same. Of a sharded array shards are counted, as each is written as a whole; of a sparse (CSR)
group the chunks of all three arrays.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import zarr
from zarr.core.sync import sync
from zarr.storage import FsspecStore, LocalStore

from largek_dask.data.storage_errors import retry_io, trouble
from largek_dask.data.stores import HTTP, fill_value, metadata_key
from largek_dask.errors import DataError, MissingChunksWarning, ParameterError, warn

__all__ = ["Missing", "check_missing", "check_stored", "missing_chunks"]

Missing = Literal["warn", "raise", "fill"]
"""Treatment of missing chunks: fill values with a warning, an error, or fill values
without a word."""


@dataclass(frozen=True, slots=True)
class Lacking:
    """Stored chunks of one array that are not there."""

    count: int
    expected: int
    """Number of stored chunks that the whole array has."""
    first: str
    begin: int
    """Index of the first entry along the first axis that it would hold."""
    end: int


def check_missing(missing: str) -> None:
    """Raise ParameterError unless the treatment of missing chunks is a known one."""
    choices = get_args(Missing)
    if missing not in choices:
        raise ParameterError(f"missing must be one of {', '.join(choices)}, got {missing!r}.")


def check_stored(node: Any, where: str, missing: Missing) -> None:
    """Count the chunks that an array or a CSR group lacks, and warn or raise as ``missing`` asks.

    For nodes whose writer has not noted that all chunks are stored. Warns MissingChunksWarning
    ("warn"), or raises DataError ("raise"), also if the store cannot list its keys.
    """
    if missing == "fill":
        return
    arrays = [node]
    if isinstance(node, zarr.Group):
        arrays = [node[name] for name in ("indptr", "indices", "data")]
    found = [missing_chunks(array) for array in arrays]
    if missing == "raise" and None in found:
        raise DataError(
            f"{where} cannot list the chunks that it holds, so that nobody can tell whether some "
            "are missing; give missing='warn' or 'fill' (--missing), or copy it to a local disk."
        )
    lacking = [(array, one) for array, one in zip(arrays, found, strict=True) if one is not None]
    count = sum(one.count for _, one in lacking)
    if not count:
        return
    expected = sum(one.expected for _, one in lacking)
    array, first = next((array, one) for array, one in lacking if one.count)
    fill = fill_value(array)
    rows = "" if isinstance(node, zarr.Group) else f" (rows {first.begin} to {first.end - 1})"
    told = (
        f"{where} lacks {count:,} of its {expected:,} stored chunks, the first of them "
        f"{first.first!r}{rows}"
    )
    if missing == "raise":
        raise DataError(
            f"{told}. Restore them from the source; if they only held the fill value {fill}, which "
            "Zarr does not store by default, give missing='fill' (--missing fill)."
        )
    warn(
        f"{told}, and is read as the fill value {fill} there. Right if they held nothing else, "
        "which Zarr does not store by default: then open_rows(..., missing='fill') or "
        "--missing fill says so. Else restore them; missing='raise' refuses such a store.",
        MissingChunksWarning,
    )


def missing_chunks(array: Any) -> Lacking | None:
    """Count the missing chunks (shards) of an array by one listing; None if that is impossible."""
    listed = _listed(array)
    if listed is None or metadata_key(array) not in listed:
        return None
    sizes = array.shards or array.chunks
    counts = [-(-n // size) for n, size in zip(array.shape, sizes, strict=True)]
    encode = array.metadata.encode_chunk_key
    count, first = 0, None
    for place in itertools.product(*map(range, counts)):
        key = encode(place)
        if key not in listed:
            count += 1
            first = first or (key, place[0])
    key, row = first or ("", 0)
    begin, end = row * sizes[0], min((row + 1) * sizes[0], array.shape[0])
    return Lacking(count, int(np.prod(counts)), _full_key(array, key), begin, end)


def _full_key(array: Any, key: str) -> str:
    return f"{array.path}/{key}" if array.path else key


def _listed(array: Any) -> frozenset[str] | None:
    """Return the keys of all stored parts of an array; None if the store cannot be listed."""
    store, prefix = array.store, array.path
    if not store.supports_listing:
        return None
    if isinstance(store, FsspecStore):
        protocols = store.fs.protocol
        names = (protocols,) if isinstance(protocols, str) else protocols
        if not set(HTTP).isdisjoint(names):
            # A page of links a folder, if there are any.
            return None
        # Another process may have written since this one listed.
        store.fs.invalidate_cache()
    try:
        if isinstance(store, LocalStore):
            # Five times as fast as Zarr's own way.
            return frozenset(retry_io(lambda: list(_files(os.path.join(store.root, prefix)))))
        found: list[str] = retry_io(lambda: sync(_list(store, f"{prefix}/" if prefix else "")))
    except Exception as error:
        # Drivers raise errors of their own kinds: reading may be allowed where listing is not.
        if trouble(error) is None:
            raise
        return None
    # Of some file systems keys begin at their root.
    return frozenset(key.lstrip("/").removeprefix(prefix).lstrip("/") for key in found)


async def _list(store: Any, prefix: str) -> list[str]:
    return [key async for key in store.list_prefix(prefix)]


def _files(root: str) -> Iterator[str]:
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        with os.scandir(os.path.join(root, folder)) as entries:
            for entry in entries:
                key = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir():
                    waiting.append(key)
                else:
                    yield key
