"""``python -m tests.faults.power --n 6``: machines lose power, and nothing that was said is lost.

A scheduler and a worker run jobs on an ext4 file system in a file. Copies of that file while they
run are what the disk of a machine holds that loses power; each is mounted in the place of the
original, which replays its journal, and another scheduler goes on with it.
"""

from __future__ import annotations

import dataclasses
import filecmp
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

import largek_dask as lk
from tests.faults.cases import Case
from tests.faults.drill import SECONDS, asked, lasting, until, write_curve
from tests.faults.moments import Moment
from tests.faults.promises import digest_of_labels, digest_of_rows, source
from tests.faults.rig import Rig
from tests.faults.strikes import events_of

CRASHES = ("1 s after a submit", "9 s after a submit", "6 s after a job has finished")
N_ITER = {"short": 10, "long": 120}
HELD_AT = 100
"""A step that the long job does not go beyond before the second crash, however fast it is."""
COMMITS = (5, 300)
"""Seconds between two commits of the journal: names are on the disk before data; or nothing is."""
IMAGE_BYTES = 192 << 20
COPIES = 20
"""Tries to copy the image while nothing is written to it."""


class Image:
    """An ext4 file system in a file, mounted.

    Parameters
    ----------
    file : Path
        Made unless it is there.
    mounted : Path
        Where it is mounted.
    commit : int
        Seconds between two commits of its journal.
    """

    def __init__(self, file: Path, mounted: Path, commit: int) -> None:
        self.file, self.mounted = file, mounted
        if not file.exists():
            with open(file, "wb") as empty:
                empty.truncate(IMAGE_BYTES)
            _run("mkfs.ext4", "-q", "-F", str(file))
        mounted.mkdir(exist_ok=True)
        _run("mount", "-o", f"loop,commit={commit}", str(file), str(mounted))

    def copy(self, to: Path) -> None:
        """Copy what is on the disk now; whoever writes must have been stopped."""
        again = to.with_suffix(".again")
        for _ in range(COPIES):
            for each in (to, again):
                _run("cp", "--sparse=always", str(self.file), str(each))
            if filecmp.cmp(to, again, shallow=False):
                again.unlink()
                return
        raise AssertionError(f"{self.file} is written to all the time")

    def __enter__(self) -> Image:
        return self

    def __exit__(self, *_: object) -> None:
        _run("umount", str(self.mounted))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


@dataclasses.dataclass
class Said:
    """What had been said by the moment of a crash."""

    jobs: dict[str, Case] = dataclasses.field(default_factory=dict)
    """Jobs that were accepted."""
    outputs: dict[str, Path] = dataclasses.field(default_factory=dict)
    ended: dict[str, tuple[dict[str, Any], str | None]] = dataclasses.field(default_factory=dict)
    """Results and labels of those that had finished."""
    steps: dict[str, int] = dataclasses.field(default_factory=dict)
    """Steps of jobs that a checkpoint had been told of."""
    rows: dict[Path, str] = dataclasses.field(default_factory=dict)
    models: dict[Path, str] = dataclasses.field(default_factory=dict)

    def look(self) -> Said:
        """Return a copy, with what events say of checkpoints now."""
        steps = {
            job_id: max(
                (e["n_iter"] for e in events_of(out) if e["event"] == "checkpoint"), default=0
            )
            for job_id, out in self.outputs.items()
        }
        fields = (self.jobs, self.outputs, self.ended, steps, self.rows, self.models)
        return Said(*(dict(field) for field in fields))

    def check(self, service: lk.Service) -> None:
        """Check that all of it holds, and see jobs that have not ended to their end."""
        for place, digest in self.rows.items():
            assert digest_of_rows(str(place)) == digest, place
        for place, digest in self.models.items():
            assert lk.load_model(str(place)).digest() == digest, place
        assert {status["id"] for status in service.jobs(limit=None).rows} == set(self.jobs)
        for job_id, case in self.jobs.items():
            job, output = service.job(job_id), self.outputs[job_id]
            if job_id in self.ended:
                status = job.status()
                found = digest_of_labels(output / "labels.zarr")
                assert (status["state"], status["result"], found) == (
                    "finished",
                    *self.ended[job_id],
                )
            assert job.wait(SECONDS) == "finished", job.status()
            digests = {
                job.status()["result"]["digest"],
                job.model().digest(),
                lk.load_model(str(output / "model.zarr")).digest(),
            }
            assert digests == {case.digest}, job_id
            assert digest_of_labels(output / "labels.zarr") is not None, job_id
            if job_id not in self.ended:
                started = [e["n_iter"] for e in events_of(output) if e["event"] == "started"]
                assert started[-1] >= self.steps[job_id], "a checkpoint that was told of is lost"


@dataclasses.dataclass(frozen=True)
class Loss:
    """A loss of power, after which all was there."""

    kind: str
    commit: int
    n_finished: int
    n_unfinished: int
    step: int
    """The last one that a checkpoint of an unfinished job was told of."""

    def __str__(self) -> str:
        return (
            f"{self.kind}, commit={self.commit}: {self.n_finished} finished jobs are whole, "
            f"{self.n_unfinished} went on from step {self.step}"
        )


class Machine:
    """A rig whose store and outputs are on a disk that is going to be copied."""

    def __init__(self, folder: Path, image: Image) -> None:
        self._image, self._folder = image, folder
        shared = image.mounted / "shared"
        shared.mkdir(exist_ok=True)
        folder.mkdir()
        (folder / "shared").symlink_to(shared)
        self.rig = Rig(folder, n_workers=1, nannies=False)

    def crash(self, number: int, said: Said) -> tuple[Path, Said]:
        """Copy the disk at a moment; what was said by then."""
        synced, unsynced = (self._image.mounted / f"{what}{number}" for what in ("kept", "lost"))
        with open(synced, "wb") as file:
            file.write(bytes(100_000))
            os.fsync(file.fileno())
        _sync_folder(self._image.mounted)
        unsynced.write_bytes(bytes(100_000))
        processes = [s.pid for s in (*self.rig.schedulers, *self.rig.workers)]
        for pid in processes:
            os.killpg(pid, signal.SIGSTOP)
        until(lambda: all(_is_stopped(pid) for pid in processes), "all processes to stand still")
        copy, told = self._folder / f"copy{number}", said.look()
        self._image.copy(copy)
        for pid in processes:
            os.killpg(pid, signal.SIGCONT)
        return copy, told


def _sync_folder(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    os.fsync(number)
    os.close(number)


def _is_stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def _record(folder: Path, data: str, commit: int) -> Iterator[tuple[Path, Said]]:
    """Run jobs, and copy the disk three times."""
    cases = {name: lasting(data, name, n_iter) for name, n_iter in N_ITER.items()}
    with Image(folder / "disk", folder / "mounted", commit) as image:
        machine, said = Machine(folder / "first", image), Said()
        with machine.rig as rig, rig.connected() as service:

            def submit(name: str) -> lk.Job:
                output = image.mounted / name
                job = service.submit(**cases[name].options(), output=str(output))
                said.jobs[job.id], said.outputs[job.id] = cases[name], output
                return job

            def finish(job: lk.Job) -> None:
                assert job.wait(SECONDS) == "finished", job.status()
                found = digest_of_labels(said.outputs[job.id] / "labels.zarr")
                said.ended[job.id] = (job.status()["result"], found)

            first = submit("short")
            finish(first)
            rows, model = image.mounted / "rows.zarr", image.mounted / "model.zarr"
            lk.ingest(source("dense"), str(rows), progress=False)
            said.rows[rows] = digest_of_rows(str(rows))
            first.model().save(str(model))
            said.models[model] = cases["short"].digest
            held = rig.meet(Moment("before", "step", nth=HELD_AT))
            job = submit("long")
            begun = time.monotonic()
            for number, seconds in enumerate((1.0, 9.0)):
                time.sleep(max(0.0, begun + seconds - time.monotonic()))
                yield machine.crash(number, said)
            held.release()
            finish(job)
            time.sleep(6.0)
            yield machine.crash(2, said)


def drill(folder: Path, commit: int) -> Iterator[Loss]:
    """Lose power three times, each time with the same jobs."""
    data = write_curve(folder)
    copies = list(_record(folder, data, commit))
    for number, (copy, said) in enumerate(copies):
        with Image(copy, folder / "mounted", commit) as image:
            kept, lost = (image.mounted / f"{what}{number}" for what in ("kept", "lost"))
            assert kept.stat().st_size == 100_000
            assert not lost.exists() or lost.stat().st_size == 0, "nothing is lost: it was synced"
            machine = Machine(folder / f"next{number}", image)
            with machine.rig as rig, rig.connected() as service:
                try:
                    said.check(service)
                except BaseException:
                    print(rig.logs(), file=sys.stderr)
                    raise
        left = [said.steps[job_id] for job_id in said.jobs if job_id not in said.ended]
        yield Loss(CRASHES[number], commit, len(said.ended), len(left), max(left, default=0))


def main() -> int:
    """Lose power, print, and say whether all was well."""
    given = asked("tests.faults.power", __doc__, len(CRASHES) * len(COMMITS))
    done, wrong = 0, 0
    for number in range(-(-given.n // len(CRASHES))):
        with tempfile.TemporaryDirectory(prefix="largek-power-") as name:
            try:
                for loss in drill(Path(name), COMMITS[number % len(COMMITS)]):
                    print(loss, flush=True)
                    done += 1
            except Exception as error:
                wrong += 1
                print(f"WRONG {type(error).__name__}: {error}", flush=True)
    print(f"Losses of power after which nothing was missing: {done}; drills that failed: {wrong}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
