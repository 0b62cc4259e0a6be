"""One place under all its names, and no job in the place of another."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import dask
import numpy as np
import pytest

import largek_dask as lk
from largek_dask.driver.storage import Folder
from largek_dask.errors import LostJobError, NoModelError, OutputError, ParameterError
from largek_dask.service.lease import Claimant, claimed_for
from largek_dask.service.store import read_result, write_result
from tests.service.conftest import wait_until

ENDED = ("finished", "failed", "cancelled")
OTHER = "lk-other"


@pytest.fixture
def waiting():
    """No job begins."""
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        yield


def names_of(tmp_path, name):
    """The folder of that name, called in other ways."""
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    return [
        f"{tmp_path}/./{name}",
        f"{tmp_path}//{name}",
        f"/{tmp_path}/{name}",
        f"file://{tmp_path}/{name}",
        f"local://{tmp_path}/{name}",
        f"{tmp_path}/link/{name}",
    ]


def test_submit__an_output_is_taken_under_all_its_names(open_jobs, document, tmp_path, waiting):
    jobs = open_jobs()
    first = jobs.submit(document("a/out"), {}, "me")
    for output in names_of(tmp_path, "a/out"):
        assert os.path.realpath(output.split("://")[-1]) == str(tmp_path / "a" / "out")
        with pytest.raises(OutputError, match=first):
            jobs.submit(document(output), {}, "me")
    assert [status["id"] for status in jobs.listed()] == [first]


def test_submit__the_folder_is_reserved_for_other_schedulers_too(
    open_jobs, document, tmp_path, waiting
):
    """Of two names that only the file system knows to be one, the claim in the folder tells."""
    one, other = open_jobs(store=str(tmp_path / "one")), open_jobs(store=str(tmp_path / "other"))
    first = one.submit(document(), {}, "me")
    assert claimed_for(Folder(str(tmp_path / "out"))) == first
    with pytest.raises(OutputError, match=first):
        other.submit(document(), {}, "me")


def test_submit__of_two_at_the_same_moment_one_has_the_folder(
    open_jobs, document, tmp_path, waiting, monkeypatch
):
    """Both have found it empty before either has reserved it."""
    one, other = open_jobs(store=str(tmp_path / "one")), open_jobs(store=str(tmp_path / "other"))
    other.wait_until_ready()
    create, taken = other._store_lease.records.create, []

    def late(*arguments):
        record = create(*arguments)
        taken.append(one.submit(document(), {}, "me"))
        return record

    monkeypatch.setattr(other._store_lease.records, "create", late)
    with pytest.raises(OutputError, match="lk-"):
        other.submit(document(), {}, "me")
    assert taken == [claimed_for(Folder(str(tmp_path / "out")))]
    assert other.listed() == []
    assert Folder(str(tmp_path / "other" / "jobs")).names() == [], "its record is gone as well"
    monkeypatch.undo()
    other.submit(document("elsewhere"), {}, "me")


def test_run__not_where_another_job_is(open_jobs, document, tmp_path, rows_url):
    jobs = open_jobs()
    with dask.config.set({"largek.service.concurrent-jobs": 0}):
        mine = jobs.submit(document(n_clusters=5), {}, "me")
        folder = Folder(str(tmp_path / "out"))
        folder.remove("claims")
        folder.create("claims/000001.json", f'{{"job": "{OTHER}", "owner": "x"}}'.encode())
        lk.KMeans(7, random_state=0).fit(rows_url).model_.save(str(tmp_path / "out" / "model.zarr"))
    status = wait_until(jobs, mine, *ENDED)
    assert status["state"] == "failed"
    assert OTHER in status["result"]["message"]
    with pytest.raises(NoModelError, match=OTHER):
        jobs.model(mine)
    jobs.delete(mine)
    assert (tmp_path / "out" / "model.zarr").exists(), "it is the other one's"
    assert claimed_for(folder) == OTHER


def test_model__is_the_one_that_was_fitted(open_jobs, document, tmp_path, rows_url):
    """Somebody has written another one in its place."""
    jobs = open_jobs()
    mine = jobs.submit(document(n_clusters=5), {}, "me")
    wait_until(jobs, mine, "finished")
    assert jobs.model(mine).n_clusters == 5
    other = lk.KMeans(7, random_state=0).fit(rows_url).model_
    other.save(str(tmp_path / "out" / "model.zarr"), overwrite=True)
    with pytest.raises(OutputError, match="not the model"):
        jobs.model(mine)


# --- on an object store ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def options(object_store):
    """Storage options of an object store with buckets ``places`` and ``rows``."""
    for bucket in ("places", "rows"):
        object_store.bucket(bucket)
    options = object_store.options
    x = np.random.default_rng(1).standard_normal((600, 4)).astype(np.float32)
    lk.ingest(x, "s3://rows/x.zarr", chunk_rows=200, progress=False, storage_options=options)
    return options


@pytest.fixture
def submit(options, document):
    """``submit(jobs, "s3://places/a")``: the id of a job that writes there."""

    def make(jobs, output, **changes):
        given = {name: {"memory": True} for name in options}
        spec = document(output, data="s3://rows/x.zarr", storage_options=given, **changes)
        return jobs.submit(spec, options, "me")

    return make


def test_object_store__an_output_is_taken_under_all_its_names(open_jobs, submit, options, waiting):
    jobs = open_jobs()
    first = submit(jobs, "s3://places/names")
    assert claimed_for(Folder("s3://places/names", options)) == first
    for name in ("s3://places/names", "s3://places/names/"):
        with pytest.raises(OutputError, match=first):
            submit(jobs, name)


def test_object_store__of_two_at_the_same_moment_one_has_the_folder(
    open_jobs, submit, options, waiting, tmp_path, monkeypatch
):
    """Both have found it empty before either has reserved it: the server says who is first."""
    one, other = open_jobs(store=str(tmp_path / "one")), open_jobs(store=str(tmp_path / "other"))
    other.wait_until_ready()
    create, taken = other._store_lease.records.create, []

    def late(*arguments):
        record = create(*arguments)
        taken.append(submit(one, "s3://places/both"))
        return record

    monkeypatch.setattr(other._store_lease.records, "create", late)
    with pytest.raises(OutputError, match="lk-"):
        submit(other, "s3://places/both")
    assert taken == [claimed_for(Folder("s3://places/both", options))]
    assert other.listed() == []


def test_object_store__who_has_lost_a_claim_writes_nothing_more(options):
    """Of two that claim the same number one gets it; the claim before is superseded."""
    folder = Folder("s3://places/claims", options)
    first = Claimant(folder, "lk-1", "one", 3600.0).claim()
    assert first is not None
    assert Claimant(folder, "lk-1", "other", 3600.0).claim() is None, "the first one lives"
    first.release()
    contenders = [Claimant(folder, "lk-1", name, 3600.0) for name in "abcd"]
    with ThreadPoolExecutor(4) as pool:
        leases = list(pool.map(Claimant.claim, contenders))
    (lease,) = [lease for lease in leases if lease is not None]
    assert lease.token == 2
    lease.check()
    with pytest.raises(LostJobError, match="superseded by claim 2"):
        folder.guarded(first.check).publish("job.json", b"{}")
    assert not folder.exists("job.json")
    with pytest.raises(ParameterError, match="lk-1"):
        Claimant(folder, "lk-2", "one", 0.0).claim()


def test_object_store__a_job_and_its_result(open_jobs, submit, options):
    jobs = open_jobs()
    mine = submit(jobs, "s3://places/whole", n_clusters=5)
    status = wait_until(jobs, mine, *ENDED)
    assert status["state"] == "finished", str(status)
    folder = Folder("s3://places/whole", options)
    assert read_result(folder, mine, 1).digest == jobs.model(mine).digest()
    with pytest.raises(ParameterError, match=mine):
        read_result(folder, OTHER, 1)
    stored = read_result(folder, mine, 1)
    again = write_result(folder, stored.model_copy(update={"state": "failed"}))
    assert again == stored, "what was published first stands"
