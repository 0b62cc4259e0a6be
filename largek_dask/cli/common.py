"""What all commands share: options, exit codes, output for people and for machines."""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from ast import literal_eval
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from distributed import Client

    from largek_dask.driver.storage import Folder

__all__ = [
    "CANCELLED",
    "FAILED",
    "OUT_OF_SIGHT",
    "Command",
    "CommandGroup",
    "Group",
    "connected",
    "emit",
    "key_values",
    "model_in",
    "named_after",
    "one_line",
    "option_away",
    "option_scheduler",
    "option_service",
    "option_source",
    "option_storage",
    "output",
    "parse_settings",
    "service_option",
]

FAILED = 1
CANCELLED = 3
OUT_OF_SIGHT = 4
"""The job goes on or not: nobody answers who could tell."""

_DEBUG = "largek.debug"


class Group(click.Group):
    """Print what a command raises as one line on stderr, and end with an exit code."""

    sections: Mapping[str, Sequence[click.Command]] = {}
    """Commands by the heading they have in the help; commands of no section have "Commands"."""

    def add_sections(self, sections: Mapping[str, Sequence[click.Command]]) -> None:
        """Add commands, in the order and under the headings in which the help lists them."""
        self.sections = sections
        for commands in sections.values():
            for command in commands:
                self.add_command(command)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return names of commands in the order in which they were added."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands of each section."""
        if not self.sections:
            super().format_commands(ctx, formatter)
            return
        width = max(map(len, self.commands))
        room = formatter.width - 6 - width
        for heading, commands in self.sections.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [
                        (f"{command.name:{width}}", command.get_short_help_str(room))
                        for command in commands
                    ]
                )

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; see the module's exit codes."""
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except (click.ClickException, click.exceptions.Exit):
                raise
            except (KeyboardInterrupt, click.Abort):
                click.echo("Cancelled.", err=True)
                ctx.exit(CANCELLED)
            except Exception as error:
                if ctx.meta.get(_DEBUG):
                    traceback.print_exc(file=sys.stderr)
                click.echo(f"Error: {one_line(error)}", err=True)
                ctx.exit(FAILED)


class _WithExample(click.Command):
    """``--json``, ``--debug`` and an example in the help."""

    def __init__(
        self,
        *args: Any,
        example: str,
        json_help: str = "Print one JSON object and nothing else.",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.example = example
        self.params += [
            click.Option(["--json", "as_json"], is_flag=True, help=json_help),
            click.Option(
                ["--debug"],
                is_flag=True,
                expose_value=False,
                is_eager=True,
                callback=_remember_debug,
                help="Print the traceback when something fails.",
            ),
        ]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The example, as it is typed."""
        with formatter.section("Example"):
            for line in self.example.strip().splitlines():
                formatter.write(f"  {line.strip()}\n")


class Command(_WithExample):
    """A command with ``--json``, ``--debug`` and an example in its help.

    Parameters
    ----------
    example : str
        As it is typed.
    json_help : str
        What ``--json`` prints.
    """


class CommandGroup(_WithExample, Group):
    """A command with all that :class:`Command` has, and with commands of its own."""


def _remember_debug(ctx: click.Context, _option: click.Parameter, value: bool) -> None:
    ctx.meta[_DEBUG] = value


def one_line(error: BaseException) -> str:
    """An error as it is printed."""
    from largek_dask.errors import LargekError

    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, (LargekError, OSError)):
        return text
    return f"{type(error).__name__}: {text} (--debug prints the traceback)"


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    click.echo(f"Warning: {message}", err=True)


def emit(payload: Mapping[str, Any], as_json: bool, table: Callable[[], Any]) -> None:
    """Print ``payload`` as JSON, or what ``table()`` makes, with rich."""
    if as_json:
        click.echo(json.dumps(payload, default=_plain, allow_nan=False))
        return
    from rich.console import Console

    Console(highlight=False).print(table())


def _plain(value: Any) -> Any:
    """What json does not know: numpy scalars and arrays, paths."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


def key_values(pairs: Mapping[str, Any], title: str | None = None) -> Any:
    """A two-column rich table; a string is shown as it is, an object of rich as rich does."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    # Without blanks at its edges, so that a digest has its line on 80 columns.
    table = Table(
        title=title,
        box=SIMPLE_HEAD,
        show_header=False,
        title_justify="left",
        show_edge=False,
        pad_edge=False,
    )
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs.items():
        table.add_row(name, Text(value) if isinstance(value, str) else value)
    return table


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """``("batch_rows=4096", "votes=all")`` as keyword arguments.

    A value is read as a Python literal where it is one (true, false and none in any case), else
    as text.
    """
    words = {"true": True, "false": False, "none": None}
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise click.BadParameter(
                f"{pair!r} is not name=value, e.g. --set batch_rows=4096", param_hint="--set"
            )
        try:
            word = text.lower()
            settings[name] = words[word] if word in words else literal_eval(text)
        except (ValueError, SyntaxError):
            settings[name] = text
    return settings


def option_scheduler(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--scheduler ADDR``."""
    return click.option(
        "--scheduler",
        metavar="ADDR",
        help="Address of a Dask scheduler (tcp://host:8786), or the scheduler.json in the store of "
        "one with jobs (path or URL); without it, threads of this process.",
    )(command)


def service_option(*, required: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``--scheduler ADDR`` of a command that is about jobs; Dask's own variable may say it."""
    return click.option(
        "--scheduler",
        metavar="ADDR",
        required=required,
        envvar="DASK_SCHEDULER_ADDRESS",
        show_envvar=True,
        help="Address of the scheduler that has the jobs (tcp://host:8786), or the scheduler.json "
        "in its store (path or URL), which says where it is now.",
    )


option_service = service_option(required=True)


def option_away(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--away TIME`` of a command that follows a job."""
    return click.option(
        "--away",
        metavar="TIME",
        default="15m",
        show_default=True,
        help="How long the scheduler may be away, such as 90s or 2h; then the exit code is 4.",
    )(command)


def option_storage(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--storage-option name=value``, kept as a dictionary or None."""
    return click.option(
        "--storage-option",
        "storage_options",
        multiple=True,
        metavar="NAME=VALUE",
        callback=lambda _ctx, _option, value: parse_settings(value) or None,
        help="Passed to fsspec with URLs like the data's, or that of a scheduler.json, e.g. "
        "anon=True; may be repeated.",
    )(command)


def option_source(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--component PATH`` and ``--missing warn|raise|fill``: what is read of the data, and how."""
    component = click.option(
        "--component",
        metavar="PATH",
        help="The array inside a store of several (a Zarr or HDF5 group, AnnData, npz).",
    )
    missing = click.option(
        "--missing",
        type=click.Choice(["warn", "raise", "fill"]),
        default="warn",
        show_default=True,
        help="What becomes of chunks that a Zarr store lacks: its fill value, with a warning that "
        "says how many; an error; or its fill value, uncounted.",
    )
    return component(missing(command))


def output(
    url: str, data: str, storage_options: Mapping[str, Any] | None
) -> tuple[str, Mapping[str, Any] | None]:
    """An output's absolute address, and its storage options: the data's if both lie alike.

    Absolute, because workers have other working directories.
    """
    from fsspec.core import split_protocol

    from largek_dask.data.stores import normalize

    same = split_protocol(url)[0] == split_protocol(data)[0]
    return normalize(url), storage_options if same else None


def model_in(folder: Folder) -> str | None:
    """The address of the model of a job's folder, or of the folder if it is one; None: no model."""
    if folder.exists("model.zarr"):
        return f"{folder.url}/model.zarr"
    return folder.url if folder.exists("zarr.json") else None


def named_after(folder: Folder, ending: str) -> str:
    """Name of a file in the current folder that is made of a fit: its folder's, with an ending."""
    return folder.url.rpartition("/")[2].removesuffix(".zarr") + ending


@contextmanager
def connected(
    scheduler: str | None, storage_options: Mapping[str, Any] | None = None
) -> Iterator[Client | None]:
    """A client of the scheduler at this address, closed at the end; None without an address.

    Parameters
    ----------
    scheduler : str, optional
        Address, or the path or URL of a file that says it.
    storage_options : mapping, optional
        For that file.
    """
    if scheduler is None:
        yield None
        return
    from largek_dask.service.scheduler_file import Finder, connect_to

    with connect_to(Finder(scheduler, storage_options)) as client:
        yield client
