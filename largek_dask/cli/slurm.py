"""Write scripts for SLURM, and call ``sbatch``, ``squeue`` and ``scancel``.

Only SLURM records submitted jobs; jobs are found by name, and each name contains the folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from largek_dask.errors import ClusterError, OutputError, ParameterError

FILES = ("scheduler.sbatch", "workers.sbatch", "step.sh", "site.env.example")
"""Names of the templates, and of the files written from them."""
INPUTS = ("SLURM_CONF", "SLURM_CLUSTERS")
"""Environment variables that configure SLURM's commands; other SLURM variables describe a job."""
REFUSED = "--partition, --sbatch, --cpus, --mem and --time; nothing was submitted"
"""Advice for sbatch errors: a list of options that sbatch may refuse."""
INSECURE = (
    "use another --home that only you can access, or --insecure: without TLS, everyone on the "
    "network of the nodes can run code as you"
)
CERTIFICATE = (
    "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc",
    "-days", "3650", "-subj", "/CN=largek",
    "-addext", "keyUsage=critical,digitalSignature,keyCertSign",
)  # fmt: skip
"""Arguments of openssl 3 or newer; certificates are valid for ten years because SLURM may requeue
jobs for years."""


def render(options: Mapping[str, Any]) -> dict[str, str]:
    """Render the templates of all files; ``options`` has sizes in MiB and times in seconds."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    host = options["dashboard_address"].rpartition(":")[0]
    minutes, seconds = divmod(options["time"], 60)

    def sbatch(partition: str | None) -> list[str]:
        return [*([f"--partition={partition}"] if partition else []), *options["sbatch"]]

    values = {
        **options,
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


def write(options: Mapping[str, Any]) -> None:
    for name, text in render(options).items():
        Path(options["home"], name).write_text(text, encoding="utf-8")


def make_certificate(home: str) -> None:
    """Create a self-signed certificate in ``home/tls`` unless one exists.

    All processes share the certificate. Only the owner may access ``home``, because anyone who can
    read the key can run code as the owner.
    """
    tls = Path(home, "tls")
    key = tls / "node.key"
    try:
        tls.mkdir(exist_ok=True)
        for path in (Path(home), tls):
            os.chmod(path, 0o700)
        if not (tls / "ca.pem").exists():
            files = ["-keyout", str(key), "-out", str(tls / "node.pem")]
            _run(["openssl", *CERTIFICATE, *files], "that it is version 3 or newer")
            (tls / "tls.yaml").write_text(_settings(tls), encoding="utf-8")
            shutil.copyfile(tls / "node.pem", tls / "ca.pem")
        for path in filter(Path.is_file, tls.iterdir()):
            os.chmod(path, 0o600)
        is_open = any(path.stat().st_mode & 0o77 for path in (Path(home), key))
    except (OSError, ClusterError) as error:
        raise OutputError(f"cannot write a certificate to {tls}: {error}; {INSECURE}") from error
    if is_open:
        raise OutputError(
            f"other users can read {tls}, because its file system ignores permissions: {INSECURE}"
        )


def _settings(tls: Path) -> str:
    """Return Dask's TLS settings for the certificate in a folder as YAML."""
    pair = {"cert": f"{tls}/node.pem", "key": f"{tls}/node.key"}
    files = {"ca-file": f"{tls}/ca.pem", **dict.fromkeys(("scheduler", "worker", "client"), pair)}
    return json.dumps({"distributed": {"comm": {"require-encryption": True, "tls": files}}})


@dataclass(frozen=True)
class QueuedJob:
    """A job, or one element of a job array, in the output of ``squeue``."""

    id: str
    is_scheduler: bool
    state: str


class Slurm:
    """The SLURM jobs that use the folder ``home``, an absolute path."""

    def __init__(self, home: str) -> None:
        if shutil.which("sbatch") is None:
            raise ClusterError(
                "sbatch is not installed on this machine: run `largek cluster slurm` on a machine "
                "where you can submit SLURM jobs, or use --print"
            )
        self.home = home
        self.workers = Path(home, "workers.sbatch")

    def jobs(self) -> list[QueuedJob]:
        """Return all jobs that are queued, running or ending, oldest first."""
        scheduler = f"largek-scheduler:{self.home}"
        lines = _run(
            ["squeue", "--me", "--array", "--noheader", "--format", "%i|%j|%T",
             "--name", f"{scheduler},largek-workers:{self.home}"]
        ).splitlines()  # fmt: skip
        found = []
        for line in lines:
            job_id, name, state = line.split("|")
            found.append(QueuedJob(job_id, name == scheduler, state))
        # Sort by array id, then by index in the array.
        return sorted(found, key=lambda job: [int(n) for n in re.findall(r"\d+", job.id)])

    def check_empty(self) -> None:
        if there := self.jobs():
            raise ClusterError(
                f"SLURM's queue already contains jobs of {self.home}, such as {there[0].id}: use "
                "--scale to change the number of workers, or run --stop first"
            )

    def submit(self, options: Mapping[str, Any]) -> tuple[int, int]:
        """Write the files, submit scheduler and workers, and return their ids."""
        write(options)
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
        """Submit or cancel worker jobs to reach the number ``workers``.

        Returns the previous number of worker jobs, and the ids of submitted or cancelled jobs.
        """
        if not self.workers.is_file():
            raise ParameterError(
                f"{self.workers} does not exist: first run `largek cluster slurm --home "
                f"{self.home} --submit`"
            )
        # Wait for ending jobs, because SLURM may requeue them.
        there = self._wait_while(lambda job: job.state == "COMPLETING", 60)
        there = [job for job in there if not job.is_scheduler]
        more = workers - len(there)
        if more > 0:
            return len(there), [str(_sbatch([f"--array=0-{more - 1}", str(self.workers)]))]
        leaving = [job.id for job in there[workers:]]
        if leaving:
            _run(["scancel", *leaving])
        return len(there), leaving[::-1]

    def stop(self) -> list[str]:
        """Cancel the scheduler and, after jobs write checkpoints, the workers; return all ids."""
        there = self.jobs()
        schedulers = [job.id for job in there if job.is_scheduler]
        workers = [job.id for job in there if not job.is_scheduler]
        if schedulers:
            _run(["scancel", *schedulers])
            # After KillWait, SLURM itself kills the scheduler.
            self._wait_while(lambda job: job.is_scheduler, 90)
        if workers:
            _run(["scancel", *workers])
        return schedulers + workers

    def _wait_while(self, is_there: Callable[[QueuedJob], bool], timeout: float) -> list[QueuedJob]:
        """Wait until no job fulfils a condition, at most ``timeout`` seconds; return all jobs."""
        until = time.monotonic() + timeout
        while any(map(is_there, jobs := self.jobs())) and time.monotonic() < until:
            time.sleep(0.5)
        return jobs


def _sbatch(arguments: Sequence[str], advice: str = "") -> int:
    output = _run(["sbatch", "--parsable", *arguments], advice)
    return int(output.strip().splitlines()[-1].partition(";")[0])


def _run(command: Sequence[str], advice: str = "") -> str:
    """Run a command and return its output; raise ClusterError with its error message."""
    env = dict(os.environ)
    if "SLURM_JOB_ID" in env:
        # Inside a SLURM job, sbatch would inherit settings such as the number of CPUs.
        env = {n: v for n, v in env.items() if n in INPUTS or not n.startswith("SLURM_")}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env
        )
    except OSError as error:
        raise ClusterError(
            f"cannot start {command[0]} ({error.strerror or error}): check that PATH contains it"
        ) from error
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise ClusterError(
            f"{command[0]} failed: {words}. Check {advice or 'the output of `squeue --me`'}"
        )
    return done.stdout
