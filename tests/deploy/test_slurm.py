"""`largek cluster slurm` and `deploy/README.md` on a SLURM of this machine, whatever it ends."""

import json
import os
import re
import shutil
import signal
import site as python_site
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import psutil
import pytest

import largek_dask as lk
from largek_dask.kernels.code_cache import cache_folder
from tests.deploy.running import DEPLOY, ROOT, events, quick_environment, slowing, steps
from tests.deploy.slurm import CPUS, PATIENCE, site
from tests.faults.deaths import lives
from tests.helpers import checks

# Most of it is waiting for SLURM, and for processes that start: more where all cores are busy.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

RECOVERY = 5.0
"""Seconds from the death of a worker to the next step."""


def eventually(reached, what):
    return checks.eventually(reached, what, PATIENCE)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with site(tmp_path_factory.mktemp("slurm")) as running:
        yield running


def environment(slurm, slow, *paths, **more):
    """What jobs of SLURM have from who submits them."""
    bin_folder = str(Path(sys.prefix) / "bin")
    return {
        **quick_environment(),
        **slurm.variables,
        "PATH": os.pathsep.join([bin_folder, os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(slow.parent), *map(str, paths)]),
        # No checkpoint is written but where one is asked to end.
        "DASK_LARGEK__CHECKPOINTS__SECONDS": "600",
        **more,
    }


def goes_on(out, n=2):
    """Wait for further steps of a job."""
    before = max(steps(out), default=0)
    eventually(lambda: max(steps(out), default=0) >= before + n, f"steps after {before} in {out}")


class Deaths(threading.Thread):
    """Notes when processes end that are not its own children."""

    def __init__(self):
        super().__init__(name="deaths", daemon=True)
        self._watched, self._moments, self._over = [], {}, threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self.join()

    def run(self):
        while not self._over.wait(0.01):
            for process in tuple(self._watched):
                if process not in self._moments and not lives(process):
                    self._moments[process] = datetime.now(UTC)

    def watch(self, process):
        assert lives(process)
        self._watched.append(process)
        return process

    def moment(self, process):
        """When it has ended, once it has."""
        return eventually(lambda: self._moments.get(process), f"the end of {process}")


def pause_at(out, moment):
    """Seconds from a moment to the next step that a job has told of after it."""
    times = [datetime.fromisoformat(e["time"]) for e in events(out) if e["event"] == "step"]
    later = [time for time in times if time.replace(tzinfo=UTC) > moment]
    assert later
    return (min(later).replace(tzinfo=UTC) - moment).total_seconds()


def info(service):
    return service.client.scheduler_info(n_workers=-1)


class Cluster:
    """What ``largek cluster slurm`` has submitted."""

    def __init__(self, slurm, home, env):
        self.slurm, self.home, self.env = slurm, home, env
        self.file = f"{home}/jobs/scheduler.json"

    def said(self, *arguments):
        line = ["largek", "cluster", "slurm", *arguments, "--home", str(self.home), "--json"]
        done = subprocess.run(line, env=self.env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def submit(self):
        given = ["--workers=2", "--cpus=1", "--mem=1G", "--scheduler-mem=2G", "--time=20m"]
        told = self.said(*given, "--partition=low", "--scheduler-partition=middle", "--submit")
        self.scheduler = str(told["scheduler"])
        self.workers = [f"{told['workers']}_{i}" for i in range(2)]
        assert told["connect"] == self.file
        eventually(lambda: Path(self.file).exists(), "a scheduler")

    def has_workers(self, n):
        """Wait until the scheduler, wherever it is, has so many workers."""
        with lk.connect(self.file, timeout="120s") as service:
            eventually(lambda: len(info(service)["workers"]) == n, f"{n} workers")

    def restarts(self):
        return {job: self.slurm.restarts(job) for job in (self.scheduler, *self.workers)}

    def process(self, job):
        """The one that a job's worker is, which has no nanny."""
        [found] = self.processes(job)
        return found

    def processes(self, job):
        """Processes of Dask's worker in a job."""
        array, task = job.split("_")
        name = f"{array}-{task}"
        found = []
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or []
            if "worker" in line and name in line:
                found.append(process)
        return found


@pytest.mark.usefixtures("chunks_as_stored")
def test_a_job_through_all_that_slurm_does(slurm, tmp_path):
    slow = slowing(tmp_path, 0.8)
    home, out = tmp_path / "home", str(tmp_path / "out")
    home.mkdir()
    x = np.random.default_rng(0).standard_normal((3_000, 4)).astype(np.float32)
    lk.ingest(x, str(tmp_path / "x.zarr"), chunk_rows=500, progress=False)
    options = {"algorithm": lk.MiniBatch(), "tol": 0.0, "max_iter": 300}
    cache = str(cache_folder().parents[1])
    env = environment(slurm, slow, ROOT, DASK_LARGEK__KERNELS__CACHE_DIR=cache)
    cluster = Cluster(slurm, home, env)
    struck = {}
    cluster.submit()
    with Deaths() as deaths, lk.connect(cluster.file, timeout="120s", away="15m") as service:
        cluster.has_workers(2)
        job = service.submit(str(tmp_path / "x.zarr"), n_clusters=50, output=out, **options)
        goes_on(out)

        # A worker dies; its job of SLURM starts another.
        worker = deaths.watch(cluster.process(cluster.workers[0]))
        worker.send_signal(signal.SIGKILL)
        struck["killed"] = deaths.moment(worker)
        goes_on(out)
        eventually(lambda: len(cluster.processes(cluster.workers[0])) == 1, "another worker")

        # One is preempted; SLURM may take the second one as well while the first one ends.
        cluster.has_workers(2)
        before = cluster.restarts()
        workers = {one: deaths.watch(cluster.process(one)) for one in cluster.workers}
        with slurm.preempting(CPUS - 3, "middle") as other:
            slurm.until(other, "RUNNING")
            taken = [one for one in cluster.workers if slurm.states()[one] == "PENDING"]
            assert taken
            if len(taken) == 1:
                struck["preempted"] = deaths.moment(workers[taken[0]])
                goes_on(out)
        for one in taken:
            slurm.release(one)
        cluster.has_workers(2)
        after = cluster.restarts()
        assert after == before | {one: before[one] + 1 for one in taken}
        goes_on(out)

        # All at once, also the scheduler.
        address = json.loads(Path(cluster.file).read_text())["address"]
        with slurm.preempting(CPUS, "high") as other:
            slurm.until(other, "RUNNING")
        for one in (cluster.scheduler, *cluster.workers):
            slurm.release(one)
        eventually(lambda: address not in Path(cluster.file).read_text(), "another scheduler")
        goes_on(out)

        # The time limit of the scheduler and of one worker: signals come five and three minutes
        # before it. The worker's job has the number of the whole array; the other one stays.
        cluster.has_workers(2)
        before = cluster.restarts()
        limits = {cluster.scheduler: 5, cluster.workers[1]: 3}
        for one, minutes in limits.items():
            slurm.limit(one, minutes)
        for one in limits:
            eventually(lambda one=one: cluster.restarts()[one] > before[one], f"{one} again")
            slurm.said("scontrol", "update", f"JobId={one}", "TimeLimit=20")
            slurm.release(one)
        goes_on(out)
        cluster.has_workers(2)
        assert cluster.restarts() == {one: before[one] + (one in limits) for one in before}

        # One is cancelled, and another one submitted for it.
        goes_on(out)
        worker = deaths.watch(cluster.process(cluster.workers[1]))
        slurm.said("scancel", cluster.workers[1])
        struck["cancelled"] = deaths.moment(worker)
        goes_on(out)
        told = cluster.said("--scale", "2")
        assert (told["before"], len(told["changed"])) == (1, 1)
        cluster.has_workers(2)
        goes_on(out)

        # All is stopped, and submitted again.
        cluster.said("--stop")
        slurm.empty()
        reached = max(steps(out))
        assert reached < options["max_iter"], "it was over too soon"
        slow.unlink()
        cluster.submit()
        digest = job.result("600s").digest()
    cluster.said("--stop")
    slurm.empty()
    told = [event["event"] for event in events(out)]
    assert told.count("interrupted") == 3, "preempted, at its limit and stopped it had time"
    assert len(steps(out)) == len(set(steps(out))) == options["max_iter"], "no step was lost"
    assert set(struck) >= {"killed", "cancelled"}
    pauses = {what: pause_at(out, moment) for what, moment in struck.items()}
    assert max(pauses.values()) <= RECOVERY, pauses
    km = lk.KMeans(50, random_state=0, **options).fit(str(tmp_path / "x.zarr"))
    assert digest == km.model_.digest()
    # Scratch is removed by whoever was asked to end.
    logs = "".join(path.read_text() for path in (home / "logs").iterdir())
    for folder in set(re.findall(r"Local Directory: (\S+/largek-\d+-\w+)/", logs)):
        eventually(lambda folder=folder: not Path(folder).exists(), f"no {folder}")


def blocks():
    """The code of the README's part about SLURM, as it is typed."""
    text = (DEPLOY / "README.md").read_text()
    part = text.split("\n## SLURM\n")[1].split("\n## ")[0]
    return re.findall(r"```shell\n(.*?)```", part, re.DOTALL)


@pytest.mark.usefixtures("chunks_as_stored")
def test_the_readme__from_the_installation_to_a_model_after_all_was_preempted(slurm, tmp_path):
    slow = slowing(tmp_path, 2.0)
    # What the package and its build need is that of the tests. (0 says no to isolated builds.)
    pip = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    pip |= {"PIP_IGNORE_INSTALLED": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    env = environment(slurm, slow, *python_site.getsitepackages(), PYTHONUNBUFFERED="1", **pip)
    shared = tmp_path / "shared"
    shared.mkdir()
    x = np.random.default_rng(0).standard_normal((4_000, 4)).astype(np.float32)
    lk.ingest(x, str(shared / "rows.zarr"), chunk_rows=500, progress=False)
    first, second = (code.replace("/shared/me", str(shared)) for code in blocks())
    home, out, screen = shared / "largek", shared / "run1", tmp_path / "screen"

    def run(code, folder=tmp_path):
        line = ["bash", "-e", "-o", "pipefail", "-c", code]
        with open(screen, "w") as file:
            return subprocess.run(
                line, cwd=folder, env=env, stdout=file, stderr=subprocess.PIPE, text=True
            )

    # Kernels are where `largek warmup` writes them, as the part says, before workers start.
    installing, submitting = first.rsplit("\nlargek cluster", 1)
    done = run(installing, ROOT)
    assert done.returncode == 0, done.stderr
    shutil.copytree(cache_folder(), home / "kernels" / cache_folder().name)
    done = run(f"source {home}/site.env\nlargek cluster{submitting}")
    assert done.returncode == 0, done.stderr
    cluster = Cluster(slurm, home, env | {"PATH": f"{home}/venv/bin{os.pathsep}{env['PATH']}"})
    eventually(lambda: Path(cluster.file).exists(), "a scheduler")
    jobs = sorted(slurm.states(), key=lambda job: [int(n) for n in re.findall(r"\d+", job)])[-17:]
    ended = []
    typing = threading.Thread(
        target=lambda: ended.append(run(f"source {home}/site.env\n{second}")), daemon=True
    )
    typing.start()
    goes_on(out, 1)
    eventually(screen.read_text, "what `largek watch` shows")
    with slurm.preempting(CPUS) as other:
        slurm.until(other, "RUNNING")
        assert "RUNNING" not in {slurm.states()[job] for job in jobs}
    assert events(out)[-1]["event"] == "interrupted", "it was over too soon"
    reached = max(steps(out))
    slow.unlink()
    slurm.release(jobs[0])
    typing.join(2 * PATIENCE)
    assert ended, "it has not ended"
    assert ended[0].returncode == 0, ended[0].stderr
    assert max(steps(out)) > reached
    slurm.empty()
    km = lk.KMeans(1000, random_state=0).fit(str(shared / "rows.zarr"))
    assert lk.load_model(str(out / "model.zarr")).digest() == km.model_.digest()
