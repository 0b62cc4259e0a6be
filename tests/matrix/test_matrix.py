"""The package, installed with the lowest versions of all dependencies."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tests.helpers import needs
from tests.matrix.__main__ import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_lowest_versions() -> None:
    needs.module("uv")
    done = CliRunner().invoke(main, ["--short"])
    assert done.exit_code == 0, done.output
