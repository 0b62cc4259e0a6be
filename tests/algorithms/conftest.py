"""Data on which algorithms are tested, and what makes two results the same."""

from __future__ import annotations

import numpy as np
import pytest


def blobs(n: int, d: int, k: int, seed: int = 0, spread: float = 6.0) -> np.ndarray:
    """n rows around k centres, float32."""
    r = np.random.default_rng(seed)
    centers = r.normal(size=(k, d)) * spread
    return (centers[r.integers(k, size=n)] + r.normal(size=(n, d))).astype(np.float32)


def bits(km) -> tuple[str, bytes, float, int]:
    """All that has to be equal of two fits."""
    value = getattr(km, f"{km.model_.objective.name}_")
    return km.model_.digest(), km.labels_.tobytes(), value, km.n_iter_


@pytest.fixture(scope="module", autouse=True)
def many_chunks(chunks_as_stored) -> None:
    """A store that a test writes in chunks has as many of them when it is read."""


@pytest.fixture(scope="session")
def rows_20k() -> np.ndarray:
    """20,000 x 12 overlapping blobs."""
    return blobs(20_000, 12, 40, spread=2.0)
