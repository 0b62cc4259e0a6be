"""Settings: the schema describes every default, and refuses what would not work."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
import yaml

from largek_dask import config
from tests.helpers import needs

FOLDER = files("largek_dask")
DEFAULTS = yaml.safe_load((FOLDER / "largek.yaml").read_text())
SCHEMA = yaml.safe_load((FOLDER / "largek-schema.yaml").read_text())


def settings(
    defaults: Any = DEFAULTS, schema: dict[str, Any] = SCHEMA, name: str = ""
) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield the name, default and schema of every setting."""
    if "properties" not in schema:
        yield name, defaults, schema
        return
    assert set(defaults) == set(schema["properties"]), name
    assert schema["additionalProperties"] is False
    for key, inner in schema["properties"].items():
        yield from settings(defaults[key], inner, f"{name}.{key}" if name else key)


def test_every_setting_is_described():
    found = list(settings())
    assert len(found) > 20
    assert all(described["description"].endswith(".") for _, _, described in found)


def test_defaults_and_environment():
    script = "from largek_dask import config; print(config.get('checkpoints.keep'))"
    env = {"DASK_LARGEK__CHECKPOINTS__KEEP": "7"}
    for more, expected in (({}, DEFAULTS["largek"]["checkpoints"]["keep"]), (env, 7)):
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, env=more, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(expected)
    assert (
        config.get("kernels.tile")
        in SCHEMA["properties"]["largek"]["properties"]["kernels"]["properties"]["tile"]["enum"]
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("passes.chunk-retries", 0), ("kernels.tile", "sse"), ("stores.tries", "4"), ("nothing", 1)],
)
def test_the_schema_refuses_what_would_not_work(name, value):
    jsonschema = needs.module("jsonschema")
    jsonschema.validate(DEFAULTS, SCHEMA)
    changed = copy.deepcopy(DEFAULTS)
    *groups, last = name.split(".")
    at = changed["largek"]
    for group in groups:
        at = at[group]
    at[last] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(changed, SCHEMA)
