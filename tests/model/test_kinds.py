"""Kinds of model: a new one needs no more than its class and a line in the registry."""

from __future__ import annotations

import itertools
import json
import types
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

import largek_dask as lk
from largek_dask.algorithms.kmeans import CenterArrays
from largek_dask.algorithms.objective import Objective
from largek_dask.errors import ModelFormatError, OutputError
from largek_dask.model import KINDS, CentersModel, Model, load_model
from largek_dask.service.serialization import message_of_model, model_of
from tests.driver.toy import toy_rows

X = toy_rows(200, 3)
CUTS = np.array([-8.0, 5.0])
EXPECTED = np.searchsorted(CUTS, X[:, 0]).astype(np.int32)


@dataclass(frozen=True)
class CutArrays:
    cuts: NDArray[np.float64]
    counts: NDArray[np.float64]


class CutModel(Model):
    """Rows of three columns, told apart by the first one: no centres anywhere."""

    kind: ClassVar[str] = "cuts"
    holds: ClassVar[type[Any]] = CutArrays
    objective: ClassVar[Objective] = Objective("smallest_part", "smallest part", "rows", "max")

    arrays: CutArrays

    @property
    def counts(self) -> NDArray[np.float64]:
        return self.arrays.counts

    @property
    def n_features(self) -> int:
        return 3

    def _score(self, passes: Any) -> float:
        raise NotImplementedError

    def _label(self, passes: Any, out: Any) -> Any:
        raise NotImplementedError

    def _check(self) -> None:
        if len(self.arrays.cuts) + 1 != len(self.arrays.counts):
            raise ValueError(f"{len(self.arrays.cuts)} cuts for {len(self.arrays.counts)} counts")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "cuts", CutModel)


def cut_model() -> CutModel:
    made = Model(
        CutArrays(CUTS, np.bincount(EXPECTED).astype(np.float64)),
        provenance={"stop_reason": "converged", "n_iter": 3},
    )
    assert isinstance(made, CutModel)
    return made


def centers_model() -> CentersModel:
    return CentersModel(CenterArrays(X[:4].copy(), np.full(4, 50.0), np.zeros(3)))


def notes_of(path: Path) -> dict[str, Any]:
    notes: dict[str, Any] = json.loads((path / "zarr.json").read_text())["attributes"]["largek"]
    return notes


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> str:
    node = json.loads((path / "zarr.json").read_text())
    change(node["attributes"]["largek"])
    (path / "zarr.json").write_text(json.dumps(node))
    return str(path)


# --- what every kind is


def test_every_kind_is_declared_in_full() -> None:
    assert KINDS["centers"] is CentersModel
    for name, kind in KINDS.items():
        assert kind.kind == name
        assert is_dataclass(kind.holds)
        assert isinstance(kind.objective, Objective)
        for member in ("counts", "n_features", "_score", "_label", "_check"):
            assert getattr(kind, member) is not getattr(Model, member)


def test_a_kind_that_lacks_something_is_refused_before_its_fit_has_run() -> None:
    every = {key: value for key, value in vars(CutModel).items() if not key.startswith("__")}
    arrays = CutArrays(CUTS, np.ones(3))
    whole = types.new_class("Whole", (Model,), exec_body=lambda space: space.update(every))
    assert len(whole(arrays).counts) == 3
    for name in ("_check", "_label", "_score", "counts", "n_features"):
        some = {key: value for key, value in every.items() if key != name}
        lacking = types.new_class(
            "Lacking", (Model,), exec_body=lambda space, s=some: space.update(s)
        )
        with pytest.raises(TypeError, match=f"Lacking with abstract method '?{name}'?"):
            lacking(arrays)


# --- models of centres, and what was written about them before there were kinds


def test_centers_are_written_as_before_but_for_the_kind(tmp_path: Path) -> None:
    centers_model().save(str(tmp_path / "m.zarr"))
    notes = notes_of(tmp_path / "m.zarr")
    assert notes.pop("model_kind") == "centers"
    assert notes["format"] == 3
    before = notes_of(Path(__file__).parents[1] / "data_files" / "model-v1.zarr")
    assert list(notes) == list(before)
    assert list(notes["arrays"]) == list(before["arrays"])
    # A file that says no kind, as every one of format 1 did.
    url = edit(tmp_path / "m.zarr", lambda n: n.pop("model_kind") and n.update(format=1))
    found = load_model(url)
    assert type(found) is CentersModel
    assert found.digest() == centers_model().digest()


def test_the_name_model_stands_for_every_kind() -> None:
    model = centers_model()
    assert isinstance(model, lk.Model)
    again = lk.Model(model.arrays, "l2", provenance={"n_iter": 1})
    assert type(again) is CentersModel
    assert (again.normalize, again.provenance) == ("l2", {"n_iter": 1})
    assert type(replace(again, on_bad_rows="skip")) is CentersModel
    with pytest.raises(TypeError, match="arrays of type NoneType"):
        lk.Model()  # type: ignore[call-arg]


# --- kinds that are not known, and files that lie about theirs


def test_an_unknown_kind_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "m.zarr"
    with monkeypatch.context() as patch:
        patch.setitem(KINDS, "cuts", CutModel)
        cut_model().save(str(place))
        message = message_of_model(cut_model())
        assert load_model(str(place)).n_clusters == 3
    unknown = (
        "of the kind 'cuts', but this version.* reads the kinds 'centers'.*newer.*install that"
    )
    with pytest.raises(ModelFormatError, match=rf"{place} is a model {unknown}"):
        load_model(str(place))
    with pytest.raises(ModelFormatError, match=f"The scheduler's message is a model {unknown}"):
        model_of(message)
    # What is not understood is not replaced.
    with pytest.raises(OutputError, match="already exists; nothing was changed"):
        centers_model().save(str(place), overwrite=True)
    assert notes_of(place)["model_kind"] == "cuts"


def test_a_kind_that_is_no_name_is_refused(tmp_path: Path) -> None:
    centers_model().save(str(tmp_path / "m.zarr"))
    refusal = "of the kind .* reads the kinds 'centers'"
    kinds: list[Any] = [None, 3, True, "", "Centers", "a b", "centers\n", "\x1b[2J", [], {}]
    for format, kind in itertools.product((1, 2, 3), [*kinds, "x" * 33, "x" * 10**6]):
        change = {"model_kind": kind, "format": format}
        url = edit(tmp_path / "m.zarr", lambda n, change=change: n.update(change))
        with pytest.raises(ModelFormatError, match=refusal) as told:
            load_model(url)
        assert url in str(told.value)
        assert len(str(told.value)) < len(url) + 250
        assert str(told.value).isprintable()


def test_format_2_says_a_kind(tmp_path: Path) -> None:
    centers_model().save(str(tmp_path / "m.zarr"))
    url = edit(tmp_path / "m.zarr", lambda n: n.update(format=2))
    assert type(load_model(url)) is CentersModel
    edit(tmp_path / "m.zarr", lambda n: n.pop("model_kind"))
    with pytest.raises(ModelFormatError, match="of the kind None"):
        load_model(url)


CENTERS_HAVE = "damaged: a model of the kind 'centers' must have the arrays centers, counts, shift"


def test_arrays_are_those_of_the_kind(tmp_path: Path) -> None:
    refused: list[tuple[Any, str]] = [
        (lambda a: a.pop("counts"), r", but has \['centers', 'shift'\]. Use another copy, or fit"),
        (lambda a: a.clear(), r", but has \[\]"),
        (lambda a: a.update(cuts=a["counts"]), r", but has \[.*'cuts'"),
        (lambda a: a.update(cuts=a.pop("counts")), r", but has \['centers', 'cuts', 'shift'\]"),
        (
            lambda a: a.update({f"\x1b{i}" * 1000: None for i in range(9)}),
            r", but has \['.x1b0.{,400}",
        ),
    ]
    for change, message in refused:
        centers_model().save(str(tmp_path / "m.zarr"), overwrite=True)
        url = edit(tmp_path / "m.zarr", lambda n, change=change: change(n["arrays"]))
        with pytest.raises(ModelFormatError, match=CENTERS_HAVE + message) as told:
            load_model(url)
        assert str(told.value).isprintable()
        assert len(str(told.value)) < len(url) + 600
    for records in (None, 3, "counts", ["centers", "counts", "shift"], [{}]):
        edit(tmp_path / "m.zarr", lambda n, records=records: n.update(arrays=records))
        with pytest.raises(ModelFormatError, match="is damaged"):
            load_model(url)


@pytest.mark.usefixtures("registered")
def test_a_file_that_names_another_known_kind_is_refused(tmp_path: Path) -> None:
    centers_model().save(str(tmp_path / "m.zarr"))
    url = edit(tmp_path / "m.zarr", lambda n: n.update(model_kind="cuts", format=2))
    with pytest.raises(ModelFormatError, match="must have the arrays cuts, counts, but has"):
        load_model(url)


@pytest.mark.usefixtures("registered")
def test_a_kind_checks_its_own_arrays(tmp_path: Path) -> None:
    replace(cut_model(), arrays=CutArrays(CUTS, np.ones(5))).save(str(tmp_path / "m.zarr"))
    with pytest.raises(ModelFormatError, match=r"m\.zarr is damaged: 2 cuts for 5 counts"):
        load_model(str(tmp_path / "m.zarr"))


# --- where models go


def sent(model: Model) -> dict[str, Any]:
    """A model as it arrives: what was to be serialized is an array again."""
    message = message_of_model(model)
    return {**message, "arrays": {name: s.data for name, s in message["arrays"].items()}}


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("make", [cut_model, centers_model])
def test_models_of_every_kind_are_sent(make: Callable[[], Model]) -> None:
    model = make()
    found = model_of(sent(model))
    assert type(found) is type(model)
    assert found.digest() == model.digest()
    assert found.provenance == model.provenance


def test_a_message_that_is_no_model_is_refused() -> None:
    message = sent(centers_model())
    del message["arrays"]["shift"]
    with pytest.raises(ModelFormatError, match=r"centers, counts, shift, but has .*\. Use"):
        model_of(message)
