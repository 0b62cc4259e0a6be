from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_iter": 0},
        {"max_iter": -1},
        {"max_iter": 2.5},
        {"max_iter": True},
        {"max_iter": None},
        {"tol": -1e-9},
        {"tol": math.nan},
        {"tol": math.inf},
        {"tol": "small"},
        {"max_time": -1},
        {"max_time": "soon"},
        {"max_time": math.nan},
    ],
)
def test_wrong_limits_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=next(iter(wrong))):
        StopRules(**wrong)


def test_numpy_numbers_are_numbers() -> None:
    rules = StopRules(np.int64(3), np.float32(0.5), np.int32(9))  # type: ignore[arg-type]
    assert rules.seconds == 9.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (90, 90.0),
        (0.25, 0.25),
        ("90", 90.0),
        ("90s", 90.0),
        ("6h", 21600.0),
        ("1h30m", 5400.0),
        ("1h 30min", 5400.0),
        ("1.5 H", 5400.0),
        ("2d", 172800.0),
        ("250ms", 0.25),
        (" 5m ", 300.0),
    ],
)
def test_durations(text: Any, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "h", "1x", "1h30", "-1s", "1e3x", "nan", "inf", None, True, []]
)
def test_no_durations(text: Any) -> None:
    with pytest.raises(ParameterError, match="'1h30m'"):
        parse_duration(text)


@settings(deadline=None)
@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_parts_of_durations_add_up(h: int, m: int, s: int) -> None:
    assert parse_duration(f"{h}h{m}m{s}s") == 3600 * h + 60 * m + s


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
