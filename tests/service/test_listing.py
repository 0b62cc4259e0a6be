"""Which jobs are listed: filters, orders, pages that miss none, and answers that stay short."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from largek_dask.algorithms.names import ALGORITHMS
from largek_dask.errors import ParameterError
from largek_dask.service import client
from largek_dask.service.client import Service
from largek_dask.service.known import KnownJob
from largek_dask.service.listing import Query, listing, moment_of
from largek_dask.service.places import Places
from largek_dask.service.spec import AlgorithmSpec, JobSpec
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
        record = Record(job_id, named, owner, float(created), result=ended)
        job = KnownJob(record, places, {}, lambda event: None, True)
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


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"order": "newest"}, [5, 4, 3, 2, 1]),
        ({"order": "oldest"}, [1, 2, 3, 4, 5]),
        ({"order": "name"}, [4, 3, 5, 1, 2]),
        ({"limit": 2}, [4, 5]),
        ({"limit": 2, "order": "newest"}, [5, 4]),
        ({"limit": 2, "order": "oldest"}, [1, 2]),
        ({"state": ["finished", "running"]}, [1, 3]),
        ({"owner": "bob"}, [2, 4]),
        ({"name": "night*"}, [1, 2]),
        ({"name": "*"}, [1, 2, 3, 4, 5]),
        ({"name": "night-[!1]"}, [2]),
        ({"algorithm": "lloyd"}, [1, 2, 3, 4, 5]),
        ({"algorithm": "nmbatch"}, []),
        ({"since": 2.0, "until": 4.0}, [2, 3]),
        ({"owner": "ann", "state": ["queued"]}, [5]),
    ],
)
def test_who_is_listed(some, asked, wanted):
    assert ids(some, **asked) == wanted


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


@pytest.mark.parametrize("order", ["created", "newest", "oldest", "name"])
def test_pages_hold_every_job_once_though_others_come_and_go(make, order):
    jobs = [make(n, ["b", None, "a"][n % 3]) for n in range(1, 12)]
    # Two of one moment.
    jobs.append(make(12))
    jobs[-1].record = replace(jobs[-1].record, created=7.0)
    whole = ids(jobs, order=order)
    after, pages = None, []
    while True:
        found = listing(jobs, {}, Query.of({"order": order, "limit": 5, "after": after}))
        assert found["total"] == len(jobs)
        pages.append([int(row["id"][3:]) for row in found["jobs"]])
        if (after := found["after"]) is None:
            break
        # The last one of this page goes, and the next question stands all the same.
        gone = pages[-1][0 if order == "created" else -1]
        jobs = [job for job in jobs if int(job.record.id[3:]) != gone]
        whole_left = [n for n in whole if n != gone]
        assert len(whole_left) == len(whole) - 1
    pages = pages[::-1] if order == "created" else pages
    assert [n for page in pages for n in page] == whole
    assert len(pages) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"state": ["sleeping"]},
        {"state": "queued"},
        {"order": "size"},
        {"limit": 0},
        {"limit": 1_001},
        {"limit": "all"},
        {"since": "yesterday"},
        {"name": ""},
        {"colour": "red"},
        {"after": "x"},
        {"after": "WyJuYW1lIiwgImEiLCAxLjAsICJsay0xIl0="},
        {"after": "WyJjcmVhdGVkIiwgMSwgMl0="},
        {"after": "é"},
    ],
)
def test_odd_questions_are_refused_by_the_name_of_what_is_odd(some, wrong):
    (name,) = wrong
    with pytest.raises(ParameterError, match=name):
        listing(some, {}, Query.of(wrong))


def test_a_pattern_cannot_keep_the_scheduler_busy(make):
    """Stars are no nested repetition: a name that fits nowhere is refused at once."""
    assert ids([make(1, "a" * 200)], name="*a" * 60 + "*b") == []


@pytest.mark.parametrize("letter", ["n", "\n", '"', "日", "😀", "\ud800"])
@pytest.mark.parametrize("order", ["created", "name"])
def test_rows_are_short(make, letter, order):
    """100 of them take at most 40 kB, whatever letters names are of."""
    wide = {"n_clusters": 10**6, "output": "s3://bucket/" + letter * 4_000}
    wide |= {"algorithm": AlgorithmSpec(name=max(ALGORITHMS, key=len))}
    jobs = [make(n, letter * 200, letter * 200, "finished", **wide) for n in range(200)]
    found = listing(jobs, {}, Query.of({"order": order}))
    assert len(found["jobs"]) == 100
    assert len(json.dumps(found).encode()) <= 40_000
    rest = listing(jobs, {}, Query.of({"order": order, "after": found["after"]}))
    assert len(rest["jobs"]) == 100
    assert rest["after"] is None
    row = found["jobs"][0]
    assert set(row) == {
        "id", "name", "state", "reason", "owner", "created", "algorithm",
        "n_clusters", "output",
    }  # fmt: skip
    n = (56 - 6) // (len(json.dumps(letter)) - 2)
    assert row["name"] == letter * n + "…"
    assert row["output"] == "…" + letter * ((72 - 6) // (len(json.dumps(letter)) - 2))


def test_rows_of_usual_names_are_whole(make):
    usual = {"output": "s3://bucket/results/somebody/run-0001"}
    jobs = [make(n, "nightly run of november", "somebody", "finished", **usual) for n in range(200)]
    found = listing(jobs, {}, Query.of({}))
    assert len(json.dumps(found).encode()) <= 30_000
    (told,) = {(row["name"], row["owner"], row["output"]) for row in found["jobs"]}
    assert told == ("nightly run of november", "somebody", usual["output"])


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("2026-11-25", NOON - 43_200),
        ("2026-11-25T12:00", NOON),
        ("2026-11-25 13:00+01:00", NOON),
        ("30d", NOON - 30 * 86_400),
        (" 90m ", NOON - 5_400),
        (datetime(2026, 11, 25, 12, tzinfo=UTC), NOON),
        (datetime(2026, 11, 25, 12), NOON),
    ],
)
def test_moments(value, wanted):
    assert moment_of(value, "since", now=NOON) == wanted


@pytest.mark.parametrize("wrong", ["yesterday", "2026-13-01", "", "-3d", 5, None, [1]])
def test_what_is_no_moment_is_refused_by_its_name(wrong):
    with pytest.raises(ParameterError, match=r"until must be a date such as '2026-11-25'"):
        moment_of(wrong, "until")


# --- as a client asks ---------------------------------------------------------------------------


@pytest.fixture
def service(some):
    """A client's side, whose scheduler answers at once."""
    asked = []

    def ask(operation, **arguments):
        assert operation in ("jobs", "status")
        if operation == "status":
            return {"id": arguments["id"], "state": "running", "step": 5, "created": "1970"}
        asked.append(arguments["query"])
        return listing(some, {}, Query.of(json.loads(json.dumps(arguments["query"]))))

    found = object.__new__(Service)
    found.ask_again = found.ask = ask
    return SimpleNamespace(service=found, asked=asked)


def test_jobs__a_list_with_rows_and_counts(service):
    found = service.service.jobs(state="queued", owner="ann")
    assert [job.id for job in found] == ["lk-00005"] == [row["id"] for row in found.rows]
    assert (found.counts, found.total, found.after) == (
        {"queued": 1, "running": 1, "finished": 1}, 1, None,
    )  # fmt: skip
    first = service.service.jobs(limit=2)
    assert [job.id for job in first] == ["lk-00004", "lk-00005"]
    assert [job.id for job in service.service.jobs(limit=2, after=first.after)] == [
        "lk-00002", "lk-00003",
    ]  # fmt: skip
    assert "day" in first._repr_html_()
    assert service.service.jobs(state=("finished", "failed")).total == 2
    service.service.jobs(since="1d", until=datetime(2026, 11, 25, 12, tzinfo=UTC))
    assert service.asked[-1]["until"] == NOON
    with pytest.raises(ParameterError, match="since must be a date"):
        service.service.jobs(since=3)


def test_overview__what_goes_on_and_the_last(service):
    rows, counts = service.service.overview(last=1)
    assert [row["id"] for row in rows] == ["lk-00003", "lk-00004", "lk-00005"]
    assert counts["finished"] == 1
    assert rows[0]["step"] == 5
    assert tuple(service.asked[1]["state"]) == client.ACTIVE
