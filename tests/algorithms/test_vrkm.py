"""VRKM and VRKM++ with a snapshot, against the printed algorithms."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse

import largek_dask as lk
from largek_dask.algorithms import vrkm
from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.lloyd import Lloyd
from largek_dask.algorithms.minibatch import MiniBatch
from largek_dask.algorithms.vrkm import VRKM, Idle
from largek_dask.data.sources import open_rows
from largek_dask.errors import ParameterError, ParameterWarning
from largek_dask.passes.chunks import JOINED
from largek_dask.passes.local import LocalPasses
from largek_dask.passes.reading import ChunkReader
from tests import oracles
from tests.algorithms.conftest import blobs
from tests.helpers.covering import every_two, in_turns, slow
from tests.oracles import vrkm as twins
from tests.passes.toys import rows_of

FORMS = {
    "rounds": {"round_rows": 40},
    "auto": {},
    "rounds-gradient": {"round_rows": 40, "plus_plus": False},
    "rows": {"round_rows": 1},
    "rows-gradient": {"round_rows": 1, "plus_plus": False},
}
every_form = pytest.mark.parametrize("form", FORMS)
few_forms = pytest.mark.parametrize(
    "form", ["auto", "rows-gradient", *slow("rounds", "rounds-gradient", "rows")]
)


def run(
    x, init, n_steps, sizes=None, weight=None, seed=3, empty="relocate", algorithm=None,
    n_threads=1, memory_limit=None, on_bad_rows="raise", **options,
):  # fmt: skip
    """(state, info) of each step, up to a fixed point."""
    kind = algorithm or VRKM
    made = kind(problem=KMeansProblem(len(init), init, empty), **options)
    if sizes is None:
        rows = open_rows(x, sample_weight=weight)
    else:
        rows = rows_of(x, sizes, weight)
    made.check(rows)
    out, rng = [], Rng(seed)
    passes = LocalPasses(
        rows, n_threads=n_threads, memory_limit=memory_limit, on_bad_rows=on_bad_rows
    )
    with passes:
        state = made.init(passes, rng)
        for _ in range(n_steps):
            state, info = made.step(passes, rng, state)
            out.append((state, info))
            if info.converged:
                break
        shift = passes.statistics.shift.astype(np.float64)
    return out, shift


def integers(n=300, d=6, k=6, seed=0, dtype=np.int64):
    """Rows and starting centres whose sums nobody rounds; computed with in float64."""
    r = np.random.default_rng(seed)
    x = (r.integers(0, k, (n, 1)) * 9 + r.integers(-6, 7, (n, d))).astype(dtype)
    init = r.choice(np.unique(x, axis=0), k, replace=False)
    return x, init.astype(np.float64)


def digest(out):
    """All that the steps have left and told."""
    found = hashlib.sha256()
    for state, info in out:
        for array in (state.centers, state.counts, state.history.last.centers):
            found.update(array.tobytes())
        told = info.cost, info.rows, info.n_changed, info.shift, info.converged, state.place
        found.update(repr((told, state.eta)).encode())
    return found.hexdigest()


# --- as printed ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plus_plus", "weighted", "eta"),
    every_two([True, False], [False, True], ["auto", "paper", 0.0625]),
)
def test_one_row_after_the_other_is_the_printed_algorithm(plus_plus, weighted, eta):
    """Bit for bit and epoch by epoch, on chunks of which one is empty."""
    x, init = integers(seed=1)
    n = len(x)
    weight = np.random.default_rng(1).integers(1, 4, n).astype("f8") if weighted else None
    options = {"round_rows": 1, "eta": eta, "plus_plus": plus_plus, "epoch": 1.5}
    out, shift = run(x, init, 4, [100, 0, 1, n - 101], weight, **options)
    rate = {"auto": 0.02, "paper": len(init) / n}.get(eta, eta)
    draws = [Rng(3).generator(e, "vrkm rows").integers(n, size=3 * n // 2) for e in range(4)]
    printed = twins.epochs(x.astype("f8"), init, rate, draws, shift, weight, not plus_plus)
    expected = list(printed)
    assert len(out) >= 3
    for e, (state, info) in enumerate(out):
        assert "restored" not in info.extra
        assert state.history.last.centers.tobytes() == expected[e][1].tobytes()
        if e + 1 < len(expected):
            assert state.centers.tobytes() == expected[e + 1][0].tobytes()
        if not weighted:
            _, inertia = oracles.assign(x.astype("f8"), expected[e][1])
            assert info.cost == pytest.approx(inertia, rel=1e-12)
    assert not np.array_equal(expected[0][0], expected[0][1]), "the inner loop moves centres"


@pytest.mark.parametrize("weighted", [False, True])
def test_sgd_is_the_printed_algorithm(weighted):
    x, init = integers(seed=4)
    n = len(x)
    weight = np.random.default_rng(1).uniform(0.5, 2, n) if weighted else None
    w = np.ones(n) if weight is None else weight
    out, _ = run(x, init, 3, [100, 0, 1, n - 101], weight, algorithm=MiniBatch, batch_rows=1)
    means, votes = init.copy(), np.zeros(len(init))
    for e, (state, info) in enumerate(out):
        order = Rng(3).generator(e, "sgd rows").integers(n, size=n)
        means, votes, cost = twins.sgd_rows(x.astype("f8"), w, order, means, votes)
        assert state.means.tobytes() == means.tobytes()
        assert state.votes.tobytes() == votes.tobytes()
        assert info.cost == pytest.approx(cost * w.sum() / w[order].sum(), rel=1e-12)
        assert info.rows == n
    assert len(out) == 3


SIZES = [130, 0, 1, 3, 266]


@pytest.mark.parametrize(("epoch", "weighted"), in_turns([1.0, 0.35, 1.7], [False, True]))
def test_rounds_add_up_the_gradients_of_their_rows(weighted, epoch):
    """Against sums row by row; slices go on where the last epoch ended, some chunks have no row."""
    x = blobs(400, 6, 8, seed=5, spread=2.0).astype(np.float64)
    weight = np.random.default_rng(1).uniform(0.2, 3, 400) if weighted else np.ones(400)
    out, shift = run(
        x, x[:9], 5, SIZES, weight if weighted else None, round_rows=27, epoch=epoch, eta=0.02
    )
    starts = np.concatenate([[0], np.cumsum(SIZES)])
    orders = [oracles.row_order(Rng(3), index, n) for index, n in enumerate(SIZES)]
    rounds, place, empty = [], 0, 0
    for state, info in out:
        of_epoch = []
        # 15 rounds are all rows, the last of them 22
        for _ in range(round(15 * epoch)):
            end = min(place + 27, 400)
            shares = [
                start + order[place * n // 400 : end * n // 400]
                for start, n, order in zip(starts, SIZES, orders, strict=False)
            ]
            empty += sum(len(rows) == 0 for rows in shares[2:4])
            of_epoch.append(np.concatenate(shares))
            place = end % 400
        rounds.append(of_epoch)
        assert state.place == place
        scans = 2 if state.epoch == 1 else 1
        assert info.rows == scans * 400 + sum(map(len, of_epoch))
    assert empty, "a chunk smaller than the number of rounds"
    expected = list(twins.epochs_of_rounds(x, weight, x[:9].copy(), 0.02, rounds, shift))
    for (state, info), (_, inner) in zip(out, expected, strict=True):
        assert "restored" not in info.extra
        np.testing.assert_allclose(state.history.last.centers, inner, rtol=1e-8, atol=1e-8)
    for (state, _), (means, _) in zip(out, expected[1:], strict=False):
        np.testing.assert_allclose(state.centers, means, rtol=1e-8, atol=1e-8)


def test_an_epoch_counts_its_rows():
    x = blobs(1000, 6, 5, spread=2.0)
    one, two = (info.rows for _, info in run(x, x[:5], 2, epoch=0.5)[0])
    assert (one, two) == (2500, 1500), "the first one has one scan more"
    one, two = (info.rows for _, info in run(x, x[:5], 2, epoch=2.0, plus_plus=False)[0])
    assert (one, two) == (5000, 4000), "a scan for the gradient"
    one, two = (info.rows for _, info in run(x, x[:5], 2, round_rows=1)[0])
    assert (one, two) == (3000, 2000)
    # Rounds are whole, and none has more rows than an epoch.
    one, two = (info.rows for _, info in run(x, x[:5], 2, round_rows=300, epoch=0.4)[0])
    assert (one, two) == (2600, 1400), "the last of four has 100"
    one, two = (info.rows for _, info in run(x, x[:5], 2, round_rows=600, epoch=0.4)[0])
    assert (one, two) == (2400, 1400)


@pytest.mark.parametrize("round_rows", [1, 40])
def test_the_batch_gradient_is_nothing_but_rounding(round_rows):
    """Equation 9: VRKM and VRKM++ are one method, but for what a scan costs."""
    x = blobs(2000, 6, 12, seed=2, spread=2.0).astype(np.float64)
    both = [run(x, x[:12], 1, round_rows=round_rows, plus_plus=p)[0][-1] for p in (True, False)]
    inner = [state.history.last.centers for state, _ in both]
    assert inner[0].tobytes() != inner[1].tobytes(), "there is something of it"
    assert np.abs(inner[0] - inner[1]).max() < 1e-9 * np.abs(x).max()
    assert both[0][1].cost == pytest.approx(both[1][1].cost, rel=1e-9)


# --- nothing shows that must not ----------------------------------------------------------------


@every_form
def test_threads_and_what_is_kept_of_rows_change_no_bit(form):
    x = blobs(3000, 6, 12, seed=6, spread=1.5)
    sizes = [700, 0, 5, 1295, 1000]

    def found(**options):
        return digest(run(x, x[:15], 4, sizes, **FORMS[form], **options)[0])

    expected = found()
    for n_threads in (2, 5):
        assert found(n_threads=n_threads) == expected
    assert found(memory_limit=0) == expected, "labels are found again for every round"


@pytest.mark.parametrize("form", ["rows-gradient", *slow("auto")])
def test_chunks_that_are_shown_as_one_change_no_bit(form, monkeypatch):
    """With bounds, threads, and rows of weight 0 that hold nothing."""
    x = blobs(3000, 60, 150, seed=8, spread=0.5)
    init, weight = x[:300].copy(), np.random.default_rng(1).uniform(0.5, 2, 3000)
    weight[700:720] = weight[::97] = 0
    x[weight == 0] = np.nan
    sizes = [700, 0, 5, 1295, 1000]
    monkeypatch.setattr("largek_dask.algorithms.vrkm.SCAN_ROWS", 450)
    monkeypatch.setattr("largek_dask.algorithms.vrkm.PIECE_BYTES", 4 * 60 * 130)
    monkeypatch.setattr("largek_dask.passes.chunks.PIECE_BYTES", 4 * 60 * 7)
    seen = []

    def found(**options):
        seen.clear()
        out, _ = run(x, init, 6, sizes, weight, **FORMS[form], **options)
        with_bounds = any(state.history.last.bounds is not None for state, _ in out)
        assert with_bounds or "memory_limit" in options
        return digest(out), [info.extra for _, info in out]

    def noted(chunk, *rest, function=vrkm.scan_chunk):
        seen.append(chunk.index)
        function(chunk, *rest)

    monkeypatch.setattr(vrkm, "scan_chunk", noted)
    expected = found()
    assert set(seen) == {JOINED}
    assert found(n_threads=3) == expected
    assert found(memory_limit=0)[0] == expected[0]
    monkeypatch.setattr(ChunkReader, "join", lambda _: None)
    assert found() == expected
    if FORMS[form].get("round_rows") != 1:
        assert set(seen) == set(range(5))


@pytest.mark.parametrize("form", ["rows", "rows-gradient"])
def test_rows_one_by_one_know_no_chunks(form):
    x = blobs(900, 6, 12, seed=6, spread=1.5)
    found = {
        digest(run(x, x[:15], 4, sizes, **FORMS[form])[0])
        for sizes in ([900], [300] * 3, [1, 0, 899])
    }
    assert len(found) == 1


@few_forms
def test_bounds_change_no_bit(form, monkeypatch):
    """They begin once few rows change; then fewer distances are computed, for the same labels."""
    x = blobs(3000, 60, 150, seed=8, spread=0.5)
    out, _ = run(x, x[:300], 8, **FORMS[form])
    assert any(state.history.last.bounds is not None for state, _ in out)
    assert min(info.extra["distances"] for _, info in out) < 0.9
    monkeypatch.setattr(VRKM, "_bounds", lambda *_: None)
    plain, _ = run(x, x[:300], 8, **FORMS[form])
    assert {info.extra["distances"] for _, info in plain} == {1.0}
    assert digest(plain) == digest(out)


@few_forms
def test_an_epoch_begins_where_a_checkpoint_left_off(form, tmp_path):
    x = blobs(3000, 6, 12, seed=6, spread=1.5)
    algorithm = VRKM(epoch=0.6, **FORMS[form])
    options = {"init": x[:15], "algorithm": algorithm, "random_state": 1, "tol": 0}
    whole = lk.KMeans(15, max_iter=6, **options).fit(x)
    assert whole.n_iter_ == 6
    folder = str(tmp_path / "job")
    for steps in (1, 3, 6):
        resumed = lk.KMeans(15, max_iter=steps, checkpoint=folder, **options).fit(x)
        assert resumed.n_iter_ == steps
    assert resumed.model_.digest() == whole.model_.digest()


@pytest.mark.parametrize("form", ["rounds", "rows", "rows-gradient"])
def test_rows_that_weigh_nothing_and_skipped_ones_are_absent(form):
    x = blobs(600, 6, 8, seed=1, spread=2.0)
    weight = np.random.default_rng(3).integers(0, 2, 600).astype("f8")
    holed = x.copy()
    holed[weight == 0] = np.nan
    absent, _ = run(x, x[:8], 3, None, weight, **FORMS[form])
    skipped, _ = run(holed, x[:8], 3, on_bad_rows="skip", **FORMS[form])
    there, _ = run(x[weight > 0], x[:8], 3, **FORMS[form])
    assert absent[-1][0].counts.sum() == (weight > 0).sum() < 600
    for (state, _), (other, _) in zip(absent, skipped, strict=True):
        np.testing.assert_allclose(state.centers, other.centers, 1e-5, 1e-5)
    if form != "rounds":  # Rounds hold other rows where there are others.
        for (state, _), (other, _) in zip(absent, there, strict=True):
            np.testing.assert_allclose(state.centers, other.centers, 1e-5, 1e-5)


@pytest.mark.parametrize("form", ["rounds", "rows", "rows-gradient"])
def test_sparse_rows(form):
    """As dense ones, of which no number is rounded."""
    x, init = integers(seed=9, dtype=np.float32)
    x[np.abs(x) < 8] = 0
    dense, _ = run(x, init, 3, **FORMS[form])
    sparse, _ = run(scipy.sparse.csr_matrix(x), init, 3, **FORMS[form])
    for (state, info), (other, said) in zip(dense, sparse, strict=True):
        np.testing.assert_allclose(state.centers, other.centers, 1e-6, 1e-6)
        assert info.cost == pytest.approx(said.cost, rel=1e-6)


# --- the learning rate --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("round_rows", "eta"), in_turns(["auto", 1, 400, 10**9], [3.0, 1e300, 0.5, 1e6])
)
def test_what_is_too_large_is_halved_and_taken_back(eta, round_rows):
    """From 100 K / n on; whatever becomes of centres, none is handed out that is not finite."""
    x = blobs(2000, 6, 10, seed=4, spread=2.0)
    out, _ = run(x, x[:10], 12, eta=eta, round_rows=round_rows)
    costs = [info.cost for _, info in out]
    assert all(b <= a * (1 + 1e-12) for a, b in pairwise(costs))
    rate = eta
    for state, info in out:
        assert np.isfinite(state.centers).all()
        rate /= 2 if "restored" in info.extra else 1
        assert info.extra["eta"] == state.eta == rate
    lloyd = [info.cost for _, info in run(x, x[:10], 13, algorithm=Lloyd)[0]]
    if eta >= 1e6:
        assert rate == eta / 2 ** len(out)
        # A snapshot that comes back is assigned again: a step of Lloyd's algorithm.
        np.testing.assert_allclose(costs[: len(lloyd) - 1], lloyd[1 : len(costs) + 1], rtol=1e-6)
    if eta == 3.0 and round_rows == "auto":
        assert rate < eta


def one_large_cluster():
    r = np.random.default_rng(0)
    x = np.concatenate([r.normal(size=(500, 1)), r.uniform(3, 10, (60, 1))])
    return x, np.array([0.0, 2, 4, 5, 6, 7, 8, 9])[:, None]


def test_the_published_rate_is_not_changed_but_told_of():
    """Half of the rows are one cluster's, and a round that holds them all throws it too far."""
    x, init = one_large_cluster()
    with pytest.warns(ParameterWarning, match="eta='paper' .* has raised the objective in") as told:
        out, _ = run(x, init, 12, eta="paper", round_rows=10**9, epoch=6)
    assert len(told) == 1
    costs = [info.cost for _, info in out]
    risen = sum(b > a for a, b in pairwise(costs))
    assert out[-1][0].n_risen >= risen > 2
    assert {info.extra["eta"] for _, info in out} == {8 / 560}
    assert costs[-1] < 0.2 * max(costs), "it goes on all the same"


def test_what_the_published_rate_throws_away_ends_the_fit():
    """Nearly all rows are one cluster's, and one round holds them all."""
    x = np.concatenate([np.random.default_rng(0).normal(size=(500, 2)), np.eye(8, 2) + 90])
    init = np.concatenate([x[:2], x[-6:] + np.arange(6)[:, None]])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        out, _ = run(x, init, 9, eta="paper", round_rows=10**6, epoch=600, empty="keep")
    assert "the fit ends with the best centres so far" in str(told[-1].message)
    state, info = out[-1]
    assert info.converged
    assert np.isfinite(state.centers).all()
    assert info.cost == min(info.cost for _, info in out)
    km = VRKM(problem=KMeansProblem(8)).model(state)
    assert np.isfinite(km.centers).all()


@pytest.mark.filterwarnings("ignore:eta='paper':largek_dask.errors.ParameterWarning")
def test_the_best_snapshot_comes_back_from_before_the_last_rises():
    x, init = one_large_cluster()
    problem, rng, costs, snapshots = KMeansProblem(8, init), Rng(3), [], []
    algorithm = VRKM(eta="paper", round_rows=10**9, epoch=6, problem=problem)
    with LocalPasses(open_rows(x), n_threads=1) as passes:
        state = algorithm.init(passes, rng)
        for _ in range(9):
            state, info = algorithm.step(passes, rng, state)
            costs.append(info.cost)
            snapshots.append(state.centers)
        assert costs[6] < costs[7] < costs[8], "it has risen twice running"
        assert costs[6] == min(costs)
        state, info = algorithm.step(passes, rng, replace(state, eta=50.0))
    assert info.converged
    assert info.cost == costs[6]
    np.testing.assert_array_equal(state.centers, snapshots[6])
    assert oracles.assign(x, state.centers)[1] <= costs[6]


# --- ends and edges -----------------------------------------------------------------------------


@every_form
def test_the_end_is_a_fixed_point_of_lloyds_algorithm(form):
    x = blobs(1500, 6, 8, seed=2, spread=3.0).astype(np.float64)
    out, _ = run(x, x[:8], 60, **FORMS[form])
    state, info = out[-1]
    assert info.converged
    assert len(out) > 2
    (after, told), *_ = run(x, state.centers, 1, algorithm=Lloyd)[0]
    np.testing.assert_allclose(after.centers, state.centers, rtol=1e-12, atol=1e-12)
    assert told.cost == pytest.approx(info.cost, rel=1e-9)


def test_centres_that_come_back_after_several_epochs_end_the_fit():
    r = np.random.default_rng(0)
    x = np.concatenate([r.normal(size=(6, 3)) * 1e-9, r.normal(size=(6, 3)) * 1e6])
    x = x.repeat(7, axis=0)
    out, _ = run(x, x[:20], 60)
    assert out[-1][1].converged
    ended = [state.centers.tolist() for state, _ in out]
    assert len(out) - 1 - ended.index(ended[-1]) > 2
    costs = [info.cost for _, info in out]
    assert costs[-1] >= min(costs[:-1])


def test_centres_that_come_back_are_found_after_any_number_of_epochs():
    for period in (1, 2, 3, 5, 12):
        for begin in (0, 1, 4, 9):
            idle, seen = Idle(), 0
            for epoch in range(200):
                cost = 2.0 if epoch else 1.0
                at = np.full((1, 1), epoch if epoch < begin else begin + (epoch - begin) % period)
                if idle.ends(cost, at):
                    break
                idle, seen = idle.then(cost, at), epoch
            assert period <= seen <= 4 * (begin + period)


def test_an_objective_that_falls_waits_for_nothing():
    here = np.zeros((1, 1))
    idle = Idle().then(3.0, here).then(3.0, here)
    assert idle.ends(3.0, here)
    assert not idle.ends(2.0, here)
    assert idle.then(2.0, here) == Idle(2.0)
    assert not idle.then(2.0, here).ends(2.0, here)


@pytest.mark.parametrize(("form", "empty"), in_turns([*FORMS], ["keep", "relocate"]))
def test_a_cluster_that_empties_inside_an_epoch(form, empty):
    """Its only rows are nearer to another centre as soon as that has moved."""
    r = np.random.default_rng(0)
    x = np.concatenate([r.normal(size=(400, 2)), [[9.0, 9.0]] * 2, r.normal(size=(200, 2)) + 30])
    init = np.array([[8.0, 8.0], [9.5, 9.5], [60.0, 60.0]])
    out, _ = run(x, init, 25, empty=empty, seed=1, **FORMS[form])
    assert all(np.isfinite(state.centers).all() for state, _ in out)
    costs = [info.cost for _, info in out]
    assert costs == sorted(costs, reverse=True)
    if empty == "relocate":
        assert (out[-1][0].counts > 0).all()


@pytest.mark.parametrize("round_rows", [1, 30])
def test_centres_that_nobody_needs_stay_or_are_moved(round_rows):
    x = blobs(300, 6, 4, seed=1, spread=4.0).astype(np.float64)
    init = np.concatenate([x[:3], [[500.0] + 5 * [0]]])
    kept = run(x, init, 4, empty="keep", round_rows=round_rows)[0]
    assert kept[-1][0].centers[3].tolist() == [500.0] + 5 * [0]
    assert "relocated" not in kept[0][1].extra
    moved = run(x, init, 1, round_rows=round_rows)[0]
    assert moved[0][0].counts[3] > 0
    assert moved[0][1].cost < kept[0][1].cost


def test_a_round_of_more_rows_than_there_are_is_one_round():
    x = blobs(500, 6, 4, seed=1, spread=4.0)
    found = {digest(run(x, x[:6], 3, round_rows=rows, eta=1e-4)[0]) for rows in (500, 501, 10**12)}
    assert len(found) == 1
    assert digest(run(x, x[:6], 3, round_rows=499, eta=1e-4)[0]) not in found


# --- bad input ----------------------------------------------------------------------------------


def test_what_makes_no_sense_is_refused():
    refused = {
        "eta must be 'auto', 'paper' or a finite number above 0, got": (
            "eta", [0, -0.1, np.nan, np.inf, "fast", None, True, [0.1]]
        ),
        "round_rows must be 'auto' or at least 1, got": (
            "round_rows", [0, -1, 2.5, True, "all", None]
        ),
        "epoch must be a finite number above 0 .*, got": (
            "epoch", [0, -1.0, np.nan, np.inf, "1", True, None]
        ),
        "plus_plus must be True or False, got 1": ("plus_plus", [1]),
    }  # fmt: skip
    for message, (name, values) in refused.items():
        for value in values:
            with pytest.raises(ParameterError, match=message):
                VRKM(**{name: value})
    assert VRKM(eta=np.float32(0.5), round_rows=np.int64(3), epoch=1).round_rows == 3


class Large:
    """A table of 2^27 values and a row more."""

    n_rows, n_features, row_values, is_sparse = (1 << 20) + 1, 128, 128, False


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [(VRKM(round_rows=1), "round_rows"), (MiniBatch(batch_rows=1), "batch_rows")],
)
def test_too_large_a_table_for_one_row_after_the_other(algorithm, name):
    with pytest.raises(ParameterError, match=rf"{name}=1 takes .* are 134217856\. Use {name}='au"):
        algorithm.check(Large())
    fits = Large()
    fits.n_rows -= 1
    algorithm.check(fits)
    type(algorithm)().check(Large())


def test_a_table_that_is_too_large_is_not_read(monkeypatch):
    monkeypatch.setattr("largek_dask.algorithms.parts.gathered.MOST_VALUES", 1000)

    rows = rows_of(np.zeros((400, 3), np.float32), [200, 200])
    monkeypatch.setattr(rows, "read", lambda i: pytest.fail("it is read"))
    for algorithm in (VRKM(round_rows=1), MiniBatch(batch_rows=1)):
        with pytest.raises(ParameterError, match="400 rows of 3 features are 1200"):
            lk.KMeans(3, algorithm=algorithm).fit(rows)


# --- SGD-KM -------------------------------------------------------------------------------------


def test_batches_of_one_row_are_drawn_from_all_rows():
    """A step is as many of them as there are rows; in chunks, or not."""
    x = blobs(900, 6, 6, seed=4, spread=2.0)
    found = [
        run(x, x[:6], 3, sizes, algorithm=MiniBatch, batch_rows=1)[0]
        for sizes in ([900], [1, 0, 400, 499])
    ]
    for (state, info), (other, said) in zip(*found, strict=True):
        assert state.means.tobytes() == other.means.tobytes()
        assert info == said
        assert info.rows == 900
    assert found[0][-1][0].votes.sum() == 2700
    # Ten times the rows of a row: an order that is drawn with replacement leaves some out.
    lloyd = run(x, x[:6], 20, algorithm=Lloyd)[0][-1][1].cost
    assert lloyd <= found[0][-1][1].cost < 1.5 * lloyd


def test_batches_of_one_row_with_latest_votes_are_as_they_were():
    x = blobs(50, 6, 6, seed=2)
    out, _ = run(x, x[:6], 50, [50], algorithm=MiniBatch, batch_rows=1, votes="latest")
    assert [info.rows for _, info in out] == [1] * 50
    assert out[-1][0].votes.sum() == 50
