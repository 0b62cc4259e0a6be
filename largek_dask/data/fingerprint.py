"""Compute and compare fingerprints of data."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.blocks import SparseBlock, Table

if TYPE_CHECKING:
    from largek_dask.data.rows import Rows

WHOLE_BYTES = 32 << 20
"""Maximum size in bytes of data that are hashed completely."""
SAMPLES = 16
SAMPLE_ROWS = 64


def content_of(rows: Rows) -> dict[str, Any]:
    """Return the shape, the dtype, and hashes of sampled rows and weights.

    Data of up to 32 MB are hashed completely. For larger data, ``SAMPLES`` runs of ``SAMPLE_ROWS``
    rows are hashed: the first rows, the last rows, and runs at pseudorandom positions that depend
    only on the number of rows.
    """
    # Each array of a block has its own digest, so that the hash does not depend on the chunks.
    digests = [hashlib.sha256() for _ in range(3 if rows.is_sparse else 1)]
    weight_digest = None if rows.weight is None else hashlib.sha256()
    for i, (begin, end) in _samples_by_chunk(rows):
        start = int(rows.chunk_table[i])
        x = rows.read(i)[begin - start : end - start]
        for digest, array in zip(digests, _arrays_of(x), strict=True):
            # Hash a view, because copying the data into a bytes object would hold the GIL.
            plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
            digest.update(plain.reshape(-1).view(np.uint8).data)
        if weight_digest is not None and rows.weight is not None:
            weight_digest.update(rows.weight.read(begin, end).astype("<f8").data)
    digest = digests[0]
    if rows.is_sparse:
        digest = hashlib.sha256(b"".join(part.digest() for part in digests))
    return {
        "shape": list(rows.shape),
        "dtype": rows.dtype.name,
        "sha256": digest.hexdigest(),
        "weight_sha256": None if weight_digest is None else weight_digest.hexdigest(),
    }


def _arrays_of(x: Table) -> tuple[NDArray[Any], ...]:
    if isinstance(x, SparseBlock):
        return np.diff(x.indptr), x.indices[x.stored], x.data[x.stored]
    return (x,)


def _samples_by_chunk(rows: Rows) -> list[tuple[int, tuple[int, int]]]:
    """Return ``(chunk, (first row, end row))`` for each run of rows to hash."""
    n = rows.n_rows
    if rows.nbytes <= WHOLE_BYTES or n <= SAMPLES * SAMPLE_ROWS:
        spans = [(0, n)]
    else:
        inner = np.random.default_rng(n).integers(0, n - SAMPLE_ROWS, SAMPLES - 2)
        starts = sorted({0, n - SAMPLE_ROWS, *inner.tolist()})
        spans = [(s, s + SAMPLE_ROWS) for s in starts]
    table = rows.chunk_table
    pieces = []
    for begin, end in spans:
        i = int(np.searchsorted(table, begin, side="right")) - 1
        while begin < end:
            stop = min(end, int(table[i + 1]))
            pieces.append((i, (begin, stop)))
            begin, i = stop, i + 1
    return pieces


def rows_per_chunk(chunk_table: NDArray[np.int64]) -> list[list[int]]:
    """Return the run-length encoding ``[rows per chunk, number of chunks]`` of a chunk table."""
    lengths = np.diff(chunk_table)
    edges = np.flatnonzero(np.diff(lengths)) + 1
    bounds = [0, *edges.tolist(), len(lengths)]
    return [[int(lengths[a]), b - a] for a, b in itertools.pairwise(bounds)]


def same_data(a: Mapping[str, Any], b: Mapping[str, Any]) -> str | None:
    """Describe how two fingerprints differ; None if the data may be the same.

    Copies in different locations count as the same data. The chunk table and ``shuffled`` must be
    equal, because mini-batches depend on them. A chunk that was rewritten in the same location
    counts as changed.
    """
    before, now = a["content"], b["content"]
    if list(before["shape"]) != list(now["shape"]):
        old, new = tuple(before["shape"]), tuple(now["shape"])
        return f"The data had shape {old} and now have shape {new}."
    if before["dtype"] != now["dtype"]:
        return f"The data had dtype {before['dtype']} and now have dtype {now['dtype']}."
    if before["sha256"] != now["sha256"]:
        return "The values of the rows have changed (their sampled hash differs)."
    if before["weight_sha256"] != now["weight_sha256"]:
        if before["weight_sha256"] is None:
            return "The rows had no weights before, but have weights now."
        if now["weight_sha256"] is None:
            return "The rows had weights before, but have no weights now."
        return "The row weights have changed (their sampled hash differs)."
    if [list(run) for run in a["chunk_rows"]] != [list(run) for run in b["chunk_rows"]]:
        old_n, new_n = (sum(run[1] for run in f["chunk_rows"]) for f in (a, b))
        return f"The rows were read in {old_n} chunks, but are now read in {new_n} other chunks."
    # Fingerprints of earlier versions do not have this entry.
    if a.get("shuffled", False) != b.get("shuffled", False):
        was, now = ("" if f.get("shuffled") else "not " for f in (a, b))
        return (
            f"The rows were {was}marked as shuffled before, and are {now}marked as shuffled now, "
            "so mini-batches would contain other rows."
        )
    if a["location"] == b["location"] and a["stamps"] and b["stamps"]:
        pairs = zip(a["stamps"], b["stamps"], strict=True)
        changed = [i for i, (old_stamp, new_stamp) in enumerate(pairs) if old_stamp != new_stamp]
        if changed:
            return (
                f"Chunk {changed[0]} of {b['location']} has been written again "
                f"({len(changed)} of {len(b['stamps'])} chunks have a different size or time)."
            )
    return None
