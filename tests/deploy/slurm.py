"""SLURM on this machine alone: its own munge, controller and node, from files in a folder.

They run as they are, without systemd and without accounting, on ports that nobody else has,
whatever SLURM the machine may have, and claim more CPUs than it has. What is submitted is ended
by its id; so are they, and their folder goes with them.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.running import free_port, process
from tests.helpers import needs
from tests.helpers.checks import eventually
from tests.helpers.needs import program

CPUS = 20
"""What the node claims to have: a scheduler of 2 CPUs and two workers of 8 fit, and not a third."""
MEMORY = 150_000
"""MiB that it claims to have: enough for these with 8 and 64 GiB."""
PATIENCE = 300.0
"""Seconds, on a machine whose cores are all busy with something else."""
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "srun")
CONFIG = """\
ClusterName=largek
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
KillWait=60
ReturnToService=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=node NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=plain Nodes=node Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=0
PartitionName=low Nodes=node PriorityTier=1 PreemptMode=REQUEUE GraceTime=5
PartitionName=middle Nodes=node PriorityTier=5 PreemptMode=REQUEUE GraceTime=0
PartitionName=high Nodes=node PriorityTier=10 PreemptMode=OFF
"""


@dataclass(frozen=True)
class Site:
    """A SLURM that runs.

    Attributes
    ----------
    folder : Path
        Its files.
    """

    folder: Path

    @property
    def variables(self) -> dict[str, str]:
        """What its programs need to find it."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def said(self, *command: str) -> str:
        """What one of its programs prints."""
        done = subprocess.run(
            command, env={**os.environ, **self.variables}, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def states(self) -> dict[str, str]:
        """State of each job that is in the queue, or has just left it."""
        lines = self.said("squeue", "--noheader", "--array", "--states=all", "--format=%i %T")
        return dict(line.split() for line in lines.splitlines())

    def until(self, job: str, state: str) -> None:
        """Wait until a job has a state."""
        eventually(lambda: self.states().get(job) == state, f"{job} to be {state}", PATIENCE)

    def release(self, job: str) -> None:
        """Let a job begin that was queued again; SLURM has it wait for two minutes.

        Not in this second, which is that of the run that has just ended.
        """
        queued = ("PENDING", "RUNNING")
        eventually(lambda: self.states().get(job) in queued, f"{job} in the queue", PATIENCE)
        if self.states()[job] == "PENDING":
            self.said("scontrol", "update", f"JobId={job}", "StartTime=now+1")

    def limit(self, job: str, minutes: int) -> None:
        """Have a running job reach its time limit after so many minutes, at most, from now on."""
        told = self.said("squeue", "--noheader", f"--job={job}", "--format=%M").strip()
        seconds = 0
        for part in re.split("[-:]", told):
            seconds = 60 * seconds + int(part)
        self.said("scontrol", "update", f"JobId={job}", f"TimeLimit={seconds // 60 + minutes}")

    def restarts(self, job: str) -> int:
        """How often a job has been queued again."""
        found = re.search(r"\bRestarts=(\d+)", self.said("scontrol", "show", "job", job))
        assert found
        return int(found[1])

    @contextlib.contextmanager
    def preempting(self, cpus: int, partition: str = "high") -> Iterator[str]:
        """A job that is more important, has so many CPUs, and ends with the block; its id."""
        line = ["sbatch", "--parsable", f"--partition={partition}", f"--cpus-per-task={cpus}"]
        line += ["--mem=100M", "--output=/dev/null", "--wrap=exec sleep 600"]
        job = self.said(*line).strip()
        try:
            yield job
        finally:
            self.said("scancel", job)

    def empty(self) -> None:
        """Wait until there is no job any more."""
        eventually(lambda: not self.said("squeue", "--noheader"), "an empty queue", PATIENCE)

    def clear(self) -> None:
        """End all that was submitted, and wait for it."""
        ended = {"CANCELLED", "COMPLETED", "FAILED", "TIMEOUT"}
        there = [job for job, state in self.states().items() if state not in ended]
        if there:
            self.said("scancel", *there)
        self.empty()


@contextlib.contextmanager
def site(logs: Path) -> Iterator[Site]:
    """A SLURM that leaves its logs in a folder.

    Where there is none, and for others than root, the test is skipped; in CI it fails.
    """
    needs.root("SLURM's daemons are started")
    found = {name: program(name, "Debian's slurm-wlm and munge") for name in PROGRAMS}
    # The names of sockets have to be short.
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name)
        for made in ("state", "spool"):
            (folder / made).mkdir()
        (folder / "munge.key").touch(0o600)
        (folder / "munge.key").write_bytes(os.urandom(128))
        config = folder / "slurm.conf"
        host = socket.gethostname().partition(".")[0]
        numbers = {"controller": free_port(), "node": free_port(), "cpus": CPUS, "memory": MEMORY}
        config.write_text(CONFIG.format(folder=folder, host=host, **numbers))
        with contextlib.ExitStack() as stack:
            stack.callback(_keep, folder, logs)
            running = _begun(stack, folder, found)
            try:
                yield running
            finally:
                running.clear()


def _begun(stack: contextlib.ExitStack, folder: Path, found: Mapping[str, str]) -> Site:
    """Start the daemons, which end with the stack, and wait until there is a node for jobs."""
    running = Site(folder)
    config = running.variables["SLURM_CONF"]
    env = {**os.environ, **running.variables}
    munge = [found["munged"], "--foreground", "--force", "--num-threads=2"]
    munge += [f"--{one}-file={folder}/munge.{one}" for one in ("key", "pid", "log", "seed")]
    commands = {
        "munged": [*munge, f"--socket={folder}/munge.socket"],
        "slurmctld": [found["slurmctld"], "-D", "-c", "-f", config],
        "slurmd": [found["slurmd"], "-D", "-c", "-f", config, "-N", "node"],
    }
    for name, command in commands.items():
        stack.enter_context(process(command, folder / f"{name}.log", env))
        if name == "munged":
            eventually((folder / "munge.socket").exists, "munge", PATIENCE)
    eventually(lambda: "idle" in _nodes(env), "a node that is idle", PATIENCE)
    return running


def _keep(folder: Path, logs: Path) -> None:
    for log in folder.glob("*.log"):
        shutil.copy(log, logs)


def _nodes(env: dict[str, str]) -> str:
    return subprocess.run(
        ["sinfo", "--noheader", "--format=%t"], env=env, capture_output=True, text=True
    ).stdout
