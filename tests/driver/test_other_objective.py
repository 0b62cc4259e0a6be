"""A fit that is no k-means: what it raises decides all after the loop, and is told by its name."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from numpy.typing import NDArray

import largek_dask as lk
from largek_dask.algorithms.auto import Auto
from largek_dask.algorithms.base import Algorithm, Footprint
from largek_dask.algorithms.names import ALGORITHMS
from largek_dask.algorithms.objective import INERTIA, objective_in, value_in
from largek_dask.algorithms.problem import Problem
from largek_dask.cli import main
from largek_dask.cli.plot import draw
from largek_dask.driver.events import ProgressLine
from largek_dask.driver.fit import FitResult
from largek_dask.driver.history import thinned
from largek_dask.driver.plan import footprint_of
from largek_dask.driver.saved import best_saved
from largek_dask.driver.storage import Folder
from largek_dask.errors import ParameterError
from largek_dask.model import KINDS, Model, load_model
from largek_dask.service.runner import model_of_checkpoint
from largek_dask.service.spec import JobSpec
from tests.helpers.bumps import CLOSENESS, BumpArrays, Bumps, BumpsModel
from tests.helpers.checks import fit_asked

K = 4


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line in the registry of algorithms, and one in that of kinds of model."""
    monkeypatch.setitem(ALGORITHMS, "bumps", Bumps)
    monkeypatch.setitem(KINDS, "bumps", BumpsModel)


def table() -> NDArray[np.float32]:
    random = np.random.default_rng(3)
    centers = random.normal(0, 6, (7, 3))
    return (centers[random.integers(0, 7, 400)] + random.normal(0, 1, (400, 3))).astype(np.float32)


X = table()
WEIGHT = np.arange(400) % 3 / 2


def cluster(**asked: Any) -> FitResult:
    rows = lk.open_rows(X, sample_weight=WEIGHT)
    options = {"algorithm": Bumps(), "n_clusters": K, "seed": 5, "max_iter": 100, "tol": 1e-4}
    return fit_asked(rows, **{**options, "n_threads": 2, **asked})


def by_hand(arrays: BumpArrays) -> tuple[NDArray[Any], NDArray[Any]]:
    """Labels and heights of the rows."""
    squares = ((X[:, None].astype(np.float64) - arrays.means) ** 2).sum(-1)
    above = arrays.heights / (1 + squares / arrays.width**2)
    return above.argmax(1), above.max(1)


def test_labels_and_value_are_those_of_its_own_last_pass() -> None:
    result = cluster()
    assert isinstance(result.arrays, BumpArrays)
    labels, highest = by_hand(result.arrays)
    nearest = ((X[:, None] - result.arrays.means) ** 2).sum(-1).argmin(1)
    assert np.count_nonzero(labels != nearest) > 10, "else nearest centres would pass"
    np.testing.assert_array_equal(result.labels, labels)
    assert result.objective == CLOSENESS
    assert result.value == pytest.approx((WEIGHT * highest).sum(), rel=1e-12)
    counts = np.bincount(labels, WEIGHT, minlength=K)
    np.testing.assert_array_equal(result.arrays.counts, counts)
    assert result.provenance["total_closeness"] == result.value
    assert "inertia" not in result.provenance
    values = [record["cost"] for record in result.history]
    assert len(values) > 5
    assert values == sorted(values), "no step lowers it"  # type: ignore[type-var]


def test_the_highest_of_several_starts_is_kept(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    result = cluster(n_init=3, checkpoint=folder)
    places = [tmp_path, tmp_path / "starts" / "01", tmp_path / "starts" / "02"]
    notes = [json.loads((place / "counted.json").read_text()) for place in places]
    assert all(set(note) == {"n_iter", "total_closeness"} for note in notes)
    values = [float.fromhex(note["total_closeness"]) for note in notes]
    best = values.index(max(values))
    assert 0 < best != values.index(min(values)), f"the test shows nothing: {values}"
    assert result.value == max(values)
    assert result.provenance["start"] == best
    saved = best_saved(folder)
    assert saved is not None
    assert (saved.stream, saved.value) == (best, result.value)
    # What was counted is not counted again.
    again = cluster(n_init=3, checkpoint=folder)
    assert Model.of(again).digest() == Model.of(result).digest()


def test_tol_is_compared_with_its_own_figure() -> None:
    result = cluster(tol=1e-3)
    gains = [record["extra"]["gain"] for record in result.history]
    assert all(record["shift"] is None for record in result.history)
    assert result.stop_reason == "tol"
    assert 1 < result.n_iter < 100
    assert gains[-1] <= 1e-3 < min(gains[:-1])  # type: ignore[type-var]
    assert cluster(tol=1e-5).n_iter > result.n_iter


def test_it_is_told_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(10**6))
    monkeypatch.setattr("largek_dask.driver.run.Clock.seconds", lambda clock: float(next(ticks)))
    told: list[Any] = []
    stream = io.StringIO()
    now = iter(range(0, 10**6, 100))
    cluster(events=[told.append, ProgressLine(stream, clock=lambda: float(next(now)))])
    started = next(event for event in told if event["event"] == "started")
    assert objective_in(json.loads(json.dumps(started))) == CLOSENESS
    steps = [event for event in told if event["event"] == "step"]
    assert steps[-1]["limited_by"] == "convergence", "that is of tol, not of max_iter"
    assert f"step 3, closeness {steps[2]['cost']:.6g}, " in stream.getvalue()
    assert "cost" not in stream.getvalue()


def axes_of(figure: Any) -> list[tuple[str, str]]:
    return [(axes.get_title(loc="left"), axes.get_ylabel()) for axes in figure.axes[:2]]


def test_plots_call_it_by_its_name(tmp_path: Path) -> None:
    unit = "closeness (Σ w h / (1 + d²)), more is better"
    expected = [("Closeness against time", unit), ("Closeness against passes", unit)]
    result = cluster(checkpoint=str(tmp_path / "run"))
    running, _, _ = draw(Folder(str(tmp_path / "run")))
    assert axes_of(running.figure()) == expected
    Model.of(result).save(str(tmp_path / "m.zarr"))
    ended, _, _ = draw(Folder(str(tmp_path / "m.zarr")))
    assert axes_of(ended.figure()) == expected


def test_plots_of_k_means_are_as_before(tmp_path: Path) -> None:
    unit = "cost (Σ w d²)"
    expected = [("Cost against time", unit), ("Cost against passes", unit)]
    cluster(algorithm="lloyd", checkpoint=str(tmp_path / "run"))
    found, _, _ = draw(Folder(str(tmp_path / "run")))
    assert axes_of(found.figure()) == expected


def test_events_of_k_means_say_no_objective() -> None:
    told: list[Any] = []
    cluster(algorithm="lloyd", events=[told.append])
    started = next(event for event in told if event["event"] == "started")
    usual = {"event", "time", "n_rows", "n_features", "n_chunks", "n_iter", "n_workers"}
    assert set(started) == usual | {"format", "version"}
    assert objective_in(started) == INERTIA


@pytest.mark.parametrize(
    "objective",
    [None, 3, "total", [], {}, {"name": "a"}]
    + [
        {**CLOSENESS.describe()["objective"], **wrong}
        for wrong in (
            {"sense": "up"},
            {"sense": []},
            {"name": ""},
            {"of_step": "x\x1b[2J"},
            {"unit": "u" * 101},
        )
    ],
    ids=lambda value: repr(value)[-20:],
)
def test_what_is_no_objective_is_passed_over(objective: Any) -> None:
    assert objective_in({"objective": objective}) == INERTIA
    assert value_in({"objective": objective, "inertia": 3.0}) == (INERTIA, 3.0)


def test_an_algorithm_for_k_means_may_stop_by_a_figure_of_its_own() -> None:
    """What is written of it stays that of k-means."""
    own = replace(INERTIA, change="gain")
    assert own.change_in({"shift": 3.0, "extra": {"gain": 0.5}}) == 0.5
    assert own.describe() == {}
    assert own.describe(value=4.0) == {"inertia": 4.0}


def test_the_highest_record_of_a_long_history_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("largek_dask.driver.history.MOST_STEPS", 8)
    history = [{"step": n, "cost": 9.0 if n == 13 else float(n % 7)} for n in range(1, 41)]
    kept = [record["step"] for record in thinned(history, CLOSENESS)]
    assert 13 in kept
    assert len(kept) <= 8
    assert 13 not in [record["step"] for record in thinned(history)]


def test_its_model_is_of_its_kind(tmp_path: Path) -> None:
    result = cluster()
    model = Model.of(result)
    assert type(model) is BumpsModel
    assert f"total closeness: {result.value:.9g}" in repr(model)
    model.save(str(tmp_path / "m.zarr"))
    found = load_model(str(tmp_path / "m.zarr"))
    assert type(found) is BumpsModel
    assert found.digest() == model.digest()
    np.testing.assert_array_equal(found.predict(X), result.labels)
    assert found.score(X, sample_weight=WEIGHT) == result.value


def test_labels_in_a_store_say_whose_they_are(tmp_path: Path) -> None:
    plain = cluster()
    stored = cluster(labels=str(tmp_path / "labels.zarr"))
    assert stored.labels is None
    assert stored.value == plain.value
    array = zarr.open_array(str(tmp_path / "labels.zarr"), mode="r")
    np.testing.assert_array_equal(array[...], plain.labels)
    notes: Any = array.attrs["largek"]
    assert {"means", "heights"} < set(notes)


def test_a_fit_that_is_not_gone_on_with_has_a_model_of_its_kind(tmp_path: Path) -> None:
    steps: list[Any] = []
    result = cluster(
        checkpoint=str(tmp_path),
        callbacks=[lambda snapshot: steps.append(snapshot.record)],
        cancelled=lambda: len(steps) >= 3,
    )
    assert (result.stop_reason, result.value) == ("cancelled", None)
    found = model_of_checkpoint(Folder(str(tmp_path)), "cancelled")
    assert found is not None
    model, saved = found
    assert type(model) is BumpsModel
    assert saved.n_iter == result.n_iter == 3
    assert model.provenance["total_closeness"] is None


def test_what_it_says_nothing_about_has_a_default() -> None:
    algorithm = Bumps()
    assert isinstance(algorithm, Algorithm)
    assert footprint_of(lk.open_rows(X), algorithm) == Footprint()
    assert algorithm.share_of_labels(lk.open_rows(X), K) is None
    assert algorithm.objective is CLOSENESS


@pytest.mark.parametrize("name", ["bumps", *ALGORITHMS])
def test_every_algorithm_is_declared_in_full(name: str) -> None:
    made = ALGORITHMS[name]()
    assert isinstance(made, Auto if name == "auto" else Algorithm)
    assert issubclass(made.solves, Problem)
    assert {"n_clusters", "init", "tol"} <= {f.name for f in fields(made.solves)}
    assert made.objective == made.solves.objective
    assert "auto" in made.solves.inits
    assert any(kind.objective == made.objective for kind in KINDS.values())


def test_it_begins_in_its_own_ways() -> None:
    for init in ("random", X[:K]):
        with pytest.raises(ParameterError, match="init must be one of 'auto', got"):
            cluster(init=init)
    job: dict[str, Any] = {"data": "/x.zarr", "output": "/out", "n_clusters": K, "init": "random"}
    assert JobSpec.parse({**job, "algorithm": {"name": "lloyd"}}).init == "random"
    with pytest.raises(ParameterError, match=r"init: .*is not one of auto"):
        JobSpec.parse({**job, "algorithm": {"name": "bumps"}})


def test_k_means_refuses_it() -> None:
    with pytest.raises(ParameterError, match=r"for k-means, and Bumps.* answers a BumpsProblem"):
        lk.KMeans(K, algorithm=Bumps()).fit(X)


def test_the_command_line_takes_it(tmp_path: Path) -> None:
    data, out = str(tmp_path / "x.npy"), str(tmp_path / "run")
    np.save(data, X)
    asked = ["fit", data, "-k", str(K), "--algorithm", "bumps"]

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(main, list(arguments))
        assert done.exit_code == 0, done.output
        return done.stdout

    plan = json.loads(run(*asked, "--plan", "--json"))
    assert (plan["memory_row_state"], plan["passes_before"]) == (0, 2)
    shown = run(*asked, "--out", out)
    assert "total closeness" in shown
    assert "inertia" not in shown
    model = load_model(f"{out}/model.zarr")
    told = json.loads(run(*asked, "--out", out, "--json"))
    assert told["total_closeness"] == model.provenance["total_closeness"]
    assert "inertia" not in told
    run("plot", out, "--out", str(tmp_path / "run.png"))
    run("predict", f"{out}/model.zarr", data, "--out", str(tmp_path / "labels.zarr"))
    labels = zarr.open_array(str(tmp_path / "labels.zarr"), mode="r")[...]
    np.testing.assert_array_equal(labels, by_hand(model.arrays)[0])


def test_a_kind_of_problem_that_labels_no_rows_is_none() -> None:
    @dataclass(frozen=True, slots=True)
    class Unlabelled(Problem):
        objective = CLOSENESS

    with pytest.raises(TypeError, match=r"Unlabelled with abstract method '?labelling'?"):
        Unlabelled(K)
