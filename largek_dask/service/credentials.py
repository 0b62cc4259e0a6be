"""Storage options with their secrets: put together where they are needed."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from fsspec.core import split_protocol

from largek_dask.driver.storage import Folder
from largek_dask.errors import MissingOptionError, ParameterError
from largek_dask.service.spec import JobSpec

__all__ = ["check_secrets", "known_values", "missing", "options_of", "output_folder"]

MOST_BYTES, MOST_BYTES_OF_JOB = 16 << 10, 64 << 10
"""Size of one value of a storage option, and of all of a job: each is looked for in every text."""


def check_secrets(secrets: Mapping[str, Any]) -> None:
    """Refuse values of storage options that are too large.

    Raises
    ------
    ParameterError
        It says which one, and how large it is; no value is repeated.
    """
    total = 0
    for name, value in secrets.items():
        total += (size := _size(value))
        if size > MOST_BYTES:
            raise ParameterError(
                f"storage_options[{name[:200]!r}] has {size:,} bytes, and a value may have at most "
                f"{MOST_BYTES:,}: give the name of a file or of an environment variable that the "
                "driver of the storage reads by itself."
            )
    if total > MOST_BYTES_OF_JOB:
        raise ParameterError(
            f"the values of storage_options have {total:,} bytes, and together they may have at "
            f"most {MOST_BYTES_OF_JOB:,}."
        )


def _size(value: Any) -> int:
    """Bytes of a value as text."""
    try:
        text = value if isinstance(value, str) else json.dumps(value, default=str)
    except RecursionError:
        raise ParameterError(
            "a value of storage_options is nested too deeply: give it in fewer levels."
        ) from None
    return len(text.encode("utf-8", "surrogatepass"))


def missing(spec: JobSpec, secrets: Mapping[str, Any]) -> list[str]:
    """Storage options whose values a client has to supply (again)."""
    return [name for name in spec.in_memory if name not in secrets]


def options_of(spec: JobSpec, secrets: Mapping[str, Any]) -> dict[str, Any]:
    """The storage options of a job with their values.

    Raises
    ------
    MissingOptionError
        A value is not in this process's environment, or has not been supplied.
    ParameterError
        A value in this process's environment is too large.
    """
    options = {}
    for name, option in spec.storage_options.items():
        if option.env is not None:
            if option.env not in os.environ:
                raise MissingOptionError(
                    f"storage_options[{name!r}]: the environment of the scheduler has no "
                    f"variable {option.env}: start it with that one."
                )
            options[name] = os.environ[option.env]
            check_secrets({name: options[name]})
        elif name in secrets:
            options[name] = secrets[name]
        else:
            raise MissingOptionError(
                f"storage_options[{name!r}] has not been supplied: call supply() of the job."
            )
    return options


def output_folder(spec: JobSpec, options: Mapping[str, Any]) -> Folder:
    """The output's folder; it has the data's storage options if both lie alike."""
    alike = split_protocol(spec.output)[0] == split_protocol(spec.data)[0]
    return Folder(spec.output, options if alike else None)


def known_values(spec: JobSpec, secrets: Mapping[str, Any]) -> list[Any]:
    """The values of a job's storage options as far as they are known."""
    names = [option.env for option in spec.storage_options.values() if option.env is not None]
    return [*secrets.values(), *(os.environ[name] for name in names if name in os.environ)]
