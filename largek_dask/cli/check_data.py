"""What ``largek doctor --data URL`` looks at in a data set; ``largek fit --plan`` uses it too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from largek_dask.cli.findings import Finding, broken, note, ok
from largek_dask.driver.words import count_of, human_bytes
from largek_dask.errors import LargekError, warnings_heard_by

if TYPE_CHECKING:
    from largek_dask.data.rows import Rows

__all__ = ["check_data"]

SMALL_CHUNK = 1 << 20
LARGE_CHUNK = 256 << 20
TYPICAL_CLUSTERS = (10, 1_000)
REWRITE = "rewrite it once: largek ingest {url} better.zarr (chunks of 65,536 rows, floats raw)"


def check_data(url: str, storage_options: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Findings about a data set; reads its metadata and its first chunk."""
    from largek_dask.data.sources import open_rows

    heard: list[str] = []
    try:
        with warnings_heard_by(lambda message, _: heard.append(message)):
            rows = open_rows(url, storage_options=storage_options)
    except (LargekError, OSError) as error:
        yield broken("data", str(error), "check the address, the driver and the access rights")
        return
    n, d = rows.shape
    yield ok("data", f"{n:,} rows × {d:,} features, {rows.dtype}, {human_bytes(rows.nbytes)}")
    for message in heard:
        yield note("data", message, "tell a fit by --missing what they are")
    yield from _storage(url, rows)
    yield from _first_chunk(rows)
    yield from _known_statistics(rows)
    yield from _precision(rows)
    yield from _reading_memory(rows)
    yield from _engines(rows)


def _engines(rows: Rows) -> Iterator[Finding]:
    """What ``algorithm="auto"`` takes."""
    from largek_dask.algorithms.auto import Auto

    for k in TYPICAL_CLUSTERS:
        if k <= rows.n_rows:
            algorithm, _, reason = Auto().choose(rows, k)
            name = type(algorithm).__name__
            yield ok("auto", f"{k:,} clusters: {name} ({reason})")


def _storage(url: str, rows: Rows) -> Iterator[Finding]:
    from zarr.codecs import Crc32cCodec

    from largek_dask import config
    from largek_dask.data.stores import open_node
    from largek_dask.data.zarr_rows import ZarrRows

    if not isinstance(rows, ZarrRows) or rows.location is None:
        yield ok("data", f"read in {count_of(rows.n_chunks, 'chunk')}")
        return
    array = open_node(rows.location, rows.component, rows.storage_options)
    advice = REWRITE.format(url=url)
    chunk_rows, chunk_columns = array.chunks
    chunk = chunk_rows * chunk_columns * array.dtype.itemsize
    text = f"stored in chunks of {chunk_rows:,} × {chunk_columns:,} ({human_bytes(chunk)})"
    if array.shards is not None:
        text += f" inside shards of {array.shards[0]:,} rows"
    is_small = chunk < SMALL_CHUNK and chunk_rows < int(config.get("data.ingest-chunk-rows"))
    if is_small and rows.nbytes > 16 * SMALL_CHUNK and array.shards is None:
        yield note("data", f"{text}: too small, every one costs a request", advice)
    elif chunk > LARGE_CHUNK:
        yield note("data", f"{text}: too large, several are in memory at once", advice)
    else:
        yield ok("data", text)
    if chunk_columns < rows.n_features:
        yield note("data", "chunks are split along the columns: a row needs several", advice)
    # A checksum, as ingest writes, counts as a compressor with Zarr.
    packing = [codec for codec in array.compressors if not isinstance(codec, Crc32cCodec)]
    if packing and array.dtype.kind == "f":
        names = ", ".join(type(codec).__name__ for codec in packing)
        yield note(
            "data",
            f"floats compressed with {names}: they hardly shrink and read at less than half "
            "the rate",
            advice,
        )


def _first_chunk(rows: Rows) -> Iterator[Finding]:
    from time import perf_counter

    import numpy as np

    from largek_dask.kernels.rows import finite_rows
    from largek_dask.passes.chunks import name_bad_columns

    begun = perf_counter()
    try:
        x = rows.read(0)
    except (LargekError, OSError) as error:
        yield broken("data", str(error), "restore the store from its source")
        return
    seconds = perf_counter() - begun
    rate = human_bytes(x.nbytes / max(seconds, 1e-9))
    yield ok("data", f"the first chunk of {len(x):,} rows can be read, at {rate} a second")
    bad = np.flatnonzero(~finite_rows(x))
    if len(bad):
        columns = name_bad_columns(rows, x[bad[0] : bad[0] + 1])
        yield broken(
            "data",
            f"row {bad[0]} holds NaN or infinity ({columns}; "
            f"{len(bad):,} such rows in the first chunk)",
            "remove them, or skip them: KMeans(on_bad_rows='skip'), largek fit --on-bad-rows skip",
        )


def _known_statistics(rows: Rows) -> Iterator[Finding]:
    known = rows.stored_statistics()
    if known is None:
        yield ok(
            "data",
            "mean, extent and bad rows are not recorded: the first pass finds them",
            "largek ingest records them",
        )
    elif known.get("n_bad"):
        yield broken(
            "data",
            f"{known['n_bad']:,} rows hold NaN or infinity, the first is row {known['first_bad']}",
            "remove them, or skip them: KMeans(on_bad_rows='skip'), largek fit --on-bad-rows skip",
        )
    else:
        yield ok("data", "mean and extent are recorded, and no row holds NaN or infinity")


def _precision(rows: Rows) -> Iterator[Finding]:
    from largek_dask.kernels.exact.statistics import compute_dtype

    compute = compute_dtype(rows.dtype)
    if compute.itemsize == 8:
        yield note(
            "data",
            f"{rows.dtype} is computed in {compute}: half the speed of float32",
            "if float32 is precise enough, store that: largek ingest --dtype float32",
        )
    else:
        yield ok("data", f"{rows.dtype} is computed in {compute}")


def _reading_memory(rows: Rows) -> Iterator[Finding]:
    import numpy as np
    from distributed.system import MEMORY_LIMIT

    largest = int(np.diff(rows.chunk_table).max()) * rows.n_features * rows.dtype.itemsize
    need = 4 * largest
    text = f"reading holds about {human_bytes(need)} (four chunks) of {human_bytes(MEMORY_LIMIT)}"
    if need > MEMORY_LIMIT // 2:
        yield broken("memory", text, "smaller chunks: largek ingest --chunk-rows 16384")
    else:
        yield ok("memory", text)
