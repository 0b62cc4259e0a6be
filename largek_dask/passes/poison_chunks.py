"""Distinguish chunks that kill workers from chunks whose workers were killed by other jobs."""

from __future__ import annotations

import asyncio
from collections import Counter

from largek_dask.passes.network import Network

FORGIVEN = 3
"""Maximum number of retries of a chunk whose workers all died with tasks of other jobs."""
ALONE_SECONDS = 5.0
"""Interval in seconds between retries by different jobs, so that each job runs alone."""


async def may_be_other_jobs_fault(
    network: Network, task: str, chunk: int, forgiven: Counter[int]
) -> bool:
    """Return True if all workers of a chunk's last task had tasks of other jobs when they died.

    All of these jobs then retry in the order of their names: before returning True, this function
    waits for the jobs whose names come first. ``task`` is the task that computed only this chunk,
    or empty if no task was lost. ``forgiven`` counts the True results per chunk.
    """
    if not task or forgiven[chunk] >= FORGIVEN:
        return False
    deaths = [
        {str(other).rpartition("-")[0] for other in tasks} - {network.group}
        for tasks in await network.deaths(task)
    ]
    if not deaths or not all(deaths):
        return False
    forgiven[chunk] += 1
    before = {group for group in set().union(*deaths) if "largek_" <= group < network.group}
    await asyncio.sleep(ALONE_SECONDS * len(before))
    return True
