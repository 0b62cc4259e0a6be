"""``largek coreset``."""

import json

import numpy as np
import pytest

import largek_dask as lk
from largek_dask import open_rows
from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.starts.coresets import draw_coreset
from largek_dask.passes.local import LocalPasses
from tests.helpers.commands import run


@pytest.fixture
def table(tmp_path):
    x = np.random.default_rng(0).standard_t(2, (3000, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    return x


@pytest.mark.parametrize("uniform", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_coreset__is_the_one_drawn_and_opens_with_its_weights(uniform, weighted, table, tmp_path):
    weight = np.random.default_rng(1).integers(1, 5, len(table)).astype(np.float64)
    np.save(tmp_path / "w.npy", weight)
    how = ["--uniform"] * uniform + ["--sample-weight", tmp_path / "w.npy"] * weighted
    out = tmp_path / "few.zarr"
    told = json.loads(
        run("coreset", tmp_path / "x.npy", out, "--rows", 500, "--seed", 3, *how, "--json").stdout
    )
    rows = open_rows(table, sample_weight=weight if weighted else None)
    with LocalPasses(rows, n_threads=1) as passes:
        drawn = draw_coreset(passes, Rng(3), 500, uniform=uniform)
    weights = drawn.factors * (weight[drawn.rows] if weighted else 1)
    few = open_rows(str(out))
    np.testing.assert_array_equal(few.read(0), table[drawn.rows])
    np.testing.assert_array_equal(few.read_weight(0), weights)
    np.testing.assert_array_equal(open_rows(out, column="rows").read(0)[:, 0], drawn.rows)
    assert open_rows(out, column="X").weight is None
    assert told.pop("seconds") > 0
    assert told.pop("weight") == pytest.approx(weights.sum())
    assert told.pop("as_good_as") == pytest.approx(weights.sum() ** 2 / (weights**2).sum())
    assert told == {
        "out": str(out),
        "kind": "coreset",
        "n_draws": 500,
        "seed": 3,
        "uniform": uniform,
        "n_rows": len(drawn.rows),
        "n_features": 4,
        "dtype": "float32",
        "n_rows_of_data": 3000,
        "weight_of_data": weight.sum() if weighted else 3000.0,
    }


def test_coreset__is_fitted_as_it_is(table, tmp_path, cluster2):
    """On threads, on workers that open it, through the shell, and as a group: with its weights."""
    out = tmp_path / "few.zarr"
    shown = run("coreset", tmp_path / "x.npy", out, "--rows", 800).stdout
    assert "largek fit" in shown
    rows = open_rows(str(out))
    x, weight = rows.read(0), rows.read_weight(0)

    def digest(data, **how):
        km = lk.KMeans(20, algorithm="lloyd", init=x[:20], random_state=0, **how.pop("to", {}))
        return km.fit(data, **how).model_.digest()

    expected = digest(x, sample_weight=weight)
    assert expected != digest(x)
    assert digest(str(out)) == expected
    assert digest(str(out), to={"client": cluster2}) == expected
    import zarr

    assert digest(zarr.open_group(out, mode="r")) == expected
    assert digest(str(out), sample_weight=np.ones(len(x))) == digest(
        x, sample_weight=np.ones(len(x))
    )
    done = run("fit", out, "-k", 5, "--out", tmp_path / "run", "--json").stdout
    assert json.loads(done)["n_rows"] == len(x)


def test_coreset__on_a_cluster(table, tmp_path, cluster2):
    address = cluster2.scheduler.address
    found = []
    for name, how in (("here", []), ("there", ["--scheduler", address])):
        run("coreset", tmp_path / "x.npy", tmp_path / name, "--rows", 300, *how)
        rows = open_rows(str(tmp_path / name))
        found.append((rows.read(0).tobytes(), rows.read_weight(0).tobytes()))
    assert found[0] == found[1]


def test_coreset__replaces_nothing_unless_forced(table, tmp_path):
    out = tmp_path / "few.zarr"
    run("coreset", tmp_path / "x.npy", out, "--rows", 300)
    assert "already exists" in run("coreset", tmp_path / "x.npy", out, "--rows", 10, code=1).stderr
    assert open_rows(str(out)).n_rows > 200
    run("coreset", tmp_path / "x.npy", out, "--rows", 10, "--force")
    assert open_rows(str(out)).n_rows <= 10


def test_coreset__of_sparse_rows_is_refused(tmp_path):
    import scipy.sparse as scipy_sparse

    matrix = scipy_sparse.random(50, 9, 0.3, format="csr")
    lk.ingest(matrix, tmp_path / "x.zarr", progress=False)
    done = run("coreset", tmp_path / "x.zarr", tmp_path / "few.zarr", "--rows", 10, code=1)
    assert "sparse rows" in done.stderr
    assert not (tmp_path / "few.zarr").exists()
