"""Neighbours of components: by the log joint that a row of the one may expect of the other."""

from __future__ import annotations

import dask
import numpy as np
import pytest

from largek_dask.errors import ParameterError
from largek_dask.kernels.bounds import neighbours
from largek_dask.kernels.bounds.neighbours import nearest_centers, nearest_components
from largek_dask.kernels.mixtures import pack_mixture
from tests.helpers.covering import every_two, slow
from tests.oracles import mixtures as oracles


def mixture(k, d, kind, seed=0, dtype="f4"):
    r = np.random.default_rng(seed)
    shape = {"iso": (1, 1), "isoflex": (k, 1), "diag": (k, d)}[kind]
    means = (r.normal(size=(k, d)) * 2).astype(dtype)
    variances = np.exp(r.normal(0, 0.8, shape))
    return pack_mixture(means, variances, np.log(r.dirichlet(np.ones(k))), means.mean(0))


SHAPES = [(1, 2, 1), (2, 1, 2), (70, 9, 1), (150, 4, 17), (150, 4, 140), (9, 3, 9)]


@pytest.mark.parametrize(
    ("kind", "shape", "where", "dtype"),
    [
        *(("diag", shape, ("auto", 1), "f4") for shape in SHAPES),
        ("isoflex", (150, 4, 17), ("auto", 3), "f4"),
        ("isoflex", (9, 3, 9), ("plain", 1), "f8"),
        *slow(
            *every_two(
                ["isoflex", "diag"],
                SHAPES,
                [("avx512", 1), ("avx2", 3), ("neon", 2), ("plain", 1)],
                ["f4", "f8"],
            )
        ),
    ],
)
def test_by_expected_log_joint(kind, shape, where, dtype):
    (k, d, m), (tile, n_threads) = shape, where
    packed = mixture(k, d, kind, dtype=dtype)
    with dask.config.set({"largek.kernels.tile": tile}):
        found = nearest_components(packed, m, n_threads)
    np.testing.assert_array_equal(found, oracles.near_components(packed, m))


def test_equal_variances_are_ranked_by_distance():
    packed = mixture(90, 5, "iso")
    np.testing.assert_array_equal(nearest_components(packed, 8), nearest_centers(packed.centers, 8))


def test_distance_would_mislead():
    """The wide component 2 explains rows of 0 better than the narrow one next to it."""
    means = np.array([[0.0], [1.0], [3.0]])
    variances = np.array([[1.0], [1e-3], [9.0]])
    packed = pack_mixture(means, variances, np.full(3, -np.log(3)), np.zeros(1))
    assert nearest_components(packed, 2)[0].tolist() == [0, 2]
    assert nearest_centers(packed.centers, 2)[0].tolist() == [0, 1]


def test_retired_components_come_last():
    packed = mixture(12, 3, "iso")
    weights = np.where(np.arange(12) % 3 == 0, -np.inf, -np.log(8))
    packed = pack_mixture(packed.means, packed.variances, weights, packed.shift)
    found = nearest_components(packed, 12)
    assert (found[:, 0] == np.arange(12)).all()
    retired = found[:, 1:] % 3 == 0
    assert (np.diff(retired.astype(int), axis=1) >= 0).all()
    assert retired[:, -1].all()


@pytest.mark.parametrize("kind", ["isoflex", "diag"])
def test_of_very_many_only_the_nearest_are_ranked(kind, monkeypatch):
    packed = mixture(400, 3, kind)
    exact = nearest_components(packed, 10)
    monkeypatch.setattr(neighbours, "EXACT", 100)
    monkeypatch.setattr(neighbours, "_LEAST", 100)
    monkeypatch.setattr(neighbours, "_CANDIDATES", 1)
    found = nearest_components(packed, 10)
    same = np.mean([len(set(a) & set(b)) for a, b in zip(exact, found, strict=True)])
    assert (found[:, 0] == np.arange(400)).all()
    assert 6 < same < 10, "most of them, and not all: the other way was taken"


def test_too_many_are_refused():
    with pytest.raises(ParameterError, match="between 1 and 4"):
        nearest_components(mixture(4, 2, "diag"), 5)
