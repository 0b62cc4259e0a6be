"""Components as the kernels want them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy.stats import norm

from largek_dask.errors import ParameterError
from largek_dask.kernels.mixtures import log_joint, pack_equal, pack_mixture

SHAPES = {"iso": (1, 1), "isoflex": (5, 1), "diag": (5, 3)}


def packed_of(kind, **changes):
    r = np.random.default_rng(1)
    parts = {
        "means": r.normal(size=(5, 3)).astype("f4"),
        "variances": r.uniform(0.5, 2, SHAPES[kind]),
        "log_weights": np.log(r.dirichlet(np.ones(5))),
        "shift": np.zeros(3, "f4"),
    }
    return pack_mixture(**parts | changes)


@pytest.mark.parametrize("kind", SHAPES)
def test_log_joints(kind):
    packed = packed_of(kind)
    assert (packed.covariance, packed.n_components, packed.n_features) == (kind, 5, 3)
    row = np.random.default_rng(2).normal(size=3)
    variances = np.broadcast_to(packed.variances, (5, 3))
    apart = (row - packed.means.astype(float)) ** 2
    squares = (apart * packed.precisions if kind == "diag" else apart).sum(1)
    found = [
        log_joint(*parts) for parts in zip(packed.constants, packed.halves, squares, strict=True)
    ]
    scale = np.sqrt(variances)
    expected = packed.log_weights + norm.logpdf(row, packed.means.astype(float), scale).sum(1)
    np.testing.assert_allclose(found, expected, rtol=1e-13)


@pytest.mark.parametrize("kind", SHAPES)
def test_it_travels_as_its_numbers(kind):
    packed = packed_of(kind)
    assert packed.form.factors.shape[0] == 8
    arrived = pickle.loads(pickle.dumps(packed))
    for name in ("means", "variances", "log_weights", "shift", "constants", "halves"):
        np.testing.assert_array_equal(getattr(arrived, name), getattr(packed, name))
    assert packed.nbytes > 2 * packed.means.nbytes


def test_retired_components():
    packed = packed_of("iso", log_weights=np.array([-np.inf, 0, 0, -np.inf, 0]))
    assert packed.alive.tolist() == [False, True, True, False, True]
    assert np.isinf(packed.constants[[0, 3]]).all()
    assert np.isinf(packed.form.starts[[0, 3]]).all()


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"variances": np.ones((4, 1))}, "must have shape"),
        ({"variances": np.zeros((1, 1))}, "positive and finite"),
        ({"log_weights": np.zeros(4)}, "log_weights must be"),
        ({"log_weights": np.full(5, np.nan)}, "log_weights must be"),
    ],
)
def test_what_does_not_fit_is_refused(changes, match):
    with pytest.raises(ParameterError, match=match):
        packed_of("iso", **changes)


def test_equal_components_are_components_of_one_variance_and_weight():
    means, shift = np.random.default_rng(3).normal(size=(5, 3)), np.ones(3)
    found = pack_equal(means, 0.25, shift)
    expected = pack_mixture(means, np.full((1, 1), 0.25), np.full(5, -np.log(5.0)), shift)
    np.testing.assert_allclose(found.log_weights, expected.log_weights, rtol=1e-15)
    np.testing.assert_allclose(found.constants, expected.constants, rtol=1e-15)
    np.testing.assert_array_equal(found.variances, expected.variances)
