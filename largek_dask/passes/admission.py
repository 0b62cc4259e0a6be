"""Which workers may take part in a job: the right versions, and access to the data."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterable
from typing import Any

from largek_dask import config
from largek_dask.data.rows import Rows
from largek_dask.errors import DataError, VersionMismatchError
from largek_dask.passes.network import Network
from largek_dask.passes.worker import WorkPlugin, admit, versions

__all__ = ["Workers"]

WAIT_SECONDS = 0.2
"""How often a cluster without workers is asked whether there are any."""


class Workers:
    """The workers that know a job.

    Parameters
    ----------
    network : Network
    rows : Rows
        What they have to be able to open.
    memory_limit : int or None
        Budget of row state in bytes, per worker.
    say : callable
        ``say(kind, message)``, for what a user should know meanwhile.
    """

    def __init__(
        self,
        network: Network,
        rows: Rows,
        memory_limit: int | None,
        say: Callable[[str, str], None],
    ) -> None:
        self._network = network
        self._where = rows.location
        self._shape = rows.shape
        self._say = say
        # Plain values: workers of other versions have to understand them too.
        self._job: dict[str, Any] = {
            "id": network.job,
            "rows": pickle.dumps(rows),
            "memory_limit": memory_limit,
            "cache_bytes": int(config.get("passes.cache-bytes")),
            "versions": versions(),
        }
        self._admitted: set[str] = set()

    async def begin(self) -> None:
        """Prepare all workers, present and future."""
        await self._network.register(WorkPlugin())
        await self.ready()

    async def ready(self) -> dict[str, int]:
        """Threads by address of the workers that may compute; waits while there are none."""
        waiting = False
        while True:
            workers = await self._network.workers()
            self._admitted &= set(workers)
            if new := [address for address in workers if address not in self._admitted]:
                await self.admit(new)
            ready = {a: n for a, n in workers.items() if a in self._admitted}
            if ready:
                if waiting:
                    self._say("workers", f"{len(ready)} workers are there: going on")
                return ready
            if not waiting:
                waiting = True
                self._say("waiting", "the cluster has no workers; waiting for one")
            await asyncio.sleep(WAIT_SECONDS)

    async def admit(self, addresses: Iterable[str]) -> None:
        """Check workers and make the job known to them.

        Raises
        ------
        VersionMismatchError
            Some have other versions of this package, of Python or of numba.
        DataError
            Some cannot open the data, or find something else there.
        """
        answers = await self._network.run_on(admit, self._job, self._shape, workers=addresses)
        wrong, blind = [], []
        for address, answer in answers.items():
            if isinstance(answer, ImportError | AttributeError):
                wrong.append(f"{address} cannot import this version of largek_dask ({answer})")
            elif isinstance(answer, Exception):
                # It left meanwhile; if it did not, it is asked again.
                self._say("workers", f"{address} did not answer: {answer}")
            elif answer[0] != self._job["versions"]:
                wrong.append(f"{address} has {_differences(answer[0], self._job['versions'])}")
            elif answer[1] is not None:
                blind.append(f"{address}: {answer[1]}")
            else:
                self._admitted.add(address)
        if wrong:
            raise VersionMismatchError(
                "workers run other versions than this process: " + "; ".join(wrong) + ". "
                "Install the same versions everywhere and restart the workers."
            )
        if blind:
            raise DataError(
                f"workers cannot open {self._where}: " + "; ".join(blind) + ". "
                "Every worker has to reach the data under this very address (rows of this "
                "process are written to largek.passes.spill-folder)."
            )


def _differences(found: dict[str, str], wanted: dict[str, str]) -> str:
    return ", ".join(
        f"{name} {found.get(name)} instead of {version}"
        for name, version in wanted.items()
        if found.get(name) != version
    )
