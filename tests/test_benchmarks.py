"""What benchmarks compute from what they measure; no test here depends on speed."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import (
    auto,
    auto_scale,
    cores,
    curves,
    figures,
    nmbatch,
    nmbatch_tables,
    peers,
    workers,
)
from benchmarks.curves import DENSE, LLOYD, MINIBATCH, NMBATCH, OWN_START, PUBLISHED

METHODS = [*curves.METHODS, MINIBATCH]


@pytest.fixture(scope="module")
def blobs():
    r = np.random.default_rng(0)
    centers = 4 * r.normal(size=(12, 5))
    return (centers[r.integers(12, size=3000)] + r.normal(size=(3000, 5))).astype(np.float32)


def energy(x, centers):
    distances = ((x[:, None, :].astype(float) - centers[None].astype(float)) ** 2).sum(axis=2)
    return distances.min(axis=1).mean()


@pytest.mark.parametrize("method", METHODS)
def test_a_run_tells_the_energy_of_its_centers_over_all_rows(blobs, method):
    k = 8
    task = curves.Task(method, "", k, seed=3, limit=0.3, excesses=(0.02,))
    run = curves.run(task, blobs)
    assert run["steps"][-1] == run["n_steps"] == len(run["clock"])
    assert run["steps"] == sorted(set(run["steps"]))
    assert run["seconds"] == [run["clock"][step - 1] for step in run["steps"]]
    assert all(np.diff(run["clock"]) >= 0)
    centers = curves.starting_centers(blobs, k)
    wanted = {1, run["steps"][len(run["steps"]) // 2]}
    for step, (now, _) in enumerate(curves.steps_of(method, blobs, centers, 3), 1):
        if step in wanted:
            told = run["energies"][run["steps"].index(step)]
            assert told == pytest.approx(energy(blobs, np.asarray(now)), rel=1e-4)
        if step >= max(wanted):
            break


def test_twins_take_the_same_steps(blobs):
    tasks = [curves.Task(method, "", 8, limit=5.0) for method in (LLOYD, DENSE)]
    bounded, dense = (curves.run(task, blobs) for task in tasks)
    assert bounded["ended"]
    assert bounded["n_steps"] == dense["n_steps"]
    assert bounded["energies"] == dense["energies"]


@pytest.mark.parametrize("level", [9.5, 7.0, 3.2, 0.0, -1.0])
def test_bisection_finds_the_first_step_of_a_falling_curve(level):
    values = np.array([9.9 * 0.8**i for i in range(40)])

    class Falling(curves.Energies):
        def _computed(self, centers):
            return float(values[int(centers)])

    energies = Falling(np.zeros((1, 1), np.float32), list(range(40)))
    for i in (0, 11, 39):
        energies[i]
    hits = np.flatnonzero(values <= level)
    assert energies.first_within(level) == (hits[0] if len(hits) else None)
    assert len(energies.known) < 12


@pytest.mark.parametrize(("n", "most"), [(1, 5), (5, 5), (6, 5), (1000, 12)])
def test_chosen_steps_hold_the_first_and_the_last(n, most):
    steps = curves.chosen(n, most)
    assert steps[0] == 0
    assert steps[-1] == n - 1
    assert len(set(steps)) == len(steps) <= most


def test_a_line_through_two_fits_leaves_the_last_labelling_out():
    fit = {p: 0.5 + 0.2 * p + 0.15 for p in (1, 6)}
    line = peers.line_through((1, fit[1]), (6, fit[6]), 0.15)
    assert line == pytest.approx({"setup": 0.5, "pass": 0.2})
    assert peers.seconds_of(line, 10) == pytest.approx(2.5)
    assert peers.line_through((1, 0.2), (3, 0.6), 0.0)["setup"] == pytest.approx(0.0)


def made_run(seconds, energies, ended=True, **about):
    steps = list(range(1, len(seconds) + 1))
    return {
        "n_steps": len(steps),
        "total": seconds[-1],
        "passes": float(len(steps)),
        "ended": ended,
        "steps": steps,
        "seconds": seconds,
        "energies": energies,
        "mean_share": 0.5,
        "shares": [1.0, 0.2],
        "share_steps": [1, 2],
    } | about


@pytest.fixture
def record():
    """Lloyd ends at 100 after 4 s; nmbatch is there after 2 s, the better peer after 4.5 s."""
    lloyd = made_run([1.0, 2.0, 3.0, 4.0], [110.0, 101.5, 100.15, 100.0])
    ours = [
        made_run([0.5, 1.0, 2.0], [111.0, 101.0, 99.0]),
        made_run([0.6, 1.2], [110.0, 100.9], ended=False),
        made_run([0.7, 1.4], [109.0, 100.8], ended=False),
    ]
    runs = {
        LLOYD: [lloyd],
        DENSE: [lloyd | {"all": 8.0, "ended": False}],
        NMBATCH: ours,
        OWN_START: [made_run([0.4, 3.0], [104.0, 98.0])],
        PUBLISHED: [made_run([1.0, 2.0], [120.0, 103.0], ended=False)],
        MINIBATCH: [made_run([0.1, 0.8, 1.6], [130.0, 112.0, 103.0], ended=False)],
    }
    rivals = {
        "scikit-learn": {"setup": 0.5, "pass": 1.0},
        "faiss": {"setup": 0.0, "pass": 2.0},
        "SuperKMeans, hierarchical": [
            {"passes": 0, "seconds": 0.2, "energy": 105.0},
            {"passes": 2, "seconds": 1.5, "energy": 102.0},
            {"passes": 5, "seconds": 9.0, "energy": 90.0},
        ],
    }
    about = {"case": "A-50", "n": 1000, "d": 7, "k": 50}
    return about | {"runs": runs, "rivals": rivals, "compared": [110.0, 101.5, 100.15]}


def test_seconds_to_an_energy(record):
    assert nmbatch_tables.seconds_to(record, NMBATCH, 102.0) == 1.2
    # Two of three are cut before: the first run counts alone.
    assert nmbatch_tables.seconds_to(record, NMBATCH, 99.5) == 2.0
    assert nmbatch_tables.seconds_to(record, NMBATCH, 98.0) is None
    # Two passes: set-up and all.
    assert nmbatch_tables.exact_seconds(record, 102.0) == 2.5
    assert nmbatch_tables.exact_seconds(record, 110.0) == 1.5
    assert nmbatch_tables.exact_seconds(record, 99.0) is None


def test_the_worst_ratio_is_looked_for_at_every_energy(record):
    assert nmbatch_tables.worst_ratio(record) == pytest.approx((0.7, 0.1))
    record["runs"][NMBATCH] = [made_run([0.5, 5.0], [111.0, 101.0])]
    assert nmbatch_tables.worst_ratio(record) is None
    record["compared"] = [110.0, 101.5]
    assert nmbatch_tables.worst_ratio(record) == pytest.approx((5.0, 0.1))


def test_energies_to_compare_at_stop_short_of_the_end():
    lloyd = {"energies": [120.0, 110.0, 105.0, 102.0, 101.0, 100.2, 100.05, 100.0]}
    assert nmbatch_tables.compared(lloyd, 3) == [120.0, 105.0, 100.2]
    assert nmbatch_tables.compared(lloyd, 50) == lloyd["energies"][:6]


def test_tables_of_a_result(record):
    result = {"cpu": "a machine", "records": [record]}
    short = nmbatch.table(result)
    assert "| A | 1,000 × 7 | 50 | 2.50 → 1.20 (2.1x) | 3.50 → 1.20 (2.9x) |" in short
    assert "-1.00 % | +3.00 % (cut) |" in short
    bounds = nmbatch.bounds_table(result)
    assert "| A | 50 | 4 | 4.5 | 8.0 * | 4.0 | 2.00x | 50 % | 0.70 at +10.0 % |" in bounds
    rivals = nmbatch.rivals_table(result)
    assert "+5.0 %: 0.20 → 1.20 / 0.40 | +2.0 %: 1.50 → 1.20 / 3.00" in rivals
    ahead = nmbatch.ahead_table(result).splitlines()
    assert "| A | 50 | SuperKMeans, hierarchical | +5.0 % 2.0x, -10.0 % (not reached) |" in ahead
    assert any(line.startswith("| A | 50 | scikit-learn MiniBatchKMeans | ") for line in ahead)


@pytest.fixture
def default():
    """The default is at 100 after 1 s; rivals are there sooner, later, and never below 101."""
    points = {
        "SuperKMeans, hierarchical": [("0", 0.01, 103.0), ("2", 1.0, 102.0), ("25", 3.0, 101.0)],
        "scikit-learn": [("2", 0.6, 102.0), ("8", 4.0, 101.0)],
    }
    rivals = {
        name: [{"label": n, "seconds": s, "energy": e} for n, s, e in several]
        for name, several in points.items()
    }
    run = made_run([0.5, 1.0], [102.0, 100.0])
    record = {"case": "A-50", "n": 1000, "d": 7, "k": 50, "runs": [run], "rivals": rivals}
    return {"cpu": "a machine", "records": [record]}


def test_the_default_beside_others(default):
    short = auto.short_table(default).splitlines()[2]
    assert short == "| A | 1,000 × 7 | 50 | – | 2.5x (2.0x) | 2.6x (1.2x) | – | – | +1.00 % |"
    whole = auto.table(default).splitlines()[2]
    assert "| 100 in 1.0 (1) | +1.00 % | – | 2: 2.0x, 25: 3.0x | 1.2x to 2.6x | – | – |" in whole


def test_every_point_short_of_the_aim_has_a_line(default):
    told = auto.behind_table(default)
    # Twice as soon is enough but at 25 refinements; what took less than 50 ms does not count.
    assert told.splitlines()[2:-1] == [
        "| A | 50 | SuperKMeans, hierarchical | 25 | 101 | 3.00 | 3.00x | 5x |",
        "| A | 50 | scikit-learn | 2 | 102 | 0.60 | 1.20x | 2x |",
        "",
    ]
    assert "2 of 4 points." in told
    # 2, 3, 1.2 and 4 times as soon: the fourth root of 28.8 is 2.32.
    assert "s or more (4 points) we are 2.3 times sooner in the geometric mean" in told
    assert "5 times or more at 0; at all points 2.3 times. Later at 0, of which 0 take" in told
    late = {"label": "1", "seconds": 0.1, "energy": 102.0}
    never = {"label": "9", "seconds": 9.0, "energy": 99.0}
    default["records"][0]["rivals"]["scikit-learn"] = [late, never]
    told = auto.in_sum(default)
    assert "we are 0.0 times sooner" in told, "one point was never reached"
    assert "Later at 2, of which 1 take" in told
    default["records"][0] |= {"case": "A-1000"}
    assert "| A | 50 | our prototype | | 75.23 | | not reached | |" in auto.behind_table(default)


def test_very_many_clusters_and_stored_rows_have_a_line_each():
    run = made_run([1.0, 200.0], [90.0, 60.0], before_mb=100.0, peak_mb=350.0)
    faiss = [{"passes": 2.0, "seconds": 8.0, "energy": 90.0}]
    hierarchical = [{"passes": 0.0, "seconds": 9.0, "energy": 50.0}]
    rivals = {"faiss": faiss, "SuperKMeans, hierarchical": hierarchical}
    stored = {"steps": [3, 8], "readings": [1.0, 4.0], "seconds": [5.0, 9.0]}
    found = {
        "cpu": "a machine",
        "threads": {"1": 3.0, "2": 2.0},
        "workers": {"1": 8.0, "2": 4.0, "rows": 1000.0},
        "storage": {
            "as it is": stored | {"energies": [70.0, 60.0]},
            "other": stored | {"energies": [80.0, 80.0]},
        },
        "large": [{"k": 9000, "run": run, "rivals": rivals}],
    }
    told = auto_scale.table(found).splitlines()
    assert "| threads, A, k = 1,000 | 3.0 | 2.0 | 1.50x | 1.85x |" in told
    assert "| workers, 1,000 × 32, k = 4,000 | 8.0 | 4.0 | 2.00x | 1.8x |" in told
    # ... and how much of it workers waited for the driver, where that is known
    found["workers"] |= {"driver 1": 0.254, "driver 2": 0.3}
    shares = "8.0, the driver 25 % | 4.0, the driver 30 % | 2.00x | 1.8x |"
    assert f"| workers, 1,000 × 32, k = 4,000 | {shares}" in auto_scale.table(found).splitlines()
    assert "| as it is | 4 | 8 | 9 | 4 | 8 | 9 | 60 | 9 | 2.0 |" in told
    assert "| other | never | | | never | | | 80 | 9 | 2.0 |" in told
    assert "| 9,000 | never | 60 | 200 | 250 | 500 |" in told
    assert "| 9,000 | faiss, 2 passes | 90 | 8 | 1 |" in told
    assert "| 9,000 | SuperKMeans, hierarchical, 0 refinements | 50 | 9 | never |" in told


def test_a_case_without_curves_of_rivals_is_not_in_their_table(record):
    del record["runs"][OWN_START]
    assert "SuperKMeans" not in nmbatch.rivals_table({"cpu": "", "records": [record]})


def test_clocks_of_cut_runs():
    reference = made_run([1.0, 2.0, 3.0, 4.0], [9.0, 8.0, 7.0, 6.0])
    clocks = [[1.0, 2.0], [2.0, 6.0, 9.0], [1.5, 4.0]]
    cut = nmbatch.twin(reference, clocks)
    assert cut["seconds"] == [1.5, 4.0]
    assert cut["energies"] == [9.0, 8.0]
    assert not cut["ended"]
    assert nmbatch.twin(reference, [[1.0, 2.0, 3.0, 4.0]])["ended"]
    assert nmbatch.pace([5.0, 6.0, 8.0, 10.0]) == 2.0
    assert nmbatch.pace([5.0]) == 5.0
    # Four steps, two of them timed: two more at the median pace of 1, 3 and 2.5 seconds.
    assert nmbatch.dense_of(reference, clocks)["all"] == 4.0 + 2 * 2.5


def test_new_records_take_the_place_of_old_ones(record):
    old = {"records": [record | {"case": case, "n": 1} for case in ("mnist-50", "A-100")]}
    both = nmbatch.merged(old, [record | {"case": "A-100", "n": 2}])
    assert [(r["case"], r["n"]) for r in both["records"]] == [("A-100", 2), ("mnist-50", 1)]


def test_pictures_are_drawn(record, tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks.pictures import draw_case, draw_distances

    draw_case(record, tmp_path / "case.png")
    draw_distances({"records": [record]}, tmp_path / "distances.png")
    assert (tmp_path / "case.png").stat().st_size > 10_000
    assert (tmp_path / "distances.png").stat().st_size > 5_000


def test_curves_on_a_common_grid():
    line = figures.on_grid(np.array([0.5, 1.0, 1.5, 9.0]), [1.0, 2.0], [7.0, 5.0])
    np.testing.assert_array_equal(line, [np.nan, 7.0, 7.0, 5.0])


def test_what_is_said_of_the_papers_claims():
    line = {"times": [0.1, 1.0, 3.0], "median": [9.0, 1.9, 0.5]}
    slow = {"times": [0.1, 1.0, 3.0], "median": [9.0, 5.0, 2.0]}
    never = {"times": [0.1, 1.0, 3.0], "median": [9.0, 5.0, 4.0]}
    assert figures.time_below(line, 2.0) == 1.0
    assert figures.time_below(never, 2.0) is None
    assert "3.0 times sooner" in figures.sooner({"x": line, "mbatch": slow}, "x")
    assert "more than 3 times" in figures.sooner({"x": line, "mbatch": never}, "x")
    assert "does not come" in figures.sooner({"x": never, "mbatch": slow}, "x")


def busy_of(done, seconds):
    pieces = cores.Pieces(cores.Stages(lambda: 0.0))
    pieces.driver, pieces.done = 7, done
    shares = pieces.busy(seconds)
    return [
        [round(float(a), 1) for a in np.flatnonzero(np.diff(own)) * cores.TICK] for own in shares
    ]


def test_who_waits_while_others_are_at_work():
    # the driver takes part until 2 and waits until 3; then it goes on by itself
    assert busy_of([(7, 1.0, 2.0), (5, 1.2, 3.0)], 4.0) == [[2.0, 3.0], [1.2, 3.0]]
    # of two who compute a pass one stands for the driver
    assert busy_of([(5, 1.0, 2.0), (6, 1.0, 3.0)], 4.0) == [[2.0, 3.0], [1.0, 3.0]]
    assert busy_of([], 4.0) == [[], []]


def test_a_timeline_is_of_both_threads_and_all_stages(blobs, tmp_path):
    x = np.tile(blobs, (4, 1)) + np.float32(1e-3) * np.arange(len(blobs) * 4)[:, None] % 1
    x = np.ascontiguousarray(x, np.float32)
    run = cores.clocked(x, 140, 2)
    stages = cores.of_stages(run)
    assert sum(whole for whole, _ in stages.values()) == pytest.approx(run["seconds"], abs=1e-3)
    assert all(0 <= alone <= whole for whole, alone in stages.values())
    assert stages["rows searched"][0] > 0
    assert 0 < run["busy"][1].mean() < run["busy"][0].mean() <= 1
    steps = cores.steps_near(x, 140, 1)
    seconds = cores.timed(x, 140, 1)
    assert sorted(seconds) == seconds
    assert 0 <= steps[0] <= steps[1] < len(seconds) - 1
    bars = cores.bars_of(run)
    for own, busy in zip(bars, run["busy"], strict=True):
        assert sum(end - begin for _, begin, end in own) == pytest.approx(busy.sum() * cores.TICK)
    times = {"1": [2.0, 3.0, 4.0], "2": [1.0, 2.0, 3.2]}
    record = {
        "set": "blobs", "n": len(x), "d": 5, "k": 140, "seconds": times, "steps": steps,
        "cpu_seconds": {"1": 4.0, "2": 4.4}, "busy": [0.9, 0.5],
        "stages": {"1": stages, "2": stages}, "bars": bars,
    }  # fmt: skip
    result = {"cpu": "a processor", "records": [record]}
    first = cores.table(result).splitlines()[2]
    assert "2.00 → 1.00 s, 2.00x | 3.00 → 2.00 s, 1.50x | 4.00 → 3.20 s, 1.25x" in first
    cores.draw(result, tmp_path / "cores.png")
    assert (tmp_path / "cores.png").stat().st_size > 5_000


def test_workers_are_compared_at_the_same_step():
    record = {
        "case": "B-1000",
        "k": 1000,
        "energies": [130.0, 101.0, 100.5, 100.0],
        "seconds": {"1": [1.0, 2.0, 4.0, 9.0], "2": [1.0, 1.0, 2.0, 5.0]},
    }
    told = workers.table({"cpu": "a machine", "records": [record]})
    assert "| B | 1000 | 2.00 | 1.00 | 2.00x | 9.00 | 5.00 | 1.80x |" in told
