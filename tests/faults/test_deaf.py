"""Object stores that take a call and never answer it: every call ends, and a cancel is heard."""

from __future__ import annotations

import contextlib
import socket
import threading
import uuid

import dask
import fsspec
import numpy as np
import pytest
import zarr

import largek_dask as lk
from largek_dask.data import storage_errors, stores
from largek_dask.data.sources import open_rows
from largek_dask.data.storage_errors import trouble
from largek_dask.driver.storage import Folder
from largek_dask.errors import handle_warnings
from largek_dask.service.lease import Claimant, LeaseRenewer
from tests.faults.inprocess import at_work, ended, quick, scheduler
from tests.faults.test_away import Strike, document, ingest, seen_waiting
from tests.helpers.checks import eventually

# When one of zarr's writes fails, it leaves those beside it unawaited.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

X = np.random.default_rng(4).standard_normal((600, 3)).astype(np.float32)
SECONDS = 120.0
PATIENT = {"config_kwargs": {"connect_timeout": SECONDS, "read_timeout": SECONDS}}
"""Options for a server that answers, however slowly where a machine is busy."""


@pytest.fixture(autouse=True)
def quickly():
    """No caches: every pass reads all chunks."""
    with quick(), dask.config.set({"largek.passes.cache-bytes": 0}):
        yield


@pytest.fixture
def one_try():
    """A call that nobody answers is made once."""
    with dask.config.set({"largek.stores.tries": 1}):
        yield


def within(ask, seconds=SECONDS):
    """The error of what has to end, with its causes as in a job; None of what returned."""
    found = []

    def run():
        try:
            with handle_warnings(lambda *_: None):
                ask()
        except Exception as error:
            found.append(error)
        else:
            found.append(None)

    thread = threading.Thread(target=run, name="largek-asked", daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, f"it has not ended after {seconds:g} s\n{at_work()}"
    return found[0]


class Deaf:
    """A server that takes every connection and never answers."""

    def __init__(self):
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.host = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.taken = []
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self):
        with contextlib.suppress(OSError):
            while True:
                connection = self._socket.accept()[0]
                self.taken.append(connection)
                self.heed(connection)

    def heed(self, connection):
        """Nothing is done about it."""

    def stop(self):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for connection in self.taken:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


class FallsDeaf(Deaf):
    """Stands before a server; from some moment on it takes requests and does nothing about them."""

    def __init__(self, behind):
        self._behind = behind
        self._to = None
        self._threads = []
        self.swallowed = []
        """First lines of requests that nobody will answer."""
        super().__init__()

    def fall_deaf(self, to=b""):
        """To requests that begin so."""
        self._to = to

    def heed(self, connection):
        behind = socket.create_connection(self._behind)
        self.taken.append(behind)
        for pour in (self._ask, self._answer):
            self._threads.append(threading.Thread(target=pour, args=(connection, behind)))
            self._threads[-1].start()

    def _ask(self, connection, behind):
        with contextlib.suppress(OSError):
            while data := connection.recv(1 << 16):
                if self._to is not None and data.startswith(self._to):
                    self.swallowed.append(data.partition(b"\r\n")[0].decode())
                    return
                behind.sendall(data)

    def _answer(self, connection, behind):
        with contextlib.suppress(OSError):
            while data := behind.recv(1 << 16):
                connection.sendall(data)

    def stop(self):
        super().stop()
        for thread in self._threads:
            thread.join()


class TakesBodies(Deaf):
    """A server that takes an upload by pieces, with a pause before each of the first.

    Parameters
    ----------
    takes : int
        Of a body that is larger no more is taken than this.
    """

    PIECE = 1 << 18

    def __init__(self, pauses, takes):
        self._pauses, self._takes = pauses, takes
        self.bytes = 0
        super().__init__()
        # What waits in buffers has been taken too.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)

    def heed(self, connection):
        with contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(1)
            names = dict(line.split(b": ", 1) for line in head.strip().split(b"\r\n")[1:])
            names = {name.lower(): value for name, value in names.items()}
            assert names[b"expect"] == b"100-continue"
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            size = min(int(names[b"content-length"]), self._takes)
            while self.bytes < size:
                self._pauses and self._pauses.pop()()
                piece = connection.recv(min(self.PIECE, size - self.bytes), socket.MSG_WAITALL)
                self.bytes += len(piece)
                assert piece
            if size < self._takes:
                connection.sendall(b'HTTP/1.1 200 OK\r\nETag: "x"\r\nContent-Length: 0\r\n\r\n')


@contextlib.contextmanager
def limits(monkeypatch, connect, read):
    """Of the calls of file systems that are opened meanwhile."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with monkeypatch.context() as patched:
        s3 = {**stores.S3_CALLS, "connect_timeout": connect, "read_timeout": read}
        patched.setattr(stores, "S3_CALLS", s3)
        patched.setattr(stores, "HTTP_CALLS", {"sock_connect": connect, "sock_read": read})
        yield


@pytest.fixture
def deaf(monkeypatch):
    server = Deaf()
    with limits(monkeypatch, 0.3, 0.3):
        yield server
    server.stop()


def keys(host):
    return {"endpoint_url": f"http://{host}", "key": "testing", "secret": "testing"}


@pytest.fixture
def falls_deaf(monkeypatch, object_store):
    """An object store that answers at first, and is asked again if a busy machine is late."""
    server = FallsDeaf(object_store.address)
    # It accepts every connection; only a busy machine is late.
    with limits(monkeypatch, 5.0, 1.5), dask.config.set({"largek.stores.tries": 40}):
        bucket = f"shop-{uuid.uuid4().hex}"
        Folder(f"s3://{bucket}", {**keys(server.host), **PATIENT}).fs.mkdir(bucket)
        server.url = f"s3://{bucket}"
        yield server
    server.stop()


# --- nothing is answered --------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["folder", "zarr", "npy"])
def test_a_call_of_an_object_store_that_never_answers_is_made_few_times(deaf, how):
    """Its driver would make it five times five times, each for 15 s, and hear of no cancel."""
    options = keys(deaf.host)
    ask = {
        "folder": lambda: Folder("s3://deaf/x", options).read("a"),
        "zarr": lambda: open_rows("s3://deaf/x.zarr", storage_options=options),
        "npy": lambda: open_rows("s3://deaf/x.npy", storage_options=options),
    }
    with dask.config.set({"largek.stores.tries": 2}):
        error = within(ask[how])
    assert trouble(error) == "away"
    # Of "zarr" one for each name of its metadata.
    assert 1 <= len(deaf.taken) <= {"folder": 2, "zarr": 8, "npy": 2}[how]


@pytest.mark.parametrize("how", ["zarr", "bytes", "write"])
def test_a_call_of_a_web_server_that_never_answers_ends(deaf, one_try, how):
    """Its driver would wait for five minutes."""
    url = f"http://{deaf.host}/x"
    fs = Folder(url).fs
    ask = {
        "zarr": lambda: open_rows(url),
        "bytes": lambda: storage_errors.retry_io(lambda: fs.cat_file(url)),
        "write": lambda: Folder(url).publish("a", b"text"),
    }
    error = within(ask[how])
    assert trouble(error) == "away"
    assert "Timeout on reading" in str(error)
    assert deaf.taken


def test_a_user_says_how_long_a_call_may_take():
    fs = Folder("s3://x/y", {"key": "a", "secret": "b"}).fs
    assert fs.config_kwargs.items() >= stores.S3_CALLS.items()
    longest = fs.config_kwargs["connect_timeout"] + fs.config_kwargs["read_timeout"]
    assert longest + storage_errors.RETRY_SECONDS <= 20
    given = {"read_timeout": 100, "retries": {"max_attempts": 7}}
    fs = Folder("s3://x/y", {"key": "a", "secret": "b", "config_kwargs": given}).fs
    assert fs.config_kwargs.items() >= {**stores.S3_CALLS, **given}.items()


# --- uploads are not answered ---------------------------------------------------------------------


class Written:
    """Each way to write, made ready while the server answers."""

    def __init__(self, server):
        self._options, self._url = keys(server.host), server.url
        self._folder = Folder(f"{self._url}/out", self._options)

    def publish(self):
        return lambda: self._folder.publish("a", b"text")

    def create(self):
        return lambda: self._folder.create("a", b"text")

    def chunk(self):
        array = zarr.create_array(self._folder.store("x.zarr"), data=X, chunks=(100, 3))

        def write():
            array[:100] = 1.0

        return write

    def arrays(self):
        return lambda: self._folder.write_arrays("group", {"x": X})

    def renew(self):
        return Claimant(self._folder, "job", "me", 0.0).claim().renew

    def ingest(self):
        return lambda: lk.ingest(
            X, f"{self._url}/x.zarr", storage_options=self._options, progress=False
        )

    def sparse(self):
        import scipy.sparse

        rows = scipy.sparse.csr_array(X)
        return lambda: lk.ingest(
            rows, f"{self._url}/x.zarr", storage_options=self._options, progress=False
        )


WAYS = [
    pytest.param(name, marks=() if name in ("publish", "chunk") else pytest.mark.slow)
    for name in vars(Written)
    if not name.startswith("_")
]
"""The others write by the same calls of :class:`Folder`, or of Zarr."""


@pytest.mark.parametrize("way", WAYS)
def test_an_upload_that_is_never_answered_ends(falls_deaf, way):
    """Its driver asks whether it may upload, and waits for ever."""
    write = getattr(Written(falls_deaf), way)()
    falls_deaf.fall_deaf(to=b"PUT ")
    with dask.config.set({"largek.stores.tries": 1}):
        error = within(write)
    assert falls_deaf.swallowed, "it has been asked"
    assert trouble(error) == "away"
    assert "Read timeout" in str(error)


def test_a_keeper_whose_sign_is_never_answered_stops(falls_deaf):
    folder = Folder(f"{falls_deaf.url}/out", keys(falls_deaf.host))
    lease = Claimant(folder, "job", "me", 0.0).claim()
    renewer = LeaseRenewer(lease, lambda: None)
    falls_deaf.fall_deaf(to=b"PUT ")
    with dask.config.set({"largek.stores.tries": 1}):
        renewer.start()
        eventually(lambda: falls_deaf.swallowed, "a sign of life")
        assert "beat" in falls_deaf.swallowed[0]
        assert within(renewer.stop) is None
        assert not renewer.is_alive()


@pytest.mark.slow
@pytest.mark.parametrize("to", [b"PUT ", b""])
def test_a_job_whose_object_store_never_answers_can_be_cancelled(falls_deaf, to):
    options = keys(falls_deaf.host)
    data = ingest(f"{falls_deaf.url}/x.zarr", storage_options=options)
    given = {name: {"memory": True} for name in options}

    def fall_deaf():
        falls_deaf.fall_deaf(to)
        dask.config.set({"largek.stores.tries": 1})

    strike = Strike(fall_deaf)
    with scheduler() as jobs, dask.config.set({"largek.stores.patience-seconds": 3600}):
        spec = document(data, f"{falls_deaf.url}/out", storage_options=given, max_iter=3)
        job_id = jobs.submit(spec, options, "somebody")
        assert strike.done.wait(SECONDS)
        seen_waiting(jobs, job_id)
        # What is deaf to everything is not even asked to take a sign of life.
        eventually(
            lambda: any(".beat" in line or not to for line in falls_deaf.swallowed),
            "a sign of life that is not answered",
        )
        jobs.cancel(job_id)
        assert ended(jobs, job_id, SECONDS)["state"] == "cancelled"


# --- bodies ---------------------------------------------------------------------------------------

LARGE = b"x" * (32 << 20)


def upload(monkeypatch, server, seconds):
    with limits(monkeypatch, seconds, seconds):
        fs = Folder("s3://deaf/out", keys(server.host)).fs
        return within(lambda: fs.pipe_file("deaf/large", LARGE))


def test_an_upload_that_stops_in_the_middle_ends(monkeypatch):
    server = TakesBodies([], takes=1 << 20)
    error = upload(monkeypatch, server, 2.0)
    server.stop()
    assert server.bytes == 1 << 20
    assert trouble(error) == "away"


def test_an_upload_that_goes_on_slowly_is_not_cut(monkeypatch):
    """It takes longer than a server may be silent."""
    seconds, never = 4.0, threading.Event()
    # Without pauses for what may be in the sender's buffers: its answer comes soon after it.
    pauses = [lambda: never.wait(1.5 * seconds / 96)] * 96
    assert len(pauses) * TakesBodies.PIECE <= len(LARGE) - (8 << 20)
    server = TakesBodies(pauses, takes=len(LARGE) + 1)
    error = upload(monkeypatch, server, seconds)
    assert not pauses
    server.stop()
    assert error is None
    assert server.bytes == len(LARGE)


def test_a_body_that_is_encoded_on_the_way_is_sent_whole():
    """As it is over https, with a checksum behind it."""
    import io

    from aiobotocore.httpchecksum import AioAwsChunkedWrapper
    from botocore.httpchecksum import Crc32Checksum

    from largek_dask.data.uploads import PIECE, _Pieces

    async def sent(size, pieced):
        body = AioAwsChunkedWrapper(io.BytesIO(LARGE[:size]), Crc32Checksum, "x-amz-checksum-crc32")
        if pieced:
            taken = []
            pieces = [bytes(piece) async for piece in _Pieces(body, lambda: taken.append(None))]
            assert len(taken) == len(pieces)
            assert max(map(len, pieces)) <= PIECE
            return b"".join(pieces)
        return await body.read()

    loop = fsspec.asyn.get_loop()
    for size in (0, 1, (1 << 20) + 3, 3 << 20):
        found, expected = (fsspec.asyn.sync(loop, sent, size, pieced) for pieced in (True, False))
        assert found == expected
