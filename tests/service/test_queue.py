"""All jobs of a scheduler: who is in it while it has the store, and what is read and kept again."""

from __future__ import annotations

import threading

import pytest

from largek_dask.driver.storage import Folder
from largek_dask.errors import ClusterError
from largek_dask.service.job_state import JobState
from largek_dask.service.queue import Queue
from largek_dask.service.spec import JobSpec
from largek_dask.service.store import Records


class FakeStoreLease:
    """A store that is had or not, as a test says."""

    def __init__(self, records):
        self.records, self.is_held, self.holder, self.lose = records, False, "", None

    def claim(self, lost):
        self.is_held, self.lose = True, lost

    def refusal(self):
        return ClusterError(f"the jobs are those of {self.holder}")


@pytest.fixture
def records(tmp_path):
    return Records(Folder(str(tmp_path / "store")))


@pytest.fixture
def store_lease(records):
    return FakeStoreLease(records)


@pytest.fixture
def table(store_lease):
    return Queue(store_lease, threading.Condition(threading.RLock()))


@pytest.fixture
def two(records, document):
    """Ids of a job, and of one whose record is torn; and the second's record, mended."""
    kept, torn = (records.create(JobSpec.parse(document(name)), "me", 1.0) for name in "ab")
    damage(records, torn.id)
    return kept.id, torn.id, lambda: records.update(torn)


def damage(records, job_id):
    records.folder.sub("jobs").publish(f"{job_id}.json", b"{")


def taken(store_lease, table, by="scheduler-1"):
    """Another scheduler takes the store."""
    store_lease.holder, store_lease.is_held = by, False
    store_lease.lose()


def test_a_store_that_is_lost_is_forgotten(store_lease, table, two):
    kept, torn, mend = two
    table.acquire()
    assert [job.record.id for job in table.jobs()] == [kept]
    (job,) = table.jobs()
    taken(store_lease, table)
    assert job.stopped_for == "lost"
    assert not table.jobs()
    mend()
    for job_id in (kept, torn):
        with pytest.raises(ClusterError, match="scheduler-1"):
            table.find(job_id)
    table.acquire()
    assert {job.record.id for job in table.jobs()} == {kept, torn}
    assert table.jobs()[0] is not job
    assert not table.jobs()[0].is_stopped()


def test_a_store_is_read_once_while_it_is_held(store_lease, table, records, document, two):
    table.acquire()
    before = table.jobs()
    records.create(JobSpec.parse(document("c")), "me", 2.0)
    table.acquire()
    assert table.jobs() == before


def test_what_is_read_while_the_store_is_lost_does_not_count(store_lease, table, records, two):
    read = records.all
    records.all = lambda: (taken(store_lease, table), read())[1]
    table.acquire()
    assert not table.jobs()
    assert not table.loaded.is_set()


def test_a_job_that_is_added_when_the_store_is_lost_is_the_other_ones(
    store_lease, table, records, document
):
    """What has been changed of it there is not to be covered by what was known here."""
    table.acquire()
    late = JobState(records.create(JobSpec.parse(document("a")), "me", 1.0), {}, False)
    taken(store_lease, table)
    table.add(late, records)
    assert not table.jobs()
    table.acquire()
    (job,) = table.jobs()
    assert job.record == late.record
    assert job is not late
    table.add(late, Records(records.folder))
    assert table.jobs() == (job,), "by records of an earlier claim"
