"""Rows that are held and searched in the driver's process."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Passes, Rng, RowSample
from largek_dask.algorithms.dcd.samples import Sample
from largek_dask.kernels.blocks import readonly
from largek_dask.kernels.descent import CenteredRows

__all__ = ["count_distinct", "distinct_rows", "hold_rows", "taken_rows"]

Floats = NDArray[np.float64]


def taken_rows(passes: Passes, rng: Rng, sample: Sample | None = None) -> tuple[Floats, Floats]:
    """Return rows of positive weight, and their weights, in float64.

    They are cached from step to step: on a cluster they are fetched once.

    Parameters
    ----------
    passes : Passes
    rng : Rng
    sample : Sample, optional
        Rows to take; None: all of them, by index.

    Returns
    -------
    x : (n, d) float64
        In the coordinates of the data.
    weight : (n,) float64
        Positive.
    """
    if sample is None:
        whole = RowSample(rng, "all rows", passes.n_rows, ascending=True)
        x, weight, _ = passes.subset(whole).take()
    else:
        x, weight, _ = passes.subset(sample.rows, sample.factors, own_weights=True).take()
    x = np.asarray(x, np.float64)
    weight = np.ones(len(x)) if weight is None else np.asarray(weight, np.float64)
    there = weight > 0
    return (x, weight) if there.all() else (x[there], weight[there])


def hold_rows(
    passes: Passes, rng: Rng, origin: Floats, sample: Sample | None = None
) -> CenteredRows:
    """Return the same about an origin (d,), arranged for a search."""
    x, weight = taken_rows(passes, rng, sample)
    return CenteredRows.of(x - origin, weight)


def count_distinct(x: Floats, enough: int) -> int:
    """Return the number of distinct rows, at most ``enough``."""
    few = x[: 4 * enough]
    if len(few) < len(x) and len(np.unique(few, axis=0)) >= enough:
        return enough
    return min(enough, len(np.unique(x, axis=0)))


def distinct_rows(x: Floats) -> Floats:
    """Return the distinct rows, in lexicographic order."""
    return readonly(np.unique(x, axis=0))
