"""Report on how well a model learnt from a coreset holds for other rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from largek_dask.algorithms.base import Passes
from largek_dask.algorithms.choices import Covariance
from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.starts.coresets import Coreset
from largek_dask.algorithms.vcgmm.passes import EMPass, pass_over

__all__ = ["report_of", "words_of"]

LITTLE, MUCH = 0.02, 0.1
"""Twice the difference of F per feature, about that of the logarithm of the variance: up to the
first a coreset suffices, and from the second on it does not."""


@dataclass(frozen=True, slots=True)
class Met:
    """Figures of a mixture on some rows."""

    rows: int
    bound: float
    """F in nats, per unit of weight."""
    energy: float
    """Squared distance to the means by responsibilities, per unit of weight."""


def report_of(
    passes: Passes,
    coreset: Coreset,
    unseen: Coreset,
    first: EMPass,
    then: EMPass | None,
    covariance: Covariance,
) -> dict[str, float | str]:
    """Return F and energy of a mixture on a coreset, and on rows outside of it.

    Both samples represent the same rows: a row that every coreset contains has no counterpart among
    the unseen ones, so rows count the less, the more certainly they were to be drawn.

    Parameters
    ----------
    passes : Passes
        Over all rows.
    coreset, unseen : Coreset
        The one learnt from, and another one of as many draws.
    first, then : EMPass
        The passes that find the candidates; the first one is an anchor.
    covariance : {"iso", "isoflex", "diag"}

    Returns
    -------
    dict
        ``coreset_rows``, ``coreset_F``, ``coreset_energy``, the same of ``unseen``, and ``words``.
        Empty if all rows were drawn.
    """
    missed = ~np.isin(unseen.rows, coreset.rows)
    if not missed.any() or not coreset.missing.any():
        return {}
    # Still cached, as it was learnt from.
    learnt = passes.subset(coreset.rows, coreset.factors, own_weights=True)
    everything = np.arange(len(coreset.rows))
    seen = _meet(
        learnt.subset(everything, coreset.missing, own_weights=True), first, then, covariance
    )
    others = passes.subset(unseen.rows[missed], unseen.factors[missed], own_weights=True)
    elsewhere = _meet(others, first, then, covariance)
    out: dict[str, float | str] = {}
    for name, met in (("coreset", seen), ("unseen", elsewhere)):
        told = {"rows": met.rows, "F": met.bound, "energy": met.energy}
        out |= {f"{name}_{what}": value for what, value in told.items()}
    k, d = first.components.means.shape
    return out | {"words": words_of(seen, elsewhere, k, d)}


def _meet(sample: Passes, first: EMPass, then: EMPass | None, covariance: Covariance) -> Met:
    """Find candidates and F of a sample, and close it."""
    history: History[EMPass] = History()
    total, _ = pass_over(sample, history, first, covariance, wanted=False)
    if then is not None:
        history = history.then(first.to_keep(), anchor=True)
        total, _ = pass_over(sample, history, then, covariance, wanted=False)
    sums, n_rows = total.sums, sample.n_rows
    sample.close()
    return Met(n_rows, sums.bound / sums.total, sums.squares / sums.total)


def words_of(seen: Met, unseen: Met, k: int, d: int) -> str:
    """Describe the difference, and what it means."""
    lower = seen.bound - unseen.bound
    # Each of few distinct rows may be a mean.
    apart = f" ({100 * (unseen.energy / seen.energy - 1):+.1f} %)" if seen.energy > 0 else ""
    told = (
        f"on the {seen.rows:,} rows of the coreset F is {seen.bound:.6g} nats a row and the energy "
        f"{seen.energy:.6g}, on {unseen.rows:,} rows that it has not seen {unseen.bound:.6g} and "
        f"{unseen.energy:.6g}{apart}"
    )
    gap = 2 * lower / d
    each = f"{seen.rows / k:.3g} rows a component"
    if gap <= LITTLE:
        return f"{told}: what was learnt holds for all rows ({each})"
    if gap <= MUCH:
        return f"{told}: it fits its {each} somewhat better than others; more would do better"
    return f"{told}: it has overfitted its {each}; a larger coreset would do better"
