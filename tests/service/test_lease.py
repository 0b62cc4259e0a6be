"""One writer a job: claims, signs of life, and who loses to whom."""

from __future__ import annotations

import contextlib
import errno
import os
import threading

import dask
import pytest

from largek_dask.driver.storage import Folder
from largek_dask.errors import LostJobError, OutputError, ParameterError
from largek_dask.service.lease import Claimant, claimed_for, reserve


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture(params=["local", "memory", "without links"])
def folder(request, tmp_path):
    if request.param == "memory":
        yield Folder(f"memory://{tmp_path.name}")
    elif request.param == "local":
        yield Folder(str(tmp_path / "job"))
    else:
        with without_links() as tried:
            yield Folder(str(tmp_path / "job"))
        assert tried, "no link was needed"


@contextlib.contextmanager
def without_links(number=errno.EPERM):
    """A file system without hard links; those that were tried."""
    tried = []

    def refuse(source, target):
        tried.append(target)
        raise OSError(number, "Operation not permitted")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", refuse)
        yield tried


def claimant(folder, owner="a", patience=10.0):
    clock = Clock()
    return Claimant(folder, "lk-1", owner, patience, clock=clock), clock


def test_the_first_one_holds_until_it_is_silent(folder):
    one, _ = claimant(folder)
    lease = one.claim()
    assert lease.token == 1
    lease.check()
    other, clock = claimant(folder, "b")
    for _ in range(5):
        clock.now += 9
        assert other.claim() is None
        lease.renew()
    assert other.claim() is None
    clock.now += 11
    taken = other.claim()
    assert taken.token == 2
    with pytest.raises(LostJobError, match=r"claim 1 of a .* claim 2"):
        lease.renew()
    with pytest.raises(LostJobError):
        lease.check()
    lease.release()
    taken.check()
    late, _ = claimant(folder, "c")
    assert late.claim() is None, "a loser releases nothing"


def test_what_has_been_released_is_free_at_once(folder):
    one, _ = claimant(folder)
    one.claim().release()
    other, _ = claimant(folder, "b")
    assert other.claim().token == 2


def test_a_holder_that_died_before_its_first_sign_is_waited_for(folder):
    folder.create("claims/000001.json", b"{}")
    other, clock = claimant(folder)
    assert other.claim() is None
    clock.now += 11
    assert other.claim().token == 2


def test_other_files_are_no_claims(folder):
    for name in ("x.json", "000009.beat", "00.json", "000007.json.abc.partial"):
        folder.publish(f"claims/{name}", b"")
    assert claimant(folder)[0].claim().token == 1


@pytest.mark.parametrize("links", [True, False])
def test_of_many_at_once_one_gets_each_number(tmp_path, links):
    with contextlib.nullcontext() if links else without_links():
        claim_many_at_once(Folder(str(tmp_path)))


def claim_many_at_once(folder):
    for token in range(1, 8):
        start, found = threading.Barrier(8), []

        def race(start=start, found=found):
            rival = Claimant(folder, "lk-1", "rival", 3600.0)
            start.wait(60.0)
            found.append(rival.claim())

        threads = [threading.Thread(target=race) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (lease,) = [lease for lease in found if lease is not None]
        assert lease.token == token
        lease.release()


def test_create_writes_all_or_nothing(folder):
    assert folder.create("a/b", b"one")
    assert not folder.create("a/b", b"two")
    assert folder.read("a/b") == b"one"
    assert folder.sub("a").names() == ["b"]


def test_create_says_what_is_wrong(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="cannot be written"):
        Folder(str(tmp_path / "file")).create("x", b"")


def test_a_claim_whose_answer_was_lost_is_ones_own(folder, monkeypatch):
    """Written, but the network failed before it was said: tried again, it is there already."""
    created, failed = Folder._created, []

    def lossy(self, target, data):
        found = created(self, target, data)
        if not failed:
            failed.append(target)
            raise OSError(errno.EIO, "the answer was lost")
        return found

    monkeypatch.setattr(Folder, "_created", lossy)
    with dask.config.set({"largek.stores.pause-seconds": 0}):
        assert claimant(folder)[0].claim().token == 1
    assert failed


def test_a_folder_of_another_job_is_never_claimed(folder):
    claimant(folder)[0].claim().release()
    assert claimed_for(folder) == "lk-1"
    with pytest.raises(ParameterError, match="output of job lk-1, not of lk-2"):
        Claimant(folder, "lk-2", "b", -1.0).claim()
    with pytest.raises(OutputError, match="output of job lk-1, not of lk-2"):
        reserve(folder, "lk-2", "b")


def test_a_lease_says_from_whom_it_was_taken(tmp_path):
    folder, clock = Folder(str(tmp_path / "job")), Clock()
    first = Claimant(folder, "lk-1", "a", 10.0, clock=clock).claim()
    assert first.taken_from is None
    other = Claimant(folder, "lk-1", "b", 10.0, clock=clock)
    assert other.claim() is None
    clock.now += 11.0
    second = other.claim()
    assert second.taken_from == "a"
    second.release()
    assert Claimant(folder, "lk-1", "c", 10.0, clock=clock).claim().taken_from is None


def test_create_without_links(tmp_path):
    """As on exFAT, some shares and some file systems of user space."""
    for number in (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EACCES):
        folder = Folder(str(tmp_path / str(number)))
        with without_links(number) as tried:
            assert folder.create("a", b"one")
            assert not folder.create("a", b"two")
            assert len(tried) == 2
        assert folder.read("a") == b"one"
        assert folder.names() == ["a"]
    with (
        without_links(errno.EIO),
        dask.config.set({"largek.stores.tries": 1}),
        pytest.raises(OutputError),
    ):
        folder.create("b", b"one")
    assert folder.names() == ["a"]
