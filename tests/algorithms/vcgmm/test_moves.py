"""Components that collapse: new starts, trials that are undone, retirement."""

from __future__ import annotations

import warnings
from dataclasses import replace

import dask
import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

import largek_dask as lk
from largek_dask.algorithms.parts.moves import Moves
from largek_dask.algorithms.vcgmm import moves
from largek_dask.algorithms.vcgmm.components import Components
from largek_dask.algorithms.vcgmm.passes import NearComponents
from largek_dask.algorithms.vcgmm.state import MOST_FAILED
from largek_dask.errors import DegenerateDataWarning, ParameterError
from largek_dask.kernels.log_likelihood import log_likelihoods
from largek_dask.kernels.mixtures import pack_mixture
from largek_dask.kernels.split_components import ComponentSplits
from tests.algorithms import test_contract
from tests.algorithms.conftest import blobs
from tests.fuzz import Case
from tests.helpers.checks import fit_asked
from tests.helpers.covering import slow

KINDS = ["isoflex", "diag"]
FALL = {"f4": 2.0**-18, "f8": 1e-12}
"""How much F may fall in a step, as a share of its size."""


def planted(n, k, d, kind, seed):
    """Rows of clusters of unequal size and width, and their clusters."""
    r = np.random.default_rng(seed)
    means, weights = 2.2 * r.standard_normal((k, d)), r.dirichlet(np.full(k, 2.0))
    widths = np.exp(r.normal(0, 0.7, (k, d if kind == "diag" else 1))) * np.ones(d)
    labels = r.choice(k, n, p=weights)
    rows = means[labels] + widths[labels] * r.standard_normal((n, d))
    return rows.astype(np.float32), labels


def with_atoms(n=1_500, d=6, n_atoms=6, size=60, seed=2):
    """Planted rows, and places where many are equal."""
    x, _ = planted(n, 12, d, "diag", seed)
    r = np.random.default_rng(seed)
    atoms = r.uniform(-6, 6, (n_atoms, d)).astype("f4")
    return np.concatenate([x, np.repeat(atoms, size, axis=0)])[r.permutation(n + n_atoms * size)]


def mixture(x, k, kind, *, weight=None, asked=None, **parameters):
    """The fit of a mixture."""
    rows = lk.open_rows(x, sample_weight=weight)
    options = {"tol": 1e-4, "labels": False, "seed": 0} | (asked or {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateDataWarning)
        return fit_asked(
            rows, n_clusters=k, mixture=kind, algorithm=lk.VCGMM(**parameters), **options
        )


def told(result, name):
    """(iterations,) what ``history_`` says of each iteration of EM."""
    steps = [s for s in result.history if s["extra"]["iteration"] > 0]
    if name == "cost":
        return np.array([s["cost"] for s in steps])
    return np.array([s["extra"].get(name, np.nan) for s in steps])


def bits(result):
    arrays = result.arrays
    parts = (arrays.means, arrays.variances, arrays.log_weights, arrays.alive)
    return b"".join(p.tobytes() for p in parts), result.n_iter, told(result, "cost").tobytes()


def falls(result, dtype="f4"):
    """Iterations in which F falls, but for those that components have been retired before."""
    found, retired = told(result, "cost"), told(result, "retired")
    fell = np.diff(found) < -FALL[dtype] * np.abs(found[1:])
    return np.flatnonzero(fell & ~(retired[:-1] > 0))


def floor_of(x, reg_covar=1e-6):
    return reg_covar * x.astype(float).var(axis=0).mean()


# --- planted --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "k", "n"), [("diag", 50, 8_000), *slow(("isoflex", 500, 20_000))])
def test_no_worse_than_scikit_learns(kind, k, n):
    x, labels = planted(n + 5_000, k, 10 if k == 50 else 16, kind, seed=4)
    x, labels, held_out, planted_in = x[:n], labels[:n], x[n:], labels[n:]
    result = mixture(x, k, kind)
    reference = GaussianMixture(
        k, covariance_type="diag" if kind == "diag" else "spherical", random_state=0, max_iter=12
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference.fit(x)
    a = result.arrays
    found, log_likelihood = log_likelihoods(
        held_out, pack_mixture(a.means, a.variances, a.log_weights, a.shift)
    )
    assert log_likelihood.mean() >= reference.score(held_out)
    expected = adjusted_rand_score(planted_in, reference.predict(held_out))
    assert adjusted_rand_score(planted_in, found) >= expected - 0.01
    assert not falls(result).size
    alive, variances = result.arrays.alive, result.arrays.variances
    assert (variances[alive] > floor_of(x) * 1.001).any(axis=1).all()
    assert k == 50 or np.nansum(told(result, "moves")) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_what_collapses_is_given_a_new_start(kind):
    """Starting means so near each other that most have less than a row, or a few."""
    x, _ = planted(3_000, 30, 6, kind, seed=1)
    init = np.concatenate([x[:12], x[0] + 0.01 * x[:18]])
    without = mixture(x, 30, kind, asked={"init": init}, moves=False)
    result = mixture(x, 30, kind, asked={"init": init})
    assert np.nansum(told(result, "moves")) >= 5
    assert told(result, "cost")[-1] > told(without, "cost")[-1]
    assert result.value > without.value
    assert not falls(result).size
    assert not falls(without).size
    assert not np.nansum(told(without, "moves"))


@pytest.mark.parametrize("kind", KINDS)
def test_components_of_lone_rows_are_retired_and_come_back(kind):
    x, _ = planted(2_500, 25, 6, kind, seed=3)
    far = (40 * np.eye(6)[:4]).astype("f4")
    rows, init = np.concatenate([x, far]), np.concatenate([x[:21], far])
    without = mixture(rows, 25, kind, asked={"init": init}, moves=False)
    assert told(without, "collapsed")[-1] >= 4
    result = mixture(rows, 25, kind, asked={"init": init})
    retired = told(result, "retired")
    assert retired.sum() >= 1
    assert not falls(result).size
    assert (np.diff(told(result, "cost")) < 0).any(), "F falls as their rows go to others"
    came_back = told(result, "moves")[np.flatnonzero(retired)[0] :]
    assert kind == "diag" or came_back.sum() > 0
    assert told(result, "collapsed")[-1] == 0
    assert result.arrays.alive.sum() > 21


@pytest.mark.parametrize(
    ("tries", "message"),
    [
        (True, r"2 of 3 components are retired \(1, 2\)"),
        (False, "1 of 3 components have collapsed"),
    ],
)
def test_what_is_left_of_them_is_told(tries, message):
    x = np.random.default_rng(0).standard_normal((600, 3))
    rows = np.concatenate([x, [[90, 0, 0]]]).astype("f4")
    asked = {"init": rows[[0, 1, -1]], "labels": False, "tol": 1e-4}
    algorithm = lk.VCGMM(candidates=3, moves=tries)
    with pytest.warns(DegenerateDataWarning, match=message):
        fit_asked(lk.open_rows(rows), n_clusters=3, mixture="diag", algorithm=algorithm, **asked)


@pytest.mark.parametrize("kind", ["iso", *KINDS])
def test_the_floor(kind):
    """A share of the variance of the rows, or a figure: nothing is added to it."""
    x, _ = planted(1_500, 12, 6, kind, seed=1)
    free = mixture(x, 12, kind, reg_covar=0).arrays.variances
    assert np.array_equal(mixture(x, 12, kind, reg_covar=1e-9).arrays.variances, free)
    own = x.astype(float).var(axis=0)
    share = 0.5 * (own if kind == "diag" else own.mean(keepdims=True))
    for given, least in (({"reg_covar": 0.5}, share), ({"least_variance": share[0]}, share[0])):
        found = mixture(x, 12, kind, **given).arrays.variances
        np.testing.assert_allclose(np.maximum(found, least), found, rtol=1e-6)
        assert (found.min(axis=0) <= least * (1 + 1e-6)).any()
        assert found.max() > free.min()
    with pytest.raises(ParameterError, match="least_variance must be a number of at least 0"):
        lk.VCGMM(least_variance=-1.0)


# --- what is equal --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_many_equal_rows_keep_their_component(kind):
    """It sits at the floor, and nothing would raise F more."""
    x = with_atoms()
    result = mixture(x, 30, kind)
    assert told(result, "collapsed")[-1] == 6
    assert not np.nansum(told(result, "retired"))
    assert result.arrays.alive.all()
    assert not falls(result).size
    assert result.stop_reason in ("tol", "converged")


# --- F --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "kind", "dtype", "moved"),
    [
        (0, "isoflex", "f4", True),
        (1, "diag", "f8", True),
        (2, "isoflex", "f8", True),
        (3, "diag", "f8", False),
    ],
)
def test_f_never_falls(kind, dtype, seed, moved):
    """But for where components are retired, which nothing else does than moves."""
    r = np.random.default_rng(seed)
    k, d = int(r.integers(20, 60)), (1, 6, 10, 10)[seed]
    x, _ = planted(int(r.integers(8 * k, 2_000)), k, d, kind, seed)
    x = (x * 10.0 ** r.integers(-3, 4)).astype(dtype)
    weight = r.lognormal(0, 2, len(x)) if seed % 2 else None
    asked = {"max_iter": 60, "tol": 1e-7, "init": ["random", "auto"][seed // 2]}
    result = mixture(x, k, kind, weight=weight, asked=asked, neighbours=12, moves=moved)
    assert not falls(result, dtype).size
    if not moved:
        assert not np.nansum(told(result, "retired"))
        assert not np.nansum(told(result, "moves"))


# --- trials ---------------------------------------------------------------------------------------


@pytest.fixture
def careless(monkeypatch):
    """Moves are tried that lead nowhere, whatever is lost by them."""
    find = moves.find_splits

    def found(*args):
        halves, losses = find(*args)
        gains = np.where(np.isfinite(halves.gains), np.abs(halves.gains), -np.inf)
        far = replace(halves, gains=gains, means=halves.means + np.float32(1e3))
        return far, np.zeros(len(losses))

    monkeypatch.setattr(moves, "find_splits", found)
    monkeypatch.setattr(moves, "losses_at_floor", lambda constants, masses, mean: 0 * masses)


def store_of(x, tmp_path):
    out = str(tmp_path / "rows.zarr")
    lk.ingest(x, out, chunk_rows=256, progress=False)
    return out


TRIED = {"neighbours": 8, "candidates": 3}


def tried_on(x, kind):
    """Options of a fit that begins where another has ended: F hardly rises by itself."""
    found = mixture(x, 30, kind, moves=False, asked={"init": x[:30], "max_iter": 30}).arrays
    variances = found.variances if kind == "diag" else found.variances[:, 0]
    weights = np.exp(found.log_weights)
    return {
        "init": found.means,
        "weights_init": weights / weights.sum(),
        "precisions_init": 1 / variances,
        "max_iter": 14,
        "tol": 0,
    }


@pytest.mark.parametrize("kind", KINDS)
def test_undone_trials_leave_no_trace(kind, careless, tmp_path):
    """F is what it was, and so are components: the next step goes on as if nothing had been."""
    x = with_atoms()
    result = mixture(store_of(x, tmp_path), 30, kind, asked=tried_on(x, kind), **TRIED)
    back, found = told(result, "back"), told(result, "cost")
    undone = np.flatnonzero(back)
    assert len(undone) >= 2
    assert (found[undone] == found[undone - 1]).all()
    assert not falls(result).size
    # As many moves at most as failed before, halved; then no more.
    tried = told(result, "moves")
    assert tried.max() > 1
    assert back.sum() <= 3 * MOST_FAILED


@pytest.mark.parametrize("kind", KINDS)
def test_undone_is_as_if_never_tried(kind, careless, tmp_path, monkeypatch):
    """The fit that has tried and gone back, one that never tries: the same, two steps later."""
    x = with_atoms()
    url = store_of(x, tmp_path)
    result = mixture(url, 30, kind, asked=tried_on(x, kind), **TRIED)
    first = int(np.flatnonzero(told(result, "moves"))[0])
    assert told(result, "back")[first + 1], "the first trial is undone"
    tried = mixture(url, 30, kind, asked=tried_on(x, kind) | {"max_iter": first + 4}, **TRIED)
    never = mixture(
        url, 30, kind, asked=tried_on(x, kind) | {"max_iter": first + 3}, moves=False, **TRIED
    )
    assert np.array_equal(told(tried, "cost")[first + 2], told(never, "cost")[first + 1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_fit_that_ends_in_a_trial_has_the_components_before_it(kind, careless, tmp_path):
    x = with_atoms()
    url = store_of(x, tmp_path)
    opened = int(
        np.flatnonzero(told(mixture(url, 30, kind, asked=tried_on(x, kind), **TRIED), "moves"))[0]
    )
    ended = mixture(url, 30, kind, asked=tried_on(x, kind) | {"max_iter": opened + 1}, **TRIED)
    assert ended.n_iter == opened + 1
    never = mixture(
        url, 30, kind, asked=tried_on(x, kind) | {"max_iter": opened + 1}, moves=False, **TRIED
    )
    assert np.array_equal(ended.arrays.means, never.arrays.means)
    assert np.array_equal(ended.arrays.variances, never.arrays.variances)


@pytest.mark.parametrize(("kind", "stops"), [("diag", [1]), *slow(("isoflex", [0, 1, 2]))])
def test_the_same_bits_wherever_trials_are(kind, stops, careless, tmp_path, worker_clients):
    """Resumed from any checkpoint about one, with no room for candidates, on workers."""
    x = with_atoms()
    url, asked = store_of(x, tmp_path), tried_on(x, kind)
    clean = mixture(url, 30, kind, asked=asked, **TRIED)
    undone = np.flatnonzero(told(clean, "back"))
    assert len(undone) >= 2
    with dask.config.set({"largek.checkpoints.seconds": 0}):
        # After the trial has begun, once it is undone, and when candidates are restored.
        for steps in undone[1] + np.array(stops):
            job = asked | {"checkpoint": str(tmp_path / f"stop-{steps}")}
            mixture(url, 30, kind, asked=job | {"max_iter": int(steps)}, **TRIED)
            assert bits(mixture(url, 30, kind, asked=job, **TRIED)) == bits(clean)
    tight = mixture(url, 30, kind, asked=asked | {"memory_limit": 4_000}, **TRIED)
    assert bits(tight) == bits(clean)
    client = worker_clients(2)
    assert bits(mixture(url, 30, kind, asked=asked | {"client": client}, **TRIED)) == bits(clean)


@pytest.mark.parametrize("kind", KINDS)
def test_on_a_coreset(kind, tmp_path):
    x, _ = planted(3_000, 40, 6, kind, seed=2)
    result = mixture(x, 30, kind, asked={"init": x[:30]}, coreset=1_500)
    assert np.nansum(told(result, "moves")) > 0
    assert not falls(result).size
    again = mixture(store_of(x, tmp_path), 30, kind, asked={"init": x[:30]}, coreset=1_500)
    assert bits(again) == bits(result)


# --- parts ----------------------------------------------------------------------------------------


def components_of(variances, log_weights):
    k, d = len(log_weights), 3
    return Components(
        np.zeros((k, d), "f4"), np.asarray(variances, float), np.asarray(log_weights, float),
        np.zeros(d, "f4"),
    )  # fmt: skip


def test_collapsed():
    floor = 1e-3
    parts = components_of(
        [[1, 1, 1], [1e-3, 1e-3, 1e-3], [1e-3, 1e-3, 1.1e-3], [1, 1, 1], [1e-3, 1e-3, 1e-3]],
        [-1, -1, -1, -1, -np.inf],
    )
    masses = np.array([5.0, 9.0, 9.0, 1.9, 0.0])
    found = moves.collapsed(parts, masses, 2.0, floor)
    assert found.tolist() == [False, True, False, True, False]


def test_retired():
    parts = components_of(np.ones((3, 1)), np.log([0.5, 0.25, 0.25]))
    masses = np.array([2.0, 1.0, 1.0])
    left, kept = moves.retired(parts, masses, np.array([False, True, False]))
    np.testing.assert_allclose(np.exp(left.log_weights), [2 / 3, 0, 1 / 3])
    assert kept.tolist() == [2.0, 0.0, 1.0]
    assert left.means is parts.means


def test_at_most_half_of_those_alive_are_retired():
    masses = np.array([1.9, 9.0, 1.0, 0.5, 0.0, 1.0])
    parts = components_of(np.ones((6, 1)), np.log([0.2, 0.5, 0.1, 0.1, 1.0, 0.1]))
    parts = replace(parts, log_weights=np.where(masses > 0, parts.log_weights, -np.inf))
    all_alive = masses > 0
    found = moves.to_retire(parts, masses, all_alive, 1.0)
    assert found.tolist() == [False, False, True, True, False, False], "two of five, the lightest"
    fallen = np.array([True, True, False, False, False, False])
    assert moves.to_retire(parts, masses, fallen, 1.0).tolist() == [True] + [False] * 5
    assert not moves.to_retire(parts, masses, fallen, 0.9).any(), "more than two rows"


@pytest.mark.parametrize("kind", KINDS)
def test_a_component_for_every_row(kind):
    """All have fallen: whoever is left takes in the rows of the others."""
    r = np.random.default_rng(180)
    x = r.standard_t(2, (115, 6))
    result = mixture(x, 115, kind, asked={"init": x})
    retired = told(result, "retired")
    assert retired.max() == 57
    assert result.arrays.alive.any()
    assert np.isclose(np.exp(result.arrays.log_weights).sum(), 1)
    assert not falls(result, "f8").size


@pytest.mark.slow
def test_rows_of_the_retired_find_the_others():
    """Where few are left, no neighbour of a row's only candidate may be alive."""
    x = Case(
        seed=2000884, kind="outlier", n=2222, d=8, dtype="float32", layout="F", weights="none",
        k=300, algorithm="mixture single", init="auto", tol=1e-4, max_iter=100, source="array",
        also="",
    ).rows()  # fmt: skip
    km = lk.Mixture(
        300, covariance="isoflex", candidates=1, neighbours=12, tol=1e-4, random_state=2000884
    )
    with pytest.warns(DegenerateDataWarning, match="are retired"):
        km.fit(x)
    steps = [step for step in km.history_ if step["extra"]["iteration"]]
    retired = [step["extra"]["retired"] for step in steps]
    assert sum(retired) > 0
    assert retired[-1] == 0
    assert steps[retired.index(1)]["extra"]["alive"] < 12
    assert all(step["cost"] is not None for step in steps)


def test_moves_share_the_weight_out():
    parts = components_of(np.ones((3, 1)), np.log([0.5, 0.25, 0.25]))
    halves = ComponentSplits(
        np.array([1.0]), np.array([[[1, 1, 1], [2, 2, 2]]], "f4"), np.array([[[3.0], [4.0]]]),
        np.array([[0.75, 0.25]]),
    )  # fmt: skip
    made = Moves(np.array([0]), np.array([2]), np.array([0]), 1.0)
    found = moves.move_components(parts, np.array([2.0, 1.0, 1.0]), made, halves)
    np.testing.assert_allclose(np.exp(found.log_weights), [0.5, 1 / 3, 1 / 6])
    assert found.variances[:, 0].tolist() == [3, 1, 4]
    assert found.means[:, 0].tolist() == [1, 0, 2]


def test_halves_are_on_each_others_list():
    """A narrow component ranks far behind for a wide one about it."""
    r = np.random.default_rng(0)
    k = 40
    variances = np.ones((k, 1))
    means = r.standard_normal((k, 3)).astype("f4")
    variances[7], means[7] = 1e-6, means[3] + 0.4
    parts = Components(means, variances, np.full(k, -np.log(k)), np.zeros(3, "f4"))
    plain = NearComponents(parts, 5).table()
    assert 7 not in plain[3]
    pairs = np.array([[3, 7], [0, plain[0, 1]]], np.int32)
    found = NearComponents(parts, 5, pairs).table()
    for one, other in [*pairs.tolist(), *pairs[:, ::-1].tolist()]:
        assert other in found[one]
        assert len(set(found[one].tolist())) == 5
    assert np.array_equal(found[0], plain[0])
    others = np.setdiff1d(np.arange(k), pairs)
    assert np.array_equal(found[others], plain[others])


@pytest.mark.parametrize("name", ["vcgmm-isoflex", "vcgmm-diag"])
def test_components_move_in_the_contract(name, tmp_path):
    """So that all that is tested there is tested of moves, too."""
    n, d = test_contract.N_ROWS, test_contract.N_FEATURES
    out = str(tmp_path / "rows.zarr")
    lk.ingest(
        blobs(n, d, 30, seed=11, spread=1.5),
        out,
        chunk_rows=test_contract.CHUNK_ROWS,
        progress=False,
    )
    steps = test_contract.history(test_contract.fit(out, name, n_threads=1))
    assert any(step["extra"].get("moves") for step in steps)
