"""Data on which algorithms are tested."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from distributed import Client, LocalCluster


def blobs(n: int, d: int, k: int, seed: int = 0, spread: float = 6.0) -> np.ndarray:
    """n rows around k centres, float32."""
    r = np.random.default_rng(seed)
    centers = r.normal(size=(k, d)) * spread
    return (centers[r.integers(k, size=n)] + r.normal(size=(n, d))).astype(np.float32)


@pytest.fixture(scope="session")
def rows_20k() -> np.ndarray:
    """20,000 x 12 overlapping blobs."""
    return blobs(20_000, 12, 40, spread=2.0)


def start(n_workers: int) -> Client:
    """A client of a new cluster of one-thread processes."""
    cluster = LocalCluster(
        n_workers=n_workers,
        threads_per_worker=1,
        processes=True,
        dashboard_address=None,
        worker_dashboard_address=None,
        silence_logs=50,
    )
    return Client(cluster)


def stop(client: Client) -> None:
    """Close the client and its cluster."""
    cluster = client.cluster
    client.close()
    cluster.close()


@pytest.fixture(scope="module")
def worker_clients() -> Iterator[Callable[[int], Client]]:
    """Clients by number of workers; a cluster lives until another size is asked for."""
    current: dict[int, Client] = {}

    def get(n_workers: int) -> Client:
        if n_workers not in current:
            while current:
                stop(current.popitem()[1])
            current[n_workers] = start(n_workers)
        return current[n_workers]

    yield get
    while current:
        stop(current.popitem()[1])


@pytest.fixture
def fresh_cluster() -> Iterator[Callable[..., Client]]:
    """Clusters that a test may damage."""
    clients: list[Client] = []

    def get(n_workers: int) -> Client:
        clients.append(start(n_workers))
        return clients[-1]

    yield get
    for client in clients:
        stop(client)
