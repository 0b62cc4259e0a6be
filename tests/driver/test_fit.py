from __future__ import annotations

import json
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dask.config
import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

from largek_dask.algorithms.base import Footprint
from largek_dask.algorithms.incremental import IncrementalLloyd
from largek_dask.algorithms.lloyd import Lloyd
from largek_dask.algorithms.minibatch import MiniBatch
from largek_dask.algorithms.nmbatch import NMBatch
from largek_dask.algorithms.truncated import Truncated
from largek_dask.data.sources import open_rows
from largek_dask.driver import labels as labels_module
from largek_dask.driver import plan
from largek_dask.driver.event_log import JsonLines
from largek_dask.driver.fit import FitResult
from largek_dask.driver.provenance import digest_of
from largek_dask.driver.run import Snapshot
from largek_dask.driver.storage import Folder
from largek_dask.errors import (
    CheckpointError,
    DataChangedError,
    DegenerateDataWarning,
    NotEnoughMemoryError,
    OutputError,
    ParameterError,
    ParameterWarning,
)
from largek_dask.passes.local import LocalPasses
from tests.driver import toy
from tests.driver.toy import CutRows, Toy, toy_rows
from tests.helpers.checks import fit_asked

RULES = {"max_iter": 6, "tol": 0}
X = toy_rows(200, 3)


def cluster(x: Any = X, weight: Any = None, **options: Any) -> FitResult:
    asked = {"algorithm": Toy(), "n_clusters": 5, "seed": 1, "n_threads": 2, **RULES}
    return fit_asked(open_rows(x, sample_weight=weight), **{**asked, **options})


def distances(x: NDArray[Any], centers: NDArray[Any]) -> NDArray[np.float64]:
    return ((x[:, None].astype(float) - centers) ** 2).sum(-1)


def assert_equal(a: FitResult, b: FitResult) -> None:
    assert digest_of(a.arrays) == digest_of(b.arrays)
    assert a.value == b.value
    assert a.n_iter == b.n_iter
    np.testing.assert_array_equal(a.labels, b.labels)
    assert [r["cost"] for r in a.history] == [r["cost"] for r in b.history]


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Nine chunks of 24 rows instead of one."""
    monkeypatch.setattr("largek_dask.data.memory_rows.MIN_CHUNK_ROWS", 1)
    with dask.config.set({"largek.data.memory-chunk-bytes": 24 * 3 * 8}):
        assert open_rows(X).n_chunks == 9
        yield


def stop_after(step: int) -> Callable[[Snapshot], bool]:
    return lambda snapshot: snapshot.record["step"] >= step


class Searching(Toy):
    """A toy whose rows have labels without looking at all centres."""

    def labels(self, passes: Any, rng: Any, state: Any) -> tuple[Any, ...]:
        return np.full(passes.n_rows, 2, np.int32), 123.0, np.full(5, passes.n_rows / 5)

    def footprint(self, table: Any) -> Footprint:
        return Footprint(label_share=1e-3)


@pytest.mark.parametrize("stored", [False, True])
def test_no_time_for_the_last_pass(
    stored: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("largek_dask.driver.starts.seconds_of_last_pass", lambda *_: 1e6)
    limit = {**RULES, "max_time": 3600}
    asked = {"labels": str(tmp_path / "labels.zarr")} if stored else {}
    # Steps have a fifth of the time that the last pass has no room in.
    tells = pytest.warns(ParameterWarning, match="alone takes about 277 h 46 min")
    with tells if stored else nullcontext():
        late = cluster(algorithm=Searching(), **limit, **asked)
    with tells:
        exact = cluster(**limit)
    assert (exact.stop_reason, exact.n_iter) == ("max_iter", 6)
    np.testing.assert_array_equal(exact.labels, distances(X, exact.arrays.centers).argmin(1))
    if stored:
        # What is written is always exact.
        assert (late.stop_reason, late.n_iter) == ("max_iter", 6)
    else:
        assert late.stop_reason == "max_time_without_last_pass"
        assert late.n_iter == 6, "1,000 s are kept back, not all there are"
        assert late.value == 123.0
        np.testing.assert_array_equal(late.labels, np.full(len(X), 2))


def test_empty_clusters_of_a_search_without_a_last_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sparing(Searching):
        def labels(self, passes: Any, rng: Any, state: Any) -> tuple[Any, ...]:
            labels, cost, _ = super().labels(passes, rng, state)
            return labels, cost, np.array([0, 0, len(X), 0, 0.0])

    monkeypatch.setattr("largek_dask.driver.starts.seconds_of_last_pass", lambda *_: 1e6)
    with pytest.warns(DegenerateDataWarning, match="4 of 5 .*: there was no time to move"):
        late = cluster(max_iter=6, tol=0, max_time=3600, algorithm=Sparing())
    assert late.stop_reason == "max_time_without_last_pass"


# --- the numbers


def test_everything_belongs_to_the_centres_that_come_back() -> None:
    weight = np.arange(200) % 4 / 2
    result = cluster(weight=weight)
    expected = distances(X, result.arrays.centers)
    np.testing.assert_array_equal(result.labels, expected.argmin(1))
    assert result.labels is not None
    assert result.labels.dtype == np.int32
    assert result.value == pytest.approx((weight * expected.min(1)).sum(), rel=1e-12)
    np.testing.assert_array_equal(
        result.arrays.counts, np.bincount(result.labels, weight, minlength=5)
    )
    assert (result.n_iter, result.stop_reason, len(result.history)) == (6, "max_iter", 6)
    json.dumps(result.provenance, allow_nan=False)
    assert result.provenance["inertia"] == result.value
    assert result.provenance["parameters"]["algorithm"] == {"name": "Toy", "noise": 0.1}


def test_rows_with_nan_get_no_label_and_no_weight() -> None:
    x = X.copy()
    x[7, 1] = np.nan
    x[150] = np.inf
    result = cluster(x, on_bad_rows="skip")
    assert result.labels is not None
    assert np.flatnonzero(result.labels == -1).tolist() == [7, 150]
    assert result.arrays.counts.sum() == 198
    kept = np.delete(np.arange(200), [7, 150])
    expected = distances(x[kept], result.arrays.centers).min(1).sum()
    assert result.value == pytest.approx(expected, rel=1e-12)


# --- empty clusters


def test_no_cluster_comes_back_empty() -> None:
    far = Toy(noise=1e6)  # every centre far away from every row, so all but one are empty
    kept = cluster(algorithm=far, empty_clusters="keep")
    assert np.count_nonzero(kept.arrays.counts) < 5
    mended = cluster(algorithm=far)
    assert np.count_nonzero(mended.arrays.counts) == 5
    assert mended.value is not None
    assert kept.value is not None
    assert mended.value < kept.value
    expected = distances(X, mended.arrays.centers)
    np.testing.assert_array_equal(mended.labels, expected.argmin(1))


def test_fewer_distinct_rows_than_clusters_are_counted() -> None:
    x = np.repeat(np.eye(3) * 9, 20, axis=0)
    with pytest.warns(DegenerateDataWarning, match="2 of 5 clusters are empty.*3 distinct"):
        result = cluster(x)
    assert result.n_distinct == 3
    assert result.value == 0.0


# --- several starts


def test_the_best_start_is_kept() -> None:
    alone = [cluster(seed=4, n_init=n) for n in (1, 2, 3, 4)]
    starts = alone[-1]
    assert starts.provenance["start"] > 0  # else the test shows nothing
    inertias = [r.value for r in alone]
    assert inertias == sorted(inertias, reverse=True)  # type: ignore[type-var]
    np.testing.assert_array_equal(starts.labels, distances(X, starts.arrays.centers).argmin(1))


@pytest.mark.parametrize("stop_in", [(0, 2), (1, 4), (3, 1)])
def test_starts_are_taken_up_where_they_were(stop_in: tuple[int, int], tmp_path: Path) -> None:
    whole = cluster(n_init=4)
    folder = str(tmp_path / "job")
    told: list[Any] = []

    def stop(snapshot: Snapshot) -> bool:
        start = next(e["start"] for e in reversed(told) if e["event"] == "started")
        return (start, snapshot.record["step"]) == stop_in

    cut = cluster(n_init=4, checkpoint=folder, callbacks=[stop], events=[told.append])
    assert cut.stop_reason == "callback"
    first = sum(e["event"] == "step" for e in told)
    assert first == 6 * stop_in[0] + stop_in[1]
    told.clear()
    resumed = cluster(n_init=4, checkpoint=folder, events=[told.append])
    assert_equal(resumed, whole)
    assert sum(e["event"] == "step" for e in told) == 24 - first
    told.clear()
    again = cluster(n_init=4, checkpoint=folder, events=[told.append])
    assert_equal(again, whole)
    assert sum(e["event"] == "step" for e in told) == 0


@pytest.mark.parametrize(
    ("algorithm", "in_chunks"),
    [
        (Lloyd(), True),
        pytest.param(NMBatch(b0=50, gather=0), True, marks=pytest.mark.slow),
        pytest.param(IncrementalLloyd(rounds=3), True, marks=pytest.mark.slow),
        (IncrementalLloyd(rounds=3), False),
        pytest.param(Truncated(), True, marks=pytest.mark.slow),
        pytest.param(Truncated(), False, marks=pytest.mark.slow),
    ],
    ids=[
        "lloyd",
        "nmbatch",
        "incremental",
        "incremental in one piece",
        "truncated",
        "truncated in one piece",
    ],
)
def test_starts_know_nothing_of_each_other(
    algorithm: Any, in_chunks: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Also where one ends just before the step that the next is taken up with."""
    if in_chunks:
        request.getfixturevalue("small_chunks")
    asked = {"algorithm": algorithm, "n_clusters": 7, "n_init": 4, "init": "random"}
    rules = {"max_iter": 60, "tol": 0}
    told: list[Any] = []
    cluster(**asked, **rules, events=[told.append])
    lengths = [e["n_iter"] for e in told if e["event"] == "stopped"]
    assert len(set(lengths)) > 1, "all would be stopped at the same step as before"
    costs = {(e["start"], e["step"]): e["cost"] for e in told if e["event"] == "step"}
    # One that ended with this step, or with the next, comes before one that is taken up.
    for step in sorted({n - back for n in lengths[1:3] for back in (0, 1)} - {0}):
        folder = str(tmp_path / str(step))
        cluster(**asked, checkpoint=folder, max_iter=step, tol=0)
        told.clear()
        cluster(**asked, checkpoint=folder, **rules, events=[told.append])
        for e in told:
            if e["event"] == "step":
                assert e["cost"] == costs[e["start"], e["step"]]


def test_a_torn_count_is_counted_again(tmp_path: Path) -> None:
    whole = cluster(n_init=2, checkpoint=str(tmp_path))
    for path in (tmp_path / "counted.json", tmp_path / "starts/01/counted.json"):
        assert json.loads(path.read_text())["n_iter"] == 6
        path.write_text('{"n_iter": 6, "ine')
    assert_equal(cluster(n_init=2, checkpoint=str(tmp_path)), whole)


# --- stopping and going on


@pytest.mark.parametrize("step", [1, 3, 5])
def test_resume(step: int, tmp_path: Path) -> None:
    cut = cluster(checkpoint=str(tmp_path), callbacks=[stop_after(step)])
    assert (cut.n_iter, cut.stop_reason) == (step, "callback")
    assert_equal(cluster(checkpoint=str(tmp_path)), cluster())
    kinds = [e["event"] for e in JsonLines.read(Folder(str(tmp_path)))]
    assert kinds.count("started") == 2
    assert kinds.count("step") == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_clusters": 4}, "its n_clusters is 5, not 4"),
        ({"seed": 2}, "its seed is 1, not 2"),
        ({"algorithm": Toy(noise=0.2)}, "its algorithm noise is"),
        ({"init": np.zeros((5, 3))}, "its init is 'auto', not"),
        ({"normalize": "l2"}, "its normalize is None"),
        ({"n_init": 2}, "its n_init is 1"),
        ({"on_bad_rows": "skip"}, "its on_bad_rows is 'raise'"),
        ({"empty_clusters": "keep"}, "its empty_clusters is 'relocate'"),
    ],
)
def test_another_job_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    cluster(checkpoint=str(tmp_path), callbacks=[stop_after(1)])
    with pytest.raises(CheckpointError, match=message):
        cluster(checkpoint=str(tmp_path), **change)


def test_changed_rows_or_weights_are_refused(tmp_path: Path) -> None:
    cluster(checkpoint=str(tmp_path), callbacks=[stop_after(1)])
    x = X.copy()
    x[3, 0] += 1
    with pytest.raises(DataChangedError, match="values of the rows have changed"):
        cluster(x, checkpoint=str(tmp_path))
    with pytest.raises(DataChangedError, match="had no weights before"):
        cluster(weight=np.ones(200), checkpoint=str(tmp_path))


def test_a_resume_does_not_scan_the_rows_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster(checkpoint=str(tmp_path), callbacks=[stop_after(1)])
    monkeypatch.setattr("largek_dask.passes.base.RowScan", None)
    assert cluster(checkpoint=str(tmp_path)).n_iter == 6


def test_ctrl_c_inside_a_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_chunks: None
) -> None:
    calls = [0]
    original = toy.add_chunk

    def interrupted(chunk: Any, total: Any, centers: Any) -> None:
        calls[0] += 1
        if calls[0] == 2 * 9 + 4:  # in the third pass
            signal.raise_signal(signal.SIGINT)
        original(chunk, total, centers)

    with monkeypatch.context() as patch:
        patch.setattr(toy, "add_chunk", interrupted)
        result = cluster(checkpoint=str(tmp_path), n_threads=1)
    assert (result.n_iter, result.stop_reason) == (2, "interrupted")
    np.testing.assert_array_equal(result.labels, distances(X, result.arrays.centers).argmin(1))
    assert (tmp_path / "checkpoints/000002.json").exists()
    assert_equal(cluster(checkpoint=str(tmp_path)), cluster())


def test_ctrl_c_before_any_centre_says_so_and_not_where(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(chunk: Any, total: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(toy, "_extent", interrupted)
    with pytest.raises(KeyboardInterrupt, match="stopped before there was a model") as caught:
        cluster()
    assert caught.value.__suppress_context__
    assert caught.traceback[-1].path.name == "fit.py", "no frame of what it was about"


def test_ctrl_c_in_a_later_start_keeps_the_best_before(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [0]
    original = toy._extent

    def interrupted(chunk: Any, total: Any) -> None:
        calls[0] += 1
        if calls[0] == 2:
            signal.raise_signal(signal.SIGINT)
        original(chunk, total)

    monkeypatch.setattr(toy, "_extent", interrupted)
    result = cluster(n_init=3)
    assert (result.n_iter, result.stop_reason, result.provenance["start"]) == (6, "interrupted", 0)
    assert result.labels is not None


def test_cancel_is_quick_and_leaves_no_labels(tmp_path: Path) -> None:
    asked: list[int] = []
    told: list[Any] = []
    result = cluster(
        checkpoint=str(tmp_path),
        cancelled=lambda: bool(asked),
        callbacks=[lambda s: asked.append(1)],
        events=[told.append],
    )
    assert (result.n_iter, result.stop_reason) == (1, "cancelled")
    assert result.labels is None
    assert result.value is None
    assert not any(e["event"] == "labels" for e in told)
    assert_equal(cluster(checkpoint=str(tmp_path)), cluster())


def test_no_time_at_all_gives_rows_as_centres(tmp_path: Path) -> None:
    result = cluster(max_time=0, checkpoint=str(tmp_path))
    assert (result.n_iter, result.stop_reason, result.history) == (0, "max_time_without_search", ())
    rows = {tuple(row) for row in X}
    assert len({tuple(center) for center in result.arrays.centers} & rows) == 5
    found = distances(X, result.arrays.centers)
    np.testing.assert_array_equal(result.labels, found.argmin(1))
    assert result.value == pytest.approx(found.min(1).sum())
    # It has left nothing that a later run would go on from.
    assert_equal(cluster(checkpoint=str(tmp_path)), cluster())


# --- what is found before computing


def test_more_clusters_than_rows_that_count() -> None:
    weight = np.zeros(200)
    weight[:4] = 1
    with pytest.raises(ParameterError, match=r"n_clusters=5.*positive weight.*n_samples=4"):
        cluster(weight=weight)


class UnreadRows(CutRows):
    """Rows that must not be read yet."""

    def _load(self, i: int, start: int, stop: int) -> NDArray[Any]:
        raise AssertionError(f"chunk {i} was read")


@pytest.mark.parametrize(
    ("init", "message"),
    [
        (X[:4], r"init has shape \(4, 3\).*must be \(5, 3\)"),
        (X[:5, :2], r"init has shape \(5, 2\).*must be \(5, 3\)"),
        (X[0], r"init has shape \(3,\)"),
        (np.where(np.arange(5)[:, None] == 3, np.nan, X[:5]), "init: centre 3 holds NaN"),
        (np.where(np.arange(5)[:, None] == 2, -np.inf, X[:5]), "init: centre 2 holds NaN"),
        (X[:5].astype(str), "init must hold real numbers, not <U"),
        (X[:5] * 1j, "init must hold real numbers, not complex128"),
        ("magic", "init must be one of 'auto', 'random', .* or an array, got 'magic'"),
    ],
)
def test_wrong_starting_centres_are_found_before_reading(init: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        fit_asked(UnreadRows(X, [100, 100]), algorithm=Lloyd(), n_clusters=5, seed=1, init=init)


def test_too_little_memory_is_found_with_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = plan.memory_needed(5, 3, 8, 2)
    monkeypatch.setattr(plan, "process_memory", lambda: needed)
    assert cluster().n_iter == 6
    monkeypatch.setattr(plan, "process_memory", lambda: needed - 1)
    with pytest.raises(NotEnoughMemoryError, match=r"5 clusters of 3 features need about \d"):
        cluster()


def wide_weights() -> NDArray[np.float64]:
    """Weights of so wide a range that sums have a second limb."""
    weight = np.ones(len(X))
    weight[::2] = 1e-14
    with LocalPasses(open_rows(X, sample_weight=weight)) as passes:
        assert passes.statistics.grid.wide
    return weight


def test_memory_for_wide_sums_is_found_wanting_when_weights_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = wide_weights()
    needed = plan.memory_needed(5, 3, 8, 2, wide=True)
    stepped: list[Any] = []
    options: dict[str, Any] = {"algorithm": Lloyd(), "n_clusters": 5, "seed": 1, "n_threads": 2}
    options["callbacks"] = [stepped.append]
    rows = open_rows(X, sample_weight=weight)
    assert plan.memory_needed(5, 3, 8, 2) < needed
    monkeypatch.setattr(plan, "process_memory", lambda: needed - 1)
    with pytest.raises(NotEnoughMemoryError, match="or rows, differ so much that sums are twice"):
        fit_asked(rows, **options)
    assert not stepped
    assert fit_asked(open_rows(X), **options).n_iter == len(stepped) > 0
    monkeypatch.setattr(plan, "process_memory", lambda: needed)
    assert fit_asked(rows, **options).n_iter > 0


def test_a_folder_that_cannot_be_written_is_found_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    told: list[Any] = []
    with pytest.raises(OutputError, match="cannot be written"):
        cluster(checkpoint=str(tmp_path / "file/job"), events=[told.append])
    with pytest.raises(OutputError, match="cannot be written"):
        cluster(labels=str(tmp_path / "file/labels.zarr"), events=[told.append])
    (tmp_path / "labels.zarr").mkdir()
    with pytest.raises(OutputError, match="already exists"):
        cluster(labels=str(tmp_path / "labels.zarr"), events=[told.append])
    assert told == []


# --- labels on disk


@pytest.mark.parametrize("url", ["local", "memory"])
@pytest.mark.parametrize("regular", [True, False])
def test_labels_in_storage(
    url: str, regular: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_chunks: None
) -> None:
    monkeypatch.setattr(labels_module, "GROUP_ROWS", 60)
    monkeypatch.setattr(labels_module, "PIECE_ROWS", 32)
    out = f"memory://{tmp_path.name}/labels.zarr" if url == "memory" else str(tmp_path / "l.zarr")
    source: Any = X
    if not regular:
        source = CutRows(X, [50, 7, 90, 53])
    result = cluster(source, labels=out)
    assert result.labels is None
    stored = zarr.open_array(Folder(out).store(""), mode="r")
    expected = cluster()
    np.testing.assert_array_equal(stored[...], expected.labels)
    assert stored.attrs["largek"]["complete"] is True
    assert result.value == expected.value
    assert not Folder(out + ".progress.json").exists()


def test_relocated_centres_have_their_labels_in_storage(tmp_path: Path) -> None:
    out = str(tmp_path / "labels.zarr")
    far = Toy(noise=1e6)
    cluster(algorithm=far, labels=out)
    np.testing.assert_array_equal(
        zarr.open_array(out, mode="r")[...], cluster(algorithm=far).labels
    )


def test_a_cluster_gives_the_same_bits(
    cluster2: Any, tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labels_module, "GROUP_ROWS", 60)
    here = cluster()
    out = str(tmp_path / "labels.zarr")
    folder = str(tmp_path / "job")
    cluster(client=cluster2, checkpoint=folder, callbacks=[stop_after(2)])
    there = cluster(client=cluster2, checkpoint=folder, labels=out)
    assert digest_of(there.arrays) == digest_of(here.arrays)
    assert there.value == here.value
    np.testing.assert_array_equal(zarr.open_array(out, mode="r")[...], here.labels)


# --- time


@pytest.mark.parametrize("batch_rows", [50, 400])
def test_the_time_left_is_known_of_mini_batches(batch_rows):
    events = []
    rows = open_rows(np.random.default_rng(0).normal(size=(400, 3)))
    algorithm = MiniBatch(batch_rows=batch_rows)
    asked = {"n_clusters": 4, "max_iter": 4, "tol": 0}
    fit_asked(rows, algorithm=algorithm, events=[events.append], labels=False, **asked)
    steps = [event for event in events if event["event"] == "step"]
    assert [step["sample"] for step in steps] == [batch_rows if batch_rows < 400 else None] * 4
    assert [step["share"] for step in steps] == [0.25, 0.5, 0.75, 1]
    assert all(step["eta_s"] > 0 for step in steps[:-1])
