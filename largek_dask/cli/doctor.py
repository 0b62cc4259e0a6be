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

    Of a cluster that speaks TLS it says when each certificate ends. The exit code is 1 when
    something is broken.
    """
    from distributed.security import Security

    from largek_dask.cli.check_cluster import check_cluster
    from largek_dask.cli.check_data import check_data
    from largek_dask.cli.check_encryption import check_reachable, check_workers
    from largek_dask.cli.check_machine import check_machine
    from largek_dask.cli.common import connected
    from largek_dask.cli.findings import broken, report, table
    from largek_dask.errors import LargekError
    from largek_dask.service.scheduler_file import Finder

    findings = list(check_machine())
    if scheduler is not None:
        try:
            finder = Finder(scheduler, storage_options)
            address = finder.find()
            security = finder.security() or Security()
            reachable = check_reachable(address, security)
            findings += reachable
            # What the look has found out already nobody has to wait for a second time.
            if all(finding.level != "broken" for finding in reachable):
                with connected(scheduler, storage_options) as client:
                    findings += check_cluster(client)
                    findings += check_workers(client, security)
        except LargekError as error:
            findings.append(broken("cluster", str(error), "start it, or correct the address"))
    if data is not None:
        findings += check_data(data, storage_options)
    told = report(findings)
    emit(told, as_json, lambda: table(findings))
    if not told["healthy"]:
        ctx.exit(FAILED)
