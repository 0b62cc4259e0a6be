"""Run jobs on a scheduler: ``dask scheduler --preload largek_dask.service.preload``.

JupyterLab's Dask extension lists Bokeh documents of the dashboard whose names begin with
``individual-``. So one such document redirects to the page of jobs. It is added when this module is
imported, because Dask has already made its pages when it calls ``dask_setup``.
"""

from __future__ import annotations

from typing import Any

import click
from distributed.dashboard.scheduler import applications
from jinja2 import Template

from largek_dask import config
from largek_dask.service.plugin import JobsPlugin

PANEL = "/individual-largek"
REDIRECT = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>largek</title>
<meta http-equiv="refresh" content="0; url=largek"></head>
<body><a href="largek">Jobs</a></body></html>
"""


def redirect(scheduler: Any, extra: dict[str, Any], doc: Any) -> None:
    """Turn an empty Bokeh document into a redirect to the page of jobs."""
    doc.title = "largek"
    doc.template = Template(REDIRECT)


if config.get("observe.dashboard"):
    applications.setdefault(PANEL, redirect)


@click.command()
@click.option(
    "--largek-store",
    metavar="URL",
    help="Folder where jobs are stored, so that a restarted scheduler continues them.",
)
def dask_setup(scheduler: Any, largek_store: str | None) -> None:
    """Add the plugin; called by Dask with the scheduler that is starting."""
    scheduler.add_plugin(JobsPlugin(largek_store))
