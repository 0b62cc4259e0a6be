"""Convert former names and settings of algorithms in stored jobs and models.

In jobs of format 1 and models of formats 1 and 2, some names stood for two algorithms, depending on
a parameter: ``vrkm`` (``table``) and ``dcdbundle`` (``metric``). The names ``nmbatch`` and
``vc-gmm`` also stood for the published algorithms, and ``dcclust`` was a separate algorithm. In
jobs of formats 1 and 2, ``nmbatch`` and ``lloyd`` had a parameter ``bounds`` that did not affect
results.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from largek_dask.algorithms.names import ALGORITHMS
from largek_dask.driver.provenance import parameters_of

ACCURACY = {
    "tolerance": "eps", "descent": "eps_L", "null": "eps_R", "escape": "eps_T",
    "distance": "gamma", "corrections": "m_c", "lowest": "mu_min", "highest": "mu_max",
}  # fmt: skip
"""Maps current to former parameter names of Algorithms 5.1 and 5.2 of DCD-Bundle."""
CORESET_FIELDS = ("rows", "factors", "n_evaluated")


def current_parameters(name: str, parameters: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Convert the former name and parameters of an algorithm to the current ones."""
    given = dict(parameters)
    match name:
        case "vrkm":
            name = "vrkm" if given.pop("table", "labels") == "snapshot" else "incremental"
            if given.get("eta") in ("auto", "paper"):
                given["eta"] = "K/n"
            if given.get("epoch") == 1:
                given["epoch"] = "n"
        case "dcdbundle":
            name = "dcd-bundle" if given.pop("metric", "lloyd") == "printed" else "partition-path"
        case "dcclust":
            name, given = "dcd-bundle", {"descent": "plain", **given}
            if "accuracy" in given:
                letters = {new: given["accuracy"][old] for old, new in ACCURACY.items()}
                given["accuracy"] = {"name": "Accuracy", **letters}
        case "nmbatch" if given.get("start") == "random" and not given.get("moves", True):
            name = "nmbatch-paper"
            given["bounds"] = "lower" if given.get("bounds", True) else None
        case "vcgmm" | "vc-gmm":
            name, given = "vc-gmm", {"coreset": None, **given}
            if given.get("published"):
                name = "vc-gmm-paper"
                given = {key: value for key, value in given.items() if value != "auto"}
        case _ if name not in ALGORITHMS:
            return name, given
    own = {field.name for field in fields(ALGORITHMS[name])}
    given = current_settings(name, given)
    return name, {key: value for key, value in given.items() if key in own}


def current_settings(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the settings of an algorithm from format 2 to the current format."""
    given = dict(parameters)
    if name in ("lloyd", "nmbatch"):
        given.pop("bounds", None)
    return given


def current_description(described: Mapping[str, Any], number: int = 1) -> dict[str, Any]:
    """Convert an algorithm's description from job format ``number`` to the current format."""
    given = dict(described)
    former = given.pop("name").lower()
    if number > 1:
        return {"name": described["name"], **current_settings(former, given)}
    name, parameters = current_parameters(former, given)
    if name == former and parameters == given:
        return dict(described)
    return parameters_of(ALGORITHMS[name]()) | parameters


def current_provenance(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the provenance of a model from a former format to the current format."""
    found = dict(provenance)
    if "engine" in found:
        found["engine"] = current_description(found["engine"])
    asked = found.get("parameters", {})
    if "algorithm" in asked:
        found["parameters"] = {**asked, "algorithm": current_description(asked["algorithm"])}
    return found


def current_state(tree: Any) -> Any:
    """Convert the encoded state of a former class to the state of the class that replaced it.

    An epoch of ``vrkm`` formerly ended with a partition (``SnapshotState``), and now begins with
    the partition by the same centres. Some algorithms stored more in their states: ``dcd-bundle``
    an evaluation count and an extra last step; ``nmbatch``, ``lloyd`` and ``incremental`` bounds;
    and ``vc-gmm`` a second coreset. ``partition-path`` stored its sample as a tuple.
    """
    match tree:
        case {"class": "VCGMMState" | "EMState", "fields": dict(old)}:
            kept = {name: value for name, value in old.items() if name != "unseen"}
            if isinstance(coreset := kept.get("coreset"), Mapping):
                fields = coreset["fields"]
                known = {name: fields[name] for name in fields if name in CORESET_FIELDS}
                kept["coreset"] = {**coreset, "fields": known}
            return {**tree, "fields": kept}
        case {"class": "SearchState", "fields": dict(old)} if "tuple" in (old["sample"] or {}):
            values = (*old["sample"]["tuple"], 0)
            sample = {"class": "Coreset", "fields": dict(zip(CORESET_FIELDS, values, strict=True))}
            return {**tree, "fields": {**old, "sample": sample}}
        case {"class": "LabelTableState", "fields": dict(old)}:
            kept = {name: value for name, value in old.items() if name != "bounds"}
            return {**tree, "fields": kept}
        case {"class": "LloydState" | "NMBatchState", "fields": dict(old)} if "bounds" in old:
            passes = old["history"]["fields"]
            entries = [entry["fields"]["centers"] for entry in passes["entries"]["tuple"]]
            history = {"class": "History", "fields": {**passes, "entries": {"tuple": entries}}}
            kept = {name: value for name, value in old.items() if name != "bounds"}
            return {**tree, "fields": {**kept, "history": history}}
        case {"class": "PublishedState", "fields": dict(old)}:
            kept = {name: old[name] for name in ("step", "path", "inertia", "bounds", "shift")}
            return {"class": "DCDBundleState", "fields": kept}
        case {"class": "SnapshotState", "fields": dict(old)}:
            entries = old["history"]["fields"]["entries"]["tuple"]
            centers = entries[-1]["fields"]["centers"] if entries else old["centers"]
            epochs = {"generation": old["epoch"], "entries": {"tuple": []}}
            kept = {name: old[name] for name in ("counts", "shift", "place")}
            history = {"class": "History", "fields": epochs}
            return {
                "class": "VRKMState",
                "fields": {**kept, "centers": centers, "history": history},
            }
    return tree
