"""Options, output and exit codes shared by commands."""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from distributed import Client

    from largek_dask.data.rows import Rows
    from largek_dask.driver.storage import Folder

FAILED = 1
CANCELLED = 3
MOST_LISTED = 8
"""Maximum number of items printed from a list."""

Decorated = Callable[..., Any]
Decorator = Callable[[Decorated], Decorated]


class Group(click.Group):
    """Group of commands that prints an exception as one line on stderr and sets the exit code."""

    sections: Mapping[str, Sequence[click.Command]] = {}
    """Commands by their heading in the help."""

    def add_sections(self, sections: Mapping[str, Sequence[click.Command]]) -> None:
        """Add commands grouped by their heading in the help."""
        self.sections = sections
        for commands in sections.values():
            for command in commands:
                self.add_command(command)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not self.sections:
            super().format_commands(ctx, formatter)
            return
        width = max(map(len, self.commands))
        room = formatter.width - 6 - width
        for heading, commands in self.sections.items():
            rows = [(f"{one.name:{width}}", one.get_short_help_str(room)) for one in commands]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
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
                if ctx.meta.get("debug"):
                    traceback.print_exc(file=sys.stderr)
                click.echo(f"Error: {one_line(error)}", err=True)
                ctx.exit(FAILED)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    click.echo(f"Warning: {message}", err=True)


class Command(click.Command):
    """Command with options ``--json`` and ``--debug``, and an example in its help."""

    def __init__(
        self,
        *args: Any,
        example: str,
        json_help: str = "Print one JSON object and nothing else.",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.example = example
        debug_help = "Print the traceback when something fails."
        for name, text in (("json", json_help), ("debug", debug_help)):
            flag = click.Option(
                [f"--{name}"], is_flag=True, is_eager=True, help=text,
                expose_value=False, callback=_remember,
            )  # fmt: skip
            self.params.append(flag)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Example"):
            for line in self.example.splitlines():
                formatter.write(f"  {line}\n")


def _remember(ctx: click.Context, option: click.Parameter, value: bool) -> None:
    assert option.name is not None
    ctx.meta[option.name] = value


def command(example: str, **more: Any) -> Callable[[Decorated], click.Command]:
    """Return a decorator that turns a function into a :class:`Command`."""
    return click.command(cls=Command, example=example, **more)


def wants_json() -> bool:
    return bool(click.get_current_context().meta.get("json"))


def explicit_parameters() -> dict[str, Any]:
    """Return the parameters of the current command that were given on the command line."""
    ctx, line = click.get_current_context(), ParameterSource.COMMANDLINE
    return {n: value for n, value in ctx.params.items() if ctx.get_parameter_source(n) is line}


# --- output -----------------------------------------------------------------------------------


def one_line(error: BaseException) -> str:
    from largek_dask.errors import LargekError

    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, (LargekError, OSError)):
        return text
    return f"{type(error).__name__}: {text} (--debug prints the traceback)"


def emit(
    payload: Mapping[str, Any], table: Callable[[], Any] | None = None, *, then: str = ""
) -> None:
    """Print a payload as JSON, or print the table that ``table()`` returns.

    By default, the table lists the payload's names and values, and the next command ``then``.
    """
    if wants_json():
        click.echo(json.dumps(payload, default=_plain, allow_nan=False))
        return
    from rich.console import Console

    if table is None:
        shown = key_values([*_in_words(payload), *([("next", then)] if then else [])])
    else:
        shown = table()
    Console(highlight=False).print(key_values(shown.items()) if isinstance(shown, dict) else shown)


def _in_words(payload: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in payload.items():
        words = "steps" if name == "n_iter" else name.removeprefix("n_").replace("_", " ")
        words = before + words.replace("seconds", "time").replace(" bytes", "")
        if isinstance(value, Mapping) and "words" in value:
            yield words, str(value["words"])
        elif isinstance(value, Mapping):
            yield from _in_words(value, f"{words}: ")
        else:
            yield words, _text(name, value)


def _text(name: str, value: Any) -> str:
    from dask.utils import format_bytes

    from largek_dask.driver.formatting import human_seconds

    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        most = len(value) if name == "warnings" else MOST_LISTED
        texts = [*map(str, value[:most]), *["…"] * (len(value) > most)]
        return ("\n" if name == "warnings" else ", ").join(texts) or "none"
    if "bytes" in name or name.startswith("memory"):
        return str(format_bytes(value))
    if "seconds" in name:
        return human_seconds(value)
    return f"{value:.10g}" if isinstance(value, float) else f"{value:,}"


def echo(payload: Mapping[str, Any], lines: Sequence[str]) -> None:
    """Print a payload as JSON, or print unwrapped lines, which can be copied."""
    click.echo(json.dumps(payload) if wants_json() else "\n".join(lines))


def _plain(value: Any) -> Any:
    """Convert numpy scalars and arrays to JSON values, and any other value to text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def key_values(pairs: Iterable[tuple[str, Any]]) -> Any:
    """Return a two-column rich table; markup in strings is not interpreted."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    # Omit padding at the edges so that a digest fits into 80 columns.
    table = Table(box=SIMPLE_HEAD, show_header=False, show_edge=False, pad_edge=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, Text(value) if isinstance(value, str) else value)
    return table


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], notes: Sequence[str] = (),
    right: Sequence[str] = (),
) -> Any:  # fmt: skip
    """Return a rich table with notes below it; the first column and numbers are not wrapped."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group as Together
    from rich.table import Table
    from rich.text import Text

    found = Table(
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="cyan"
    )
    for name in columns:
        is_whole = name == columns[0] or name in right
        justify: Any = "right" if name in right else "left"
        found.add_column(name, justify=justify, no_wrap=is_whole, overflow="fold")
    for row in rows:
        found.add_row(*map(Text, row))
    return Together(found, *map(Text, notes))


# --- options ----------------------------------------------------------------------------------


def options(*added: Decorator) -> Decorator:
    """Combine option decorators into one, keeping their order."""
    return lambda function: reduce(lambda found, option: option(found), reversed(added), function)


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Parse settings such as ``("batch_rows=4096", "votes=all")`` into keyword arguments.

    Each value is parsed as a Python literal if possible, otherwise used as text; true, false and
    none may be in lower case.
    """
    words = {"true": True, "false": False, "none": None}
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise click.BadParameter(
                f"{pair!r} is not valid: use name=value, for example batch_rows=4096",
                param_hint="--set",
            )
        try:
            word = text.lower()
            settings[name] = words[word] if word in words else literal_eval(text)
        except (ValueError, SyntaxError):
            settings[name] = text
    return settings


option_scheduler = click.option(
    "--scheduler",
    metavar="ADDR",
    help="Address of a Dask scheduler, or its scheduler.json.  [default: this process]",
)
option_storage = click.option(
    "--storage-option",
    "storage_options",
    multiple=True,
    metavar="NAME=VALUE",
    callback=lambda _ctx, _option, value: parse_settings(value) or None,
    help="fsspec option for the data's protocol, e.g. anon=True; may be repeated.",
)
option_weight = click.option(
    "--sample-weight", metavar="URL", help="Weights of the rows, one number per row."
)
option_column = click.option(
    "--column",
    metavar="NAME",
    help="Name of the array, if the store has several (a Zarr or HDF5 group, AnnData), or column "
    "of a table.",
)
option_ids = click.option(
    "--ids", metavar="NAME", help="Column of DATA that holds the ids of the rows."
)
option_partition = click.option(
    "--partition-by",
    type=click.Choice(["cluster"]),
    help="Write a folder with Parquet files for each cluster.",
)


def option_include(where: str) -> Decorator:
    return click.option(
        "--include",
        metavar="NAMES",
        callback=lambda _ctx, _option, value: tuple(value.split(",")) if value else (),
        help=f"{where}, separated by commas: id, distance (to the own centre), second (nearest "
        "centre and its distance).",
    )


option_threads = click.option(
    "--threads", type=click.IntRange(min=1), help="Number of threads.  [default: all cores]"
)
option_force = click.option("--force", is_flag=True, help="Replace an existing output.")


class DataOptions(NamedTuple):
    """Options for reading data."""

    column: str | None
    storage_options: dict[str, Any] | None

    def open(self, data: str, sample_weight: str | None = None, **more: Any) -> Rows:
        from largek_dask.data.sources import open_rows

        return open_rows(data, sample_weight=sample_weight, **self._asdict(), **more)


def with_data_options(function: Decorated) -> Decorated:
    """Add ``--column`` and ``--storage-option``, passed as ``data_options``."""

    @wraps(function)
    def with_source(*args: Any, column: Any, storage_options: Any, **kwargs: Any) -> Any:
        return function(*args, data_options=DataOptions(column, storage_options), **kwargs)

    return options(option_column, option_storage)(with_source)


# --- URLs and connections ---------------------------------------------------------------------


def output(
    url: str, data: str, storage_options: Mapping[str, Any] | None
) -> tuple[str, Mapping[str, Any] | None]:
    """Return an output's absolute URL, with the data's storage options if protocols are equal.

    The URL is made absolute because workers have other working directories.
    """
    from fsspec.core import split_protocol

    from largek_dask.data.stores import normalize

    same = split_protocol(url)[0] == split_protocol(data)[0]
    return normalize(url), storage_options if same else None


def new_file(name: str, force: bool) -> Path:
    """Return the path of a file to write; raise OutputError if it exists."""
    from largek_dask.errors import OutputError

    path = Path(name)
    if path.exists() and not force:
        raise OutputError(f"{path} exists: choose another --out, or use --force")
    return path


def model_in(folder: Folder) -> str | None:
    """Return the URL of the model in a job's folder, or of a model itself; None if not found."""
    if folder.exists("model.zarr"):
        return f"{folder.url}/model.zarr"
    return folder.url if folder.exists("zarr.json") else None


@contextmanager
def connected(
    scheduler: str | None, storage_options: Mapping[str, Any] | None = None
) -> Iterator[Client | None]:
    """Connect to a scheduler by its address or file; yield None if none is given."""
    if scheduler is None:
        yield None
        return
    from largek_dask.service.scheduler_file import Finder, connect_to

    with connect_to(Finder(scheduler, storage_options)) as client:
        yield client
