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
"""Number of successive failed trials after which no more are made."""
MOST_RETIRED = 3
"""Maximum number of retirements: a far row may make another component collapse each time."""
PAUSE = 3
"""Iterations without moves between trials."""


@dataclass(frozen=True, slots=True)
class Tried:
    """Record of the trials of moves so far."""

    n_failed: int = 0
    """Number of failed trials since the last successful one."""
    most: int = 0
    """Maximum number of moves in the next trial; 0 means no limit."""
    failed: tuple[int, ...] = ()
    """Components whose split, tried alone, has failed since the last successful trial."""
    pause: int = 0
    """Minimum iterations until the next trial."""
    n_retired: int = 0
    """Number of times that components have been retired."""

    @property
    def gave_up(self) -> bool:
        """True if no more moves are tried."""
        return self.n_failed >= MOST_FAILED

    @property
    def may_retire(self) -> bool:
        """True if no more moves are tried, and the maximum number of retirements is not reached."""
        return self.gave_up and self.n_retired < MOST_RETIRED

    def after(self, split: tuple[int, ...], *, risen: bool, paid: bool) -> Tried:
        """Return the record after a trial of these splits.

        Moves that hardly raise F are kept but count as failed.
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
        """Return the record after a retirement; a retired component may be revived at no cost."""
        return Tried(n_retired=self.n_retired + 1)

    def later(self) -> Tried:
        """Return the record one iteration later."""
        return replace(self, pause=max(0, self.pause - 1))

    def without(self) -> Tried:
        """Return the record after an iteration in which there was no move to try."""
        return replace(self, n_failed=MOST_FAILED)


@dataclass(frozen=True, slots=True)
class Trial:
    """Moves that the next iteration applies, and the state to restore unless F rises."""

    before: VCGMMState
    """State before the moves."""
    split: tuple[int, ...]
    """Components that the moves split."""
    moved: tuple[int, ...]
    """Components that take over the second halves."""

    @property
    def pairs(self) -> NDArray[np.int32]:
        """(m, 2) pairs: a component that is split, and the one that takes over a half."""
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
    """Lower limit of variances: (1,), or (d,) if there is a variance per feature."""
    extents: NDArray[np.int64]
    """(d,) extents: powers of two that bound the rows' distances from the shift."""
    weight: float
    """Total weight of the rows used for learning."""
    coreset: Coreset | None = None
    """Rows used for learning; None for all rows."""
    begun: tuple[tuple[str, float], ...] = ()
    """Numbers of evaluations before the first step, by name; the first step reports them."""
    search: EitherState | None = None
    """State of the search for first means; None once it has ended."""
    components: Components | None = None
    """Components of the next iteration; None during the search."""
    coarse: NDArray[Any] | None = None
    """(about sqrt(k), d) coarse centres."""
    looks: int = 0
    """Remaining passes that only search for candidates, before the first M-step."""
    own_from: int = 0
    """Iterations with a shared variance and equal weights, before each component has its own; 0 if
    these were given."""
    iteration: int = 0
    """Number of iterations of EM so far."""
    bound: float = -np.inf
    """F in the last iteration, before its M-step."""
    history: History[EMPass] = field(default_factory=History)
    """History of passes over the rows since the last anchor."""
    near: NearComponents | None = None
    """Source of ``table``."""
    table: NDArray[np.int32] | None = None
    """(k, L) lists of nearest components."""
    table_age: int = 0
    """Iterations since the table was made."""
    tried: Tried = field(default_factory=Tried)
    """Record of the trials of moves."""
    retiring: NDArray[np.bool_] | None = None
    """(k,) mask of components to retire before the next iteration."""
    trial: Trial | None = None
    """Moves included in ``components`` whose effect on F is still unknown."""
    restored: int | None = None
    """Number of passes in the history up to the result that the next pass restores."""

    @property
    def known(self) -> Components:
        """The components; only valid once the search for first means has ended."""
        assert self.components is not None
        return self.components
