"""What a fit in this process loads: nothing of a cluster, and nothing that draws."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ABSENT = ("distributed", "bokeh", "tornado", "pydantic", "matplotlib", "click", "rich")
"""Packages for clusters, dashboards, jobs, plots and the command line."""

LOCAL = """
import json, sys
import numpy as np
import zarr
from scipy.sparse import csr_matrix
import largek_dask
from largek_dask import KMeans, load_model

def loaded():
    print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))

x = np.random.default_rng(0).normal(size=(600, 3)).astype(np.float32)
km = KMeans(4, random_state=0).fit(x)
assert (km.predict(x) == km.labels_).all()
assert km.model_.score(x) and km.transform(x).shape == (600, 4)
KMeans(4, random_state=0).fit(csr_matrix(np.abs(x)))
zarr.save_array("x.zarr", x)
km = KMeans(4, random_state=0, checkpoint="run").fit("x.zarr")
km.model_.save("model.zarr")
load_model("model.zarr").predict("x.zarr", out="labels.zarr")
assert len(KMeans(3, algorithm="partition-path", random_state=0).fit(x).path_)
loaded()
largek_dask.connect
loaded()
"""


def test_a_local_fit_loads_nothing_of_a_cluster(tmp_path: Path) -> None:
    """Rows in memory, sparse rows, a store with checkpoints, every partition."""
    done = subprocess.run(
        [sys.executable, "-c", LOCAL], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    local, cluster = (set(json.loads(line)) for line in done.stdout.splitlines()[-2:])
    assert {"largek_dask", "numba", "dask"} <= local
    assert local.isdisjoint(ABSENT)
    assert {"distributed", "tornado", "pydantic"} <= cluster


def test_a_scheduler_and_a_worker_load_no_optimizer(tmp_path: Path) -> None:
    """Half a second of each process: what needs it loads it. (scikit-learn's estimators do.)"""
    code = "import largek_dask.passes.worker, largek_dask.service.plugin, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    loaded = set(done.stdout.split())
    assert {"numba", "largek_dask.algorithms.partition_path.operators"} <= loaded
    assert "scipy.optimize" not in loaded
