"""nmbatch as published against Algorithm 5 row by row, and on workers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse

import largek_dask as lk
from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.nmbatch import NMBatch
from largek_dask.algorithms.published import nmbatch
from largek_dask.data.sources import open_rows
from largek_dask.errors import ParameterError
from largek_dask.kernels.distances import pack_centers
from largek_dask.passes.base import BasePasses
from largek_dask.passes.local import LocalPasses
from tests import oracles
from tests.algorithms.conftest import bits, blobs
from tests.helpers.checks import computing_workers, watched_passes
from tests.oracles import published as oracle
from tests.passes.toys import rows_of

SEED, K = 5, 12
SIZES = [300, 1, 0, 599, 600]


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> str:
    out = str(tmp_path_factory.mktemp("nmbatch") / "rows.zarr")
    lk.ingest(blobs(6_000, 8, 20, seed=3, spread=1.5), out, chunk_rows=500, progress=False)
    return out


def steps(rows, algorithm, c, n_steps, *, fresh=False):
    """State and figures of each step; ``fresh``: all bounds are lost before each."""
    algorithm, out = algorithm.bind(KMeansProblem(len(c), c)), []
    passes = LocalPasses(rows, n_threads=1)
    state = algorithm.init(passes, Rng(SEED))
    for _ in range(n_steps):
        if fresh:
            passes.close()
            passes = LocalPasses(rows, n_threads=1)
        state, info = algorithm.step(passes, Rng(SEED), state)
        out.append((state, info))
    passes.close()
    return out


def table(kind):
    """Rows as they are given, the same dense in float64, and weights."""
    x = blobs(1_500, 6, 15, seed=2, spread=1.5).astype(float)
    weight = None
    if kind == "weighted":
        weight = np.random.default_rng(1).integers(0, 4, len(x)).astype(float)
    if kind == "repeated":
        x = np.rint(x[np.random.default_rng(2).integers(0, 60, len(x))])
    if kind == "sparse":
        x[np.random.default_rng(3).random(x.shape) < 0.5] = 0
        return scipy.sparse.csr_array(x), x, None
    return x, x, weight


@pytest.mark.parametrize("kind", ["plain", "weighted", "repeated", "sparse"])
@pytest.mark.parametrize("bounds", ["lower", None])
def test_is_algorithm_5(kind, bounds, monkeypatch):
    """Batches, assignments, centres, line 36 and the distances that bounds save."""
    given, x, weight = table(kind)
    rows = open_rows(given, sample_weight=weight)
    if kind != "sparse":
        rows = rows_of(x, SIZES, weight)
    edges = rows.chunk_table
    seen, real = {}, nmbatch.vote_chunk

    def watched(chunk, total, *others):
        real(chunk, total, *others)
        found = zip(chunk.numbers().tolist(), chunk.kept["a"].tolist(), strict=True)
        seen.setdefault(others[-1], {}).update(found)

    monkeypatch.setattr(nmbatch, "vote_chunk", watched)

    def batch_of(b):
        parts = [
            start + oracles.row_order(Rng(SEED), i, stop - start)[: b * (stop - start) // len(x)]
            for i, (start, stop) in enumerate(pairwise(edges.tolist()))
        ]
        return np.sort(np.concatenate(parts))

    # One seed far away: its cluster has no rows, and returns to it.
    c = np.concatenate([x[: K - 1], [np.full(6, 500.0)]])
    n_steps, rho = 25, 1.0
    algorithm = NMBatch.paper(b0=200, rho=rho, bounds=bounds)
    unit = np.ones(len(x)) if weight is None else weight * np.count_nonzero(weight) / weight.sum()
    expected = oracle.nmbatch(x, unit, c, batch_of, 200, rho, n_steps, bounds is not None)
    grown = set()
    for (b, a, centers, ratio, met), (state, info) in zip(
        expected, steps(rows, algorithm, c, n_steps), strict=True
    ):
        assert state.b_old == b
        assert [seen[state.step][i] for i in batch_of(b)] == a.tolist()
        np.testing.assert_allclose(state.c, centers, rtol=1e-9, atol=1e-9)
        assert info.extra.get("growth_ratio", np.inf) == pytest.approx(ratio, rel=1e-9)
        # Bounds are rounded down to float32, and let a tie more through.
        assert info.extra["distances"] * b * K == pytest.approx(met, rel=0.03)
        grown.add(b)
    assert len(grown) > 3
    assert (info.extra["distances"] < 0.7) == (bounds is not None)
    np.testing.assert_array_equal(state.c[-1], c[-1])


@pytest.mark.parametrize("kind", ["plain", "weighted", "repeated", "sparse"])
def test_no_bit_depends_on_bounds_or_their_loss(kind):
    """Lost bounds are rebuilt as distances to the centres before, in every step."""
    given, x, weight = table(kind)
    found = [
        steps(open_rows(given, sample_weight=weight), algorithm, x[:K], 14, fresh=fresh)
        for algorithm, fresh in [
            (NMBatch.paper(b0=150, rho=2.0, bounds=None), False),
            (NMBatch.paper(b0=150, rho=2.0), False),
            (NMBatch.paper(b0=150, rho=2.0), True),
        ]
    ]
    assert found[1][-1][1].extra["distances"] < 0.8
    assert found[0][-1][0].b > 150
    for one, two, three in zip(*found, strict=True):
        assert one[0].c.tobytes() == two[0].c.tobytes() == three[0].c.tobytes()
        assert one[1].cost == two[1].cost == three[1].cost
        assert one[1].n_changed == two[1].n_changed == three[1].n_changed
        assert one[0].b == two[0].b == three[0].b


def test_workers_have_equal_parts_of_every_entry(url, worker_clients, monkeypatch):
    """Section 3.3; the same bits as here, and no row comes to the driver but seeds."""
    asked = {"algorithm": NMBatch.paper(b0=600, rho=2.0), "random_state": 1, "tol": 0}
    alone = lk.KMeans(20, **asked).fit(url)
    monkeypatch.setattr(BasePasses, "subset", None)
    read: list[dict[str, int]] = []

    def note(snapshot):
        read.append({name: report.rows for name, report in seen[0].by_worker.items()})

    with watched_passes() as seen:
        found = lk.KMeans(20, client=worker_clients(2), callbacks=[note], **asked).fit(url)
    assert bits(found) == bits(alone)
    assert computing_workers(seen[0]) == 2
    batches = [step["rows"] for step in found.history_]
    assert len(set(batches)) > 3
    for name in read[0]:
        of_steps = np.diff([counts[name] for counts in read])
        # A worker has half of the chunks, and one row more or less of each.
        assert (np.abs(of_steps - np.array(batches[1:]) / 2) <= 6).all()
        entered = np.diff(of_steps)
        assert (np.abs(entered - np.diff(batches[1:]) / 2) <= 12).all()


def test_goes_on_from_a_checkpoint(url, tmp_path):
    asked = {"algorithm": NMBatch.paper(b0=600, rho=2.0), "random_state": 1, "tol": 0}
    whole = lk.KMeans(20, **asked).fit(url)
    folder = str(tmp_path / "job")
    lk.KMeans(20, max_iter=4, checkpoint=folder, **asked).fit(url)
    assert bits(lk.KMeans(20, checkpoint=folder, **asked).fit(url)) == bits(whole)


def test_bounds_without_room_are_refused(url):
    algorithm = NMBatch.paper()
    with pytest.raises(ParameterError, match=r"20 bounds for each of 6000 rows, 552,000 bytes"):
        lk.KMeans(20, algorithm=algorithm, memory_limit=500_000).fit(url)
    few = replace(algorithm, bounds=None)
    assert lk.KMeans(20, algorithm=few, memory_limit=500_000, max_iter=2).fit(url).n_iter_ == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"b0": 0}, "b0 must be an integer of at least 1, got 0"),
        ({"rho": -1.0}, "rho must be a number of at least 0, got -1.0"),
        ({"bounds": "elkan"}, "bounds must be 'lower' or None, got 'elkan'"),
    ],
)
def test_wrong_parameters_are_refused(given, message):
    with pytest.raises(ParameterError, match=message):
        NMBatch.paper(**given)


def test_clusters_with_the_seed_alone_do_not_vote():
    sse, v, p = np.array([4.0, 0.0, 5.0]), np.array([3.0, 1.0, 7.0]), np.array([0.5, 0.1, 0.0])
    assert nmbatch.smallest_ratio(sse, v, p) == pytest.approx(np.sqrt(4 / 6) / 0.5)
    assert nmbatch.smallest_ratio(sse, v, np.zeros(3)) == np.inf


@pytest.mark.parametrize("first", [[1, 2], [0, 1], [2, 0]])
def test_ties_go_to_the_lowest_index_from_any_assignment(first):
    """With bounds that are as tight as they can be: they are rounded down, so no tie is missed."""
    x, c = np.array([[0.0], [2.0]]), pack_centers(np.array([[-1.0], [1.0], [3.0]]), np.zeros(1))
    (l, _), a = nmbatch.tight(x, c), np.array(first, np.int32)  # noqa: E741
    d2, _ = nmbatch.assignment_with_bounds(x, c, a, l)
    assert (a.tolist(), d2.tolist()) == ([0, 1], [1.0, 1.0])
