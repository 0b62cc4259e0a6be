"""Splits of components in two: as plain numpy finds them, and judged on other rows."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from largek_dask.kernels import split_components as module
from largek_dask.kernels.mixtures import pack_mixture
from largek_dask.kernels.split_components import MOST_ROWS, shares_of, split_components
from largek_dask.kernels.threads import Threads
from tests.helpers.covering import every_two, in_turns
from tests.oracles import mixtures as oracles

COMPILED = not numba.config.DISABLE_JIT
KINDS = ["isoflex", "diag"]
FLOOR = 1e-5


def packed_of(means, kind, dtype="f4", seed=0):
    """Components about these means, of unequal weights and variances."""
    r, (k, d) = np.random.default_rng(seed), np.shape(means)
    variances = r.uniform(0.5, 3.0, (k, d if kind == "diag" else 1))
    log_weights = np.log(r.dirichlet(np.full(k, 5.0)))
    return pack_mixture(
        np.ascontiguousarray(means, dtype), variances, log_weights, np.zeros(d, dtype)
    )


def lists_of(candidates, shares, k):
    """Rows by component, as ``split_components`` wants them."""
    row, place = np.nonzero(shares > 0)
    of = candidates[row, place]
    order = np.argsort(of, kind="stable")
    return row[order], shares[row, place][order], np.searchsorted(of[order], np.arange(k + 1))


def split(x, weight, packed, *, rows=None, shares=None, starts=None, which=None, n_threads=1):
    """Of one component that has all rows for itself, unless it is said otherwise."""
    if rows is None:
        rows, shares, starts = np.arange(len(x)), np.ones(len(x)), np.array([0, len(x)])
    which = np.arange(len(starts) - 1) if which is None else which
    return split_components(
        x, weight, rows, shares, starts, which, packed, FLOOR, 1.0, Threads(n_threads)
    )


@pytest.mark.parametrize(
    ("kind", "d", "weighted"), in_turns(["iso", *KINDS], [1, 2, 8, 33], [False, True])
)
def test_shares(kind, d, weighted):
    r = np.random.default_rng(d)
    x = r.standard_normal((200, d)).astype("f4")
    packed = packed_of(r.standard_normal((9, d)), kind)
    if kind == "iso":
        packed = pack_mixture(packed.means, np.full((1, 1), 2.0), packed.log_weights, packed.shift)
    # One component is nobody's, one row has no candidate, and one no other.
    candidates = np.argsort(r.random((200, 8)), 1)[:, :4].astype(np.int32)
    candidates[::7, 2:] = -1
    candidates[5] = -1
    candidates[6] = [3, -1, -1, -1]
    # And to one all but its nearest are as good as nothing.
    x[8] = packed.means[candidates[8, 0]] * 1e3
    weight = r.uniform(0.1, 4.0, len(x)) if weighted else None
    found, losses = shares_of(x, weight, candidates, packed)
    expected, lost = oracles.shares_of(x, weight, candidates, packed)
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(losses, lost, rtol=1e-9)
    assert (found[5] == 0).all()
    assert losses[candidates[6, 0]] == np.inf
    assert losses[8] == 0
    assert np.isfinite(losses).sum() > 3
    known = (candidates >= 0).any(1)
    np.testing.assert_allclose(found[known].sum(1), 1)


@pytest.mark.parametrize(
    ("kind", "d", "weighted", "dtype"), every_two(KINDS, [1, 2, 9, 16], [False, True], ["f4", "f8"])
)
def test_as_numpy_finds_them(kind, d, weighted, dtype):
    """Rows that several components share, more of some than are looked at."""
    r, k = np.random.default_rng(d), 5
    means = r.standard_normal((k, d)) * 2
    x = (means[r.choice(k, 900, p=[0.6, 0.2, 0.1, 0.06, 0.04])] + r.standard_normal((900, d))) * 1.5
    x = np.ascontiguousarray(x, dtype)
    weight = r.uniform(0.2, 3.0, len(x)) if weighted else None
    packed = packed_of(means, kind, dtype, d)
    candidates = np.tile(np.arange(k, dtype=np.int32), (len(x), 1))
    rows, shares, starts = lists_of(candidates, shares_of(x, None, candidates, packed)[0], k)
    # Only some of the rows are looked at.
    assert np.diff(starts).max() > MOST_ROWS
    found = split(x, weight, packed, rows=rows, shares=shares, starts=starts)
    for c in range(k):
        n = starts[c + 1] - starts[c]
        at = starts[c] + np.arange(min(n, MOST_ROWS)) * n // min(n, MOST_ROWS)
        gain, mu, var, parts = oracles.split_in_two(
            x[rows[at]], np.ones(len(at)) if weight is None else weight[rows[at]], shares[at],
            packed.means[c], packed.variances[c], FLOOR,
            steps=module._STEPS, last_steps=module._LAST_STEPS, power_steps=module._POWER_STEPS,
            least=module._LEAST_MASS,
        )  # fmt: skip
        assert found.gains[c] == pytest.approx(gain, rel=1e-6, abs=1e-9)
        np.testing.assert_allclose(found.means[c], mu, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found.variances[c], var, rtol=1e-6)
        np.testing.assert_allclose(found.shares[c], parts, rtol=1e-6)
        assert parts[0] >= parts[1]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_gaussian_gain_nothing(kind):
    """On the rows that it is found on, any split pays."""
    r = np.random.default_rng(1)
    x = r.standard_normal((60, 20)).astype("f4")
    packed = pack_mixture(
        np.zeros((1, 20), "f4"), np.ones((1, 20 if kind == "diag" else 1)), np.zeros(1),
        np.zeros(20, "f4"),
    )  # fmt: skip
    assert split(x, None, packed).gains[0] < 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "case", ["none", "few", "equal", "two rows' worth", "one far", "two places"]
)
def test_what_says_nothing(kind, case):
    r = np.random.default_rng(1)
    x = r.standard_normal((40, 3)).astype("f4")
    if case == "equal":
        x[:] = x[0]
    if case == "two places":
        x[:20], x[20:] = x[0], x[20]
    if case == "one far":
        x[:39] = x[0]
        x[39] += 1e6
    n = {"none": 0, "few": 3}.get(case, len(x))
    packed = packed_of(np.zeros((1, 3)), kind)
    shares = np.full(n, 0.05 if case == "two rows' worth" else 1.0)
    found = split(x, None, packed, rows=np.arange(n), shares=shares, starts=np.array([0, n]))
    assert found.gains[0] == -np.inf


def test_a_row_far_from_both_halves():
    """Nothing is left of it, and no number is lost."""
    r = np.random.default_rng(3)
    x = r.standard_normal((100, 2)).astype("f4")
    x[:50] += 5
    x[33] = 1e8
    packed = packed_of(np.full((1, 2), 2.0), "diag")
    found = split(x, None, packed)
    assert np.isfinite(found.means).all()
    assert np.isfinite(found.variances).all()
    assert found.gains[0] > -np.inf


@pytest.mark.parametrize("n_threads", [2, 5])
def test_threads(n_threads):
    r = np.random.default_rng(3)
    n, k = 3000 if COMPILED else 600, 50
    means = r.standard_normal((k, 4))
    x = r.standard_normal((n, 4)).astype("f4")
    packed = packed_of(means, "diag")
    candidates = np.argsort(r.random((n, k)), 1)[:, :3].astype(np.int32)
    rows, shares, starts = lists_of(candidates, shares_of(x, None, candidates, packed)[0], k)
    which = np.arange(3, k)
    given = {"rows": rows, "shares": shares, "starts": starts, "which": which}
    alone = split(x, None, packed, **given)
    many = split(x, None, packed, **given, n_threads=n_threads)
    for name in ("gains", "means", "variances", "shares"):
        assert np.array_equal(getattr(alone, name), getattr(many, name))
