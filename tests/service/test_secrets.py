"""Secrets are in memory and nowhere else; a job that has lost its own waits for them."""

import json
from typing import Any, ClassVar

import dask
import fsspec
import numpy as np
import pytest
import zarr
from fsspec.implementations.memory import MemoryFileSystem

from largek_dask.errors import DataError, JobNotFoundError, ParameterError
from largek_dask.service.credentials import redactor
from tests.service.conftest import wait_until

SECRET = "open-sesame-4711"
NESTED = "and-a-second-one-0815"


class VaultFileSystem(MemoryFileSystem):
    """``vault://``: like ``memory://`` for whoever knows the secret, and it talks too much."""

    protocol = "vault"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    closed: ClassVar[str | None] = None
    """What has this in its path may not be written."""

    def __init__(self, token: str | None = None, options: Any = None, **more: Any) -> None:
        super().__init__(token=token, options=options, **more)
        if token != SECRET or (options or {}).get("key") != NESTED:
            raise ValueError(f"the token {token!r} with {options} opens nothing")
        self._secret = token

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFileSystem._strip_protocol(path.replace("vault://", "memory://"))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        if self.closed is not None and self.closed in path:
            raise PermissionError(f"{self._secret} may not write {path}")
        super().pipe_file(path, value, mode=mode, **kwargs)


fsspec.register_implementation("vault", VaultFileSystem, clobber=True)
OPTIONS = {"token": SECRET, "options": {"key": NESTED}}
HIDDEN = {"token": {"memory": True}, "options": {"memory": True}}


@pytest.fixture
def vault():
    """A store of rows behind the secret."""
    VaultFileSystem.store.clear()
    VaultFileSystem.pseudo_dirs[:] = [""]
    VaultFileSystem.closed = None
    VaultFileSystem.clear_instance_cache()
    x = np.random.default_rng(0).standard_normal((500, 3)).astype(np.float32)
    zarr.create_array("vault:///x.zarr", data=x, chunks=(100, 3), storage_options=OPTIONS)
    yield
    VaultFileSystem.store.clear()


@pytest.fixture
def written(tmp_path):
    """Every byte that has been written anywhere."""

    def gather() -> bytes:
        inside = [file.getvalue() for file in VaultFileSystem.store.values()]
        outside = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        return b"\n".join(inside + outside)

    return gather


def check_silence(*texts):
    for text in texts:
        data = text if isinstance(text, bytes) else str(text).encode()
        assert SECRET.encode() not in data
        assert NESTED.encode() not in data


@pytest.fixture
def vault_job(document):
    def make(**changes):
        return document(
            "vault:///out", data="vault:///x.zarr", storage_options=HIDDEN, n_clusters=5, **changes
        )

    return make


def test_secrets__are_written_nowhere(vault, open_jobs, vault_job, written, logged):
    told = []
    jobs = open_jobs(tell=told.append)
    job_id = jobs.submit(vault_job(), OPTIONS, "me")
    status = wait_until(jobs, job_id, "finished", "failed")
    assert status["state"] == "finished", status
    check_silence(written(), told, status, logged, jobs.model(job_id).provenance)
    assert "/out/model.zarr/zarr.json" in VaultFileSystem.store
    jobs.delete(job_id)


def test_secrets__not_in_what_a_talkative_driver_says(vault, open_jobs, vault_job, written, logged):
    told = []
    jobs = open_jobs(tell=told.append)
    VaultFileSystem.closed = "model.zarr"
    job_id = jobs.submit(vault_job(), OPTIONS, "me")
    waiting = wait_until(jobs, job_id, "waiting")
    assert "*** may not write" in waiting["note"]
    with dask.config.set({"largek.service.retry-hours": 0}):
        status = wait_until(jobs, job_id, "finished", "failed")
    assert status["state"] == "failed"
    assert "*** may not write" in status["result"]["message"]
    assert any("*** may not write" in line for line in logged)
    check_silence(written(), told, waiting, status, logged)


def test_secrets__not_in_what_is_said_of_a_checkpoint(vault, open_jobs, vault_job, written, logged):
    told = []
    jobs = open_jobs(tell=told.append)
    VaultFileSystem.closed = "checkpoints"
    job_id = jobs.submit(vault_job(), OPTIONS, "me")
    status = wait_until(jobs, job_id, "finished", "failed")
    assert status["state"] == "finished"
    warned = [event["message"] for event in told if event.get("topic") == "checkpoint"]
    assert any("*** may not write" in message for message in warned)
    check_silence(written(), told, status, logged)


def test_secrets__wrong_ones_are_not_repeated(vault, open_jobs, vault_job, written):
    jobs = open_jobs()
    wrong = {"token": "a-wrong-secret", "options": {"key": "another-wrong-one"}}
    with pytest.raises(DataError, match="opens nothing") as failed:
        jobs.submit(vault_job(), wrong, "me")
    assert "a-wrong-secret" not in str(failed.value)
    assert "another-wrong-one" not in str(failed.value)
    with pytest.raises(ParameterError, match="token"):
        jobs.submit(vault_job(), {"options": {"key": NESTED}}, "me")


def test_secrets__after_a_restart_the_job_waits_for_them(vault, open_jobs, vault_job):
    first = open_jobs()
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        job_id = first.submit(vault_job(), OPTIONS, "me")
    first.close(10.0)
    later = open_jobs()
    status = later.status(job_id)
    assert status["state"] == "waiting"
    assert status["needs"] == ["token", "options"]
    assert later.events(job_id, 0, 10) == []
    with pytest.raises(ParameterError, match="password"):
        later.supply(job_id, {"password": "x"})
    assert later.supply(job_id, {"token": SECRET}) == ["options"]
    assert later.status(job_id)["state"] == "waiting"
    assert later.supply(job_id, {"options": {"key": NESTED}}) == []
    assert wait_until(later, job_id, "finished", "failed")["state"] == "finished"


def test_secrets__a_waiting_job_can_be_cancelled(vault, open_jobs, vault_job):
    first = open_jobs()
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        job_id = first.submit(vault_job(), OPTIONS, "me")
    first.close(10.0)
    later = open_jobs()
    assert later.cancel(job_id) == "cancelled"
    with pytest.raises(ParameterError, match="has not been supplied"):
        later.delete(job_id)
    later.supply(job_id, OPTIONS)
    later.delete(job_id)
    with pytest.raises(JobNotFoundError):
        later.status(job_id)


def test_secrets__from_the_environment(vault, open_jobs, document, written, monkeypatch):
    monkeypatch.setenv("LARGEK_TEST_TOKEN", SECRET)
    text = document(
        "vault:///out",
        data="vault:///x.zarr",
        n_clusters=5,
        storage_options={"token": {"env": "LARGEK_TEST_TOKEN"}, "options": {"memory": True}},
    )
    first = open_jobs()
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        job_id = first.submit(text, OPTIONS, "me")
    first.close(10.0)
    later = open_jobs()
    assert later.status(job_id)["needs"] == ["options"]
    later.supply(job_id, {"options": {"key": NESTED}})
    assert wait_until(later, job_id, "finished", "failed")["state"] == "finished"
    check_silence(written())
    assert b"LARGEK_TEST_TOKEN" in written()


def test_redactor__hides_texts_inside_anything():
    redact = redactor({"a": "secret", "b": ["secret-longer"], "c": {"d": "xyz"}, "e": 5})
    told = {"one": "secret-longer and secret", "secret": ("a secret", 1), "n": None, "x": "xyz"}
    assert redact(told) == {"one": "*** and ***", "***": ["a ***", 1], "n": None, "x": "xyz"}
    assert json.dumps(redact(["abc"])) == '["abc"]'


def test_client__hides_them_before_they_are_sent():
    from largek_dask.service.spec import hide

    public, secret = hide({"key": "abc", "other": {"env": "NAME"}})
    assert public == {"key": {"memory": True}, "other": {"env": "NAME"}}
    assert secret == {"key": "abc"}
