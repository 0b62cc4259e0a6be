"""`deploy/slurm`: dask-jobqueue, one allocation by srun, and MPI, each as its users start it."""

import contextlib
import os
import re
from pathlib import Path

import dask
import numpy as np
import psutil
import pytest

import largek_dask as lk
from tests.deploy.running import (
    DEPLOY,
    ROOT,
    events,
    process,
    quick_environment,
    slowing,
    steps,
)
from tests.deploy.slurm import PATIENCE, site
from tests.helpers import checks
from tests.helpers.needs import program

pytestmark = pytest.mark.slow

FILES = DEPLOY / "slurm"
MINE = "  # yours"
CLUSTERS = 50
MODEL = f"<Model clusters: {CLUSTERS}, "
"""What is printed at the end."""


def eventually(reached, what, begun=None):
    """As ``checks.eventually``, patiently, and no longer than a process lives that does it."""

    def look():
        assert begun is None or begun.poll() is None, f"it has ended, and there was no {what}"
        return reached()

    return checks.eventually(look, what, PATIENCE)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Where the rows are, and the digest of a fit of them in this process that nobody disturbs."""
    url = str(tmp_path_factory.mktemp("rows") / "rows.zarr")
    x = np.random.default_rng(0).standard_normal((3_000, 4)).astype(np.float32)
    lk.ingest(x, url, chunk_rows=500, progress=False)
    with dask.config.set({"largek.data.read-chunk-bytes": 1}):
        return url, lk.KMeans(CLUSTERS, random_state=0).fit(url).model_.digest()


class Launched:
    """Files of `deploy/slurm` in a folder, and the values of a user in lines that are marked."""

    def __init__(self, folder, rows, seconds):
        self.here, self.shared = folder / "here", folder / "shared"
        self.here.mkdir(parents=True)
        self.out = self.shared / "run1"
        self.slow = slowing(folder, seconds)
        self.log = folder / "log"
        given = {"FOLDER": str(self.shared), "ROWS": rows, "RUN, CLUSTERS": ("run1", CLUSTERS)}
        self._values = given

    def copy(self, name, *replaced):
        """Copy a file, with three lines changed, and with texts replaced for the test."""
        lines, left = [], dict(self._values)
        for line in (FILES / name).read_text().splitlines():
            if name.endswith(".py") and MINE in line:
                key = line.partition(" = ")[0]
                line = f"{key} = {left.pop(key)!r}"
            lines.append(line)
        assert not left or not name.endswith(".py")
        text = "\n".join(lines)
        for old, new in replaced:
            assert text.count(old) == 1
            text = text.replace(old, new)
        (self.here / name).write_text(text)

    @contextlib.contextmanager
    def started(self, command, **more):
        """The process of a command, in an environment with the package and with launchers."""
        tools = str(Path(program("dask-mpi", "the extra deploy")).parent)
        paths = [self.slow.parent, ROOT]
        env = quick_environment(
            PATH=os.pathsep.join([tools, os.environ["PATH"]]),
            PYTHONPATH=os.pathsep.join(map(str, paths)),
            **more,
        )
        line = ["env", "--chdir", str(self.here), "bash", "-c", command]
        with process(line, self.log, env) as begun:
            try:
                yield begun
            finally:
                # A shell that is ended leaves what it has started.
                with contextlib.suppress(psutil.NoSuchProcess):
                    for child in psutil.Process(begun.pid).children(recursive=True):
                        child.terminate()

    def has_ended(self, begun):
        """Wait for a process that has to end well."""
        assert begun.wait(PATIENCE) == 0, self.log.read_text()
        assert MODEL in self.log.read_text()

    def submitted(self, command, **more):
        """The number of the job of SLURM that a command submits."""
        with self.started(command, **more) as begun:
            assert begun.wait(PATIENCE) == 0, self.log.read_text()
        return re.findall(r"Submitted batch job (\d+)", self.log.read_text())[-1]

    def digest(self):
        """Of the model where the file says that it is."""
        return lk.load_model(str(self.out / "model.zarr")).digest()


def typed(name, *replaced):
    """The line by which a file says that it is started, with other numbers."""
    pattern = rf"^(?:#|) {{4,5}}(.*\b{re.escape(name)}'?)$"
    [line] = re.findall(pattern, (FILES / name).read_text(), re.MULTILINE)
    for old, new in replaced:
        assert old in line
        line = line.replace(old, new)
    return line


def workers(service):
    """Their addresses: one that is begun for another has the same name."""
    return set(service.client.scheduler_info(n_workers=-1)["workers"])


@pytest.mark.parametrize("name", ["jobqueue.py", "runner.py", "mpi.sbatch"])
def test_the_readme_says_what_the_file_says(name):
    assert f"| `{typed(name)}` |" in (DEPLOY / "README.md").read_text()


READ = """
import asyncio, sys
import runner

def see(event, given):
    if event == "open" and str(given[0]) == {file!r}:
        print("opened", flush=True)

sys.addaudithook(see)
waiting = runner.Runner.__new__(runner.Runner)
waiting.scheduler_file = {file!r}
print(asyncio.run(waiting.get_scheduler_address()))
"""


def test_a_runner_waits_for_a_whole_scheduler_file(tmp_path):
    launched, file = Launched(tmp_path / "runner", "rows", 0.0), tmp_path / "scheduler.json"
    launched.copy("runner.py")
    (launched.here / "read.py").write_text(READ.format(file=str(file)))
    file.write_text('{"address": "tcp://1.2.')
    given = {"SLURM_CPUS_PER_TASK": "1", "SLURM_MEM_PER_CPU": "1024"}
    with launched.started("python read.py", **given) as begun:
        eventually(lambda: launched.log.read_text().count("opened") > 1, "second look", begun)
        (tmp_path / "whole").write_text('{"address": "tcp://1.2.3.4:5"}')
        os.replace(tmp_path / "whole", file)
        assert begun.wait(PATIENCE) == 0, launched.log.read_text()
    assert launched.log.read_text().endswith("tcp://1.2.3.4:5\n")


@pytest.mark.timeout(1500)
def test_jobqueue_whose_workers_reach_their_lifetime__a_runner_that_is_cancelled(rows, tmp_path):
    url, digest = rows
    queue = Launched(tmp_path / "queue", url, 5.0)
    runner = Launched(tmp_path / "runner", url, 0.5)
    queue.copy("jobqueue.py")
    queue.copy("jobqueue.yaml", ("--lifetime, 55m, --lifetime-stagger, 4m", "--lifetime, 20s"))
    runner.copy("runner.py")
    (tmp_path / "slurm").mkdir()
    with contextlib.ExitStack() as stack:
        slurm = stack.enter_context(site(tmp_path / "slurm"))
        notebook = stack.enter_context(queue.started(typed("jobqueue.py"), **slurm.variables))
        eventually(lambda: steps(queue.out), "a step with dask-jobqueue", notebook)
        file = str(queue.shared / "jobs" / "scheduler.json")
        with lk.connect(file, timeout="120s") as service:
            before = eventually(lambda: workers(service), "workers")

        line = typed("runner.py", ("-n 18", "-n 4"), ("-c 8", "-c 1"), ("=8G", "=1G"))
        # Not behind the workers that wait in the queue: CPUs are left for it.
        env = slurm.variables | {"SBATCH_PARTITION": "middle"}
        first = runner.submitted(line, **env, DASK_LARGEK__CHECKPOINTS__SECONDS="0.01")
        eventually(lambda: len(steps(runner.out)) >= 3, "three steps in the allocation")
        slurm.said("scancel", first)
        slurm.until(first, "CANCELLED")
        assert "finished" not in [event["event"] for event in events(runner.out)]
        runner.slow.unlink()
        second = runner.submitted(line, **env)
        over = ("COMPLETED", "FAILED")
        eventually(lambda: slurm.states()[second] in over, "the runner's end")
        assert MODEL in (runner.here / f"slurm-{second}.out").read_text()

        with lk.connect(file, timeout="120s") as service:
            eventually(
                lambda: (now := workers(service)) and not now & before, "other workers", notebook
            )
        assert notebook.poll() is None, "it was over too soon"
        queue.slow.unlink()
        queue.has_ended(notebook)
        slurm.empty()
    told = [event for event in events(runner.out) if event["event"] == "running"]
    assert len(told) == 2, "the job has not gone on"
    assert told[1]["taken_from"]
    assert steps(runner.out).count(1) == 1, "it has begun anew"
    assert {queue.digest(), runner.digest()} == {digest}


def test_mpi__the_service_is_given_to_a_scheduler_that_has_none(rows, tmp_path):
    url, digest = rows
    mpi = Launched(tmp_path / "mpi", url, 0.0)
    mpi.copy("mpi.py")
    mpi.copy("mpi.sbatch")
    assert typed("mpi.sbatch") == "sbatch mpi.sbatch"
    # What SLURM says there.
    said = {"SLURM_NTASKS": "4", "SLURM_CPUS_PER_TASK": "1", "SLURM_MEM_PER_CPU": "1000"}
    with mpi.started("bash mpi.sbatch", **said) as begun:
        mpi.has_ended(begun)
    assert mpi.digest() == digest
