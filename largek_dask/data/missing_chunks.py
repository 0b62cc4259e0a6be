"""Count the chunks that a store lacks, which Zarr reads as its fill value, by one listing.

Zarr's writers leave out chunks of fill values unless told otherwise, and a lost chunk looks the
same. Of a sharded array shards are counted, as each is written as a whole; of a sparse (CSR)
group the chunks of all three arrays.
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
    """Warn (MissingChunksWarning) of chunks that an array or a CSR group lacks.

    For nodes whose writer has not noted that all chunks are stored. A store that only this process
    has, or that cannot be listed, is not checked.
    """
    arrays = [node]
    if isinstance(node, zarr.Group):
        arrays = [node[name] for name in ("indptr", "indices", "data")]
    found = [(array, *lack) for array in arrays if (lack := _missing(array)) is not None]
    lacking = [(array, keys[0]) for array, keys, _ in found if keys]
    if lacking:
        array, first = lacking[0]
        warn(
            f"{where} lacks {sum(len(keys) for _, keys, _ in found):,} of its "
            f"{sum(n for *_, n in found):,} stored chunks, the first of them {first!r}, and is "
            f"read as the fill value {fill_value(array)} there. Right if they held nothing else, "
            "which Zarr does not store by default; otherwise restore them. "
            "warnings.simplefilter('error', MissingChunksWarning) refuses such a store.",
            MissingChunksWarning,
        )


def _missing(array: Any) -> tuple[list[str], int] | None:
    """Return missing chunks (shards) of an array, and the number of all; None if unknown."""
    found = location_of(array)
    # Of HTTP there is a page of links for a folder, if there are any.
    if found is None or split_protocol(found[0])[0] in HTTP:
        return None
    try:
        listed = retry_io(lambda: list_stamps(*found))
    except Exception as error:
        # Drivers raise errors of their own kinds: reading may be allowed where listing is not.
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
