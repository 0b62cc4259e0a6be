"""Checkpoints, labels and models on ``s3://``, against an object store on this machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zarr

from largek_dask.driver.checkpoint import check_output_folder
from largek_dask.driver.event_log import JsonLines
from largek_dask.driver.storage import Folder
from largek_dask.errors import OutputError
from largek_dask.model import Model, load_model
from tests.driver.test_fit import X, assert_equal, cluster, stop_after
from tests.helpers.object_store import ObjectStore


@pytest.fixture
def options(object_store: ObjectStore) -> dict[str, Any]:
    object_store.bucket("jobs")
    return object_store.options


def test_of_two_who_create_one_object_one_succeeds(options: dict[str, Any]) -> None:
    folder = Folder("s3://jobs/created", options)
    assert folder.create("claims/1.json", b"mine")
    assert not folder.create("claims/1.json", b"yours")
    assert folder.read("claims/1.json") == b"mine"
    with pytest.raises(OutputError, match="cannot be written"):
        Folder("s3://no-such-bucket/x", options).create("a", b"")


def test_a_folder_that_is_kept_as_an_empty_object_is_empty(options: dict[str, Any]) -> None:
    """As SeaweedFS leaves it for a while, and as the console of AWS makes it."""
    folder = Folder("s3://jobs/emptied", options)
    folder.fs.call_s3("put_object", Bucket="jobs", Key="emptied/", Body=b"")
    folder.fs.invalidate_cache()
    assert folder.fs.ls("jobs/emptied", detail=False) == ["jobs/emptied/"]
    assert folder.names() == []
    check_output_folder(folder, "Take another one.")
    folder.publish("emptied", b"")
    assert folder.names() == ["emptied"]
    with pytest.raises(OutputError, match="'emptied'"):
        check_output_folder(folder, "Take another one.")


def test_folders_that_are_empty_then_are_removed_with_what_lay_in_them(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with SeaweedFS: they are left by `rm`, and each is removed when nothing is in it."""
    folder = Folder("s3://jobs/removed", options)
    fs, rm, removed = folder.fs, folder.fs.rm, []

    def leaving(path: str, recursive: bool) -> None:
        rm(path, recursive=recursive)
        for name in ("a.zarr/x/c", "a.zarr/x", "a.zarr"):
            fs.call_s3("put_object", Bucket="jobs", Key=f"removed/{name}/", Body=b"")

    def rm_file(path: str) -> None:
        key = path.removeprefix("jobs/") + "/"
        lies = fs.call_s3("list_objects_v2", Bucket="jobs", Prefix=key)["Contents"]
        if [one["Key"] for one in lies] == [key]:
            fs.call_s3("delete_object", Bucket="jobs", Key=key)
            removed.append(path)

    monkeypatch.setattr(fs, "rm", leaving)
    monkeypatch.setattr(fs, "rm_file", rm_file)
    folder.publish("a.zarr/x/c/0", b"1")
    folder.publish("b", b"2")
    folder.remove("a.zarr")
    assert [path.rpartition("/")[2] for path in removed] == ["c", "x", "a.zarr"]
    assert folder.names() == ["b"]
    assert not folder.exists("a.zarr")
    assert folder.read("b") == b"2"


def test_a_job_on_s3(options: dict[str, Any]) -> None:
    place: dict[str, Any] = {"checkpoint": "s3://jobs/one", "storage_options": options}
    cluster(**place, callbacks=[stop_after(2)])
    result = cluster(**place)
    assert_equal(result, cluster())
    folder = Folder("s3://jobs/one", options)
    assert folder.names() == ["checkpoints", "events", "job.json"]
    assert len(folder.sub("checkpoints").names()) == 4
    kinds = [event["event"] for event in JsonLines.read(folder)]
    assert (kinds.count("started"), kinds.count("step")) == (2, 6)

    model = Model.of(result)
    model.save("s3://jobs/one/model.zarr", storage_options=options)
    found = load_model("s3://jobs/one/model.zarr", storage_options=options)
    assert found.digest() == model.digest()
    with pytest.raises(OutputError, match="already exists"):
        found.save("s3://jobs/one/model.zarr", storage_options=options)

    out = "s3://jobs/one/labels.zarr"
    assert found.predict(X, out=out, storage_options=options) is None
    labels = Folder("s3://jobs/one", options).store("labels.zarr")
    np.testing.assert_array_equal(zarr.open_array(labels, mode="r")[...], result.labels)

    before = folder.names()
    found.predict(X, out="s3://jobs/one/labels.npy", storage_options=options)
    with folder.fs.open("jobs/one/labels.npy", "rb") as file:
        np.testing.assert_array_equal(np.load(file), result.labels)
    assert folder.names() == sorted([*before, "labels.npy"])


def test_a_misspelt_bucket_is_found_first_and_not_made(options: dict[str, Any]) -> None:
    told: list[Any] = []
    with pytest.raises(OutputError, match=r"s3://jbos/one.*cannot be written"):
        cluster(checkpoint="s3://jbos/one", storage_options=options, events=[told.append])
    assert told == []
    assert not Folder("s3://jobs", options).fs.exists("jbos")
