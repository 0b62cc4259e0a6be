"""Strict and versioned document of a job, which client and scheduler validate.

A job document contains no code: algorithms are given by name, and parameters are numbers and words.
A job document contains no secrets: each storage option is either the name of an environment
variable, or a marker for a value that is kept in memory and must be supplied again after a restart.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal, TypeVar

from fsspec.core import split_protocol
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from largek_dask.algorithms.auto import Auto
from largek_dask.algorithms.base import Algorithm
from largek_dask.algorithms.choices import (
    Covariance,
    Dither,
    EmptyClusters,
    Normalize,
    OnBadRows,
    Scale,
)
from largek_dask.algorithms.mixture import MIXTURE
from largek_dask.algorithms.names import ALGORITHMS, OTHER_ALGORITHMS
from largek_dask.algorithms.objective import INERTIA, Objective
from largek_dask.data.rows import Rows
from largek_dask.data.sources import open_rows
from largek_dask.data.stores import check_no_secret, require
from largek_dask.driver.formatting import printable
from largek_dask.driver.former_names import current_parameters, current_settings
from largek_dask.driver.options import OPTIONS, FitOptions
from largek_dask.driver.storage import Folder
from largek_dask.errors import MissingOptionError, ParameterError
from largek_dask.model.predictions import Included
from largek_dask.passes.worker_selection import WorkerSelection

FORMAT: Literal[2] = 2
"""Version of the document format; format 1 used former names of algorithms."""
MOST_BYTES = 1 << 20
"""Maximum size of a document, in bytes; larger documents are refused without parsing."""
MOST_FAULTS = 2_000
"""Maximum number of characters in an error message about a document."""
MOST_CLUSTERS = 10_000_000
MOST_WORKERS = 1_000_000
Model = TypeVar("Model", bound=BaseModel)
_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def _plain_text(text: str) -> str:
    """Refuse text that could forge a log line."""
    if not text.isprintable() or text != text.strip():
        raise ValueError("must not contain control characters, or begin or end with blanks")
    return text


def _address(url: str) -> str:
    """Check that an address is absolute and contains no secret."""
    _plain_text(url)
    protocol, path = split_protocol(url)
    if protocol in (None, "file", "local") and not posixpath.isabs(path):
        raise ValueError(
            "is a relative path, which workers cannot resolve; give an absolute path or a URL"
        )
    check_no_secret(url)
    if ".." in url.split("/"):
        raise ValueError("must not contain '..'")
    return url


def _algorithm(name: str) -> str:
    if name not in ALGORITHMS:
        raise ValueError(f"is not one of {', '.join(ALGORITHMS)}")
    return name


Address = Annotated[str, Field(min_length=1, max_length=4_096), AfterValidator(_address)]
Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_plain_text)]
Number = int | float | bool | None | Name
NumberOfWorkers = Annotated[int, Field(ge=1, le=MOST_WORKERS)]


class StorageOption(BaseModel):
    """Reference to the value of a storage option, which the document does not contain."""

    model_config = _STRICT

    env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)] | None = None
    """Environment variable with the value, in the process that opens the data."""
    memory: Literal[True] | None = None

    @model_validator(mode="after")
    def _one_place(self) -> StorageOption:
        if (self.env is None) == (self.memory is None):
            raise ValueError("must have exactly one of 'env' and 'memory'")
        return self


class AlgorithmSpec(BaseModel):
    """Name of an algorithm, with the parameters that differ from the defaults."""

    model_config = _STRICT

    name: Annotated[str, AfterValidator(_algorithm)] = "auto"
    parameters: dict[Name, Number] = Field(default_factory=dict, max_length=50)

    @model_validator(mode="after")
    def _can_be_made(self) -> AlgorithmSpec:
        known = [f.name for f in fields(ALGORITHMS[self.name])]
        for name in self.parameters:
            if name not in known:
                raise ValueError(
                    f"{self.name} has no parameter {name!r}; valid parameters: {known}"
                )
        self.make()
        return self

    def make(self) -> Algorithm[Any, Any] | Auto:
        made: Algorithm[Any, Any] | Auto = ALGORITHMS[self.name](**self.parameters)
        return made

    @classmethod
    def of(cls, algorithm: Any) -> AlgorithmSpec:
        """Convert the name of an algorithm, or an algorithm object, to a document."""
        if isinstance(algorithm, str):
            return _checked(cls, {"name": OTHER_ALGORITHMS.get(algorithm, algorithm)})
        for name, kind in ALGORITHMS.items():
            if type(algorithm) is kind:
                default = kind()
                values = {
                    f.name: getattr(algorithm, f.name)
                    for f in fields(kind)
                    if getattr(algorithm, f.name) != getattr(default, f.name)
                }
                return _checked(cls, {"name": name, "parameters": values})
        raise ParameterError(
            f"algorithm must be one of {', '.join(ALGORITHMS)}, or an algorithm object such "
            f"as Lloyd(), got {type(algorithm).__name__}."
        )


_AS_LIST = BeforeValidator(lambda value: list(value) if isinstance(value, tuple) else value)


class WorkersSpec(BaseModel):
    """Selection of workers that a job may use; it does not affect the result."""

    model_config = _STRICT

    min: NumberOfWorkers = 1
    max: NumberOfWorkers | None = None
    tags: Annotated[list[Name], _AS_LIST, Field(max_length=50)] = []
    """Names of Dask worker resources; each worker of the job must have all of these resources."""

    @model_validator(mode="after")
    def _in_order(self) -> WorkersSpec:
        if self.max is not None and self.min > self.max:
            raise ValueError(f"min={self.min} is greater than max={self.max}")
        return self

    def pick(self) -> WorkerSelection:
        return WorkerSelection(self.min, self.max, self.tags)


def _of(name: str, **limits: Any) -> Any:
    """Make a field for a fit option, with limits for job documents."""
    option = OPTIONS[name]
    least = {} if option.least is None else {"ge": option.least}
    default = {} if option.is_required else {"default": option.default}
    return Field(**default, description=option.help, **(least | limits))


class JobSpec(BaseModel):
    """Document of a job, without secrets.

    The fields are the parameters of ``Service.submit``: options of a fit (``driver.options``) and
    options of a job. The parameter ``effort`` is stored in ``algorithm``. Unknown fields, wrong
    types and values outside fixed limits are refused.
    """

    model_config = _STRICT

    format: Literal[2] = FORMAT
    data: Address
    output: Address
    n_clusters: int = _of("n_clusters", le=MOST_CLUSTERS)
    algorithm: AlgorithmSpec = AlgorithmSpec()
    mixture: Covariance | None = _of("mixture")
    dither: Dither | None = _of("dither")
    init: Name = _of("init")
    n_init: int = _of("n_init", le=1_000)
    max_iter: int = _of("max_iter", le=10_000_000)
    tol: float = _of("tol")
    max_time: float | None = _of("max_time", ge=None, gt=0)
    seed: int = _of("seed", lt=1 << 63)
    sample_weight: Address | None = None
    column: Name | None = None
    """Array or column that holds the rows, as in ``open_rows``."""
    empty_clusters: EmptyClusters = _of("empty_clusters")
    on_bad_rows: OnBadRows = _of("on_bad_rows")
    normalize: Normalize | None = _of("normalize")
    scale: Scale | None = _of("scale")
    labels: bool = True
    ids: Name | None = None
    include: Annotated[list[Included], _AS_LIST, Field(max_length=3)] = []
    partition_by: Literal["cluster"] | None = None
    """Column of ids, and columns and form of predictions, as in ``Model.predict``."""
    memory_limit: int | None = _of("memory_limit", ge=0)
    """Memory limit per worker, in bytes. Documents of earlier versions may contain 0, which means
    1."""
    workers: WorkersSpec | None = None
    """Workers that the job may use; None for all workers."""
    name: Name | None = None
    storage_options: dict[Name, StorageOption] = Field(default_factory=dict, max_length=100)

    @model_validator(mode="after")
    def _has_distances(self) -> JobSpec:
        if self.has_predictions and self.objective != INERTIA:
            raise ValueError(
                "the model will have no distances to centres: leave out include and partition_by"
            )
        if "second" in self.include and self.n_clusters < 2:
            raise ValueError("include='second' needs at least two clusters")
        return self

    @classmethod
    def parse(cls, document: bytes | str | Mapping[str, Any]) -> JobSpec:
        """Parse a document; raise a ParameterError that names every invalid field."""
        if not isinstance(document, Mapping):
            if len(document) > MOST_BYTES:
                raise ParameterError(
                    f"the job document has {len(document):,} bytes; at most {MOST_BYTES:,} are "
                    "allowed."
                )
            try:
                document = json.loads(document, object_pairs_hook=unique_keys)
            except (ValueError, RecursionError) as error:
                raise ParameterError(f"the job document must be JSON: {error}") from error
        if not isinstance(document, Mapping):
            raise ParameterError("the job document must be a JSON object.")
        return _checked(cls, _renamed(document))

    def dump(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def fit_options(self) -> FitOptions:
        given = {name: getattr(self, name) for name in OPTIONS if name in type(self).model_fields}
        if self.memory_limit == 0:
            given["memory_limit"] = 1
        return FitOptions(**{**given, "algorithm": self.algorithm.make()})

    def open_rows(self, options: Mapping[str, Any], *, count_missing: bool = True) -> Rows:
        if self.has_predictions:
            require("pyarrow", "parquet", "tables of predictions")
        return open_rows(
            self.data,
            sample_weight=self.sample_weight,
            column=self.column,
            ids=self.ids,
            storage_options=dict(options),
            count_missing=count_missing,
        )

    @property
    def has_predictions(self) -> bool:
        return bool(self.include) or self.partition_by is not None

    @property
    def objective(self) -> Objective:
        return self.algorithm.make().solves.objective if self.mixture is None else MIXTURE

    @property
    def in_memory(self) -> tuple[str, ...]:
        """Names of storage options whose values are kept in memory only."""
        return tuple(name for name, option in self.storage_options.items() if option.memory)


def _renamed(document: Mapping[str, Any]) -> dict[str, Any]:
    """Replace former names and settings of algorithms by the current ones.

    A document without a format number was never stored, and is returned unchanged.
    """
    found = dict(document)
    number, algorithm = found.get("format"), found.get("algorithm")
    if type(number) is not int or number not in (1, FORMAT):
        return found
    if isinstance(algorithm, Mapping) and isinstance(name := algorithm.get("name"), str):
        given = algorithm.get("parameters", {})
        if isinstance(given, Mapping):
            if number == 1:
                name, given = current_parameters(name, given)
            parameters = current_settings(name, given)
            found["algorithm"] = {**algorithm, "name": name, "parameters": parameters}
    return {**found, "format": FORMAT}


def hide(options: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split storage options into references for a document, and values kept in memory only.

    The value ``{"env": "NAME"}`` refers to an environment variable; any other value is treated as a
    secret.
    """
    public: dict[str, Any] = {}
    secret: dict[str, Any] = {}
    for name, value in (options or {}).items():
        if isinstance(value, Mapping) and set(value) == {"env"}:
            public[name] = dict(value)
        else:
            public[name], secret[name] = {"memory": True}, value
    return public, secret


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object; refuse duplicate keys, which parsers interpret differently."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("the same field is given twice")
    return found


def _checked(model: type[Model], values: dict[str, Any]) -> Model:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ParameterError(f"invalid job: {faults_of(error)}.") from None


def faults_of(error: Exception) -> str:
    """Describe the invalid fields of a document, but not their values, which may be secret."""
    if not isinstance(error, ValidationError):
        return str(error)
    faults = dict.fromkeys(
        f"{'.'.join(map(str, one['loc'][:3])) or 'the document'}: "
        + {"extra_forbidden": "is not a known field"}.get(one["type"], one["msg"])
        for one in error.errors(include_url=False)
    )
    text = "; ".join(faults).replace("Value error, ", "").replace("Input should", "must")
    return printable(text[:MOST_FAULTS])


def missing(spec: JobSpec, secrets: Mapping[str, Any]) -> list[str]:
    """Return the names of storage options whose values are still missing."""
    return [name for name in spec.in_memory if name not in secrets]


def options_of(spec: JobSpec, secrets: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's storage options with their values, or raise MissingOptionError."""
    options = {}
    for name, option in spec.storage_options.items():
        if option.env is not None:
            if option.env not in os.environ:
                raise MissingOptionError(
                    f"storage_options[{name!r}]: the scheduler's environment has no variable "
                    f"{option.env}; set it and restart the scheduler."
                )
            options[name] = os.environ[option.env]
        elif name in secrets:
            options[name] = secrets[name]
        else:
            raise MissingOptionError(
                f"storage_options[{name!r}] has no value: supply it with supply() of the job."
            )
    return options


def output_folder(spec: JobSpec, options: Mapping[str, Any]) -> Folder:
    """Return a job's output folder, with the data's storage options if protocols are equal."""
    alike = split_protocol(spec.output)[0] == split_protocol(spec.data)[0]
    return Folder(spec.output, options if alike else None)


def known_values(spec: JobSpec, secrets: Mapping[str, Any]) -> list[Any]:
    names = [option.env for option in spec.storage_options.values() if option.env is not None]
    return [*secrets.values(), *(os.environ[name] for name in names if name in os.environ)]
