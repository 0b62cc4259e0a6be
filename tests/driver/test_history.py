"""Histories of many steps stay small, and do not tell how often they were thinned on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from largek_dask.driver import run as run_module
from largek_dask.driver import stopping as module
from largek_dask.driver.stopping import StopRules, thinned
from largek_dask.driver.storage import Folder
from tests.driver.test_run import assert_same, every_step, go

MOST = 16


def record(step: int, cost: float | None) -> dict[str, Any]:
    return {
        "step": step, "cost": cost, "rows": 40, "seconds": step / 8, "n_changed": 3,
        "shift": 1e-3, "converged": False, "extra": {},
    }  # fmt: skip


def records(costs: list[float | None]) -> list[dict[str, Any]]:
    return [record(step, cost) for step, cost in enumerate(costs, 1)]


costs = st.lists(st.none() | st.integers(0, 30).map(float), min_size=1, max_size=300)


@given(costs, st.lists(st.integers(1, 300), max_size=6))
def test_thinned__keeps_what_tells_most_however_often(
    costs: list[float | None], cuts: list[int]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MOST_STEPS", MOST)
        whole = records(costs)
        once = thinned(whole)
        assert len(once) <= MOST
        assert once[0] is whole[0]
        assert once[-1] is whole[-1]
        known = [cost for cost in costs if cost is not None]
        if known:
            lowest = next(r for r in whole if r["cost"] == min(known))
            assert lowest in once
        assert [r["step"] for r in once] == sorted({r["step"] for r in once})
        if len(whole) <= MOST:
            assert once == whole
        else:
            assert len(once) >= MOST // 2 - 3
        often: list[dict[str, Any]] = []
        for r in whole:
            often.append(r)
            if r["step"] in cuts:
                often = thinned(often)
        assert thinned(often) == once


def test_a_fit_of_many_steps_keeps_few_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_STEPS", MOST)
    monkeypatch.setattr(run_module, "MOST_STEPS", MOST)
    rules = StopRules(max_iter=75, tol=0)
    most = []
    checkpoints = every_step(Folder(str(tmp_path)))
    whole = go(rules, checkpoints=checkpoints, callbacks=[lambda s: most.append(len(s.history))])
    assert whole.n_iter == 75
    assert len(whole.history) <= MOST < 2 * MOST == max(most)
    # One that was stopped again and again ends with the same records.
    place = Folder(str(tmp_path / "again"))
    for n_iter in (15, 34, 75):
        again = go(StopRules(max_iter=n_iter, tol=0), checkpoints=every_step(place))
    assert_same(again, whole)
    assert [r["step"] for r in again.history] == [r["step"] for r in whole.history]
