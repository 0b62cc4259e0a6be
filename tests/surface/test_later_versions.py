"""Files of later versions are refused by name; those of earlier ones without a number load."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import largek_dask as lk
from largek_dask.driver.checkpoint import description_in
from largek_dask.driver.event_log import JsonLines, Tail
from largek_dask.driver.labels import LabelStore
from largek_dask.driver.starts import best_saved
from largek_dask.driver.storage import Folder
from largek_dask.errors import CheckpointError, DataError, LargekError, OutputError, ParameterError
from largek_dask.service.lease import check_job, reserve
from largek_dask.service.spec import JobSpec
from largek_dask.service.store import Records, Result, read_result, write_result
from largek_dask.version import __version__
from tests.helpers.covering import in_turns


@pytest.fixture(scope="module")
def x() -> Any:
    return np.random.default_rng(0).standard_normal((300, 3)).astype(np.float32)


@pytest.fixture
def store(tmp_path: Path, x: Any) -> str:
    lk.ingest(x, str(tmp_path / "x.zarr"), chunk_rows=100, progress=False)
    return str(tmp_path / "x.zarr")


def edit(file: Path, change: Callable[[Any], Any]) -> None:
    """Change a JSON file."""
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))


def noted(store: str, change: Callable[[Any], Any]) -> None:
    """Change what a store says of itself."""
    edit(Path(store) / "zarr.json", lambda node: change(node["attributes"]["largek"]))


def fit(store: str, **options: Any) -> lk.KMeans:
    return lk.KMeans(3, algorithm=lk.Lloyd(), random_state=0, max_iter=3, **options).fit(store)


def refused(kind: type[Exception], ask: Callable[[], Any], *told: str) -> None:
    """It is an error of this package, which says what, where, and what to do."""
    with pytest.raises(kind) as failed:
        ask()
    assert isinstance(failed.value, LargekError)
    for text in (*told, "upgrade", f"largek_dask {__version__}"):
        assert text in str(failed.value)


# --- stores of rows -------------------------------------------------------------------------------

LATER_STORES = {
    "store": (lambda notes: notes.update(format=2), "format '2'"),
    "store of no number": (lambda notes: notes.update(format="b"), "format 'b'"),
    "statistics": (
        lambda notes: notes.update(version="9.1") or notes["statistics"].update(format=2),
        "format '2', written by largek_dask 9.1,",
    ),
    "field of the grid": (lambda notes: notes["statistics"]["grid"].update(new=1), "statistics"),
    "grid of another form": (lambda notes: notes["statistics"].update(grid=[1]), "statistics"),
    "mean of another form": (lambda notes: notes["statistics"].update(mean={}), "statistics"),
    "fewer features": (lambda notes: notes["statistics"].update(n_features=2), "statistics"),
    "fewer rows": (lambda notes: notes["statistics"].update(n_total=299), "statistics"),
    "no number of rows": (lambda notes: notes["statistics"].pop("n_rows"), "statistics"),
}


@pytest.mark.parametrize(("later", "kind"), in_turns([*LATER_STORES], ["dense", "sparse"]))
def test_stores(kind: str, later: str, store: str, tmp_path: Path, x: Any) -> None:
    if kind == "sparse":
        import scipy.sparse as sparse

        store = str(tmp_path / "sparse.zarr")
        lk.ingest(sparse.csr_array(x), store, chunk_rows=100, progress=False)
    change, told = LATER_STORES[later]
    noted(store, change)
    refused(DataError, lambda: fit(store), told, store)


def test_stores__say_who_wrote_them_and_older_ones_do_not(store: str) -> None:
    notes = zarr.open_array(store, mode="r").attrs["largek"]
    assert isinstance(notes, dict)
    assert (notes["format"], notes["version"]) == (1, __version__)
    before = fit(store).model_.digest()
    noted(store, lambda notes: [notes.pop(name) for name in ("format", "version")])
    assert fit(store).model_.digest() == before


# --- folders of fits ------------------------------------------------------------------------------


@pytest.fixture
def run(store: str, tmp_path: Path) -> Path:
    fit(store, checkpoint=str(tmp_path / "run"))
    return tmp_path / "run"


def test_job_json(run: Path) -> None:
    edit(run / "job.json", lambda job: job.update(format=3, versions={"largek_dask": "9.1"}))
    told = ("job.json: format '3', written by largek_dask 9.1,",)
    refused(CheckpointError, lambda: description_in(Folder(str(run))), *told)


def test_checkpoints__whatever_their_digest_is_made_of(run: Path) -> None:
    [newest] = sorted((run / "checkpoints").glob("*.json"))[-1:]
    edit(newest, lambda record: record.update(format=3))
    told = (f"{newest.name}: format '3'",)
    refused(CheckpointError, lambda: best_saved(Folder(str(run))), *told)


def test_events(run: Path) -> None:
    folder = Folder(str(run))
    events = list(JsonLines.read(folder))
    started = [event for event in events if event["event"] == "started"]
    assert [(one["format"], one["version"]) for one in started] == [(1, __version__)]
    (run / "events" / "000099.jsonl").write_text('{"event": "started", "format": 2}\n')
    for ask in (
        lambda: list(JsonLines.read(folder)),
        lambda: JsonLines.last(folder, 10),
        lambda: list(Tail(folder).new()),
    ):
        refused(OutputError, ask, f"the events in {folder.url}: format '2'")
    for part in (run / "events").glob("*.jsonl"):
        part.write_text('{"event": "started"}\n')
    assert {event["event"] for event in JsonLines.read(folder)} == {"started"}


def test_unfinished_labels(tmp_path: Path) -> None:
    def labels() -> LabelStore:
        return LabelStore(str(tmp_path / "labels.zarr"), np.array([0, 100, 200]), {"of": "me"})

    labels().begin("model")
    edit(tmp_path / "labels.zarr.progress.json", lambda record: record.update(format=2))
    refused(OutputError, labels, "progress.json: format '2'")


# --- the service ----------------------------------------------------------------------------------


@pytest.fixture
def spec(store: str, tmp_path: Path) -> JobSpec:
    return JobSpec.parse({"data": store, "output": str(tmp_path / "out"), "n_clusters": 3})


def test_records(tmp_path: Path, spec: JobSpec) -> None:
    records = Records(Folder(str(tmp_path / "jobs-of")))
    record = records.create(spec, "me", 1.0)
    file = tmp_path / "jobs-of" / "jobs" / f"{record.id}.json"
    before = file.read_text()
    for change, told in (
        ({"format": 2, "versions": ["9.1"], "more": 1}, r"format: .*the version that wrote it"),
        ({"more": 1}, "more: "),
        ({"spec": {**spec.dump(), "format": 3}}, "format: must be 2.*version that wrote it"),
        ({"spec": {**spec.dump(), "more": 2}}, "more: .*version that wrote it"),
    ):
        file.write_text(json.dumps({**json.loads(before), **change}))
        with pytest.raises(ParameterError, match=told) as failed:
            records.read(record.id)
        assert f"{record.id}.json" in str(failed.value)


def test_results(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "out"))
    write_result(folder, Result(job="lk-1", run=1, token=1, state="finished"))
    edit(tmp_path / "out/results/000001.json", lambda result: result.update(more=1))
    told = ("000001.json", "more: ")
    refused(ParameterError, lambda: read_result(folder, "lk-1", 1), *told)


def test_claims(tmp_path: Path) -> None:
    folder, file = Folder(str(tmp_path)), tmp_path / "claims" / "000001.json"
    reserve(folder, "lk-1", "me")
    assert json.loads(file.read_text())["format"] == 1
    edit(file, lambda claim: claim.pop("format"))
    check_job(folder, "lk-1")
    edit(file, lambda claim: claim.update(format=2))
    refused(ParameterError, lambda: check_job(folder, "lk-1"), "000001.json: format '2'")
