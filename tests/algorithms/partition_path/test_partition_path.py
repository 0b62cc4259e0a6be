"""Every partition up to k: what is promised of them, whichever way they have been found."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

import largek_dask as lk
from largek_dask.algorithms.base import Rng
from largek_dask.algorithms.partition_path import algorithm as partition_path
from largek_dask.algorithms.partition_path.operators import Operators
from largek_dask.algorithms.partition_path.stages import PLANS, PathSearch, pieces
from largek_dask.errors import DegenerateDataWarning, ParameterError
from largek_dask.kernels.descent import CenteredRows
from tests.algorithms.conftest import bits, blobs
from tests.algorithms.partition_path.rules import check_path, optimum
from tests.helpers.covering import in_turns, slow

EFFORTS = ("fast", "balanced", "best")


def grid(n: int, d: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 4, size=(n, d)).astype(np.float64)


def small_sets(count: int) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Up to 10 rows: of small whole numbers, random ones, with and without weights."""
    out: list[tuple[np.ndarray, np.ndarray | None]] = []
    for seed in range(count):
        r = np.random.default_rng([seed, 17])
        n, d = int(r.integers(4, 9)), int(r.integers(2, 4))
        x = r.integers(0, 5, size=(n, d)).astype(float) if seed % 2 else r.normal(size=(n, d))
        weight = r.integers(1, 6, n).astype(float) if seed % 3 == 0 else None
        out.append((x, weight))
    return out


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables of more than 1,000 rows are large: 400 of their rows are searched."""
    monkeypatch.setattr(partition_path, "MOST_ROWS", 1_000)
    monkeypatch.setattr(partition_path, "LEAST_ROWS", 400)
    monkeypatch.setattr(partition_path, "ROWS_A_CLUSTER", 1)


def fit(x: Any, k: int, effort: str = "balanced", *, weight: Any = None, **options: Any) -> Any:
    options = {"random_state": 0} | options
    algorithm = lk.PartitionPath(effort=effort)  # type: ignore[arg-type]
    return lk.KMeans(k, algorithm=algorithm, **options).fit(x, sample_weight=weight)


# --- what holds of every path ---------------------------------------------------------------------


TABLES = {
    "groups": blobs(700, 6, 6, spread=2.0),
    "grid": grid(300, 2, 3),
    "repeated": np.repeat(np.random.default_rng(1).normal(size=(30, 3)), 20, 0),
    "tails": np.random.default_rng(2).standard_t(1.5, size=(500, 3)),
}


@pytest.mark.parametrize(("kind", "effort"), in_turns([*TABLES], [*EFFORTS]))
def test_rules(kind: str, effort: str) -> None:
    x = TABLES[kind]
    km = fit(x, 12, effort)
    assert len(km.path_) == 12
    check_path(km, x)


LARGE = {
    "groups": blobs(3_000, 6, 6, spread=2.0),
    "grid": grid(3_000, 3, 3),
    "tails": np.random.default_rng(2).standard_t(1.5, size=(3_000, 3)),
}


@pytest.mark.usefixtures("sampled")
@pytest.mark.parametrize(
    ("kind", "weighted", "effort"), in_turns([*LARGE], [False, True, True], ["fast", "balanced"])
)
def test_rules_of_large_tables(kind: str, weighted: bool, effort: str) -> None:
    x = LARGE[kind]
    weight = np.random.default_rng(5).integers(0, 4, len(x)).astype(float) if weighted else None
    km = fit(x, 8, effort, weight=weight)
    assert km.history_[-1]["extra"]["path_passes"] > 0
    assert len(km.path_) == 8
    check_path(km, x, weight)


@pytest.mark.usefixtures("sampled")
def test_a_sample_holds_a_group_that_few_rows_belong_to() -> None:
    """Of 20,000 rows, 12 lie together, not far from the mean: draws of 400 lack them."""
    r = np.random.default_rng(3)
    x = np.concatenate([r.normal(size=(10_000, 2)) + at for at in ([-60, 0], [60, 0])])
    x[:12] = [0, 40] + r.normal(size=(12, 2)) / 10
    km = fit(x, 3, "fast")
    assert len(set(km.labels_[:12].tolist())) == 1
    assert not (km.labels_[12:] == km.labels_[0]).any()


# --- optima ---------------------------------------------------------------------------------------


def test_optima_of_few_rows_are_reached_by_best_and_never_undercut() -> None:
    """Of 1 to 3 clusters; bounds are below the optimum, every effort above it."""
    missed = dict.fromkeys(EFFORTS, 0)
    for (x, weight), effort in itertools.product(small_sets(35), EFFORTS):
        k = min(3, len(np.unique(x, axis=0)))
        path = fit(x, k, effort, weight=weight, n_threads=1).path_
        for size in range(1, k + 1):
            best = optimum(x, weight, size)
            slack = 1e-12 * optimum(x, weight, 1)
            assert path.inertia[size - 1] >= best - slack
            assert path.lower_bound[size - 1] <= best + slack
            missed[effort] += path.inertia[size - 1] > best * (1 + 1e-9) + slack
    assert missed["best"] == 0
    assert missed["fast"] > 0, "else these tables are too easy to say anything"


@pytest.mark.slow
def test_more_effort_is_never_worse_and_sometimes_better() -> None:
    # Fits of the same partitions up to rounding: those of single precision are not looked at.
    x = blobs(600, 6, 25, seed=3, spread=1.0).astype(np.float64)
    fast, balanced, best = (fit(x, 20, effort).path_.inertia for effort in EFFORTS)
    assert (balanced <= fast * (1 + 1e-12)).all()
    assert (best <= balanced * (1 + 1e-12)).all()
    assert (balanced < fast * (1 - 1e-6)).any()
    assert (best < balanced * (1 - 1e-6)).any()


@pytest.mark.parametrize("effort", EFFORTS)
def test_stages_only_lower_partitions(effort: str) -> None:
    x = blobs(400, 6, 15, seed=8, spread=1.0).astype(np.float64)
    plan, operators = PLANS[effort], Operators(CenteredRows.of(x - x.mean(axis=0)))  # type: ignore[index]
    search, rng, stages = PathSearch.begin(plan, operators), Rng(3, 0), set()
    for step, piece in enumerate(pieces(plan, 12, 10, 400)):
        before = search.costs.copy()
        search.run(piece, rng, step)
        assert all(b <= a for a, b in zip(before, search.costs, strict=False))
        assert len(search.costs) >= len(before)
        again = PathSearch.of(plan, operators, search.kept())
        assert (again.costs, again.changes, again.grown, again.shrunk) == (
            search.costs, search.changes, search.grown, search.shrunk,
        )  # fmt: skip
        for size, (centers, cost) in enumerate(
            zip(search.partitions, search.costs, strict=True), 1
        ):
            squares = ((x - x.mean(axis=0))[:, None] - centers) ** 2
            assert len(centers) == size
            assert squares.sum(axis=2).min(axis=1).sum() == pytest.approx(cost, rel=1e-12)
            np.testing.assert_array_equal(centers, again.partitions[size - 1])
        stages.add(piece.stage)
    expected = {"up"} if effort == "fast" else {"up", "down", "again up", "again down", "crossed"}
    assert stages == expected | ({"swaps"} if effort == "best" else set())
    assert len(search.costs) == 12


# --- cut short ------------------------------------------------------------------------------------

X = blobs(900, 6, 12, seed=4, spread=2.0)


def cut(x: Any, k: int, **options: Any) -> Any:
    with pytest.warns(
        DegenerateDataWarning, match="the fit was stopped: partitions end at"
    ) as told:
        km = fit(x, k, **options)
    length = len(km.path_)
    assert f"partitions end at {length} clusters, of {k} that were asked for" in str(
        told[0].message
    )
    assert length < k
    assert km.cluster_centers_.shape == (length, x.shape[1])
    assert km.path_.inertia[-1] == km.inertia_
    assert (np.diff(km.path_.inertia) <= 0).all()
    assert (km.path_.lower_bound <= km.path_.inertia).all()
    np.testing.assert_array_equal(km.predict(x), km.labels_)
    assert np.bincount(km.labels_, minlength=length).all()
    return km


@pytest.mark.parametrize("steps", [3, 7])
def test_max_iter(steps: int) -> None:
    km = cut(X, 40, max_iter=steps)
    assert (km.n_iter_, km.stop_reason_) == (steps, "max_iter")
    whole = fit(X, 40)
    assert len(km.path_) == whole.history_[steps - 1]["extra"]["partitions"]


@pytest.mark.usefixtures("sampled")
def test_stopped_between_passes() -> None:
    x = blobs(4_000, 6, 12, seed=4, spread=2.0)
    whole = fit(x, 6)
    passes = [s["step"] for s in whole.history_ if s["extra"]["path_passes"]]
    assert len(passes) > 3
    for steps in (passes[0], passes[2], passes[-2]):
        km = fit(x, 6, max_iter=steps)
        assert len(km.path_) == 6
        assert km.path_.inertia[-1] == km.inertia_
        assert (np.diff(km.path_.inertia) <= 0).all()
        for size in range(1, 7):
            score = -km.path_.model(size).score(x)
            assert score <= km.path_.inertia[size - 1] * (1 + 1e-6)


def test_a_callback_may_stop_it() -> None:
    km = cut(X, 40, callbacks=[lambda snapshot: snapshot.record["extra"]["partitions"] >= 7])
    assert km.stop_reason_ == "callback"
    assert len(km.path_) in (7, 8)


def test_max_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is ours: it goes on by a second whenever a partition is settled."""
    seconds = [0.0]

    def finish(self: Operators, *given: Any) -> Any:
        seconds[0] += 1.0
        return original(self, *given)

    original = Operators.finish
    monkeypatch.setattr(Operators, "finish", finish)
    real = time.monotonic

    def now() -> float:
        # Not for event loops: those of other tests, in this process too, would sleep for hours, and
        # their workers be given up.
        is_loop = asyncio._get_running_loop() is not None
        return real() if is_loop else real() / 1e6 + seconds[0]

    monkeypatch.setattr(time, "monotonic", now)
    km = cut(X, 40, max_time=12)
    assert km.stop_reason_ == "max_time"
    assert 2 <= len(km.path_) <= 12
    seconds[0] = 0.0
    monkeypatch.setattr(
        PathSearch, "begin", lambda *given: seconds.__setitem__(0, 99.0) or _begin(*given)
    )
    with pytest.warns(DegenerateDataWarning, match="partitions end at 1 clusters"):
        km = fit(X, 40, max_time=12)
    assert (km.stop_reason_, len(km.path_)) == ("max_time_without_search", 1)


_begin = PathSearch.begin


def test_interrupted_inside_a_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while partitions are settled: what the last complete piece has left comes back."""
    original, calls = Operators.grow, [0]

    def grow(self: Operators, *given: Any) -> Any:
        calls[0] += 1
        if calls[0] == 9:
            raise KeyboardInterrupt
        return original(self, *given)

    monkeypatch.setattr(Operators, "grow", grow)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        km = fit(X, 40)
    assert {w.category.__name__ for w in told} == {"DegenerateDataWarning", "InterruptedFitWarning"}
    assert km.stop_reason_ == "interrupted"
    assert 2 <= len(km.path_) <= 9


@pytest.mark.parametrize(
    ("effort", "every"), [("best", False), *slow(*((effort, True) for effort in EFFORTS))]
)
def test_resume_inside_any_stage(effort: str, every: bool, tmp_path: Path) -> None:
    """Killed in the middle of a piece, the next run begins that piece again.

    One run leaves what each of its steps would have found there: writing that is what takes time.
    """
    x, folder = X[:120], tmp_path / "job"
    expected = fit(x, 7, effort)
    stages = [s["extra"]["stage"] for s in expected.history_]
    assert len(set(stages)) == {"fast": 2, "balanced": 4, "best": 5}[effort]

    def keep(snapshot: Any) -> None:
        shutil.copytree(folder, tmp_path / f"killed in {snapshot.record['step']}")

    with dask.config.set({"largek.checkpoints.seconds": 0}):
        whole = fit(x, 7, effort, checkpoint=str(folder), callbacks=[keep])
    assert bits(whole) == bits(expected)
    firsts = {stages.index(stage) + 1 for stage in stages} - {1}
    for at in range(2, len(stages) + 1) if every else sorted(firsts | {len(stages)}):
        seen: list[Any] = []
        killed = str(tmp_path / f"killed in {at}")
        # This one writes none but the last.
        assert bits(fit(x, 7, effort, checkpoint=killed, callbacks=[seen.append])) == bits(expected)
        assert seen[0].record["step"] == at


def test_a_path_begins_with_the_mean() -> None:
    km = fit(X, 3)
    np.testing.assert_allclose(km.path_.centers(1)[0], X.astype(np.float64).mean(0), rtol=1e-5)
    assert km.path_.gap[0] == pytest.approx(0, abs=1e-6)


def test_by_its_name_it_takes_the_effort_of_the_estimator() -> None:
    for effort in EFFORTS:
        named = lk.KMeans(5, algorithm="partition-path", effort=effort, random_state=0).fit(X)
        assert named.model_.digest() == fit(X, 5, effort).model_.digest()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"effort": "most"}, "effort must be one of 'fast', 'balanced', 'best'"),
        ({"aim": "first"}, "aim must be 'all' or 'last'"),
    ],
)
def test_parameters(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        lk.PartitionPath(**given)
