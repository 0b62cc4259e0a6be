"""Counts of fixed fits, which have no noise: distances, work, passes, bytes, kernels.

They are the same on any machine, so the cost of a change of code shows in them at once.
:mod:`benchmarks.guard` compares them.
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
"""Names of counts in histories, beside ``distances``, which is a share of all."""
Counts = dict[str, int]


class Fit(NamedTuple):
    """One fit, of rows that a seed makes."""

    n_rows: int
    n_features: int
    k: int
    algorithm: Any
    max_iter: int = 60
    density: float = 1.0
    """Share of numbers that are stored; below 1 rows are sparse."""
    kind: str = "mixture"
    """Kind of the synthetic rows."""


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
    """The rows; a mixture has twice as many overlapping components as there are clusters."""
    n, d = fit.n_rows, fit.n_features
    x = generate(fit.kind, n, d, n_components=2 * fit.k if fit.kind == "mixture" else None, seed=11)
    if fit.density == 1:
        return x
    from scipy import sparse

    kept = np.random.default_rng(12).random((n, d)) < fit.density
    return sparse.csr_matrix(np.where(kept, np.abs(x), np.float32(0)))


def estimator_of(fit: Fit) -> lk.KMeans | lk.Mixture:
    """The estimator of a fit."""
    options: dict[str, Any] = {"random_state": 5, "max_iter": fit.max_iter, "n_threads": 1}
    if fit.algorithm == "mixture":
        return lk.Mixture(fit.k, **options)
    return lk.KMeans(fit.k, algorithm=fit.algorithm, **options)


@dataclass
class _Seen:
    """Passes and kernels of watched fits."""

    passes: list[BasePasses] = field(default_factory=list)
    kernels: set[str] = field(default_factory=set)
    """Kernels and types that were compiled, or loaded, because Python called them."""


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
        # What a kernel calls is compiled with it, and does not come up if it is loaded instead.
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
    """Count what a fit of rows in ``CHUNKS`` chunks of a store does.

    Parameters
    ----------
    fit : Fit
    folder : Path
        Where the store goes.

    Returns
    -------
    dict of str to int
        ``steps``; ``passes`` over rows, ``rows`` seen in them and ``bytes read``; ``distances``,
        ``work`` and ``evaluations...`` as the history tells them, where it does; ``kernels`` that
        no fit before in this process had compiled.
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
    """The counts of all fits, in this process."""
    found = {}
    for name, fit in FITS.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = counts_of(fit, Path(folder))
    return found


def table_of_counts(counts: dict[str, Counts]) -> list[str]:
    """Lines of the markdown table of the counts."""
    heads = list(dict.fromkeys(name for found in counts.values() for name in found))
    rows = [
        [name, *(f"{found[head]:,}" if head in found else "" for head in heads)]
        for name, found in counts.items()
    ]
    return table_of(["fit", *heads], rows)


if __name__ == "__main__":
    parse(new_parser(__doc__), counted)
