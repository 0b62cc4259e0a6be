"""What ``largek doctor --scheduler ADDR`` looks at on a Dask cluster."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from largek_dask.cli.check_machine import LOW_DISK
from largek_dask.cli.findings import Finding, broken, note, ok
from largek_dask.driver.words import human_bytes

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["check_cluster", "compare_versions"]

MUST_AGREE = ("largek_dask", "numba", "distributed", "dask")
"""Where these differ, results or the protocol may; a difference elsewhere is only told."""


def check_cluster(client: Client) -> Iterator[Finding]:
    """Findings about scheduler and workers."""
    info = client.scheduler_info(n_workers=-1)
    workers: dict[str, Any] = info["workers"]
    yield ok("cluster", f"scheduler at {info['address']}, dashboard {client.dashboard_link}")
    if not workers:
        yield broken(
            "cluster",
            "it has no workers: a job would wait for the first one",
            f"start one: dask worker {info['address']}",
        )
        return
    threads = sum(worker["nthreads"] for worker in workers.values())
    limits = [worker["memory_limit"] for worker in workers.values()]
    yield ok(
        "cluster",
        f"{len(workers)} workers, {threads} threads, "
        f"{human_bytes(min(limits))} of memory for the smallest",
    )
    for address, worker in workers.items():
        used, limit = worker["metrics"].get("memory", 0), worker["memory_limit"]
        if limit and used > 0.7 * limit:
            yield note(
                "cluster",
                f"worker {address} uses {human_bytes(used)} of {human_bytes(limit)} before any job",
                "restart it, or give it more with --memory-limit",
            )
    yield from _scratch(client)
    packages = ["largek_dask", "numpy", "numba", "zarr"]
    yield from compare_versions(client.get_versions(check=False, packages=packages))


def _scratch(client: Client) -> Iterator[Finding]:
    """Workers whose disk for temporary files is full, as far as they answer that."""
    for address, found in client.run(scratch_of, on_error="return").items():
        # One of another version may not know what that is: it is named for its version.
        if not isinstance(found, Exception) and found[1] < LOW_DISK:
            folder, free = found
            yield broken(
                "cluster",
                f"worker {address} has {human_bytes(free)} free for its scratch ({folder})",
                "free some there, or start it with another --local-directory",
            )


def scratch_of(dask_worker: Any) -> tuple[str, int]:
    """Where a worker keeps its temporary files, and how many bytes are free there."""
    folder = str(dask_worker.local_directory)
    return folder, shutil.disk_usage(folder).free


def compare_versions(versions: dict[str, Any]) -> Iterator[Finding]:
    """Name every package whose version is not the same everywhere.

    Parameters
    ----------
    versions : dict
        As ``distributed.Client.get_versions`` returns it.
    """
    places = {
        "here": versions["client"],
        "scheduler": versions["scheduler"],
        **{f"worker {address}": found for address, found in versions["workers"].items()},
    }
    by_package: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for place, found in places.items():
        for package, version in found["packages"].items():
            by_package[package][str(version)].append(place)
    same = True
    for package, by_version in sorted(by_package.items()):
        if len(by_version) == 1 and not (package == "largek_dask" and "None" in by_version):
            continue
        same = False
        told = "; ".join(
            f"{'missing' if version == 'None' else version} at {', '.join(where)}"
            for version, where in sorted(by_version.items())
        )
        if package in MUST_AGREE:
            yield broken(
                "versions",
                f"{package} is not the same everywhere: {told}",
                f"install one version of {package} everywhere and restart those processes",
            )
        else:
            yield note(
                "versions",
                f"{package} is not the same everywhere: {told}",
                "install the same version everywhere to keep results reproducible",
            )
    if same:
        yield ok("versions", "the same here, on the scheduler and on every worker")
