"""The parts of the truncated search that decide: schedules, moves, lists, shares."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from largek_dask.algorithms.parts.moves import Moves, Splits, choose_moves
from largek_dask.algorithms.truncated_lists import (
    Near,
    Recipe,
    lists_of,
    lists_with_moves,
    reach_of,
)
from largek_dask.algorithms.truncated_look import (
    LabelledSample,
    _with_the_dearest,
    gains_of_lists,
    share_misled,
    splits_of,
)
from largek_dask.algorithms.truncated_orders import cells_order
from largek_dask.algorithms.truncated_rounds import BEYOND, overstep
from largek_dask.algorithms.truncated_rows import Order, RowArrays, advance
from largek_dask.algorithms.truncated_schedule import (
    TUNING,
    Outcome,
    Sampling,
    Schedule,
    Search,
    Task,
    first_schedule,
    next_step,
    sample_sizes,
)
from largek_dask.errors import CancelledFit
from largek_dask.kernels.bounds.lists import order_by_label
from largek_dask.kernels.distances import nearest, pack_centers
from largek_dask.kernels.threads import Threads
from tests import oracles

N, K = 1_000_000, 1_000
FLAT = (0.0,) * (len(TUNING.lengths) + 1)


def done(cost, *, moves=5, curve=FLAT, work=1e6, changed=100, replayed=3, misled=0.0) -> Outcome:
    return Outcome(cost, work, changed, replayed, moves, curve, misled)


def stepped(schedule: Schedule, outcome: Outcome, tol: float = 1e-4) -> tuple[Schedule, bool]:
    """What comes next, with the usual ``tol``."""
    return next_step(schedule, outcome, tol)


def in_round(cost=100.0) -> Schedule:
    """A schedule whose next step opens a round."""
    schedule = first_schedule(Search(N, K))
    schedule, _ = stepped(schedule, done(cost))
    assert schedule.task.looks
    schedule, back = stepped(schedule, done(cost))
    assert schedule.opens_round
    assert not back
    return schedule


# --- schedules -----------------------------------------------------------------------------------


def test_way_to_the_first_round():
    schedule = first_schedule(Search(N, K), (8_000, 32_000, 60_000))
    assert schedule.task == Task("cells", False)
    schedule, _ = stepped(schedule, done(300.0))
    assert schedule.task == Task("start", False, 32, looks=True)
    schedule, _ = stepped(schedule, done(220.0))
    assert schedule.task == Task("cells", False), "on to more rows"
    assert schedule.sampling.sizes == (60_000,)
    schedule, _ = stepped(schedule, done(215.0))
    assert schedule.task == Task("lists", False, 32, looks=True)
    schedule, _ = stepped(schedule, done(214.9))
    assert schedule.task == Task("cells", True)
    assert schedule.everywhere
    schedule, _ = stepped(schedule, done(210.0))
    assert schedule.task == Task("lists", True, 32, looks=True)
    schedule, _ = stepped(schedule, done(185.0))
    assert schedule.opens_round


def on_sample(n=128_000, k=K, rounds=TUNING.most_rounds) -> Schedule:
    """A schedule whose next step opens the first round, over a sample of n rows."""
    schedule = first_schedule(Search(N, k, max_rounds=rounds), (n,))
    while not schedule.opens_round:
        schedule, _ = stepped(schedule, done(100.0))
    assert not schedule.task.everywhere
    return schedule


def round_over(schedule, cost, **about) -> tuple[Schedule, bool]:
    """The schedule after a round whose passes all come to a cost, and whether it is undone."""
    assert schedule.opens_round
    schedule, back = stepped(schedule, done(cost, **about))
    while schedule.stage.passes > 0:
        schedule, back = stepped(schedule, done(cost, **about))
    return schedule, back


def test_sample_is_searched_while_a_round_gains_more_for_its_work_than_more_rows_would():
    # All rows would lower 100 by about 0.68, at some 136 distances each: 5e-9 a distance.
    schedule, back = round_over(on_sample(), 99.9)
    assert schedule.opens_round
    assert not back
    assert not schedule.task.everywhere
    schedule, back = round_over(schedule, 99.889)
    assert not back
    assert schedule.task == Task("cells", True, keeps_centers=True), (
        "0.01 for 3 million distances are less"
    )
    schedule, _ = round_over(on_sample(), 99.9, work=1e9)
    assert schedule.task == Task("cells", True, keeps_centers=True)


def test_sample_is_left_when_three_rounds_have_been_undone():
    schedule, places = on_sample(), []
    for _ in range(3):
        while not schedule.opens_round:
            schedule, _ = stepped(schedule, done(schedule.cost))
        schedule, back = round_over(schedule, 150.0)
        assert back
        assert schedule.cost == 100
        places.append(schedule.task.everywhere)
    assert places == [False, False, True]
    assert schedule.rounds.share == TUNING.least_share, "bold enough for other rows"
    assert (
        schedule.rounds.n,
        schedule.rounds.n_failed,
        schedule.rounds.n_undone,
        schedule.lengths.least,
    ) == (0, 0, 0, 0)


def test_sample_is_left_for_good_when_nothing_is_left_to_gain():
    schedule, _ = round_over(on_sample(), 100.0, moves=0)
    assert schedule.task.everywhere


@pytest.mark.parametrize(("misled", "kind"), [(0.04, "cells"), (0.06, "all")])
@pytest.mark.parametrize("larger", [(), (512_000,)])
def test_further_rows_meet_all_centres_where_cells_lead_astray(misled, kind, larger):
    schedule = replace(on_sample(), sampling=Sampling((128_000, *larger)))
    schedule, _ = round_over(schedule, 99.99, misled=misled, work=1e9)
    assert schedule.task.kind == kind
    assert schedule.task.everywhere is not bool(larger)
    assert schedule.task.keeps_centers is (kind == "cells"), (
        "centres wait until rows are where they belong"
    )
    assert not stepped(schedule, done(100.0))[0].task.keeps_centers


def test_rounds_over_samples_are_not_counted():
    schedule = on_sample(rounds=1)
    for cost in (99.0, 98.0, 97.0):
        schedule, _ = round_over(schedule, cost)
        assert not schedule.everywhere
    schedule, _ = round_over(schedule, 96.999)
    while not schedule.opens_round:
        assert schedule.stage.name != "end"
        schedule, _ = stepped(schedule, done(97.0))
    schedule, _ = round_over(schedule, 96.0)
    assert schedule.stage.name == "end"
    schedule = first_schedule(Search(N, K, max_rounds=0), (128_000,))
    while schedule.stage.name != "end":
        assert not schedule.opens_round
        schedule, _ = stepped(schedule, done(100.0))


def test_sample_is_gone_through_while_it_gains_more_than_further_rows_would():
    schedule = first_schedule(Search(N, K), (32_000,))
    schedule, _ = stepped(schedule, done(215.0))
    assert schedule.task == Task("cells", True), "one pass tells nothing yet"
    schedule = first_schedule(Search(N, 50), (1_600,))
    schedule, _ = stepped(schedule, done(215.0))
    # Means of 32 rows are 3 % above what they could be, and all rows are 625 times as many.
    for cost, goes_on in ((210.0, True), (209.9, True), (209.89, False)):
        schedule, _ = stepped(schedule, done(cost))
        assert schedule.task.everywhere is not goes_on


def test_few_clusters_meet_all_centres():
    schedule, kinds = first_schedule(Search(N, 50)), []
    for cost in (100.0, 90.0, 89.0, 88.5, 88.4, 88.4, 95.0, 94.0, 93.0, 93.0, 93.0):
        kinds.append(schedule.task.kind)
        schedule, _ = stepped(schedule, done(cost))
    assert set(kinds) == {"all", "unsettled"}
    assert schedule.rounds.n > 0


@pytest.mark.parametrize(
    ("n", "d", "k", "sizes"),
    [
        (200_000, 64, 1_000, (8_000, 32_000)),
        (10_000_000, 16, 1_000, (8_000, 32_000, 128_000, 512_000, 2_048_000)),
        (1_000_000, 1_000, 100_000, (333_333,)),
        (10_000_000, 1_000, 10_000, (40_000,)),
        (20_000, 64, 1_000, (20_000,)),
        (40_000, 64, 1_000, (13_333,)),
        (10_000_000, 1_000, 1_000, (8_000, 32_000)),
        (1, 1, 1, (1,)),
        (14_980, 14, 10, (2_048,)),
        (6_144, 14, 10, (6_144,)),
        (1_000_000, 18, 32, (2_048, 8_192, 32_768, 131_072)),
        (1_000_000, 18, 33, (264, 1_056, 4_224, 16_896, 67_584, 270_336)),
    ],
)
def test_sizes_of_samples(n, d, k, sizes):
    assert sample_sizes(n, d, k) == sizes


def test_centres_go_beyond_the_means():
    before, means = np.zeros((3, 2)), np.ones((3, 2))
    moves = Moves(np.array([0]), np.array([2]), np.ones((1, 2, 2)), 1.0)
    assert (overstep(before, means, None) == 1 + BEYOND).all()
    assert (overstep(before, means, moves)[[0, 2]] == 1).all()
    assert (overstep(before, means, moves)[1] == 1 + BEYOND).all()


def test_round_that_pays_is_kept():
    schedule = in_round()
    schedule, back = stepped(schedule, done(95.0))
    while not schedule.task.looks:
        schedule, back = stepped(schedule, done(schedule.cost - 0.1))
    schedule, back = stepped(schedule, done(94.0))
    assert not back
    assert schedule.opens_round
    assert schedule.rounds.n_failed == 0
    assert schedule.rounds.factor < 1


def test_round_that_does_not_pay_is_undone():
    schedule = in_round(100.0)
    share = schedule.rounds.share
    for cost in (120.0, 119.0, 118.9):
        schedule, back = stepped(schedule, done(cost))
    assert back, "what three passes have not mended, further ones will not"
    assert schedule.cost == 100.0
    assert schedule.task.looks
    assert schedule.rounds.n_failed == 1
    assert schedule.rounds.share == share / 2


def test_round_is_given_time_while_it_may_pay():
    schedule = in_round(100.0)
    for cost in (120.0, 110.0, 104.0):
        schedule, back = stepped(schedule, done(cost))
        assert not back
    assert not schedule.task.looks


@pytest.mark.parametrize("k", [50, K])
@pytest.mark.parametrize("seed", range(8))
def test_the_unit_of_costs_does_not_matter(seed, k):
    """Whatever passes come to: after each of them the same comes next."""
    ways = []
    for unit in (2.0**-30, 1.0, 2.0**30):
        r = np.random.default_rng(seed)
        schedule, cost, way = first_schedule(Search(N, k), (64 * k, 256 * k)), 4.0, []
        for _ in range(150):
            cost = schedule.cost / unit if np.isfinite(schedule.cost) else cost
            cost *= 1 + r.choice([-0.1, -1e-3, -1e-5, 0, 1e-5, 1e-3, 0.05], p=SHARES)
            curve = tuple((unit * cost * 1e-3 * np.sort(r.random(len(FLAT)))).tolist())
            schedule, back = stepped(schedule, done(cost * unit, curve=curve))
            way.append(
                (
                    schedule.stage.name,
                    schedule.task,
                    schedule.stage.passes,
                    schedule.rounds.n_failed,
                    schedule.lengths.least,
                    back,
                )
            )
        ways.append(way)
    assert ways[0] == ways[1] == ways[2]
    assert {stage for stage, *_ in ways[0]} > {"sample", "grow", "round"}


SHARES = [0.1, 0.3, 0.2, 0.05, 0.1, 0.15, 0.1]


@pytest.mark.parametrize("limit", [90.0, 99.7, 100.3, 110.0])
@pytest.mark.parametrize("ratio", [0.8, 0.85])
def test_round_is_undone_if_what_passes_gain_does_not_lead_below_its_begin(limit, ratio):
    """Each gains a share of what the one before has gained: that is a geometric series."""
    schedule, above = in_round(100.0), 30.0
    for _ in range(2):
        schedule, back = stepped(schedule, done(limit + above))
        above *= ratio
        assert not back
    schedule, back = stepped(schedule, done(limit + above))
    assert back is (limit > 100)


@pytest.mark.parametrize(
    ("costs", "goes_on"),
    [
        ((110, 95, 85), True),  # the third gains 10, the fourth about 7, and all so far 5 each
        ((110, 95, 91), False),  # 4, 1, and 3 each
        ((100, 98), False),  # 2, 1, and 1 each
        ((101, 98), True),  # 3, 1.5, and 1 each
        ((99, 98), False),
        ((110,), True),
        ((90,), True),
    ],
)
def test_round_goes_on_while_a_pass_gains_more_than_the_mean_of_those_before(costs, goes_on):
    *before, last = map(float, costs)
    schedule = in_round(100.0)
    for cost in before:
        schedule, _ = stepped(schedule, done(cost))
        assert not schedule.task.looks
    after, back = stepped(schedule, done(last))
    assert after.task.looks is not goes_on
    assert not back
    settled, _ = stepped(schedule, done(last, changed=0))
    assert settled.task.looks is (len(costs) > 1), "no row has changed"


def test_ends_after_some_failures():
    schedule, failures = in_round(100.0), 0
    while schedule.stage.name != "end":
        schedule, back = stepped(schedule, done(100.0 if schedule.task.looks else 120.0))
        failures += back
    assert failures == TUNING.most_failed


@pytest.mark.parametrize(("tol", "ends"), [(0.0, False), (1e-4, False), (0.1, True)])
def test_tol_says_what_a_round_has_to_gain(tol, ends):
    schedule = first_schedule(Search(N, K))
    for cost in np.geomspace(100, 99, 200).tolist():
        schedule, _ = stepped(schedule, done(cost), tol)
        if schedule.stage.name == "end":
            break
    assert (schedule.stage.name == "end") is ends


def test_ends_where_nothing_changes():
    schedule = in_round(100.0)
    for _ in range(10):
        schedule, _ = stepped(schedule, done(100.0, moves=0, changed=0))
        if schedule.stage.name == "end":
            break
    assert schedule.stage.name == "end"


def test_ends_where_nothing_is_left_to_gain():
    assert stepped(in_round(), done(0.0))[0].stage.name == "end"


def look_with(curve, *, length=None) -> Schedule:
    schedule = first_schedule(Search(N, K, length=length))
    schedule, _ = stepped(schedule, done(100.0))
    return stepped(schedule, done(100.0, curve=curve))[0]


def test_lists_are_as_long_as_pays():
    # all that there is to gain is near
    near = look_with((10.0,) * len(FLAT))
    assert near.task == Task("lists", True, 32)
    # every centre is as likely
    length = np.array([*TUNING.lengths, K])
    anywhere = look_with(tuple((1e4 * length / K).tolist()))
    assert anywhere.task.kind == "unsettled"
    # much that is stale, at a middle distance
    middle = look_with((1.0, 1.0, 1.0, *(50.0,) * (len(FLAT) - 3)))
    assert middle.task == Task("lists", True, 128)


def after_round(cost):
    """The schedule after a round that began at 100 and came to `cost`, with all gains near."""
    schedule, judged = in_round(100.0), False
    while not judged:
        n_rounds = schedule.rounds.n
        schedule, _ = stepped(schedule, done(cost, curve=(10.0,) * len(FLAT)))
        judged = schedule.rounds.n > n_rounds
    return schedule


@pytest.mark.parametrize(
    ("cost", "least"), [(95.0, 0), (99.92, 64), (99.97, 128), (99.99, 256), (120.0, 64)]
)
def test_lists_grow_as_rounds_gain_less(cost, least):
    schedule = after_round(cost)
    assert schedule.lengths.least == least
    assert cost > 100 or schedule.lengths.usual == max(32, least)


def test_given_length_is_kept():
    assert look_with((10.0,) * len(FLAT), length=24).task == Task("lists", True, 24)
    assert look_with((*FLAT[1:], 100.0), length=24).task.kind == "unsettled"


def test_passes_since_the_anchor_are_bounded():
    schedule = in_round()
    while not schedule.task.looks:
        schedule, _ = stepped(schedule, done(schedule.cost - 0.1))
    schedule, _ = stepped(schedule, done(schedule.cost - 0.1, replayed=1_000))
    assert schedule.task == Task("all", True, K)
    assert not schedule.opens_round
    schedule, _ = round_over(on_sample(), 99.0, replayed=1_000)
    assert schedule.task == Task("cells", True, keeps_centers=True), (
        "there is no need to begin anew on a sample"
    )


# --- moves ----------------------------------------------------------------------------------------


@pytest.fixture
def table() -> np.ndarray:
    """Centres on a line: neighbours by distance, ties to the lower one."""
    at = np.arange(40)
    distance = np.abs(at[:, None] - at[None])
    return np.argsort(distance, axis=1, kind="stable")[:, :24].astype(np.int32)


@given(seed=st.integers(0, 1_000))
def test_moves_never_touch_a_centre_twice(seed):
    r = np.random.default_rng(seed)
    k = int(r.integers(3, 60))
    near = r.normal(size=(k, 2))
    distance = ((near[:, None] - near[None]) ** 2).sum(axis=2)
    table = np.argsort(distance, axis=1)[:, : min(k, 24)].astype(np.int32)
    losses, splits = r.random(k), Splits(np.arange(k), 2 * r.random(k), np.zeros((k, 2, 2)))
    cheapest = np.argsort(losses)
    moves = choose_moves(
        splits, losses, cheapest, table[cheapest, 1:9], most=k, factor=0.5, split_takers=True
    )
    touched = np.concatenate([moves.split, moves.removed])
    assert len(set(touched.tolist())) == len(touched)
    offsets, listed = lists_with_moves(table, 8, table, moves.split, moves.removed)
    assert offsets[-1] == len(listed)
    for j in range(k):
        own = listed[offsets[j] : offsets[j + 1]]
        assert (np.diff(own) > 0).all()
        assert len(own) > 0
    for j, removed in zip(moves.split, moves.removed, strict=True):
        assert listed[offsets[j] : offsets[j + 1]].tolist() == sorted((j, removed))
        refuge = set(listed[offsets[removed] : offsets[removed + 1]].tolist())
        # the place of a removed centre is one only as the half of a split cluster that it is near
        for other in refuge & set(moves.removed.tolist()):
            assert moves.split[moves.removed.tolist().index(other)] in refuge


def test_reach_is_the_farthest_way_of_a_list(table):
    offsets, listed = lists_of(table, 4)
    drift = np.arange(40.0)
    reach = reach_of(drift, offsets, listed, None, None)
    assert reach[10] == table[10, :4].max()
    strange = np.zeros(40, bool)
    strange[7] = True
    reach = reach_of(drift, offsets, listed, strange, np.array([20]))
    assert reach[7] == np.inf
    assert (reach[[19, 20, 21]] == np.inf).all()
    assert np.isfinite(reach[30])
    assert drift[20] == 20


# --- cells, probes, orders ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_cells", "lists"),
    [(1, [[0], [0], [1, 2]]), (2, [[0], [0], [1, 2]]), (3, [[0, 1, 2]] * 3)],
)
def test_every_cell_has_a_centre(n_cells, lists, monkeypatch):
    monkeypatch.setattr("largek_dask.algorithms.truncated_orders.NEAR_CELLS", n_cells)
    coarse = np.array([[0.0, 0], [10, 0], [20, 0]], np.float32)
    centers = np.array([[1.0, 0], [21, 0], [22, 0]], np.float32)
    order = cells_order(centers, coarse, np.zeros(2, np.float32))
    met = [order.lists.of_group(c).tolist() for c in range(3)]
    assert met == lists


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_are_misled_by_what_cells_and_lists_miss(weighted):
    """Two coarse cells that tell nothing of where rows are, and lists that reach half the way."""
    centers = np.arange(40, dtype=np.float32)[:, None]
    shift = np.zeros(1, np.float32)
    coarse = np.array([[0.0], [1000.0]], np.float32)
    x = np.array([[0.4], [12.4], [30.4], [5.0]], np.float32)
    labels = np.array([0, 12, 30, -1], np.int32)
    weight = np.array([1.0, 2.0, 3.0, 0.0]) if weighted else None
    rows = LabelledSample(x, weight, labels, 1.0)
    listed = np.concatenate([np.arange(11), np.arange(11, 40)]).astype(np.int32)
    cells = Order("cells", centers, shift, listed, np.array([0, 11, 40]), coarse)
    table = np.argsort(np.abs(centers - centers.T), axis=1, kind="stable").astype(np.int32)
    # The cell of 0 has 0 to 10; five of the nearest centres of 10 lead on to 12.
    found = np.array([0.0, 12.0, 12.0])
    near = np.array([1.0, 2.0, 3.0]) if weighted else np.ones(3)
    now, then = near @ np.full(3, 0.4**2), near @ (x[:3, 0] - found) ** 2
    misled = share_misled(rows, cells, table[:, :9], 5, Threads())
    assert misled == pytest.approx(then / now - 1, rel=1e-4)
    assert share_misled(rows, cells, table, 40, Threads(2)) == pytest.approx(0, abs=1e-6)
    nobody = replace(rows, labels=np.full(4, -1, np.int32))
    assert share_misled(nobody, cells, table, 5, Threads()) == 0


def test_probe_counts_what_lists_would_gain():
    centers = np.arange(300, dtype=np.float32)[:, None]
    x = np.array([[0.0], [100.0], [250.0], [7.0]], np.float32)
    labels = np.array([0, 90, 0, -1], np.int32)
    rows = LabelledSample(x, None, labels, 2.0)
    gains = gains_of_lists(rows, centers, np.zeros(1, np.float32), Threads(2))
    assert gains[:3] == (0.0, 200.0, 200.0)
    assert gains[-1] == 2 * (100.0 + 250.0**2)


def test_probe_does_not_trust_one_row_that_only_all_centres_would_help():
    centers = np.arange(600, dtype=np.float32)[:, None]
    shift = np.zeros(1, np.float32)
    far = np.array([[500.0], [550.0], [3.0]], np.float32)
    one = gains_of_lists(
        LabelledSample(far[[0, 2]], None, np.zeros(2, np.int32), 1.0), centers, shift, Threads()
    )
    assert one[-1] == one[0] == 9.0
    two = gains_of_lists(
        LabelledSample(far, None, np.zeros(3, np.int32), 1.0), centers, shift, Threads()
    )
    assert two[-1] == 9.0 + 500.0**2


def test_probe_tells_what_the_longest_lists_find_from_what_none_would():
    centers, shift = np.arange(1100, dtype=np.float32)[:, None], np.zeros(1, np.float32)
    # Of two whose centres are in no list, one is not trusted.
    x = np.array([[600.0], [1050.0], [1060.0]], np.float32)
    gains = gains_of_lists(
        LabelledSample(x, None, np.zeros(3, np.int32), 1.0), centers, shift, Threads()
    )
    found = dict(zip((*TUNING.lengths, len(centers)), gains, strict=True))
    assert (found[512], found[1024], found[1100]) == (0, 600.0**2, 600.0**2 + 1050.0**2)


@pytest.mark.parametrize("weighted", [False, True])
def test_probe_tells_at_every_length_what_is_in_such_lists(weighted):
    k = 2 * max(TUNING.lengths)
    lengths = (*TUNING.lengths, k)
    borders = {at + off for at in (*TUNING.lengths, TUNING.long) for off in (-1, 0, 1)}
    # The centre at j is the j-th from the centre at 0, where all rows are said to be.
    at = np.array(sorted(borders))
    weight = np.arange(1.0, len(at) + 1) if weighted else None
    rows = LabelledSample(at[:, None].astype("f4"), weight, np.zeros(len(at), np.int32), 3.0)
    centers = np.arange(k, dtype=np.float32)[:, None]
    gains = gains_of_lists(rows, centers, np.zeros(1, np.float32), Threads(2))
    saved = at.astype(float) ** 2 * (1 if weight is None else weight)
    assert at[-1] > TUNING.long
    saved[-1] = 0  # the one that is not trusted
    assert gains == tuple(3 * saved[at < length].sum() for length in lengths)
    # No other is beyond what lists can hold but for these: with one alone nothing is left.
    few = at <= TUNING.long
    rows = LabelledSample(rows.x[few], None, rows.labels[few], 1.0)
    gains = gains_of_lists(rows, centers, np.zeros(1, np.float32), Threads(1))
    assert gains[-1] == np.square(at[at < TUNING.long], dtype=float).sum()


@pytest.mark.parametrize("weighted", [False, True])
def test_far_rows_are_among_those_that_a_split_is_tried_on(weighted):
    """Of a cluster that has more than enough; the others weigh what all the others do."""
    sizes = [255, 0, 256, 257, 900, 1]
    r = np.random.default_rng(0)
    labels = r.permutation(np.repeat(np.arange(6, dtype=np.int32), sizes))
    x = np.rint(4 * r.standard_t(2, (len(labels), 3))).astype(np.float32)
    weight = r.integers(1, 9, len(x)).astype(float) if weighted else None
    given_weight = None if weight is None else weight.copy()
    centers, shift = np.zeros((6, 3), np.float32), np.zeros(3, np.float32)
    order, starts = order_by_label(labels, 6)
    rows = LabelledSample(x, weight, labels, 1.0, far=True)
    chosen, edges, weights = _with_the_dearest(rows, centers, shift, order, starts)
    assert np.diff(edges).tolist() == [255, 0, 256, 256, 256, 1]
    mass = np.ones(len(x)) if weight is None else weight
    cost = mass * np.square(x, dtype=float).sum(axis=1)
    for cluster in range(6):
        own, mine = np.flatnonzero(labels == cluster), chosen[edges[cluster] : edges[cluster + 1]]
        if len(own) <= 256:
            np.testing.assert_array_equal(mine, own)
            np.testing.assert_array_equal(weights[own], mass[own])
            continue
        dearest, others = mine[:64], np.setdiff1d(own, mine[:64])
        assert cost[dearest].min() >= cost[others].max()
        assert (np.diff(cost[dearest]) <= 0).all()
        np.testing.assert_array_equal(weights[dearest], mass[dearest])
        at = np.searchsorted(others, mine[64:])
        np.testing.assert_array_equal(others[at], mine[64:])
        assert np.ptp(np.diff(at)) <= 1
        scale = weights[mine[64:]] / mass[mine[64:]]
        np.testing.assert_allclose(scale, mass[others].sum() / mass[mine[64:]].sum(), rtol=1e-12)
    if weighted:
        np.testing.assert_array_equal(weight, given_weight)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_look_finds_what_clusters_cost_and_what_removing_them_would(weighted):
    r = np.random.default_rng(0)
    x, centers = r.normal(size=(400, 3)), r.normal(size=(12, 3))
    weight = r.integers(0, 4, 400).astype(float) if weighted else None
    order = Order("all", centers, np.zeros(3), max_loss=1e3, loss_steps=2.0**30)
    found = advance(x, weight, RowArrays.new(400, np.dtype("f8")), order, Threads(2))[1]
    assert found is not None
    d2 = np.sort(np.square(x[:, None] - centers).sum(axis=2), axis=1)
    own, mass = oracles.assign(x, centers)[0], np.ones(400) if weight is None else weight
    removed, cost = (np.bincount(own, mass * part, 12) for part in (d2[:, 1] - d2[:, 0], d2[:, 0]))
    np.testing.assert_allclose(found / order.loss_steps, [removed, cost], rtol=1e-6)


def test_every_pass_hears_of_a_stop():
    """Before every share of its rows; one that looks for cells first, or takes up what is kept,
    does so before each of both.
    """
    x = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
    centers, shift = x[:12].copy(), np.zeros(3, np.float32)
    listed = np.tile(np.arange(12, dtype=np.int32), 12)
    asked: Counter[str] = Counter()

    def stop():
        raise CancelledFit("now")

    for kind in ("all", "lists", "unsettled", "cells"):
        rows = RowArrays.new(400, np.dtype("f4"))
        advance(x, None, rows, Order("all", centers, shift))
        rows.lower[:] = 0  # none is settled
        order = Order(kind, centers, shift, listed, np.arange(13) * 12, centers, np.zeros((2, 12)))
        advance(x, None, rows, order, Threads(1, partial(asked.update, [kind])))
        np.testing.assert_array_equal(rows.labels, oracles.assign(x, centers)[0])
        rows.lower[:] = 0
        with pytest.raises(CancelledFit):
            advance(x, None, rows, order, Threads(1, stop))
    assert asked["cells"] == asked["lists"] > asked["all"] > 0
    assert asked["unsettled"] == 2


def test_order_travels_without_what_is_packed():
    centers = np.ones((4, 2), np.float32)
    order = Order("lists", centers, centers[0], np.arange(4, dtype=np.int32))
    packed = order.packed
    assert order.packed is packed
    other = pickle.loads(pickle.dumps(order))
    assert "packed" not in other.__dict__
    assert other.lists.lengths.tolist() == [1, 1, 1, 1]


def test_order_is_kept_without_its_lists_and_makes_the_same_ones_again():
    r = np.random.default_rng(0)
    before = Near(r.normal(size=(60, 3)).astype("f4"), np.zeros(3, np.float32), 40)
    near = Near(r.normal(size=(60, 3)).astype("f4"), np.zeros(3, np.float32), 30)
    split, removed = np.array([4, 7]), np.array([20, 50])
    for recipe in (Recipe(near, 16), Recipe(near, 16, before, split, removed)):
        old = None if recipe.before is None else before.table()
        offsets, listed = recipe.make(near.table(), old)
        order = Order(
            "lists", near.centers, near.shift, listed=listed, offsets=offsets, recipe=recipe
        )
        # what travels has the lists, what stays the way to make them
        assert pickle.loads(pickle.dumps(order)).recipe is None
        kept = order.to_keep()
        assert kept.listed is kept.offsets is None
        for other in (kept, pickle.loads(pickle.dumps(kept))):
            np.testing.assert_array_equal(other.lists.offsets, order.lists.offsets)
            np.testing.assert_array_equal(other.lists.centers, order.lists.centers)
        kept.forget()
        assert "lists" not in kept.__dict__
        assert "kept" not in near.__dict__


def test_threads_do_not_change_what_is_found():
    r = np.random.default_rng(0)
    x = r.standard_normal((2_000, 6)).astype(np.float32)
    centers, shift = x[:40].copy(), np.zeros(6, np.float32)
    labels = nearest(x, pack_centers(centers, shift))
    labels[::7] = -1
    labels[1::9] = 3
    rows, clusters = LabelledSample(x, None, labels, 2.5), np.arange(0, 40, 2)
    one, two = (splits_of(rows, centers, shift, clusters, n) for n in (1, 2))
    np.testing.assert_array_equal(one.gains, two.gains)
    np.testing.assert_array_equal(one.halves, two.halves)
    gains = gains_of_lists(rows, centers, shift, Threads())
    assert max(gains) > 0
    assert gains_of_lists(rows, centers, shift, Threads(2)) == gains
