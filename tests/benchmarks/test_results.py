"""Tables and figures in the documents are those of the committed results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import guard, tables
from benchmarks.common import RESULTS
from benchmarks.quotes import QUOTES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / page for page in tables.PAGES]
ANEW = "`python -m benchmarks.tables` writes all of them anew"


def test_tables_are_those_of_the_results():
    differ = [
        name
        for name, table in tables.TABLES.items()
        if tables.read_table(ROOT / table.page, name) != table.made()
    ]
    assert not differ, ANEW


def test_quoted_figures_are_those_of_the_results():
    made = {
        name: make(json.loads((RESULTS / f"{source}.json").read_text()))
        for name, (source, make) in QUOTES.items()
    }
    pages = [*PAGES, *(ROOT / "docs").rglob("*.md")]
    shown = [quote for page in pages for quote in tables.read_quotes(page)]
    assert {name for name, _ in shown} == set(made)
    assert not [(name, text) for name, text in shown if text != made[name]], ANEW


def test_every_marker_is_compared():
    for page in PAGES:
        text = page.read_text()
        marked = re.findall(r"<!-- (\S+):begin -->", text)
        assert sorted(marked) == sorted(
            name for name, table in tables.TABLES.items() if ROOT / table.page == page
        )
        assert text.count("<!-- quote") == len(tables.read_quotes(page))


@pytest.mark.slow
def test_fixed_fits_do_no_more_than_they_did():
    """Counts of distances, passes, bytes and kernels, which have no noise."""
    found = guard.child_record("benchmarks.counted", [])
    expected = guard.expected()["counts"]
    assert {fit: set(counts) for fit, counts in found.items()} == {
        fit: set(counts) for fit, counts in expected.items()
    }
    assert guard.grown(found, expected) == [], (
        "If it is worth it: `python -m benchmarks.guard --counted --write`, and the commit message "
        "says why."
    )
