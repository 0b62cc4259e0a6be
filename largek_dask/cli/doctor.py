"""``largek doctor``: check versions, threads, memory, a cluster and a data set."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from largek_dask.cli.common import (
    FAILED,
    command,
    connected,
    emit,
    key_values,
    one_line,
    option_scheduler,
    option_storage,
)
from largek_dask.driver.formatting import count_of, human_bytes

if TYPE_CHECKING:
    from distributed import Client

    from largek_dask.data.rows import Rows

__all__ = ["doctor"]

PACKAGES = ("numpy", "numba", "llvmlite", "dask", "distributed", "zarr", "fsspec", "scikit-learn")
EXTRAS = {"s3": "s3fs", "parquet": "pyarrow", "hdf5": "h5py", "plots": "matplotlib"}
"""A package of each extra whose absence is reported."""
COMPARED = ("largek_dask", "numpy", "numba", "zarr")
"""Packages compared between client, scheduler and workers, besides those that Dask compares."""
MUST_AGREE = ("largek_dask", "numba", "distributed", "dask")
"""Packages whose versions change results or the protocol; others are only noted."""

LOW_MEMORY = 1 << 30
"""Bytes; not tuned, as are those below."""
LOW_DISK, MODEST_DISK = 256 << 20, 5 << 30
SMALL_CHUNK, LARGE_CHUNK = 1 << 20, 256 << 20
BUSY = 0.7
"""Fraction of its memory limit that a worker uses before any job."""
DROP = "remove them, or skip them: KMeans(on_bad_rows='skip'), largek fit --on-bad-rows skip"
STYLES = {"ok": "green", "note": "yellow", "broken": "bold red"}


Level = Literal["ok", "note", "broken"]
"""``broken`` keeps something from working; ``note`` costs time or memory."""


class Finding(NamedTuple):
    """The result of one check."""

    area: str
    level: Level
    text: str
    advice: str = ""
    """Empty if nothing is to be done."""


def _check(area: str, text: str, *problems: tuple[bool, Level, str]) -> Finding:
    """Return a finding with level and advice of the first problem that there is."""
    ok: tuple[Level, str] = ("ok", "")
    level, advice = next(((level, say) for is_there, level, say in problems if is_there), ok)
    return Finding(area, level, text, advice)


@command("largek doctor --scheduler tcp://127.0.0.1:8786 --data s3://bucket/x.zarr")
@option_scheduler
@click.option("--data", metavar="URL", help="Also check this data set.")
@option_storage
def doctor(scheduler: str | None, data: str | None, storage_options: dict[str, Any] | None) -> None:
    """Check this machine, a cluster or a data set, and say what to do.

    Checks versions, threads, memory and storage. The exit code is 1 if something is broken.
    """
    from largek_dask.errors import LargekError

    found = [*_versions(), *_threads(), *_memory()]
    if scheduler is not None:
        try:
            with connected(scheduler, storage_options) as client:
                assert client is not None
                found += check_cluster(client)
        except LargekError as error:
            advice = "start it, or correct the address"
            found.append(Finding("cluster", "broken", one_line(error), advice))
    if data is not None:
        found += check_data(data, storage_options)
    is_healthy = all(finding.level != "broken" for finding in found)
    payload = {"healthy": is_healthy, "findings": [finding._asdict() for finding in found]}
    emit(payload, lambda: _table(found))
    if not is_healthy:
        raise click.exceptions.Exit(FAILED)


def _table(findings: list[Finding]) -> Any:
    from rich.console import Group
    from rich.text import Text

    rows, previous = [], ""
    for area, level, text, advice in findings:
        cell = Text.assemble((f"{level:8}", STYLES[level]), text)
        if advice:
            cell.append(f"\n→ {advice}", "dim")
        rows.append(("" if area == previous else area, cell))
        previous = area
    levels = [finding.level for finding in findings]
    n_broken, n_notes = levels.count("broken"), levels.count("note")
    verdict = "[green]All is well.[/]" if not n_notes else (
        f"[green]Nothing is broken[/]; {n_notes} to improve.")  # fmt: skip
    if n_broken:
        verdict = f"[bold red]{n_broken} broken[/], {n_notes} to improve."
    return Group(key_values(rows), "", verdict)


# --- this machine ---------------------------------------------------------------------------------


def _versions() -> Iterator[Finding]:
    from importlib import metadata, util

    from largek_dask.version import __version__

    found = [f"largek_dask {__version__}", f"Python {platform.python_version()}"]
    found += [f"{name} {metadata.version(name)}" for name in PACKAGES]
    yield Finding("versions", "ok", ", ".join(found))
    if absent := {e: name for e, name in EXTRAS.items() if util.find_spec(name) is None}:
        text = f"not installed: {', '.join(absent.values())}"
        advice = f"if you need them: pip install 'largek_dask[{','.join(absent)}]'"
        yield Finding("versions", "ok", text, advice)


def _threads() -> Iterator[Finding]:
    from llvmlite import binding

    from largek_dask import config
    from largek_dask.kernels.code_cache import cache_folder, unsaved
    from largek_dask.kernels.jit import saves_code
    from largek_dask.kernels.tile import select_tile
    from largek_dask.passes.local import available_cpus

    tile = select_tile()
    text = (
        f"{available_cpus()} of {os.cpu_count()} cores of {binding.get_host_cpu_name()} "
        f"({platform.machine()}), kernels for vectors of {tile.lanes} numbers ({tile.name})"
    )
    yield _check(
        "threads",
        f"{text}, as configured" if (is_forced := config.get("kernels.tile") != "auto") else text,
        (is_forced, "note",
         "unset largek.kernels.tile for the fastest one; results are the same"),
        (tile.name == "plain", "note", "expect a fraction of the speed of a CPU with AVX2"),
    )  # fmt: skip
    folder = existing = cache_folder()
    while not existing.exists():
        existing = existing.parent
    if not saves_code():
        text = f"compiled kernels are not saved, every process compiles them again: {unsaved()}"
        yield Finding("threads", "note", text, "install a version of numba that is known")
    elif not os.access(existing, os.W_OK):
        text = f"compiled kernels cannot be kept in {folder}: every process compiles them again"
        advice = "make it writable, or set DASK_LARGEK__KERNELS__CACHE_DIR to a folder that is"
        yield Finding("threads", "note", text, advice)


def _memory() -> Iterator[Finding]:
    import psutil
    from distributed.system import MEMORY_LIMIT

    available = min(psutil.virtual_memory().available, MEMORY_LIMIT)
    text = f"{human_bytes(available)} available of {human_bytes(MEMORY_LIMIT)}"
    advice = "close something: a fit wants at least 1 GiB free"
    yield _check("memory", text, (available < LOW_MEMORY, "note", advice))
    for name, folder in (("this folder", os.getcwd()), ("temporary files", tempfile.gettempdir())):
        free = shutil.disk_usage(folder).free
        yield _check(
            "memory",
            f"{human_bytes(free)} free on disk for {name} ({folder})",
            (free < LOW_DISK, "broken", "free some, or work elsewhere (TMPDIR: temporary files)"),
            (free < MODEST_DISK, "note", "enough for small data only"),
        )


# --- a cluster ------------------------------------------------------------------------------------


def check_cluster(client: Client) -> Iterator[Finding]:
    """Check workers, their memory and scratch, and the versions of packages."""
    info = client.scheduler_info(n_workers=-1)
    workers: dict[str, Any] = info["workers"]
    text = f"scheduler at {info['address']}, dashboard {client.dashboard_link}"
    yield Finding("cluster", "ok", text)
    if not workers:
        advice = f"start one: dask worker {info['address']}"
        yield Finding("cluster", "broken", "no workers: a job waits for the first one", advice)
        return
    threads = sum(worker["nthreads"] for worker in workers.values())
    least = human_bytes(min(worker["memory_limit"] for worker in workers.values()))
    text = f"{len(workers)} workers, {threads} threads, {least} of memory for the smallest"
    yield Finding("cluster", "ok", text)
    for address, worker in workers.items():
        used, limit = worker["metrics"].get("memory", 0), worker["memory_limit"]
        if limit and used > BUSY * limit:
            text = f"worker {address} uses {human_bytes(used)} of {human_bytes(limit)}"
            advice = "restart it, or give it more with --memory-limit"
            yield Finding("cluster", "note", f"{text} before any job", advice)
    for address, found in client.run(scratch_of, on_error="return").items():
        # A worker of another version may not know the function: its version is reported.
        if not isinstance(found, Exception) and found[1] < LOW_DISK:
            folder, free = found
            text = f"worker {address} has {human_bytes(free)} free for its scratch ({folder})"
            advice = "free some there, or start it with another --local-directory"
            yield Finding("cluster", "broken", text, advice)
    yield from compare_versions(client.get_versions(check=False, packages=list(COMPARED)))


def scratch_of(dask_worker: Any) -> tuple[str, int]:
    """Return a worker's folder for temporary files, and the free bytes there."""
    folder = str(dask_worker.local_directory)
    return folder, shutil.disk_usage(folder).free


def compare_versions(versions: Mapping[str, Any]) -> Iterator[Finding]:
    """Name every package whose version, as ``Client.get_versions`` returns it, is not the same."""
    places = {
        "here": versions["client"],
        "scheduler": versions["scheduler"],
        **{f"worker {address}": found for address, found in versions["workers"].items()},
    }
    by_package: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for place, found in places.items():
        for package, version in found["packages"].items():
            by_package[package][str(version)].append(place)
    differ = [
        package
        for package, by_version in sorted(by_package.items())
        if len(by_version) > 1 or (package == "largek_dask" and "None" in by_version)
    ]
    for package in differ:
        where = "; ".join(
            f"{'missing' if version == 'None' else version} at {', '.join(at)}"
            for version, at in sorted(by_package[package].items())
        )
        level: Level = "broken" if package in MUST_AGREE else "note"
        advice = f"install one version of {package} everywhere and restart those processes"
        yield Finding("versions", level, f"{package} is not the same everywhere: {where}", advice)
    if not differ:
        yield Finding("versions", "ok", "the same here, on the scheduler and on every worker")


# --- a data set -----------------------------------------------------------------------------------


def check_data(url: str, storage_options: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Check a data set by its metadata and its first chunk."""
    from largek_dask.data.sources import open_rows
    from largek_dask.errors import LargekError, warnings_heard_by
    from largek_dask.kernels.exact.statistics import compute_dtype

    heard: list[str] = []
    try:
        with warnings_heard_by(lambda message, _: heard.append(message)):
            rows = open_rows(url, storage_options=storage_options)
    except (LargekError, OSError) as error:
        advice = "check the address, the driver and the access rights"
        yield Finding("data", "broken", str(error), advice)
        return
    n, d = rows.shape
    text = f"{n:,} rows × {d:,} features, {rows.dtype}, {human_bytes(rows.nbytes)}"
    yield Finding("data", "ok", text)
    for message in heard:
        yield Finding("data", "note", message, "restore them, unless they held nothing else")
    yield from _storage(url, rows)
    yield from _first_chunk(rows)
    known = rows.stored_statistics()
    if known is not None and known.get("n_bad"):
        text = f"{known['n_bad']:,} rows hold NaN or infinity, the first is {known['first_bad']}"
        yield Finding("data", "broken", text, DROP)
    compute = compute_dtype(rows.dtype)
    if compute.itemsize == 8:
        text = f"{rows.dtype} is computed in {compute}: half the speed of float32"
        advice = "if float32 is precise enough, store that: largek ingest --dtype float32"
        yield Finding("data", "note", text, advice)


def _storage(url: str, rows: Rows) -> Iterator[Finding]:
    from zarr.codecs import Crc32cCodec

    from largek_dask import config
    from largek_dask.data.stores import open_node
    from largek_dask.data.zarr_rows import ZarrRows

    if not isinstance(rows, ZarrRows) or rows.location is None:
        yield Finding("data", "ok", f"read in {count_of(rows.n_chunks, 'chunk')}")
        return
    array = open_node(rows.location, rows.component, rows.storage_options)
    advice = f"rewrite it once: largek ingest {url} better.zarr (chunks of 65,536 rows, floats raw)"
    chunk_rows, chunk_columns = array.chunks
    chunk = chunk_rows * chunk_columns * array.dtype.itemsize
    text = f"stored in chunks of {chunk_rows:,} × {chunk_columns:,} ({human_bytes(chunk)})"
    if array.shards is not None:
        text += f" inside shards of {array.shards[0]:,} rows"
    is_small = chunk < SMALL_CHUNK and chunk_rows < int(config.get("data.ingest-chunk-rows"))
    is_small = is_small and rows.nbytes > 16 * SMALL_CHUNK and array.shards is None
    yield _check(
        "data",
        text,
        (is_small, "note", f"too small, each one costs a request: {advice}"),
        (chunk > LARGE_CHUNK, "note", f"too large, several are in memory at once: {advice}"),
    )
    if chunk_columns < rows.n_features:
        text = "chunks are split along the columns: a row needs several"
        yield Finding("data", "note", text, advice)
    # A checksum, as ingest writes, counts as a compressor with Zarr.
    packing = [codec for codec in array.compressors if not isinstance(codec, Crc32cCodec)]
    if packing and array.dtype.kind == "f":
        names = ", ".join(type(codec).__name__ for codec in packing)
        text = f"floats compressed with {names}: they hardly shrink and read at half the rate"
        yield Finding("data", "note", text, advice)


def _first_chunk(rows: Rows) -> Iterator[Finding]:
    from time import perf_counter

    import numpy as np

    from largek_dask.errors import LargekError
    from largek_dask.kernels.rows import finite_rows
    from largek_dask.passes.chunks import name_bad_columns

    begun = perf_counter()
    try:
        x = rows.read(0)
    except (LargekError, OSError) as error:
        yield Finding("data", "broken", str(error), "restore the store from its source")
        return
    rate = human_bytes(x.nbytes / max(perf_counter() - begun, 1e-9))
    text = f"the first chunk of {len(x):,} rows can be read, at {rate} per second"
    yield Finding("data", "ok", text)
    bad = np.flatnonzero(~finite_rows(x))
    if len(bad):
        columns = name_bad_columns(rows, x[bad[0] : bad[0] + 1])
        more = f"{len(bad):,} such rows in the first chunk"
        text = f"row {bad[0]} holds NaN or infinity ({columns}; {more})"
        yield Finding("data", "broken", text, DROP)
