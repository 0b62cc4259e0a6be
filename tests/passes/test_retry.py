"""A pass or a write is retried while storage is away: how long, what is reported, what ends it."""

import errno
import itertools

import dask
import numpy as np
import pytest

from largek_dask.data.sources import open_rows
from largek_dask.errors import CancelledFit
from largek_dask.passes.local import LocalPasses


class Clock:
    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("largek_dask.retry.time", clock)
    settings = {"largek.stores.pause-seconds": 0.5, "largek.stores.patience-seconds": 60.0}
    with dask.config.set(settings):
        yield clock


@pytest.fixture
def passes():
    with LocalPasses(open_rows(np.eye(3, dtype=np.float32))) as passes:
        yield passes


class Failing:
    def __init__(self, *errors):
        self.errors = list(errors)

    def __call__(self):
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


def test_it_waits_with_growing_pauses_and_reports_once(clock):
    said, tried = [], []

    def call():
        tried.append(clock.now)
        if clock.now < 30:
            raise OSError(errno.EIO, "a cable is loose")
        return "answer"

    rows = open_rows(np.eye(3, dtype=np.float32))
    with LocalPasses(rows, log=lambda kind, message: said.append((kind, message))) as passes:
        assert passes.retry(call) == "answer"
    pauses = [round(b - a, 6) for a, b in itertools.pairwise(tried)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert [kind for kind, _ in said] == ["storage", "back"]
    assert "a cable is loose" in said[0][1]
    assert "60 s" in said[0][1]


def test_it_gives_up_at_its_deadline_which_counts_from_the_first_error(clock, passes):
    def call():
        clock.sleep(100.0 if clock.now == 0 else 0.0)
        raise OSError(errno.EIO, f"at {clock.now:.0f}")

    with pytest.raises(OSError, match="at 160"):
        passes.retry(call)


def test_what_is_missing_is_waited_for_only_where_a_pass_has_succeeded(clock, passes):
    with pytest.raises(FileNotFoundError):
        passes.retry(Failing(FileNotFoundError()))
    assert clock.now == 0
    assert passes.statistics.n_rows == 3
    assert passes.retry(Failing(FileNotFoundError())) == "answer"
    assert clock.now > 0
    with pytest.raises(ValueError, match="damaged"):
        passes.retry(Failing(ValueError("damaged")))


def test_a_stop_ends_the_wait_at_once(clock):
    away = [OSError(errno.EIO, str(n)) for n in range(99)]
    rows = open_rows(np.eye(3, dtype=np.float32))
    with LocalPasses(rows, cancelled=lambda: clock.now > 3) as passes:
        with pytest.raises(CancelledFit):
            passes.retry(Failing(*away))
        assert clock.now < 3.2
    with LocalPasses(rows) as passes:
        passes.is_given_up = lambda: True
        with pytest.raises(OSError, match="away now"):
            passes.retry(Failing(OSError("away now"), *away))
    assert clock.now < 3.2
