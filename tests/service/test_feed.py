"""What a job's feed makes of its events."""

from __future__ import annotations

import pytest

from largek_dask.service.feed import HELD, SHOWN, SUMMED, Feed

FIGURES = dict.fromkeys((*SHOWN, *SUMMED, *HELD), 0)


def step(compute, read, wait=100.0):
    return {**FIGURES, "event": "step", "seconds": {"compute": compute, "read": read, "wait": wait}}


@pytest.mark.parametrize(
    ("n_chunks", "steps", "seconds", "worth"),
    [
        (100, [], 5.0, 1),
        (100, [step(9.0, 2.0)], 5.0, 3),
        (100, [step(40.0, 0.0), step(1.0, 0.0)], 5.0, 8),
        (4, [step(40.0, 0.0)], 5.0, 4),
        (100, [step(0.0, 0.0)], 5.0, 1),
    ],
)
def test_worth__is_the_longest_step_over_the_seconds_wanted(n_chunks, steps, seconds, worth):
    feed = Feed("a", lambda event: None, is_new=True)
    for event in [{"event": "started", "n_chunks": n_chunks}, *steps]:
        feed(event)
    assert feed.worth(seconds) == worth
