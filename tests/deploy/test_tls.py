"""A cluster that speaks TLS only, with a certificate as README.md makes it, and what goes wrong."""

import contextlib
import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import dask
import numpy as np
import psutil
import pytest
from click.testing import CliRunner

import largek_dask as lk
from largek_dask.cli import main
from largek_dask.kernels.code_cache import cache_folder
from tests.deploy.running import end, free_port, make_certificate, process, quick_environment
from tests.helpers.checks import eventually
from tests.helpers.needs import program

DASK = [sys.executable, "-m", "dask"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a certificate of scheduler, worker and client."""
    found = tmp_path_factory.mktemp("tls")
    make_certificate(found)
    return found / "tls"


@contextlib.contextmanager
def settings(folder):
    """Dask's settings of a folder of certificates."""
    given = dask.config.collect(paths=[str(folder)], env={})
    merged = dask.config.merge(dask.config.config, given)
    with dask.config.set(distributed=merged["distributed"]):
        yield


def environment(folder):
    return quick_environment(DASK_CONFIG=str(folder))


def scheduler(folder, address):
    """The command of a scheduler that all of 127.0.0.0/8 reaches, so that it has other names."""
    port = address.rpartition(":")[2]
    return [
        *DASK, "scheduler", "--protocol", "tls", "--host", "0.0.0.0", "--port", port,
        "--dashboard-address", "127.0.0.1:0",
        "--preload", "largek_dask.service.preload", "--largek-store", str(folder / "store"),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def cluster(folder, tmp_path_factory):
    """``(address, restart)``: a scheduler and a worker; ``restart()`` ends both and starts them."""
    logs = tmp_path_factory.mktemp("logs")
    address = f"tls://127.0.0.1:{free_port()}"
    worker = [*DASK, "worker", address, "--nthreads", "1", "--no-nanny",
              "--dashboard-address", ":0"]  # fmt: skip
    with contextlib.ExitStack() as stack:
        running = []

        def restart():
            for one in running:
                end(one)
            for name in ("scheduler", "worker"):
                (logs / name).unlink(missing_ok=True)
            running[:] = [
                stack.enter_context(process(command, logs / name, environment(folder)))
                for name, command in (("scheduler", scheduler(folder, address)), ("worker", worker))
            ]
            for name in ("scheduler", "worker"):
                eventually(lambda name=name: look(f"{name}:", logs / name), f"{name} of {address}")

        def look(_what, log):
            text = log.read_text()
            return text.count("Scheduler at:" if log.name == "scheduler" else "Registered to:")

        restart()
        yield address, restart


def told(*arguments):
    """What ``largek doctor`` says of the cluster, by level, and its exit code."""
    done = CliRunner().invoke(main, ["doctor", "--json", *arguments])
    assert done.stdout, done.output
    findings = [f for f in json.loads(done.stdout)["findings"] if f["area"] == "cluster"]
    levels = ("ok", "note", "broken")
    by_level = {level: [f for f in findings if f["level"] == level] for level in levels}
    return by_level, done.exit_code


def test_the_certificate(folder):
    assert stat.S_IMODE((folder / "node.key").stat().st_mode) == 0o600
    # By openssl's own strict rules, as a server and as a client.
    for purpose in ("sslserver", "sslclient"):
        subprocess.run(
            ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile",
             str(folder / "ca.pem"), str(folder / "node.pem")],
            check=True,
        )  # fmt: skip


# --- a cluster ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("chunks_as_stored")
@pytest.mark.slow
def test_cluster__a_job_outlives_a_new_certificate(cluster, folder, tmp_path):
    address, restart = cluster
    with settings(folder):
        by_level, code = told("--scheduler", address)
        assert code == 0, by_level
        x = np.random.default_rng(0).standard_normal((3_000, 4)).astype(np.float32)
        lk.ingest(x, str(tmp_path / "x.zarr"), chunk_rows=500, progress=False)
        run = {**environment(folder), "DASK_SCHEDULER_ADDRESS": address}
        largek = [sys.executable, "-c", "from largek_dask.cli import main; main()"]
        done = subprocess.run(
            [*largek, "submit", str(tmp_path / "x.zarr"), "-k", "40", "--algorithm", "lloyd",
             "--tol", "0", "--max-iter", "150", "--out", str(tmp_path / "out"), "--json"],
            env=run, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        make_certificate(tmp_path)
        for name in ("ca.pem", "node.pem", "node.key"):
            (folder / name).write_bytes((tmp_path / "tls" / name).read_bytes())
        restart()
        with lk.connect(address) as service:
            job = service.job(json.loads(done.stdout)["id"])
            model = job.result("120s")
        km = lk.KMeans(40, algorithm="lloyd", tol=0, max_iter=150, random_state=0)
        assert model.digest() == km.fit(str(tmp_path / "x.zarr")).model_.digest()
        assert told("--scheduler", address)[1] == 0


@contextlib.contextmanager
def script(path, env):
    """A script that has been started; it ends with all that it has started, as in SLURM."""
    with process(["bash", str(path)], path.with_suffix(".log"), env) as begun:
        try:
            yield begun
        finally:
            for child in psutil.Process(begun.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.terminate()


def listening(*begun):
    """Ports and addresses at which processes listen that these have started."""
    for each in begun:
        for child in psutil.Process(each.pid).children(recursive=True):
            for connection in child.net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    yield connection.laddr.port, connection.laddr.ip


@pytest.mark.slow
@pytest.mark.parametrize("insecure", [False, True])
def test_slurm__scripts_as_they_are_written(insecure, tmp_path):
    """The scheduler's and a worker's, by hand: what they ask SLURM is made up."""
    program("openssl", "Debian's openssl")
    home, shared = tmp_path / "largek", str(tmp_path)
    home.mkdir()
    more = ["--insecure"] if insecure else []
    for name, said in (("squeue", ""), ("sbatch", "echo 11\n")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{said}")
        (tmp_path / name).chmod(0o755)
    places = [str(Path(sys.executable).parent), shared, os.environ["PATH"]]
    line = ["cluster", "slurm", "--home", str(home), "--submit", *more]
    done = CliRunner().invoke(main, line, env={"PATH": os.pathsep.join(places)})
    assert done.exit_code == 0, done.output
    assert ("can run code as you" in done.stderr) == insecure
    assert (home / "tls").exists() != insecure
    env = quick_environment(
        PATH=os.pathsep.join(places), LARGEK_HOME=str(home), LARGEK_SCRATCH=str(tmp_path / "node"),
        SLURM_JOB_ID="11", SLURM_ARRAY_JOB_ID="12", SLURM_ARRAY_TASK_ID="0",
        SLURM_MEM_PER_NODE="2000",
        DASK_LARGEK__KERNELS__CACHE_DIR=str(cache_folder().parents[1]),
    )  # fmt: skip
    file = home / "jobs" / "scheduler.json"
    speaks = "tcp://" if insecure else "tls://"
    with (
        script(home / "scheduler.sbatch", env) as scheduler,
        script(home / "step.sh", env) as worker,
    ):
        eventually(file.exists, "a scheduler")
        with lk.connect(file, timeout="60s") as service:
            rows = eventually(lambda: service.client.scheduler_info()["workers"], "a worker")
            assert service.client.scheduler.address.startswith(speaks)
            [(address, row)] = rows.items()
            assert row["name"] == "12-0"
            assert address.startswith(speaks)
            lk.ingest(np.eye(40, 3, dtype="f4"), str(tmp_path / "x.zarr"), progress=False)
            job = service.submit(str(tmp_path / "x.zarr"), n_clusters=3, output=f"{shared}/out")
            shown = io.StringIO()
            assert job.watch(shown) == "finished"
            assert shown.getvalue()
        by_level, code = told("--scheduler", str(file))
        assert code == 0, by_level
        said = json.loads(file.read_text())
        # Beside addresses of Dask there are pages: of the scheduler and of the worker.
        listened = dict(listening(scheduler, worker))
        for place in (said["address"], address):
            listened.pop(urlsplit(place).port)
        assert urlsplit(said["dashboard"]).port in listened
        assert list(listened.values()) == ["127.0.0.1"] * 2


def connected(address, folder):
    """What ``connect`` says in a process of its own: Dask leaves a socket open when it gives up."""
    connect = "import sys, largek_dask as lk; lk.connect(sys.argv[1], timeout='1s')"
    done = subprocess.run(
        [sys.executable, "-c", connect, address],
        env=environment(folder), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    [line] = [line for line in done.stderr.splitlines() if "SchedulerAwayError" in line]
    assert "no Dask scheduler answers at" in line
    return line


def test_who_cannot_connect_is_told_why(cluster, cluster2, folder, tmp_path):
    make_certificate(tmp_path)
    plain = cluster2.scheduler.address
    for address, place, advice in (
        (cluster[0].replace("tls", "tcp"), tmp_path, "DASK_CONFIG"),
        (plain.replace("tcp", "tls"), folder, plain),
        (cluster[0], tmp_path, "DASK_CONFIG"),
    ):
        assert advice in connected(address, place)
    assert "CERTIFICATE_VERIFY_FAILED" in connected(cluster[0], tmp_path / "tls")
    # The right authority, and a certificate of another one: the scheduler refuses that.
    (tmp_path / "tls" / "ca.pem").write_bytes((folder / "ca.pem").read_bytes())
    connected(cluster[0], tmp_path / "tls")
