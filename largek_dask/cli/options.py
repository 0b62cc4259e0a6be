"""What `fit` and `submit` have in common: options that say what is to be computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import reduce
from typing import Any

import click

__all__ = ["choose_algorithm", "fit_options", "option_clusters"]

Decorated = Callable[..., Any]

_OPTIONS: tuple[Callable[[Decorated], Decorated], ...] = (
    click.option("--algorithm", default="auto", show_default=True, metavar="NAME"),
    click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        help="A parameter of the algorithm, e.g. batch_rows=10000; may be repeated.",
    ),
    click.option(
        "--init", default="auto", show_default=True, help="How the first centres are chosen."
    ),
    click.option("--n-init", type=click.IntRange(min=1), default=1, show_default=True),
    click.option("--max-iter", type=click.IntRange(min=1), default=300, show_default=True),
    click.option(
        "--tol",
        type=click.FloatRange(min=0),
        default=1e-4,
        show_default=True,
        help="0: until no label changes.",
    ),
    click.option("--max-time", metavar="TIME", help="Such as 90s, 30m or 6h."),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True),
    click.option("--normalize", type=click.Choice(["l2"]), help="Give every row unit length."),
    click.option("--sample-weight", metavar="URL", help="Weights of the rows, one number each."),
    click.option(
        "--on-bad-rows",
        type=click.Choice(["raise", "skip"]),
        default="raise",
        show_default=True,
        help="What to do with rows that hold NaN or infinity.",
    ),
    click.option(
        "--labels/--no-labels", default=True, show_default=True, help="Write labels.zarr as well."
    ),
)


def fit_options(command: Decorated) -> Decorated:
    """All options of a fit but its data, ``-k`` and its output."""
    return reduce(lambda found, option: option(found), reversed(_OPTIONS), command)


def option_clusters(*, required: bool) -> Callable[[Decorated], Decorated]:
    """``-k K``."""
    return click.option(
        "-k", "--n-clusters", type=click.IntRange(min=1), required=required, metavar="K"
    )


def choose_algorithm(name: str, settings: dict[str, Any]) -> Any:
    """The algorithm of that name with these settings.

    Raises
    ------
    click.BadParameter
        Unknown algorithm, or a setting that it does not have.
    """
    from largek_dask.algorithms.names import ALGORITHMS

    if name not in ALGORITHMS:
        raise click.BadParameter(
            f"{name!r} is not known; choose one of {', '.join(ALGORITHMS)}",
            param_hint="--algorithm",
        )
    kind = ALGORITHMS[name]
    known = [field.name for field in fields(kind) if field.name != "problem"]
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise click.BadParameter(
            f"{kind.__name__} has no parameter {unknown[0]!r}; "
            f"it has {', '.join(known) if known else 'none'}",
            param_hint="--set",
        )
    return kind(**settings)
