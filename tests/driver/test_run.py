from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import dask
import numpy as np
import pytest

from largek_dask.algorithms.base import Rng
from largek_dask.driver.checkpoint import Checkpoints
from largek_dask.driver.events import Events
from largek_dask.driver.run import Reserve, Run, RunResult, Snapshot
from largek_dask.driver.stopping import StopRules
from largek_dask.driver.storage import Folder
from largek_dask.errors import NoModelError
from largek_dask.version import __version__
from tests.driver.toy import Toy, ToyPasses, ToyState, toy_rows


def go(
    stop: StopRules | None = None, passes: ToyPasses | None = None, **options: Any
) -> RunResult[ToyState]:
    passes = ToyPasses(toy_rows()) if passes is None else passes
    rules = StopRules(max_iter=8, tol=0) if stop is None else stop
    return Run(Toy(), passes, rng=Rng(3), stop=rules, **options).result()


def every_step(folder: Folder, keep: int = 3) -> Checkpoints[ToyState]:
    with dask.config.set({"largek.checkpoints.keep": keep, "largek.checkpoints.seconds": 0}):
        return Checkpoints(folder, ToyState)


def assert_same(a: RunResult[ToyState], b: RunResult[ToyState]) -> None:
    assert a.n_iter == b.n_iter
    assert a.stop_reason == b.stop_reason
    assert a.state.path == b.state.path
    np.testing.assert_array_equal(a.arrays.centers, b.arrays.centers, strict=True)
    for mine, theirs in zip(a.history, b.history, strict=True):
        assert {**mine, "seconds": 0} == {**theirs, "seconds": 0}


@pytest.fixture
def folder(tmp_path: Any) -> Folder:
    return Folder(str(tmp_path / "job"))


def test_run_is_init_and_steps_by_hand() -> None:
    toy, passes, rng = Toy(), ToyPasses(toy_rows()), Rng(3)
    state = toy.init(passes, rng)
    for _ in range(8):
        state, _ = toy.step(passes, rng, state)
    result = go()
    np.testing.assert_array_equal(result.arrays.centers, state.centers)
    assert (result.n_iter, result.stop_reason) == (8, "max_iter")
    assert [r["cost"] for r in result.history] == list(state.path)
    assert [r["step"] for r in result.history] == list(range(1, 9))


@pytest.mark.parametrize("url", ["local", "memory"])
def test_resume_at_every_step_gives_the_same_bits(url: str, tmp_path: Any) -> None:
    whole = go()
    for stop_at in range(1, 8):
        place = str(tmp_path / str(stop_at)) if url == "local" else f"memory://resume{stop_at}"
        folder = Folder(place)
        first = go(StopRules(max_iter=stop_at, tol=0), checkpoints=every_step(folder))
        assert first.n_iter == stop_at
        passes = ToyPasses(toy_rows())
        second = go(passes=passes, checkpoints=every_step(folder))
        assert_same(second, whole)
        assert passes.chunks_done == (8 - stop_at) * passes.n_chunks  # nothing was done twice


def test_cancel_inside_a_pass_keeps_the_last_complete_step(folder: Folder) -> None:
    passes = ToyPasses(toy_rows())
    result = go(
        passes=passes,
        checkpoints=every_step(folder),
        cancelled=lambda: passes.chunks_done >= 4 + 3 * 4 + 2,
    )
    assert (result.n_iter, result.stop_reason) == (3, "cancelled")
    assert passes.chunks_done == 4 + 3 * 4 + 2
    assert_same(go(StopRules(max_iter=3, tol=0)), _renamed(result))
    assert_same(go(checkpoints=every_step(folder)), go())


def _renamed(result: RunResult[ToyState]) -> Any:
    from dataclasses import replace

    return replace(result, stop_reason="max_iter")


def test_cancel_before_any_centre_is_an_error_that_says_so() -> None:
    with pytest.raises(NoModelError, match="cancelled before there was a model"):
        go(cancelled=lambda: True)


def test_time_limit_before_any_centre_names_the_limit() -> None:
    with pytest.raises(NoModelError, match=r"max_time=0 s.*cheaper init"):
        go(StopRules(max_time=0))


def test_time_limit_inside_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("largek_dask.driver.run.time", SimpleNamespace(monotonic=lambda: now[0]))
    passes = ToyPasses(toy_rows())

    def tick(n: int) -> None:
        now[0] += 1.0

    passes.after_chunk = tick
    result = go(StopRules(max_iter=50, tol=0, max_time="10s"), passes=passes)
    assert result.stop_reason == "max_time"
    assert result.n_iter == 1  # 4 s of init, 4 s of a step, and a step that was cut after 2 s
    assert passes.chunks_done == 10
    assert result.seconds == 10.0


def test_time_for_what_comes_last_is_kept_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("largek_dask.driver.run.time", SimpleNamespace(monotonic=lambda: now[0]))
    passes = ToyPasses(toy_rows())
    passes.after_chunk = lambda n: now.__setitem__(0, now[0] + 1.0)
    asked: list[Any] = []

    def three_seconds(arrays: Any, left: float) -> Reserve:
        asked.append((arrays, left))
        return Reserve(5.0, 3.0)

    rules = StopRules(max_iter=50, tol=0, max_time=20)
    result = go(rules, passes=passes, last_pass=three_seconds)
    # 4 s of init, three steps of 4 s, and one that was cut after 1 s
    assert (result.n_iter, result.stop_reason, result.seconds) == (3, "max_time", 17.0)
    assert result.reserve == Reserve(5.0, 3.0)
    assert [left for _, left in asked] == [16.0]
    go(StopRules(max_iter=2, tol=0), last_pass=three_seconds)
    assert len(asked) == 1, "without a limit nobody need know"


def test_time_used_before_a_resume_counts(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("largek_dask.driver.run.time", SimpleNamespace(monotonic=lambda: now[0]))
    passes = ToyPasses(toy_rows())
    passes.after_chunk = lambda n: now.__setitem__(0, now[0] + 1.0)
    rules = StopRules(max_iter=2, tol=0)
    assert go(rules, passes=passes, checkpoints=every_step(folder)).seconds == 12.0
    now[0] = 1000.0
    cut = go(
        StopRules(max_iter=50, tol=0, max_time=17), passes=passes, checkpoints=every_step(folder)
    )
    assert (cut.n_iter, cut.stop_reason, cut.seconds) == (3, "max_time", 17.0)
    over = go(StopRules(max_time=1), passes=passes, checkpoints=every_step(folder))
    assert (over.n_iter, over.stop_reason) == (3, "max_time")


def test_callback_says_stop_and_sees_the_model() -> None:
    seen = []

    def third(snapshot: Snapshot) -> bool:
        seen.append(snapshot.model().centers)
        return snapshot.record["step"] == 3

    result = go(callbacks=[third, lambda snapshot: None])
    assert (result.n_iter, result.stop_reason) == (3, "callback")
    np.testing.assert_array_equal(seen[-1], result.arrays.centers)


def test_an_error_in_a_step_comes_through_and_clears_the_passes() -> None:
    passes = ToyPasses(toy_rows())

    def fail(n: int) -> None:
        raise OSError("disk on fire")

    passes.after_chunk = fail
    with pytest.raises(OSError, match="disk on fire"):
        go(passes=passes)
    assert passes.cancelled is None


def test_events_tell_the_story(folder: Folder) -> None:
    story: list[Any] = []
    result = go(
        StopRules(max_iter=3, tol=0),
        checkpoints=every_step(folder),
        events=Events([story.append], {"start": 0}),
    )
    kinds = [event["event"] for event in story]
    assert kinds == [
        "started",
        "checkpoint",
        "step",
        "checkpoint",
        "step",
        "checkpoint",
        "step",
        "checkpoint",
        "stopped",
    ]
    assert story[0] | {"time": 0} == {
        "event": "started",
        "format": 1,
        "version": __version__,
        "time": 0,
        "start": 0,
        "n_rows": 60,
        "n_features": 2,
        "n_chunks": 4,
        "n_workers": 0,
        "workers": [],
        "n_iter": 0,
    }
    step = story[4]
    assert step["cost"] == result.history[1]["cost"]
    assert step["bytes"] == 60 * 2 * 8
    assert step["state_bytes"] == step["cache_bytes"] == 0
    kinds = {"total", "compile", "compute", "read", "wait", "reduce", "driver"}
    assert set(step["seconds"]) == kinds
    assert step["rows_per_second"] == pytest.approx(
        60 / (step["seconds"]["total"] - step["seconds"]["compile"]), rel=1e-4
    )
    assert step["share"] == pytest.approx(2 / 3, rel=1e-4)
    assert step["eta_s"] > 0
    assert (story[6]["share"], story[6]["eta_s"]) == (1, 0)
    assert story[3]["n_iter"] == 1
    assert story[-1]["reason"] == "max_iter"
    assert story[-1]["cost"] == result.history[-1]["cost"]


def test_events_tell_how_long_it_took(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("largek_dask.driver.run.time", SimpleNamespace(monotonic=lambda: now[0]))
    passes: Any = ToyPasses(toy_rows())
    passes.by_worker = {}
    passes.after_chunk = lambda n: now.__setitem__(0, now[0] + 1.0)
    save = Checkpoints.save

    def slow(checkpoints: Any, progress: Any) -> bool:
        now[0] += 3.0
        return save(checkpoints, progress)

    monkeypatch.setattr(Checkpoints, "save", slow)
    story: list[dict[str, Any]] = []
    go(
        StopRules(max_iter=2, tol=0),
        passes=passes,
        checkpoints=every_step(folder),
        events=Events([story.append]),
        seconds_used=50.0,
    )
    assert [e["seconds"] for e in story if e["event"] == "checkpoint"] == [3.0] * 3
    steps = [e for e in story if e["event"] == "step"]
    # 4 s of init before the first one, 4 s each, and 3 s of a checkpoint before each
    assert [e["elapsed"] for e in steps] == [61.0, 68.0]
    assert [e["seconds"]["total"] for e in steps] == [11.0, 7.0]
    # To six figures.
    assert [e["rows_per_second"] for e in steps] == [5.45455, 8.57143]
    assert story[-1]["elapsed"] == 71.0
