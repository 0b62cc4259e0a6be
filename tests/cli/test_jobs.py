"""``largek submit | jobs | watch | cancel | logs | result`` against a cluster with the service."""

from __future__ import annotations

import json
import uuid
from contextlib import ExitStack
from dataclasses import replace

import dask
import numpy as np
import pytest
from click.testing import CliRunner

import largek_dask as lk
from largek_dask.cli import main
from largek_dask.service.job import EventPrinter, Job
from tests.conftest import make_client
from tests.helpers.checks import eventually

pytestmark = pytest.mark.usefixtures("chunks_as_stored")

ENDLESS = ("--algorithm", "minibatch", "--set", "batch_rows=64", "--tol", 0, "--max-iter", 10**6)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """The service of a cluster of one worker, in this process."""
    quick = {"largek.service.beat-seconds": 0.05, "largek.service.patience-seconds": 1.0}
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(quick))
        client = make_client(stack, 1, processes=False, protocol="tcp://")
        yield lk.connect(client, store=str(tmp_path_factory.mktemp("store")))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    x = np.random.default_rng(0).standard_normal((600, 4)).astype(np.float32)
    url = str(tmp_path_factory.mktemp("data") / "x.zarr")
    lk.ingest(x, url, chunk_rows=200, progress=False)
    assert lk.open_rows(url).n_chunks == 3
    return url


@pytest.fixture
def run(service, monkeypatch):
    """``run("jobs", code=0)``: a command against that scheduler."""
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", service.client.scheduler.address)

    def run(*arguments, code=0):
        done = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert done.exit_code == code, done.output
        assert "Traceback" not in done.stderr or "--debug" in arguments
        return done

    return run


@pytest.fixture
def submit(run, data, tmp_path):
    """``submit(*options)``: the id of a new job."""

    def submit(*options, k=5):
        base = ("submit", data, "-k", k, "--out", tmp_path / "run", "--json")
        return json.loads(run(*base, *options).stdout)["id"]

    return submit


def states(run, *options):
    found = json.loads(run("jobs", *options, "--json").stdout)
    return {job["id"]: job["state"] for job in found["jobs"]}


def job_on_the_scheduler(service, job_id):
    return service.client.cluster.scheduler.plugins["largek-jobs"]._jobs.find(job_id)


# --- from the first to the last command ---------------------------------------------------------


def test_a_job_from_submit_to_its_model(run, submit, data, tmp_path):
    job_id = submit("--seed", 3, "--tol", 0, "--name", "[red]x", "--algorithm", "lloyd")
    watched = run("watch", job_id).stdout.splitlines()
    kinds = [line[25:].split()[0] for line in watched]
    assert kinds[:2] == ["queued", "running"]
    assert kinds[-1] == "finished"
    assert "step" in kinds

    out = tmp_path / "run" / "model.zarr"
    told = "".join(run("result", job_id).stdout.split())  # lines are folded
    km = lk.KMeans(5, algorithm="lloyd", random_state=3, tol=0).fit(data)
    assert lk.load_model(str(out)).digest() == km.model_.digest()
    for text in (job_id, km.model_.digest(), "converged", str(out), "run/labels.zarr"):
        assert text in told
    assert states(run)[job_id] == "finished"
    assert "[red]x" in run("jobs").stdout
    logged = run("logs", job_id).stdout.splitlines()
    assert set(watched) <= set(logged)


def test_submit_and_wait(run, data, tmp_path):
    done = run("submit", data, "-k", 3, "--out", tmp_path / "a", "--no-labels", "--wait")
    assert "finished" in done.stdout
    assert "not written" in done.stdout
    assert "digest" in done.stdout
    done = run("submit", data, "-k", 3, "--out", tmp_path / "b", "--wait", "--json")
    told = json.loads(done.stdout)
    assert (told["state"], told["result"]["labels"]) == ("finished", True)
    assert lk.load_model(str(tmp_path / "b" / "model.zarr")).digest() == told["result"]["digest"]


def test_options_reach_the_job(service, submit):
    weights = ("--normalize", "l2", "--on-bad-rows", "skip", "--init", "k-means++", "--n-init", 2)
    limits = ("--max-iter", 7, "--max-time", "1m", "--set", "b0=100")
    limits += ("--workers-min", 1, "--workers-max", 3)
    job_id = submit("--algorithm", "nmbatch", *weights, *limits, "--storage-option", "auto_mkdir=1")
    spec = job_on_the_scheduler(service, job_id).record.spec
    assert spec.algorithm.model_dump() == {"name": "nmbatch", "parameters": {"b0": 100}}
    assert (spec.normalize, spec.on_bad_rows, spec.init) == ("l2", "skip", "k-means++")
    assert (spec.n_init, spec.max_iter, spec.max_time) == (2, 7, 60.0)
    assert spec.in_memory == ("auto_mkdir",)
    assert spec.workers.model_dump() == {"min": 1, "max": 3, "tags": []}


def test_workers__a_job_waits_for_a_tag_and_goes_on_without(service, run, submit):
    job_id = submit("--tag", "bigmem", "--tag", "gpu", "--max-iter", 2)
    job = service.job(job_id)
    eventually(lambda: job.state == "waiting", "the job waits")
    status = job.status()
    assert status["reason"] == "workers"
    assert "no worker has bigmem, gpu" in status["note"]
    run("cancel", job_id)
    assert job.wait("60s") == "cancelled"
    run("submit", "--resume", job_id, "--workers-max", 1)
    assert job.wait("120s") == "finished"
    assert job.status()["workers_asked"] == {"min": 1, "max": 1, "tags": []}


def test_events_as_json_are_one_a_line(run, submit):
    job_id = submit("--max-iter", 3)
    watched = [json.loads(line) for line in run("watch", job_id, "--json").stdout.splitlines()]
    assert [event["n"] for event in watched] == list(range(len(watched)))
    assert watched[0]["event"] == "queued"
    assert watched[-1]["event"] == "finished"
    logged = [json.loads(line) for line in run("logs", job_id, "--json").stdout.splitlines()]
    assert logged == watched


# --- other ends ---------------------------------------------------------------------------------


def test_a_job_that_fails(run, submit, tmp_path):
    x = np.zeros((50, 2), np.float32)
    x[17, 1] = np.nan
    lk.ingest(x, str(tmp_path / "bad.zarr"), progress=False)
    base = ("submit", tmp_path / "bad.zarr", "-k", 2, "--out", tmp_path / "run")
    done = run(*base, "--wait", code=1)
    assert "failed" in done.stdout
    assert "row 17" in done.stderr.splitlines()[-1]
    [job_id] = [name for name, state in states(run).items() if state == "failed"]
    for command in ("watch", "result"):
        assert "row 17" in run(command, job_id, code=1).stderr
    assert json.loads(run("result", job_id, "--json", code=1).stdout)["state"] == "failed"
    told = run("result", job_id, "--debug", code=1).stderr
    assert "On the scheduler and its workers:" in told
    assert "BadRowsError" in run("logs", job_id).stdout


def test_a_job_that_is_cancelled_and_gone_on_with(service, run, submit, tmp_path):
    job_id = submit(*ENDLESS)
    assert any(event["event"] == "step" for event in service.job(job_id).events())
    told = json.loads(run("cancel", job_id, "--json").stdout)
    assert (told["id"], told["before"]) == (job_id, "running")
    assert run("watch", job_id, code=3).stderr.endswith("Cancelled.\n")
    assert run("result", job_id, code=3).stdout == ""
    assert json.loads(run("result", job_id, "--json", code=3).stdout)["state"] == "cancelled"
    assert json.loads(run("cancel", job_id, "--json").stdout)["before"] == "cancelled"
    assert "  cancelling " in run("logs", job_id).stdout

    steps = service.job(job_id).model().provenance["n_iter"]
    base = ("submit", "--resume", job_id, "--max-iter", steps + 2)
    told = json.loads(run(*base, "--wait", "--json").stdout)
    assert (told["id"], told["state"], told["run"]) == (job_id, "finished", 2)
    assert told["result"]["n_iter"] == steps + 2


def test_ctrl_c_leaves_the_job_running(run, submit, monkeypatch):
    job_id = submit(*ENDLESS)

    def interrupted(self, *_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(EventPrinter, "__call__", interrupted)
        patch.setattr(Job, "wait", interrupted)
        for command in ("watch", "result"):
            told = run(command, job_id, code=3).stderr
            assert told.startswith(
                f"Job {job_id} continues. To watch it again: largek watch {job_id}"
            )
            assert "Cancelled" not in told
    assert states(run)[job_id] == "running"
    run("cancel", job_id)
    run("watch", job_id, code=3)


def test_a_job_that_waits_for_its_storage_options(service, run, submit):
    """As after a restart of the scheduler: what was in memory only is gone."""
    job_id = submit("--max-iter", 2, "--storage-option", "auto_mkdir=true")
    run("result", job_id)
    job = job_on_the_scheduler(service, job_id)
    job.secrets.clear()
    job.record = replace(job.record, result=None)
    assert states(run)[job_id] == "waiting"
    resume = ("submit", "--resume", job_id)
    assert "still waits for the storage options auto_mkdir" in run(*resume, code=1).stderr
    option = ("--storage-option", "auto_mkdir=true")
    assert "and no other option" in run(*resume, *option, "--max-iter", 9, code=1).stderr
    run(*resume, *option, "--wait")
    assert states(run)[job_id] == "finished"


# --- a queue ------------------------------------------------------------------------------------


def listed(run, *options):
    return json.loads(run("jobs", *options, "--json").stdout)


@pytest.fixture
def tag():
    """Part of names that no other test gives its jobs."""
    return uuid.uuid4().hex[:8]


@pytest.fixture
def three(service, run, data, tmp_path, tag):
    """Ids of three jobs that wait."""
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        ids = []
        for number, name in enumerate((f"{tag}-1", f"{tag}-2", "other")):
            out = tmp_path / str(number)
            done = run("submit", data, "-k", 3, "--out", out, "--name", name)
            ids.append(done.stdout.strip())
        yield ids
        for job_id in ids:
            service.job(job_id).cancel()


def test_jobs_are_found(run, three):
    assert set(three) <= set(states(run))
    assert set(three) <= set(states(run, "--state", "queued"))
    assert [job["id"] for job in listed(run, "--limit", 1)["jobs"]] == [three[-1]]
    assert "1 of the jobs" in run("jobs", "--limit", 1).stdout
    assert "state must be one of" in run("jobs", "--state", "asleep", code=1).stderr


def test_jobs_are_deleted(run, submit, service, tmp_path):
    job_id = submit("--max-iter", 2)
    service.job(job_id).wait("60s")
    running = submit("--name", "endless", *ENDLESS, "--out", tmp_path / "endless")
    refused = run("delete", running, code=1)
    assert f"job {running} is " in refused.stderr
    assert "cancel it first" in refused.stderr
    for is_there in (True, False):
        [row] = json.loads(run("delete", job_id, "--json").stdout)["jobs"]
        assert row == {"id": job_id, "deleted": is_there}
    assert (tmp_path / "run" / "model.zarr").exists()
    assert not (tmp_path / "run" / "checkpoints").exists()
    again = submit_to(run, tmp_path)
    assert service.job(again).wait("60s") == "finished"
    old = ("delete", "--older-than", "0s", "--state")
    assert again not in run(*old, "failed", "--json").stdout
    # The refusal of one does not hide what is gone by then.
    both = run("delete", again, running, "--outputs", code=1)
    assert again in both.stdout
    assert "cancel it first" in both.stderr
    assert "already" in run("delete", again).stdout
    third = submit_to(run, tmp_path)
    assert service.job(third).wait("60s") == "finished"
    assert third in run(*old, "finished", "--outputs").stdout
    assert not (tmp_path / "again" / "model.zarr").exists()
    assert json.loads(run(*old, "finished", "--json").stdout) == {"jobs": []}
    assert running in states(run)
    run("cancel", running)
    service.job(running).wait("60s")


def test_a_version_is_accepted(run, three, service):
    one = three[0]
    service.job(one).cancel()
    eventually(lambda: service.job(one).state == "cancelled", "it to end")
    known = job_on_the_scheduler(service, one)
    known.record = replace(known.record, versions=("0.0.9",))
    run("submit", "--resume", one, "--accept-version")
    assert service.job(one).status()["versions"] == ["0.0.9", lk.__version__]


def submit_to(run, tmp_path):
    data = np.random.default_rng(0).standard_normal((60, 2)).astype(np.float32)
    np.save(tmp_path / "few.npy", data)
    asked = ("submit", tmp_path / "few.npy", "-k", 2, "--out", tmp_path / "again", "--json")
    return json.loads(run(*asked).stdout)["id"]


# --- wrong usage --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["submit"], 2, "give DATA, or --resume ID"),
        (["submit", "x"], 2, "give -k K, or --resume ID"),
        (["submit", "x", "-k", 3], 2, "give --out, or --resume ID"),
        (["submit", "--resume", "lk-1", "--tag", "big"], 1, "there is no job lk-1"),
        (
            ["submit", "/x", "-k", 3, "--out", "/y", "--workers-min", 0],
            1,
            "must be greater than or equal to 1",
        ),
        (
            ["submit", "/x", "-k", 3, "--out", "/y", "--workers-min", 2, "--workers-max", 1],
            1,
            "min=2 is greater than max=1",
        ),
        (["submit", "x", "-k", 3, "--out", "y", "--algorithm", "magic"], 2, "one of 'auto'"),
        (["submit", "x.zarr", "-k", 3, "--out", "/y"], 1, "data: is a relative path"),
        (["submit", "/no.zarr", "-k", 3, "--out", "/y"], 1, "/no.zarr"),
        (["submit", "--resume", "lk-1"], 1, "there is no job lk-1"),
        (["watch"], 2, "Missing argument 'ID"),
        (["watch", "lk-1"], 1, "there is no job lk-1"),
        (
            ["submit", "/x", "-k", 3, "--out", "/y", "--accept-version"],
            2,
            "--accept-version requires",
        ),
        (["delete", "../x"], 1, "'../x' is not a valid job id"),
        (["delete"], 2, "give either job IDs or --older-than"),
        (["delete", "lk-1", "--older-than", "1d"], 2, "give either job IDs or --older-than"),
        (["delete", "lk-1", "--state", "failed"], 2, "requires --older-than"),
        (["delete", "--older-than", "1d", "--state", "running"], 2, "'running' is not one of"),
        (["delete", "--older-than", "yesterday"], 1, "older_than"),
        (["cancel", "../x"], 1, "'../x' is not a valid job id"),
        (["logs", "lk-1"], 1, "there is no job lk-1"),
        (["result", "lk-1"], 1, "there is no job lk-1"),
        (["jobs", "--scheduler", "nonsense://x"], 1, "no Dask scheduler answers at"),
    ],
)
def test_wrong_usage(run, arguments, code, message):
    done = run(*arguments, code=code)
    assert message in done.stderr
    assert done.stdout == ""
