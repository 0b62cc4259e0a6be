"""A mixture of 10,000 components of more rows than fit into the workers' memory, as a job.

    python -m benchmarks.vcgmm_scale [--rows 20_000_000] [--store rows.zarr] [--write]

Rows of 32 features of 16,000 overlapping Gaussians in a Zarr store; a mixture of kind "diag" with
10,000 components, learnt from a coreset of 2^18 rows by a job of the service, on two workers of one
thread in processes of their own; labels of all rows are written to Zarr by the job, their densities
by the model. Then the same job once more, with `kill -9` of a worker as labels begin.

Wall seconds, and CPU seconds of all processes, by phase. The raw rate is that at which the same two
workers read the same store and do nothing with it; for the passes of a coreset they keep no chunk
in memory then. Both in turns, the best of three. The store is in the memory of the machine, as far
as that has room.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil

import largek_dask as lk
from benchmarks.common import cpu_description, save
from benchmarks.service import cluster
from benchmarks.tables import write_tables
from largek_dask.data import synthetic

N_ROWS, N_FEATURES, N_PLANTED = 20_000_000, 32, 16_000
N_COMPONENTS, CORESET = 10_000, 1 << 18
MOST_GB, LEAST_SHARE = 1.5, 0.7
"""Most memory of a process, and least share of the raw rate at which a coreset is read."""
TURNS = 3
PHASES = {
    "coreset": "draw the coreset, and a first step of the search",
    "search": "first means, by the search",
    "iterations": "iterations of EM",
    "labels": "labels of all rows, and the exact log-likelihood",
    "densities": "densities of all rows",
}


class Watch:
    """Wall and CPU seconds of phases, of this process and all that it has begun."""

    def __init__(self) -> None:
        self.phases: dict[str, tuple[float, float]] = {}
        self._gone: dict[int, float] = {}
        self._since = self._now()

    def _now(self) -> tuple[float, float]:
        for process in processes().values():
            used = process.cpu_times()
            self._gone[process.pid] = used.user + used.system
        return time.perf_counter(), sum(self._gone.values())

    def ends(self, phase: str) -> None:
        """What was done since the last one was this."""
        now = self._now()
        before = self.phases.get(phase, (0.0, 0.0))
        spent = [after - since for after, since in zip(now, self._since, strict=True)]
        self.phases[phase] = (before[0] + spent[0], before[1] + spent[1])
        self._since = now


def processes() -> dict[str, psutil.Process]:
    """The scheduler, the nannies and the workers that this process has begun, and itself."""
    found = {"client": psutil.Process()}
    for process in found["client"].children(recursive=True):
        line = " ".join(process.cmdline())
        kind = "scheduler" if "dask scheduler" in line else "nanny"
        if "spawn_main" in line:
            kind = "worker"
        elif "dask" not in line:
            continue
        found[f"{kind} {process.pid}"] = process
    return found


def peaks() -> dict[str, float]:
    """The most memory that each process has had, in GB."""
    found = {}
    for name, process in processes().items():
        status = Path(f"/proc/{process.pid}/status").read_text()
        kilobytes = next(line.split()[1] for line in status.splitlines() if "VmHWM" in line)
        found[name] = int(kilobytes) / 1e6
    return found


def read_part(store: str, part: int, n_parts: int) -> int:
    """Read some of the chunks of a store; how many bytes."""
    rows = lk.open_rows(store)
    return sum(rows.read(i).nbytes for i in range(part, rows.n_chunks, n_parts))


def reading(address: str, store: str) -> dict[str, float]:
    """Bytes a second: read for nothing, and by the two passes that draw a coreset."""
    from distributed import Client

    from largek_dask.algorithms.base import Rng
    from largek_dask.algorithms.parts.coresets import draw_coreset
    from largek_dask.driver.fit import open_passes

    raw, drawn = [], []
    with (
        Client(address, set_as_default=False) as client,
        dask.config.set({"largek.passes.cache-bytes": 0}),
    ):
        workers = sorted(client.scheduler_info()["workers"])
        for _ in range(TURNS):
            began = time.perf_counter()
            parts = [
                client.submit(read_part, store, i, len(workers), workers=[name], pure=False)
                for i, name in enumerate(workers)
            ]
            raw.append(sum(client.gather(parts)) / (time.perf_counter() - began))
            with open_passes(lk.open_rows(store), client=client) as passes:
                draw_coreset(passes, Rng(1), CORESET)
                spent = passes.total
            assert spent.bytes_read == 2 * lk.open_rows(store).nbytes
            drawn.append(spent.bytes_read / spent.seconds)
    return {"raw": max(raw), "coreset": max(drawn)}


def job(address: str, store: str, folder: Path, *, kill: bool = False) -> dict[str, Any]:
    """A whole job; with or without the death of a worker."""
    watch, killed = Watch(), 0
    with lk.connect(address) as service:
        began = time.perf_counter()
        submitted = service.submit(
            store,
            algorithm=lk.VCGMM(covariance="diag", coreset=CORESET),
            mixture="diag",
            n_clusters=N_COMPONENTS,
            output=str(folder),
        )
        n_iter, f = 0, 0.0
        for event in submitted.events():
            if event["event"] == "step":
                n_iter, f = int(event["extra"]["iteration"]), event["cost"]
                watch.ends(
                    "coreset" if event["step"] == 1 else "iterations" if n_iter else "search"
                )
            if kill and event["event"] == "stopped":
                killed = victim(address)
                os.kill(killed, signal.SIGKILL)
        model = submitted.result()
        watch.ends("labels")
        seconds = time.perf_counter() - began
    labels = read(folder / "labels.zarr")
    return {
        "seconds": seconds,
        "phases": watch.phases,
        "n_iter": n_iter,
        "bound": f,
        "digest": model.digest(),
        "labels": hashlib.sha256(labels.tobytes()).hexdigest(),
        "value": model.provenance["log_likelihood"],
        "killed": bool(killed),
        "peaks": peaks(),
    }


def read(array: Path) -> Any:
    """A stored array."""
    import zarr

    return zarr.open_array(str(array), mode="r")[:]


def victim(address: str) -> int:
    """The process of a worker."""
    from distributed import Client

    with Client(address, set_as_default=False) as client:
        return int(min(client.run(os.getpid).values()))


def densities(address: str, store: str, folder: Path) -> dict[str, Any]:
    """Densities of all rows, by the model of a job."""
    from distributed import Client

    watch, out = Watch(), str(folder / "densities.zarr")
    with Client(address, set_as_default=False) as client:
        lk.load_model(str(folder / "model.zarr")).score_samples(store, out=out, client=client)
    watch.ends("densities")
    found = read(Path(out))
    return {"phases": watch.phases, "peaks": peaks(), "sum": float(found.sum()), "n": len(found)}


def measure(folder: Path, store: str, result: dict[str, Any]) -> None:
    """All figures, each into the result as soon as it is known."""
    with cluster(folder, 2) as address:
        result["reading"] = reading(address, store)
        print(result["reading"], flush=True)
    with cluster(folder, 2) as address:
        result["job"] = job(address, store, folder / "job")
        print(result["job"], flush=True)
        result["densities"] = densities(address, store, folder / "job")
        print(result["densities"], flush=True)
    assert np.isclose(result["densities"]["sum"], result["job"]["value"], rtol=1e-9)
    with cluster(folder, 2) as address:
        result["killed"] = job(address, store, folder / "killed", kill=True)
        print(result["killed"], flush=True)
    for name in ("digest", "labels", "value"):
        assert result["killed"][name] == result["job"][name], "a worker that died has changed it"


def shown(text: str, reached: bool) -> str:
    """A cell; what misses its aim is bold."""
    return text if reached else f"**{text}**"


def table(result: dict[str, Any]) -> str:
    """The markdown table of a result."""
    whole = {**result["job"]["phases"], **result["densities"]["phases"]}
    wall, used = (sum(spent[i] for spent in whole.values()) for i in (0, 1))
    lines = ["| phase | wall, s | share | CPU, s |", "|---|---|---|---|"]
    for name, words in PHASES.items():
        seconds, cpu = whole[name]
        lines.append(f"| {words} | {seconds:.0f} | {seconds / wall:.0%} | {cpu:.0f} |")
    lines.append(f"| together | {wall:.0f} | | {used:.0f} |")
    most: dict[str, float] = {}
    for part in ("job", "densities", "killed"):
        for name, peak in result[part]["peaks"].items():
            kind = name.split()[0]
            most[kind] = max(most.get(kind, 0.0), peak)
    rates = result["reading"]
    share = rates["coreset"] / rates["raw"]
    told = ", ".join(f"{kind} {peak:.2f}" for kind, peak in most.items())
    again = result["killed"]["seconds"]
    return "\n".join(
        [
            *lines,
            "",
            "| what | measured | aim |",
            "|---|---|---|",
            f"| most memory of a process, GB | {shown(told, max(most.values()) <= MOST_GB)} "
            f"| ≤ {MOST_GB} |",
            f"| reading in the passes of the coreset, of {rates['raw'] / 1e9:.1f} GB/s raw | "
            f"{shown(f'{share:.2f}', share >= LEAST_SHARE)} | ≥ {LEAST_SHARE} |",
            f"| job with `kill -9` of a worker, s | {again:.0f}, same model and labels | |",
            "",
            f"{result['rows']:,} × {N_FEATURES}, {N_COMPONENTS:,} components, coreset of "
            f"{CORESET:,}: {result['job']['n_iter']} iterations, log-likelihood "
            f"{result['job']['value'] / result['rows']:.4f} a row. {result['load']}"
            f"{result['cpu']}. Made by `python -m benchmarks.vcgmm_scale --write`.",
        ]
    )


def main() -> None:
    """Measure, save, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=N_ROWS)
    parser.add_argument("--store", help="of such rows, where they have been made before")
    parser.add_argument("--write", action="store_true", help="save results, write the table")
    args = parser.parse_args()
    others = psutil.cpu_percent(5.0) * psutil.cpu_count() / 100
    load = f"Other processes took {others:.1f} cores as it began. " if others > 0.2 else ""
    result: dict[str, Any] = {"cpu": cpu_description(), "rows": args.rows, "load": load}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = args.store or str(folder / "rows.zarr")
        if args.store is None:
            synthetic.write("mixture", store, args.rows, N_FEATURES, n_components=N_PLANTED, seed=1)
        assert lk.open_rows(store).shape == (args.rows, N_FEATURES)
        measure(folder, store, result)
    print(table(result))
    if args.write:
        save("vcgmm_scale", result)
        write_tables("vcgmm_scale", result)


if __name__ == "__main__":
    main()
