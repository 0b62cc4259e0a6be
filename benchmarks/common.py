"""Processes, environments and result files shared by all benchmarks."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
THREADS = "BENCHMARK_THREADS"
"""Environment variable with the number of threads of every measured library; 1 by default."""


# --- the machine ----------------------------------------------------------------------------------


def cpu_description() -> str:
    """Return the processor, its vector instructions, and the number of available cores."""
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    vectors = [name for name in ("avx512f", "avx2", "fma", "neon") if features.get(name)]
    cores = len(os.sched_getaffinity(0))
    name = binding.get_host_cpu_name() or platform.processor()
    count = "one core" if cores == 1 else f"{cores} cores"
    return f"{name} ({', '.join(vectors) or 'no known vectors'}), {count}"


def peak_bytes(pid: int | str = "self") -> int:
    """Return the peak memory of a process in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def commit(name: str = "HEAD") -> str:
    done = subprocess.run(
        ["git", "rev-parse", name], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def generator_of_commit(name: str, *numbers: int) -> np.random.Generator:
    """Return a random generator seeded by the hash of a commit."""
    return np.random.default_rng([int(commit(name)[:16], 16), *numbers])


# --- processes ------------------------------------------------------------------------------------


def thread_count() -> int:
    return int(os.environ.get(THREADS, "1"))


def clock() -> float:
    """Return CPU seconds of this process, or wall seconds if libraries use several threads."""
    return time.process_time() if thread_count() == 1 else time.perf_counter()


def peer_environments(library: str) -> dict[str, dict[str, str]]:
    """Return the environments in which a library is tried, by label; the fastest counts.

    Libraries use :func:`thread_count` threads. The bundled OpenBLAS of faiss misdetects some
    processors with AVX-512, so faiss is tried with two explicit core types.
    """
    base = {key: value for key, value in os.environ.items() if not key.startswith("OPENBLAS_")}
    pools = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    base |= dict.fromkeys(pools, str(thread_count()))
    if library != "faiss" or "avx512f" not in cpu_description():
        return {"": base}
    return {kind: base | {"OPENBLAS_CORETYPE": kind} for kind in ("Haswell", "SkylakeX")}


def child_record(
    module: str, arguments: list[Any], environment: dict[str, str] | None = None
) -> Any:
    """Return the result of ``python -m module --child arguments`` in a new process.

    :func:`parse` handles these arguments in the new process.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, "--child", json.dumps(arguments)],
        cwd=ROOT,
        env=environment or peer_environments("largek_dask")[""],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def fastest_record(
    library: str, module: str, arguments: list[Any], seconds: Callable[[Any], float]
) -> Any:
    """Return the result of :func:`child_record` in the fastest environment of a library."""
    environments = peer_environments(library).values()
    return min((child_record(module, arguments, each) for each in environments), key=seconds)


def in_turn(methods: Sequence[str], seed: int) -> list[str]:
    """Return the methods in an order that depends on the seed."""
    at = seed % len(methods)
    return [*methods[at:], *methods[:at]]


@contextmanager
def local_client(n_workers: int) -> Iterator[Any]:
    """Client of a local cluster of worker processes with one thread each."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(n_workers)
        yield client


@contextmanager
def patched(changes: Mapping[str, Any]) -> Iterator[None]:
    """Temporarily change constants of modules of ``largek_dask.algorithms``, given by their path.

    For a dataclass, a dictionary gives the fields to change.
    """
    before = []
    for name, value in changes.items():
        module, constant = name.rsplit(".", 1)
        owner = importlib.import_module(f"largek_dask.algorithms.{module}")
        known = getattr(owner, constant)
        before.append((owner, constant, known))
        setattr(owner, constant, replace(known, **value) if isinstance(value, dict) else value)
    try:
        yield
    finally:
        for owner, constant, known in before:
            setattr(owner, constant, known)


# --- command lines and results --------------------------------------------------------------------


def new_parser(doc: str | None) -> argparse.ArgumentParser:
    """Argument parser of a benchmark, with ``--write``."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="save the result, update tables")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser


def parse(
    parser: argparse.ArgumentParser, child: Callable[..., Any] | None = None
) -> argparse.Namespace:
    """Parse the command line; a process of :func:`child_record` runs ``child`` instead."""
    args = parser.parse_args()
    if args.child is not None:
        assert child is not None
        found = child(*json.loads(args.child))
        sys.stdout.flush()
        print(json.dumps(found))
        sys.exit()
    return args


def rounded(value: Any, digits: int = 8) -> Any:
    """Round all floats within a result, so that its file stays small."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, dict):
        return {key: rounded(v, digits) for key, v in value.items()}
    return [rounded(v, digits) for v in value] if isinstance(value, list) else value


def read_result(name: str) -> dict[str, Any]:
    """Committed result of a benchmark; empty if there is none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def save(name: str, result: dict[str, Any], indent: int | None = None) -> Path:
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(result, indent=indent) + "\n")
    return path
