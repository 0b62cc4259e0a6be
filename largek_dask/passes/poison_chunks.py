"""Tell chunks that kill their workers from chunks whose workers other jobs may have killed."""

from __future__ import annotations

import asyncio
from collections import Counter

from largek_dask.passes.network import Network

__all__ = ["ALONE_SECONDS", "FORGIVEN", "may_be_anothers"]

FORGIVEN = 3
"""Maximum number of retries of a chunk whose workers all died with tasks of other jobs."""
ALONE_SECONDS = 5.0
"""Then jobs try one after the other, so that each is without the company of the others."""


async def may_be_anothers(network: Network, task: str, chunk: int, forgiven: Counter[int]) -> bool:
    """Return whether the workers of a chunk's last task all had tasks of other jobs when they died.

    The other jobs ask themselves the same: each then waits for those whose names come before its
    own. ``task`` had the chunk, and nothing else; it is empty if what was lost was not a task.
    ``forgiven`` counts how often this was found of each chunk.
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
