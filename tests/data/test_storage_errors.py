"""Errors of storage are classified, and single reads and writes retried."""

import errno
import pickle
from types import SimpleNamespace

import dask
import pytest

from largek_dask.data.storage_errors import retry_io, trouble, unanswered
from largek_dask.errors import DataError, LostJobError, OutputError


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


def test_retry_io__asks_again():
    ask = Failing(OSError("once"), TimeoutError("twice"))
    assert retry_io(ask) == "answer"
    assert ask.calls == 3


def test_retry_io__gives_up_with_the_last_error():
    ask = Failing(*(OSError(str(n)) for n in range(9)))
    with pytest.raises(OSError, match="2"):
        retry_io(ask)
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
def test_retry_io__what_will_not_change_is_raised_at_once(error):
    ask = Failing(error)
    with pytest.raises(type(error)):
        retry_io(ask)
    assert ask.calls == 1


# --- what an error says -------------------------------------------------------------------------


class ConnectionClosed(Exception):
    """Like errors of drivers: no subclass of a built-in error, and not picklable."""

    __module__ = "aiohttp.client_exceptions"

    def __init__(self, status=None):
        super().__init__("it is away")
        self.status = status

    def __reduce__(self):
        raise TypeError("cannot be pickled")


class CommClosedError(OSError):
    __module__ = "distributed.comm.core"


def raised_from(error, cause):
    try:
        raise error from cause
    except type(error) as found:
        return found


def raised_while(error, other):
    try:
        try:
            raise other
        except type(other):
            raise error  # noqa: B904 - that is what it is about
    except type(error) as found:
        return found


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EIO, "a cable is loose"), "away"),
        (TimeoutError(), "away"),
        (ConnectionRefusedError(), "away"),
        (ConnectionClosed(), "away"),
        (ConnectionClosed(503), "away"),
        (ConnectionClosed(403), "lacking"),
        (ConnectionClosed(404), "lacking"),
        (FileNotFoundError(), "lacking"),
        (NotADirectoryError(), "lacking"),
        (PermissionError(), "lacking"),
        (OSError(errno.ENOSPC, "full"), "lacking"),
        (OSError(errno.EROFS, "read-only"), "lacking"),
        (FileExistsError(), None),
        (IsADirectoryError(), None),
        (OSError(errno.ENAMETOOLONG, "too long"), None),
        (ValueError("damaged"), None),
        (MemoryError(), None),
        (LostJobError("lost"), None),
        # Errors of this package are what they were raised from; Dask's are about workers.
        (OutputError("already exists"), None),
        (raised_from(OutputError("cannot be written"), OSError(errno.EIO, "x")), "away"),
        (raised_from(DataError("does not exist"), FileNotFoundError()), "lacking"),
        (raised_from(DataError("damaged"), ValueError()), None),
        (raised_from(DataError("damaged"), raised_from(ValueError(), TimeoutError())), "away"),
        (raised_while(KeyError("k"), TimeoutError()), "away"),
        (raised_from(raised_while(KeyError("k"), TimeoutError()), None), None),
        (ExceptionGroup("two", [ValueError(), ExceptionGroup("one", [TimeoutError()])]), "away"),
        (CommClosedError("gone"), None),
    ],
)
def test_trouble(error, expected):
    assert trouble(error) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TimeoutError(), True),
        (ConnectionClosed(), True),
        (PermissionError(), True),
        (raised_from(DataError("damaged"), PermissionError()), True),
        (raised_while(ValueError("no JSON"), ConnectionRefusedError()), True),
        (FileNotFoundError(), False),
        (IsADirectoryError(), False),
        (ConnectionClosed(404), False),
        (ValueError("no JSON"), False),
        (raised_from(DataError("damaged"), FileNotFoundError()), False),
    ],
)
def test_unanswered(error, expected):
    assert unanswered(error) == expected


@pytest.mark.parametrize(
    ("status", "kind"), [(None, OSError), (404, FileNotFoundError), (403, PermissionError)]
)
def test_retry_io__gives_errors_that_every_process_can_unpack(status, kind):
    ask = Failing(*(ConnectionClosed(status) for _ in range(9)))
    with pytest.raises(kind, match="ConnectionClosed: it is away") as error:
        retry_io(ask)
    assert ask.calls == (3 if status is None else 1)
    assert trouble(pickle.loads(pickle.dumps(error.value))) == trouble(ConnectionClosed(status))


def test_retry_io__asks_no_more_after_a_while(monkeypatch):
    """A call may take long to fail, and notices no cancel meanwhile."""
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    def ask():
        asked.append(now[0])
        sleep(3.0)
        raise OSError(errno.EIO, "no answer")

    asked = []
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr("largek_dask.retry.time", clock)
    settings = {"largek.stores.pause-seconds": 0.5, "largek.stores.tries": 9}
    with dask.config.set(settings), pytest.raises(OSError, match="no answer"):
        retry_io(ask)
    assert asked == [0.0, 3.5]
