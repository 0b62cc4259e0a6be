"""What a fit in this process loads: nothing of a cluster, and nothing that draws."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ABSENT = ("distributed", "bokeh", "tornado", "pydantic", "matplotlib", "click", "rich")
"""Packages for clusters, dashboards, jobs, plots and the command line."""

BEGIN = """
import json, sys
import numpy as np
from largek_dask import KMeans
x = np.random.default_rng(0).normal(size=(600, 4)).astype(np.float32)
"""
END = """
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""
LOCAL = {
    "an array": """
km = KMeans(4, random_state=0).fit(x)
assert (km.predict(x) == km.labels_).all()
assert km.model_.score(x) and km.transform(x).shape == (600, 4)
""",
    "sparse rows": """
from scipy.sparse import csr_matrix
KMeans(4, random_state=0).fit(csr_matrix(np.abs(x)))
""",
    "a store, with checkpoints and a model that is loaded": """
import zarr
from largek_dask import load_model
zarr.save_array("x.zarr", x)
km = KMeans(4, random_state=0, checkpoint="run").fit("x.zarr")
km.model_.save("model.zarr")
load_model("model.zarr").predict("x.zarr", out="labels.zarr")
""",
    "every partition": "assert len(KMeans(3, algorithm='dcdbundle', random_state=0).fit(x).path_)",
}
CLUSTER = """
import largek_dask
largek_dask.connect
"""


def loaded_by(code: str, folder: Path) -> set[str]:
    """Top-level packages that a new interpreter has loaded after this code."""
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code + END],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("what", LOCAL)
def test_a_local_fit_loads_nothing_of_a_cluster(what: str, tmp_path: Path) -> None:
    assert all(importlib.util.find_spec(name) for name in ABSENT)
    loaded = loaded_by(LOCAL[what], tmp_path)
    assert {"largek_dask", "numba", "dask"} <= loaded
    assert loaded.isdisjoint(ABSENT)


def test_what_a_cluster_needs_is_seen_where_it_is_loaded(tmp_path: Path) -> None:
    assert {"distributed", "tornado", "pydantic"} <= loaded_by(CLUSTER, tmp_path)


def test_a_scheduler_and_a_worker_load_no_optimizer(tmp_path: Path) -> None:
    """Half a second of each process: what needs it loads it. (scikit-learn's estimators do.)"""
    code = "import largek_dask.passes.worker, largek_dask.service.plugin, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    loaded = set(done.stdout.split())
    assert {"numba", "largek_dask.algorithms.dcd.search"} <= loaded
    assert "scipy.optimize" not in loaded
