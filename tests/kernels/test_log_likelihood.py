"""How likely rows are, against all components in plain numpy."""

from __future__ import annotations

import dask.config
import numpy as np
import pytest

from largek_dask.errors import ParameterError
from largek_dask.kernels import log_likelihood as module
from largek_dask.kernels.log_likelihood import log_likelihoods, posteriors
from largek_dask.kernels.mixtures import pack_mixture
from tests.helpers.covering import every_two, in_turns, slow
from tests.oracles import mixtures as oracles

TILES = ["avx512", "avx2", "neon", "plain"]
KINDS = ["iso", "isoflex", "diag"]


def mixture(kind, k, d, dtype, *, seed=0, spread=3.0, width=1.0, at=0.0, retired=0):
    """Components, and rows of them."""
    rng = np.random.default_rng(seed)
    means = (at + rng.normal(size=(k, d)) * spread).astype(dtype)
    shape = {"iso": (1, 1), "isoflex": (k, 1), "diag": (k, d)}[kind]
    variances = width**2 * rng.uniform(0.3, 3, shape)
    log_weights = np.log(rng.dirichlet(np.full(k, 5.0)))
    log_weights[rng.permutation(k)[:retired]] = -np.inf
    n = 150
    own = rng.integers(k, size=n)
    noise = rng.normal(size=(n, d)) * np.sqrt(np.broadcast_to(variances, (k, d))[own])
    x = (means[own] + noise).astype(dtype)
    return x, pack_mixture(means, variances, log_weights, x.mean(0).astype(dtype))


def check(x, packed, tolerance=1e-9):
    labels, found = log_likelihoods(x, packed)
    assert (labels.dtype, found.dtype) == (np.int32, np.float64)
    expected, likelihood = oracles.log_likelihoods(x, packed)
    np.testing.assert_array_equal(labels, expected)
    np.testing.assert_allclose(found, likelihood, rtol=1e-13, atol=tolerance)
    indptr, indices, shares = posteriors(x, packed)
    table = np.zeros((len(x), packed.n_components))
    for i in range(len(x)):
        own = slice(indptr[i], indptr[i + 1])
        assert (np.diff(indices[own]) > 0).all()
        table[i, indices[own]] = shares[own]
    np.testing.assert_allclose(table, oracles.posteriors(x, packed, 2.0**-20), atol=1e-9)
    np.testing.assert_allclose(table.sum(1), 1, rtol=1e-14)


SHAPES = [(1, 1), (1, 9), (7, 2), (8, 8), (50, 3), (50, 16), (129, 9)]
# Kernels are compiled for the tile, the dtype, and up to 8 features for their number.
FEW_KERNELS = [
    *(("diag", "auto", "f4", shape) for shape in ((1, 3), (50, 3), (129, 9))),
    *(("isoflex", "auto", "f4", shape) for shape in ((7, 3), (1, 9), (50, 16))),
    *((kind, "auto", "f8", (50, 16)) for kind in ("iso", "diag")),
    ("iso", "plain", "f4", (50, 16)),
]


@pytest.mark.parametrize(
    ("kind", "tile", "dtype", "shape"),
    [*FEW_KERNELS, *slow(*every_two(KINDS, TILES, ["f4", "f8"], SHAPES))],
)
def test_random(kind, tile, dtype, shape):
    k, d = shape
    with dask.config.set({"largek.kernels.tile": tile}):
        check(*mixture(kind, k, d, dtype, seed=k * d, retired=k // 7))


@pytest.mark.parametrize(("kind", "spread"), in_turns(KINDS, [0.01, 0.3]))
def test_all_components_count(kind, spread):
    """Of rows that lie in all components at once, whose scores decide nothing."""
    x, packed = mixture(kind, 60, 12, "f4", spread=spread)
    assert len(posteriors(x, packed)[1]) > 40 * len(x)
    check(x, packed)


@pytest.mark.parametrize(
    ("kind", "dtype", "d"), in_turns(KINDS, ["f4", "f4", "f8"], [3, 12, 12, 3])
)
def test_far_from_the_origin(kind, dtype, d):
    """Rows at 1e6 ± 1; in single precision they lie on a lattice of sixteenths."""
    x, packed = mixture(kind, 20, d, dtype, at=1e6, spread=1.0, width=0.3)
    check(x, packed)


@pytest.mark.parametrize("kind", KINDS)
def test_tight_clusters_far_apart(kind):
    """Their scores are off by more than what lies between components."""
    x, packed = mixture(kind, 40, 10, "f4", spread=1e3, width=1e-3)
    assert np.abs(packed.means).max() ** 2 * packed.halves.max() * 2.0**-24 > 20 or kind == "diag"
    check(x, packed)


@pytest.mark.parametrize("kind", ["isoflex", "diag"])
def test_variances_over_many_orders(kind):
    rng = np.random.default_rng(3)
    k, d = 30, 11
    means = rng.normal(size=(k, d)).astype("f4")
    shape = (k, 1) if kind == "isoflex" else (k, d)
    variances = 10.0 ** rng.uniform(-8, 4, shape)
    x = np.concatenate([means, means[rng.integers(k, size=100)] + rng.normal(size=(100, d))])
    packed = pack_mixture(means, variances, np.full(k, -np.log(k)), means.mean(0))
    check(x.astype("f4"), packed)


@pytest.mark.parametrize("kind", KINDS)
def test_ties_go_to_the_lowest(kind):
    x, packed = mixture(kind, 10, 9, "f4")
    order = np.array([3, 3, 1, 1, 3, 5])
    variances = packed.variances if kind == "iso" else packed.variances[order]
    twice = pack_mixture(packed.means[order], variances, np.full(6, -np.log(6)), packed.shift)
    labels, _ = log_likelihoods(x, twice)
    assert set(labels.tolist()) == {0, 2, 5}
    check(x, twice)


@pytest.mark.parametrize(
    ("kind", "dtype", "tiles"),
    [
        ("diag", "f4", ["auto", "plain"]),
        *slow(("iso", "f4", ["auto", "plain"])),
        *slow(*((kind, dtype, TILES) for kind in KINDS for dtype in ("f4", "f8"))),
    ],
)
def test_a_row_has_its_own_result(kind, dtype, tiles):
    """Whatever the tile is, and wherever the row stands."""
    x, packed = mixture(kind, 33, 13, dtype, spread=0.8, retired=2)
    found = {}
    for tile in tiles:
        with dask.config.set({"largek.kernels.tile": tile}):
            found[tile] = (*log_likelihoods(x, packed), *posteriors(x, packed))
            for begin in (1, 2, 50):
                labels, likelihood = log_likelihoods(x[begin:], packed)
                assert labels.tobytes() == found[tile][0][begin:].tobytes()
                assert likelihood.tobytes() == found[tile][1][begin:].tobytes()
    for tile in tiles[1:]:
        for mine, other in zip(found[tile], found[tiles[0]], strict=True):
            assert mine.tobytes() == other.tobytes()


@pytest.mark.parametrize(("kind", "dtype"), in_turns(KINDS, ["f4", "f8"]))
def test_rows_whose_scores_overflow(kind, dtype):
    x, packed = mixture(kind, 12, 10, dtype)
    far = float(np.finfo(dtype).max)
    x[3], x[7] = far ** (0.55 if dtype == "f4" else 0.4), -(far ** (0.9 if dtype == "f4" else 0.45))
    with np.errstate(over="ignore", invalid="ignore"):  # (numpy tells; compiled code does not)
        check(x, packed)


def test_rows_whose_squares_overflow_are_as_unlikely_as_can_be():
    x, packed = mixture("isoflex", 12, 10, "f8", retired=3)
    x[4] = 1e200
    with np.errstate(over="ignore", invalid="ignore"):
        labels, found = log_likelihoods(x, packed)
        indptr, indices, shares = posteriors(x, packed)
    assert found[4] == -np.finfo(float).max
    assert packed.alive[labels[4]]
    assert np.isfinite(found).all()
    assert indices[indptr[4] : indptr[5]].tolist() == [labels[4]]
    assert shares[indptr[4]] == 1


def test_centres_far_away_leave_nothing_to_scores():
    x, packed = mixture("iso", 12, 10, "f4")
    means = packed.means.copy()
    means[5] = 1e18
    check(x, pack_mixture(means, packed.variances, packed.log_weights, packed.shift))


@pytest.mark.parametrize("least", [0.0, 2.0**-40, 1e-3, 0.4, 1.0])
def test_posteriors_above_a_limit(least):
    x, packed = mixture("diag", 40, 9, "f8", spread=1.0)
    indptr, indices, shares = posteriors(x, packed, least)
    table = np.zeros((len(x), 40))
    table[np.repeat(np.arange(len(x)), np.diff(indptr)), indices] = shares
    expected = oracles.posteriors(x, packed, max(least, 2.0**-64) if least < 0.3 else 0.0)
    if least >= 0.3:  # the most probable component stays in any case
        kept = expected > least
        kept[np.arange(len(x)), expected.argmax(1)] = True
        expected = np.where(kept, expected, 0) / np.where(kept, expected, 0).sum(1)[:, None]
        assert np.diff(indptr).min() == 1
    np.testing.assert_allclose(table, expected, rtol=1e-8, atol=1e-18)


def test_posteriors_go_on_where_there_was_no_more_room(monkeypatch):
    x, packed = mixture("iso", 70, 3, "f4", spread=0.2)
    expected = posteriors(x, packed)
    assert len(expected[1]) > 50 * len(x)
    monkeypatch.setattr(module, "_KEPT", 400)
    for found, other in zip(posteriors(x, packed), expected, strict=True):
        assert found.tobytes() == other.tobytes()


def test_rows_of_other_types_and_none():
    x, packed = mixture("isoflex", 9, 3, "f4")
    whole = np.round(x * 3).astype(np.int16)
    for given in (whole, np.asfortranarray(whole.astype("f8")), whole[::2]):
        check(given, packed)
    labels, found = log_likelihoods(x[:0], packed)
    assert (len(labels), len(found)) == (0, 0)
    assert [len(part) for part in posteriors(x[:0], packed)] == [1, 0, 0]
    with pytest.raises(ParameterError, match="3 features"):
        log_likelihoods(x[:, :2], packed)


def test_all_components_retired():
    x, packed = mixture("iso", 4, 3, "f4")
    dead = pack_mixture(packed.means, packed.variances, np.full(4, -np.inf), packed.shift)
    labels, found = log_likelihoods(x, dead)
    assert (labels == 0).all()
    assert (found == -np.finfo(float).max).all()


def test_what_the_tile_says_is_within_its_bounds():
    """Scores are within their bounds, and few components are left: else nothing is gained."""
    for kind in KINDS:
        x, packed = mixture(kind, 60, 20, "f4", spread=2.0)
        bounds = packed.centers.cache.get(module._bounds, packed, packed.centers.dense)
        joints = oracles.log_joints(x, packed)
        squares = (packed.constants - joints) / bounds.shares
        low = bounds.lower - bounds.lower_share * squares
        high = bounds.upper - bounds.upper_share * squares
        assert (low <= joints).all()
        assert (high >= joints).all()
        assert np.median(high - low) < 2.0**-5
        assert bounds.largest < np.inf
