"""VRKM and VRKM++, against the printed algorithms."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import scipy.sparse

import largek_dask as lk
from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.kmeans import KMeansProblem
from largek_dask.algorithms.lloyd import Lloyd
from largek_dask.algorithms.minibatch import MiniBatch
from largek_dask.algorithms.published.vrkm import VRKM
from largek_dask.data.sources import open_rows
from largek_dask.errors import ParameterError, ParameterWarning
from largek_dask.passes.cluster import ClusterPasses
from largek_dask.passes.local import LocalPasses
from tests import oracles
from tests.algorithms.conftest import blobs
from tests.helpers.covering import every_two, in_turns, slow
from tests.oracles import vrkm as twins
from tests.passes.toys import rows_of

FORMS = {
    "rounds": {"round_rows": 40, "eta": 0.02},
    "auto": {"eta": 0.02},
    "rounds-gradient": {"round_rows": 40, "plus_plus": False},
    "rows": {"round_rows": 1, "eta": 0.02},
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
    made = kind(**options).bind(KMeansProblem(len(init), init, empty))
    if sizes is None:
        rows = open_rows(x, sample_weight=weight)
    else:
        rows = rows_of(x, sizes, weight)
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
    """All that the steps have left and said."""
    found = hashlib.sha256()
    for state, info in out:
        for array in (state.centers, state.counts):
            found.update(array.tobytes())
        said = info.cost, info.rows, info.shift, info.converged, state.place
        found.update(repr(said).encode())
    return found.hexdigest()


# --- as printed ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plus_plus", "weighted", "eta", "epoch"),
    every_two([True, False], [False, True], ["K/n", 0.0625], ["n", "2^s", 1.5]),
)
def test_one_row_after_the_other_is_the_printed_algorithm(plus_plus, weighted, eta, epoch):
    """Bit for bit and epoch by epoch, on chunks of which one is empty."""
    x, init = integers(seed=1)
    n = len(x)
    weight = np.random.default_rng(1).integers(1, 4, n).astype("f8") if weighted else None
    algorithm = VRKM.paper(plus_plus, eta, epoch)
    assert algorithm.round_rows == 1
    options = {"round_rows": 1, "eta": eta, "plus_plus": plus_plus, "epoch": epoch}
    out, shift = run(x, init, 4, [100, 0, 1, n - 101], weight, **options)
    rate = len(init) / n if eta == "K/n" else eta
    sizes = [{"n": n, "2^s": 2**s, 1.5: 3 * n // 2}[epoch] for s in (1, 2, 3, 4)]
    draws = [Rng(3).generator(e, "vrkm rows").integers(n, size=t) for e, t in enumerate(sizes)]
    expected = list(twins.epochs(x.astype("f8"), init, rate, draws, shift, weight, not plus_plus))
    assert len(out) >= 3
    before = init
    for (state, info), (_, inner), t in zip(out, expected, sizes, strict=False):
        assert state.centers.tobytes() == inner.tobytes()
        assert info.rows == n + t
        if not weighted:
            assert info.cost == pytest.approx(oracles.assign(x.astype("f8"), before)[1], rel=1e-12)
        before = inner
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
        assert info.rows == 400 + sum(map(len, of_epoch))
    assert empty, "a chunk smaller than the number of rounds"
    expected = list(twins.epochs_of_rounds(x, weight, x[:9].copy(), 0.02, rounds, shift))
    for (state, _), (_, inner) in zip(out, expected, strict=True):
        np.testing.assert_allclose(state.centers, inner, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("round_rows", [1, 40])
def test_the_batch_gradient_is_nothing_but_rounding(round_rows):
    """Equation 9: VRKM and VRKM++ are one method."""
    x = blobs(2000, 6, 12, seed=2, spread=2.0).astype(np.float64)
    both = [run(x, x[:12], 1, round_rows=round_rows, plus_plus=p)[0][-1] for p in (True, False)]
    one, other = (state.centers for state, _ in both)
    assert one.tobytes() != other.tobytes(), "there is something of it"
    assert np.abs(one - other).max() < 1e-9 * np.abs(x).max()


def test_rounds_are_whole_and_none_has_more_rows_than_an_epoch():
    x = blobs(1000, 6, 5, spread=2.0)
    for rows, epoch, expected in [(300, 0.4, 600), (900, 0.4, 400), ("auto", 2.0, 2000)]:
        out, _ = run(x, x[:5], 1, round_rows=rows, epoch=epoch)
        assert out[0][1].rows == 1000 + expected
    found = {digest(run(x, x[:5], 3, round_rows=rows, eta=1e-4)[0]) for rows in (1000, 10**12)}
    assert len(found) == 1


def test_two_workers_partition_and_run_rounds(cluster2):
    """Each reads its chunks in every pass; the driver gathers nothing, and no bit changes."""
    x = blobs(4000, 6, 12, seed=2, spread=2.0)
    algorithm = VRKM(round_rows=1000).bind(KMeansProblem(12, x[:12]))
    with LocalPasses(rows_of(x, [500] * 8), n_threads=1) as passes:
        alone, _ = algorithm.step(passes, Rng(3), algorithm.init(passes, Rng(3)))
    with ClusterPasses(rows_of(x, [500] * 8), cluster2) as passes:
        state = algorithm.init(passes, Rng(3))
        before = [report.rows for report in passes.by_worker.values()]
        passes.subset = passes.take = lambda *_, **__: pytest.fail("rows are gathered")
        state, info = algorithm.step(passes, Rng(3), state)
        rows = [report.rows for report in passes.by_worker.values()]
    assert state.centers.tobytes() == alone.centers.tobytes()
    assert info.rows == 8000
    # a partition and four rounds, of 500 rows of each chunk in all
    assert [after - b for after, b in zip(rows, before, strict=True)] == [4000, 4000]


# --- nothing shows that must not ----------------------------------------------------------------


@every_form
def test_threads_and_what_is_kept_of_rows_change_no_bit(form):
    x = blobs(3000, 6, 12, seed=6, spread=1.5)
    sizes = [700, 0, 5, 1295, 1000]
    expected = digest(run(x, x[:15], 4, sizes, **FORMS[form])[0])
    for options in ({"n_threads": 2}, {"n_threads": 5}, {"memory_limit": 0}):
        if FORMS[form].get("round_rows") == 1 and "memory_limit" in options:
            continue
        assert digest(run(x, x[:15], 4, sizes, **options, **FORMS[form])[0]) == expected


@pytest.mark.parametrize("form", ["rows", "rows-gradient"])
def test_rows_one_by_one_know_no_chunks(form):
    x = blobs(900, 6, 12, seed=6, spread=1.5)
    found = {
        digest(run(x, x[:15], 4, sizes, **FORMS[form])[0])
        for sizes in ([900], [300] * 3, [1, 0, 899])
    }
    assert len(found) == 1


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


# --- ends and edges -----------------------------------------------------------------------------


@pytest.mark.parametrize("round_rows", [1, 400])
def test_what_is_too_large_a_rate_ends_the_fit(round_rows):
    """With the centres before the epoch that moved some far outside the data."""
    x = blobs(2000, 6, 10, seed=4, spread=2.0)
    with pytest.warns(ParameterWarning, match="moved centres far outside the data in epoch 1"):
        out, _ = run(x, x[:10], 12, eta=1e6, round_rows=round_rows)
    ((state, info),) = out
    assert info.converged
    assert np.array_equal(state.centers, x[:10])


@every_form
def test_the_end_is_a_fixed_point_of_lloyds_algorithm(form):
    x = blobs(600, 3, 5, seed=2, spread=9.0).astype(np.float64)
    # the rate is such that an inner loop ends at rest
    out, _ = run(x, x[:5], 400, **FORMS[form] | {"eta": 0.05})
    state, info = out[-1]
    assert info.converged
    (after, said), *_ = run(x, state.centers, 1, algorithm=Lloyd)[0]
    np.testing.assert_allclose(after.centers, state.centers, rtol=1e-12, atol=1e-12)
    assert said.cost == pytest.approx(info.cost, rel=1e-9)


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
    moved = run(x, init, 2, round_rows=round_rows)[0]
    assert moved[0][1].extra["relocated"] == 1
    assert moved[1][0].counts[3] > 0
    assert moved[1][1].cost < kept[1][1].cost


def test_what_makes_no_sense_is_refused():
    share = [0, -0.1, np.nan, np.inf, "fast", None, True, [0.1]]
    refused = {
        "eta must be 'K/n' or a finite number above 0, got": ("eta", [*share, "auto"]),
        "round_rows must be 'auto' or at least 1, got": ("round_rows", [0, -1, 2.5, True, None]),
        "epoch must be 'n', '2.s' or a finite number above 0, got": ("epoch", share),
        "plus_plus must be True or False, got 1": ("plus_plus", [1]),
    }
    for message, (name, values) in refused.items():
        for value in values:
            with pytest.raises(ParameterError, match=message):
                VRKM(**{name: value})
    assert VRKM(eta=np.float32(0.5), round_rows=np.int64(3), epoch=1).round_rows == 3


@pytest.mark.parametrize("algorithm", [VRKM.paper(), MiniBatch(batch_rows=1)])
def test_rows_one_by_one_are_held_up_to_the_memory_limit(algorithm):
    x = blobs(400, 3, 3)
    needed = 400 * (2 * 3 * 4 + 3 * 8 + (8 if isinstance(algorithm, VRKM) else 0))
    fit = lk.KMeans(3, algorithm=algorithm, max_iter=2, memory_limit=needed).fit(x)
    assert fit.n_iter_ == 2
    message = rf"{type(algorithm).__name__} with .*=1 holds all rows in .*: 400 rows of 3 "
    with pytest.raises(ParameterError, match=message + rf"features take {needed} bytes.*'auto'"):
        lk.KMeans(3, algorithm=algorithm, memory_limit=needed - 1).fit(x)


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
