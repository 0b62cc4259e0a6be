"""Measure a large fit on the service: time relative to dense passes, memory, energy, and kills.

    python -m benchmarks.large [--rows 80e6] [--clusters 32e3] [--scale 0.1] [--strike]
                               [--folder DIR] [--write]

The rows have 32 features and are drawn from overlapping Gaussians, 1.5 times as many as there are
clusters. They are in a Zarr store, which is written once and reused. A scheduler with a store and
two workers with one thread and 4 GB each are started by `dask scheduler` and `dask worker`.
``--scale`` multiplies rows and clusters, so that the number of rows per cluster is constant.

The time of a dense pass over all rows and centres is extrapolated from 1 % of the rows, on both
workers at once, before and after the fit. `algorithm="auto"` then has three times as long,
including the labels of all rows, which are compared with the dense labels for this 1 %. A long run
of ``--long`` dense passes shows how low the energy can be. Energies are computed from checkpoints,
over 100,000 rows that are not in the store. ``--strike`` repeats the fit, kills a worker by `kill
-9` in a pass over all rows and the scheduler some steps later, and compares digests.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import largek_dask as lk
from benchmarks import large_runs as runs
from benchmarks.common import RESULTS, cpu_description, new_parser, parse
from benchmarks.pictures import new_figure
from benchmarks.tables import publish, table_of
from tests.faults.rig import Rig

PASSES = 3.0
"""Time limit of the fit, including exact labels, in dense passes."""
NEAR = 0.01
"""Allowed excess over the final energy of the long run."""
MOST_GB = {"worker": 4.0, "scheduler": 2.0}
LEAST_SECONDS = 20.0
"""Minimum time limit of a fit, in seconds."""
PHASES = {
    "start": ("until the first step", "0.85"),
    "again": ("a scheduler that goes on", "0.7"),
    "samples": ("search among rows that the driver holds", "#cfe3f5"),
    "rows": ("passes over all rows", "#d5ecd4"),
    "thrown away": ("a step cut by the limit", "#f2d3d3"),
    "last pass": ("labels of all rows, sums, the model", "#f6e5bf"),
}
"""Description and colour of each phase of a fit."""
LINES = {"scheduler": "tab:red", "worker 1": "tab:blue", "worker 2": "tab:cyan"}
FLOOR = 0.01
"""Smallest excess that is drawn, in per cent."""


@dataclass(frozen=True)
class Size:
    """Size of a run."""

    rows: int
    clusters: int
    scale: float = 1.0
    long: float = 12.0
    """Time limit of the long run, in dense passes."""

    @property
    def components(self) -> int:
        """Number of Gaussians from which the rows are drawn."""
        return self.clusters + self.clusters // 2


def submit_small(service: lk.Service, store: str, **options: Any) -> lk.Job:
    return service.submit(store, n_clusters=200, max_iter=60, **options)


def measure_fit(
    size: Size, store: str, folder: Path, rig: Rig, service: lk.Service
) -> dict[str, Any]:
    """Measure a dense pass, the fit in the time of three, and the long run."""
    held = runs.held_rows(size.rows, size.components)
    result: dict[str, Any] = {}
    first = np.ascontiguousarray(zarr.open_array(store, mode="r")[: size.clusters])
    before, _ = runs.measure_dense(service, store, size.rows, first, first.mean(axis=0))
    limit = max(LEAST_SECONDS, PASSES * before["seconds"])
    print(f"one dense pass: {before['seconds']:.1f} s; the fit has {limit:.0f} s", flush=True)
    for name, seconds in (("fit", limit), ("long", size.long / PASSES * limit)):
        with runs.Watch(rig) as watch:
            result[name] = runs.follow(
                rig, service, watch, store, folder / name, held,
                algorithm="auto", n_clusters=size.clusters, max_time=seconds,
            )  # fmt: skip
        print(f"{name}: {in_a_line(result[name])}", flush=True)
        if name == "fit":
            found = lk.load_model(str(folder / name / "model.zarr")).arrays
            after, labels = runs.measure_dense(
                service, store, size.rows, found.centers, found.shift
            )
            result["same_labels"] = same_labels(folder / name, labels)
            result["fit"]["share_rows"] = after["rows"]
    return result | {"dense": {"before": before, "after": after}}


def same_labels(output: Path, labels: dict[int, Any]) -> bool:
    """Return whether the written labels equal those of a dense pass over some rows."""
    written = zarr.open_array(str(output / "labels.zarr"), mode="r")
    return all(
        np.array_equal(written[start : start + len(some)], some) for start, some in labels.items()
    )


def measure_strikes(
    size: Size, store: str, folder: Path, rig: Rig, service: lk.Service, fit: dict[str, Any]
) -> dict[str, Any]:
    """Repeat the fit with the same number of steps while processes are killed."""
    strikes = runs.Struck(rig, fit["n_iter"], fit["first_whole"])
    with runs.Watch(rig) as watch:
        found = runs.follow(
            rig, service, watch, store, folder / "struck", None, strikes,
            algorithm="auto", n_clusters=size.clusters, max_iter=fit["n_iter"],
        )  # fmt: skip
    found["same"] = found["digest"] == fit["digest"]
    labels = [zarr.open_array(str(folder / name / "labels.zarr"), mode="r")
              for name in ("fit", "struck")]  # fmt: skip
    step = labels[0].chunks[0]
    found["same_labels"] = all(
        np.array_equal(labels[0][i : i + step], labels[1][i : i + step])
        for i in range(0, size.rows, step)
    )
    print(f"struck: {in_a_line(found)}", flush=True)
    return found


def in_a_line(record: dict[str, Any]) -> str:
    peaks = ", ".join(f"{name} {peak / 1e9:.2f} GB" for name, peak in record["peaks"].items())
    phases = ", ".join(f"{one['name']} {one['seconds']:.1f} s" for one in record["phases"])
    return (
        f"{record['seconds']:.1f} s ({phases}), {record['n_iter']} steps, {record['reason']}; "
        f"{peaks}; {record['digest'][:12]}"
    )


def dense_of(result: dict[str, Any], what: str) -> float:
    """Return the mean seconds of a dense pass before and after the fit."""
    return float(np.mean([one[what] for one in result["dense"].values()]))


def cpu_of(record: dict[str, Any]) -> float:
    return float(sum(sum(phase["cpu"].values()) for phase in record["phases"]))


def reached(result: dict[str, Any]) -> tuple[float, float]:
    """Return wall and CPU seconds until the long run is near its final energy, plus a last pass.

    The time of the last pass is that of the fit.
    """
    curve, last = result["long"]["curve"], result["fit"]["phases"][-1]
    level = (1 + NEAR) * result["long"]["energy"]
    wall, _, cpu = next((point for point in curve if point[1] <= level), curve[-1])
    return wall + last["seconds"], cpu + sum(last["cpu"].values())


def peak_of(records: list[dict[str, Any]], kind: str) -> float:
    """Return the peak memory of processes of a kind, in GB."""
    return max(
        peak / 1e9
        for record in records
        for name, peak in record["peaks"].items()
        if name.startswith(kind)
    )


def table(result: dict[str, Any]) -> str:
    fit, long, size = result["fit"], result["long"], result["size"]
    dense, dense_cpu = dense_of(result, "seconds"), dense_of(result, "cpu")
    above = 100 * (fit["energy"] / long["energy"] - 1)
    wall, cpu = reached(result)
    peaks = {kind: peak_of([fit, long], kind) for kind in MOST_GB}
    read = sum(phase["bytes"] for phase in fit["phases"]) / 1e9
    rows = [
        ["one dense pass over all rows and centres, on both workers",
         f"{dense:.1f} s; CPU {dense_cpu:.1f} s", ""],
        ["the fit, including writing exact labels",
         f"{fit['seconds']:.1f} s; CPU {cpu_of(fit):.1f} s", ""],
        ["the fit, in multiples of a dense pass",
         f"{fit['seconds'] / dense:.2f}; CPU {cpu_of(fit) / dense_cpu:.2f}", f"≤ {PASSES:g}"],
        [f"excess of the energy of the fit over that of a long run of {long['seconds']:,.0f} s",
         f"{above:.2f} %", f"≤ {100 * NEAR:g} %"],
        [f"the long run until {100 * NEAR:g} % above its final energy, plus a last pass, in "
         "multiples of a dense pass",
         f"{wall / dense:.2f}; CPU {cpu / dense_cpu:.2f}", f"≤ {PASSES:g}"],
        *([f"peak memory of {'a' if kind == 'worker' else 'the'} {kind}",
           f"{peaks[kind]:.2f} GB", f"≤ {most:g} GB"] for kind, most in MOST_GB.items()),
        ["data read or moved by workers before the last pass", f"{read:.2f} GB", ""],
        [f"labels of {fit['share_rows']:,} rows, compared with those of a dense pass",
         "the same" if result["same_labels"] else "OTHERS", "the same"],
        *struck_rows(result),
    ]  # fmt: skip
    note = (
        f"Each fit clusters {size['rows']:,} rows of {runs.N_FEATURES} features into "
        f"{size['clusters']:,} clusters, on two workers with one thread each. The load average was "
        f"{result['load'][0]:.1f} at the beginning and {result['load'][1]:.1f} at the end; the "
        "benchmark itself causes a load of about 2. "
        f"Processor: {result['cpu']}. This table was made by `{result['command']}`."
    )
    return "\n".join([*table_of(["what", "measured", "target"], rows), "", note])


def struck_rows(result: dict[str, Any]) -> list[list[str]]:
    """Return table rows about the fit with kills, if there was one."""
    struck = result.get("strike")
    if struck is None:
        return []
    same = "the same" if struck["same"] and struck["same_labels"] else "OTHERS"
    what = "model and labels after kill -9 of a worker and of the scheduler"
    return [[what, same, "the same"], ["duration of that fit", f"{struck['seconds']:.1f} s", ""]]


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the fit and the long run: energy and phases, and memory below."""
    figure, panels = new_figure(2, 12, 6, rows=2, sharex="col", sharey="row", height_ratios=(3, 2))
    dense, end = dense_of(result, "seconds"), result["long"]["curve"][-1][1]
    names = {"fit": "the fit", "long": "a long run"}
    for (upper, lower), name in zip(panels.T, names, strict=True):
        record = result[name]
        for axes in (upper, lower):
            shade(axes, record)
            axes.grid(True, which="major", alpha=0.25)
        seconds, energies, _ = np.array(record["curve"]).T
        excess = np.maximum(100 * (energies / end - 1), FLOOR)
        upper.plot(seconds, excess, color="black", lw=1.6, marker="o", ms=3)
        upper.set(yscale="log", title=names[name])
        upper.yaxis.set_major_formatter("{x:g}")
        passes = upper.secondary_xaxis("top", functions=(lambda s: s / dense, lambda p: p * dense))
        passes.set_xlabel("dense passes over all rows and centres", fontsize=9)
        for process, color in LINES.items():
            at, held = np.array(record["memory"].get(process, [[0, 0]])).T
            lower.plot(at, held / 1e9, color=color, lw=1.4, label=process)
        lower.set(xlabel="seconds since the job was submitted", xlim=(0, record["seconds"]))
        lower.set_ylim(bottom=0)
    panels[0, 0].set_ylabel("energy above the end of\nthe long run, %")
    panels[1, 0].set_ylabel("memory, GB")
    lines = [line for line in panels[1, 0].get_lines() if line.get_label() in LINES]
    panels[1, 0].legend(handles=lines, fontsize=8, loc="lower right")
    panels[0, 1].legend(fontsize=8, loc="upper right")
    figure.suptitle(
        f"auto through the service: {result['size']['rows']:,} × 32, "
        f"k = {result['size']['clusters']:,}, two workers of one thread",
        fontsize=11,
    )
    figure.savefig(path, dpi=100)


def shade(axes: Any, record: dict[str, Any]) -> None:
    """Mark the phases of a run; each kind has one legend entry."""
    seen = set()
    for phase in record["phases"]:
        label, color = PHASES[phase["name"]]
        axes.axvspan(
            phase["begin"], phase["begin"] + phase["seconds"], color=color, lw=0,
            label=None if phase["name"] in seen else label,
        )  # fmt: skip
        seen.add(phase["name"])


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--rows", type=float, default=80e6)
    parser.add_argument("--clusters", "--k", type=float, default=32e3)
    parser.add_argument("--scale", type=float, default=0.1, help="factor for rows and clusters")
    parser.add_argument("--long", type=float, default=12.0, help="time of the long run")
    parser.add_argument("--strike", action="store_true", help="repeat the fit with kills")
    parser.add_argument("--folder", type=Path, help="folder for stores of rows")
    args = parse(parser)
    rows, clusters = round(args.rows * args.scale), round(args.clusters * args.scale)
    size = Size(rows, clusters, args.scale, args.long)
    stores = args.folder or Path(tempfile.gettempdir()) / "largek-large"
    stores.mkdir(parents=True, exist_ok=True)
    store = runs.stored(stores, size.rows, size.components)
    options = f" --long {args.long:g}" * (args.long != 12) + " --strike" * args.strike
    result: dict[str, Any] = {"cpu": cpu_description(), "size": asdict(size), "load": []}
    result["command"] = f"python -m benchmarks.large --scale {args.scale:g}{options} --write"
    with tempfile.TemporaryDirectory(dir=stores) as place:
        folder = Path(place)
        result["load"].append(runs.load())
        with runs.deployment(folder / "rig") as rig, rig.connected() as service:
            runs.warm_up(service, folder, submit_small)
            result |= measure_fit(size, store, folder, rig, service)
            result["load"].append(runs.load())
            if args.strike:
                found = measure_strikes(size, store, folder, rig, service, result["fit"])
                result["strike"] = found
    if args.write:
        draw(result, RESULTS / "large.png")
    publish("large", result, write=args.write)


if __name__ == "__main__":
    main()
