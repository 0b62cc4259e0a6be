"""``largek serve``: the page of jobs without a scheduler, from their folders."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any

import click

from largek_dask.cli.common import Command, option_storage

if TYPE_CHECKING:
    from tornado.httpserver import HTTPServer

__all__ = ["serve"]

MOST_PORTS = 50
"""Ports that are tried, from the one that is asked for on."""


@click.command(
    cls=Command,
    short_help="Show fits and jobs in a browser, from their folders.",
    example="largek serve run1 s3://bucket/store",
    json_help="Print one JSON object when it serves, and nothing else.",
)
@click.argument("folders", metavar="DIR_OR_STORE...", nargs=-1, required=True)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8799,
    show_default=True,
    help="Port to listen on; the next free one if it is in use.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Whoever can reach it sees all that is shown.",
)
@option_storage
def serve(
    folders: tuple[str, ...],
    port: int,
    host: str,
    storage_options: dict[str, Any] | None,
    as_json: bool,
) -> None:
    """Show fits and jobs in a browser, from their folders alone, as a scheduler's page does.

    Each folder is that of a fit (--out of largek fit, checkpoint= of an estimator), or the store of
    a scheduler (--largek-store), on any URL that fsspec knows. Nothing is written there. What is
    added is shown within seconds; Ctrl-C ends it.
    """
    from largek_dask.service.folders import Folders

    source = Folders(folders, storage_options)
    try:
        asyncio.run(_serve(source, host, port, as_json))
    except KeyboardInterrupt:
        if not as_json:
            click.echo()
    finally:
        source.close()


async def _serve(source: Any, host: str, port: int, as_json: bool) -> None:
    """Serve until somebody ends it."""
    import json

    from tornado import web
    from tornado.httpserver import HTTPServer

    from largek_dask.observe.hosts import Hosts
    from largek_dask.observe.web import PATH, Root, install

    hosts = Hosts(lambda: host)
    application = web.Application([("/", Root, {"hosts": hosts})])
    page = install(application, "/", source, hosts)
    server = HTTPServer(application)
    try:
        found = listen(server, host, port)
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{found}/{PATH}"
        if as_json:
            click.echo(json.dumps({"url": url, "port": found}))
        else:
            in_use = f" (port {port} is in use)" if port not in (0, found) else ""
            click.echo(f"Serving at {url}{in_use}; Ctrl-C ends it.")
        await asyncio.Event().wait()
    finally:
        page.close()
        server.stop()
        await server.close_all_connections()


def listen(server: HTTPServer, host: str, port: int) -> int:
    """Listen on this port, or on the next one that is free; which it is.

    Raises
    ------
    ParameterError
        None can be had.
    """
    import socket

    from largek_dask.errors import ParameterError

    for tried in range(port, min(port + MOST_PORTS, 65_536)):
        try:
            # (Tornado's own way leaves a socket open where a port is in use.)
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            found = socket.create_server((host, tried), family=family, backlog=128)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            raise ParameterError(
                f"cannot listen on {host}, port {tried}: {error}; give another --host or --port"
            ) from error
        found.setblocking(False)
        port = int(found.getsockname()[1])
        server.add_sockets([found])
        return port
    raise ParameterError(
        f"ports {port} to {tried} of {host} are in use: give another --port, or 0 for any"
    )
