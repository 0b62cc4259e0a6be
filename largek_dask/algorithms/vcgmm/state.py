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
"""Number of successive failed trials after which no more moves are tried."""
MOST_RETIRED = 3
"""Maximum number of retirements: a distant row may make another component collapse each time."""
PAUSE = 3
"""Number of iterations without moves between two trials."""


@dataclass(frozen=True, slots=True)
class Tried:
    """Record of the trials of moves so far."""

    n_failed: int = 0
    most: int = 0
    """Maximum number of moves in the next trial; 0 means no limit."""
    failed: tuple[int, ...] = ()
    """Components whose split failed when it was tried alone, since the last successful trial."""
    pause: int = 0
    """Minimum number of iterations until the next trial."""
    n_retired: int = 0

    @property
    def gave_up(self) -> bool:
        """True if no more moves are tried."""
        return self.n_failed >= MOST_FAILED

    @property
    def may_retire(self) -> bool:
        """True if no more moves are tried, and the maximum number of retirements is not reached."""
        return self.gave_up and self.n_retired < MOST_RETIRED

    def after(self, split: NDArray[np.int32], *, risen: bool, paid: bool) -> Tried:
        """Return the record after a trial of the splits of some components ``split`` (m,).

        Moves that raise F very little are kept, but count as failed.
        """
        if paid:
            return Tried(pause=PAUSE, n_retired=self.n_retired)
        return replace(
            self,
            n_failed=self.n_failed + 1,
            most=max(1, len(split) // 2),
            failed=(*self.failed, *split.tolist()) if len(split) == 1 else self.failed,
            pause=PAUSE if risen else 0,
        )

    def retired(self) -> Tried:
        """Return the record after a retirement; moves may be tried again."""
        return Tried(n_retired=self.n_retired + 1)

    def without(self) -> Tried:
        """Return the record after an iteration in which no move was worth trying."""
        return replace(self, n_failed=MOST_FAILED)


@dataclass(frozen=True, slots=True)
class Trial:
    """Moves that the next iteration applies, and the state to restore unless F rises."""

    before: VCGMMState
    pairs: NDArray[np.int32]
    """(m, 2) pairs of a component that is split, and the component that takes over a half."""


@dataclass(frozen=True, slots=True)
class VCGMMState:
    """State between two steps."""

    step: int
    shift: NDArray[Any]
    masses: NDArray[np.float64]
    """(k,) total responsibilities in the last iteration, weighted by the weights of rows."""
    floor: NDArray[np.float64]
    """Lower limit of variances: (1,), or (d,) if each feature has its own variance."""
    extents: NDArray[np.int64]
    """(d,) powers of two that bound the distances of the rows from the shift, per feature."""
    weight: float
    coreset: Coreset | None = None
    """Rows used for learning; None if all rows are used."""
    begun: tuple[tuple[str, float], ...] = ()
    """Numbers of evaluations before the first step, which reports them by name."""
    search: EitherState | None = None
    components: Components | None = None
    coarse: NDArray[Any] | None = None
    looks: int = 0
    """Remaining passes that only search for candidates, before the first M-step."""
    own_from: int = 0
    """Number of first iterations with a shared variance and equal weights; 0 if the user gave
    variances."""
    iteration: int = 0
    bound: float = -np.inf
    """F in the last iteration, before its M-step."""
    history: History[EMPass] = field(default_factory=History)
    near: NearComponents | None = None
    table: NDArray[np.int32] | None = None
    table_age: int = 0
    tried: Tried = field(default_factory=Tried)
    retiring: NDArray[np.bool_] | None = None
    """(k,) mask of components to retire before the next iteration."""
    trial: Trial | None = None
    """Moves that are already applied to ``components``, but whose effect on F is still unknown."""
    restored: int | None = None
    """Number of passes in the history before the undone moves; None if no moves were undone."""

    @property
    def known(self) -> Components:
        """Components, after the search for the first means has ended."""
        assert self.components is not None
        return self.components
