"""A fit that is no k-means: what it raises decides all after the loop, and is told by its name."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import largek_dask as lk
from largek_dask.algorithms.names import ALGORITHMS
from largek_dask.algorithms.objective import INERTIA, objective_in
from largek_dask.driver.events import ProgressLine
from largek_dask.driver.fit import FitResult
from largek_dask.model import KINDS
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
    assert f"step 3, closeness {steps[2]['cost']:.8g}, " in stream.getvalue()
    assert "cost" not in stream.getvalue()


def test_events_of_k_means_say_no_objective() -> None:
    told: list[Any] = []
    cluster(algorithm="lloyd", events=[told.append])
    started = next(event for event in told if event["event"] == "started")
    usual = {"event", "time", "n_rows", "n_features", "n_chunks", "n_iter", "n_workers", "workers"}
    assert set(started) == usual | {"format", "version"}
    assert objective_in(started) == INERTIA


def test_what_is_written_of_k_means() -> None:
    assert INERTIA.describe() == {}
    assert INERTIA.describe(value=4.0) == {"inertia": 4.0}
