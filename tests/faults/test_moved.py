"""Schedulers that are followed by others elsewhere: clients and workers find them."""

from __future__ import annotations

import pytest

from tests.faults.moved import FATES, drill


@pytest.mark.slow
def test_schedulers_that_die_are_followed_by_others_and_nothing_is_lost(tmp_path):
    """One of each kind; ``python -m tests.faults.moved`` has 30."""
    # Processes to start are most of what it takes.
    lean = {"n_workers": 1, "nannies": False, "dashboard": ("--no-dashboard",)}
    deaths = list(drill(tmp_path, len(FATES), **lean))
    assert [death.kind for death in deaths] == list(FATES)
