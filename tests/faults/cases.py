"""Small jobs that last a second or two, and what a run without any fault makes of them."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import dask
import numpy as np
import scipy.sparse

import largek_dask as lk

N_ROWS = 12_000
CHUNK_ROWS = 1_000
N_CLUSTERS = 64


@dataclasses.dataclass(frozen=True)
class Case:
    """A job."""

    name: str
    data: str
    algorithm: Any
    max_iter: int
    n_clusters: int = N_CLUSTERS
    init: str | None = None
    """None: the algorithm's own."""

    def options(self) -> dict[str, Any]:
        """What ``submit`` is given besides the output."""
        return {
            "data": self.data,
            "algorithm": self.algorithm,
            "n_clusters": self.n_clusters,
            "max_iter": self.max_iter,
            "tol": 0.0,
            **self._init,
        }

    @property
    def _init(self) -> dict[str, Any]:
        return {} if self.init is None else {"init": self.init}

    @functools.cached_property
    def digest(self) -> str:
        """The digest of the model of a fit in this process."""
        with dask.config.set({"largek.data.read-chunk-bytes": 1}):
            fitted = lk.KMeans(
                self.n_clusters,
                algorithm=self.algorithm,
                max_iter=self.max_iter,
                tol=0.0,
                random_state=0,
                **self._init,
            ).fit(lk.open_rows(self.data))
        return fitted.model_.digest()


def make_cases(folder: Path) -> dict[str, Case]:
    """Write the data, and give the algorithms over them."""
    rng = np.random.default_rng(0)
    centers = 2 * rng.standard_normal((N_CLUSTERS, 64))
    dense = centers[rng.integers(N_CLUSTERS, size=N_ROWS)] + rng.standard_normal((N_ROWS, 64))
    sparse = scipy.sparse.random(N_ROWS, 500, 0.03, format="csr", dtype=np.float32, random_state=1)
    paths = {"dense": str(folder / "dense.zarr"), "sparse": str(folder / "sparse.zarr")}
    lk.ingest(dense.astype(np.float32), paths["dense"], chunk_rows=CHUNK_ROWS, progress=False)
    lk.ingest(sparse, paths["sparse"], chunk_rows=CHUNK_ROWS, progress=False)
    cases = [
        Case("lloyd", paths["dense"], lk.Lloyd(), 15),
        Case("nmbatch", paths["dense"], lk.NMBatch(b0=1000, gather=0), 25),
        # With lists, as for many clusters: so few would meet all centres in every pass.
        Case("truncated", paths["dense"], lk.Truncated(neighbours=8), 60),
        # A table of labels is gathered, of rows as few as these; the contract has workers killed
        # in its rounds.
        Case("vrkm", paths["dense"], lk.VRKM(round_rows=3_000), 10),
        Case("nmbatch-sparse", paths["sparse"], lk.NMBatch(b0=1000, gather=0), 15),
    ]
    return {case.name: case for case in cases}
