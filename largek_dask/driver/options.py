"""What a fit is asked to do: every option once, with its default, its bounds and its meaning.

``KMeans``, ``fit``, the document of a job, the command line and what a fit writes about itself
are made from these fields or held against them; ``tests/driver/test_options.py`` names whichever
lacks one. Where a fit runs and what it tells meanwhile (client, threads, checkpoint, labels,
events, callbacks) is no option of this kind: ``driver.fit.fit`` takes that beside them.

Nothing heavy is imported at the top: ``largek --help`` reads this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from numbers import Integral
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from largek_dask.algorithms.choices import (
    COVARIANCES,
    DEFAULT_EFFORT,
    DITHER,
    EFFORTS,
    EMPTY_CLUSTERS,
    NORMALIZE,
    ON_BAD_ROWS,
    OTHER_INITS,
    Covariance,
    Dither,
    Effort,
    EmptyClusters,
    Normalize,
    OnBadRows,
)
from largek_dask.driver.stopping import StopRules
from largek_dask.errors import ParameterError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from largek_dask.algorithms.auto import Auto
    from largek_dask.algorithms.base import Algorithm

__all__ = [
    "OPTIONS",
    "FitOptions",
    "Option",
    "check_choice",
    "check_integer",
    "is_integer",
    "parse_memory",
]

Kind = Literal["algorithm", "init", "array", "integer", "number", "choice", "seconds", "bytes"]
"""What values an option has; "seconds" and "bytes" are numbers or texts with a unit. An "array"
has no place on a command line or in the document of a job."""
Part = Literal["job", "mixture", "algorithm", "stop", "means"]
"""What an option is part of.

job
    What tells one job from another: a checkpoint is gone on with only by the same values.
mixture
    The same, of mixtures only: k-means has no such option, and what is told of it names none.
algorithm
    The same, as a parameter of the algorithm object that is made.
stop
    When a fit ends: a checkpoint may be gone on with by other values.
means
    What the fit may use; it changes no bit of the result and is not written down.
"""


@dataclass(frozen=True, slots=True)
class Option:
    """What is known of an option besides its name."""

    kind: Kind
    part: Part
    help: str
    """Its meaning: whole sentences, which ``--help`` shows and docstrings begin with."""
    default: Any
    """``dataclasses.MISSING`` if there is none."""
    least: int | None = None
    """The smallest value of a number."""
    choices: tuple[str | None, ...] = ()

    @property
    def is_required(self) -> bool:
        """Whether there is no default."""
        return self.default is MISSING


def _about(
    kind: Kind,
    part: Part,
    text: str,
    *,
    least: int | None = None,
    choices: tuple[str | None, ...] = (),
) -> dict[str, Any]:
    """The metadata of a field."""
    return {"kind": kind, "part": part, "help": text, "least": least, "choices": choices}


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """What a fit is asked to do.

    Values are checked, and given in one unit: ``max_time`` in seconds, ``memory_limit`` in bytes.

    Raises
    ------
    ParameterError
        A value cannot be right, whatever the data are. What depends on them is checked by
        ``driver.plan.check_problem``.

    Examples
    --------
    >>> options = FitOptions(n_clusters=100, max_time="1h", memory_limit="2GiB")
    >>> options.max_time, options.memory_limit, options.make_algorithm()
    (3600.0, 2147483648, Auto(effort='balanced'))
    """

    n_clusters: int = field(
        metadata=_about("integer", "job", "Clusters to form, and centres to find.", least=1)
    )
    algorithm: str | Algorithm[Any] | Auto = field(
        default="auto",
        metadata=_about(
            "algorithm",
            "job",
            'How the clusters are found: "auto", "dcclust", "dcdbundle", "lloyd", "minibatch", '
            '"nmbatch", "truncated", "vc-gmm" or "vrkm".',
        ),
    )
    effort: Effort = field(
        default=DEFAULT_EFFORT,
        metadata=_about(
            "choice",
            "algorithm",
            'How long the algorithms "auto" and "dcdbundle" look for a lower inertia; an algorithm '
            "object says its own.",
            choices=EFFORTS,
        ),
    )
    init: str | NDArray[Any] = field(
        default="auto",
        metadata=_about(
            "init",
            "job",
            'How the first centres are chosen: "random", "two-level", "k-means++", '
            '"greedy-k-means++", "k-means||", "afk-mc2", or "auto", one of these by the number of '
            "clusters.",
        ),
    )
    mixture: Covariance | None = field(
        default=None,
        metadata=_about(
            "choice",
            "mixture",
            "Fit a mixture of Gaussians, not k-means, and what its components' covariances are: "
            '"iso", one variance for all, and equal weights; "isoflex", one variance each; "diag", '
            'one variance each and feature. The ways to begin are then "k-means", "two-level", '
            '"afk-mc2" and "random", and a fit ends when F rises by less than half of tol, in nats '
            "a row and feature.",
            choices=(None, *COVARIANCES),
        ),
    )
    weights_init: NDArray[Any] | None = field(
        default=None,
        metadata=_about("array", "mixture", "Weights of the first components."),
    )
    precisions_init: NDArray[Any] | None = field(
        default=None,
        metadata=_about(
            "array",
            "mixture",
            'Inverse variances of the first components: one each, or of "diag" one each and '
            "feature.",
        ),
    )
    dither: Dither | None = field(
        default=None,
        metadata=_about(
            "choice",
            "mixture",
            '"uniform": noise in [0, 1) is added to rows of integers, such as images, which have '
            "no density without it; part of the model.",
            choices=(None, *DITHER),
        ),
    )
    n_init: int = field(
        default=1,
        metadata=_about(
            "integer",
            "job",
            "Starts with different first centres, at least; the best one is kept.",
            least=1,
        ),
    )
    max_iter: int = field(
        default=300,
        metadata=_about(
            "integer",
            "stop",
            "Steps of one start at most. Every step assigns rows once: all of them, or those of "
            "the batch or sample whose turn it is.",
            least=1,
        ),
    )
    tol: float = field(
        default=1e-4,
        metadata=_about(
            "number",
            "stop",
            "Stop when the squared movement of the centres is at most this share of the mean "
            "variance of the features. 0: when no label changes.",
            least=0,
        ),
    )
    max_time: float | str | None = field(
        default=None,
        metadata=_about(
            "seconds",
            "stop",
            'Stop after so many seconds, or a time such as "90s", "30m" or "6h"; the time of '
            "runs before a resume, of the last pass and of compiling kernels counts.",
            least=0,
        ),
    )
    seed: int = field(
        default=0,
        metadata=_about(
            "integer", "job", "Same data, seed and versions give the same bits.", least=0
        ),
    )
    empty_clusters: EmptyClusters = field(
        default="relocate",
        metadata=_about(
            "choice",
            "job",
            "What becomes of a centre without rows: it moves to the rows farthest from theirs, or "
            "stays.",
            choices=EMPTY_CLUSTERS,
        ),
    )
    on_bad_rows: OnBadRows = field(
        default="raise",
        metadata=_about(
            "choice",
            "job",
            "What becomes of rows with NaN or infinity; skipped ones get the label -1.",
            choices=ON_BAD_ROWS,
        ),
    )
    normalize: Normalize | None = field(
        default=None,
        metadata=_about(
            "choice",
            "job",
            '"l2": every row is given unit length; part of the model.',
            choices=(None, *NORMALIZE),
        ),
    )
    memory_limit: int | str | None = field(
        default=None,
        metadata=_about(
            "bytes",
            "means",
            "Most that a process keeps for its rows from step to step (labels, bounds): bytes, or "
            'a size such as "2GiB". It changes speed only.',
            least=1,
        ),
    )

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            value = _checked(name, getattr(self, name), option)
            object.__setattr__(self, name, value)
        object.__setattr__(self, "max_time", self.stop.max_time)
        self._check_mixture()
        self._check_starts()
        # Whether it can be made, and what is wrong with its name otherwise.
        self.make_algorithm()

    def _check_mixture(self) -> None:
        """Refuse what is said of a mixture where none is asked for."""
        if self.mixture is not None:
            return
        for name, option in OPTIONS.items():
            if option.part == "mixture" and getattr(self, name) is not None:
                raise ParameterError(f"{name} is an option of mixtures: give mixture as well.")

    def _check_starts(self) -> None:
        """Refuse another number of given starts than are to be made."""
        init = self.init
        if not isinstance(init, str) and init.ndim == 3 and len(init) != self.n_init:
            raise ParameterError(
                f"init has the centres of {len(init)} starts (its shape is {init.shape}), and "
                f"n_init={self.n_init}: give n_init={len(init)}."
            )

    def make_algorithm(self) -> Algorithm[Any] | Auto:
        """The algorithm object, without a problem; of a name the one of this effort."""
        from largek_dask.algorithms.names import algorithm_of, algorithm_of_mixture

        if self.mixture is not None:
            return algorithm_of_mixture(self.algorithm, self.mixture, self.effort)
        return algorithm_of(self.algorithm, self.effort)

    @property
    def memory_bytes(self) -> int | None:
        """``memory_limit`` as a number."""
        return None if self.memory_limit is None else parse_memory(self.memory_limit)

    @property
    def stop(self) -> StopRules:
        """The stop rules."""
        return StopRules(self.max_iter, self.tol, self.max_time)


def _option(about: Field[Any]) -> Option:
    return Option(default=about.default, **about.metadata)


OPTIONS: MappingProxyType[str, Option] = MappingProxyType(
    {about.name: _option(about) for about in fields(FitOptions)}
)
"""All options by name, in the order in which they are shown."""


def _checked(name: str, value: Any, option: Option) -> Any:
    """The value in its unit; what is part of ``StopRules`` is checked there."""
    if option.kind == "choice":
        check_choice(name, value, option.choices)
    elif option.kind == "integer":
        assert option.least is not None
        check_integer(name, value, option.least)
        return int(value)
    elif option.kind == "bytes":
        return None if value is None else parse_memory(value, name)
    elif option.kind == "init":
        if isinstance(value, str):
            return OTHER_INITS.get(value, value)
        return _as_array(name, value)
    elif option.kind == "array":
        return None if value is None else _as_array(name, value)
    return value


def _as_array(name: str, value: Any) -> NDArray[Any]:
    import numpy as np

    if isinstance(value, np.ma.MaskedArray):
        raise ParameterError(f"{name} is a masked array; fill it first, with {name}.filled(...).")
    return np.asarray(value)


def check_integer(name: str, value: Any, least: int) -> None:
    """Refuse what is not an integer of at least ``least``.

    Raises
    ------
    ParameterError
        It is not; the message names the parameter and the value.
    """
    if not is_integer(value) or value < least:
        raise ParameterError(f"{name} must be an integer of at least {least}, got {value!r}.")


def is_integer(value: Any) -> bool:
    """Whether it is an integer; True and False are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_choice(name: str, value: Any, choices: Sequence[str | None]) -> None:
    """Refuse what is not one of ``choices``.

    Raises
    ------
    ParameterError
        It is not; the message lists them.
    """
    if not (value is None or isinstance(value, str)) or value not in choices:
        told = ", ".join(repr(choice) for choice in choices)
        raise ParameterError(f"{name} must be one of {told}, got {value!r}.")


def parse_memory(value: Any, name: str = "memory_limit") -> int:
    """Bytes of a number, or of a text such as "2GiB".

    Raises
    ------
    ParameterError
        It is neither, or less than one byte; ``name`` is in the message.

    Examples
    --------
    >>> parse_memory("1.5 kB")
    1500
    """
    from dask.utils import parse_bytes

    try:
        limit = int(parse_bytes(value))
    except (ValueError, TypeError, AttributeError, OverflowError):
        limit = 0
    if limit < 1:
        raise ParameterError(f"{name} must be bytes or a text such as '2GiB', got {value!r}.")
    return limit
