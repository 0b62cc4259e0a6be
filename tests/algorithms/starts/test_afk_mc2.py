"""AFK-MC2: the law of its chains, a plain twin, and independence of chunks and threads."""

from __future__ import annotations

import numpy as np
import pytest

from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.starts import samples
from largek_dask.algorithms.starts.afk_mc2 import afk_mc2_start, states_of_chain
from largek_dask.algorithms.starts.weighted_sampling import draw_by_mass
from largek_dask.data.sources import open_rows
from largek_dask.passes.cluster import ClusterPasses
from largek_dask.passes.local import LocalPasses
from tests.algorithms.conftest import blobs
from tests.helpers.covering import in_turns
from tests.oracles.mixtures import metropolis_matrix, mh_centers
from tests.passes.toys import rows_of


def start(x, k, seed=0, *, weight=None, chunk=None, n_threads=1, **how):
    sizes = [len(x)] if chunk is None else [min(chunk, len(x) - b) for b in range(0, len(x), chunk)]
    with LocalPasses(rows_of(x, sizes, weight), n_threads=n_threads) as passes:
        return afk_mc2_start(passes, Rng(seed), k, **how)


def test_chain_tends_to_weight_times_squared_distance():
    """Three rows; without weights in the ratio it would be their unweighted law."""
    w, d2 = np.array([1.0, 4.0, 2.0]), np.array([3.0, 1.0, 5.0])
    expected = [0.176, 0.235, 0.588]
    q = w / w.sum() / 2 + w * d2 / (w @ d2) / 2
    law = np.linalg.matrix_power(metropolis_matrix(w * d2, q), 200)
    np.testing.assert_allclose(law, [expected] * 3, atol=1e-3)
    r = np.random.default_rng(0)
    proposed = r.choice(3, 2_000_000, p=q)
    states = states_of_chain((w * d2 / q)[proposed].tolist(), r.random(len(proposed)).tolist())
    found = np.bincount(proposed[states]) / len(states)
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_chain_step_by_step():
    assert states_of_chain([0.0, 0.0, 0.0], [0.9, 0.9, 0.9]) == [0, 1, 2], (
        "left, though for no gain"
    )
    assert states_of_chain([2.0, 1.0, 2.0], [0.0, 0.5, 0.99]) == [0, 0, 2], "equal gain: always"
    assert states_of_chain([2.0, 1.0, 0.0], [0.0, 0.49, 0.0]) == [0, 1, 1], "to a centre: never"
    assert states_of_chain([1.0], [0.0]) == [0]


@pytest.mark.parametrize(("chain", "k", "d"), in_turns([1, 4, 20], [1, 2, 3, 17, 150], [6, 20]))
def test_centres_are_those_of_the_plain_chain(k, chain, d):
    """The same rows are proposed: so the same are accepted, in blocks or not."""
    x = blobs(400, d, 8, spread=2.0)
    weight = np.random.default_rng(1).integers(0, 4, len(x)).astype(np.float64)
    with LocalPasses(rows_of(x, [150, 250], weight), n_threads=1) as passes:
        centers, evaluated = afk_mc2_start(passes, Rng(5), k, chain)
        rng, n = Rng(5), (k - 1) * chain
        [first] = draw_by_mass(passes, rng.generator(0, "afk-mc2-first"), 1).rows
        drawn = draw_by_mass(passes, rng.generator(0, "afk-mc2"), n, x[first]) if n else None
    if drawn is None:
        np.testing.assert_array_equal(centers, x[[first]])
        assert evaluated == 0
        return
    uniforms = rng.generator(0, "afk-mc2-chain").random(n).reshape(-1, chain)
    proposed = drawn.rows.reshape(-1, chain)
    q = drawn.probabilities.reshape(-1, chain)
    expected = mh_centers(x, weight, first, proposed, q, uniforms)
    np.testing.assert_array_equal(centers, x[expected])
    assert evaluated <= (weight > 0).sum() + k * (k + 2 * np.sqrt(k)) / 2 * chain
    assert (weight == 0).any()


def test_centres_do_not_depend_on_chunks_and_threads(monkeypatch):
    monkeypatch.setattr(samples, "LEAST_PIECE", 16)
    x = blobs(1500, 9, 20, spread=2.0)
    weight = np.exp(np.random.default_rng(2).normal(size=len(x)) * 3)
    whole = start(x, 60, weight=weight)
    for chunk in (1, 7, 1000):
        centers, evaluated = start(x, 60, weight=weight, chunk=chunk, n_threads=3)
        assert centers.tobytes() == whole[0].tobytes()
        assert evaluated == whole[1]
    assert start(x, 60, 1, weight=weight)[0].tobytes() != whole[0].tobytes()


def test_same_centres_on_two_workers(cluster2, tmp_path):
    import zarr

    x = blobs(2000, 6, 20, spread=2.0)
    array = zarr.create_array(tmp_path / "x.zarr", shape=x.shape, chunks=(128, 5), dtype="f4")
    array[:] = x
    with ClusterPasses(open_rows(tmp_path / "x.zarr"), cluster2) as passes:
        assert passes.n_chunks == 16
        there, _ = afk_mc2_start(passes, Rng(3), 50)
    assert there.tobytes() == start(x, 50, 3)[0].tobytes()


def test_sparse_rows_are_like_dense_ones():
    import scipy.sparse as scipy_sparse

    x = np.round(blobs(500, 12, 9, spread=2.0) * (np.arange(12) % 3 == 0), 1) + np.float32(0)
    with LocalPasses(open_rows(scipy_sparse.csr_matrix(x)), n_threads=1) as passes:
        assert passes.is_sparse
        centers, _ = afk_mc2_start(passes, Rng(2), 25)
    assert {c.tobytes() for c in centers} <= {row.tobytes() for row in x}
    assert len({c.tobytes() for c in centers}) == 25
