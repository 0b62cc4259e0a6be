"""Options of a fit, each defined once with its default, bounds and description.

``KMeans``, ``fit``, job documents and the command line are generated from these fields or tested
against them (``tests/driver/test_options.py``). ``driver.fit.fit`` has further parameters for
resources and outputs: client, threads, checkpoint, labels, events and callbacks.

Imports at the top of this module are cheap, because ``largek --help`` imports the module.
"""

# ruff: noqa: RUF009
# RUF009 is disabled because `_option` returns a dataclass field.
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
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
    SCALES,
    Covariance,
    Dither,
    Effort,
    EmptyClusters,
    Normalize,
    OnBadRows,
    Scale,
)
from largek_dask.driver.stopping import StopRules
from largek_dask.errors import ParameterError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from largek_dask.algorithms.auto import Auto
    from largek_dask.algorithms.base import Algorithm

Kind = Literal["algorithm", "init", "array", "integer", "number", "choice", "seconds", "bytes"]
"""Type of an option's values; "seconds" and "bytes" are numbers, or texts with a unit. Options of
type "array" cannot be set on the command line or in a job document.
"""
Part = Literal["job", "mixture", "algorithm", "stop", "means"]
"""Role of an option.

job
    Part of the identity of a job; a checkpoint is resumed only with equal values.
mixture
    Part of the identity of a job, for mixtures only.
algorithm
    Part of the identity of a job, as a parameter of the algorithm object.
stop
    Stop rule, which may change when a checkpoint is resumed.
means
    Setting of resources, which does not affect results and is not recorded.
"""


@dataclass(frozen=True, slots=True)
class Option:
    kind: Kind
    part: Part
    help: str
    """Description in full sentences, for ``--help`` and docstrings."""
    default: Any
    """Default value, or ``dataclasses.MISSING``."""
    least: int | None = None
    choices: tuple[str | None, ...] = ()

    @property
    def is_required(self) -> bool:
        return self.default is MISSING


def _option(
    kind: Kind,
    part: Part,
    default: Any,
    text: str,
    *,
    least: int | None = None,
    choices: tuple[str | None, ...] = (),
) -> Any:
    """Return a dataclass field whose metadata is its :class:`Option`."""
    option = Option(kind, part, text, default, least, choices)
    return field(default=default, metadata={"option": option})


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """Validated options of a fit: ``max_time`` in seconds, ``memory_limit`` in bytes.

    Raises ParameterError for values that are invalid for all data; ``driver.plan`` checks the rest.

    Examples
    --------
    >>> options = FitOptions(n_clusters=100, max_time="1h", memory_limit="2GiB")
    >>> options.max_time, options.memory_limit, options.make_algorithm()
    (3600.0, 2147483648, Auto(effort='balanced'))
    """

    # This is a plain field, so that type checkers know that n_clusters is required.
    n_clusters: int = field(
        metadata={"option": Option("integer", "job", "Number of clusters.", MISSING, least=1)}
    )
    algorithm: str | Algorithm[Any, Any] | Auto = _option(
        "algorithm",
        "job",
        "auto",
        'Algorithm: "auto", "dcd-bundle", "incremental", "lloyd", "minibatch", "nmbatch", '
        '"nmbatch-paper", "partition-path", "truncated", "vc-gmm", "vc-gmm-paper" or "vrkm".',
    )
    effort: Effort = _option(
        "choice",
        "algorithm",
        DEFAULT_EFFORT,
        'How long the algorithms "auto" and "partition-path" search for a lower inertia; '
        "algorithm objects have their own.",
        choices=EFFORTS,
    )
    init: str | NDArray[Any] = _option(
        "init",
        "job",
        "auto",
        'Method for the initial centres: "random", "two-level", "k-means++", "greedy-k-means++", '
        '"k-means||", "afk-mc2", or "auto", one of these by the number of clusters.',
    )
    mixture: Covariance | None = _option(
        "choice",
        "mixture",
        None,
        "Fit a mixture of Gaussians instead of k-means, with these covariances: "
        '"iso", one variance for all components, and equal weights; "isoflex", one variance per '
        'component; "diag", one variance per component and feature. Values of init are then '
        '"k-means", "two-level", "afk-mc2" and "random", and a fit ends when F rises by less than '
        "half of tol, in nats per row and feature.",
        choices=(None, *COVARIANCES),
    )
    weights_init: NDArray[Any] | None = _option(
        "array", "mixture", None, "Weights of the initial components."
    )
    precisions_init: NDArray[Any] | None = _option(
        "array",
        "mixture",
        None,
        'Inverse variances of the initial components, one per component or, with "diag", feature.',
    )
    dither: Dither | None = _option(
        "choice",
        "mixture",
        None,
        '"uniform": add noise in [0, 1) to rows of integers, such as images, which have no density '
        "without noise; part of the model.",
        choices=(None, *DITHER),
    )
    n_init: int = _option(
        "integer",
        "job",
        1,
        "Minimum number of starts with different initial centres; the best one is kept.",
        least=1,
    )
    max_iter: int = _option(
        "integer",
        "stop",
        300,
        "Maximum number of steps per start. A step assigns once all rows, or the rows of the "
        "current batch or sample.",
        least=1,
    )
    tol: float = _option(
        "number",
        "stop",
        1e-4,
        "Stop when the squared movement of the centres is at most this fraction of the mean "
        "variance of the features; 0 to stop when no label changes.",
        least=0,
    )
    max_time: float | str | None = _option(
        "seconds",
        "stop",
        None,
        'Time limit in seconds, or a text such as "90s", "30m" or "6h". It includes earlier runs '
        "of a resumed fit, the last pass and the compilation of kernels.",
        least=0,
    )
    seed: int = _option(
        "integer", "job", 0, "Seed; the same data, seed and versions give the same bits.", least=0
    )
    empty_clusters: EmptyClusters = _option(
        "choice",
        "job",
        "relocate",
        "Whether a centre without rows is moved to the rows farthest from their centres, or kept.",
        choices=EMPTY_CLUSTERS,
    )
    on_bad_rows: OnBadRows = _option(
        "choice",
        "job",
        "raise",
        "Whether rows with NaN or infinity raise an error, or are skipped and labelled -1.",
        choices=ON_BAD_ROWS,
    )
    normalize: Normalize | None = _option(
        "choice",
        "job",
        None,
        '"l2": scale each row to unit length; part of the model.',
        choices=(None, *NORMALIZE),
    )
    scale: Scale | None = _option(
        "choice",
        "job",
        None,
        '"standard": subtract from each feature its mean and divide by its standard deviation, '
        "before normalize; part of the model, whose centres are in these units. For dense rows.",
        choices=(None, *SCALES),
    )
    memory_limit: int | str | None = _option(
        "bytes",
        "means",
        None,
        "Maximum row state (labels, bounds) that a process keeps between steps: bytes, or a size "
        'such as "2GiB". It affects only speed.',
        least=1,
    )

    def __post_init__(self) -> None:
        for name, option in OPTIONS.items():
            value = _checked(name, getattr(self, name), option)
            object.__setattr__(self, name, value)
            if self.mixture is None and option.part == "mixture" and value is not None:
                raise ParameterError(f"{name} is an option of mixtures; set mixture as well.")
        object.__setattr__(self, "max_time", self.stop.max_time)
        init = self.init
        if not isinstance(init, str) and init.ndim == 3 and len(init) != self.n_init:
            raise ParameterError(
                f"init has centres for {len(init)} starts (shape {init.shape}), but "
                f"n_init={self.n_init}; use n_init={len(init)}."
            )
        # Making the algorithm raises an error if its parameters are invalid.
        self.make_algorithm()

    def make_algorithm(self) -> Algorithm[Any, Any] | Auto:
        """Return the algorithm object, not yet bound to a problem."""
        from largek_dask.algorithms.names import algorithm_of, algorithm_of_mixture

        if self.mixture is not None:
            return algorithm_of_mixture(self.algorithm, self.mixture, self.effort)
        return algorithm_of(self.algorithm, self.effort)

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_limit is None else parse_memory(self.memory_limit)

    @property
    def stop(self) -> StopRules:
        return StopRules(self.max_iter, self.tol, self.max_time)


OPTIONS: MappingProxyType[str, Option] = MappingProxyType(
    {of.name: of.metadata["option"] for of in fields(FitOptions)}
)


def _checked(name: str, value: Any, option: Option) -> Any:
    """Validate and convert a value; ``StopRules`` validates its own fields."""
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
    if not is_integer(value) or value < least:
        raise ParameterError(f"{name} must be an integer of at least {least}, got {value!r}.")


def is_integer(value: Any) -> bool:
    """Return whether the value is an integer; booleans are not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_choice(name: str, value: Any, choices: Sequence[str | None]) -> None:
    if not (value is None or isinstance(value, str)) or value not in choices:
        allowed = ", ".join(repr(choice) for choice in choices)
        raise ParameterError(f"{name} must be one of {allowed}, got {value!r}.")


def parse_memory(value: Any, name: str = "memory_limit") -> int:
    """Parse a memory size: a number of bytes, or a text such as "2GiB"; at least one byte.

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
