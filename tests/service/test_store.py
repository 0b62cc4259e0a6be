"""Records of jobs and results of runs, as files: what comes back, and what is refused by name."""

from __future__ import annotations

import errno
import json
from dataclasses import replace

import pytest

from largek_dask.driver.storage import Folder
from largek_dask.errors import JobNotFoundError, LostJobError, ParameterError, RecoveryWarning
from largek_dask.service.spec import JobSpec
from largek_dask.service.store import Record, Records, Result, checked_id, read_result, write_result

RESULT = Result(
    job="lk-1", run=1, token=3, state="finished", digest="d" * 64, labels=True, n_iter=7,
    stop_reason="tol", inertia=12.5, seconds=1.25,
)  # fmt: skip


@pytest.fixture
def spec(document):
    return JobSpec.parse(document())


@pytest.fixture
def records(tmp_path):
    return Records(Folder(str(tmp_path / "store")))


@pytest.fixture
def output(tmp_path):
    return Folder(str(tmp_path / "out"))


def test_a_record_comes_back_as_it_was(records, spec):
    record = records.create(spec, "me", 12.5)
    assert records.read(record.id) == record == Record(record.id, spec, "me", 12.5)
    later = replace(record, run=3, cancel=True, result=RESULT, ended=4.0)
    records.update(later)
    assert records.read(record.id) == later
    other = records.create(spec, "you", 3.0)
    assert records.all() == [other, later]
    records.remove(record.id)
    assert records.all() == [other]
    with pytest.raises(JobNotFoundError, match=f"there is no job {record.id} in "):
        records.read(record.id)


class Answers:
    """A lease that is held or not as a test says, one answer after the other."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def earlier_owners(self):
        return frozenset()

    def check(self):
        answer = self.answers.pop(0)
        if answer is not None:
            raise answer


@pytest.mark.parametrize("error", [LostJobError("lost"), OSError(errno.EIO, "a cable is loose")])
def test_a_new_record_counts_if_the_store_is_still_held_when_it_is_there(records, spec, error):
    held = Records(records.folder, Answers(None, error))
    with pytest.raises(type(error)):
        held.create(spec, "me", 1.0)
    (job_id,) = held.stamps()
    assert not held.is_new(job_id)
    again = Records(records.folder, Answers(None, None, None, None, None))
    made = again.create(spec, "me", 2.0)
    assert again.is_new(made.id)
    assert again.quarantine(job_id)
    assert list(again.stamps()) == [made.id]
    again.remove(made.id)
    assert not again.is_new(made.id)
    assert not again.quarantine(made.id)


def test_what_lies_beside_records_is_none(records, spec):
    record = records.create(spec, "me", 1.0)
    for name in ("notes.txt", "Not-an-id.json", ".lk-1.json", "lk-2"):
        records.folder.sub("jobs").publish(name, b"{}")
    assert records.all() == [record]


DAMAGE = {
    "torn": (lambda text: text[:-20], "Expecting|Unterminated|delimiter"),
    "empty": (lambda text: "", "Expecting value"),
    "of bytes": (lambda text: text.encode().replace(b'"me"', b'"\xff"'), "utf-8"),
    "too deep": (lambda text: "[" * 100_000, "recursion|nested"),
    "twice": (lambda text: text.replace('"run"', '"owner": "x", "run"'), "given twice"),
    "newer": (lambda text: changed(text, format=2, more=[]),
              r"format: .*the version that wrote it"),
    "result of a newer": (lambda text: changed(text, result={"format": 3, "secret": "hunter2"}),
                          r"result.format: .*the version that wrote"),
    "more": (lambda text: changed(text, secret="hunter2"), "secret: "),
    "negative": (lambda text: changed(text, created=-1.0), "created: "),
    "no run": (lambda text: changed(text, run=0), "run: "),
    "number as text": (lambda text: changed(text, run="1"), "run: "),
    "another's": (lambda text: changed(text, id="lk-other"), "is the record of another job"),
}  # fmt: skip


def changed(text, **fields):
    return json.dumps(json.loads(text) | fields)


def test_a_damaged_record_is_named_with_the_reason(records, spec):
    record, whole = records.create(spec, "me", 1.0), records.create(spec, "me", 2.0)
    jobs = records.folder.sub("jobs")
    text = jobs.read(f"{record.id}.json").decode()
    for damage, why in DAMAGE.values():
        damaged = damage(text)
        content = damaged if isinstance(damaged, bytes) else damaged.encode()
        jobs.publish(f"{record.id}.json", content)
        with pytest.raises(ParameterError, match=why) as refused:
            records.read(record.id)
        assert f"{record.id}.json" in str(refused.value)
        assert "hunter2" not in str(refused.value)
        with pytest.warns(RecoveryWarning, match=f"Job {record.id} is ignored"):
            assert records.all() == [whole]


def test_what_is_no_id_leads_nowhere(records):
    for odd in ("", "../lk-1", "lk-1.json", "LK-1", "-lk", "x" * 65, 7, None):
        for ask in (records.read, records.remove, checked_id):
            with pytest.raises(JobNotFoundError, match="not a valid job id"):
                ask(odd)
    assert checked_id("x" * 64) == "x" * 64


def test_a_result_is_published_once(output):
    assert read_result(output, "lk-1", 1) is None
    assert write_result(output, RESULT) == RESULT
    second = RESULT.model_copy(update={"state": "failed", "token": 4})
    assert write_result(output, second) == RESULT, "the first stands"
    assert read_result(output, "lk-1", 1) == RESULT
    assert read_result(output, "lk-1", 2) is None
    other = RESULT.model_copy(
        update={
            "run": 2,
            "objective": {
                "name": "bumps",
                "of_step": "b",
                "unit": "1",
                "sense": "max",
                "value": None,
            },
        }
    )
    assert write_result(output, other) == other == read_result(output, "lk-1", 2)


def test_a_result_of_a_writer_that_was_killed_is_none(output):
    output.publish("results/000001.json", b"")
    assert read_result(output, "lk-1", 1) is None
    assert write_result(output, RESULT) == RESULT == read_result(output, "lk-1", 1)


def test_a_result_of_another_job_or_none_is_refused(output):
    write_result(output, RESULT)
    for ask in (
        lambda: read_result(output, "lk-2", 1),
        lambda: write_result(output, RESULT.model_copy(update={"job": "lk-2"})),
    ):
        with pytest.raises(
            ParameterError, match=r"is the output of job lk-1, not of lk-2: choose another"
        ):
            ask()
    output.publish("results/000002.json", b'{"format": 1, "secret": "hunter2"}')
    with pytest.raises(ParameterError, match=r"000002.json .*secret: "):
        read_result(output, "lk-1", 2)
