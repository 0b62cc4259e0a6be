"""Count operations of fixed fits: distances, work, passes, bytes and kernels.

The counts are the same on any machine, so they show at once if a change makes the code slower.
:mod:`benchmarks.guard` compares the counts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba.core.dispatcher import Dispatcher

import largek_dask as lk
from benchmarks.common import new_parser, parse
from benchmarks.synthetic import generate
from benchmarks.tables import table_of
from largek_dask.driver import fit as driver_fit
from largek_dask.passes.base import BasePasses

CHUNKS = 8
SUMMED = ("work", "evaluations", "evaluations_coreset", "evaluations_lists")
"""Names of counts in histories, in addition to ``distances``, which is a fraction."""
Counts = dict[str, int]


class Fit(NamedTuple):
    """Fit of generated rows."""

    n_rows: int
    n_features: int
    k: int
    algorithm: Any
    max_iter: int = 60
    density: float = 1.0
    """Fraction of nonzero values; rows are sparse if it is below 1."""
    kind: str = "mixture"


FITS = {
    "auto": Fit(40_000, 32, 400, "auto"),
    "auto, few directions first": Fit(8_000, 784, 100, "auto", kind="C"),
    "Lloyd": Fit(20_000, 24, 200, lk.Lloyd(), 30),
    "auto, sparse": Fit(20_000, 300, 50, "auto", 30, 0.05),
    "NMBatch, sparse": Fit(20_000, 300, 50, "nmbatch", 30, 0.05),
    "IncrementalLloyd": Fit(30_000, 16, 100, lk.IncrementalLloyd(), 30),
    "Mixture": Fit(30_000, 16, 150, "mixture", 40),
    "PartitionPath": Fit(1_500, 6, 8, lk.PartitionPath("fast")),
}


def rows_of(fit: Fit) -> Any:
    """Return the rows; a mixture has twice as many components as there are clusters."""
    n, d = fit.n_rows, fit.n_features
    x = generate(fit.kind, n, d, n_components=2 * fit.k if fit.kind == "mixture" else None, seed=11)
    if fit.density == 1:
        return x
    from scipy import sparse

    kept = np.random.default_rng(12).random((n, d)) < fit.density
    return sparse.csr_matrix(np.where(kept, np.abs(x), np.float32(0)))


def estimator_of(fit: Fit) -> lk.KMeans | lk.Mixture:
    options: dict[str, Any] = {"random_state": 5, "max_iter": fit.max_iter, "n_threads": 1}
    if fit.algorithm == "mixture":
        return lk.Mixture(fit.k, **options)
    return lk.KMeans(fit.k, algorithm=fit.algorithm, **options)


@dataclass
class _Seen:
    """Passes and kernels of a fit."""

    passes: list[BasePasses] = field(default_factory=list)
    kernels: set[str] = field(default_factory=set)
    """Names and types of kernels that Python code called and that were compiled or loaded."""


@contextmanager
def _watched() -> Iterator[_Seen]:
    seen, depth = _Seen(), 0
    open_passes, compiled = driver_fit.open_passes, Dispatcher.compile

    @contextmanager
    def opened(*given: Any, **options: Any) -> Iterator[BasePasses]:
        with open_passes(*given, **options) as passes:
            seen.passes.append(passes)
            yield passes

    def compile_(self: Any, types: Any) -> Any:
        # Kernels that other kernels call are not counted if these are loaded from the cache.
        nonlocal depth
        if depth == 0:
            seen.kernels.add(f"{self.py_func.__qualname__}{types}")
        depth += 1
        try:
            return compiled(self, types)
        finally:
            depth -= 1

    driver_fit.open_passes, Dispatcher.compile = opened, compile_
    try:
        yield seen
    finally:
        driver_fit.open_passes, Dispatcher.compile = open_passes, compiled


def counts_of(fit: Fit, folder: Path) -> Counts:
    """Count the operations of a fit of a store with ``CHUNKS`` chunks.

    Parameters
    ----------
    fit : Fit
    folder : Path
        Folder for the store.

    Returns
    -------
    dict of str to int
        ``steps``, ``passes``, ``rows`` and ``bytes read`` in these passes; ``distances``, ``work``
        and ``evaluations...`` if the history contains them; ``kernels`` that no earlier fit in this
        process had compiled.
    """
    url = str(folder / "rows.zarr")
    lk.ingest(rows_of(fit), url, chunk_rows=-(-fit.n_rows // CHUNKS), progress=False)
    with _watched() as seen:
        fitted = estimator_of(fit).fit(url)
    history = fitted.history_
    totals = [passes.total for passes in seen.passes]
    counts = {
        "steps": len(history),
        "passes": sum(total.passes for total in totals),
        "rows": sum(total.rows for total in totals),
        "bytes read": sum(total.bytes_read for total in totals),
        "distances": sum(
            step["extra"].get("distances", 0.0) * step["rows"] * fit.k for step in history
        ),
        "kernels": len(seen.kernels),
    }
    counts |= {name: sum(step["extra"].get(name, 0.0) for step in history) for name in SUMMED}
    return {name: round(value) for name, value in counts.items() if value > 0}


def counted() -> dict[str, Counts]:
    """Return the counts of all fits in this process."""
    found = {}
    for name, fit in FITS.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = counts_of(fit, Path(folder))
    return found


def table_of_counts(counts: dict[str, Counts]) -> list[str]:
    heads = list(dict.fromkeys(name for found in counts.values() for name in found))
    rows = [
        [name, *(f"{found[head]:,}" if head in found else "" for head in heads)]
        for name, found in counts.items()
    ]
    return table_of(["fit", *heads], rows)


if __name__ == "__main__":
    parse(new_parser(__doc__), counted)
