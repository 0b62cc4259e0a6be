"""State of vc-GMM between steps."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.parts.history import History
from largek_dask.algorithms.starts.coresets import Coreset
from largek_dask.algorithms.truncated.algorithm import EitherState
from largek_dask.algorithms.vcgmm.components import Components
from largek_dask.algorithms.vcgmm.passes import EMPass, NearComponents

MOST_FAILED = 4
"""Maximum failed trials in a row before no more are made."""
MOST_RETIRED = 3
"""Maximum times that components are retired: a far row may make another one collapse."""
PAUSE = 3
"""Iterations without moves between trials."""


@dataclass(frozen=True, slots=True)
class Tried:
    """Results of moves so far."""

    n_failed: int = 0
    """Trials that have failed since one has paid."""
    most: int = 0
    """Maximum moves of the next trial; 0: no limit."""
    failed: tuple[int, ...] = ()
    """Components whose split, tried alone, has failed since the last trial that paid."""
    pause: int = 0
    """Iterations until the next trial, at least."""
    n_retired: int = 0
    """Times that components have been retired."""

    @property
    def gave_up(self) -> bool:
        """True if no more moves are tried."""
        return self.n_failed >= MOST_FAILED

    @property
    def may_retire(self) -> bool:
        """True if no more moves are tried, and components have been retired a few times at most."""
        return self.gave_up and self.n_retired < MOST_RETIRED

    def after(self, split: tuple[int, ...], *, risen: bool, paid: bool) -> Tried:
        """Return the record after a trial of these splits.

        Moves that raise F by next to nothing are kept, but count as failed.
        """
        if paid:
            return Tried(pause=PAUSE, n_retired=self.n_retired)
        return replace(
            self,
            n_failed=self.n_failed + 1,
            most=max(1, len(split) // 2),
            failed=(*self.failed, *split) if len(split) == 1 else self.failed,
            pause=PAUSE if risen else 0,
        )

    def retired(self) -> Tried:
        """Return the record after a retirement: a component may come back if that costs nothing."""
        return Tried(n_retired=self.n_retired + 1)

    def later(self) -> Tried:
        """Return the record one iteration later."""
        return replace(self, pause=max(0, self.pause - 1))

    def without(self) -> Tried:
        """Return the record when there was nothing to try."""
        return replace(self, n_failed=MOST_FAILED)


@dataclass(frozen=True, slots=True)
class Trial:
    """Moves that the next iteration begins with, and the state to go back to unless F rises."""

    before: VCGMMState
    """As it was without them."""
    split: tuple[int, ...]
    """Components that are split."""
    moved: tuple[int, ...]
    """Components that have taken over the second halves."""

    @property
    def pairs(self) -> NDArray[np.int32]:
        """(m, 2) split components and those that move."""
        return np.array([self.split, self.moved], np.int32).T


@dataclass(frozen=True, slots=True)
class VCGMMState:
    """State between two steps."""

    step: int
    shift: NDArray[Any]
    """(d,) origin about which the kernels compute."""
    masses: NDArray[np.float64]
    """(k,) sums of responsibilities times weights in the last iteration."""
    floor: NDArray[np.float64]
    """(1,), or (d,) where features have variances of their own: none is below it."""
    extents: NDArray[np.int64]
    """(d,) powers of two that the rows lie within, about the shift."""
    weight: float
    """Total weight of the rows that are learnt from."""
    coreset: Coreset | None = None
    """The rows that are learnt from; None: all."""
    begun: tuple[tuple[str, float], ...] = ()
    """Evaluations before the first step, to be reported by it: names and numbers."""
    search: EitherState | None = None
    """The search for first means, while it lasts."""
    components: Components | None = None
    """Components of the next iteration; None during the search."""
    coarse: NDArray[Any] | None = None
    """(about sqrt(k), d) coarse centres."""
    looks: int = 0
    """Passes that only look for candidates, before the first M-step."""
    own_from: int = 0
    """Iterations with one variance and equal weights before components have their own; 0 where
    these were given."""
    iteration: int = 0
    """Iterations of EM so far."""
    bound: float = -np.inf
    """F as the last iteration has met it, before its M-step."""
    history: History[EMPass] = field(default_factory=History)
    """Passes over the rows since the last anchor."""
    near: NearComponents | None = None
    """Source of ``table``."""
    table: NDArray[np.int32] | None = None
    """(k, L) lists of components."""
    table_age: int = 0
    """Iterations since the table was made."""
    tried: Tried = field(default_factory=Tried)
    """Results of moves."""
    retiring: NDArray[np.bool_] | None = None
    """(k,) components that are retired before the next iteration."""
    trial: Trial | None = None
    """Moves that are in ``components``, until they have raised F."""
    restored: int | None = None
    """Number of passes of the history whose result the next pass restores."""

    @property
    def known(self) -> Components:
        """Components, once the search for first means has ended."""
        assert self.components is not None
        return self.components
