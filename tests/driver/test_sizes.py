"""How many rows clusters have, as events tell it."""

from __future__ import annotations

import numpy as np
import pytest

import largek_dask as lk
from largek_dask.driver.event_log import JsonLines
from largek_dask.driver.final import sizes_of
from largek_dask.driver.storage import Folder


@pytest.mark.parametrize("kind", ["rows", "weights", "mostly empty"])
def test_sizes_of__is_of_clusters_with_rows(kind):
    draws = np.random.default_rng(1)
    counts = (
        draws.lognormal(0, 5, 500) if kind == "weights" else np.floor(draws.lognormal(4, 2, 500))
    )
    counts[draws.random(500) < (0.99 if kind == "mostly empty" else 0.1)] = 0
    found = counts[counts > 0]
    told = sizes_of(counts)
    assert told["n_empty"] == 500 - len(found) > 0
    for name in ("min", "max", "mean", "median"):
        known = {"min": "least", "max": "most"}.get(name, name)
        assert told[known] == pytest.approx(getattr(np, name)(found), rel=1e-5)
    assert sum(told["counts"]) == len(found)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_fit_tells_them_at_its_end(weighted, tmp_path):
    draws = np.random.default_rng(0)
    x = draws.standard_normal((900, 3)).astype(np.float32)
    weight = draws.random(900).astype(np.float32) if weighted else None
    km = lk.KMeans(12, random_state=0, checkpoint=str(tmp_path / "fit"))
    km.fit(x, sample_weight=weight)
    events = list(JsonLines.read(Folder(str(tmp_path / "fit"))))
    told = [event for event in events if event["event"] == "sizes"]
    assert told, [event["event"] for event in events]
    counts = km.model_.counts
    wanted = sizes_of(counts)
    assert {name: told[-1][name] for name in wanted} == wanted
    assert told[-1]["mean"] * (12 - told[-1]["n_empty"]) == pytest.approx(counts.sum(), rel=1e-4)
