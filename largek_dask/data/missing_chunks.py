"""Warn if a store lacks chunks, which Zarr reads as fill values.

By default, Zarr does not write chunks that contain only fill values, so a lost chunk looks like
such a chunk. A shard counts as one chunk, because it is written as a whole.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import zarr
from fsspec.core import split_protocol

from largek_dask.data.storage_errors import retry_io, trouble
from largek_dask.data.stores import HTTP, fill_value, list_stamps, location_of, metadata_key
from largek_dask.errors import MissingChunksWarning, warn


def warn_of_missing(node: Any, where: str) -> None:
    """Issue a MissingChunksWarning if an array or a CSR group lacks chunks.

    Stores in the memory of this process and stores that cannot be listed are not checked.
    """
    arrays = [node]
    if isinstance(node, zarr.Group):
        arrays = [node[name] for name in ("indptr", "indices", "data")]
    found = [(array, *lack) for array in arrays if (lack := _missing(array)) is not None]
    lacking = [(array, keys[0]) for array, keys, _ in found if keys]
    if lacking:
        array, first = lacking[0]
        warn(
            f"{where} lacks {sum(len(keys) for _, keys, _ in found):,} of "
            f"{sum(n for *_, n in found):,} chunks (the first is {first!r}), which are read as the "
            f"fill value {fill_value(array)}. This is correct if the chunks contained only fill "
            "values, because Zarr does not store such chunks by default; otherwise, restore the "
            "chunks. To reject such stores, use warnings.simplefilter('error', "
            "MissingChunksWarning).",
            MissingChunksWarning,
        )


def _missing(array: Any) -> tuple[list[str], int] | None:
    """Return the keys of missing chunks and the total number of chunks; None if unknown."""
    found = location_of(array)
    # HTTP servers cannot list folders reliably.
    if found is None or split_protocol(found[0])[0] in HTTP:
        return None
    try:
        listed = retry_io(lambda: list_stamps(*found))
    except Exception as error:
        # A user may be allowed to read a store but not to list its files.
        if trouble(error) is None:
            raise
        return None
    if metadata_key(array) not in listed:
        return None
    sizes = array.shards or array.chunks
    counts = [-(-n // size) for n, size in zip(array.shape, sizes, strict=True)]
    encode, above = array.metadata.encode_chunk_key, f"{array.path}/" if array.path else ""
    keys = map(encode, itertools.product(*map(range, counts)))
    return [above + key for key in keys if key not in listed], math.prod(counts)
