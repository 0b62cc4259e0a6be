"""Base class of models: save, load, digest, provenance, labels of rows.

Stored as a Zarr v3 group of plain arrays, named like the fields of the dataclass that holds them,
with a JSON attribute ``largek`` that says the format number, the kind of model, the checksum of
every array, preprocessing, history and provenance. Nothing in it is ever executed, and a class is
found by its kind among those of ``KINDS`` only.

A kind is a subclass of :class:`Model` with what is declared there, and a line in
``largek_dask/model/__init__.py``.
"""

from __future__ import annotations

import json
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import zarr
from numpy.typing import DTypeLike, NDArray

from largek_dask.algorithms.objective import Objective
from largek_dask.data.columns import equal_names, listed, order_by_name
from largek_dask.data.derived_rows import ColumnRows, DitheredRows
from largek_dask.data.durable import declare
from largek_dask.data.rows import Rows
from largek_dask.data.sources import open_rows
from largek_dask.data.storage_errors import retry_io, unanswered
from largek_dask.data.store_writer import refuse_file
from largek_dask.data.stores import ATTRIBUTE
from largek_dask.driver.fit import FitResult, open_passes
from largek_dask.driver.former_names import current_provenance
from largek_dask.driver.labels import LabelStore
from largek_dask.driver.provenance import digest_of, named_arrays
from largek_dask.driver.stopping import StepRecord
from largek_dask.driver.storage import DamagedError, Folder
from largek_dask.errors import (
    DataWarning,
    ModelFormatError,
    OutputError,
    ParameterError,
    warn,
    without_causes,
)
from largek_dask.html_table import html_table

if TYPE_CHECKING:
    from distributed import Client

    from largek_dask.passes.base import BasePasses
    from largek_dask.plots.plot_collection import Plot
    from largek_dask.plots.report import Report

__all__ = ["KINDS", "Model", "check_numbers", "kind_named", "load_model", "restored"]

KINDS: dict[str, type[Model]] = {}
"""Every kind of model by its name; ``largek_dask/model/__init__.py`` fills it."""

FORMAT = 3
"""The newest that is read. Format 1 need not say the kind of model: it knew one. Formats 1 and 2
have algorithms by their former names."""
DESCRIPTION = "zarr.json"
"""Name of the file that says what a store is."""
NAME = "model.zarr"
"""Name of the model in the folder of a fit."""
LARGEST_DESCRIPTION = 64 << 20
"""Bytes of a model's JSON that are read at most."""
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError, DamagedError)
"""Errors of a store that is no whole model."""


@dataclass(frozen=True, eq=False)
class Model(ABC):
    """Arrays, and all that is needed to label rows with them as the fit did.

    ``Model(arrays)`` is a model of the kind that holds such arrays.
    """

    kind: ClassVar[str]
    """Name of this kind of model in files and messages."""
    holds: ClassVar[type[Any]]
    """The frozen dataclass of its arrays, which a fit gives; their names are those of its fields.
    All but an array ``shift``, the origin about which kernels compute, are in the digest."""
    objective: ClassVar[Objective]
    """Objective of its fits: ``cost`` in the history, and by name its value in the provenance."""
    _labels_by_nearest: ClassVar[bool] = False
    """True if a row's label is that of the nearest centre."""

    arrays: Any
    normalize: Literal["l2"] | None = None
    """"l2": rows are scaled to unit length first."""
    on_bad_rows: Literal["raise", "skip"] = "raise"
    """Rows with NaN or infinity raise an error, or get the label -1."""
    history: tuple[StepRecord, ...] = ()
    """One record a step of the fit; of a long one 10,000 evenly spread ones."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Versions, seed, data fingerprint, parameters, how the fit ended."""
    feature_names: tuple[str, ...] | None = None
    """Names of the columns in the order of the fit; None: the rows of the fit had none. Rows with
    names are taken by these, in whatever order they have them."""

    def __new__(cls, arrays: Any = None, *_: Any, **__: Any) -> Self:
        """Create the kind of model that holds such arrays."""
        if cls is not Model:
            return object.__new__(cls)
        for kind in KINDS.values():
            if kind.holds is type(arrays):
                return object.__new__(kind)  # type: ignore[return-value]
        raise TypeError(
            f"No kind of model holds a {type(arrays).__name__}: give what a fit has as arrays."
        )

    if TYPE_CHECKING:
        # Which attributes there are besides depends on the kind.
        def __getattr__(self, name: str) -> Any: ...

    @classmethod
    def of(cls, result: FitResult) -> Self:
        """The model of a fit, of the kind that holds its arrays."""
        asked = result.provenance["parameters"]
        return cls(
            result.arrays,
            asked["normalize"],
            asked["on_bad_rows"],
            result.history,
            result.provenance,
            result.feature_names,
        )

    def digest(self) -> str:
        """sha256 over the arrays (centres and counts, say): equal digests are equal bits."""
        return digest_of(self.arrays)

    # --- what a kind adds -------------------------------------------------------------------------

    @property
    @abstractmethod
    def counts(self) -> NDArray[np.float64]:
        """(k,) weight of the rows of each cluster."""

    @property
    @abstractmethod
    def n_features(self) -> int:
        """Columns of the rows."""

    @abstractmethod
    def score(
        self,
        rows: Any,
        *,
        sample_weight: Any = None,
        client: Client | None = None,
        n_threads: int | None = None,
    ) -> float:
        """Score of the model on these rows, in the unit of its kind: higher is better."""

    def score_figures(self, score: float, n_rows: int) -> dict[str, float]:
        """Figures that ``largek score`` prints besides a score of ``n_rows`` rows, by name."""
        return {}

    def fit_figures(self) -> dict[str, float]:
        """Figures of the fit besides the objective, by name."""
        return {}

    @abstractmethod
    def _label(
        self, passes: BasePasses, out: LabelStore | None
    ) -> tuple[NDArray[np.int32] | None, dict[str, Any]]:
        """Label all rows: the labels, None if they went to ``out``, and what ``out`` notes."""

    def _cluster_centers(self) -> NDArray[Any] | None:
        """(k, d) centres of the clusters; None: clusters have none."""
        return None

    def _labelling(self, dtype: DTypeLike) -> Any:
        """Return the ``Labelling`` of rows of a dtype, if clusters have centres."""
        raise NotImplementedError

    @abstractmethod
    def _check(self) -> None:
        """Raise ValueError where arrays that were read do not belong together."""

    def _own_facts(self) -> dict[str, str]:
        """Facts of this kind for ``repr`` and notebooks, by name."""
        return {}

    # --- using it ---------------------------------------------------------------------------------

    @property
    def n_clusters(self) -> int:
        """Number of clusters k."""
        return len(self.counts)

    @without_causes
    def predict(
        self,
        rows: Any,
        *,
        out: str | Folder | None = None,
        client: Client | None = None,
        n_threads: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> NDArray[np.int32] | None:
        """The cluster of every row; of a model of centres that is the nearest one.

        Parameters
        ----------
        rows : whatever ``open_rows`` takes
            (n, d) rows. Where both they and the model have names of columns they may have them in
            another order.
        out : str or Folder, optional
            URL to write labels to, instead of returning them: of a Zarr array, or of a file whose
            suffix says what it is (``.npy``, ``.csv``, ``.parquet``; there the column is
            called "label"). A killed run goes on where it was when it is
            started again.
        client : distributed.Client, optional
            Its cluster computes; None: threads of this process.
        n_threads : int, optional
            Threads of this process.
        storage_options : mapping, optional
            For ``out``.

        Returns
        -------
        ndarray of int32 (n,) or None
            -1 for rows that are skipped; None where they were written to ``out``.

        Raises
        ------
        ParameterError
            The rows have another number of columns than the model, or columns of other names, or
            ``out`` has the suffix of another kind of file.
        BadRowsError
            A row holds NaN or infinity, and the model does not skip such rows.
        OutputError
            ``out`` exists or cannot be written; found before computing.
        """
        opened = self._open(rows)
        store = None
        if out is not None:
            owner = {"model": self.digest(), "data": opened.fingerprint()["content"]}
            store = LabelStore(out, opened.chunk_table, owner, storage_options)
        with self._passes(opened, client, n_threads) as passes:
            labels, noted = self._label(passes, store)
        if store is not None:
            store.finish({"model": self.digest(), **noted})
        return labels

    def _open(self, source: Any, sample_weight: Any = None) -> Rows:
        rows = self._by_name(open_rows(source, sample_weight=sample_weight))
        if rows.n_features != self.n_features:
            raise ParameterError(
                f"The rows have {rows.n_features} features, but the model was fitted on rows of "
                f"{self.n_features}: give the same columns."
            )
        asked = self.provenance.get("parameters", {})
        return DitheredRows(rows, asked["seed"]) if asked.get("dither") else rows

    def _by_name(self, rows: Rows) -> Rows:
        """The rows with their columns in the order of the fit, as far as names tell."""
        mine, theirs = self.feature_names, rows.feature_names
        where = rows.describe_source(rows.location)
        if mine is None or theirs == mine:
            return rows
        if theirs is not None:
            order = order_by_name(mine, theirs, where)
            return rows if order is None else ColumnRows(rows, order)
        if rows.n_features == self.n_features:
            warn(
                f"{where} has no names of columns, and the model was fitted on rows with names "
                f"({listed(mine, 5)}): the columns are taken in this order.",
                DataWarning,
            )
        return rows

    def _passes(self, rows: Rows, client: Client | None, n_threads: int | None) -> Any:
        return open_passes(
            rows,
            client=client,
            n_threads=n_threads,
            normalize=self.normalize,
            on_bad_rows=self.on_bad_rows,
        )

    def report(self) -> Report:
        """Return one page of HTML: how the fit went, cluster sizes, and centres by feature.

        A notebook shows it; ``report().save("report.html")`` writes a file that loads nothing.
        """
        # Imported only here: prediction does not need it.
        from largek_dask.plots.report import make_report

        return make_report(self)

    def plot(self) -> Plot:
        """Return charts of the fit and of the cluster sizes: see :class:`Plot`.

        A notebook shows them; ``plot().figure().savefig("fit.png")`` writes a picture.
        """
        from largek_dask.plots.plot_collection import plot_of_model

        return plot_of_model(self)

    # --- storage ----------------------------------------------------------------------------------

    @without_causes
    def save(
        self,
        url: str | Folder,
        *,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the model to a new Zarr group.

        Parameters
        ----------
        url : str or Folder
            Path or URL.
        overwrite : bool
            Replace a model that is there.
        storage_options : mapping, optional

        Raises
        ------
        ParameterError
            The name has the suffix of a file: a model is a Zarr group.
        OutputError
            Something is there already, or it cannot be written.
        """
        place = Folder.of(url, storage_options)
        refuse_file(place.url)
        folder, name = place.parent()
        if folder.exists(name) and not (overwrite and _is_model(place)):
            raise OutputError(
                f"{place.url} exists already; nothing was changed. Choose another name"
                + ("." if overwrite else ", or overwrite=True to replace a model.")
            )
        records = folder.write_arrays(name, named_arrays(self.arrays))
        description = {
            "format": FORMAT,
            "kind": "model",
            "model_kind": self.kind,
            "complete": True,
            "arrays": records,
            "normalize": self.normalize,
            "on_bad_rows": self.on_bad_rows,
            "digest": self.digest(),
            "history": list(self.history),
            "provenance": dict(self.provenance),
        }
        if self.feature_names is not None:
            description["feature_names"] = list(self.feature_names)

        # Last, in one write: before it there is a group that is no model.
        def describe() -> None:
            group = zarr.open_group(folder.store(name), mode="r+")
            declare(group, {ATTRIBUTE: description})

        try:
            retry_io(describe)
        except OSError as error:
            raise OutputError(
                f"{place.url} cannot be written: {error}; check space and permissions there."
            ) from error

    # --- showing it -------------------------------------------------------------------------------

    def _facts(self) -> dict[str, str]:
        asked = self.provenance.get("parameters", {})
        facts = {
            "clusters": f"{self.n_clusters:,}",
            "features": f"{self.n_features:,}",
            "rows (weight)": f"{self.counts.sum():,.6g}",
            **self._own_facts(),
        }
        value = self.provenance.get(self.objective.name)
        if value is not None:
            facts[self.objective.words] = f"{value:.9g}"
        algorithm, engine = asked.get("algorithm"), self.provenance.get("engine")
        if isinstance(algorithm, Mapping):
            facts["algorithm"] = name = str(algorithm.get("name"))
            if isinstance(engine, Mapping) and engine.get("name") != name:
                facts["algorithm"] += f" ({engine.get('name')})"
        if "stop_reason" in self.provenance:
            facts["stopped"] = (
                f"{self.provenance['stop_reason']} after {self.provenance.get('n_iter')} steps"
            )
        if self.normalize is not None:
            facts["normalize"] = self.normalize
        facts["digest"] = self.digest()[:16]
        return facts

    def __repr__(self) -> str:
        return f"<Model {', '.join(f'{key}: {value}' for key, value in self._facts().items())}>"

    def _repr_html_(self) -> str:
        return html_table("largek_dask model", self._facts())


# --- reading --------------------------------------------------------------------------------------


def _is_model(place: Folder) -> bool:
    try:
        _describe(place)
    except ModelFormatError:
        return False
    return True


def _describe(place: Folder) -> tuple[type[Model], dict[str, Any]]:
    """The kind of a stored model and its JSON, as far as kind and format are right.

    Raises
    ------
    ModelFormatError
        There is none.
    OSError
        It cannot be read now.
    """
    try:
        node = json.loads(place.read(DESCRIPTION, LARGEST_DESCRIPTION))
    except FileNotFoundError:
        raise ModelFormatError(
            f"{place.url} is not a model, and holds no {NAME}: give what Model.save wrote, or the "
            "folder of a fit."
            if place.exists()
            else f"{place.url} does not exist, so it is no model: check the address."
        ) from None
    except (ValueError, RecursionError, OSError, DamagedError) as error:
        if unanswered(error):
            raise
        raise ModelFormatError(
            f"{place.url} is not a model that can be read: {error}; check that it is whole."
        ) from error
    try:
        notes = node["attributes"][ATTRIBUTE]
        store, number = notes["kind"], notes["format"]
    except (KeyError, TypeError):
        raise ModelFormatError(
            f"{place.url} is a Zarr store, but not a model: give what Model.save or a fit wrote, "
            "such as RUN/model.zarr, or the folder RUN."
        ) from None
    if store != "model" or type(number) is not int or number < 1:
        raise ModelFormatError(
            f"{place.url} is not a model but {reprlib.repr(store)} of format "
            f"{reprlib.repr(number)}."
        )
    if number > FORMAT:
        raise ModelFormatError(
            f"{place.url} has format {number}, and this version of largek_dask reads up to "
            f"{FORMAT}: it was written by a newer one. Install that, from its checkout or wheel."
        )
    kind = notes.get("model_kind", "centers" if number == 1 else None)
    return kind_named(kind, place.url), notes


def kind_named(name: object, place: str) -> type[Model]:
    """The kind of model that ``place`` (a URL, say) calls so.

    Raises
    ------
    ModelFormatError
        This version does not know it.
    """
    if isinstance(name, str) and name in KINDS:
        return KINDS[name]
    raise ModelFormatError(
        f"{place} is a model of the kind {reprlib.repr(name)}, and this version of largek_dask "
        f"knows only {', '.join(map(repr, sorted(KINDS)))}. If a newer one has written it, install "
        "that, from its checkout or wheel."
    )


@without_causes
def load_model(url: str | Folder, *, storage_options: Mapping[str, Any] | None = None) -> Model:
    """Read a model that :meth:`Model.save` has written, of whichever kind it is.

    Every array is checked against its checksum; nothing that is read is executed, and nothing
    larger than it says it is will be held.

    Parameters
    ----------
    url : str or Folder
        Path or URL of a model, or of the folder of a fit that holds one as ``model.zarr``.
    storage_options : mapping, optional

    Raises
    ------
    ModelFormatError
        Not a model, a damaged one, or one of a newer format or of a kind that this version does
        not know.
    OSError
        Its storage does not answer, or lets nobody read.
    """
    place = Folder.of(url, storage_options)
    if not place.exists(DESCRIPTION) and place.exists(f"{NAME}/{DESCRIPTION}"):
        place = place.sub(NAME)
    kind, notes = _describe(place)
    folder, name = place.parent()
    try:
        records = notes["arrays"]
        _check_names(kind, records)
        if notes["format"] < FORMAT:
            notes["provenance"] = current_provenance(notes["provenance"])
        model = restored(kind, folder.read_arrays(name, records), notes)
        if notes["digest"] != model.digest():
            raise ValueError("its digest is not that of its arrays")
    except DAMAGE as error:
        raise ModelFormatError(
            f"{place.url} is damaged: {str(error).rstrip('.')}. Take another copy, or fit again."
        ) from error
    return model


def restored(
    kind: type[Model], arrays: Mapping[str, NDArray[Any]], notes: Mapping[str, Any]
) -> Model:
    """The model that was stored or sent as these arrays and notes.

    Raises
    ------
    KeyError, TypeError, ValueError
        They are not those of a model of this kind.
    """
    _check_names(kind, arrays)
    model = kind(
        arrays=kind.holds(**arrays),
        normalize=notes["normalize"],
        on_bad_rows=notes["on_bad_rows"],
        history=_history_in(notes),
        provenance=dict(notes["provenance"]),
        feature_names=_names_in(notes),
    )
    if model.normalize not in (None, "l2") or model.on_bad_rows not in ("raise", "skip"):
        raise ValueError(f"normalize={model.normalize!r}, on_bad_rows={model.on_bad_rows!r}")
    value = model.provenance.get(kind.objective.name)
    if not isinstance(value, Real | None):
        raise ValueError(f"{kind.objective.name} of {reprlib.repr(value)}, which is no number")
    model._check()
    if model.feature_names is not None and len(model.feature_names) != model.n_features:
        raise ValueError(f"{len(model.feature_names)} names of {model.n_features} columns")
    return model


def _check_names(kind: type[Model], found: Mapping[str, Any]) -> None:
    """Raise ValueError where arrays are missing, or are there that the kind does not have."""
    names = [f.name for f in fields(kind.holds)]
    if set(found) != set(names):
        raise ValueError(
            f"a model of the kind {kind.kind!r} has the arrays {', '.join(names)}, not "
            f"{reprlib.repr(sorted(found))}"
        )


def _names_in(notes: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The names of columns; earlier versions wrote none."""
    names = notes.get("feature_names")
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("names of columns that are no list of texts")
    if equal := equal_names(names):
        raise ValueError(f"several columns of the same name: {listed(equal)}")
    return tuple(names)


def _history_in(notes: Mapping[str, Any]) -> tuple[StepRecord, ...]:
    """The records of the steps: of each its number and its cost, at least."""
    history = notes["history"]
    if not isinstance(history, list):
        raise ValueError("a history that is no list of steps")
    for record in history:
        if not isinstance(record["step"], int) or not isinstance(record["cost"], Real | None):
            raise ValueError(f"a step of the history that is {reprlib.repr(record)}")
    return tuple(history)


def check_numbers(
    name: str,
    array: NDArray[Any],
    shape: tuple[int, ...],
    dtype: DTypeLike = np.float64,
    least: float = -np.inf,
) -> None:
    """Raise ValueError unless an array has this shape and type, and finite numbers of ``least`` on.

    The message names the first wrong one.
    """
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(f"{name} of shape {array.shape} and type {array.dtype}")
    wrong = ~(np.isfinite(array) & (array >= least))
    if wrong.any():
        place = np.unravel_index(int(np.argmax(wrong)), shape)
        found, at = array[place], ", ".join(map(str, place))
        wanted = "a finite number" if least == -np.inf else f"a finite number of at least {least:g}"
        raise ValueError(f"{name} with [{at}] = {found}, which is not {wanted}")
