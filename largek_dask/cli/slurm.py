"""Scripts for SLURM, and calls of ``sbatch``, ``squeue``, ``scancel`` and ``scontrol``.

Only SLURM records what was submitted: the names of both jobs contain the folder.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from largek_dask.errors import ClusterError, OutputError, ParameterError

__all__ = [
    "FILES",
    "QueuedJob",
    "Slurm",
    "check_home",
    "preemption_warning",
    "render",
    "table",
    "write",
]

FILES = ("scheduler.sbatch", "workers.sbatch", "step.sh", "site.env.example")
"""Templates, and the names of the files written from them."""
INPUTS = ("SLURM_CONF", "SLURM_CLUSTERS")
"""Variables that configure SLURM's programs; its other variables describe a job."""
REFUSED = "--partition, --account, --qos, --sbatch, --cpus, --mem and --time; nothing was submitted"
"""Options that sbatch may refuse."""
COLUMNS = ("%i", "%j", "%T", "%L", "%N", "%r")
"""Columns of squeue: id with array index, name, state, time left, nodes, reason."""


def render(options: Mapping[str, Any], place: str | None = None) -> dict[str, str]:
    """Return the text of each file, for options with sizes in MiB and times in seconds.

    ``place`` is the folder of the files, by default ``home``.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    home = options["home"]
    place = place or home
    host = options["dashboard_address"].rpartition(":")[0]
    minutes, seconds = divmod(options["time"], 60)

    def sbatch(partition: str | None) -> list[str]:
        pairs = {"partition": partition, "account": options["account"], "qos": options["qos"]}
        given = (f"--{name}={value}" for name, value in pairs.items() if value)
        return [*given, *options["sbatch"]]

    values = {
        **options,
        "place": place,
        "tasks": options["workers"] // options["workers_per_node"],
        "slurm_time": f"{minutes}:{seconds:02}",
        "worker_dashboard": ":0" if host in ("", "0.0.0.0") else "127.0.0.1:0",
        "worker_options": sbatch(options["partition"]),
        "scheduler_options": sbatch(options["scheduler_partition"] or options["partition"]),
    }
    environment = Environment(
        loader=PackageLoader("largek_dask.cli"), undefined=StrictUndefined,
        trim_blocks=True, keep_trailing_newline=True, autoescape=False,
    )  # fmt: skip
    return {name: environment.get_template(name).render(values) for name in FILES}


def write(options: Mapping[str, Any], folder: str) -> list[str]:
    """Write the files and return their paths."""
    written = []
    try:
        os.makedirs(folder, exist_ok=True)
        for name, text in render(options, folder).items():
            path = Path(folder) / name
            path.write_text(text, encoding="utf-8")
            written.append(str(path))
    except OSError as error:
        raise OutputError(
            f"{folder} cannot be written ({error.strerror or error}): choose another folder"
        ) from error
    return written


def check_home(home: str) -> None:
    """Raise OutputError unless a folder exists, is writable and creates files exclusively."""
    if not os.path.isdir(home):
        raise OutputError(f"--home {home} is not there: make it, on a file system of all nodes")
    path = Path(home, f".largek-{uuid.uuid4().hex}")
    try:
        path.open("x").close()
        try:
            path.open("x").close()
        except FileExistsError:
            return
    except OSError as error:
        raise OutputError(
            f"--home {home} cannot be written ({error.strerror or error}): choose another folder, "
            "or change its permissions"
        ) from error
    finally:
        path.unlink(missing_ok=True)
    raise OutputError(
        f"--home {home}: this file system creates a file that exists already, so that two "
        "schedulers could use one store; choose a folder on another file system"
    )


@dataclass(frozen=True)
class QueuedJob:
    """A job in the output of ``squeue``; jobs of an array are listed one by one."""

    id: str
    is_scheduler: bool
    state: str
    left: str
    nodes: str
    reason: str


class Slurm:
    """Jobs of one folder, an absolute path."""

    def __init__(self, home: str) -> None:
        if shutil.which("sbatch") is None:
            raise ClusterError(
                "there is no sbatch on this machine: run `largek cluster slurm` where you submit "
                "jobs of SLURM, or use --print"
            )
        self.home = home
        self.workers = Path(home, "workers.sbatch")

    def jobs(self) -> list[QueuedJob]:
        """Return all jobs that are queued, running or ending, oldest first."""
        scheduler = f"largek-scheduler:{self.home}"
        lines = _run(
            ["squeue", "--me", "--array", "--noheader", "--format", "|".join(COLUMNS),
             "--name", f"{scheduler},largek-workers:{self.home}"]
        ).splitlines()  # fmt: skip
        found = []
        for line in lines:
            job_id, name, *rest = line.split("|", len(COLUMNS) - 1)
            found.append(QueuedJob(job_id, name == scheduler, *rest))
        # By the id of the array, then by the index in it.
        return sorted(found, key=lambda job: [int(n) for n in re.findall(r"\d+", job.id)])

    def check_empty(self) -> None:
        """Raise ClusterError if jobs of the folder are in the queue."""
        if there := self.jobs():
            raise ClusterError(
                f"jobs of {self.home} are in the queue of SLURM already, such as {there[0].id}: "
                "use --scale for another number of workers, or --stop first"
            )

    def submit(self, options: Mapping[str, Any]) -> tuple[int, int]:
        """Write the files, submit both jobs or neither, and return their ids."""
        check_array(options["workers"] // options["workers_per_node"])
        write(options, self.home)
        for name in ("jobs", "logs", "kernels"):
            os.makedirs(f"{self.home}/{name}", exist_ok=True)
        scripts = [f"{self.home}/scheduler.sbatch", str(self.workers)]
        for script in scripts:
            _run(["sbatch", "--test-only", script], REFUSED)
        scheduler = _sbatch([scripts[0]], REFUSED)
        try:
            return scheduler, _sbatch([scripts[1]], REFUSED)
        except ClusterError:
            _run(["scancel", str(scheduler)])
            raise

    def scale(self, workers: int) -> tuple[int, list[str]]:
        """Submit or cancel workers until there are as many; 0: as many as last time.

        Returns the number of workers' jobs before, and ids of those submitted or cancelled.
        """
        if not self.workers.is_file():
            raise ParameterError(
                f"there is no {self.workers}: start with `largek cluster slurm --home {self.home} "
                "--submit`"
            )
        text = self.workers.read_text(encoding="utf-8")

        def number(option: str, default: int) -> int:
            found = re.search(rf"^#SBATCH --{option}(\d+)", text, re.M)
            return int(found[1]) if found else default

        each = number("ntasks=", 1)
        tasks, rest = divmod(workers, each) if workers else (number("array=0-", 0) + 1, 0)
        if rest:
            raise ParameterError(
                f"{workers} workers cannot be divided: {self.workers} has {each} in a job, give a "
                "multiple of it"
            )
        # A job that ends may be requeued.
        there = self._wait_while(lambda job: job.state == "COMPLETING", 60)
        there = [job for job in there if not job.is_scheduler]
        more = tasks - len(there)
        if more > 0:
            check_array(more)
        text = re.sub(r"(?m)^#SBATCH --array=.*$", f"#SBATCH --array=0-{tasks - 1}", text)
        self.workers.write_text(text, encoding="utf-8")
        if more > 0:
            return len(there), [str(_sbatch([f"--array=0-{more - 1}", str(self.workers)]))]
        leaving = [job.id for job in there[tasks:]]
        if leaving:
            _run(["scancel", *leaving])
        return len(there), leaving[::-1]

    def stop(self) -> list[str]:
        """Cancel the scheduler, wait for its checkpoints, cancel the workers; return their ids."""
        there = self.jobs()
        schedulers = [job.id for job in there if job.is_scheduler]
        workers = [job.id for job in there if not job.is_scheduler]
        if schedulers:
            _run(["scancel", *schedulers])
            # SLURM itself ends it after its KillWait.
            self._wait_while(lambda job: job.is_scheduler, 90)
        if workers:
            _run(["scancel", *workers])
        return schedulers + workers

    def _wait_while(self, is_there: Callable[[QueuedJob], bool], timeout: float) -> list[QueuedJob]:
        """Poll until no job fulfils a condition, for ``timeout`` seconds; return all jobs."""
        until = time.monotonic() + timeout
        while any(map(is_there, jobs := self.jobs())) and time.monotonic() < until:
            time.sleep(0.5)
        return jobs


def preemption_warning(partition: str | None) -> str | None:
    """Return a warning if the scheduler may be preempted in a partition, else None.

    ``partition`` may name several, separated by commas; None: the site's default.
    """
    lines = _run(["scontrol", "--oneliner", "show", "partition"]).splitlines()
    found = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in lines]
    names = partition.split(",") if partition else None
    modes = {
        one["PartitionName"]: mode
        for one in found
        if (one.get("Default") == "YES" if names is None else one.get("PartitionName") in names)
        and (mode := one.get("PreemptMode", "OFF")) != "OFF"
    }
    if not modes:
        return None
    safe = [one["PartitionName"] for one in found if one.get("PreemptMode") == "OFF"]
    where = f" such as {', '.join(safe)}" if safe else ""
    return (
        f"jobs in partition {', '.join(modes)} are preempted ({', '.join(set(modes.values()))}), "
        "and without --scheduler-partition so is the scheduler: jobs pause until it starts again. "
        f"Give a partition without preemption{where}"
    )


def check_array(tasks: int) -> None:
    """Raise ParameterError if SLURM refuses an array of this size."""
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", _run(["scontrol", "show", "config"]), re.M)
    if found and tasks > int(found[1]):
        raise ParameterError(
            f"{tasks} jobs of workers are more than this site allows in an array (MaxArraySize "
            f"{found[1]}): give fewer --workers, or more --workers-per-node"
        )


def _sbatch(arguments: Sequence[str], advice: str = "") -> int:
    """Submit a job and return its id."""
    output = _run(["sbatch", "--parsable", *arguments], advice)
    return int(output.strip().splitlines()[-1].partition(";")[0])


def _run(command: Sequence[str], advice: str = "") -> str:
    """Run a program of SLURM and return its output; a ClusterError quotes its error."""
    env = dict(os.environ)
    if "SLURM_JOB_ID" in env:
        # Within a job, sbatch would take over its settings, such as the number of processors.
        env = {n: v for n, v in env.items() if n in INPUTS or not n.startswith("SLURM_")}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env
        )
    except OSError as error:
        raise ClusterError(
            f"{command[0]} cannot be started ({error.strerror or error}): check that SLURM's "
            "programs are on PATH"
        ) from error
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise ClusterError(
            f"SLURM's {command[0]} says: {words}. Check {advice or 'what `squeue --me` lists'}"
        )
    return done.stdout


def table(jobs: Sequence[QueuedJob], notes: Sequence[str] = ()) -> Any:
    """Return jobs as a rich table, with notes below."""
    from largek_dask.plots.tables import TextTable

    rows = []
    for job in jobs:
        what = "scheduler" if job.is_scheduler else "worker"
        reason = "" if job.reason == "None" else job.reason
        rows.append((job.id, what, job.state.lower(), job.left, job.nodes, reason))
    columns = {"job": 0, "what": 0, "state": 0, "left": 1, "node": 0, "reason": 2}
    return TextTable(columns, rows, notes, least={"node": 8, "reason": 12})
