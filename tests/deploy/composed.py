"""`docker-compose.yml` as an engine reads it, with variables put in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from tests.deploy.running import ROOT

FILE = ROOT / "docker-compose.yml"
VARIABLE = re.compile(r"\$(?:\$|\{(\w+)(:\?[^}]*)?\}|\w+)")


def example() -> dict[str, str]:
    """The variables of ``.env.example``."""
    return dict(re.findall(r"^(\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.M))


def variables(text: str) -> dict[str, bool]:
    """Variables that a file reads, and whether each one that is missing names itself."""
    found: dict[str, bool] = {}
    for match in VARIABLE.finditer(re.sub(r"(?m)#.*$", "", text)):
        if match[0] != "$$":
            name = match[1] or match[0][1:]
            found[name] = found.get(name, True) and match[2] is not None
    return found


def filled(value: Any, given: Mapping[str, str]) -> Any:
    """All texts with their variables put in."""
    if isinstance(value, Mapping):
        return {key: filled(one, given) for key, one in value.items()}
    if isinstance(value, list):
        return [filled(one, given) for one in value]
    if isinstance(value, str):
        return VARIABLE.sub(lambda m: "$" if m[0] == "$$" else given[m[1]], value)
    return value


def loaded(given: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The file as `docker compose config` shows it."""
    document = yaml.load(FILE.read_text(), yaml.CSafeLoader)
    return dict(filled(document, example() if given is None else given))


def mounted(service: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, str]:
    """What a service sees where: named volumes, folders, files of settings, secrets, memory."""
    found: dict[str, str] = {}
    for one in service.get("volumes", ()):
        if isinstance(one, Mapping):
            found[one["target"]] = one["source"]
        else:
            source, _, target = one.rpartition(":")
            found[target] = source
    for one in service.get("configs", ()):
        found[one["target"]] = document["configs"].get(one["source"], {}).get("file", "")
    for one in service.get("secrets", ()):
        found[f"/run/secrets/{one}"] = document["secrets"].get(one, {}).get("file", "")
    for one in service.get("tmpfs", ()):
        found[one.partition(":")[0]] = "memory"
    return found
