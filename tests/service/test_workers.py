"""A job says which workers it uses: it waits for them, uses no others, and no bit changes."""

from __future__ import annotations

import json

import dask
import pytest

import largek_dask as lk
from largek_dask.errors import ParameterError
from largek_dask.passes.worker import WorkPlugin
from largek_dask.service.job_state import Waiting
from largek_dask.service.jobs import _usable_workers
from largek_dask.service.queue import SchedulerWorker
from largek_dask.service.spec import JobSpec
from tests.helpers.checks import eventually
from tests.service.conftest import queue_of
from tests.service.test_jobs import ENDED, expected

PLAIN = SchedulerWorker(frozenset(), True)
BIG = SchedulerWorker(frozenset({"bigmem"}), True)
PAUSED = SchedulerWorker(frozenset({"bigmem"}), False)


def asked(document, **workers):
    return JobSpec.parse({**json.loads(document()), "workers": workers})


def test_document__comes_back_as_it_went(document):
    assert JobSpec.parse(document()).dump()["workers"] is None
    spec = asked(document, min=2, max=8, tags=["bigmem"])
    assert spec.dump()["workers"] == {"min": 2, "max": 8, "tags": ["bigmem"]}
    assert JobSpec.parse(json.dumps(spec.dump())) == spec
    assert asked(document, tags=("b", "a")).workers.pick().tags == {"a", "b"}
    least = asked(document).workers.pick()
    assert (least.least, least.most, least.tags) == (1, None, frozenset())


def test_document__what_is_wrong_is_named(document):
    for workers, told in (
        ({"min": 0}, "workers.min: must be greater than or equal to 1"),
        ({"max": 0}, "workers.max: must be greater than or equal to 1"),
        ({"min": 3, "max": 2}, "workers: min=3 is greater than max=2"),
        ({"min": 1.5}, "workers.min: must be a valid integer"),
        ({"min": True}, "workers.min: must be a valid integer"),
        ({"tags": "bigmem"}, "workers.tags: must be a valid list"),
        ({"tags": [3]}, "workers.tags.0: must be a valid string"),
        ({"tags": ["a\nb"]}, "workers.tags.0: must not contain control characters"),
        ({"tag": ["a"]}, "workers.tag: is not"),
        (4, "workers: must be a valid dict"),
        (["a"], "workers: must be a valid dict"),
    ):
        with pytest.raises(ParameterError) as caught:
            JobSpec.parse({**json.loads(document()), "workers": workers})
        assert told in str(caught.value)


@pytest.fixture
def queued(document):
    """``queued(workers, *wanted)``: a queue of jobs that ask so, and these."""
    return lambda workers, *wanted: queue_of([asked(document, **of) for of in wanted], workers)


def begins(queue):
    queue._update_shortages()
    return [job.record.id for job in queue.due()]


def test_queue__a_job_begins_when_there_are_enough_for_it(queued):
    there = [PLAIN, BIG, PAUSED]
    wanted = ({"min": 4}, {"min": 2, "tags": ["bigmem"]}, {"min": 2}, {})
    queue, jobs = queued(there, *wanted)
    assert begins(queue) == ["lk-2", "lk-3"], "others do not wait for those before them"
    assert [job.state for job in jobs] == ["waiting", "waiting", "queued", "queued"]
    assert jobs[1].reason == "workers"
    why = "it wants 2 workers with bigmem, and of the 3 there 1 can be used"
    assert jobs[1].status()["note"] == why
    assert jobs[1].status()["workers_asked"] == {"min": 2, "max": None, "tags": ["bigmem"]}
    there.append(BIG)
    assert begins(queue) == ["lk-1", "lk-2", "lk-3"]
    assert (jobs[1].state, jobs[1].status()["note"]) == ("queued", "")
    there.append(BIG)
    assert begins(queue)[0] == "lk-0"


def test_queue__it_is_told_once(queued):
    there = [PLAIN]
    queue, (job,) = queued(there, {"min": 3})
    for _ in range(3):
        queue._update_shortages()
    there.append(PLAIN)
    queue._update_shortages()
    (event,) = job.feed.since(0, 10)
    assert (event["event"], event["reason"]) == ("waiting", "workers")
    assert event["message"] == "it wants 3 workers, and of the 1 there 1 can be used"
    assert "the 2 there" in job.explanation, "the newest number is in its status"


def test_queue__a_cancel_waits_for_no_workers(queued):
    queue, (job,) = queued([], {"tags": ["gpu"]})
    assert begins(queue) == []
    assert "no worker has gpu" in job.explanation
    job.change_unsaved(cancel=True)
    assert begins(queue) == ["lk-0"]
    job.begin()
    assert job.shortage is None


def test_worth__what_a_job_waits_for_is_asked_of_an_adaptive_cluster(queued):
    _, (job, other) = queued([], {"min": 3, "max": 4}, {})
    assert (_usable_workers(job, 1.0), _usable_workers(other, 1.0)) == (0, 0)
    job.shortage = Waiting("workers", "too few")
    assert _usable_workers(job, 1.0) == 3
    job.running = other.running = True
    job.feed.worth = other.feed.worth = lambda seconds: 9
    assert (_usable_workers(job, 1.0), _usable_workers(other, 1.0)) == (4, 9)
    job.feed.worth = lambda seconds: 1
    assert _usable_workers(job, 1.0) == 3


def test_cluster(tmp_path, rows_url, document, fresh_cluster):
    """With a real scheduler: it waits, then two of three with the tag work, and no other."""
    client = fresh_cluster(1, processes=False)
    options = client.cluster.new_spec["options"]
    service = lk.connect(client, store=str(tmp_path / "store"))
    spec = json.loads(document())
    order = {name: spec[name] for name in ("data", "output", "n_clusters")}
    order |= {"algorithm": lk.Lloyd(), "workers": {"min": 2, "max": 2, "tags": ["bigmem"]}}
    with dask.config.set({"largek.service.beat-seconds": 0.05}):
        job = service.submit(**order)
        eventually(lambda: job.status()["state"] == "waiting", "the job waits for workers")
        status = job.status()
        assert status["reason"] == "workers"
        assert status["note"] == (
            "it wants 2 workers with bigmem, and of the 1 there 0 can be used; no worker has "
            "bigmem (dask worker --resources bigmem=1)"
        )
        (plain,) = client.scheduler_info(n_workers=-1)["workers"]
        options["resources"] = {"bigmem": 1}
        client.cluster.scale(4)
        assert job.wait(timeout=120) in ENDED
    status = job.status()
    assert status["result"]["digest"] == expected(rows_url)
    worked = {
        worker.address: worker.plugins[WorkPlugin.name].worked.rows
        for worker in client.cluster.workers.values()
    }
    assert len(worked) >= 3, "others with the tag were there"
    assert worked.pop(plain) == 0
    assert sum(rows > 0 for rows in worked.values()) == 2
    service.close()
