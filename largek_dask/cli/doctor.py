"""``largek doctor``: what is wrong with this machine, cluster or data set, and what to do."""

from __future__ import annotations

from typing import Any

import click

from largek_dask.cli.common import FAILED, Command, emit, option_scheduler, option_storage

__all__ = ["doctor"]


@click.command(
    cls=Command,
    short_help="Say what is wrong with machine, cluster or data, and what to do.",
    example="largek doctor --scheduler tcp://127.0.0.1:8786 --data s3://bucket/x.zarr",
)
@option_scheduler
@click.option("--data", metavar="URL", help="Also look at this data set.")
@option_storage
@click.pass_context
def doctor(
    ctx: click.Context,
    scheduler: str | None,
    data: str | None,
    storage_options: dict[str, Any] | None,
    as_json: bool,
) -> None:
    """Say what is wrong with this machine, a cluster or a data set, and what to do.

    The exit code is 1 when something is broken.
    """
    from largek_dask.cli.check_cluster import check_cluster
    from largek_dask.cli.check_data import check_data
    from largek_dask.cli.check_machine import check_machine
    from largek_dask.cli.common import connected
    from largek_dask.cli.findings import broken, report, table
    from largek_dask.errors import LargekError

    findings = list(check_machine())
    if scheduler is not None:
        try:
            with connected(scheduler, storage_options) as client:
                assert client is not None
                findings += check_cluster(client)
        except LargekError as error:
            findings.append(broken("cluster", str(error), "start it, or correct the address"))
    if data is not None:
        findings += check_data(data, storage_options)
    told = report(findings)
    emit(told, as_json, lambda: table(findings))
    if not told["healthy"]:
        ctx.exit(FAILED)
