"""Measure the first minute: import, help, the demo, and the first fit without cached kernels.

    python -m benchmarks.start [--write]

The results are wall seconds of whole processes: medians of five runs for import and help, and one
run of each demo. A first fit is timed from the call of `fit` until the model exists, in a separate
process with an empty cache, after the import of the estimator. Its CPU seconds include those of
child processes. The median of three runs is reported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import cpu_description, new_parser, parse
from benchmarks.tables import publish, table_of

TARGETS: dict[str, tuple[str, float | None]] = {
    "import": ("`import largek_dask`", 0.3),
    "estimator": ("`from largek_dask import KMeans`", None),
    "peer": ("`from sklearn.cluster import KMeans`, which largek_dask mostly imports, too", None),
    "help": ("`largek --help`", 0.5),
    "demo_cold": ("`largek demo`, nothing compiled yet", 60.0),
    "demo_warm": ("`largek demo`, kernels in the cache", 15.0),
}
N_ROWS, N_FEATURES = 20_000, 8
WALL = {300: 8.0, 8: 4.0}
"""Maximum wall seconds of a first fit, by number of clusters."""
CPU = {300: 14.0}
"""Maximum CPU seconds of a first fit, by number of clusters."""
DTYPES = ("float32", "float64")

FIT = """
import json, resource, sys, time
import numpy as np
from largek_dask import KMeans
from numba.core import event

class Compiled(event.Listener):
    n = 0
    def on_start(self, told): self.n += 1
    def on_end(self, told): pass

def cpu_seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in used)

k, dtype, n, d = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rows = np.random.default_rng(0).random((n, d)).astype(dtype)
compiled = Compiled()
event.register("numba:compile", compiled)
cpu, begin = cpu_seconds(), time.perf_counter()
KMeans(k, random_state=0).fit(rows)
wall = time.perf_counter() - begin
print(json.dumps({"wall": wall, "cpu": cpu_seconds() - cpu, "compiled": compiled.n}))
"""
"""Program of a first fit. It counts compiled functions, including those of numba, but not those
that the process for parallel compilation compiles."""


def seconds(command: list[str], environment: dict[str, str]) -> float:
    """Return the wall seconds of a process, which must succeed."""
    begin = time.perf_counter()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return time.perf_counter() - begin


def first_fit(n_clusters: int, dtype: str, cache: str) -> dict[str, float]:
    """Measure a fit in a new process, and count the functions that it compiles."""
    environment = os.environ | {"DASK_LARGEK__KERNELS__CACHE_DIR": cache}
    shape = [str(N_ROWS), str(N_FEATURES)]
    done = subprocess.run(
        [sys.executable, "-c", FIT, str(n_clusters), dtype, *shape],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def first_fits() -> list[dict[str, Any]]:
    """Measure first fits, and the same fits with the resulting cache."""
    found = []
    for n_clusters in WALL:
        for dtype in DTYPES:
            runs = []
            for _ in range(3):
                with tempfile.TemporaryDirectory() as cache:
                    cold = first_fit(n_clusters, dtype, cache)
                    runs.append(cold | {"again": first_fit(n_clusters, dtype, cache)["wall"]})
            middle = {name: float(np.median([run[name] for run in runs])) for name in runs[0]}
            found.append({"k": n_clusters, "dtype": dtype} | middle)
    return found


def measure() -> dict[str, float]:
    largek = str(Path(sys.executable).parent / "largek")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"DASK_LARGEK__KERNELS__CACHE_DIR": f"{folder}/cache"}
        commands = {
            "import": [sys.executable, "-c", "import largek_dask"],
            "estimator": [sys.executable, "-c", "from largek_dask import KMeans"],
            "peer": [sys.executable, "-c", "from sklearn.cluster import KMeans"],
            "help": [largek, "--help"],
        }
        for name, command in commands.items():
            found[name] = float(np.median([seconds(command, environment) for _ in range(5)]))
        for name in ("demo_cold", "demo_warm"):
            found[name] = seconds([largek, "demo", "--out", f"{folder}/{name}"], environment)
    return found


def fits_table(fits: list[dict[str, Any]]) -> list[str]:
    rows = [
        [
            f"`KMeans({fit['k']}).fit`, {fit['dtype']}",
            f"{fit['wall']:.2f} (≤ {WALL[fit['k']]:g})",
            f"{fit['cpu']:.1f}" + (f" (≤ {CPU[fit['k']]:g})" if fit["k"] in CPU else ""),
            f"{fit['compiled']:.0f}",
            f"{fit['again']:.2f}",
        ]
        for fit in fits
    ]
    head = ["first fit", "seconds, nothing compiled yet", "CPU seconds", "functions compiled",
            "seconds, kernels in the cache"]  # fmt: skip
    return table_of(head, rows)


def table(result: dict[str, Any]) -> str:
    rows = [
        [what, f"{result['found'][name]:.2f}", f"≤ {target:g}" if target else ""]
        for name, (what, target) in TARGETS.items()
    ]
    note = (
        f"The first fits cluster {N_ROWS:,} rows of {N_FEATURES} features. Seconds are wall time, "
        "except in the column of CPU seconds. Values in brackets are targets. "
        f"Processor: {result['cpu']}. This table was made by `python -m benchmarks.start --write`."
    )
    first = table_of(["what", "seconds", "target"], rows)
    return "\n".join([*first, "", *fits_table(result["fits"]), "", note])


def main() -> None:
    args = parse(new_parser(__doc__))
    result = {"cpu": cpu_description(), "found": measure(), "fits": first_fits()}
    publish("start", result, write=args.write)


if __name__ == "__main__":
    main()
