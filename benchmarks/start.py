"""How long a newcomer waits: import, help, and the demo with and without compiled kernels.

    python -m benchmarks.start [--write]

Wall seconds of whole processes; medians of five for import and help, one demo each.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import cpu_description, save
from benchmarks.tables import write_tables

TARGETS = {
    "import": ("`import largek_dask`", 0.3),
    "help": ("`largek --help`", 0.5),
    "demo_cold": ("`largek demo`, nothing compiled yet", 60.0),
    "demo_warm": ("`largek demo`, kernels in the cache", 15.0),
}


def seconds(command: list[str], environment: dict[str, str]) -> float:
    """Wall seconds of a process that has to succeed."""
    begin = time.perf_counter()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return time.perf_counter() - begin


def measure() -> dict[str, float]:
    """Seconds by what was started."""
    largek = str(Path(sys.executable).parent / "largek")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"DASK_LARGEK__KERNELS__CACHE_DIR": f"{folder}/cache"}
        importing = [sys.executable, "-c", "import largek_dask"]
        for name, command in (("import", importing), ("help", [largek, "--help"])):
            found[name] = float(np.median([seconds(command, environment) for _ in range(5)]))
        for name in ("demo_cold", "demo_warm"):
            found[name] = seconds([largek, "demo", "--out", f"{folder}/{name}"], environment)
    return found


def table(result: dict[str, Any]) -> str:
    """The markdown table of a result."""
    lines = ["| what | seconds | to reach |", "|---|---|---|"]
    lines += [
        f"| {what} | {result['found'][name]:.2f} | ≤ {target:g} |"
        for name, (what, target) in TARGETS.items()
    ]
    lines += ["", f"{result['cpu']}. Made by `python -m benchmarks.start --write`."]
    return "\n".join(lines)


def main() -> None:
    """Measure, save, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="save results, write the table")
    args = parser.parse_args()
    result = {"cpu": cpu_description(), "found": measure()}
    print(table(result))
    if args.write:
        save("start", result)
        write_tables("start", result)


if __name__ == "__main__":
    main()
