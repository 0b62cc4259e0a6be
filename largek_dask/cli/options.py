"""Options of a fit, for ``largek fit`` and ``submit``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

import click

from largek_dask.cli.common import Decorator, option_weight, options, parse_settings
from largek_dask.driver.options import OPTIONS

METAVARS = {"algorithm": "NAME", "init": "NAME", "seconds": "TIME", "bytes": "SIZE"}
"""Placeholders for option values in the help, by option kind."""


def fit_option(name: str, *flags: str, **more: Any) -> Decorator:
    option = OPTIONS[name]
    kind: Any = str
    if option.kind == "integer":
        kind = click.IntRange(min=option.least)
    elif option.kind == "number":
        kind = click.FloatRange(min=option.least)
    elif option.kind == "choice":
        kind = click.Choice([choice for choice in option.choices if choice is not None])
    if not option.is_required:
        more |= {"default": option.default, "show_default": option.default is not None}
    return click.option(
        *flags,
        f"--{name.replace('_', '-')}",
        type=kind,
        metavar=METAVARS.get(option.kind, more.pop("metavar", None)),
        help=option.help,
        **more,
    )


def _options() -> Iterator[Decorator]:
    for name, option in OPTIONS.items():
        if name == "n_clusters" or option.kind == "array":
            continue
        yield fit_option(name)
        if name == "algorithm":
            yield click.option(
                "--set",
                "settings",
                multiple=True,
                metavar="NAME=VALUE",
                help="Parameter of the algorithm, e.g. batch_rows=10000; may be repeated.",
            )
    yield option_weight
    yield click.option(
        "--labels/--no-labels", default=True, show_default=True, help="Also write labels.zarr."
    )


fit_options = options(*_options())
"""Options of a fit, except for its data, ``-k`` and output."""


def option_clusters(*, required: bool) -> Decorator:
    return fit_option("n_clusters", "-k", required=required, metavar="K")


def with_algorithm(given: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the options of the algorithm by one algorithm object."""
    settled = {"settings", "effort"}
    left = {name: value for name, value in given.items() if name not in settled}
    return left | {"algorithm": choose_algorithm(given)}


def choose_algorithm(given: Mapping[str, Any]) -> Any:
    """Create the algorithm from ``--algorithm``, ``--mixture``, ``--effort`` and ``--set``."""
    from largek_dask.algorithms.names import MIXTURES, algorithm_of
    from largek_dask.errors import ParameterError

    settings, name = parse_settings(given["settings"]), given["algorithm"]
    if name == "auto" and given["mixture"] is not None:
        name = MIXTURES
    try:
        algorithm = algorithm_of(name, given.get("effort", OPTIONS["effort"].default))
    except ParameterError as error:
        raise click.BadParameter(str(error)) from error
    known = [field.name for field in fields(algorithm)]
    if unknown := sorted(set(settings) - set(known)):
        raise click.BadParameter(
            f"{type(algorithm).__name__} has no parameter {unknown[0]!r}; "
            f"valid parameters: {', '.join(known) or 'none'}",
            param_hint="--set",
        )
    return replace(algorithm, **settings)
