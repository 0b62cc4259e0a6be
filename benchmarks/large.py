"""A large fit through the service: seconds beside dense passes, memory, energy, and what dies.

    python -m benchmarks.large [--rows 80e6] [--clusters 32e3] [--scale 0.1] [--strike]
                               [--papers [NAME ...] [--together]] [--folder DIR] [--write]

Rows of 32 features of overlapping Gaussians, half as many again as there are clusters, in a Zarr
store, which is written once and found again in the folder; a scheduler with a store and two workers
of one thread and 4 GB, processes as `dask scheduler` and `dask worker` start them. ``--scale``
multiplies rows and clusters, so that rows a cluster are as many at every size.

One dense pass of our own kernel over all rows and centres is extrapolated from 1 % of the rows, on
both workers at once, before and after the fit. `algorithm="auto"` then has three times as long, for
everything: labels of all rows are written, and those of that 1 % compared with the dense ones. A
long run, of ``--long`` dense passes, tells what can be come to. Energies are over 100,000 rows that
are not in the store, of the centres in checkpoints.

``--strike`` does the fit once more, with `kill -9` of a worker in a pass over all rows and of the
scheduler some steps later, and compares digests. ``--papers`` gives the algorithms of the four
papers ``--minutes`` each, 10 unless said otherwise, on the same rows; ``--together`` all at once,
on a machine with at least twelve cores, each with a scheduler and workers of its own. Each is saved
as soon as it is there; with names only these are measured, beside what is there of the others.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import zarr

import largek_dask as lk
from benchmarks import large_runs as runs
from benchmarks.common import RESULTS, cpu_description, save
from benchmarks.large_pictures import draw
from benchmarks.tables import write_tables
from tests.faults.rig import Rig

PASSES = 3.0
"""Dense passes in whose time a fit is to be done, exact labels included."""
NEAR = 0.01
"""Share above the end of the long run that it may end at."""
MOST_GB = {"worker": 4.0, "scheduler": 2.0}
PICTURE = RESULTS / "large.png"
PATH_CLUSTERS = 25
"""Clusters of the last partition that DCDBundle finds."""
PAPERS = ("NMBatch", "VRKM", "Mixture", "DCDBundle")
OF_PAPERS = ("papers", "papers_command", "papers_of", "minutes", "coreset")
"""What of a result is of the four papers, and may be of another size and machine than the fit."""
PHASES = {
    "start": "until the first step",
    "again": "a scheduler that goes on",
    "samples": "search among rows that the driver holds",
    "rows": "passes over all rows",
    "thrown away": "a step cut by the limit",
    "last pass": "labels of all rows, sums, the model",
}


@dataclass(frozen=True)
class Size:
    """What is run."""

    rows: int
    clusters: int
    scale: float = 1.0
    long: float = 12.0
    """Dense passes that the long run has the time of."""
    least: float = 20.0
    """Seconds that a fit has at least."""
    minutes: float = 10.0
    """What each paper's algorithm has."""
    chunk_rows: int | None = None
    max_iter: int | None = None
    """Steps of a fit at most; None: as many as its time allows."""
    warm: bool = True
    """Whether a small job is done before, so that code is compiled and loaded."""

    @property
    def components(self) -> int:
        """Gaussians that the rows are of."""
        return self.clusters + self.clusters // 2

    @property
    def coreset(self) -> int:
        """Rows that a mixture learns from."""
        return min(self.rows, max(4 * self.clusters, round((1 << 20) * self.scale)))

    @property
    def steps(self) -> dict[str, int]:
        """The limit of steps, as an option of a job."""
        return {} if self.max_iter is None else {"max_iter": self.max_iter}


def submit_auto(service: lk.Service, store: str, **options: Any) -> lk.Job:
    """A small job of the default."""
    return service.submit(store, n_clusters=200, max_iter=60, **options)


def submit_small(
    algorithm: Any, more: dict[str, Any], service: lk.Service, store: str, **options: Any
) -> lk.Job:
    """A small job of a paper's algorithm."""
    return service.submit(store, algorithm=algorithm, n_clusters=20, max_iter=20, **more, **options)


def planned(store: str, algorithm: Any, k: int, mixture: str | None = None) -> dict[str, float]:
    """What `fit --plan` says of workers and the driver: bytes, and seconds of a pass."""
    from largek_dask.cli.plan import Machines, make_plan
    from largek_dask.driver.options import FitOptions

    options = FitOptions(n_clusters=k, algorithm=algorithm, mixture=mixture)
    machines = Machines(runs.N_WORKERS, runs.N_WORKERS, runs.LIMIT, False)
    plan = make_plan(lk.open_rows(store), options, machines)
    return {
        "worker": plan["memory"], "scheduler": plan["memory_held"] + plan["memory_state"],
        "seconds_pass": plan["seconds_compute"], "seconds": plan["seconds_most"],
    }  # fmt: skip


def measure_fit(
    size: Size, store: str, folder: Path, rig: Rig, service: lk.Service
) -> dict[str, Any]:
    """A dense pass, the fit in the time of three, and the long run."""
    held = runs.held_rows(size.rows, size.components)
    result: dict[str, Any] = {"plan": planned(store, "auto", size.clusters), "base": base_of(rig)}
    first = np.ascontiguousarray(zarr.open_array(store, mode="r")[: size.clusters])
    before, _ = runs.measure_dense(service, store, size.rows, first, first.mean(axis=0))
    limit = max(size.least, PASSES * before["seconds"])
    print(f"one dense pass: {before['seconds']:.1f} s; the fit has {limit:.0f} s", flush=True)
    for name, seconds in (("fit", limit), ("long", size.long / PASSES * limit)):
        with runs.Watch(rig) as watch:
            result[name] = runs.follow(
                rig, service, watch, store, folder / name, held,
                algorithm="auto", n_clusters=size.clusters, max_time=seconds, **size.steps,
            )  # fmt: skip
        print(f"{name}: {told(result[name])}", flush=True)
        if name == "fit":
            found = lk.load_model(str(folder / name / "model.zarr")).arrays
            after, labels = runs.measure_dense(
                service, store, size.rows, found.centers, found.shift
            )
            result["same_labels"] = same_labels(folder / name, labels)
    return result | {"dense": {"before": before, "after": after}, "limit": limit}


def base_of(rig: Rig) -> dict[str, int]:
    """Bytes that processes hold before a job; what they held before is no peak of it."""
    return {
        name: psutil.Process(pid).memory_info().rss for name, pid in runs.processes(rig).items()
    }


def same_labels(output: Path, labels: dict[int, Any]) -> bool:
    """Whether the labels that were written are those of a dense pass, where there was one."""
    written = zarr.open_array(str(output / "labels.zarr"), mode="r")
    return all(
        np.array_equal(written[start : start + len(some)], some) for start, some in labels.items()
    )


def measure_strikes(
    size: Size, store: str, folder: Path, rig: Rig, service: lk.Service, fit: dict[str, Any]
) -> dict[str, Any]:
    """The fit once more, with as many steps, while a worker and the scheduler are killed."""
    strikes = runs.Struck(rig, fit["n_iter"], fit["first_whole"])
    with runs.Watch(rig) as watch:
        found = runs.follow(
            rig, service, watch, store, folder / "struck", None, strikes,
            algorithm="auto", n_clusters=size.clusters, max_iter=fit["n_iter"],
        )  # fmt: skip
    found["kills"] = strikes.kills
    found["same"] = found["digest"] == fit["digest"]
    labels = [zarr.open_array(str(folder / name / "labels.zarr"), mode="r")
              for name in ("fit", "struck")]  # fmt: skip
    step = labels[0].chunks[0]
    found["same_labels"] = all(
        np.array_equal(labels[0][i : i + step], labels[1][i : i + step])
        for i in range(0, size.rows, step)
    )
    print(f"struck: {told(found)}", flush=True)
    return found


def paper(name: str, size: Size) -> tuple[Any, int, dict[str, Any]]:
    """The algorithm of a paper, its number of clusters, and what is asked besides."""
    match name:
        case "NMBatch":
            return lk.NMBatch(), size.clusters, {}
        case "VRKM":
            return lk.VRKM(), size.clusters, {}
        case "Mixture":
            return lk.VCGMM(coreset=size.coreset), size.clusters, {"mixture": "iso"}
        case _:
            return lk.DCDBundle(), PATH_CLUSTERS, {}


def measure_papers(
    names: Sequence[str], size: Size, store: str, folder: Path, **settings: Any
) -> dict[str, Any]:
    """The algorithms of some papers, all at once, each in a limit and in processes of its own."""
    held = runs.held_rows(size.rows, size.components)
    if size.warm:
        runs.stored(folder, *runs.WARM)  # before several want to write it
    one = partial(measure_paper, size=size, store=store, folder=folder, held=held, **settings)
    with ThreadPoolExecutor(len(names)) as pool:
        return dict(zip(names, pool.map(one, names), strict=True))


def measure_paper(
    name: str, size: Size, store: str, folder: Path, held: Any, **settings: Any
) -> dict[str, Any]:
    """What a paper's algorithm comes to."""
    algorithm, k, more = paper(name, size)
    record: dict[str, Any] = {"k": k, "plan": planned(store, algorithm, k, **more)}
    with runs.deployment(folder / f"rig-{name}", **settings) as rig, rig.connected() as service:
        if size.warm:
            runs.warm_up(service, folder, partial(submit_small, algorithm, more))
        record["base"] = base_of(rig)
        with runs.Watch(rig) as watch:
            record |= runs.follow(
                rig, service, watch, store, folder / name, held, algorithm=algorithm,
                n_clusters=k, max_time=60 * size.minutes, **more,
            )  # fmt: skip
    print(f"{name}: {told(record)}", flush=True)
    shutil.rmtree(folder / name)
    return record


def told(record: dict[str, Any]) -> str:
    """A run in a line."""
    peaks = ", ".join(f"{name} {peak / 1e9:.2f} GB" for name, peak in record["peaks"].items())
    phases = ", ".join(f"{one['name']} {one['seconds']:.1f} s" for one in record["phases"])
    return (
        f"{record['seconds']:.1f} s ({phases}), {record['n_iter']} steps, {record['reason']}; "
        f"{peaks}; {record['digest'][:12]}"
    )


def dense_of(result: dict[str, Any], what: str) -> float:
    """Seconds of a dense pass, in the mean of before and after."""
    return float(np.mean([one[what] for one in result["dense"].values()]))


def cpu_of(record: dict[str, Any]) -> float:
    """CPU seconds of all processes in a run."""
    return float(sum(sum(phase["cpu"].values()) for phase in record["phases"]))


def reached(result: dict[str, Any]) -> tuple[float, float]:
    """Wall and CPU seconds until the long run was within the share of its end, and a last pass.

    The last pass is that of the fit.
    """
    curve, last = result["long"]["curve"], result["fit"]["phases"][-1]
    level = (1 + NEAR) * result["long"]["energy"]
    wall, _, cpu = next((point for point in curve if point[1] <= level), curve[-1])
    return wall + last["seconds"], cpu + sum(last["cpu"].values())


def peak_of(records: list[dict[str, Any]], kind: str) -> float:
    """GB that a process of a kind has held at most."""
    return max(
        peak / 1e9
        for record in records
        for name, peak in record["peaks"].items()
        if name.startswith(kind)
    )


def table(result: dict[str, Any]) -> str:
    """The markdown tables of a result."""
    if "fit" not in result:
        return "Not measured yet: `python -m benchmarks.large --write`."
    fit, long, size = result["fit"], result["long"], result["size"]
    dense, dense_cpu = dense_of(result, "seconds"), dense_of(result, "cpu")
    above = 100 * (fit["energy"] / long["energy"] - 1)
    wall, cpu = reached(result)
    both = [fit, long]
    read = sum(phase["bytes"] for phase in fit["phases"]) / 1e9
    lines = [
        "| what | measured | aim |",
        "|---|---|---|",
        f"| one dense pass over all rows and centres, on both workers | {dense:.1f} s; "
        f"CPU {dense_cpu:.1f} s | |",
        f"| the fit, exact labels written | {fit['seconds']:.1f} s; CPU {cpu_of(fit):.1f} s | |",
        f"| the same in dense passes | {fit['seconds'] / dense:.2f}; CPU "
        f"{cpu_of(fit) / dense_cpu:.2f} | ≤ {PASSES:g} |",
        f"| its energy above that of the long run, of {long['seconds']:,.0f} s | {above:.2f} % "
        f"| ≤ {100 * NEAR:g} % |",
        f"| the long run within {100 * NEAR:g} % of its end, and a last pass, in dense passes "
        f"| {wall / dense:.2f}; CPU {cpu / dense_cpu:.2f} | ≤ {PASSES:g} |",
        f"| peak of a worker | {peak_of(both, 'worker'):.2f} GB | ≤ {MOST_GB['worker']:g} GB |",
        f"| peak of the scheduler | {peak_of(both, 'scheduler'):.2f} GB "
        f"| ≤ {MOST_GB['scheduler']:g} GB |",
        f"| read or moved by workers before the last pass | {read:.2f} GB | |",
        f"| labels of {fit['share_rows']:,} rows against dense ones "
        f"| {'the same' if result['same_labels'] else 'OTHERS'} | the same |",
        *struck_lines(result),
        "",
        *phases_table(fit),
        "",
        f"{size['rows']:,} × {runs.N_FEATURES}, k = {size['clusters']:,}, two workers of one "
        f"thread, {size['scale']:g} of the size aimed at (80,000,000 and 32,000) in both. "
        f"Load of the machine {result['load'][0]:.1f} before, {result['load'][1]:.1f} in the end "
        f"(its own part is about 2). {result['cpu']}. Made by `{result['command']}`.",
    ]
    return "\n".join(lines)


def struck_lines(result: dict[str, Any]) -> list[str]:
    """Lines of the fit that was struck, where it was."""
    struck = result.get("strike")
    if struck is None:
        return []
    same = struck["same"] and struck["same_labels"]
    return [
        f"| with kill -9 of a worker and of the scheduler: model and labels "
        f"| {'the same' if same else 'OTHERS'} | the same |",
        f"| seconds of that fit | {struck['seconds']:.1f} s | |",
    ]


def phases_table(record: dict[str, Any]) -> list[str]:
    """What was done in which time, and who computed."""
    names = sorted(record["phases"][0]["cpu"])
    lines = [
        f"| phase of the fit | s | steps | {' | '.join(f'{name}, busy' for name in names)} "
        "| read or moved |",
        "|---" * (4 + len(names)) + "|",
    ]
    return lines + [
        f"| {PHASES[phase['name']]} | {phase['seconds']:.1f} | {phase['steps']} "
        f"| {' | '.join(busy(phase, name) for name in names)} "
        f"| {phase['bytes'] / 1e9:.2f} GB |"
        for phase in record["phases"]
    ]


def busy(phase: dict[str, Any], name: str) -> str:
    """CPU seconds of a process beside the wall's."""
    return f"{100 * phase['cpu'][name] / max(phase['seconds'], 1e-9):.0f} %"


def papers_table(result: dict[str, Any]) -> str:
    """The markdown table of the four papers."""
    found = result.get("papers")
    if found is None:
        return "Not measured yet: `python -m benchmarks.large --papers --write`."
    heads = ["", "k", "s", "steps", "rows a second in steps", "workers busy", "scheduler busy",
             "peak of a worker", "planned", "peak of the scheduler", "planned",
             "energy of other rows", "ended by"]  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, record in found.items():
        phases = record["phases"]
        steps = [phase for phase in phases if phase["name"] in ("samples", "rows")]
        seconds = sum(phase["seconds"] for phase in phases)
        shares = {
            process: 100 * sum(phase["cpu"][process] for phase in phases) / seconds
            for process in phases[0]["cpu"]
        }
        workers = ", ".join(f"{shares[name]:.0f} %" for name in sorted(shares) if "worker" in name)
        base = {kind: peak_of([{"peaks": record["base"]}], kind) for kind in MOST_GB}
        plan = {kind: base[kind] + record["plan"][kind] / 1e9 for kind in MOST_GB}
        rate = record["rows"] / max(1e-9, sum(phase["seconds"] for phase in steps))
        cells = [
            name, f"{record['k']:,}", f"{record['seconds']:.0f}", str(record["n_iter"]),
            f"{rate:,.0f}", workers, f"{shares[runs.SCHEDULER]:.0f} %",
            f"{peak_of([record], 'worker'):.2f} GB", f"{plan['worker']:.2f} GB",
            f"{peak_of([record], 'scheduler'):.2f} GB", f"{plan['scheduler']:.2f} GB",
            f"{record['energy']:.3f}", record["reason"].replace("_", " "),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    at_once = " All four at once. " if result["papers_of"].get("together") else " "
    return "\n".join(
        [
            *lines,
            "",
            f"{result['papers_of']['rows']:,} × {runs.N_FEATURES}, each with "
            f"{result['minutes']:g} minutes for "
            "everything, labels included; planned is what `fit --plan` says beside what a process "
            f"held before. Mixture: iso, a coreset of {result['coreset']:,} rows. DCDBundle: all "
            f"partitions up to k.{at_once}{result['papers_of']['cpu']}. Made by "
            f"`{result['papers_command']}`.",
        ]
    )


def measure(
    size: Size, store_folder: Path, folder: Path, *, strike: bool = False,
    papers: Sequence[str] = (), **settings: Any,
) -> dict[str, Any]:  # fmt: skip
    """All that is asked for of a size: the fit and the long run, or some papers' algorithms."""
    store = runs.stored(store_folder, size.rows, size.components, size.chunk_rows)
    result: dict[str, Any] = {"cpu": cpu_description(), "size": asdict(size)}
    if papers:
        result["papers"] = measure_papers(papers, size, store, folder, **settings)
        about = {"rows": size.rows, "cpu": result["cpu"], "together": len(papers) > 1}
        return result | {"minutes": size.minutes, "coreset": size.coreset, "papers_of": about}
    load = [psutil.getloadavg()[0]]
    with runs.deployment(folder / "rig", **settings) as rig, rig.connected() as service:
        if size.warm:
            runs.warm_up(service, folder, submit_auto)
        result |= measure_fit(size, store, folder, rig, service)
        load.append(psutil.getloadavg()[0])
        if strike:
            found = measure_strikes(size, store, folder, rig, service, result["fit"])
            result["strike"] = found
    result["fit"]["share_rows"] = result["dense"]["after"]["rows"]
    return result | {"load": load}


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """A result, and of the last one what was not measured now: the fit, or papers' algorithms."""
    if "papers" not in new:
        return {name: old[name] for name in OF_PAPERS if name in old} | new
    papers = new["papers"]
    if all(old.get(name) == new[name] for name in OF_PAPERS if name != "papers"):
        papers = {**old["papers"], **papers}
    papers = {name: papers[name] for name in PAPERS if name in papers}
    rest = old if "fit" in old else new
    return rest | {name: new[name] for name in OF_PAPERS} | {"papers": papers}


def main() -> None:
    """Measure, save, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=float, default=80e6)
    parser.add_argument("--clusters", "--k", type=float, default=32e3)
    parser.add_argument("--scale", type=float, default=0.1, help="of both")
    parser.add_argument("--long", type=float, default=12.0, help="dense passes of the long run")
    parser.add_argument("--strike", action="store_true", help="once more, with kills")
    parser.add_argument(
        "--papers", nargs="*", choices=PAPERS, help="the four papers' algorithms instead, or some"
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="of each of these")
    parser.add_argument("--together", action="store_true", help="all four of these at once")
    parser.add_argument("--folder", type=Path, help="where stores of rows are kept")
    parser.add_argument("--write", action="store_true", help="save results, write the tables")
    args = parser.parse_args()
    rows, clusters = round(args.rows * args.scale), round(args.clusters * args.scale)
    size = Size(rows, clusters, args.scale, args.long, minutes=args.minutes)
    folder = args.folder or Path(tempfile.gettempdir()) / "largek-large"
    folder.mkdir(parents=True, exist_ok=True)
    if args.papers is None:
        command = f" --long {args.long:g}" * (args.long != 12) + " --strike" * args.strike
        runs_wanted: list[Sequence[str]] = [()]
    else:
        command = f" --papers --minutes {args.minutes:g}" + " --together" * args.together
        names = args.papers or PAPERS
        runs_wanted = [names] if args.together else [(name,) for name in names]
    command = f"python -m benchmarks.large --scale {args.scale:g}{command} --write"
    for papers in runs_wanted:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            result = measure(size, folder, Path(place), strike=args.strike, papers=papers)
        result["papers_command" if papers else "command"] = command
        if args.write:
            result = keep(result)
        print(papers_table(result) if papers else table(result), flush=True)


def keep(result: dict[str, Any]) -> dict[str, Any]:
    """Save a result beside what is there, draw it, and write the tables."""
    file = RESULTS / "large.json"
    result = merged(json.loads(file.read_text()) if file.exists() else {}, result)
    save("large", result, indent=None)
    if "fit" in result:
        draw(result, PICTURE)
    write_tables("large", result)
    return result


if __name__ == "__main__":
    main()
