"""Parts of the reference that are made from the code: the command line, the configuration."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

import click

from largek_site import documents

__all__ = ["PARTS", "command_line", "configuration", "filled", "settings", "tutorials"]

PLACE = re.compile(r"^<!-- made: ([\w-]+) -->$", re.MULTILINE)


def filled(text: str, docs: Path) -> str:
    """A page's source with everything in place of its marks ``<!-- made: NAME -->``."""
    return PLACE.sub(lambda found: PARTS[found[1]](docs), text)


def row(*cells: str) -> str:
    """A row of a table."""
    return "| " + " | ".join(" ".join(cell.split()).replace("|", r"\|") for cell in cells) + " |"


def command_line(_docs: Path) -> str:
    """Every command of ``largek`` with its arguments, options and example."""
    from largek_dask.cli import main

    context = click.Context(main, info_name="largek")
    listed = [
        f"| [{name}](#largek-{name}) | {short_help(main, context, name)} |"
        for name in names(main, context)
    ]
    table = "\n".join(["| command | |", "|---|---|", *listed])
    return "\n\n".join([table, *commands(main, context)])


def names(group: click.Group, context: click.Context) -> Iterator[str]:
    """Names of a group's commands that its help shows."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None and not command.hidden:
            yield name


def short_help(group: click.Group, context: click.Context, name: str) -> str:
    """One line about a command."""
    command = group.get_command(context, name)
    assert command is not None
    return literal(command.get_short_help_str(limit=200))


def commands(group: click.Group, above: click.Context) -> Iterator[str]:
    """A section for each command, also of groups within."""
    for name in names(group, above):
        command = group.get_command(above, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=above)
        yield section(command, context)
        if isinstance(command, click.Group):
            yield from commands(command, context)


def section(command: click.Command, context: click.Context) -> str:
    """One command."""
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [
        f"## {context.command_path}",
        f"```text\n{context.command_path} {usage}\n```",
        literal(re.sub(r"\x08\n?", "", command.help or "")),
        "\n".join(["| option | meaning |", "|---|---|", *options(command, context)]),
    ]
    example = getattr(command, "example", None)
    if example:
        lines = "\n".join(line.strip() for line in example.strip().splitlines())
        parts.append(f"```shell\n{lines}\n```")
    return "\n\n".join(parts)


def options(command: click.Command, context: click.Context) -> Iterator[str]:
    """A row for each option."""
    for option in command.get_params(context):
        record = option.get_help_record(context)
        if record is not None:
            yield row(f"`{record[0]}`", literal(record[1]))


def literal(text: str) -> str:
    """Help text as Markdown that reads the same."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    joined = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return re.sub(r"([*_<\[\]])", r"\\\1", joined)


def settings() -> Iterator[tuple[str, Any, str]]:
    """Key, default and meaning of everything in the configuration, as ``config.py`` has it.

    Raises
    ------
    ValueError
        A key has no comment above it.
    """
    from largek_dask import config

    source = Path(config.__file__).read_text()
    lines = source.splitlines()

    def walk(node: ast.Dict, values: dict[str, Any], above: str) -> Iterator[tuple[str, Any, str]]:
        for key, value in zip(node.keys, node.values, strict=True):
            assert isinstance(key, ast.Constant)
            name = f"{above}.{key.value}"
            if isinstance(value, ast.Dict) and value.keys:
                yield from walk(value, values[key.value], name)
                continue
            comment: list[str] = []
            number = key.lineno - 2
            while lines[number].strip().startswith("#"):
                comment.insert(0, lines[number].strip().removeprefix("#").strip())
                number -= 1
            if not comment:
                raise ValueError(f"{config.__file__}: {name} has no comment that says what it is")
            yield name, values[key.value], " ".join(comment)

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "DEFAULTS":
            assert isinstance(node.value, ast.Dict)
            yield from walk(node.value, config.DEFAULTS, "largek")


def configuration(_docs: Path) -> str:
    """A table of every key."""
    from largek_dask.driver.words import human_bytes

    rows = []
    for name, default, meaning in settings():
        shown = f"`{default}`"
        if name.endswith("-bytes") and default is not None:
            shown = human_bytes(default)
        rows.append(row(f"`{name}`", shown, meaning))
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])


def fields(holder: type[Any]) -> dict[str, str]:
    """Meaning of each field of a class, also of those that it has from others."""
    found: dict[str, str] = {}
    for part in reversed(holder.__mro__):
        if "__annotations__" not in vars(part) or not part.__module__.startswith("largek_dask"):
            continue
        [body] = ast.parse(textwrap.dedent(inspect.getsource(part))).body
        assert isinstance(body, ast.ClassDef)
        for field, told in zip(body.body, [*body.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                words = ""
                if isinstance(told, ast.Expr) and isinstance(told.value, ast.Constant):
                    words = inspect.cleandoc(str(told.value.value))
                found[field.target.id] = words.split("\n\n")[0].replace("``", "`")
    return found


def models(_docs: Path) -> str:
    """The arrays of every kind of model."""
    from largek_dask.model import KINDS

    parts = []
    for name, kind in KINDS.items():
        told = fields(kind.holds)
        rows = [row(f"`{field.name}`", told[field.name]) for field in dataclass_fields(kind.holds)]
        head = f"The kind `{name}`, format {kind.format}:"
        parts.append("\n".join([head, "", "| array | what it is |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def result(_docs: Path) -> str:
    """The fields of the result of a job's run."""
    from largek_dask.service.store import Result

    told = fields(Result)
    rows = [row(f"`{name}`", told[name]) for name in Result.model_fields]
    return "\n".join(["| field | what it is |", "|---|---|", *rows])


def tutorials(_docs: Path) -> str:
    """A list of the notebooks, and their place in the navigation."""
    pages = [f"/{documents.MADE}/tutorials/{notebook.stem}" for notebook in documents.notebooks()]
    if not pages:
        return ""
    return "\n".join(["```{toctree}", ":maxdepth: 1", "", *pages, "```"])


def metrics(_docs: Path) -> str:
    """Every metric, of jobs and of workers."""
    from largek_dask.observe.metrics import JOB_METRICS, SECONDS, STORE_METRICS, WORKER_METRICS

    lines = ["| metric | labels | kind | what it says |", "|---|---|---|---|",
             row("`largek_jobs`", "`state`", "gauge", "Jobs by state."),
             row("`largek_job_info`", "`job_id`, `name` (cut at 64 characters), `algorithm`, "
                 "`n_clusters`", "gauge", "What a job is: 1.")]  # fmt: skip
    lines += [
        row(f"`largek_store_{name}`", "", kind, says)
        for name, (kind, says) in STORE_METRICS.items()
    ]
    for prefix, label, told in (("job", "`job_id`", JOB_METRICS), ("worker", "", WORKER_METRICS)):
        with_seconds = {**told, "seconds": ("counter", SECONDS)}
        for name, (kind, says) in with_seconds.items():
            full = f"`largek_{prefix}_{name}{'_total' if kind == 'counter' else ''}`"
            labels = ", ".join(filter(None, (label, "`kind`" if name == "seconds" else "")))
            lines.append(row(full, labels, kind, says))
    return "\n".join(lines)


PARTS: dict[str, Callable[[Path], str]] = {
    "command-line": command_line,
    "configuration": configuration,
    "metrics": metrics,
    "models": models,
    "result": result,
    "tutorials": tutorials,
}
"""What a page may ask for, by name."""
