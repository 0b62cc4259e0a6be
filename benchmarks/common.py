"""What benchmarks share: the machine in words, peers' best settings, where results go."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

__all__ = [
    "RESULTS",
    "ROOT",
    "commit",
    "cpu_description",
    "generator_of_commit",
    "peer_environments",
    "save",
]

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def cpu_description() -> str:
    """Processor, what vectors it has, and how many cores this process may use."""
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    vectors = [name for name in ("avx512f", "avx2", "fma", "neon") if features.get(name)]
    cores = len(os.sched_getaffinity(0))
    name = binding.get_host_cpu_name() or platform.processor()
    told = "one core" if cores == 1 else f"{cores} cores"
    return f"{name} ({', '.join(vectors) or 'no known vectors'}), {told}"


def commit() -> str:
    """The hash of the commit that is checked out."""
    told = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return told.stdout.strip()


def generator_of_commit(*numbers: int) -> np.random.Generator:
    """A generator whose draws nobody can have looked at before the commit was there."""
    return np.random.default_rng([int(commit()[:16], 16), *numbers])


def peer_environments(library: str) -> dict[str, dict[str, str]]:
    """The environments in which a library is tried, by label; the best counts.

    One thread each. The bundled OpenBLAS of faiss misdetects some processors with AVX-512, so
    there it is told which kernels to use, in two ways.
    """
    base = {key: value for key, value in os.environ.items() if not key.startswith("OPENBLAS_")}
    base |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if library != "faiss" or "avx512f" not in cpu_description():
        return {"": base}
    return {kind: base | {"OPENBLAS_CORETYPE": kind} for kind in ("Haswell", "SkylakeX")}


def child_record(
    module: str, arguments: Any, environment: dict[str, str] | None = None
) -> dict[str, Any]:
    """What ``python -m module --child arguments`` prints last: a process of its own, one thread."""
    done = subprocess.run(
        [sys.executable, "-m", module, "--child", json.dumps(arguments)],
        cwd=ROOT,
        env=environment or peer_environments("largek_dask")[""],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return record


def save(name: str, result: dict[str, Any], indent: int | None = 1) -> Path:
    """Write a result as JSON beside the others."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=indent) + "\n")
    return path
