"""A closed client, a scheduler that is gone: whatever is asked of them, one sentence says so."""

from __future__ import annotations

from contextlib import ExitStack

import dask
import numpy as np
import pytest

import largek_dask as lk
from largek_dask.cli import main
from largek_dask.errors import ClusterError
from largek_dask.service import client as client_module
from tests.conftest import make_client

CLOSED = (
    r"^the Dask client is closed, .*; create a new client, such as Client\('tcp://host:8786'\)\.$"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    x = np.random.default_rng(0).standard_normal((300, 4)).astype(np.float32)
    url = str(tmp_path_factory.mktemp("closed") / "x.zarr")
    lk.ingest(x, url, progress=False)
    return url


@pytest.fixture(scope="module")
def closed():
    """A client that has been closed, of a cluster that lives."""
    with ExitStack() as stack:
        client = make_client(stack, 1, processes=False)
        assert client.scheduler_info()["workers"]
        client.close()
        assert client.status == "closed"
        yield client


@pytest.fixture(scope="module")
def model(data):
    return lk.KMeans(3, random_state=0).fit(data).model_


FITS = {
    "KMeans": lambda client, data, _: lk.KMeans(3, client=client).fit(data),
    "KMeans of an array": lambda client, *_: lk.KMeans(3, client=client).fit(np.eye(9)),
    "Mixture": lambda client, data, _: lk.Mixture(3, client=client).fit(data),
    "predict": lambda client, data, model: model.predict(data, client=client),
    "score": lambda client, data, model: model.score(data, client=client),
    "connect": lambda client, *_: lk.connect(client),
}


def test_a_closed_client(closed, data, model):
    for ask in FITS.values():
        with pytest.raises(ClusterError, match=CLOSED):
            ask(closed, data, model)


def test_labels_to_a_store_by_a_closed_client(closed, data, model, tmp_path):
    with pytest.raises(ClusterError, match=CLOSED):
        model.predict(data, client=closed, out=str(tmp_path / "labels.zarr"))
    # Nothing lies there that would be in the way.
    model.predict(data, out=str(tmp_path / "labels.zarr"))


ASKED = {
    "jobs": lambda service, _: service.jobs(),
    "job": lambda service, job: service.job(job.id),
    "submit": lambda service, _: service.submit("/x.zarr", n_clusters=3, output="/y"),
    "resume": lambda service, job: service.submit(resume=job, max_iter=3),
    "status": lambda _, job: job.status(),
    "state": lambda _, job: job.state,
    "watch": lambda _, job: job.watch(),
    "events": lambda _, job: list(job.events()),
    "logs": lambda _, job: list(job.logs()),
    "result": lambda _, job: job.result(),
    "model": lambda _, job: job.model(),
    "cancel": lambda _, job: job.cancel(),
    "delete": lambda _, job: job.delete(),
    "card of a job": lambda _, job: job._repr_html_(),
}


@pytest.fixture(scope="module")
def service_of_closed(tmp_path_factory, data):
    """A service whose client has been closed, and a job of it."""
    folder = tmp_path_factory.mktemp("store")
    quick = {"largek.service.beat-seconds": 0.05, "largek.service.patience-seconds": 1.0}
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(quick))
        client = make_client(stack, 1, processes=False)
        service = lk.connect(client, store=str(folder / "jobs"))
        job = service.submit(data, n_clusters=3, output=str(folder / "out"))
        assert job.result().n_clusters == 3
        client.close()
        yield service, job


def test_a_service_whose_client_is_closed(service_of_closed, monkeypatch):
    service, job = service_of_closed
    for ask in ASKED.values():
        with pytest.raises(ClusterError, match=CLOSED):
            ask(service, job)
    # What asks nobody still works.
    assert repr(service).startswith("<Service of inproc://")
    assert job.id in repr(job)
    monkeypatch.setattr(service, "_closed", True)
    for ask in ASKED.values():
        with pytest.raises(
            ClusterError, match=r"^the connection to inproc:.* closed.* Call connect"
        ):
            ask(service, job)


def test_a_scheduler_that_is_gone(data, model, tmp_path, monkeypatch):
    """Its clients: that of a service of its own, which tries to connect, and another one."""
    monkeypatch.setattr(client_module, "RECONNECT_SECONDS", 0.2)
    quick = {"largek.service.beat-seconds": 0.05, "largek.service.patience-seconds": 1.0}
    with ExitStack() as stack, dask.config.set(quick):
        client = make_client(stack, 1, processes=False, protocol="tcp://")
        lk.connect(client, store=str(tmp_path / "jobs"))
        address = client.scheduler.address
        service = lk.connect(address, away=0)
        job = service.submit(data, n_clusters=3, output=str(tmp_path / "out"))
        job.wait()
        client.cluster.close()
    gone = rf"^the scheduler at {address} does not answer: check that it runs there\. "
    for what in ("jobs", "submit", "status", "cancel", "card of a job"):
        with pytest.raises(ClusterError, match=gone):
            ASKED[what](service, job)
    with pytest.raises(ClusterError, match=r"is closed|cannot be reached any more"):
        lk.KMeans(3, client=client).fit(data)
    with pytest.raises(ClusterError, match=r"is closed|cannot be reached any more"):
        model.predict(data, client=client)
    service.close()


@pytest.mark.parametrize(
    "command",
    [
        "watch lk-1",
        "submit /x.zarr -k 3 --out /y",
        "fit {data} -k 3 --out {out}/run",
        "predict {model} {data} --out {out}/labels.zarr",
    ],
)
def test_commands_without_a_scheduler(command, data, model, tmp_path, monkeypatch):
    from click.testing import CliRunner
    from distributed import Client

    def refused(self, address, **_):
        raise OSError(f"nothing listens at {address}")

    monkeypatch.setattr(Client, "__init__", refused)
    monkeypatch.setattr(Client, "__del__", lambda self: None)
    model.save(str(tmp_path / "model.zarr"))
    line = command.format(data=data, out=tmp_path, model=tmp_path / "model.zarr")
    done = CliRunner().invoke(main, [*line.split(), "--scheduler", "tcp://127.0.0.1:9"])
    assert done.exit_code == (4 if command.startswith("watch") else 1)
    assert "no Dask scheduler answers at 'tcp://127.0.0.1:9'" in done.stderr
    assert "(OSError: nothing listens at tcp://127.0.0.1:9): check the address" in done.stderr
    assert "`largek doctor --scheduler tcp://127.0.0.1:9`" in done.stderr
