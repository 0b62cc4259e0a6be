"""Makes ``tests/data_files/store-VERSION``: what the next version has to read.

A scheduler's store with two jobs over the same rows: one that has ended, with its model, and one
whose scheduler was stopped after two steps, with its checkpoints. ``python -m
tests.helpers.store_files`` writes that of this version, once; it is not written again. Places are
``/HERE``, which :func:`copied` replaces.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import dask
import numpy as np

import largek_dask as lk
from largek_dask.driver.storage import Folder
from largek_dask.service.jobs import Jobs
from largek_dask.service.runner import Runner
from largek_dask.service.spec import AlgorithmSpec, JobSpec
from largek_dask.service.store import Records
from largek_dask.version import __version__

FILES = Path(__file__).parents[1] / "data_files"
HERE = "/HERE"
TEXTS = {".json", ".jsonl", ".beat"}
STEPS = 2
WRITTEN = 1_600_000_000
"""Time of the rows' file, which tells that they are the same."""


def copied(version: str, folder: Path) -> Path:
    """A copy of that version's store and outputs, with its places in this folder."""
    stored = FILES / f"store-{version}"
    if stored.is_dir():
        shutil.copytree(stored, folder, dirs_exist_ok=True)
    else:
        # Python 3.11.2, which is Debian 12's, has no filters.
        chosen: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        shutil.unpack_archive(f"{stored}.tar.gz", folder, **chosen)
    rename(folder, HERE, str(folder))
    os.utime(folder / "rows.npy", (WRITTEN, WRITTEN))
    return folder


def rename(folder: Path, before: str, after: str) -> None:
    """Name a place otherwise in all texts."""
    for path in folder.rglob("*"):
        if path.suffix in TEXTS and path.is_file():
            path.write_text(path.read_text().replace(before, after))


def document(folder: Path, output: str) -> str:
    spec = {
        "data": str(folder / "rows.npy"),
        "output": str(folder / output),
        "n_clusters": 4,
        "max_iter": 6,
        "tol": 0.0,
        "algorithm": AlgorithmSpec.of(lk.Lloyd()).model_dump(mode="json"),
    }
    return JobSpec.parse(spec).model_dump_json()


def until(jobs: Jobs, job_id: str, state: str) -> None:
    while jobs.status(job_id)["state"] != state:
        time.sleep(0.01)


def make(folder: Path) -> None:
    """Write them there."""
    x = np.random.default_rng(0).standard_normal((300, 2)).astype(np.float32)
    np.save(folder / "rows.npy", x)
    os.utime(folder / "rows.npy", (WRITTEN, WRITTEN))
    jobs = Jobs(Records(Folder(str(folder / "store"))), lambda: None, "maker")
    remember = Runner._remember

    def stop(self: Runner, snapshot: Any) -> None:
        remember(self, snapshot)
        if snapshot.record["step"] == STEPS and self.job.record.spec.output.endswith("begun"):
            jobs.stop()

    jobs.start()
    with dask.config.set({"largek.checkpoints.keep": 1}):
        ended = jobs.submit(document(folder, "ended"), {}, "somebody")
        until(jobs, ended, "finished")
        Runner._remember = stop  # type: ignore[method-assign]
        begun = jobs.submit(document(folder, "begun"), {}, "somebody")
        until(jobs, begun, "running")
        until(jobs, begun, "queued")
    assert jobs.close(60.0) == []


def main() -> None:
    """Write those of this version."""
    target = FILES / f"store-{__version__}"
    with tempfile.TemporaryDirectory() as name:
        made = Path(name) / "made"
        made.mkdir()
        make(made)
        rename(made, str(made), HERE)
        for path in made.rglob("*.partial"):
            path.unlink()
        shutil.copytree(made, target)
    print(f"{target}: {sum(path.stat().st_size for path in target.rglob('*')):,} bytes")


if __name__ == "__main__":
    main()
