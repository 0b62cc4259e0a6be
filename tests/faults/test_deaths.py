"""Three workers of running jobs die, one of each kind; ``tests.faults.deaths`` kills 50."""

from __future__ import annotations

from tests.faults.deaths import KINDS, drill, left_in, n_at_work
from tests.faults.drill import longest_gap
from tests.faults.test_processes import STALL_SECONDS


def test_a_worker_that_dies_costs_seconds(tmp_path):
    """Where others use the machine as well: far less than a wait for Dask's own timeouts."""
    strikes = list(drill(tmp_path, len(KINDS)))
    assert [strike.kind for strike in strikes] == list(KINDS)
    assert max(strike.seconds for strike in strikes) < STALL_SECONDS, strikes


def test_longest_gap__counts_what_lies_between_two_moments():
    assert longest_gap([1.0, 2.0, 9.0, 30.0], 1.5, 10.0) == 7.0
    assert longest_gap([], 1.5, 10.0) == 8.5


def test_n_at_work__follows_who_comes_and_goes():
    told = [{"event": "started", "n_workers": 2}]
    told += [
        {"event": "worker", "address": "a", "change": change}
        for change in ("left", "joined", "slow")
    ]
    assert [n_at_work(told[:n]) for n in range(1, 5)] == [2, 1, 2, 2]
    assert left_in(told) == {"a"}
