"""``largek elbow``: the table, the decision, the picture."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import largek_dask as lk
from largek_dask.selection import elbow as module
from tests.helpers.commands import run

K = 5
R = np.random.default_rng(2)
X = 20 * R.normal(size=(K, 3))[np.arange(1_200) % K] + R.normal(size=(1_200, 3))


@pytest.fixture
def url(tmp_path: Path) -> str:
    lk.ingest(X, str(tmp_path / "rows.zarr"), progress=False)
    return str(tmp_path / "rows.zarr")


def test_it_tells_all_that_the_curve_has(url):
    told = json.loads(run("elbow", url, "-k", 9, "--json").stdout)
    found = lk.suggest_k(X, 9, random_state=0)
    assert told["k"] == found.k == K
    assert told["range"] == [K, K]
    assert told["halves"] == [K, K]
    assert told["words"] == found.words
    assert told["partitions"] == found.records()
    assert (told["method"], told["n_searched"], told["out"]) == ("partition-path", 1_200, None)


def test_the_table_of_a_sample(url, monkeypatch):
    monkeypatch.setattr(module, "LEAST_HELD_OUT", 100)
    shown = run("elbow", url, "-k", 9, "--sample", 900, "--seed", 3).stdout
    found = lk.suggest_k(X, 9, sample=900, random_state=3)
    assert found.k == K
    assert found.words in " ".join(shown.split())
    assert "900 of 1,200 rows" in shown
    assert f"{found.inertia[K - 1]:.6g}" in shown


def test_all_rows_are_exact(url):
    told = json.loads(run("elbow", url, "-k", 9, "--sample", "all", "--json").stdout)
    assert {one["standard_error"] for one in told["partitions"]} == {0}


def test_the_picture_is_written_once(url, tmp_path):
    out = tmp_path / "elbow.png"
    run("elbow", url, "-k", 9, "--out", out)
    assert out.read_bytes()[:4] == b"\x89PNG"
    assert f"{out} exists" in run("elbow", url, "--out", out, code=1).output
    run("elbow", url, "-k", 9, "--out", out, "--force")
    missing = tmp_path / "none" / "elbow.png"
    assert "No such file" in run("elbow", url, "-k", 2, "--out", missing, code=1).output


def test_a_sample_is_a_number_or_all(url):
    assert "give a row count or 'all'" in run("elbow", url, "--sample", "most", code=2).output
    assert "sample must be" in run("elbow", url, "--sample", 0, code=1).output
