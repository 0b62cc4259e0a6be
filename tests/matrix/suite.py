"""What is tried in each environment: run as a file by its Python, with the package installed there.

    python suite.py [CHECK ...]

Prints a line of JSON for each check: its name, what it told or the error, and its seconds. It needs
nothing but the package and its extras: no pytest, and no other file of the project.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

Told = dict[str, Any]

SHOWN = ("numpy", "numba", "scipy", "scikit-learn", "dask", "zarr", "pandas", "pyarrow")
"""Packages whose versions are told."""
TIMEOUT = 1_200.0
"""Seconds after which a command or a job hangs: kernels are compiled meanwhile."""


def rows(n: int = 1_500, d: int = 6) -> Any:
    """Three groups of rows, of the raw numbers of a generator: the same bits by any NumPy."""
    raw = np.random.Philox(key=7).random_raw(n * d)
    noise = ((raw >> np.uint64(11)) * 2.0**-53).reshape(n, d)
    return (noise + 4 * (np.arange(n) % 3)[:, None]).astype(np.float32)


def check_import(_: Path) -> Told:
    """The package is the installed one, in the version that its metadata say; so are all extras."""
    import aiobotocore
    import h5py
    import matplotlib
    import pyarrow
    import s3fs

    import largek_dask as lk

    assert lk.__version__ == version("largek_dask"), (lk.__version__, version("largek_dask"))
    assert Path(lk.__file__).is_relative_to(sys.prefix), lk.__file__
    for extra in (aiobotocore, h5py, matplotlib, pyarrow, s3fs):
        assert extra.__version__
    return {"python": sys.version.split()[0], "versions": {name: version(name) for name in SHOWN}}


def digest(estimator: Any, data: Any) -> str:
    """The digest of a fit that predicts its own labels."""
    estimator.fit(data)
    assert np.array_equal(estimator.predict(data), estimator.labels_), estimator
    found: str = estimator.model_.digest()
    return found


def check_fits(_: Path) -> Told:
    """Small fits of dense rows: by the default, and exact k-means."""
    import largek_dask as lk

    x = rows()
    return {
        "digests": {
            "auto": digest(lk.KMeans(9, random_state=1), x),
            "lloyd": digest(lk.KMeans(9, algorithm="lloyd", random_state=1), x),
        }
    }


def check_others(_: Path) -> Told:
    """Small fits of all else: doubles, sparse rows, a mixture, every partition up to k."""
    from scipy.sparse import csr_matrix

    import largek_dask as lk

    x = rows()
    wide = x.astype(np.float64)
    sparse = csr_matrix(np.where(x > 4.5, x, 0))
    return {
        "digests": {
            "doubles": digest(lk.KMeans(9, algorithm="lloyd", random_state=1), wide),
            "sparse": digest(lk.KMeans(9, random_state=1), sparse),
            "mixture": digest(lk.Mixture(5, covariance="diag", random_state=1), x),
            "path": digest(lk.KMeans(4, algorithm="partition-path", random_state=1), x),
        }
    }


def check_files(folder: Path) -> Told:
    """Rows from every kind of file are the same; a checkpoint, a model saved and loaded."""
    import h5py
    import pandas as pd

    import largek_dask as lk

    x = rows()
    frame = pd.DataFrame(x, columns=list("abcdef"))
    frame.to_parquet(folder / "x.parquet", index=False)
    frame.to_csv(folder / "x.csv", index=False)
    np.save(folder / "x.npy", x)
    with h5py.File(folder / "x.h5", "w") as file:
        file["x"] = x
    for name in ("x.parquet", "x.csv", "x.npy", "x.h5"):
        store = str(folder / f"{name}.zarr")
        lk.ingest(str(folder / name), store, progress=False, chunk_rows=500)
        found = lk.open_rows(store)
        assert found.shape == x.shape, name
        # A text file has no type: its numbers are doubles.
        first = found.read(0).astype(np.float32)
        assert np.array_equal(first, x[: len(first)]), name
    store, run = str(folder / "x.parquet.zarr"), str(folder / "run")
    km = lk.KMeans(9, random_state=1, algorithm="lloyd", checkpoint=run).fit(store)
    km.model_.save(str(folder / "model.zarr"))
    model = lk.load_model(str(folder / "model.zarr"))
    model.predict(store, out=str(folder / "labels.zarr"))
    assert np.array_equal(model.predict(x), km.labels_)
    return {"steps": km.n_iter_}


def check_job(folder: Path) -> Told:
    """A cluster of two processes: a fit, a job, the bits of a local fit; the dashboard answers."""
    from distributed import Client, LocalCluster

    import largek_dask as lk

    store = str(folder / "job.zarr")
    lk.ingest(rows(), store, progress=False, chunk_rows=500)
    options = {"algorithm": "lloyd", "random_state": 1}
    local = lk.KMeans(9, **options).fit(store).model_.digest()
    cluster = LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0", silence_logs=50
    )
    with cluster, Client(cluster, set_as_default=False) as client:
        assert lk.KMeans(9, client=client, **options).fit(store).model_.digest() == local
        service = lk.connect(client, store=str(folder / "jobs"))
        job = service.submit(
            store, n_clusters=9, algorithm="lloyd", seed=1, output=str(folder / "job")
        )
        assert job.result(timeout=TIMEOUT).digest() == local
        with urllib.request.urlopen(client.dashboard_link, timeout=TIMEOUT) as page:
            assert page.status == 200, page.status
            assert b"bokeh" in page.read().lower()
    return {"digest": local}


def largek(*arguments: str) -> str:
    """What the installed command prints."""
    command = Path(sys.executable).parent / "largek"
    done = subprocess.run([command, *arguments], capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, f"largek {arguments[0]}: {done.stderr.strip()[-500:]}"
    return done.stdout


def check_shell(folder: Path) -> Told:
    """The command line: help, a fit, labels, what `doctor` says."""
    data, run = str(folder / "shell.npy"), str(folder / "shell")
    np.save(data, rows())
    assert "demo" in largek("--help")
    told = json.loads(largek("fit", data, "-k", "9", "--out", run, "--json"))
    largek("predict", f"{run}/model.zarr", data, "--out", str(folder / "shell-labels.zarr"))
    assert told["digest"] in largek("fit", data, "-k", "9", "--out", run, "--json")
    assert json.loads(largek("doctor", "--json"))["findings"]
    return {"digest": told["digest"]}


def check_demo(folder: Path) -> Told:
    """The demo, with fewer patches and codewords."""
    out = folder / "demo"
    told = largek("demo", "--out", str(out), "--stride", "8", "-k", "12", "--json")
    assert (out / "codebook.png").stat().st_size > 10_000
    return {"digest": json.loads(told)["digest"]}


CHECKS: dict[str, Callable[[Path], Told]] = {
    "import": check_import,
    "fits": check_fits,
    "others": check_others,
    "files": check_files,
    "job": check_job,
    "shell": check_shell,
    "demo": check_demo,
}


def main() -> None:
    """Run the checks that are named, or all."""
    # What others warn of is theirs: an old release beside a new one of what it needs.
    warnings.filterwarnings("error", module="largek_dask")
    with tempfile.TemporaryDirectory() as name:
        for check in sys.argv[1:] or CHECKS:
            begun = time.perf_counter()
            try:
                told = CHECKS[check](Path(name))
            except Exception as error:
                told = {"error": f"{type(error).__name__}: {error}"}
            seconds = time.perf_counter() - begun
            print(json.dumps({"check": check, "seconds": seconds, **told}), flush=True)


if __name__ == "__main__":
    main()
