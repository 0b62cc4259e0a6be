"""Stores that are out of order for a moment are asked again."""

import errno

import dask
import pytest

from largek_dask.data.patience import patiently


@pytest.fixture(autouse=True)
def no_pauses():
    with dask.config.set({"largek.stores.pause-seconds": 0.0, "largek.stores.tries": 3}):
        yield


class Failing:
    def __init__(self, *errors):
        self.errors = list(errors)
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


def test_patiently__asks_again():
    ask = Failing(OSError("once"), TimeoutError("twice"))
    assert patiently(ask) == "answer"
    assert ask.calls == 3


def test_patiently__gives_up_with_the_last_error():
    ask = Failing(*(OSError(str(n)) for n in range(9)))
    with pytest.raises(OSError, match="2"):
        patiently(ask)
    assert ask.calls == 3


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError("no"),
        FileExistsError("no"),
        PermissionError("no"),
        OSError(errno.ENOSPC, "full"),
        ValueError("no"),
    ],
)
def test_patiently__what_will_not_change_is_raised_at_once(error):
    ask = Failing(error)
    with pytest.raises(type(error)):
        patiently(ask)
    assert ask.calls == 1


def test_patiently__pauses_double(monkeypatch):
    pauses = []
    monkeypatch.setattr("largek_dask.data.patience.time.sleep", pauses.append)
    with dask.config.set({"largek.stores.pause-seconds": 0.5, "largek.stores.tries": 4}):
        assert patiently(Failing(*(OSError() for _ in range(3)))) == "answer"
    assert pauses == [0.5, 1.0, 2.0]
