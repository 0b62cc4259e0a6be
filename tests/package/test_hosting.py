"""Files for hosts of code and documentation are valid and run documented commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from largek_dask import __version__
from tests.helpers import needs

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
FORMS = sorted(ROOT.glob(".github/ISSUE_TEMPLATE/*.yml"))


@pytest.mark.parametrize(
    ("schema", "documents"),
    [
        ("vendor.github-workflows", WORKFLOWS),
        ("vendor.github-issue-forms", FORMS),
        ("vendor.readthedocs", [ROOT / ".readthedocs.yaml"]),
        ("vendor.citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_documents_follow_their_schemas(schema, documents):
    needs.module("check_jsonschema")
    assert documents
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *documents]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_steps_of_workflows_are_commands_of_contributing():
    documented = (ROOT / "CONTRIBUTING.md").read_text()
    steps = [
        step["run"]
        for path in WORKFLOWS
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    assert len(steps) >= 10
    for step in steps:
        for command in step.split(" && "):
            words = command.removeprefix('sudo --preserve-env env "PATH=$PATH" ')
            assert words.removeprefix(".venv/bin/") in documented, command


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == __version__
    assert len(cited["references"]) == 4
