"""Add the jobs plugin with ``dask scheduler --preload largek_dask.service.preload``.

JupyterLab's Dask extension lists only those dashboard pages whose names begin with ``individual-``.
Therefore, this module adds such a page, which redirects to the page of jobs. The page is added at
import time, because Dask creates its pages before it calls ``dask_setup``.
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
    help="Folder for jobs, from which a restarted scheduler resumes them.",
)
def dask_setup(scheduler: Any, largek_store: str | None) -> None:
    """Add the plugin; Dask calls this with the scheduler that is starting."""
    scheduler.add_plugin(JobsPlugin(largek_store))
