"""Lines that are logged for a job are sent at once: which ones, how many, how long."""

from __future__ import annotations

import json
import logging
import threading

import pytest

from largek_dask.context import Working, working_for
from largek_dask.observe import carrying
from largek_dask.observe.carrying import Limits, carry, carry_no_more, entry_of
from largek_dask.redaction import hide_in_logs, redactor

JOB = Working("lk-1", 2)


@pytest.fixture
def sent(monkeypatch):
    """Entries of a scheduler's process."""
    found = []
    monkeypatch.setattr(carrying._carrier, "limits", Limits())
    carry(found.append)
    yield found
    carry_no_more(found.append)


def log(name="some.library"):
    logger = logging.getLogger(name)
    logger.debug("quiet")
    logger.info("quiet")
    logger.warning("a %s of %d", "word", 3)
    try:
        raise ValueError("inner")
    except ValueError:
        logger.exception("it failed")


@pytest.mark.parametrize("name", ["some.library", "largek_dask.passes", "distributed.worker"])
def test_warnings_and_errors_of_a_job_are_sent(sent, name):
    log(name)
    assert sent == [], "whoever works for no job tells nobody"
    with working_for(JOB):
        log(name)
    assert [entry["message"].splitlines()[0] for entry in sent] == ["a word of 3", "it failed"]
    assert "ValueError: inner" in sent[1]["message"]
    first = sent[0]
    assert (first["job"], first["run"], first["level"]) == ("lk-1", 2, "WARNING")
    assert first["logger"] == name
    assert first["time"].endswith("+00:00")
    # A thread of its own works for nobody.
    threads = [threading.Thread(target=log, args=(name,))]
    with working_for(JOB):
        threads[0].start()
        threads[0].join(60.0)
    assert len(sent) == 2


def test_without_secrets(sent):
    redact = redactor({"key": "very-secret-value"})
    hide_in_logs(redact)
    with working_for(JOB):
        logging.getLogger("x").error("no access with %s", "very-secret-value")
    assert sent[0]["message"] == "no access with ***"


def test_nothing_is_sent_any_more(sent):
    carry_no_more(sent.append)
    with working_for(JOB):
        log()
    assert sent == []
    assert carrying._carrier not in logging.getLogger().handlers or carrying._carrier.drivers


def test_limits__of_a_second_and_of_a_job():
    now = [0.0]
    limits = Limits(lambda: now[0])
    taken = [limits.take("a") for _ in range(13)]
    assert taken == [0] * 10 + [None] * 3
    assert limits.take("b") is None, "a second is everybody's"
    now[0] = 1.0
    assert limits.take("a") == 3
    assert limits.take("a") == 0
    assert limits.take("b") == 1
    for second in range(2, 200):
        now[0] = float(second)
        for _ in range(10):
            limits.take("c")
    assert limits.take("c") is None
    now[0] = 500.0
    assert limits.take("c") is None, "a job's are over"
    assert limits.take("d") == 0


@pytest.mark.parametrize("letter", ["x", "é", "\U0001f600", "\x00", '"'])
@pytest.mark.parametrize("length", [10, 1_900, 10_000, 300_000])
def test_entries__two_kilobytes_at_most(letter, length):
    record = logging.LogRecord("n" * 500, 40, "", 0, letter * length, (), None)
    entry = entry_of(record, JOB, left_out=7)
    assert len(json.dumps(entry)) <= carrying.MOST_BYTES
    assert entry["left_out"] == 7
    if length > 10:
        assert len(json.dumps(entry)) > carrying.MOST_BYTES - 200
        assert entry["message"].endswith("…") == (letter * length != entry["message"])
    else:
        assert entry["message"] == letter * length


def test_what_cannot_be_shown_is_no_harm():
    record = logging.LogRecord("x", 40, "", 0, "%d rows", ("many",), None)
    assert "cannot be shown" in entry_of(record, JOB)["message"]


def test_python_prints_what_nobody_else_does(monkeypatch, sent):
    """A handler that prints nothing must not keep Python from doing so."""
    printed = []

    class Last(logging.Handler):
        def emit(self, record):
            printed.append(record.getMessage())

    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [carrying._carrier])
    monkeypatch.setattr(logging, "lastResort", Last(logging.WARNING))
    logging.getLogger("nobody.listens").warning("seen")
    assert printed == ["seen"]
    root.handlers.append(logging.NullHandler())
    logging.getLogger("nobody.listens").warning("not twice")
    assert printed == ["seen"]
