"""When a fit ends, and what that is called.

Every rule is a function of the last step's record, the number of steps and the seconds used, so
that a resumed fit takes the same decisions as one that was never stopped, and may be given other
rules than it was started with. Only ``max_time`` looks at a clock, and it only cuts.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Literal, TypedDict, get_args

from largek_dask.algorithms.objective import INERTIA, Objective
from largek_dask.errors import ParameterError

if TYPE_CHECKING:
    from largek_dask.algorithms.base import Info

__all__ = [
    "ENDS",
    "End",
    "StepRecord",
    "StopReason",
    "StopRules",
    "parse_duration",
    "record_of",
]

End = Literal["finished", "failed", "cancelled"]
"""A state in which a run has come to its end."""
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
"""Why a fit ended; where several hold at once, the first in this order.

converged
    No label changed: a fixed point.
tol
    What ``tol`` is compared with is no larger (of k-means, the movement of the centres; see
    :class:`StopRules`).
max_iter, max_time
    The budget of steps or of seconds is used up.
max_time_without_last_pass
    One of these, and there was no time left for the last pass over all rows and centres: labels
    and the objective's value are those of a search that did not look at all centres.
max_time_without_search
    The seconds were used up before there was any model. Centres (or means) are then the ``init``
    that was given as an array, or rows of a sample, as ``init="random"`` draws them.
callback
    A callback returned true.
cancelled
    Somebody asked for a stop from outside.
interrupted
    Ctrl-C.
"""


class StepRecord(TypedDict):
    """One entry of the history: plain JSON values."""

    step: int
    """1 for the first step."""
    cost: float | None
    """The objective (of k-means: the weighted sum of squared distances) as known in this step; None
    if it was not finite."""
    rows: int
    """Rows assigned in this step."""
    seconds: float
    """Seconds from the start of the fit to the end of this step, earlier runs included."""
    n_changed: int | None
    """Rows whose label changed; None where the algorithm does not know."""
    shift: float | None
    """Squared movement of the centres relative to the mean variance of the features."""
    converged: bool
    extra: dict[str, float | None]
    """Further figures of the algorithm; None for those that were not finite."""


def record_of(step: int, info: Info, seconds: float) -> StepRecord:
    """The history entry of a step."""
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
    """``value`` as a float, None where JSON could not hold it."""
    return float(value) if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class StopRules:
    """The limits of a fit.

    Parameters
    ----------
    max_iter : int
        Steps of one start, at least 1: calls of the algorithm's ``step``, each of which assigns
        rows once (all of them, or those of the batch or sample whose turn it is).
    tol : float
        Stop when what the objective says (``Objective.change``) is at most this. Of k-means: when
        the squared movement of the centres is at most ``tol`` times the mean variance of the
        features (scikit-learn's ``tol``). 0 means: until no label changes.
    max_time : float or str, optional
        Seconds, or a text such as ``"90s"``, ``"6h"`` or ``"1h30m"``. Time used before a resume
        counts, and so does the last pass, as far as a trial on a few rows can tell what it takes.
        A step that the limit cuts is thrown away.

    Raises
    ------
    ParameterError
        A limit is not a number of the right kind.
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
        """``max_time`` as a number; infinite without one."""
        return math.inf if self.max_time is None else float(self.max_time)

    def reason(
        self,
        record: StepRecord | None,
        n_iter: int,
        seconds: float,
        objective: Objective = INERTIA,
    ) -> Literal["converged", "tol", "max_iter", "max_time"] | None:
        """Why to stop after ``n_iter`` steps and ``seconds``, or None to go on.

        ``record`` is the last step's, None before the first; ``objective`` says what of it ``tol``
        is compared with.
        """
        if record is not None:
            if record["converged"]:
                return "converged"
            change = objective.change_in(record)
            if self.tol > 0 and change is not None and change <= self.tol:
                return "tol"
            if n_iter >= self.max_iter:
                return "max_iter"
        if seconds >= self.seconds:
            return "max_time"
        return None


_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "min": 60.0, "s": 1.0, "ms": 1e-3}
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_PART = re.compile(_NUMBER + r"\s*(ms|min|[dhms])\s*")
_TEXT = re.compile(rf"(?:{_PART.pattern})+")


def parse_duration(value: object, name: str = "duration") -> float:
    """Seconds of ``90``, ``"90"``, ``"90s"``, ``"1h30m"``, ``"2d"`` or ``"1.5 h"``.

    Raises
    ------
    ParameterError
        Anything else, and what is negative, NaN or infinite; ``name`` is in the message.

    Examples
    --------
    >>> parse_duration("1h30m")
    5400.0
    """
    seconds = math.nan
    if isinstance(value, str):
        text = value.strip().lower()
        if re.fullmatch(_NUMBER, text):
            seconds = float(text)
        elif _TEXT.fullmatch(text):
            seconds = sum(float(n) * _UNITS[unit] for n, unit in _PART.findall(text))
    elif not isinstance(value, bool) and isinstance(value, Real):
        seconds = float(value)
    if not 0 <= seconds < math.inf:
        raise ParameterError(
            f"{name} must be seconds or a text such as '90s', '6h' or '1h30m', got {value!r}."
        )
    return seconds
