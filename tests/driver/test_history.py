"""Histories of many steps stay small, however often a fit was stopped on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from largek_dask.driver import run as run_module
from largek_dask.driver import stopping as module
from largek_dask.driver.stopping import StopRules
from largek_dask.driver.storage import Folder
from tests.driver.test_run import assert_same, every_step, go

MOST = 16


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
    assert [r["step"] for r in whole.history] == list(range(75 - MOST + 1, 76))
