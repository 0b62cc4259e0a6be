"""Counts of fixed fits do not grow unsaid, and what has become worse is found."""

from __future__ import annotations

import sys

import pytest

from benchmarks import guard
from benchmarks.counted import FITS


def test_fixed_fits_do_no_more_than_they_did():
    found = guard.child_record("benchmarks.counted", None)
    expected = guard.expected()["counts"]
    assert found.keys() == expected.keys() == FITS.keys()
    # Nothing that is counted may be lost from sight either.
    assert all(found[fit].keys() == expected[fit].keys() for fit in FITS)
    assert guard.grown(found, expected) == [], (
        "If it is worth it: `python -m benchmarks.guard --counted --write`, and the commit message "
        "says why."
    )


def test_what_is_counted_comes_from_the_way_it_is_meant():
    counts = guard.expected()["counts"]
    for name, fit in FITS.items():
        # All rows were read once, and a pass over them followed.
        assert counts[name]["bytes read"] > 0
        assert counts[name]["rows"] >= fit.n_rows
        assert counts[name]["kernels"] > 0
    assert counts["Lloyd"]["distances"] <= 30 * 20_000 * 200
    few, n_values = counts["auto, few directions first"], 8_000 * 784
    # Read once, not once a pass: rows are held.
    assert few["bytes read"] == 4 * n_values


def test_growth_is_told_from_5_percent_on():
    before = {"a": {"passes": 100, "rows": 7}}
    assert guard.grown({"a": {"passes": 105, "rows": 0}}, before) == []
    told = guard.grown({"a": {"passes": 106, "rows": 7}, "b": {"steps": 3}}, before)
    assert told == ["a: 106 passes instead of 100", "b: 3 steps instead of 0"]


def test_ratios_are_worse_from_15_percent_on():
    assert guard.worse({"a": 1.14, "b": 0.1, "new": 9.0}, {"a": 1.0, "b": 1.0}) == []
    told = guard.worse({"a": 1.16}, {"a": 1.0})
    assert told == ["a: 1.16 times a product instead of 1.00"]


def test_what_seems_worse_is_measured_again(monkeypatch):
    runs = iter([{"a": 2.0, "b": 1.0}, {"a": 1.5, "b": 3.0}, {"a": 1.0, "b": 3.0}, {"a": 0.1}])
    monkeypatch.setattr(guard, "child_record", lambda module, given: next(runs))
    assert guard.measured({"a": 1.0, "b": 1.0}) == {"a": 1.0, "b": 1.0}
    assert guard.measured({"a": 1.0}) == {"a": 0.1}, "once, where nothing seems worse"


@pytest.mark.parametrize("share", [1.0, 0.9])
def test_its_exit_status(share, monkeypatch, capsys):
    expected = {"counts": {"a": {"passes": 100}}, "ratios": {guard.vectors(): RATIOS}}
    monkeypatch.setattr(guard, "expected", lambda: expected)
    found = {"benchmarks.counted": expected["counts"], "benchmarks.guard": {"x": 1.1 / share}}
    monkeypatch.setattr(guard, "child_record", lambda module, given: found[module])
    monkeypatch.setattr(sys, "argv", ["guard"])
    if share == 1.0:
        guard.main()
        assert "worse" not in capsys.readouterr().out
        return
    with pytest.raises(SystemExit) as ended:
        guard.main()
    assert ended.value.code == 1
    assert "worse: x: 1.22 times a product instead of 1.00" in capsys.readouterr().out


RATIOS = {"cpu": "this", "ratios": {"x": 1.0}}
