"""Tables in the documents are those of the committed results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import guard, tables

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / page for page in tables.PAGES]
ANEW = "`python -m benchmarks.tables` rewrites them"


def test_tables_are_those_of_the_results():
    differ = [
        name
        for name, table in tables.TABLES.items()
        if tables.read_table(ROOT / table.page, name) != table.made()
    ]
    assert not differ, ANEW


def test_every_marker_is_compared():
    for page in PAGES:
        text = page.read_text()
        marked = re.findall(r"<!-- (\S+):begin -->", text)
        assert sorted(marked) == sorted(
            name for name, table in tables.TABLES.items() if ROOT / table.page == page
        )


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
