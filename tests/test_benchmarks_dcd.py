"""What the benchmark of partitions up to k computes; no test here depends on speed."""

from __future__ import annotations

import itertools
import json
from fractions import Fraction

import dask
import numpy as np
import pytest

import largek_dask as lk
from benchmarks import common, dcd, dcd_methods, dcd_runs, dcd_scale, dcd_tables
from benchmarks.dcd_known import COUNTS, LOWEST, PAPER, SETS, TABLED
from benchmarks.dcd_methods import (
    AUTO,
    BALANCED,
    BEST,
    EVERY,
    FAST,
    METHODS,
    PLAIN,
    TEN,
    TEN_GREEDY,
    Found,
)
from benchmarks.dcd_methods import PAPER as PUBLISHED
from benchmarks.dcd_runs import DRAWN, Task

# --- what is known --------------------------------------------------------------------------------


def test_what_is_known_is_whole_and_falls():
    assert tuple(LOWEST) == SETS == tuple(PAPER)
    for name in SETS:
        values = list(LOWEST[name].values())
        assert tuple(LOWEST[name]) == (*COUNTS, 100)
        assert all(a > b for a, b in itertools.pairwise(values))
        assert tuple(PAPER[name]) == TABLED
        for k, printed in PAPER[name].items():
            # nothing printed is lower than what is known but by its own rounding
            assert LOWEST[name][k] < printed.best * (1 + 1e-5)
            assert printed.best < printed.bound < printed.best * (1.0002 + printed.bundle / 100)
    assert LOWEST["eeg"][2] == 784509934000.0
    assert LOWEST["shuttle"][100] == 10546639.4
    assert PAPER["eeg"][15] == pytest.approx((34653000.0, 0.28, 0.26, 34752262.5))


# --- sets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", DRAWN)
def test_sets_are_drawn_from_their_generator_alone(kind):
    x, again, other = (dcd_runs.drawn(kind, np.random.default_rng(s)) for s in (1, 1, 2))
    np.testing.assert_array_equal(x, again)
    assert x.shape != other.shape
    n, d = x.shape
    assert 10_000 <= n <= 50_000
    assert 2 <= d <= 20
    assert x.dtype == (np.int16 if kind == "grid" else np.float32)
    assert np.isfinite(x).all()
    distinct = len(np.unique(x, axis=0))
    assert distinct > max(COUNTS)
    assert (distinct < 2_000) == (kind == "duplicates")
    squares = np.sort((x.astype(float) ** 2).sum(axis=1))
    assert (squares[-1] > 100 * squares[-2]) == (kind == "far")


def test_the_commit_decides_what_is_drawn(monkeypatch):
    here = common.commit()
    assert len(here) == 40
    first = dcd_runs.rows_of("blobs")
    np.testing.assert_array_equal(first, dcd_runs.rows_of("blobs"))
    other = f"{int(here[:16], 16) ^ 1:016x}{here[16:]}"
    monkeypatch.setattr(common, "commit", lambda: other)
    assert not np.array_equal(first[:10, :2], dcd_runs.rows_of("blobs")[:10, :2])


# --- objectives -----------------------------------------------------------------------------------


def test_an_objective_is_the_sum_over_all_blocks(monkeypatch):
    r = np.random.default_rng(0)
    x = r.integers(-1000, 1000, (300, 3)).astype(np.int16)
    centers = r.integers(-1000, 1000, (7, 3)) / 7
    exact = sum(
        min(
            sum((Fraction(int(a)) - Fraction(float(b))) ** 2 for a, b in zip(row, c, strict=True))
            for c in centers
        )
        for row in x
    )
    monkeypatch.setattr(dcd_runs, "BLOCK", 7 * 3 * 40)
    assert 300 % 40
    assert dcd_runs.objective(x, centers) == pytest.approx(float(exact), rel=1e-14)


def test_small_integers_do_not_overflow():
    x = np.array([[30_000], [-30_000]], np.int16)
    assert dcd_runs.objective(x, np.array([[-30_000]], np.int16)) == 60_000.0**2


# --- methods --------------------------------------------------------------------------------------


def blobs(n=600, k=6, d=3, seed=0):
    r = np.random.default_rng(seed)
    centers = 6 * r.normal(size=(k, d))
    return (centers[r.integers(k, size=n)] + r.normal(size=(n, d))).astype(np.float32)


@pytest.mark.parametrize("name", [TEN, TEN_GREEDY, AUTO, EVERY])
def test_partitions_come_to_what_is_told(name):
    x = blobs()
    found = METHODS[name](x, (2, 6), 3)
    assert found.seconds > 0
    for k in (2, 6):
        assert found.centers[k].shape == (k, 3)
        assert found.told[k] == pytest.approx(dcd_runs.objective(x, found.centers[k]), rel=1e-6)
    again = METHODS[name](x, (2, 6), 3)
    np.testing.assert_array_equal(found.centers[6], again.centers[6])
    run = dcd_runs.told(x, found)
    assert run["values"] == [dcd_runs.objective(x, c) for c in found.centers.values()]
    assert run["apart"] < 1e-6


def test_plain_starts_have_one_candidate_for_each_centre(monkeypatch):
    import sklearn.cluster

    seen = []
    whole = sklearn.cluster.kmeans_plusplus

    def watched(x, k, **options):
        seen.append(options["n_local_trials"])
        return whole(x, k, **options)

    monkeypatch.setattr(sklearn.cluster, "kmeans_plusplus", watched)
    METHODS[TEN](blobs(), (4,), 0)
    assert seen == [1] * dcd_methods.STARTS


class FakePath:
    """Partitions of rows of one feature: the same centres, one more each."""

    inertia = np.array([9.0, 4.0, 2.0])
    lower_bound = np.array([9.0, 3.0, 0.0])

    def centers(self, n_clusters):
        return np.arange(n_clusters, dtype=float)[:, None]


class FakeKMeans:
    def __init__(self, n_clusters, *, algorithm, random_state, n_threads):
        assert (n_clusters, algorithm, random_state, n_threads) == (3, "made", 7, 1)

    def fit(self, x):
        self.path_ = FakePath()
        self.history_ = (
            {"seconds": 1.0, "extra": {"stage": 0.0, "evaluations": 5.0}},
            {"seconds": 1.5, "extra": {"stage": 1.0, "evaluations": 8.0, "subgradients": 3.0}},
            {"seconds": 3.5, "extra": {"stage": 0.0, "evaluations": 9.0, "subgradients": None}},
            {"seconds": 4.0, "extra": {"evaluations": 11.0, "subgradients": 4.0}},
        )
        return self


def test_a_path_is_read_off_one_fit(monkeypatch):
    monkeypatch.setattr(lk, "KMeans", FakeKMeans)
    found = dcd_methods.path_method(lambda: "made")(np.zeros((4, 1)), (2, 3), 7)
    assert {k: len(c) for k, c in found.centers.items()} == {2: 2, 3: 3}
    assert found.told == {2: 4.0, 3: 2.0}
    assert found.about == {
        "bounds": [3.0, 0.0],
        "evaluations": 11.0,
        "subgradients": 4.0,
        "stages": {"up": {"steps": 2, "seconds": 3.0}, "down": {"steps": 1, "seconds": 0.5}},
    }
    assert dcd_methods.last_told(()) == {}


def test_all_methods_of_a_task_run_in_turns_and_those_without_chance_once(monkeypatch):
    calls = []

    def fake(name):
        def find(x, counts, seed):
            if len(x) == 5000:
                calls.append((name, seed))
            centers = {k: x[:k].astype(float) for k in counts}
            told = {k: dcd_runs.objective(x, c) for k, c in centers.items()}
            return Found(centers, told, 0.5)

        return find

    monkeypatch.setattr(dcd_runs, "METHODS", {name: fake(name) for name in (FAST, PUBLISHED, TEN)})
    task = Task("grid", (FAST, PUBLISHED, TEN), (2, 4), 2, 5000)
    found = dcd_runs.compare(Task(**json.loads(json.dumps(dcd_runs.given(task)[0]))))
    assert calls[3:] == [(TEN, 1), (FAST, 1)]
    assert [name for name, seed in calls[:3]] == [FAST, PUBLISHED, TEN]
    assert found["n"] == 5000
    assert {name: len(m["seeds"]) for name, m in found["methods"].items()} == {
        FAST: 2, PUBLISHED: 1, TEN: 2,
    }  # fmt: skip
    assert len({m["measured"] for m in found["methods"].values()}) == 1
    assert found["methods"][TEN]["counts"] == [2, 4]


def test_others_are_what_the_machine_does_beside_this_process(monkeypatch):
    clock = iter([(10.0, 4.0), (12.0, 7.0)])
    monkeypatch.setattr(dcd_runs.Others, "_now", staticmethod(lambda: next(clock)))
    assert dcd_runs.Others().cores() == 1.5


# --- a store --------------------------------------------------------------------------------------


def test_readings_of_a_store_are_counted_step_by_step(tmp_path):
    lk.ingest(blobs(9000), str(tmp_path / "x.zarr"), progress=False)
    rows = lk.open_rows(str(tmp_path / "x.zarr"))
    with dask.config.set({"largek.passes.cache-bytes": 0}):
        arrays, steps = dcd_scale.followed(lk.Lloyd(), rows, 6)
    assert arrays.centers.shape == (6, 3)
    assert len(steps) > 2
    # the start draws rows, and the first step has what it took
    assert [round(step["readings"]) for step in steps[1:]] == [1] * (len(steps) - 1)
    assert steps[0]["readings"] >= 1
    assert all(step["readings"] >= dcd_scale.NEAR for step in steps)
    with dask.config.set({"largek.passes.cache-bytes": rows.nbytes}):
        _, steps = dcd_scale.followed(lk.Lloyd(), rows, 6)
    assert sum(step["readings"] for step in steps) < 3


def test_lloyd_on_a_store_comes_to_its_objective(tmp_path):
    x = blobs(5000)
    lk.ingest(x, str(tmp_path / "x.zarr"), progress=False)
    found = dcd_scale.by_lloyd(str(tmp_path / "x.zarr"), 6, 0)
    km = lk.KMeans(6, algorithm="lloyd", init="greedy-k-means++", random_state=0).fit(x)
    assert found["value"] == pytest.approx(km.inertia_, rel=1e-6)
    assert found["steps"] == km.n_iter_
    # the kernel counts both in steps of some pages
    assert dcd_scale.memory("VmHWM") > 0.99 * dcd_scale.memory("VmRSS") > 0


# --- tables ---------------------------------------------------------------------------------------


def made_method(name, excesses, seconds=1.0, measured="now", counts=COUNTS, **about):
    """Runs that end so many per cent above what is known, one a seed."""
    runs = [
        {
            "seconds": seconds * (1 + i),
            "values": [LOWEST[name][k] * (1 + e / 100) for k in counts],
            "apart": 1e-13,
            **about,
        }
        for i, e in enumerate(excesses)
    ]
    return {"measured": measured, "others": 0.0, "counts": list(counts), "seeds": runs}


def made_record(name, methods, **about):
    return {
        "n": 1000, "d": 2, "commit": "abc", "methods": methods, "cpu": "a machine",
    } | about  # fmt: skip


def curves(**changed):
    own = {"bounds": [1.0] * len(COUNTS), "evaluations": 50.0, "subgradients": 20.0}
    own["stages"] = {"up": {"steps": 30, "seconds": 0.25}}
    methods = {
        TEN: made_method("eeg", [1.0, 3.0, 2.0], 2.0),
        TEN_GREEDY: made_method("eeg", [0.5, 0.5, 0.5], 4.0),
        FAST: made_method("eeg", [0.8, 0.8, 0.8], 0.5, **own),
        BALANCED: made_method("eeg", [0.1, 0.2, 0.1], 1.0, **own),
        BEST: made_method("eeg", [0.0, 0.0, 0.04], 9.0, **own),
    }
    return {"sets": {"eeg": made_record("eeg", methods | changed)}}


def line_of(table, start):
    [line] = [line for line in table.splitlines() if line.startswith(start)]
    return line


def test_the_summary_has_aims_and_misses_in_bold():
    told = dcd_tables.summary_table(curves())
    assert line_of(told, "| eeg | ten k-means++ starts") == (
        "| eeg | ten k-means++ starts | 4.00 (6.00) |  | 2.000 (3.000) |  | 24 | 0 of 24 |  |  |"
    )
    assert line_of(told, "|  | balanced") == (
        "|  | balanced | 2.00 (3.00) | 0.50x | 0.100 (0.200) | 0 | 0 | 0 of 24 | 50 | 20 |"
    )
    assert "| fast | 1.00 (1.50) | 0.25x | 0.800 | 0 | 24 |" in told
    assert "| best | 18.00 (27.00) | 4.50x | 0.000 (0.040) | 0 | 0 | 24 of 24 |" in told
    assert "Medians of 3 seeds, the worst in brackets. a machine." in told
    assert "Not measured in turns" not in told
    slow = made_method("eeg", [0.6, 0.6, 0.1], 4.0)
    high = made_method("eeg", [0.0, 0.0, 0.06], 40.0)
    told = dcd_tables.summary_table(curves(**{BALANCED: slow, BEST: high}))
    assert "| balanced | 8.00 (12.00) | **2.00x** | **0.600** | 0 | **24** |" in told
    assert "| best | **80.00 (120.00)** | 20.00x | **0.000 (0.060)** |" in told


def test_one_and_a_half_times_the_seconds_are_allowed_on_one_set_only():
    slow = made_method("eeg", [0.1, 0.1, 0.1], 2.8)
    told = dcd_tables.summary_table(curves(**{BALANCED: slow}))
    assert "| 1.40x |" in told
    part = curves(**{BALANCED: slow})
    for method in part["sets"]["eeg"]["methods"].values():
        for run in method["seeds"]:
            ratio = [LOWEST["d15112"][k] / LOWEST["eeg"][k] for k in COUNTS]
            run["values"] = [v * r for v, r in zip(run["values"], ratio, strict=True)]
    told = dcd_tables.summary_table({"sets": {"d15112": part["sets"]["eeg"]}})
    assert "| **1.40x** |" in told


def test_above_counts_medians_and_no_difference_of_rounding():
    record = curves()["sets"]["eeg"]
    runs = record["methods"][BALANCED]["seeds"]
    theirs = record["methods"][TEN]["seeds"]
    for own, other in zip(runs, theirs, strict=True):
        own["values"] = [v * (1 + 1e-10) for v in other["values"]]
    assert dcd_tables.above(record, BALANCED, TEN) == 0
    for own in runs:
        own["values"][5] *= 1 + 1e-8
    assert dcd_tables.above(record, BALANCED, TEN) == 1
    assert dcd_tables.above(record, TEN, BALANCED) == 0


def test_worst_errors_are_of_the_tabled_numbers():
    record = curves()["sets"]["eeg"]
    for run in record["methods"][BALANCED]["seeds"]:
        run["values"][COUNTS.index(4)] *= 2
        run["values"][COUNTS.index(15)] *= 1.5
    np.testing.assert_allclose(
        dcd_tables.worst_errors("eeg", record, BALANCED), [50.15, 50.3, 50.15], rtol=1e-12
    )


def test_methods_that_were_measured_apart_are_told_of():
    part = curves()
    for name in (TEN, TEN_GREEDY):
        part["sets"]["eeg"]["methods"][name] |= {"measured": "before", "others": 1.25}
    told = dcd_tables.tabled_table(part)
    assert (
        "Not measured in turns, but one after the other: eeg: ten k-means++ starts, ten greedy "
        "k-means++ starts | fast, balanced, best."
    ) in told
    assert "Cores that other processes took: 1.2 on eeg." in told


def test_errors_at_every_number_of_clusters():
    told = dcd_tables.each_table(curves()).splitlines()
    assert told[0] == "| k | eeg: ten | eeg: ten greedy | eeg: fast | eeg: balanced | eeg: best |"
    assert told[2] == "| 2 | 2.000 | 0.500 | 0.800 | 0.100 | 0.000 |"
    assert len([line for line in told if line.startswith("|")]) == 2 + 24
    told = dcd_tables.tabled_table(curves())
    assert "| eeg | ten k-means++ starts | 2.000 (3.000) | 2.000 (3.000) |" in told


def test_lower_values_are_told_to_nine_digits():
    part = curves()
    assert "Lower than what was known: 0 objectives" in dcd_tables.lower_table(part)
    run = part["sets"]["eeg"]["methods"][BEST]["seeds"][1]
    # the eleventh digit is no news, the ninth is
    run["values"][COUNTS.index(10)] = LOWEST["eeg"][10] * (1 - 1e-11)
    run["values"][COUNTS.index(25)] = LOWEST["eeg"][25] - 1.0
    told = dcd_tables.lower_table(part)
    assert "| eeg | 25 | 2.59481809e+07 | 2.59481819e+07 | -3.9e-06 | best |" in told
    assert "Lower than what was known: 1 objectives" in told


def test_stages_have_a_line_an_effort():
    told = dcd_tables.stages_table(curves())
    assert "| eeg | fast | 1.00 | 0.800 | 0.800 | 0.800 | 30, 0.25 |  |  |  |" in told
    only = {"sets": {"eeg": made_record("eeg", {TEN: made_method("eeg", [1.0])})}}
    assert dcd_tables.stages_table(only).startswith("No effort was measured yet. One seed.")


def test_a_short_table_for_newcomers():
    told = dcd_tables.short_table(curves()).splitlines()
    assert told[0] == "|  | eeg |"
    assert "| scikit-learn, ten k-means++ starts | 4.0 s, 2.000 % |" in told
    assert "| `DCDBundle`, best | 18.0 s, 0.000 % |" in told


def test_the_paper_is_compared_with_its_own_values():
    counts = dcd.of_paper("shuttle")
    assert counts[-1] == 10
    found = made_method("shuttle", [0.0], 3.0, counts=counts, evaluations=1234.0)
    printed = PAPER["shuttle"]
    values = found["seeds"][0]["values"]
    values[counts.index(10)] = printed[10].best * 1.002
    values[counts.index(5)] = printed[5].best * 1.0003
    plain = made_method("shuttle", [1.0], 3.0, counts=counts)
    record = made_record("shuttle", {PUBLISHED: found, PLAIN: plain})
    told = dcd_tables.paper_table({"sets": {"shuttle": record}})
    line = line_of(told, f"| shuttle | {PUBLISHED}")
    assert "| **0.03** (0.00) | 0.20 (0.20) |  |  |  | 1,234 |  | 3.0 |" in line
    assert "| 1.00 (0.24) |" in line_of(told, f"|  | {PLAIN}")
    assert "Of 4 points of DCD-Bundle as published above at shuttle k = 5." in told
    assert dcd.of_paper("d15112")[-1] == 25


def test_a_hundred_clusters():
    methods = {
        TEN_GREEDY: made_method("eeg", [2.0, 2.0], counts=(100,)),
        BEST: made_method("eeg", [0.4, 0.4], 100.0, counts=(100,)),
    }
    told = dcd_tables.hundred_table({"sets": {"eeg": made_record("eeg", methods)}})
    assert "|  | best | **0.400** | **150.0 (200.0)** |  |" in told
    methods[BEST] = made_method("eeg", [-0.1, 0.1], 10.0, counts=(100,))
    told = dcd_tables.hundred_table({"sets": {"eeg": made_record("eeg", methods)}})
    assert "|  | best | 0.000 (0.100) | 15.0 (20.0) | 1.40255924e+07 |" in told


def test_the_default_is_to_end_nowhere_far_above():
    counts = (10, 15, 20, 25)
    methods = {
        AUTO: made_method("eeg", [0.1, 6.0, 0.2], counts=counts),
        EVERY: made_method("eeg", [0.1, 6.0, 0.2], counts=counts),
    }
    told = dcd_tables.auto_table({"sets": {"eeg": made_record("eeg", methods)}})
    assert "| eeg | `KMeans(k)` | **0.200 (6.000)** |" in told
    assert '|  | `KMeans(k, effort="best")` | 0.200 (6.000) |' in told


def test_points_of_generated_sets_are_counted():
    methods = {
        TEN_GREEDY: made_method("eeg", [1.0], 2.0),
        BALANCED: made_method("eeg", [0.5], 1.0),
    }
    methods[BALANCED]["seeds"][0]["values"][:6] = [
        v * 1.02 for v in methods[TEN_GREEDY]["seeds"][0]["values"][:6]
    ]
    told = dcd_tables.generated_table({"sets": {"tails": made_record("eeg", methods)}})
    assert "| tails | 1,000 × 2 | 18 of 24 | 2.000 | -0.495 | 1.0 | 2.0 |" in told
    assert "at or below at 18 of 24 points, **75 %** (to reach: 90 %)" in told
    assert "drawn by commit abc" in told


def test_a_store_and_workers_have_tables():
    path = {
        "n": 10, "d": 2, "seconds": 20.0, "steps": 9, "readings": 26.0, "of_readings": [1.0, 2.5],
        "memory": 300.0, "chunk": 50.0, "partitions": 100, "told": 1.0, "value": 1.002,
    }  # fmt: skip
    record = {"k": 100, "path": path, "lloyd": [{"seconds": 5.0, "value": 1.0}], "cpu": "a machine"}
    told = dcd_tables.stored_table({"sets": {"B": record | {"others": 1.0}}})
    assert "Cores that other processes took: 1.0 on B." in told
    assert "Lloyd's algorithm, % | **0.200** | ≤ 0.1 |" in told
    assert "| readings of the store | **26.0** | ≤ 25 |" in told
    assert "| memory beside a chunk, MB | 250 | ≤ 500 |" in told
    assert "| longest step that reads all rows, CPU s | 2.50 | ≤ 3 |" in told

    def runs(seconds, passes):
        return [{"seconds": seconds, "of_readings": [passes, passes], "digest": "same"}]

    record = {
        "n": 10, "d": 2, "k": 25, "cpu": "a machine", "runs": {"1": runs(10, 4), "2": runs(8, 2)},
    }  # fmt: skip
    told = dcd_tables.workers_table({"sets": {"10M": record}})
    assert "| a whole fit, with labels | 10.0 | 8.0 | **1.25x** | ≥ 1.6x |" in told
    assert "| its steps that go through all rows | 8.0 | 4.0 | 2.00x |  |" in told


def test_a_part_that_was_not_measured_says_so():
    told = dcd_tables.of_workers({"curves": {}})
    assert told == "Not measured: `python -m benchmarks.dcd --only workers --write` does."


def test_pictures_are_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks.dcd_pictures import PICTURES

    assert set(PICTURES) == {"curves"}
    PICTURES["curves"](curves(), tmp_path)
    peers = curves()["sets"]["eeg"]["methods"]
    PICTURES["curves"]({"sets": {"eeg": made_record("eeg", {TEN: peers[TEN]})}}, tmp_path)
    assert {path.name for path in tmp_path.glob("*.png")} == {"dcd-elbows.png", "dcd-excess.png"}


# --- parts ----------------------------------------------------------------------------------------


def test_methods_that_are_measured_again_replace_their_own_only(tmp_path, monkeypatch):
    monkeypatch.setattr(dcd, "RESULTS", tmp_path)
    monkeypatch.setattr("benchmarks.common.RESULTS", tmp_path)
    monkeypatch.setattr(dcd, "PICTURES", {})
    monkeypatch.setattr(dcd, "write_tables", lambda name, whole: None)
    first = {BEST: made_method("eeg", [1.0], measured="1"), TEN: made_method("eeg", [1.0])}
    dcd.keep("curves", "eeg", made_record("eeg", first))
    dcd.keep("auto", "eeg", made_record("eeg", {AUTO: made_method("eeg", [1.0])}))
    again = {BEST: made_method("eeg", [0.5], measured="2"), FAST: made_method("eeg", [0.5])}
    dcd.keep("curves", "eeg", made_record("eeg", again))
    dcd.keep("curves", "d15112", made_record("d15112", {TEN: made_method("d15112", [1.0])}))
    whole = json.loads((tmp_path / "dcd.json").read_text())
    assert list(whole) == ["curves", "auto"]
    assert list(whole["curves"]["sets"]) == ["d15112", "eeg"]
    methods = whole["curves"]["sets"]["eeg"]["methods"]
    assert list(methods) == [TEN, FAST, BEST]
    assert methods[BEST]["measured"] == "2"


def test_other_rows_are_not_put_beside_those_of_another_commit():
    old = made_record("eeg", {TEN_GREEDY: made_method("eeg", [1.0])})
    new = made_record("eeg", {BALANCED: made_method("eeg", [1.0])})
    assert list(dcd.joined("generated", old, new)["methods"]) == [TEN_GREEDY, BALANCED]
    new["commit"] = "def"
    assert list(dcd.joined("generated", old, new)["methods"]) == [BALANCED]
    assert dcd.joined("stored", {"path": 1}, {"path": 2}) == {"path": 2}
    assert dcd.joined("curves", None, new) is new


def test_digits_that_are_kept_are_enough_to_compare_nine():
    kept = dcd.shortened({"a": [368403052000.123456, 3], "b": "text", "c": {"d": 0.1 + 0.2}})
    assert kept == {"a": [368403052000.0, 3], "b": "text", "c": {"d": 0.3}}


def test_parts_name_sets_and_methods_that_there_are():
    for name, part in dcd.PARTS.items():
        assert set(part.methods) <= set(METHODS)
        assert bool(part.methods) == (part.measure is None)
        assert name in dcd_tables.SHOWN
        if part.measure is None:
            assert set(part.sets) <= {*SETS, *DRAWN}
    assert set(dcd_tables.SHOWN) == set(dcd.PARTS)
    assert {m for part in dcd.PARTS.values() for m in part.methods} == set(METHODS)
    assert set(dcd_methods.DETERMINISTIC) == {PUBLISHED, PLAIN}
