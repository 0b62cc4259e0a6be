"""Kinds of model: a new one needs no more than its class and a line in the registry."""

from __future__ import annotations

import copyreg
import io
import json
import pickle
import types
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from numpy.typing import NDArray

import largek_dask as lk
from largek_dask.algorithms.kmeans import CenterArrays
from largek_dask.algorithms.objective import Objective
from largek_dask.cli import main
from largek_dask.data.sources import open_rows
from largek_dask.driver.labels import LabelStore
from largek_dask.errors import ModelFormatError, OutputError
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.model import KINDS, CentersModel, Model, load_model
from largek_dask.service.serialization import message_of_model, model_of
from tests.driver.toy import Toy, toy_rows
from tests.helpers.checks import fit_asked

X = toy_rows(200, 3)
CUTS = np.array([-8.0, 5.0])
EXPECTED = np.searchsorted(CUTS, X[:, 0]).astype(np.int32)


@dataclass(frozen=True)
class CutArrays:
    cuts: NDArray[np.float64]
    counts: NDArray[np.float64]


def cut_chunk(chunk: Any, total: dict[int, NDArray[np.int32]], cuts: NDArray[np.float64]) -> None:
    total[chunk.start] = np.searchsorted(cuts, chunk.x[:, 0]).astype(np.int32)


def union(a: dict[int, Any], b: dict[int, Any]) -> dict[int, Any]:
    return {**a, **b}


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

    def score(self, rows: Any, **options: Any) -> float:
        labels = self.predict(rows, **options)
        assert labels is not None
        return float(np.bincount(labels).min())

    def score_figures(self, score: float, n_rows: int) -> dict[str, float]:
        return {"smallest_share": score / n_rows}

    def _label(
        self, passes: Any, out: LabelStore | None
    ) -> tuple[NDArray[np.int32] | None, dict[str, Any]]:
        found = passes.reduce(cut_chunk, self.arrays.cuts, start=dict, combine=union)
        labels = np.concatenate([found[start] for start in sorted(found)])
        if out is None:
            return labels, {}
        out.begin(self.digest())
        out.write(0, labels)
        out.record(passes.n_chunks, {"rows": ExactSums(1)})
        return None, {"rows": len(labels)}

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
        # Versions that know no kinds read format 1.
        assert kind.format == 2 or name == "centers"
        for member in ("counts", "n_features", "score", "_label", "_check"):
            assert getattr(kind, member) is not getattr(Model, member)


@pytest.mark.usefixtures("registered")
def test_a_kind_of_the_test_is_saved_and_loaded(tmp_path: Path) -> None:
    model = cut_model()
    model.save(str(tmp_path / "m.zarr"))
    notes = notes_of(tmp_path / "m.zarr")
    assert (notes["kind"], notes["model_kind"], notes["format"]) == ("model", "cuts", 2)
    assert list(notes["arrays"]) == ["cuts", "counts"]
    found = load_model(str(tmp_path / "m.zarr"))
    assert type(found) is CutModel
    assert isinstance(found, lk.Model)
    assert not isinstance(found, CentersModel)
    assert found.digest() == model.digest() == notes["digest"]
    assert found.n_clusters == 3
    assert found.provenance == model.provenance
    np.testing.assert_array_equal(found.arrays.cuts, CUTS, strict=True)
    np.testing.assert_array_equal(found.predict(X), EXPECTED)
    assert found.score(X) == np.bincount(EXPECTED).min()
    for part in ("clusters: 3", "features: 3", "rows (weight): 200", "converged after 3 steps"):
        assert part in repr(found)


@pytest.mark.usefixtures("registered")
def test_every_array_of_a_kind_is_in_its_digest() -> None:
    model = cut_model()
    for f in fields(CutArrays):
        changed = replace(model.arrays, **{f.name: getattr(model.arrays, f.name) + 1})
        assert replace(model, arrays=changed).digest() != model.digest()
    assert replace(model, normalize="l2").digest() == model.digest()


@pytest.mark.usefixtures("registered")
def test_labels_of_a_kind_go_to_storage(tmp_path: Path) -> None:
    model = cut_model()
    assert model.predict(X, out=str(tmp_path / "labels.zarr")) is None
    stored = zarr.open_array(str(tmp_path / "labels.zarr"), mode="r")
    np.testing.assert_array_equal(stored[...], EXPECTED)
    notes: Any = stored.attrs["largek"]
    assert (notes["model"], notes["rows"], notes["complete"]) == (model.digest(), 200, True)


@pytest.mark.usefixtures("registered")
def test_a_fit_gives_the_kind_that_its_arrays_are_of() -> None:
    result = fit_asked(open_rows(X), algorithm=Toy(), n_clusters=5, seed=1, max_iter=2, n_threads=1)
    assert type(Model.of(result)) is CentersModel
    cut: Any = CutArrays(CUTS, np.ones(3))
    assert type(Model.of(replace(result, arrays=cut))) is CutModel
    with pytest.raises(TypeError, match="No kind of model holds a ndarray"):
        Model(X)


@pytest.mark.parametrize("name", ["_check", "_label", "counts", "n_features", "score"])
def test_a_kind_that_lacks_something_is_refused_before_its_fit_has_run(name: str) -> None:
    members = {key: value for key, value in vars(CutModel).items() if not key.startswith("__")}
    arrays = CutArrays(CUTS, np.ones(3))
    whole = types.new_class("Whole", (Model,), exec_body=lambda space: space.update(members))
    assert len(whole(arrays).counts) == 3
    del members[name]
    lacking = types.new_class("Lacking", (Model,), exec_body=lambda space: space.update(members))
    with pytest.raises(TypeError, match=f"Lacking with abstract method '?{name}'?"):
        lacking(arrays)


# --- models of centres, and what was written about them before there were kinds


def test_centers_are_written_as_before_but_for_the_kind(tmp_path: Path) -> None:
    """Versions that know no kinds read format 1, and pass over what they do not know."""
    centers_model().save(str(tmp_path / "m.zarr"))
    notes = notes_of(tmp_path / "m.zarr")
    assert notes.pop("model_kind") == "centers"
    assert notes["format"] == 1
    before = notes_of(Path(__file__).parents[1] / "data_files" / "model-v1.zarr")
    assert list(notes) == list(before)
    assert list(notes["arrays"]) == list(before["arrays"])
    # A file that says no kind, as every one did.
    url = edit(tmp_path / "m.zarr", lambda n: n.pop("model_kind"))
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
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'arrays'"):
        lk.Model()  # type: ignore[call-arg]


def test_pickles_from_before_there_were_kinds_are_of_centers() -> None:
    class Before(pickle.Unpickler):
        """Reads the name that the class then had."""

        def find_class(self, module: str, name: str) -> Any:
            return Model if name == "CentersModel" else super().find_class(module, name)

    model = centers_model()
    found = Before(io.BytesIO(pickle.dumps(model))).load()
    assert type(found) is CentersModel
    assert found.digest() == model.digest()
    assert type(copyreg.__newobj__(Model)) is CentersModel  # type: ignore[attr-defined]


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
    unknown = "of the kind 'cuts', and this version.* knows only 'centers'.*newer.*install that"
    with pytest.raises(ModelFormatError, match=rf"{place} is a model {unknown}"):
        load_model(str(place))
    with pytest.raises(ModelFormatError, match=f"the scheduler has sent is a model {unknown}"):
        model_of(message)
    # What is not understood is not replaced.
    with pytest.raises(OutputError, match="exists already; nothing was changed"):
        centers_model().save(str(place), overwrite=True)
    assert notes_of(place)["model_kind"] == "cuts"


@pytest.mark.parametrize("format", [1, 2])
@pytest.mark.parametrize(
    "kind",
    [None, 3, True, "", "Centers", "a b", "centers\n", "\x1b[2J", "x" * 33, "x" * 10**6, [], {}],
    ids=lambda kind: repr(kind)[:12],
)
def test_a_kind_that_is_no_name_is_refused(kind: Any, format: int, tmp_path: Path) -> None:
    centers_model().save(str(tmp_path / "m.zarr"))
    url = edit(tmp_path / "m.zarr", lambda n: n.update(model_kind=kind, format=format))
    with pytest.raises(ModelFormatError, match=r"not a model: its kind is .*, not a name") as told:
        load_model(url)
    assert url in str(told.value)
    assert len(str(told.value)) < len(url) + 250
    assert str(told.value).isprintable()


def test_format_2_says_a_kind(tmp_path: Path) -> None:
    centers_model().save(str(tmp_path / "m.zarr"))
    url = edit(tmp_path / "m.zarr", lambda n: n.update(format=2))
    assert type(load_model(url)) is CentersModel
    edit(tmp_path / "m.zarr", lambda n: n.pop("model_kind"))
    with pytest.raises(ModelFormatError, match="its kind is None"):
        load_model(url)


@pytest.mark.usefixtures("registered")
def test_a_new_kind_in_the_first_format_is_refused(tmp_path: Path) -> None:
    """Which a version that knows no kinds would take for centres."""
    cut_model().save(str(tmp_path / "m.zarr"))
    url = edit(tmp_path / "m.zarr", lambda n: n.update(format=1))
    with pytest.raises(ModelFormatError, match="kind 'cuts' has format 2 or more, not 1"):
        load_model(url)


CENTERS_HAVE = "damaged: a model of the kind 'centers' has the arrays centers, counts, shift"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.pop("counts"), "; missing: counts. Take another copy, or fit again"),
        (lambda a: a.clear(), "; missing: centers, counts, shift"),
        (lambda a: a.update(cuts=a["counts"]), r"; not among them: \['cuts'\]"),
        (
            lambda a: a.update(cuts=a.pop("counts")),
            r"; missing: counts; not among them: \['cuts'\]",
        ),
        (
            lambda a: a.update({f"\x1b{i}" * 1000: None for i in range(9)}),
            r"; not among them: \['.x1b0.{,400}, \.\.\.\]",
        ),
    ],
)
def test_arrays_are_those_of_the_kind(change: Any, message: str, tmp_path: Path) -> None:
    centers_model().save(str(tmp_path / "m.zarr"))
    url = edit(tmp_path / "m.zarr", lambda n: change(n["arrays"]))
    with pytest.raises(ModelFormatError, match=CENTERS_HAVE + message) as told:
        load_model(url)
    assert str(told.value).isprintable()
    assert len(str(told.value)) < len(url) + 600


@pytest.mark.parametrize("records", [None, 3, "counts", ["centers", "counts", "shift"], [{}]])
def test_records_that_are_none_are_refused(records: Any, tmp_path: Path) -> None:
    centers_model().save(str(tmp_path / "m.zarr"))
    url = edit(tmp_path / "m.zarr", lambda n: n.update(arrays=records))
    with pytest.raises(ModelFormatError, match="is damaged"):
        load_model(url)


@pytest.mark.usefixtures("registered")
def test_a_file_that_names_another_known_kind_is_refused(tmp_path: Path) -> None:
    centers_model().save(str(tmp_path / "m.zarr"))
    url = edit(tmp_path / "m.zarr", lambda n: n.update(model_kind="cuts", format=2))
    with pytest.raises(ModelFormatError, match="has the arrays cuts, counts; missing: cuts; not"):
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


def test_a_scheduler_that_knows_no_kinds_sends_centers() -> None:
    message = sent(centers_model())
    del message["kind"]
    assert type(model_of(message)) is CentersModel


def test_a_message_that_is_no_model_is_refused() -> None:
    message = sent(centers_model())
    del message["arrays"]["shift"]
    with pytest.raises(ModelFormatError, match=r"centers, counts, shift; missing: shift\. Use"):
        model_of(message)


@pytest.mark.usefixtures("registered")
def test_the_command_line_takes_every_kind(tmp_path: Path) -> None:
    model, data, out = str(tmp_path / "m.zarr"), str(tmp_path / "x.npy"), tmp_path / "labels.zarr"
    np.save(data, X)
    cut_model().save(model)

    def told(*arguments: str) -> dict[str, Any]:
        done = CliRunner().invoke(main, [*arguments, "--json"])
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    told("predict", model, data, "--out", str(out))
    np.testing.assert_array_equal(zarr.open_array(str(out), mode="r")[...], EXPECTED)
    scored = told("score", model, data)
    # Nothing of distances, of which it has none.
    assert set(scored) == {"score", "smallest_share", "n_rows", "seconds"}
    assert scored["score"] == np.bincount(EXPECTED).min()
    assert scored["smallest_share"] == scored["score"] / len(X)
    shown = CliRunner().invoke(main, ["score", model, data]).stdout
    assert "smallest share" in shown
    told("report", model, "--out", str(tmp_path / "m.png"))
    assert (tmp_path / "m.png").stat().st_size > 0
