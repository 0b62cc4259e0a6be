"""Copies of broadcasts are left where they are, all others are not."""

from __future__ import annotations

import dask
import numpy as np

import largek_dask.passes.cluster as cluster_module
from largek_dask.data.sources import open_rows
from largek_dask.passes.broadcast import ReduceOtherReplicas, keep_replicas
from largek_dask.passes.cluster import ClusterPasses
from largek_dask.passes.worker import Sealed
from tests.helpers.checks import eventually
from tests.passes.toys import combine, integers, start


def look(dask_scheduler=None):
    """What the memory manager does every two seconds, at once; and what it is made of."""
    manager = dask_scheduler.extensions["amm"]
    manager.run_once()
    return [type(policy).__name__ for policy in manager.policies]


async def released(future):
    future.release()


def seen(chunk, total, values):
    total[0] += values[-1]


def test_the_memory_manager_leaves_a_broadcast_and_nothing_else_on_all_workers(
    fresh_cluster, monkeypatch
):
    monkeypatch.setattr(cluster_module, "EMBED_BYTES", 0)
    with dask.config.set({"distributed.scheduler.active-memory-manager.interval": "1h"}):
        client = fresh_cluster(3, processes=False)
    assert client.run_on_scheduler(look) == ["ReduceReplicas"]
    with ClusterPasses(open_rows(integers(100)), client) as passes:
        workers = set(client.scheduler_info(n_workers=-1)["workers"])
        assert len(workers) == 3
        sent = passes._network.run(passes._broadcaster.send(Sealed(np.ones(9)), workers))
        other = client.scatter({"other": np.ones(9)}, broadcast=True)["other"]

        def holders(future):
            return set(client.who_has([future])[future.key])

        eventually(lambda: holders(sent) == holders(other) == workers, "copies everywhere")
        assert client.run_on_scheduler(look) == ["ReduceOtherReplicas"]
        eventually(lambda: len(holders(other)) == 1, "one copy of the other value")
        assert holders(sent) == workers
        # Once is enough, and what nobody wants any more goes.
        client.run_on_scheduler(keep_replicas)
        assert client.run_on_scheduler(look) == [ReduceOtherReplicas.__name__]
        assert holders(sent) == workers
        passes._network.run(released(sent))
        names = [worker.data for worker in client.cluster.workers.values()]
        eventually(lambda: not any("largek" in str(k) for d in names for k in d), "all copies gone")
        total = passes.reduce(seen, np.ones(9), start=start, combine=combine)
        assert total[0] == passes.n_chunks


def test_a_scheduler_without_a_memory_manager_has_nothing_to_spare():
    class Scheduler:
        extensions = {}  # noqa: RUF012

    assert keep_replicas(Scheduler()) is None
