"""Commands of the package, called in this process."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner

from largek_dask.cli import main


def run(*arguments: object, code: int = 0) -> Any:
    """Call ``largek`` and return its outputs; it must end with this exit code."""
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done


def run_json(*arguments: object, code: int = 0) -> Any:
    """Call a command with ``--json`` and return the values that it prints."""
    return json.loads(run(*arguments, "--json", code=code).stdout)
