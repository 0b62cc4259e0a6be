"""Which jobs are listed, and as what."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from largek_dask.errors import ParameterError
from largek_dask.service.client import Service
from largek_dask.service.job_state import JobState
from largek_dask.service.job_table import Query, listing, moment_of
from largek_dask.service.spec import JobSpec, Places
from largek_dask.service.store import Record, Result

NOON = datetime(2026, 11, 25, 12, tzinfo=UTC).timestamp()


@pytest.fixture
def make(document):
    """``make(3, name="a", owner="ann", state="finished")``: a job that was submitted at 3."""
    spec = JobSpec.parse(document())
    places = Places.of(spec)

    def make(created, name=None, owner="me", state="queued", **changes):
        named = spec.model_copy(update={"name": name, **changes})
        job_id = f"lk-{created:05d}"
        ended = None
        if state in ("finished", "failed", "cancelled"):
            ended = Result(job=job_id, run=1, token=1, state=state)
        at = None if ended is None else created + 10.0
        record = Record(job_id, named, owner, float(created), result=ended, ended=at)
        job = JobState(record, places, {}, True)
        job.running = state == "running"
        assert job.state == state
        return job

    return make


@pytest.fixture
def some(make):
    return [
        make(1, "night-1", "ann", "finished"),
        make(2, "night-2", "bob", "failed"),
        make(3, "Night-3", "ann", "running"),
        make(4, None, "bob"),
        make(5, "day", "ann"),
    ]


def ids(jobs, **asked):
    unreadable = asked.pop("unreadable", {})
    found = listing(jobs, unreadable, Query.of(asked))
    return [int(row["id"][3:]) if row["id"][3:].isdigit() else row["id"] for row in found["jobs"]]


def test_who_is_listed(some):
    for asked, wanted in (
        ({}, [1, 2, 3, 4, 5]),
        ({"limit": 2}, [4, 5]),
        ({"limit": None}, [1, 2, 3, 4, 5]),
        ({"state": ["finished", "running"]}, [1, 3]),
        ({"owner": "bob"}, [2, 4]),
        ({"name": "night*"}, [1, 2]),
        ({"name": "*"}, [1, 2, 3, 4, 5]),
        ({"name": "night-[!1]"}, [2]),
        ({"since": 2.0}, [2, 3, 4, 5]),
        ({"ended_before": 11.5}, [1]),
        ({"ended_before": 12.0}, [1, 2]),
        ({"ended_before": 99.0, "state": ["failed"]}, [2]),
        ({"owner": "ann", "state": ["queued"]}, [5]),
    ):
        assert ids(some, **asked) == wanted, asked


def test_counts_are_of_all_states_whichever_are_asked_for(some):
    found = listing(some, {"lk-torn": "damaged"}, Query.of({"state": ["queued"], "limit": 1}))
    assert found["counts"] == {
        "queued": 2, "running": 1, "finished": 1, "failed": 1, "unreadable": 1,
    }  # fmt: skip
    assert (found["total"], len(found["jobs"])) == (2, 1)
    found = listing(some, {}, Query.of({"owner": "bob", "state": ["running"]}))
    assert (found["counts"], found["jobs"]) == ({"queued": 1, "failed": 1}, [])


def test_jobs_that_cannot_be_read_are_there_unless_something_of_them_is_asked(some):
    torn = {"lk-torn": "damaged"}
    assert ids(some, unreadable=torn) == [1, 2, 3, 4, 5, "lk-torn"]
    assert ids(some, unreadable=torn, limit=1) == ["lk-torn"]
    assert ids(some, unreadable=torn, state=["unreadable"]) == ["lk-torn"]
    assert ids(some, unreadable=torn, owner="ann") == [1, 3, 5]


def test_rows__what_they_tell(make):
    (row,) = listing([make(3, "night", "ann", "finished")], {}, Query.of({}))["jobs"]
    assert set(row) == {
        "id", "name", "state", "reason", "owner", "created", "ended", "algorithm", "n_clusters",
        "output",
    }  # fmt: skip
    assert (row["name"], row["owner"]) == ("night", "ann")
    assert row["created"] == "1970-01-01T00:00:03+00:00"
    assert row["ended"] == "1970-01-01T00:00:13+00:00"
    assert listing([make(4)], {}, Query.of({}))["jobs"][0]["ended"] is None


def test_odd_questions_are_refused_by_the_name_of_what_is_odd(some):
    for name, value in (
        ("state", ["sleeping"]),
        ("state", "queued"),
        ("limit", 0),
        ("limit", "all"),
        ("since", "yesterday"),
        ("name", ""),
        ("colour", "red"),
    ):
        with pytest.raises(ParameterError, match=name):
            listing(some, {}, Query.of({name: value}))


def test_a_pattern_cannot_keep_the_scheduler_busy(make):
    """Stars are no nested repetition: a name that fits nowhere is refused at once."""
    assert ids([make(1, "a" * 200)], name="*a" * 60 + "*b") == []


def test_moments():
    for value, wanted in (
        ("2026-11-25", NOON - 43_200),
        ("2026-11-25T12:00", NOON),
        ("2026-11-25 13:00+01:00", NOON),
        ("30d", NOON - 30 * 86_400),
        (" 90m ", NOON - 5_400),
        (datetime(2026, 11, 25, 12, tzinfo=UTC), NOON),
        (datetime(2026, 11, 25, 12), NOON),
    ):
        assert moment_of(value, "since", now=NOON) == wanted
    for wrong in ("yesterday", "2026-13-01", "", "-3d", "2999-01-01", 5, None, [1]):
        with pytest.raises(ParameterError, match="older_than must be a date in the past"):
            moment_of(wrong, "older_than")


# --- as a client asks ---------------------------------------------------------------------------


@pytest.fixture
def service(some):
    """A client's side, whose scheduler answers at once."""
    asked = []

    def ask(operation, **arguments):
        assert operation == "jobs"
        asked.append(arguments["query"])
        return listing(some, {}, Query.of(json.loads(json.dumps(arguments["query"]))))

    found = object.__new__(Service)
    found.ask_again = found.ask = ask
    return SimpleNamespace(service=found, asked=asked)


def test_jobs__a_list_with_rows_and_counts(service):
    found = service.service.jobs(state="queued", owner="ann")
    assert [job.id for job in found] == ["lk-00005"] == [row["id"] for row in found.rows]
    assert (found.counts, found.total) == ({"queued": 1, "running": 1, "finished": 1}, 1)
    last = service.service.jobs(limit=2)
    assert [job.id for job in last] == ["lk-00004", "lk-00005"]
    assert last.total == 5
    assert "day" in last._repr_html_()
    assert service.service.jobs(state=("finished", "failed")).total == 2
    service.service.jobs(since="1d", older_than=datetime(2026, 11, 25, 12, tzinfo=UTC))
    assert service.asked[-1]["ended_before"] == NOON
    with pytest.raises(ParameterError, match="since must be a date"):
        service.service.jobs(since=3)
