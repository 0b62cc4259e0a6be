"""SLURM for ``largek cluster slurm``: the files, and what is said to ``sbatch`` and its like.

Nothing is kept of what was submitted: both jobs have the folder in their names, so that SLURM
itself says which there are.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from largek_dask.cli import certificates
from largek_dask.errors import ClusterError, OutputError, ParameterError

__all__ = ["FILES", "Layout", "QueuedJob", "Slurm", "check_home", "mebibytes", "seconds", "table"]

FILES = ("scheduler.sbatch", "workers.sbatch", "step.sh", "site.env.example")
"""Templates, and the names under which they are written."""
SHORTEST = 15 * 60
"""Seconds that a job has at least: workers leave up to nine minutes before their limit."""
LEAST_MEMORY = 1024
"""MiB that a worker or the scheduler has at least."""
SAFE = re.compile(r"[\w./+@%:,=-]*")
"""What a script may hold without quotes."""
OURS = re.compile(r"--(job-name|array|no-requeue|dependency|signal)\b|-[Jad]")
"""Options of sbatch by which jobs are found and queued again: nobody else may give them."""
DASHBOARD = re.compile(r"([\w.-]+|\[[\da-fA-F:]+\])?:\d{1,5}")
"""HOST:PORT of pages; without a host they listen on all interfaces."""
SIZES = {"": 1, "M": 1, "G": 1 << 10, "T": 1 << 20}
"""MiB in the units of SLURM."""
INPUTS = ("SLURM_CONF", "SLURM_CLUSTERS")
"""Variables for programs of SLURM; others of that beginning are about a job."""
COLUMNS = ("%i", "%j", "%T", "%L", "%N", "%r")
"""What squeue tells: id with the number in its array, name, state, time left, nodes, reason."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """What is asked of SLURM.

    Attributes
    ----------
    home : str
        Absolute path of the folder that all nodes see.
    workers, workers_per_node, cpus : int
        Workers in all, those in one job of the array, and threads of each.
    mem, scheduler_mem : int
        MiB of one worker, and of the scheduler.
    scheduler_cpus : int
        Threads of the scheduler.
    time : int
        Limit of each job in seconds.
    idle : int, optional
        Seconds without a job after which workers end; None: they stay.
    dashboard_address : str
        Address that the scheduler's pages listen on.
    insecure : bool
        Without TLS.
    partition, scheduler_partition, account, qos, interface, scratch, setup : str, optional
        None: what the site has by default.
    sbatch : tuple of str
        More options of sbatch, for both jobs.

    Raises
    ------
    ParameterError
        See the command's options.
    """

    home: str
    workers: int = 16
    workers_per_node: int = 1
    cpus: int = 8
    mem: int = 64 << 10
    scheduler_cpus: int = 2
    scheduler_mem: int = 8 << 10
    time: int = 12 * 3600
    idle: int | None = 20 * 60
    dashboard_address: str = "127.0.0.1:0"
    insecure: bool = False
    partition: str | None = None
    scheduler_partition: str | None = None
    account: str | None = None
    qos: str | None = None
    interface: str | None = None
    scratch: str | None = None
    setup: str | None = None
    sbatch: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not os.path.isabs(self.home):
            raise ParameterError(f"--home is {self.home!r}: give an absolute path, as nodes see it")
        if self.scratch is not None and not os.path.isabs(self.scratch):
            raise ParameterError(f"--scratch is {self.scratch!r}: give an absolute path")
        names = ("home", "partition", "scheduler_partition", "account", "qos", "interface")
        for name in (*names, "scratch"):
            value = getattr(self, name)
            if value is not None and not (value and SAFE.fullmatch(value)):
                raise ParameterError(
                    f"--{name.replace('_', '-')} is {value!r}, which scripts of SLURM cannot hold: "
                    "use letters, digits and . _ / + @ : , = - only"
                )
        if "," in self.home:
            raise ParameterError(f"--home is {self.home!r}: a comma ends names in SLURM, rename it")
        if self.time < SHORTEST:
            raise ParameterError(
                f"--time is {self.time} s: give at least 15min, as workers leave up to nine "
                "minutes before their limit"
            )
        if self.idle is not None and self.idle < 1:
            raise ParameterError(
                f'--idle is {self.idle} s: give at least 1 s, or "never" for workers that stay'
            )
        if not DASHBOARD.fullmatch(self.dashboard_address):
            raise ParameterError(
                f"--dashboard-address is {self.dashboard_address!r}: give a port to open it on all "
                "interfaces, such as :8787, or with one of them, such as 127.0.0.1:8787"
            )
        if self.mem < LEAST_MEMORY:
            raise ParameterError(f"--mem is {self.mem} MiB for a worker: give at least 1G")
        if self.scheduler_mem < LEAST_MEMORY:
            raise ParameterError(
                f"--scheduler-mem is {self.scheduler_mem} MiB: give at least 1G, better 4G and two "
                "models of each job that runs"
            )
        if self.workers % self.workers_per_node:
            raise ParameterError(
                f"--workers {self.workers} cannot be shared out over nodes by --workers-per-node "
                f"{self.workers_per_node}: give a multiple of it"
            )
        for option in self.sbatch:
            if not option.startswith("-") or "\n" in option:
                raise ParameterError(
                    f"--sbatch is {option!r}, which is no option of sbatch: write it as in "
                    "--sbatch --constraint=icelake"
                )
            if OURS.match(option):
                raise ParameterError(
                    f"--sbatch is {option!r}, by which jobs here are found and queued again: leave "
                    "it out, or change the files that --out DIR writes"
                )

    @property
    def tasks(self) -> int:
        """Jobs of the array."""
        return self.workers // self.workers_per_node

    def rendered(self, place: str | None = None) -> dict[str, str]:
        """The files by name.

        Parameters
        ----------
        place : str, optional
            Where they will be; in ``home`` by default.

        Raises
        ------
        ParameterError
            A script cannot hold its name.
        """
        place = self.home if place is None else place
        if not SAFE.fullmatch(place):
            raise ParameterError(
                f"--out is {place!r}, which scripts of SLURM cannot hold: use letters, digits and "
                ". _ / + @ : , = - only"
            )
        start = f"largek cluster slurm scale --home {self.home}"
        host = self.dashboard_address.rpartition(":")[0]
        values = {
            "home": self.home,
            "tls": "" if self.insecure else f"{self.home}/{certificates.FOLDER}",
            "idle": "" if self.idle is None else str(self.idle),
            "start_workers": f"sbatch {place}/workers.sbatch" if place != self.home else start,
            "dashboard_address": self.dashboard_address,
            "worker_dashboard": "127.0.0.1:0" if host not in ("", "0.0.0.0") else ":0",
            "scheduler_cpus": str(self.scheduler_cpus),
            "step": f"{place}/step.sh",
            "scheduler_mem": str(self.scheduler_mem),
            "time": _slurm_time(self.time),
            "last": str(self.tasks - 1),
            "workers_per_node": str(self.workers_per_node),
            "cpus": str(self.cpus),
            "node_mem": str(self.mem * self.workers_per_node),
            "interface": self.interface or "",
            "scratch": self.scratch or "",
            "setup": self.setup or "",
            "sbatch": self._directives(self.partition),
            "scheduler_sbatch": self._directives(self.scheduler_partition or self.partition),
        }
        return {name: _filled(_template(name), values) for name in FILES}

    def _directives(self, partition: str | None) -> str:
        pairs = {"partition": partition, "account": self.account, "qos": self.qos}
        lines = [f"--{name}={value}" for name, value in pairs.items() if value]
        return "\n".join(f"#SBATCH {line}" for line in (*lines, *self.sbatch))


def _template(name: str) -> str:
    return (files("largek_dask.cli") / "templates" / name).read_text(encoding="utf-8")


def _filled(template: str, values: dict[str, str]) -> str:
    """A template with its values; lines that are a value alone, and have none, are left out."""
    lines = []
    for line in template.splitlines():
        filled = re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], line)
        if filled or not line:
            lines.append(filled)
    return "\n".join(lines) + "\n"


def _slurm_time(seconds: int) -> str:
    """As sbatch takes it, such as "1-12:00:00"."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{days}-{hours:02}:{minutes:02}:{rest:02}"


def seconds(text: str, option: str = "--time") -> int:
    """Seconds of a time such as "12h" or, as SLURM writes it, "1-12:00:00".

    Raises
    ------
    ParameterError
        It is neither.
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)", text)
    if found:
        days, hours, minutes, rest = (int(part or 0) for part in found.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + rest
    from dask.utils import parse_timedelta

    try:
        return int(parse_timedelta(re.sub(r"(?<=[\d ])min$", "m", text)))
    except (ValueError, KeyError, OverflowError):
        raise ParameterError(
            f"{option} is {text!r}, which is no time: write it as in {option} 12h or 1-12:00:00"
        ) from None


def mebibytes(text: str, option: str = "--mem") -> int:
    """MiB of a size as SLURM takes it, such as "64G" or "500M".

    Raises
    ------
    ParameterError
        It is none.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MGT]?)(?:i?B)?", text, re.IGNORECASE)
    if not found:
        raise ParameterError(f"{option} is {text!r}, which is no size: write it as in {option} 64G")
    return int(float(found[1]) * SIZES[found[2].upper()])


def check_home(home: str) -> None:
    """See that jobs can be kept in a folder.

    Raises
    ------
    OutputError
        It is not there, cannot be written, or lets two processes create the same file.
    """
    if not os.path.isdir(home):
        raise OutputError(
            f"--home {home} is not there: make it, in a file system that all nodes share"
        )
    name = os.path.join(home, f".largek-{uuid.uuid4().hex}")
    try:
        _create(name)
    except OSError as error:
        raise OutputError(
            f"--home {home} cannot be written ({error.strerror or error}): choose another folder, "
            "or see to its permissions"
        ) from error
    try:
        _create(name)
    except FileExistsError:
        return
    finally:
        os.remove(name)
    raise OutputError(
        f"--home {home}: this file system creates a file that is there already, so that two "
        "schedulers could have one store; choose a folder of another one"
    )


def _create(path: str) -> None:
    """Make a file that is not there yet."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


@dataclass(frozen=True)
class QueuedJob:
    """A job as ``squeue`` has it; of an array each by itself."""

    id: str
    """Number; of a worker that of its array, and its place in it."""
    is_scheduler: bool
    state: str
    left: str
    nodes: str
    reason: str


class Slurm:
    """What was submitted for one folder, asked of SLURM itself.

    Parameters
    ----------
    home : str
        Absolute path.

    Raises
    ------
    ClusterError
        There is no SLURM on this machine.
    """

    def __init__(self, home: str) -> None:
        if shutil.which("sbatch") is None:
            raise ClusterError(
                "there is no sbatch on this machine: run `largek cluster slurm` where you submit "
                "jobs of SLURM, or use --print"
            )
        self.home = home
        self.scheduler_name = f"largek-scheduler:{home}"
        self.workers_name = f"largek-workers:{home}"

    def jobs(self) -> list[QueuedJob]:
        """All that are queued, run or end just now; the oldest first."""
        names = f"{self.scheduler_name},{self.workers_name}"
        lines = _said(
            ["squeue", "--me", "--array", "--noheader", "--name", names,
             "--format", "|".join(COLUMNS)]
        ).splitlines()  # fmt: skip
        found = []
        for line in lines:
            job_id, name, state, left, nodes, reason = line.split("|", len(COLUMNS) - 1)
            is_scheduler = name == self.scheduler_name
            found.append(QueuedJob(job_id, is_scheduler, state, left, nodes, reason))
        # The number of an array counts before the place in it.
        return sorted(found, key=lambda job: [int(n) for n in re.findall(r"\d+", job.id)])

    def check_empty(self) -> None:
        """Raise ClusterError if jobs of the folder are in the queue."""
        if there := self.jobs():
            raise ClusterError(
                f"jobs of {self.home} are in the queue of SLURM already, such as {there[0].id}: "
                "use `largek cluster slurm scale` for another number of workers, or stop them first"
            )

    def submit(self, layout: Layout) -> tuple[int, int]:
        """Write the files into the folder and submit both jobs.

        Returns
        -------
        tuple of int
            Ids of the scheduler's job, and of the workers' array.

        Raises
        ------
        ClusterError
            They are there already, or SLURM refuses one: neither is submitted then.
        """
        self.check_empty()
        check_array(layout.tasks)
        write(layout, self.home)
        for name in ("jobs", "logs", "kernels"):
            os.makedirs(f"{self.home}/{name}", exist_ok=True)
        self._have_workers_stay()
        scripts = [f"{self.home}/scheduler.sbatch", f"{self.home}/workers.sbatch"]
        for script in scripts:
            _said(["sbatch", "--test-only", script], _advice(layout))
        scheduler = _sbatch([scripts[0]], _advice(layout))
        try:
            return scheduler, _sbatch([scripts[1]], _advice(layout))
        except ClusterError:
            _said(["scancel", str(scheduler)])
            raise

    def _have_workers_stay(self) -> None:
        """Take back what the scheduler has said, that there was no job for a while."""
        from largek_dask.service.store import IDLE

        Path(self.home, "jobs", IDLE).unlink(missing_ok=True)

    def scale(self, workers: int | None) -> tuple[int, list[str]]:
        """Submit more workers, or cancel the newest ones.

        Parameters
        ----------
        workers : int, optional
            Workers in all; as many as were asked for last by default.

        Returns
        -------
        tuple of int and list of str
            Jobs of workers that there were, and those that were submitted or cancelled, by id.
        """
        script = Path(self.home) / "workers.sbatch"
        if not script.is_file():
            raise ParameterError(
                f"there is no {script}: start with `largek cluster slurm --home {self.home} "
                "--submit`"
            )
        text = script.read_text(encoding="utf-8")
        found = re.search(r"^#SBATCH --ntasks=(\d+)", text, re.MULTILINE)
        each = int(found[1]) if found else 1
        if workers is None:
            found = re.search(r"^#SBATCH --array=0-(\d+)", text, re.MULTILINE)
            workers = each * (int(found[1]) + 1 if found else 1)
        if workers % each:
            raise ParameterError(
                f"{workers} workers cannot be shared out: {script} has {each} in a job, give a "
                "multiple of it"
            )
        there = [job for job in self._settled() if not job.is_scheduler]
        more = workers // each - len(there)
        if more > 0:
            check_array(more)
        self._have_workers_stay()
        array = f"#SBATCH --array=0-{workers // each - 1}"
        script.write_text(re.sub(r"(?m)^#SBATCH --array=.*$", array, text), encoding="utf-8")
        if more > 0:
            return len(there), [str(_sbatch([f"--array=0-{more - 1}", str(script)]))]
        leaving = there[len(there) + more :]
        if leaving:
            _said(["scancel", *(job.id for job in leaving)])
        return len(there), [job.id for job in reversed(leaving)]

    def _settled(self, patience: float = 60.0) -> list[QueuedJob]:
        """Jobs once none is just ending: it may be queued again afterwards, or be gone."""
        import time

        until = time.monotonic() + patience
        while any(job.state == "COMPLETING" for job in self.jobs()) and time.monotonic() < until:
            time.sleep(0.5)
        return self.jobs()

    def stop(self, patience: float = 90.0) -> list[str]:
        """Cancel the scheduler, wait for its jobs' checkpoints, then cancel workers.

        Parameters
        ----------
        patience : float
            Most seconds to wait for the scheduler; SLURM itself ends it after its KillWait.

        Returns
        -------
        list of str
            Jobs that were cancelled, by id.
        """
        import time

        there = self.jobs()
        schedulers = [job.id for job in there if job.is_scheduler]
        if schedulers:
            _said(["scancel", *schedulers])
        until = time.monotonic() + patience
        while time.monotonic() < until and any(job.is_scheduler for job in self.jobs()):
            time.sleep(0.5)
        workers = [job.id for job in there if not job.is_scheduler]
        if workers:
            _said(["scancel", *workers])
        return schedulers + workers


def preempted(partition: str | None) -> str | None:
    """Advice for a scheduler that would be preempted in a partition; None if it would not be.

    Parameters
    ----------
    partition : str, optional
        One or several, with commas; the site's default without.
    """
    lines = _said(["scontrol", "--oneliner", "show", "partition"]).splitlines()
    found = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in lines]
    names = partition.split(",") if partition else None
    modes = {
        one["PartitionName"]: one.get("PreemptMode", "OFF")
        for one in found
        if (one.get("Default") == "YES" if names is None else one.get("PartitionName") in names)
    }
    taken = {name: mode for name, mode in modes.items() if mode != "OFF"}
    if not taken:
        return None
    safe = [one["PartitionName"] for one in found if one.get("PreemptMode") == "OFF"]
    where = f" such as {', '.join(safe)}" if safe else ""
    return (
        f"jobs in partition {', '.join(taken)} are preempted ({', '.join(set(taken.values()))}), "
        "and without --scheduler-partition the scheduler is there, too: jobs stand still until it "
        f"begins again. Give one that is not preempted{where}"
    )


def check_array(tasks: int) -> None:
    """See that SLURM takes an array of so many jobs.

    Raises
    ------
    ParameterError
    """
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", _said(["scontrol", "show", "config"]), re.M)
    if found and tasks > int(found[1]):
        raise ParameterError(
            f"{tasks} jobs of workers are more than this site has in an array (MaxArraySize "
            f"{found[1]}): give fewer --workers, or more --workers-per-node"
        )


def write(layout: Layout, folder: str) -> list[str]:
    """Write the files; paths of them.

    Raises
    ------
    OutputError
    """
    written = []
    try:
        os.makedirs(folder, exist_ok=True)
        for name, text in layout.rendered(folder).items():
            path = Path(folder) / name
            path.write_text(text, encoding="utf-8")
            written.append(str(path))
    except OSError as error:
        raise OutputError(
            f"{folder} cannot be written ({error.strerror or error}): choose another folder"
        ) from error
    return written


def _advice(layout: Layout) -> str:
    """What of the command line sbatch may mean."""
    names = ("partition", "scheduler_partition", "account", "qos", "sbatch")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(layout, name)]
    other = " and ".join([", ".join([*given, "--cpus", "--mem"]), "--time"])
    return f"{other}; nothing was submitted"


def _sbatch(arguments: Sequence[str], advice: str = "") -> int:
    """Id of a job that is submitted."""
    told = _said(["sbatch", "--parsable", *arguments], advice)
    return int(told.strip().splitlines()[-1].partition(";")[0])


def _said(command: Sequence[str], advice: str = "") -> str:
    """What a program of SLURM prints.

    Raises
    ------
    ClusterError
        With its own words.
    """
    env = dict(os.environ)
    if "SLURM_JOB_ID" in env:
        # A job would take over what its submitter was given, such as a number of processors.
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
    """Jobs as a rich table, with more lines below."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    shown.add_column("job", style="cyan", no_wrap=True)
    for name in ("what", "state", "left", "node", "reason"):
        shown.add_column(name, overflow="ellipsis", no_wrap=True)
    for job in jobs:
        what = "scheduler" if job.is_scheduler else "worker"
        reason = "" if job.reason == "None" else job.reason
        cells = (job.id, what, job.state.lower(), job.left, job.nodes, reason)
        shown.add_row(*(Text(cell) for cell in cells))
    return Group(shown, *(Text(note) for note in notes))
