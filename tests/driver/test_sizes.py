"""How many rows clusters have, as events tell it."""

from __future__ import annotations

import math

import numpy as np
import pytest

import largek_dask as lk
from largek_dask.driver.event_log import JsonLines
from largek_dask.driver.sizes import BINS, sizes_of
from largek_dask.driver.storage import Folder
from tests.helpers.covering import in_turns


def plain_counts(found, edges):
    """Clusters in each bin, one by one; the last bin has its end as well."""
    binned = [0] * (len(edges) - 1)
    for value in found:
        inside = [i for i in range(len(binned)) if edges[i] <= value < edges[i + 1]]
        binned[inside[0] if inside else -1] += 1
    return binned


@pytest.mark.parametrize(("seed", "kind"), in_turns(range(5), ["rows", "weights", "mostly empty"]))
def test_sizes_of__equals_plain_python(seed, kind):
    draws = np.random.default_rng(seed)
    counts = np.floor(draws.lognormal(4, 2, size=500))
    if kind == "weights":
        counts = draws.lognormal(0, 5, size=500)
    counts[draws.random(500) < (0.99 if kind == "mostly empty" else 0.1)] = 0
    found = sorted(counts[counts > 0].tolist())
    assert 0 < len(found) < 500
    told = sizes_of(counts)
    assert told["n_empty"] == 500 - len(found)
    for name, value in (
        ("least", found[0]),
        ("most", found[-1]),
        ("mean", math.fsum(found) / len(found)),
        ("median", (found[(len(found) - 1) // 2] + found[len(found) // 2]) / 2),
    ):
        assert told[name] == pytest.approx(value, rel=1e-5)
    edges = np.geomspace(found[0], found[-1] if len(set(found)) > 1 else 2 * found[0], BINS + 1)
    assert told["edges"] == pytest.approx(edges.tolist(), rel=1e-5)
    edges[0], edges[-1] = found[0], max(found[-1], edges[-1])
    assert told["counts"] == plain_counts(found, edges)
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
