from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from largek_dask.algorithms.base import Info
from largek_dask.driver.stopping import StepRecord, StopRules, parse_duration, record_of
from largek_dask.errors import ParameterError


def record(**values: Any) -> StepRecord:
    return record_of(1, Info(**{"cost": 1.0, "rows": 10, **values}), 0.5)


@pytest.mark.parametrize(
    ("rules", "last", "n_iter", "seconds", "reason"),
    [
        (StopRules(), None, 0, 0.0, None),
        (StopRules(), record(), 299, 1e9, None),
        (StopRules(), record(), 300, 0.0, "max_iter"),
        (StopRules(max_iter=1), None, 0, 0.0, None),
        (StopRules(tol=0.1), record(shift=0.1), 1, 0.0, "tol"),
        (StopRules(tol=0.1), record(shift=math.nextafter(0.1, 1)), 1, 0.0, None),
        (StopRules(tol=0), record(shift=0.0), 1, 0.0, None),
        (StopRules(tol=0), record(shift=0.0, converged=True), 1, 0.0, "converged"),
        (StopRules(max_time=5), None, 0, 5.0, "max_time"),
        (StopRules(max_time=5), record(), 1, 4.99, None),
        # The first in the order of names wins.
        (StopRules(1, 1.0, 1), record(shift=0.0, converged=True), 1, 9.0, "converged"),
        (StopRules(1, 1.0, 1), record(shift=0.0), 1, 9.0, "tol"),
        (StopRules(1, 1.0, 1), record(shift=2.0), 1, 9.0, "max_iter"),
        (StopRules(9, 1.0, 1), record(shift=2.0), 1, 9.0, "max_time"),
    ],
)
def test_reasons(
    rules: StopRules, last: StepRecord | None, n_iter: int, seconds: float, reason: str | None
) -> None:
    assert rules.reason(last, n_iter, seconds) == reason


def test_an_algorithm_may_stop_by_a_figure_of_its_own() -> None:
    last, rules = record(shift=3.0, extra={"gain": 0.5}), StopRules(tol=1.0)
    assert rules.reason(last, 1, 0.0, "gain") == "tol"
    assert rules.reason(last, 1, 0.0, "loss") is rules.reason(last, 1, 0.0) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (90, 90.0),
        (0.25, 0.25),
        ("90", 90.0),
        ("90s", 90.0),
        ("6h", 21600.0),
        ("90m", 5400.0),
        ("1.5 H", 5400.0),
        ("2d", 172800.0),
        ("250ms", 0.25),
        (" 5m ", 300.0),
    ],
)
def test_durations(text: Any, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "h", "1x", "1h30m", ".5h", "-1s", "1e3x", "nan", "inf", None, True, []]
)
def test_no_durations(text: Any) -> None:
    with pytest.raises(ParameterError, match="'30m'"):
        parse_duration(text)


def test_records_hold_only_json() -> None:
    made = record_of(
        2, Info(math.inf, 5, None, math.nan, False, {"a": math.nan, "b": 2}), np.float64(1.5)
    )
    assert made == {
        "step": 2,
        "cost": None,
        "rows": 5,
        "seconds": 1.5,
        "n_changed": None,
        "shift": None,
        "converged": False,
        "extra": {"a": None, "b": 2.0},
    }
