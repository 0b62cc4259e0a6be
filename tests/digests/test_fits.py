"""What is said of digests that differ."""

from __future__ import annotations

import copy

import pytest

from tests.digests import fits
from tests.digests.cases import FAMILIES
from tests.digests.fits import differences, golden, report, write
from tests.digests.tables import Table, rows_of

NAME = FAMILIES["lloyd"][0].name


def test_every_case_has_a_line_and_every_line_a_case():
    cases = [case for family in FAMILIES.values() for case in family]
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    assert set(golden()) == {*names, *(f"rows: {case.table}" for case in cases)}


def test_what_differs_is_told_by_case_and_field():
    expected = golden()
    assert differences(expected, golden()) == {}
    found = copy.deepcopy(expected)
    found[NAME]["n_iter"] += 1
    found[NAME]["history"]["cost"] = "other"
    del found[NAME]["history"]["shift"]
    found["new"] = found["rows: 3000x20 float32"]
    found["rows: 3000x20 float32"] = "others"
    told = differences(expected, found)
    assert set(told) == {NAME, "new", "rows: 3000x20 float32"}
    n_iter, cost, shift = told[NAME]
    assert n_iter == f"n_iter: {expected[NAME]['n_iter']} -> {found[NAME]['n_iter']}"
    assert cost.startswith("history.cost: ")
    assert cost.endswith(" -> other")
    assert shift.startswith("history.shift: ")
    assert shift.endswith(" -> None")
    assert told["new"] == ["is new"]
    lines = report(told).splitlines()
    assert lines[0] == "3 digests differ:"
    assert f"    {n_iter}" in lines


def test_the_file_is_as_it_is_written(tmp_path, monkeypatch):
    """A line a case, in order."""
    expected = golden()
    text = fits.GOLDEN.read_text()
    monkeypatch.setattr(fits, "GOLDEN", tmp_path / "golden.json")
    write(dict(reversed(expected.items())))
    assert fits.GOLDEN.read_text() == text
    assert len(text.splitlines()) == len(expected) + 2


@pytest.mark.parametrize("dtype", ["float64", "float32", "csr", "uint8", "bool"])
def test_rows_are_many_and_differ(dtype):
    x = rows_of(Table(dtype=dtype))
    assert x.shape == (3_000, 20)
    assert x.dtype == ("float32" if dtype == "csr" else dtype)
    assert x.min() < x.max()
