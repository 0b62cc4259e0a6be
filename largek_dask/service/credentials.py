"""Storage options with their secrets: put together where they are needed, left out of all text."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fsspec.core import split_protocol

from largek_dask.driver.storage import Folder
from largek_dask.errors import MissingOptionError
from largek_dask.service.spec import JobSpec

__all__ = ["missing", "options_of", "output_folder", "redactor"]

SHORTEST = 4
"""Values of fewer letters are no secrets; leaving them out would only garble texts."""


def missing(spec: JobSpec, secrets: Mapping[str, Any]) -> list[str]:
    """Storage options whose values a client has to supply (again)."""
    return [name for name in spec.in_memory if name not in secrets]


def options_of(spec: JobSpec, secrets: Mapping[str, Any]) -> dict[str, Any]:
    """The storage options of a job with their values.

    Raises
    ------
    MissingOptionError
        A value is not in this process's environment, or has not been supplied.
    """
    options = {}
    for name, option in spec.storage_options.items():
        if option.env is not None:
            if option.env not in os.environ:
                raise MissingOptionError(
                    f"storage_options[{name!r}]: the environment of the scheduler has no "
                    f"variable {option.env}."
                )
            options[name] = os.environ[option.env]
        elif name in secrets:
            options[name] = secrets[name]
        else:
            raise MissingOptionError(f"storage_options[{name!r}] has not been supplied.")
    return options


def output_folder(spec: JobSpec, options: Mapping[str, Any]) -> Folder:
    """The output's folder; it has the data's storage options if both lie alike."""
    alike = split_protocol(spec.output)[0] == split_protocol(spec.data)[0]
    return Folder(spec.output, options if alike else None)


def redactor(options: Mapping[str, Any]) -> Callable[[Any], Any]:
    """A function that leaves every value of ``options`` out of texts, and of texts inside values.

    Whatever is written or sent of a job goes through it: nobody knows what a driver of some
    file system puts into its errors.
    """
    # Longer ones first: one may be part of another.
    values = sorted({text for text in _texts(options) if len(text) >= SHORTEST}, key=len)[::-1]

    def redact(value: Any) -> Any:
        if isinstance(value, str):
            for text in values:
                value = value.replace(text, "***")
            return value
        if isinstance(value, Mapping):
            return {redact(key): redact(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [redact(item) for item in value]
        return value

    return redact


def _texts(value: Any) -> Iterator[str]:
    """Every text inside a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
