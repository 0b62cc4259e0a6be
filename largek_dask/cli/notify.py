"""``largek notify test``: whether notices of jobs arrive."""

from __future__ import annotations

from typing import Any

import click

from largek_dask.cli.common import FAILED, Command, Group, emit, option_service, option_storage
from largek_dask.cli.jobs import service_at

__all__ = ["notify"]


@click.group(cls=Group, short_help="Try out where notices of jobs are sent.")
def notify() -> None:
    """Try out the targets of a scheduler, which jobs name by largek submit --notify.

    They are in the scheduler's configuration, largek.service.notify.
    """


@notify.command(
    cls=Command,
    short_help="Have a notice sent for trial.",
    example="largek notify test lab --scheduler tcp://host:8786",
)
@click.argument("target")
@option_service
@option_storage
@click.pass_context
def test(
    ctx: click.Context,
    target: str,
    scheduler: str,
    storage_options: dict[str, Any] | None,
    as_json: bool,
) -> None:
    """Have the scheduler send one notice for trial to TARGET, and say what came back.

    The exit code is 1 where it was not delivered.
    """
    with service_at(scheduler, storage_options) as service:
        told = service.try_notice(target)
    verdict = "delivered" if told["delivered"] else "not delivered"
    words = f"{target} ({told['place']}): {verdict}, {told['answer']}"
    emit(told, as_json, lambda: words)
    if not told["delivered"]:
        ctx.exit(FAILED)
