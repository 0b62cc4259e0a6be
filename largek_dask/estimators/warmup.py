"""Compile the kernels of common fits in advance, on one machine or on all machines of a cluster.

A kernel is compiled on its first call, for the types of its arguments, and cached in a folder that
all processes of a machine share. Warming up therefore runs small fits of every kind, with a
separate process for each kind of rows, and discards their results.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dask.config
import numpy as np

from largek_dask import config
from largek_dask.algorithms.truncated import Truncated
from largek_dask.driver.formatting import human_seconds
from largek_dask.errors import ClusterError
from largek_dask.kernels.bounds.boxes import Boxes
from largek_dask.kernels.bounds.prefix import Prefix
from largek_dask.kernels.bounds.pruned import BOXED_FEATURES, FEWEST_DIRECT
from largek_dask.kernels.code_cache import cache_folder, unsaved
from largek_dask.kernels.distances import decide, pack_centers
from largek_dask.kernels.jit import saves_code
from largek_dask.kernels.tile import DIRECT_FEATURES
from largek_dask.passes.local import available_cpus

if TYPE_CHECKING:
    from distributed import Client

KINDS = ("float32", "float64", "sparse float32", "sparse float64")
"""Kinds of rows. They share no kernels, so each kind has its own process."""
MANY = ("many clusters of float32", "many clusters of float64")
"""Kinds of kernels that only fits of very many clusters need."""
PRUNED = (8, 9, BOXED_FEATURES, BOXED_FEATURES + 1)
"""Numbers of features that select the direct form, each box width, and the prefix search."""
DIRECTIONS = 16
"""Number of directions in a projected search; the kernels do not depend on this number."""
NOTE = "warmed.json"
"""File in the cache folder that records the compiled kinds and the number of kernels."""


@dataclass(frozen=True, slots=True)
class Warmed:
    """Result of a warm-up on one machine."""

    host: str
    folder: str
    """Path of the machine's kernel cache."""
    kernels: int
    """Number of kernels that this warm-up compiled."""
    there: int
    """Number of kernels in the cache."""
    seconds: float

    def words(self) -> str:
        """Return a line of text that describes the result."""
        if not self.there:
            return f"{self.host}: compiled kernels cannot be saved ({unsaved()})"
        if not self.kernels:
            return f"{self.host}: nothing to do, {self.there} kernels are cached"
        return f"{self.host}: {self.kernels} kernels compiled, {human_seconds(self.seconds)}"


def warmup(client: Client | None = None, *, n_clusters: int | None = None) -> list[Warmed]:
    """Compile the kernels of common fits in advance.

    Covers ``KMeans`` with ``algorithm`` "auto", "lloyd" and "nmbatch", few and many clusters,
    float32 and float64, dense and sparse rows in memory and in stores, with and without weights,
    and the methods ``predict``, ``transform`` and ``score``. Cached kernels are not compiled again.
    Progress is printed on standard error, or to the logs of workers.

    Fits with at least 4,096 clusters (1,536 with up to 8 features, fewer with more than 32
    features) use additional kernels on large tables; set ``n_clusters`` to compile these as well.

    Parameters
    ----------
    client : distributed.Client, optional
        Compile on the machines of its workers, once per cache folder; None for this machine.
    n_clusters : int, optional
        Largest number of clusters in planned fits. From 1,536 on, the kernels for many clusters are
        compiled as well.

    Returns
    -------
    list of Warmed
        One result per machine.

    Raises
    ------
    ClusterError
        The cluster has no workers, or compiling failed on the machine that the message names.

    Examples
    --------
    >>> import largek_dask as lk
    >>> for machine in lk.warmup():  # doctest: +SKIP
    ...     print(machine.host, machine.kernels, machine.seconds)
    """
    kinds = KINDS if n_clusters is None or n_clusters < FEWEST_DIRECT else KINDS + MANY
    if client is None:
        return [_warm(kinds)]
    homes: dict[str, tuple[str, str]] = client.run(_home)
    if not homes:
        raise ClusterError("the cluster has no workers: start some, or call warmup() on each host")
    # Choose one worker per cache folder.
    chosen = {home: worker for worker, home in homes.items()}
    # A coroutine blocks neither a thread that runs tasks nor the event loop of the worker.
    return [*client.run(_warm_on_worker, kinds, workers=list(chosen.values())).values()]


def _home() -> tuple[str, str]:
    return socket.gethostname(), str(cache_folder())


async def _warm_on_worker(kinds: tuple[str, ...]) -> Warmed:
    return await asyncio.to_thread(_warm, kinds)


def _warm(kinds: tuple[str, ...]) -> Warmed:
    begun, before, done = time.monotonic(), _n_kernels(), _done()
    missing = [kind for kind in kinds if kind not in done] if saves_code() else []
    with ThreadPoolExecutor(available_cpus()) as pool:
        list(pool.map(_in_process, missing))
    there = _n_kernels()
    if missing:
        _note((*done, *missing), there)
    return Warmed(*_home(), there - before, there, time.monotonic() - begun)


def _in_process(kind: str) -> None:
    """Run the fits of one kind in a separate process with the same settings."""
    folder, tile = config.get("kernels.cache-dir"), config.get("kernels.tile")
    environment = os.environ | {"DASK_LARGEK__KERNELS__TILE": str(tile)}
    if folder is not None:
        environment["DASK_LARGEK__KERNELS__CACHE_DIR"] = str(folder)
    code = subprocess.run([sys.executable, "-m", __name__, kind], env=environment).returncode
    if code:
        raise ClusterError(
            f"the process that compiles kernels for {kind} rows on {socket.gethostname()} failed "
            f"with exit code {code}: see standard error, or the worker's log"
        )


def _n_kernels() -> int:
    return len(list(cache_folder().glob("*.bin")))


def _done() -> tuple[str, ...]:
    """Return the kinds whose kernels are all cached; an empty tuple if kernels were removed."""
    try:
        note = json.loads((cache_folder() / NOTE).read_text())
        return tuple(note["kinds"]) if note["kernels"] <= _n_kernels() else ()
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _note(kinds: Sequence[str], n_kernels: int) -> None:
    """Record the compiled kinds, unless kernels cannot be cached."""
    if not n_kernels:
        return
    path = cache_folder() / NOTE
    aside = path.with_name(f"{NOTE}.{os.getpid()}.tmp")
    aside.write_text(json.dumps({"kinds": kinds, "kernels": n_kernels}))
    os.replace(aside, path)


# --- in a separate process ------------------------------------------------------------------------


def fits_of(
    kind: str, folder: Path, narrow: Sequence[int] = tuple(range(1, DIRECT_FEATURES + 1))
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the name and function of each fit for a kind of rows.

    Parameters
    ----------
    kind : str
        One of ``KINDS`` or ``MANY``.
    folder : Path
        Folder for stored rows.
    narrow : sequence of int
        Numbers of features that have kernels of their own.
    """
    dtype = np.dtype(kind.rpartition(" ")[2])
    if kind in MANY:
        for d in PRUNED:
            yield f"{kind}, {d} features", partial(_search_pruned, d, dtype)
        return
    if kind.startswith("sparse"):
        yield from _sparse_fits(dtype)
        return
    yield f"{kind}, rows in doubt", partial(_decide_labels, dtype)
    # Kernels for weights and for stored rows do not depend on the number of features.
    plain = [(n, d, k) for d in narrow if d != 6 for n, k in ((1_500, 8), (24_000, 300))]
    every = [(1_500, 6, 8), (6_000, 6, 60), (24_000, 6, 300), (24_000, 70, 300)]
    for n, d, k in (*plain, *every):
        name = f"{kind}, {d} features, {k} clusters"
        x = _rows(n, d).astype(dtype)
        if (n, d, k) in every:
            weight = np.linspace(1, 2, n)
            yield f"{name}, weighted", partial(_fit, x, k, sample_weight=weight)
            yield f"{name}, stored", partial(_fit_stored, x, k, folder / f"{d}-{k}.zarr")
            if d > 2 * DIRECTIONS:
                few: dict[str, Any] = {"algorithm": Truncated(directions=DIRECTIONS), "max_iter": 3}
                yield f"{name}, {DIRECTIONS} directions first", partial(_fit, x, k, **few)
        yield name, partial(_fit, x, k, use=True)
        for algorithm in ("lloyd", "nmbatch"):
            yield f"{name}, {algorithm}", partial(_fit, x, k, algorithm=algorithm)


def _sparse_fits(dtype: np.dtype[Any]) -> Iterator[tuple[str, Callable[[], object]]]:
    from scipy.sparse import csr_matrix

    for k in (8, 300):
        x = csr_matrix(np.maximum(_rows(6_000, 60) - 0.8, 0).astype(dtype))
        name = f"sparse {dtype}, {k} clusters"
        yield name, partial(_fit, x, k, use=True)
        yield f"{name}, weighted", partial(_fit, x, k, sample_weight=np.linspace(1, 2, 6_000))
        for algorithm in ("lloyd", "nmbatch"):
            yield f"{name}, {algorithm}", partial(_fit, x, k, algorithm=algorithm)


def _search_pruned(d: int, dtype: np.dtype[Any]) -> None:
    """Call the kernels for many clusters with a small number of centres."""
    x = np.random.default_rng(0).normal(size=(300, d)).astype(dtype)
    labels, left = np.empty(len(x), np.int32), np.empty(len(x), np.int64)
    packed = pack_centers(x, np.zeros(d, dtype))
    made = Boxes(packed) if d <= BOXED_FEATURES else Prefix(packed, np.eye(8, d, dtype=dtype))
    made.search(x, 0, len(x), (labels,), left)


def _decide_labels(dtype: np.dtype[Any]) -> None:
    """Compile the kernel that decides doubtful labels, which the other fits may not call."""
    x = _rows(100, 70).astype(dtype)
    packed = pack_centers(x[:9], np.zeros(70, dtype))
    decide(x, np.arange(100), np.full(100, np.inf), packed)


def _rows(n: int, d: int) -> Any:
    """Generate ``n`` random rows in overlapping groups."""
    draws = np.random.default_rng(0)
    centers = draws.normal(size=(500, d))
    return centers[draws.integers(len(centers), size=n)] + draws.normal(size=(n, d)) / 2


def _fit(x: Any, k: int, *, use: bool = False, sample_weight: Any = None, **options: Any) -> None:
    """Fit with two threads; if ``use`` is True, also call the methods of the model."""
    from largek_dask.estimators.kmeans import KMeans

    km = KMeans(k, random_state=0, n_threads=2, **options).fit(x, sample_weight=sample_weight)
    if use:
        km.predict(x)
        km.transform(x[:100])
        km.score(x)


def _fit_stored(x: Any, k: int, path: Path) -> None:
    from largek_dask.data.ingest import ingest

    ingest(x, str(path), chunk_rows=-(-len(x) // 5), progress=False)
    # Read each small chunk separately.
    with dask.config.set({"largek.data.read-chunk-bytes": 1}):
        _fit(str(path), k)


def main(kind: str, **which: Any) -> None:
    """Run the fits of a kind, and print the number of kernels that each compiled."""
    import tempfile
    import warnings

    from largek_dask.kernels.compiling import compiled

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="largek-warmup-") as folder:
        for name, make in fits_of(kind, Path(folder), **which):
            before = compiled()
            make()
            found = compiled().since(before)
            if found.functions:
                text = f"{name}: {found.functions} functions, {found.seconds:.1f} s"
                print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
