"""Three workers of running jobs die, one of each kind; ``tests.faults.deaths`` kills 50."""

from __future__ import annotations

import pytest

from tests.faults.deaths import KINDS, drill
from tests.faults.test_processes import STALL_SECONDS


@pytest.mark.slow
def test_a_worker_that_dies_costs_seconds(tmp_path):
    """Where others use the machine as well: far less than a wait for Dask's own timeouts."""
    strikes = list(drill(tmp_path, len(KINDS)))
    assert [strike.kind for strike in strikes] == list(KINDS)
    assert max(strike.seconds for strike in strikes) < STALL_SECONDS, strikes
