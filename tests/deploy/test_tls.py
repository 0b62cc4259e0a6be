"""`deploy/tls`: certificates by openssl, a cluster that speaks TLS only, and what goes wrong."""

import contextlib
import datetime
import io
import json
import os
import socket
import ssl
import stat
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

import dask
import numpy as np
import psutil
import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

import largek_dask as lk
from largek_dask.cli import check_encryption, main
from largek_dask.kernels.jit import cache_folder
from largek_dask.passes.encryption import Certificate, certificates_in, look_at, why_no_answer
from largek_dask.service.scheduler_file import Finder
from tests.deploy.running import DEPLOY, end, free_port, process, quick_environment
from tests.helpers.checks import eventually
from tests.helpers.needs import program

DASK = [sys.executable, "-m", "dask"]


def make(*arguments, check=True):
    """Run ``make.sh``."""
    program("openssl", "Debian's openssl")
    done = subprocess.run(
        [str(DEPLOY / "tls" / "make.sh"), *map(str, arguments)], capture_output=True, text=True
    )
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Certificates of one authority for this machine: a scheduler's for three weeks only."""
    return certificates(tmp_path_factory.mktemp("tls"))


def certificates(out):
    """Make those of one authority, for a scheduler and for a client."""
    make("--out", out, "--at", out / "here", "--days", "20", "here,10.0.0.1")
    make("--out", out, "--at", out / "mine", "mine")
    return out


@contextlib.contextmanager
def settings(folder):
    """Dask's settings of a folder that ``make.sh`` has written."""
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
                stack.enter_context(process(command, logs / name, environment(folder / "here")))
                for name, command in (("scheduler", scheduler(folder, address)), ("worker", worker))
            ]
            for name in ("scheduler", "worker"):
                eventually(
                    lambda name=name: look(f"{name}:", logs / name), f"{name} of {address}", 60
                )

        def look(_what, log):
            text = log.read_text()
            return text.count("Scheduler at:" if log.name == "scheduler" else "Registered to:")

        restart()
        yield address, restart


def told(*arguments):
    """What ``largek doctor`` says of TLS and cluster, by level, and its exit code."""
    done = CliRunner().invoke(main, ["doctor", "--json", *arguments])
    assert done.stdout, done.output
    findings = [f for f in json.loads(done.stdout)["findings"] if f["area"] in ("tls", "cluster")]
    levels = ("ok", "note", "broken")
    by_level = {level: [f for f in findings if f["level"] == level] for level in levels}
    return by_level, done.exit_code


def signed(out, host, begins, ends):
    """Give a host of ``out`` a certificate of its authority for these days from now on."""
    authority = x509.load_pem_x509_certificate((out / "ca.pem").read_bytes())
    key = load_pem_private_key((out / "ca.key").read_bytes(), None)
    old = x509.load_pem_x509_certificate((out / host / "node.pem").read_bytes())
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(authority.subject)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=begins))
        .not_valid_after(now + datetime.timedelta(days=ends))
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    new = builder.sign(key, hashes.SHA256())
    (out / host / "node.pem").write_bytes(new.public_bytes(Encoding.PEM))


@contextlib.contextmanager
def server(folder):
    """Somebody who speaks TLS with the certificate of a folder, whoever asks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "node.pem", folder / "node.key")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(60)
        ended = threading.Event()

        def serve():
            while not ended.is_set():
                connection, _ = listening.accept()
                with contextlib.suppress(OSError), connection:
                    connection.settimeout(60)
                    context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"tls://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            ended.set()
            socket.create_connection(listening.getsockname()).close()
            thread.join(60)
        assert not thread.is_alive()


# --- make.sh --------------------------------------------------------------------------------------


def test_make__files_names_and_dates(tmp_path):
    folder = certificates(tmp_path)
    [authority] = certificates_in(str(folder / "ca.pem"))
    [here] = certificates_in(str(folder / "here" / "node.pem"))
    [mine] = certificates_in(str(folder / "mine" / "node.pem"))
    assert (authority.ends - authority.begins).days == 3650
    assert ((here.ends - here.begins).days, (mine.ends - mine.begins).days) == (20, 365)
    assert here.issuer == mine.issuer == authority.subject == authority.issuer
    assert here.names == ("here", "10.0.0.1", "localhost", "127.0.0.1")
    for key in (folder / "ca.key", folder / "here" / "node.key", folder / "mine" / "node.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert sorted(os.listdir(folder / "mine")) == ["ca.pem", "node.key", "node.pem", "tls.yaml"]
    # By openssl's own strict rules, as a server and as a client.
    for purpose in ("sslserver", "sslclient"):
        done = subprocess.run(
            ["openssl", "verify", "-x509_strict", "-purpose", purpose, "-CAfile",
             str(folder / "ca.pem"), str(folder / "here" / "node.pem")],
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    node = x509.load_pem_x509_certificate((folder / "here" / "node.pem").read_bytes())
    constraints = node.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert not constraints.value.ca


def test_make__the_second_run_takes_the_same_authority_and_overwrites_nothing(tmp_path):
    make("--out", tmp_path, "a")
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert len(before) == 6
    refused = make("--out", tmp_path, "b", "a", check=False)
    assert refused.returncode == 1
    assert "a has a certificate: --renew replaces it" in refused.stderr
    make("--out", tmp_path, "b")
    assert {p: p.read_bytes() for p in before} == before
    make("--out", tmp_path, "--renew", "a")
    changed = {p.name for p in before if p.read_bytes() != before[p]}
    assert changed == {"node.pem", "node.key"}
    (tmp_path / "ca.key").unlink()
    refused = make("--out", tmp_path, "c", check=False)
    assert refused.returncode == 1
    assert "only one of ca.pem and ca.key" in refused.stderr
    assert (tmp_path / "ca.pem").read_bytes() == before[tmp_path / "ca.pem"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no host is named"),
        (["--days", "0", "a"], "--days 0 is no number of days"),
        (["--at", "here", "a"], "--at here has to be an absolute path"),
        (["../a"], "'../a' is no HOST"),
        (["a,,b"], "'a,,b' is no HOST"),
        (["--nonsense", "a"], "unknown option --nonsense"),
        (["--out"], "--out needs a value"),
        (["--renew", "a"], "there is no authority"),
    ],
)
def test_make__bad_arguments(arguments, says, tmp_path):
    refused = make(*(["--out", tmp_path / "out"] if arguments != ["--out"] else []), *arguments,
                   check=False)  # fmt: skip
    assert refused.returncode == 1
    assert refused.stderr.startswith("make.sh: ")
    assert says in refused.stderr
    assert not list((tmp_path / "out").rglob("*.pem"))


# --- a cluster ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("chunks_as_stored")
@pytest.mark.slow
def test_cluster__a_job_outlives_the_renewal_of_all_certificates(cluster, folder, tmp_path):
    address, restart = cluster
    with settings(folder / "mine"):
        by_level, code = told("--scheduler", address)
        assert code == 0, by_level
        notes = [f["text"] for f in by_level["note"]]
        assert any(
            "certificate of the scheduler" in text and "in 19 days" in text for text in notes
        )
        assert any(
            "certificate of worker tls://" in text and "in 19 days" in text for text in notes
        )
        assert any("mine/node.pem: ends on" in f["text"] for f in by_level["ok"])

        x = np.random.default_rng(0).standard_normal((3_000, 4)).astype(np.float32)
        lk.ingest(x, str(tmp_path / "x.zarr"), chunk_rows=500, progress=False)
        run = {**environment(folder / "mine"), "DASK_SCHEDULER_ADDRESS": address}
        largek = [sys.executable, "-c", "from largek_dask.cli import main; main()"]
        done = subprocess.run(
            [*largek, "submit", str(tmp_path / "x.zarr"), "-k", "40", "--algorithm", "lloyd",
             "--tol", "0", "--max-iter", "150", "--out", str(tmp_path / "out"), "--json"],
            env=run, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        make("--out", folder, "--at", folder / "here", "--renew", "here,10.0.0.1")
        restart()
        with lk.connect(address) as service:
            job = service.job(json.loads(done.stdout)["id"])
            model = job.result("120s")
        km = lk.KMeans(40, algorithm="lloyd", tol=0, max_iter=150, random_state=0)
        assert model.digest() == km.fit(str(tmp_path / "x.zarr")).model_.digest()
        by_level, code = told("--scheduler", address)
        assert code == 0
        assert not [f for f in by_level["note"] if f["area"] == "tls"]
        [first] = [f for f in by_level["ok"] if "of 1 workers" in f["text"]]
        assert "in 364 days" in first["text"]


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
    line = ["cluster", "slurm", "--home", str(home), "--out", str(home), *more]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 0, done.output
    assert ("can run code as you" in done.stderr) == insecure
    assert (home / "tls").exists() != insecure
    (tmp_path / "squeue").write_text("#!/bin/sh\n")
    (tmp_path / "squeue").chmod(0o755)
    places = [str(Path(sys.executable).parent), shared, os.environ["PATH"]]
    env = quick_environment(
        PATH=os.pathsep.join(places), LARGEK_HOME=str(home), LARGEK_SCRATCH=str(tmp_path / "node"),
        SLURM_JOB_ID="11", SLURM_ARRAY_JOB_ID="12", SLURM_ARRAY_TASK_ID="0", SLURM_PROCID="0",
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
            rows = eventually(service.workers, "a worker")
            assert service.client.scheduler.address.startswith(speaks)
            assert [row["name"] for row in rows] == ["12-0-0"]
            assert rows[0]["address"].startswith(speaks)
            assert rows[0]["why"] is None
            lk.ingest(np.eye(40, 3, dtype="f4"), str(tmp_path / "x.zarr"), progress=False)
            job = service.submit(str(tmp_path / "x.zarr"), n_clusters=3, output=f"{shared}/out")
            shown = io.StringIO()
            assert job.watch(shown) == "finished"
            assert shown.getvalue()
        by_level, code = told("--scheduler", str(file))
        assert code == 0, by_level
        assert any("certificate of worker tls://" in f["text"] for f in by_level["ok"]) != insecure
        said = json.loads(file.read_text())
        # Beside addresses of Dask there are pages: of the scheduler and of the worker.
        listened = dict(listening(scheduler, worker))
        for address in (said["address"], rows[0]["address"]):
            listened.pop(urlsplit(address).port)
        assert urlsplit(said["dashboard"]).port in listened
        assert list(listened.values()) == ["127.0.0.1"] * 2


def test_plain_client_at_a_scheduler_that_speaks_tls(cluster):
    address = cluster[0].replace("tls", "tcp")
    by_level, code = told("--scheduler", address)
    assert code == 1
    [finding] = by_level["broken"]
    assert finding["text"] == f"{address} speaks TLS, and this is a plain address"
    assert "say tls://" in finding["advice"]
    # (Dask leaves a socket open when such a connection is given up, so none is tried here.)
    error = str(Finder(address).nobody(OSError()))
    assert "no Dask scheduler answers" in error
    assert "speaks TLS, and this is a plain address: say tls://" in error


def test_tls_client_at_a_plain_scheduler(cluster2, folder):
    plain = cluster2.scheduler.address
    address = plain.replace("tcp", "tls")
    with settings(folder / "mine"):
        by_level, code = told("--scheduler", address)
        assert code == 1
        [finding] = by_level["broken"]
        assert finding["text"] == f"{address} speaks plain TCP, no TLS"
        assert plain in finding["advice"]
    # In a process of its own: Dask leaves a socket open when such a connection is given up.
    connect = "import sys, largek_dask as lk; lk.connect(sys.argv[1], timeout='1s')"
    done = subprocess.run(
        [sys.executable, "-c", connect, address],
        env=environment(folder / "mine"), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "no Dask scheduler answers at" in done.stderr
    assert "speaks plain TCP, no TLS: start it with" in done.stderr


def test_client_without_certificates(cluster):
    by_level, code = told("--scheduler", cluster[0])
    assert code == 1
    [finding] = by_level["broken"]
    assert "distributed.comm.tls.ca-file is not set" in finding["text"]
    assert "DASK_CONFIG" in finding["advice"]


def test_wrong_authority(cluster, folder, tmp_path):
    make("--out", tmp_path, "--at", tmp_path / "other", "other")
    with settings(tmp_path / "other"):
        by_level, code = told("--scheduler", cluster[0])
        assert code == 1
        [finding] = by_level["broken"]
        [authority] = certificates_in(str(folder / "ca.pem"))
        assert f"is signed by {authority.subject!r}, which is not the authority" in finding["text"]
        assert str(tmp_path / "other" / "ca.pem") in finding["text"]
        assert "which is not the authority in" in why_no_answer(cluster[0])
    # The right authority, and a certificate of another one: the scheduler refuses that.
    (tmp_path / "other" / "ca.pem").write_bytes((folder / "ca.pem").read_bytes())
    with settings(tmp_path / "other"):
        by_level, code = told("--scheduler", cluster[0])
    assert code == 1
    [finding] = by_level["broken"]
    assert "refuses the certificate of this process" in finding["text"]
    assert "of another authority" in finding["text"]


def test_wrong_name_is_told_though_dask_takes_it(cluster, folder):
    address = cluster[0].replace("127.0.0.1", "127.0.0.2")
    with settings(folder / "mine"):
        assert not look_at(cluster[0]).other_name
        by_level, code = told("--scheduler", address)
    assert code == 0, by_level
    [finding] = [f for f in by_level["note"] if "not for the name in" in f["text"]]
    assert "for here, 10.0.0.1, localhost, 127.0.0.1, not" in finding["text"]
    assert "could answer instead" in finding["text"]


@pytest.mark.parametrize(
    ("begins", "ends", "says"),
    [(-30, -2, "ended on"), (2, 30, "is valid from")],
)
def test_certificates_out_of_date(begins, ends, says, cluster, folder, tmp_path):
    for name in ("ca.pem", "ca.key"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    make("--out", tmp_path, "--at", tmp_path / "old", "old")
    signed(tmp_path, "old", begins, ends)
    # The scheduler's.
    with settings(folder / "mine"), server(tmp_path / "old") as address:
        by_level, code = told("--scheduler", address)
        assert code == 1
        [finding] = by_level["broken"]
        assert f"the certificate of {address} {says}" in finding["text"]
        assert f"the certificate of {address} {says}" in why_no_answer(address)
    # The client's own.
    with settings(tmp_path / "old"):
        by_level, code = told("--scheduler", cluster[0])
    assert code == 1
    *_, refused = by_level["broken"]
    assert "refuses the certificate of this process" in refused["text"]
    if ends < 0:
        assert f"{tmp_path}/old/node.pem: ended on" in by_level["broken"][0]["text"]
        assert "it is expired" in refused["text"]


# --- reading certificates -------------------------------------------------------------------------


def test_certificates_that_are_none(folder, tmp_path):
    der = ssl.PEM_cert_to_DER_cert((folder / "ca.pem").read_text())
    assert Certificate.parse(der).subject.startswith("largek authority")
    for bad in (b"", b"\x30", der[:40], der[:-1], der + b"\x30\x01", b"\xff" * 50):
        with pytest.raises(ValueError):
            Certificate.parse(bad)
    (tmp_path / "no.pem").write_text("nothing\n")
    with pytest.raises(ValueError, match="no line 'BEGIN CERTIFICATE'"):
        certificates_in(str(tmp_path / "no.pem"))


def test_paths_that_lead_nowhere_are_told(cluster, tmp_path):
    text = (DEPLOY / "tls" / "tls.yaml").read_text()
    (tmp_path / "tls.yaml").write_text(text.replace("/etc/largek/tls", str(tmp_path)))
    with settings(tmp_path):
        by_level, code = told("--scheduler", cluster[0])
    assert code == 1
    [finding] = by_level["broken"]
    assert str(tmp_path / "ca.pem") in finding["text"]
    assert "correct the paths in tls.yaml" in finding["advice"]


def test_workers_that_cannot_be_reached_are_counted():
    class Client:
        def scheduler_info(self, n_workers):
            return {"workers": {f"tls://127.0.0.1:{free_port()}": {}, "tcp://127.0.0.1:1": {}}}

    [finding] = check_encryption.check_workers(Client())
    assert finding.level == "note"
    assert "1 of 1 workers cannot be reached from here" in finding.text
