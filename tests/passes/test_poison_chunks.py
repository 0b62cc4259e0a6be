"""Whether a chunk has killed its workers: of whom it is said, how often, and who tries when."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace

import pytest

from largek_dask.passes import poison_chunks
from largek_dask.passes.poison_chunks import FORGIVEN, may_be_other_jobs_fault

OWN = "largek_m_5"


class Died:
    """What was on the workers of one task when they died."""

    group = OWN

    def __init__(self, *deaths):
        self.found = [[f"{group}-{n}" for n, group in enumerate(tasks)] for tasks in deaths]
        self.asked = []

    async def deaths(self, task):
        self.asked.append(task)
        return self.found


@pytest.fixture
def slept(monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr(poison_chunks, "asyncio", SimpleNamespace(sleep=sleep))
    return slept


def asked(network, task=f"{OWN}-1", forgiven=None, chunk=3):
    counted = Counter() if forgiven is None else forgiven
    return asyncio.run(may_be_other_jobs_fault(network, task, chunk, counted))


def test_all_of_its_workers_had_company(slept):
    for deaths, seconds in (
        ([], None),
        ([[OWN]], None),
        ([["other"], [OWN, OWN]], None),
        ([["other"], ["other", OWN]], 0.0),
        # Those whose names come before its own go first; what is no job asks itself nothing.
        ([["largek_a_1"]], 5.0),
        ([["largek_a_1", "largek_b_1"], ["largek_b_1"], ["largek_z_1"]], 10.0),
        ([["largek_z_1", "aaa"]], 0.0),
    ):
        slept.clear()
        network, forgiven = Died(*deaths), Counter()
        assert asked(network, forgiven=forgiven) is (seconds is not None)
        assert network.asked == [f"{OWN}-1"]
        assert slept == ([] if seconds is None else [seconds])
        assert forgiven == ({} if seconds is None else {3: 1})


def test_it_is_found_of_a_chunk_a_few_times(slept):
    network, forgiven = Died(["other"]), Counter()
    assert [asked(network, forgiven=forgiven) for _ in range(5)] == [True] * FORGIVEN + [False] * 2
    assert forgiven == {3: FORGIVEN}
    assert len(network.asked) == FORGIVEN
    assert asked(network, forgiven=forgiven, chunk=4), "of another it has not been"


def test_what_was_no_task_has_no_company(slept):
    network = Died(["other"])
    assert not asked(network, task="")
    assert network.asked == slept == []
