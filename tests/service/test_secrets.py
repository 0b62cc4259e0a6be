"""Secrets are in memory and nowhere else; a job that has lost its own waits for them."""

import errno
import json
import traceback
from base64 import b64encode
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

import dask
import fsspec
import numpy as np
import pytest
import zarr

import largek_dask as lk
from largek_dask.driver.event_log import JsonLines
from largek_dask.driver.storage import Folder
from largek_dask.errors import DataError, JobNotFoundError, LargekError, ParameterError
from largek_dask.redaction import Redactor
from tests.helpers.checks import eventually
from tests.helpers.memory_files import MemoryFiles
from tests.service.conftest import wait_until

SECRET = "open-sesame-4711"
NESTED = "and-a-second-one-0815"


class VaultFileSystem(MemoryFiles):
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
        return MemoryFiles._strip_protocol(path.replace("vault://", "memory://"))

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
        asked = {"data": "vault:///x.zarr", "storage_options": HIDDEN, "n_clusters": 5}
        return document("vault:///out", **asked | changes)

    return make


def test_secrets__not_in_what_a_talkative_driver_says(vault, open_jobs, vault_job, written, logged):
    jobs = open_jobs()
    VaultFileSystem.closed = "model.zarr"
    job_id = jobs.submit(vault_job(), OPTIONS, "me")
    waiting = wait_until(jobs, job_id, "waiting")
    assert "*** may not write" in waiting["note"]
    with dask.config.set({"largek.service.retry-hours": 0}):
        status = wait_until(jobs, job_id, "finished", "failed")
    assert status["state"] == "failed"
    assert "*** may not write" in status["result"]["message"]
    assert any("*** may not write" in line for line in logged)
    told = jobs.events(job_id, 0, 1000)
    check_silence(written(), told, waiting, status, logged)


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
    later.cancel(job_id)
    wait_until(later, job_id, "cancelled")
    with pytest.raises(ParameterError, match="has no value"):
        later.delete(job_id)
    later.supply(job_id, OPTIONS)
    later.delete(job_id)
    with pytest.raises(JobNotFoundError):
        later.status(job_id)


def test_secrets__may_come_with_the_wish_to_go_on(vault, open_jobs, vault_job):
    first = open_jobs()
    job_id = first.submit(vault_job(max_iter=1), OPTIONS, "me")
    assert wait_until(first, job_id, "finished", "failed")["result"]["n_iter"] == 1
    first.close(10.0)
    later = open_jobs()
    later.resume(job_id, {"max_iter": 3}, OPTIONS)
    status = wait_until(later, job_id, "finished", "failed", "waiting")
    assert status["state"] == "finished", str(status)
    assert (status["max_iter"], status["result"]["n_iter"], status["needs"]) == (3, 3, [])
    kinds = [event["event"] for event in later.events(job_id, 0, 1000)]
    assert kinds.count("started") == 2, "what the first run has told is heard as well"


def test_secrets__not_in_what_is_said_of_a_log_that_cannot_be_closed(
    vault, open_jobs, vault_job, logged, monkeypatch
):
    close = JsonLines.close

    def full(log):
        close(log)
        raise OSError(errno.ENOSPC, f"no space for {SECRET}")

    monkeypatch.setattr(JsonLines, "close", full)
    jobs = open_jobs()
    job_id = jobs.submit(vault_job(), OPTIONS, "me")
    status = wait_until(jobs, job_id, "finished", "failed")
    assert status["state"] == "finished", "a job is worth more than its log"
    eventually(
        lambda: any("/out" in line and "no space for ***" in line for line in logged),
        "a line about it",
    )
    check_silence(logged)


def test_secrets__not_in_what_is_said_of_a_log_that_cannot_be_written(
    vault, open_jobs, vault_job, logged, monkeypatch
):
    """It is tried with every event, and said once: to who follows, and in the scheduler's log."""
    tried = []

    def full(log, event):
        tried.append(event["event"])
        raise OSError(errno.ENOSPC, f"no space for {SECRET}")

    monkeypatch.setattr(JsonLines, "__call__", full)
    jobs = open_jobs()
    job_id = jobs.submit(vault_job(), OPTIONS, "me")
    status = wait_until(jobs, job_id, "finished", "failed")
    assert status["state"] == "finished", "a job is worth more than its log"
    assert tried[:2] == ["queued", "running"]
    assert len(tried) > 3
    told = jobs.events(job_id, 0, 1000)
    warned = [event["message"] for event in told if event.get("topic") == "log"]
    assert len(warned) == 1
    assert "no space for ***" in warned[0]
    lines = [line for line in logged if "Events cannot be written to" in line]
    assert len(lines) == 1
    assert "/out" in lines[0]
    check_silence(logged)
    check_silence(map(str, told))


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


def test_secrets__nobody_asked_for_are_refused(vault, open_jobs, vault_job):
    jobs = open_jobs()
    job_id = jobs.submit(vault_job(max_iter=1), OPTIONS, "me")
    wait_until(jobs, job_id, "finished", "failed")
    for ask in (jobs.supply, lambda one, more: jobs.resume(one, {"max_iter": 3}, more)):
        with pytest.raises(ParameterError, match="does not need the storage option 'more'"):
            ask(job_id, {"more": "x"})
    assert jobs.status(job_id)["state"] == "finished"


def test_redactor__of_several_jobs_leaves_out_the_longest():
    redact = Redactor.joined([Redactor("open"), Redactor("open-sesame"), Redactor("same-key")])
    assert redact("open, open-sesame, open-sesame-key") == "***, ***, ***-key"


def test_redactor__of_very_deep_values():
    deep: Any = "a-deep-secret"
    for _ in range(5_000):
        deep = [deep]
    assert Redactor(deep)("it is a-deep-secret") == "it is ***"


def test_redactor__hides_texts_inside_anything():
    redact = Redactor({"a": "secret", "b": ["secret-longer"], "c": {"d": "xyz"}, "e": 5})
    told = {"one": "secret-longer and secret", "secret": ("a secret", 1), "n": None, "x": "xyz"}
    assert redact(told) == {"one": "*** and ***", "secret": ["a ***", 1], "n": None, "x": "xyz"}
    assert json.dumps(redact(["abc"])) == '["abc"]'


def test_redactor__leaves_what_is_too_short_alone():
    """Four letters are a secret; what fewer of them, or few in other letters, say is no trace."""
    redact = Redactor({"a": "wxyz", "b": 12345, "c": "abc\na-secret-line", "d": None, "e": True})
    assert redact("wxyz, a-secret-line") == "***, ***"
    told = f"12345 abc None True {b64encode(b'wxyz').decode()[:5]}"
    assert redact(told) == told


def test_redactor__leaves_words_of_this_package_alone():
    """An option may have any value: ``anon="event"`` must not change what events are."""
    redact = Redactor({"a": "event", "b": "finished", "c": "message", "d": 1234567})
    event = {"event": "finished", "message": "event, finished 1234567", "step": 1234567}
    event |= {"state": "finished", "note": "0.1234567 12345678"}
    assert redact(event) == event | {"message": "***, *** ***"}
    assert Redactor({})(event) == event


PEM_LINES = ["MIIEvQIBADANBgkq+hkiG9w0/BAQEFAASC", "BKcwggSjAgEAAoIBAQ=="]
PEM = "\n".join(["-----BEGIN PRIVATE KEY-----", *PEM_LINES, "-----END PRIVATE KEY-----", ""])


class Account:
    """An object that shows what it holds."""

    def __repr__(self) -> str:
        return "Account(key-of-an-object-77)"


PLANTED: dict[str, tuple[Any, list[str]]] = {
    "password": ("hunter2-hunter2", ["hunter2-hunter2"]),
    "quotes": ('it\'s "quoted" 99', ['it\'s "quoted" 99']),
    "backslash": ("back\\slash\\pass", ["back\\slash\\pass"]),
    "unicode": ("pässwörd-ключ", ["pässwörd-ключ"]),
    "control": ("schlüssel\x01mit\x7fzeichen-9", ["schlüssel\x01mit\x7fzeichen-9"]),
    "unicode-quotes": ('ключ-9 "zwei"\tdrei', ['ключ-9 "zwei"\tdrei']),
    "indented": ("line-of-it:\n    indented-line-of-it", ["line-of-it:", "indented-line-of-it"]),
    "slashes": ("pass/word of mine", ["pass/word of mine"]),
    "signs": (">>>???>>>???", [">>>???>>>???"]),
    "spaces": ("three plain words", ["three plain words"]),
    "pem": (PEM, [PEM, *PEM_LINES]),
    "windows-lines": ("line-one-of-it\r\nline-two-of-it", ["line-one-of-it", "line-two-of-it"]),
    "bytes": (b"bytes-with-secret", ["bytes-with-secret"]),
    "bytearray": (bytearray(b"array-of-bytes-1"), ["array-of-bytes-1"]),
    "integer": (918273645546, ["918273645546"]),
    "float": (27182.8182845, ["27182.8182845"]),
    "digits": ("5550123456", ["5550123456"]),
    "nested": ({"deep": {"deeper": "nested-secret-1"}}, ["nested-secret-1"]),
    "list": (["first-of-list", "second-of-list"], ["first-of-list", "second-of-list"]),
    "set": ({"one-of-a-set"}, ["one-of-a-set"]),
    "pair": (("somebody", "pass-of-a-pair"), ["pass-of-a-pair"]),
    "base64-key": ("Zm9v+YmFy/cXV4Cg==", ["Zm9v+YmFy/cXV4Cg=="]),
    "sas": ("sv=2024&sig=ab%2Bcd%3D&se=x", ["sv=2024&sig=ab%2Bcd%3D&se=x"]),
    "jwt": ("eyJhbGci.eyJzdWIi.c2lnbmF0", ["eyJhbGci.eyJzdWIi.c2lnbmF0"]),
    "proxy": ("http://user:pw4711@proxy:80", ["http://user:pw4711@proxy:80"]),
    "connection": ("Account=a;Key=MTIzNDU2;", ["Account=a;Key=MTIzNDU2;"]),
    "object": (Account(), ["Account(key-of-an-object-77)"]),
    "word": ("event", []),
    "state": ("finished", []),
}


def letters_of(secret: str) -> dict[str, str]:
    """What a driver may write a secret as."""
    data = secret.encode()
    return {
        "itself": secret,
        "repr": repr({"key": secret}),
        "repr of an error": repr(ValueError({"key": secret})),
        "repr in repr": repr([repr(secret)]),
        "json": json.dumps({"key": secret}),
        "json in letters": json.dumps({"key": secret}, ensure_ascii=False),
        "bytes": repr(data),
        "repr of bytes": repr([repr(data)]),
        "url": quote(secret),
        "whole url": quote(secret, safe=""),
        "form": urlencode({"password": secret}),
        "base64": b64encode(data).decode(),
        "basic": b64encode(b"me:" + data).decode(),
        "header": b64encode(b"user:" + data + b":more").decode(),
        "lines": "\n    ".join(secret.splitlines()),
    }


def traces_of(secret: str) -> set[str]:
    """What must not be read anywhere: the secret, and what only it makes of other letters."""
    data = secret.encode()
    inner = {b64encode(b"." * n + data).decode()[4:-4] for n in range(3)}
    shown = {secret, repr(secret)[1:-1], json.dumps(secret)[1:-1], quote(secret)}
    return {trace for trace in shown | inner if len(trace) >= 6}


def test_redactor__finds_a_secret_in_all_letters():
    for value, said in PLANTED.values():
        redact = Redactor({"option": value})
        for secret in said:
            for how, text in letters_of(secret).items():
                told = redact(f"before {text} behind")
                assert told != f"before {text} behind", how
                assert told.startswith("before ")
                assert told.endswith(" behind")
                assert not [trace for trace in traces_of(secret) if trace in told], (how, told)


def test_redactor__finds_bytes_that_are_no_text():
    data = b"\x00\xff\x80key\n"
    redact = Redactor({"key": data})
    for text in (repr(data), str({"key": data}), b64encode(data).decode(), quote(data)):
        assert redact(f"before {text} behind") != f"before {text} behind"
        assert "key" not in redact(text).removeprefix("{'key'")


class TalkativeFileSystem(MemoryFiles):
    """``talk://``: when it may not write, it says all that it knows, in all letters."""

    protocol = "talk"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    closed: ClassVar[str | None] = None
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return MemoryFiles._strip_protocol(path.replace("talk://", "memory://"))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        if self.closed is not None and self.closed in path:
            said = [secret for _, secrets in PLANTED.values() for secret in secrets]
            words = [text for secret in said for text in letters_of(secret).values()]
            raise PermissionError(f"{self.storage_options} {words}")
        super().pipe_file(path, value, mode=mode, **kwargs)


fsspec.register_implementation("talk", TalkativeFileSystem, clobber=True)


@pytest.mark.parametrize("closed", [None, "model.zarr", "events", "checkpoints", "claim", "out"])
def test_secrets__of_twenty_kinds_are_nowhere(closed, open_jobs, document, tmp_path, logged):
    """Not in any file, log, event or answer, whatever fails; nor does any of them break a job."""
    assert len(PLANTED) >= 20
    options = {name: value for name, (value, _) in PLANTED.items()}
    store = TalkativeFileSystem.store
    store.clear()
    TalkativeFileSystem.pseudo_dirs[:] = [""]
    TalkativeFileSystem.closed = None
    x = np.random.default_rng(0).standard_normal((500, 3)).astype(np.float32)
    zarr.create_array("talk:///x.zarr", data=x, chunks=(100, 3), storage_options=options)
    text = document("talk:///out", data="talk:///x.zarr", n_clusters=5,
                    storage_options={name: {"memory": True} for name in options})  # fmt: skip
    told: list[Any] = []
    answers: list[Any] = []
    jobs = open_jobs()
    TalkativeFileSystem.closed = closed
    try:
        with dask.config.set({"largek.service.retry-hours": 0}):
            job_id = jobs.submit(text, options, "me")
            answers.append(wait_until(jobs, job_id, "finished", "failed"))
            if closed is None:
                ends = {"finished", "failed"}
                eventually(lambda: jobs.events(job_id, 0, 1000)[-1]["event"] in ends, "the end")
            told += jobs.events(job_id, 0, 1000)
            answers += [told, jobs.listed()]
            if closed is None:
                assert answers[0]["state"] == "finished"
                answers += [jobs.model(job_id).provenance, jobs.model(job_id).history]
                kinds = {event["event"] for event in told}
                assert {"queued", "running", "step", "finished"} <= kinds
    except LargekError as error:
        answers.append(str(error))
    finally:
        TalkativeFileSystem.closed = None
    files = [file.getvalue() for file in store.values()]
    files += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    everything = b"\n".join(files).decode("latin-1") + repr((logged, answers))
    everything += json.dumps(told) + str(answers)
    if closed in ("model.zarr", "claim", "checkpoints"):
        assert "***" in everything, "it has talked"
    for kind, (_, said) in PLANTED.items():
        for secret in said:
            found = [trace for trace in traces_of(secret) if trace in everything]
            assert not found, kind


ADDRESSES = (
    "s3://AKIA123:wJalr-secret@bucket/x.zarr",
    "https://somebody:wJalr-secret@host/x.zarr",
    "simplecache::https://somebody:wJalr-secret@host/x.zarr",
    "sftp://wJalr-secret@host/x.zarr",
    "abfs://box:wJalr-secret@account.dfs.core.windows.net/x.zarr",
    "https://host/x.npy?sv=2024&sig=wJalr-secret",
    "https://bucket.s3/x.npy?X-Amz-Signature=wJalr-secret",
)


@pytest.mark.parametrize("field", ["data", "output", "sample_weight"])
def test_secrets__in_an_address_are_refused(field, document):
    for url in ADDRESSES:
        with pytest.raises(ParameterError, match=rf"{field}: .*storage_options") as refused:
            document(**{"output": "out", field: url})
        assert "wJalr-secret" not in str(refused.value)
        for function in (lk.open_rows, Folder):
            with pytest.raises(DataError, match="storage_options") as refused:
                function(url)
            assert "wJalr-secret" not in "".join(traceback.format_exception(refused.value))


def test_secrets__an_address_may_have_other_things_in_it(document):
    for url in (
        "abfs://box@account.dfs.core.windows.net/x.zarr",
        "s3://bucket/a@b/x.zarr",
        "https://host/x.npy?version=2&design=3",
        "/data/a?key=b@c",
    ):
        assert json.loads(document(data=url))["data"] == url
