"""Rules that end a fit, and records of its steps.

Stop rules depend only on the record of the last step, the number of steps and the seconds used. So
a resumed fit stops where an uninterrupted fit would stop, unless the rules change.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from largek_dask.errors import ParameterError

if TYPE_CHECKING:
    from largek_dask.algorithms.base import Info

MOST_STEPS = 10_000
"""Maximum number of records in a history; older records are dropped."""

End = Literal["finished", "failed", "cancelled"]
ENDS: tuple[str, ...] = get_args(End)

StopReason = Literal[
    "converged",
    "tol",
    "max_iter",
    "max_time",
    "max_time_without_last_pass",
    "max_time_without_search",
    "callback",
    "cancelled",
    "interrupted",
]
"""Reason why a fit ended. If several reasons apply, the first in this list is used.

converged
    No label changed in a step.
tol
    The change in a step is at most ``tol`` (see :class:`StopRules`).
max_iter, max_time
    The limit on steps or time was reached.
max_time_without_last_pass
    A limit was reached, and there is no time for the last pass over all rows and centres. Labels
    and objective come from a search that compared each row with only a few centres.
max_time_without_search
    The time limit was reached before there was a model. The centres (or means) are the ``init``
    array, or sampled rows, as with ``init="random"``.
callback
    A callback returned a true value.
cancelled
    A stop was requested.
interrupted
    Ctrl-C was pressed.
"""


class StepRecord(TypedDict):
    """Record of one step in the history of a fit, as plain JSON values."""

    step: int
    """Number of the step, from 1."""
    cost: float | None
    """Objective in this step (the inertia for k-means); None if not finite."""
    rows: int
    seconds: float
    """Seconds from the start of the fit to the end of this step, including earlier runs."""
    n_changed: int | None
    """Number of rows whose label changed; None if unknown."""
    shift: float | None
    """Squared movement of the centres relative to the mean variance of the features."""
    converged: bool
    extra: dict[str, float | None]
    """Additional values reported by the algorithm; a value that is not finite becomes None."""


def record_of(step: int, info: Info, seconds: float) -> StepRecord:
    return StepRecord(
        step=step,
        cost=_finite(info.cost),
        rows=int(info.rows),
        seconds=float(seconds),
        n_changed=None if info.n_changed is None else int(info.n_changed),
        shift=None if info.shift is None else _finite(info.shift),
        converged=bool(info.converged),
        extra={name: _finite(value) for name, value in info.extra.items()},
    )


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def last_steps(history: Sequence[StepRecord], n_iter: int) -> list[StepRecord]:
    """Return the last ``MOST_STEPS`` records of the first ``n_iter`` steps."""
    return [record for record in history if n_iter - MOST_STEPS < record["step"] <= n_iter]


def sample_of(record: Mapping[str, Any], n_rows: int) -> int | None:
    """Return the number of rows in a step's sample; None if the step used all rows.

    A cost on a sample is scaled to all rows. It is lower than the cost on all rows, because the
    centres are fitted to the sample.
    """
    extra = record.get("extra") or {}
    on_sample = extra.get("everywhere", 1) == 0 or extra.get("batch_rows", n_rows) < n_rows
    return int(record["rows"]) if on_sample else None


@dataclass(frozen=True, slots=True)
class StopRules:
    """Limits of a fit; raises ParameterError if one is invalid.

    Parameters
    ----------
    max_iter : int
        Maximum number of steps of one start, at least 1. A step assigns once all rows, or the rows
        of the current batch or sample.
    tol : float
        Stop when the change in a step (``Algorithm.change``) is at most this; in k-means, when the
        squared movement of the centres is at most ``tol`` times the mean variance of the features
        (scikit-learn's ``tol``). With 0, stop when no label changes.
    max_time : float or str, optional
        Seconds, or a text such as ``"90s"``, ``"30m"`` or ``"6h"``. Includes the time before a
        resume, and the estimated time of the last pass. An interrupted step is discarded.
    """

    max_iter: int = 300
    tol: float = 1e-4
    max_time: float | str | None = None

    def __post_init__(self) -> None:
        max_iter: object = self.max_iter
        if isinstance(max_iter, bool) or not isinstance(max_iter, Integral) or max_iter < 1:
            raise ParameterError(f"max_iter must be an integer of at least 1, got {max_iter!r}.")
        tol: object = self.tol
        if not isinstance(tol, Real) or not 0 <= float(tol) < math.inf:
            raise ParameterError(f"tol must be a number of at least 0, got {tol!r}.")
        if self.max_time is not None:
            object.__setattr__(self, "max_time", parse_duration(self.max_time, "max_time"))

    @property
    def seconds(self) -> float:
        """``max_time`` in seconds; infinite if there is no limit."""
        return math.inf if self.max_time is None else float(self.max_time)

    def reason(
        self, record: StepRecord | None, n_iter: int, seconds: float, figure: str = "shift"
    ) -> Literal["converged", "tol", "max_iter", "max_time"] | None:
        """Return the reason to stop after a step, or None.

        ``record`` is None before the first step. ``figure`` (``Algorithm.change``) names the value
        that is compared with ``tol``.
        """
        if record is not None:
            if record["converged"]:
                return "converged"
            change = record["shift"] if figure == "shift" else record["extra"].get(figure)
            if self.tol > 0 and change is not None and change <= self.tol:
                return "tol"
            if n_iter >= self.max_iter:
                return "max_iter"
        if seconds >= self.seconds:
            return "max_time"
        return None


def parse_duration(value: object, name: str = "duration") -> float:
    """Convert a duration such as ``90``, ``"90s"``, ``"30m"``, ``"2d"`` or ``"1.5 h"`` to seconds.

    Examples
    --------
    >>> parse_duration("1.5h")
    5400.0
    """
    from dask.utils import parse_timedelta

    seconds = math.nan
    if isinstance(value, str) and value.strip()[:1].isdigit():
        with contextlib.suppress(ValueError, KeyError):
            seconds = float(parse_timedelta(value))
    elif not isinstance(value, bool) and isinstance(value, Real):
        seconds = float(value)
    if not 0 <= seconds < math.inf:
        raise ParameterError(
            f"{name} must be seconds or a text such as '90s', '30m' or '6h', got {value!r}."
        )
    return seconds
