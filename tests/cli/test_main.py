"""The command group: help, exit codes, and how light it is."""

import json
import re
import subprocess
import sys
import warnings

import click
import pytest
from click.testing import CliRunner

from largek_dask.cli import main
from largek_dask.cli.common import Command, Group, emit, parse_settings
from largek_dask.driver.formatting import human_seconds
from largek_dask.errors import DataError
from largek_dask.version import __version__

HEAVY = ("numpy", "numba", "distributed", "zarr", "sklearn", "bokeh", "rich", "matplotlib")
COMMANDS = ["demo", "doctor", "ingest", "coreset", "fit", "predict", "score", "report", "export"]
COMMANDS += ["elbow", "dedup", "submit", "jobs", "watch", "cancel", "logs", "result"]


def heavy_modules_after(code):
    program = f"{code}\nimport sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.strip().splitlines()[-1]


def test_import_is_light():
    assert heavy_modules_after("import largek_dask") == "[]"


def test_help_is_light():
    code = (
        "from largek_dask.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0"
    )
    assert heavy_modules_after(code) == "[]"


def leaves(command):
    """Commands without commands of their own."""
    if not isinstance(command, click.Group):
        return 1
    return sum(map(leaves, command.commands.values()))


def test_there_are_few_commands():
    assert leaves(main) <= 20


def test_help_lists_the_commands_in_order():
    told = CliRunner().invoke(main, ["--help"]).output
    places = [told.index(f"\n  {name} ") for name in COMMANDS]
    assert places == sorted(places)
    assert "..." not in told.partition("largek demo")[2], "a summary is cut: shorten it"
    headings = re.findall(r"^(\w+):$", told, re.MULTILINE)
    assert headings == ["Options", "Begin", "Data", "Fits", "Jobs", "Cluster"]


def test_dask_has_the_same_commands():
    done = subprocess.run(
        [sys.executable, "-m", "dask", "largek", "--version"], capture_output=True, text=True
    )
    assert done.stdout == f"largek, version {__version__}\n", done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_and_json(name):
    done = CliRunner().invoke(main, [name, "--help"])
    assert done.exit_code == 0
    assert f"Example:\n  largek {name}" in done.output
    assert "--json" in done.output


@click.group(cls=Group)
def toy():
    pass


@toy.command(cls=Command, example="toy raise-it")
@click.argument("what")
def raise_it(what):
    if what == "data":
        raise DataError("row 3 is\nbad")
    if what == "bug":
        raise KeyError("x")
    if what == "ctrl-c":
        raise KeyboardInterrupt
    if what == "warn":
        warnings.warn("take care", UserWarning, stacklevel=1)
    emit({"what": what}, lambda: {"what": what})


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["data"], 1, "Error: row 3 is bad\n"),
        (["bug"], 1, "Error: KeyError: 'x' (--debug prints the traceback)\n"),
        (["ctrl-c"], 3, "Cancelled.\n"),
        ([], 2, "Error: Missing argument 'WHAT'.\n"),
    ],
)
def test_exit_codes_and_one_line_on_stderr(arguments, code, line):
    done = CliRunner().invoke(toy, ["raise-it", *arguments])
    assert done.exit_code == code
    assert done.stderr.endswith(line)
    assert done.stdout == ""
    if code != 2:
        assert done.stderr == line


def test_debug_prints_the_traceback():
    done = CliRunner().invoke(toy, ["raise-it", "bug", "--debug"])
    assert done.exit_code == 1
    assert "Traceback" in done.stderr
    assert "raise KeyError" in done.stderr


@pytest.mark.filterwarnings("default")
def test_warnings_are_one_line():
    done = CliRunner().invoke(toy, ["raise-it", "warn"])
    assert done.exit_code == 0
    assert done.stderr == "Warning: take care\n"


def test_json_is_all_there_is_on_stdout():
    done = CliRunner().invoke(toy, ["raise-it", "nothing", "--json"])
    assert json.loads(done.stdout) == {"what": "nothing"}
    assert "nothing" in CliRunner().invoke(toy, ["raise-it", "nothing"]).stdout


def test_parse_settings():
    told = parse_settings(["a=3", "b=1e-3", "c=auto", "d=(1, 2)", "e=x=y", "f=false", "g=None"])
    expected = {"a": 3, "b": 1e-3, "c": "auto", "d": (1, 2), "e": "x=y", "f": False, "g": None}
    assert told == expected
    for wrong in ("a", "=3", "a b=3"):
        with pytest.raises(click.BadParameter, match="name=value"):
            parse_settings([wrong])


@pytest.mark.parametrize(
    ("s", "told"),
    [(0.0123, "0.012 s"), (9.96, "10 s"), (59.4, "59 s"), (61, "1 min 01 s"), (3720, "1 h 02 min")],
)
def test_human_seconds(s, told):
    assert human_seconds(s) == told
