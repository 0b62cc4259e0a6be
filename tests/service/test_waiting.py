"""What a job waits for besides storage (see ``tests/faults/test_away.py``): one state, a reason."""

import re

import dask
import pytest

import largek_dask as lk
from largek_dask.driver.run import Clock
from largek_dask.driver.storage import Folder
from largek_dask.errors import VersionMismatchError
from largek_dask.passes import admission
from largek_dask.passes.worker import versions
from largek_dask.service import runner
from largek_dask.service.jobs import Jobs
from largek_dask.service.store import Records
from tests.helpers.checks import fit_asked
from tests.service.conftest import begun, wait_until
from tests.service.test_jobs import ENDED, expected


def test_workers(tmp_path, document, rows_url, quick_leases, fresh_cluster):
    client = fresh_cluster(0, processes=False)
    jobs = Jobs(Records(Folder(str(tmp_path / "store"))), lambda: client, "me")
    jobs.start()
    try:
        job_id = jobs.submit(document(), {}, "me")
        status = wait_until(jobs, job_id, "waiting", *ENDED)
        assert (status["state"], status["reason"]) == ("waiting", "workers")
        assert status["note"] == "the cluster has no workers; waiting for one"
        client.cluster.scale(1)
        status = wait_until(jobs, job_id, *ENDED)
        assert status["state"] == "finished"
        assert status["reason"] is None
        assert not status["note"]
        assert status["result"]["digest"] == expected(rows_url)
    finally:
        assert jobs.close(120.0) == []


def test_workers__a_time_limit_that_ends_while_they_are_away_keeps_the_last_model(
    open_jobs, document, slow_steps, rows_url, tmp_path, quick_leases, fresh_cluster, monkeypatch
):
    first = open_jobs()
    job_id = first.submit(document(max_time=1e6), {}, "me")
    begun(first, job_id, 2)
    assert first.close(120.0) == []
    assert (tmp_path / "out" / "checkpoints" / "000002.json").exists()
    after_two = fit_asked(
        lk.open_rows(rows_url), algorithm=lk.Lloyd(), n_clusters=7, seed=0, max_iter=2, tol=0.0
    )
    monkeypatch.setattr(Clock, "is_over", lambda clock: True)
    client = fresh_cluster(0, processes=False)
    jobs = Jobs(Records(Folder(str(tmp_path / "store"))), lambda: client, "me")
    jobs.start()
    try:
        status = wait_until(jobs, job_id, *ENDED)
        result, model = status["result"], jobs.model(job_id)
    finally:
        assert jobs.close(120.0) == []
    assert [e["event"] for e in jobs.events(job_id, 0, 1000)].count("started") == 1, "only before"
    found = status["state"], result["stop_reason"], result["n_iter"]
    assert found == ("finished", "max_time", 2)
    assert result["digest"] == model.digest()
    assert model.provenance["stop_reason"] == "max_time"
    assert model.arrays.centers.tobytes() == after_two.arrays.centers.tobytes()


def test_workers__a_time_limit_without_any_model_is_an_error(
    tmp_path, document, quick_leases, fresh_cluster, monkeypatch
):
    monkeypatch.setattr(Clock, "is_over", lambda clock: True)
    client = fresh_cluster(0, processes=False)
    jobs = Jobs(Records(Folder(str(tmp_path / "store"))), lambda: client, "me")
    jobs.start()
    try:
        job_id = jobs.submit(document(max_time=1e6), {}, "me")
        status = wait_until(jobs, job_id, *ENDED)
        assert status["state"] == "failed"
        assert "before there was a model" in status["result"]["message"]
    finally:
        assert jobs.close(120.0) == []


MISFITS = {
    "version": ("versions", lambda: {**versions(), "numba": "0.1"}, "has numba 0.1 instead of"),
    "storage": ("admit", lambda *about: "FileNotFoundError: nothing", "cannot open .*: nothing"),
}


@pytest.mark.parametrize("reason", MISFITS)
def test_workers__that_all_became_unfit_while_the_scheduler_was_away(
    reason, tmp_path, open_jobs, document, rows_url, slow_steps, fresh_cluster, monkeypatch
):
    """The job waits and says why; with one that can take part it goes on from its checkpoint."""
    first = open_jobs()
    job_id = first.submit(document(), {}, "me")
    begun(first, job_id, 2)
    assert first.close(120.0) == []
    slow_steps.set()
    name, answer, text = MISFITS[reason]
    real = getattr(admission, name)

    def asked(*about, dask_worker=None):
        if dask_worker is None or dask_worker.name != 0:
            return real(*about, **({"dask_worker": dask_worker} if name == "admit" else {}))
        return answer(*about)

    monkeypatch.setattr(admission, name, asked)
    client = fresh_cluster(1, processes=False)
    assert list(client.cluster.workers) == [0], "only one that is unfit"
    records = Records(Folder(str(tmp_path / "store")))
    with dask.config.set({"largek.service.retry-seconds": 0.2}):
        later = Jobs(records, lambda: client, "later")
        later.start()
        try:
            status = wait_until(later, job_id, "waiting", *ENDED, seconds=60.0)
            assert (status["state"], status["reason"]) == ("waiting", reason)
            assert re.search(f"{client.cluster.workers[0].address} {text}", status["note"])
            client.cluster.scale(2)
            status = wait_until(later, job_id, *ENDED, seconds=60.0)
            assert status["state"] == "finished", str(status)
            assert status["result"]["digest"] == expected(rows_url)
            events = later.events(job_id, 0, 10_000)
            assert [e["n_iter"] for e in events if e["event"] == "started"] == [0, 2]
            assert [e["reason"] for e in events if e["event"] == "waiting"] == [reason]
        finally:
            assert later.close(120.0) == []


@pytest.mark.parametrize("has_run", [True, False])
def test_version(open_jobs, document, rows_url, monkeypatch, has_run):
    """Workers are exchanged for newer ones, and later the scheduler's are back."""
    calls = []
    fit_into = runner.fit_into

    def exchanged(*args, **options):
        calls.append(args)
        if len(calls) <= 3:
            if has_run:
                for sink in options["events"]:
                    sink({"event": "started", "n_rows": 1, "n_chunks": 1})
            raise VersionMismatchError("workers run other versions than this process")
        return fit_into(*args, **options)

    monkeypatch.setattr(runner, "fit_into", exchanged)
    jobs = open_jobs()
    job_id = jobs.submit(document(), {}, "me")
    status = wait_until(jobs, job_id, *ENDED)
    reasons = [
        event["reason"] for event in jobs.events(job_id, 0, 1000) if event["event"] == "waiting"
    ]
    if not has_run:
        assert status["state"] == "failed"
        assert "other versions" in status["result"]["message"]
        assert reasons == []
        return
    assert status["state"] == "finished"
    assert status["result"]["digest"] == expected(rows_url)
    assert len(calls) == 4
    assert set(reasons) == {"version"}


def test_credentials__of_an_environment_that_is_gone(
    open_jobs, document, rows_url, tmp_path, monkeypatch
):
    monkeypatch.setenv("LARGEK_TEST_OPTION", "anything")
    first = open_jobs()
    # Local files have no use for options.
    options = {"key": {"env": "LARGEK_TEST_OPTION"}}
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        job_id = first.submit(document(storage_options=options), {}, "me")
    first.close(10.0)
    monkeypatch.delenv("LARGEK_TEST_OPTION")
    later = open_jobs()
    status = wait_until(later, job_id, "waiting", *ENDED)
    assert (status["state"], status["reason"]) == ("waiting", "credentials")
    assert "LARGEK_TEST_OPTION" in status["note"]
    monkeypatch.setenv("LARGEK_TEST_OPTION", "anything")
    status = wait_until(later, job_id, *ENDED)
    assert status["state"] == "finished", str(status)
    assert lk.load_model(str(tmp_path / "out" / "model.zarr")).digest() == expected(rows_url)
