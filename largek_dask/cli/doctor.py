"""``largek doctor``: check versions, threads, memory, a cluster and a data set."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click
from dask.utils import format_bytes

from largek_dask.cli.common import (
    FAILED,
    command,
    connected,
    emit,
    one_line,
    option_scheduler,
    option_storage,
    table,
)

if TYPE_CHECKING:
    from distributed import Client

PACKAGES = ("numpy", "numba", "llvmlite", "dask", "distributed", "zarr", "fsspec", "scikit-learn")
COMPARED = ("largek_dask", "numpy", "numba", "zarr")
"""Packages compared between client, scheduler and workers, in addition to Dask's own list."""
MUST_AGREE = ("largek_dask", "numba", "distributed", "dask")
"""Packages whose versions affect results or the protocol; differences in other packages cause only
a note."""
LOW_MEMORY, LOW_DISK = 1 << 30, 256 << 20
"""Thresholds for free memory and disk space in bytes; not tuned."""
Level = Literal["ok", "note", "broken"]
"""``broken``: something does not work; ``note``: something costs time or memory."""


class Finding(NamedTuple):
    area: str
    level: Level
    text: str
    advice: str = ""


@command("largek doctor --scheduler tcp://127.0.0.1:8786 --data s3://bucket/x.zarr")
@option_scheduler
@click.option("--data", metavar="URL", help="Also check this data set.")
@option_storage
def doctor(scheduler: str | None, data: str | None, storage_options: dict[str, Any] | None) -> None:
    """Find problems of this machine, a cluster or a data set.

    The command checks versions, threads, memory and disks. The exit code is 1 if a check fails.
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
        found.append(check_data(data, storage_options))
    is_healthy = all(finding.level != "broken" for finding in found)
    payload = {"healthy": is_healthy, "findings": [finding._asdict() for finding in found]}
    emit(payload, lambda: _table(found))
    if not is_healthy:
        raise click.exceptions.Exit(FAILED)


def _table(findings: list[Finding]) -> Any:
    rows = [(one.area, one.level, one.text, one.advice) for one in findings]
    return table(("area", "level", "finding", "what to do"), rows)


# --- this machine ---------------------------------------------------------------------------------


def _versions() -> Iterator[Finding]:
    from importlib import metadata

    from largek_dask.version import __version__

    found = [f"largek_dask {__version__}", f"Python {platform.python_version()}"]
    found += [f"{name} {metadata.version(name)}" for name in PACKAGES]
    yield Finding("versions", "ok", ", ".join(found))


def _threads() -> Iterator[Finding]:
    from llvmlite import binding

    from largek_dask.kernels.code_cache import cache_folder, unsaved
    from largek_dask.kernels.jit import saves_code
    from largek_dask.kernels.tile import select_tile
    from largek_dask.passes.local import available_cpus

    tile = select_tile()
    text = (
        f"{available_cpus()} of {os.cpu_count()} cores of {binding.get_host_cpu_name()} "
        f"({platform.machine()}), kernels for vectors of {tile.lanes} numbers ({tile.name})"
    )
    yield Finding("threads", "note" if tile.name == "plain" else "ok", text)
    folder = existing = cache_folder()
    while not existing.exists():
        existing = existing.parent
    if not saves_code():
        text = f"compiled kernels are not saved, so every process compiles them: {unsaved()}"
        yield Finding("threads", "note", text, "install a supported version of numba")
    elif not os.access(existing, os.W_OK):
        text = f"compiled kernels cannot be saved in {folder}, so every process compiles them"
        advice = "make it writable, or set DASK_LARGEK__KERNELS__CACHE_DIR to a writable folder"
        yield Finding("threads", "note", text, advice)


def _memory() -> Iterator[Finding]:
    import psutil
    from distributed.system import MEMORY_LIMIT

    available = min(psutil.virtual_memory().available, MEMORY_LIMIT)
    text = f"{format_bytes(available)} available of {format_bytes(MEMORY_LIMIT)}"
    yield Finding("memory", "note" if available < LOW_MEMORY else "ok", text)
    for name, folder in (("this folder", os.getcwd()), ("temporary files", tempfile.gettempdir())):
        free = shutil.disk_usage(folder).free
        text = f"{format_bytes(free)} free on disk for {name} ({folder})"
        level: Level = "broken" if free < LOW_DISK else "ok"
        yield Finding(
            "memory", level, text, "free disk space, or use another folder" * (level != "ok")
        )


def check_cluster(client: Client) -> Iterator[Finding]:
    info = client.scheduler_info(n_workers=-1)
    workers: dict[str, Any] = info["workers"]
    text = f"scheduler at {info['address']}, dashboard {client.dashboard_link}"
    yield Finding("cluster", "ok", text)
    if not workers:
        advice = f"start one: dask worker {info['address']}"
        yield Finding("cluster", "broken", "no workers: jobs wait until one starts", advice)
        return
    threads = sum(worker["nthreads"] for worker in workers.values())
    least = format_bytes(min(worker["memory_limit"] for worker in workers.values()))
    text = f"{len(workers)} workers with {threads} threads; the smallest has {least} of memory"
    yield Finding("cluster", "ok", text)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        client.get_versions(check=True, packages=list(COMPARED))
    for one in caught:
        text = str(one.message)
        level: Level = "broken" if any(f"| {name} " in text for name in MUST_AGREE) else "note"
        yield Finding("versions", level, text, "install the same versions everywhere")
    if not caught:
        yield Finding(
            "versions", "ok", "the same versions here, on the scheduler and on all workers"
        )


def check_data(url: str, storage_options: Mapping[str, Any] | None) -> Finding:
    from largek_dask.data.sources import open_rows
    from largek_dask.errors import LargekError
    from largek_dask.kernels.rows import finite_rows

    try:
        rows = open_rows(url, storage_options=storage_options)
        n_bad = int((~finite_rows(rows.read(0))).sum())
    except (LargekError, OSError) as error:
        return Finding("data", "broken", one_line(error), "check the address and the access rights")
    n, d = rows.shape
    text = f"{n:,} rows × {d:,} features, {rows.dtype}, {format_bytes(rows.nbytes)}"
    if n_bad:
        text += f"; {n_bad:,} rows of the first chunk have NaN or infinity"
        return Finding("data", "broken", text, "remove them, or fit with --on-bad-rows skip")
    return Finding("data", "ok", text)
