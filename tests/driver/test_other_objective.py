"""A fit that is no k-means: what it raises decides all after the loop, and is told by its name."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import largek_dask as lk
from largek_dask.algorithms.auto import Auto
from largek_dask.algorithms.base import Algorithm
from largek_dask.algorithms.names import ALGORITHMS
from largek_dask.algorithms.objective import INERTIA, objective_in, value_in
from largek_dask.algorithms.problem import Problem
from largek_dask.driver.events import ProgressLine
from largek_dask.driver.fit import FitResult
from largek_dask.driver.history import thinned
from largek_dask.errors import ParameterError
from largek_dask.model import KINDS
from largek_dask.service.spec import JobSpec
from tests.helpers.bumps import CLOSENESS, Bumps, BumpsModel
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


def test_events_of_k_means_say_no_objective() -> None:
    told: list[Any] = []
    cluster(algorithm="lloyd", events=[told.append])
    started = next(event for event in told if event["event"] == "started")
    usual = {"event", "time", "n_rows", "n_features", "n_chunks", "n_iter", "n_workers", "workers"}
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


def test_a_kind_of_problem_that_labels_no_rows_is_none() -> None:
    @dataclass(frozen=True, slots=True)
    class Unlabelled(Problem):
        objective = CLOSENESS

    with pytest.raises(TypeError, match=r"Unlabelled with abstract method '?labelling'?"):
        Unlabelled(K)
