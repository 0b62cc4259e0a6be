"""Base class of models: save, load, digest, provenance, labels of rows.

A model is stored as a Zarr v3 group with one plain array per field of the model's dataclass. The
JSON attribute ``largek`` contains the format number, the kind of model, the checksum of every
array, preprocessing, history and provenance. Loading executes no stored code, because the class of
a model is looked up by kind in ``KINDS``.

To add a kind, define a subclass of :class:`Model` that implements all abstract members, and
register it in ``largek_dask/model/__init__.py``.
"""

from __future__ import annotations

import json
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import zarr
from numpy.typing import DTypeLike, NDArray

from largek_dask.algorithms.objective import Objective
from largek_dask.data.columns import equal_names, listed, order_by_name
from largek_dask.data.derived_rows import (
    SCALING,
    ColumnRows,
    DitheredRows,
    Scaling,
    StandardizedRows,
)
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
from largek_dask.model.index import faiss_index

if TYPE_CHECKING:
    from distributed import Client

    from largek_dask.model.exemplars import Exemplars
    from largek_dask.model.predictions import PredictionTable
    from largek_dask.passes.base import BasePasses
    from largek_dask.plots.plot_collection import Plot
    from largek_dask.plots.report import Report

KINDS: dict[str, type[Model]] = {}
"""Classes of models by kind, filled in ``largek_dask/model/__init__.py``."""

FORMAT = 3
"""Newest format that can be read. Format 1 may lack the kind of model, as there was only one kind.
Formats 1 and 2 contain former names of algorithms."""
DESCRIPTION = "zarr.json"
"""Metadata file of a Zarr store."""
NAME = "model.zarr"
"""Name of the model in the folder of a fit."""
LARGEST_DESCRIPTION = 64 << 20
"""Maximum size of the JSON of a model, in bytes."""
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, IndexError, DamagedError)
"""Errors that may be raised on reading an incomplete or damaged model."""


@dataclass(frozen=True, eq=False)
class Model(ABC):
    """Arrays of a fitted model, and all settings needed to label rows as in the fit.

    ``Model(arrays)`` creates a model of the subclass that matches the type of ``arrays``.
    """

    kind: ClassVar[str]
    """Name of this kind of model in files and messages."""
    holds: ClassVar[type[Any]]
    """Frozen dataclass of the arrays that a fit returns. The digest covers all arrays except
    ``shift``, the origin that kernels subtract."""
    objective: ClassVar[Objective]
    """Objective of a fit, stored as ``cost`` in the history and by name in the provenance."""
    _labels_by_nearest: ClassVar[bool] = False
    """True if the label of a row is the index of the nearest centre."""

    arrays: Any
    normalize: Literal["l2"] | None = None
    """"l2" if rows are scaled to unit length first; otherwise None."""
    on_bad_rows: Literal["raise", "skip"] = "raise"
    """Rows with NaN or infinity raise an error ("raise") or get the label -1 ("skip")."""
    history: tuple[StepRecord, ...] = ()
    """One record per step of the fit, or of up to 10,000 evenly spaced steps of a longer fit."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Versions, seed, data fingerprint, parameters, and the stop reason of the fit."""
    feature_names: tuple[str, ...] | None = None
    """Names of the columns in the order of the fit; None if the rows had no names. Named columns
    of new rows are put into this order."""
    scaling: Scaling | None = None
    """Mean and scale of each feature if the fit had ``scale="standard"``. Methods take rows in
    their original units; centres are standardised, and ``scaling.restore(centers)`` converts them
    to the original units."""

    def __new__(cls, arrays: Any = None, *_: Any, **__: Any) -> Self:
        """Create a model of the subclass that matches the type of ``arrays``."""
        if cls is not Model:
            return object.__new__(cls)
        for kind in KINDS.values():
            if kind.holds is type(arrays):
                return object.__new__(kind)  # type: ignore[return-value]
        raise TypeError(
            f"No kind of model has arrays of type {type(arrays).__name__}; pass the arrays of a "
            "fit."
        )

    if TYPE_CHECKING:
        # Other attributes depend on the kind of model.
        def __getattr__(self, name: str) -> Any: ...

    @classmethod
    def of(cls, result: FitResult) -> Self:
        """Return the model of a fit."""
        parameters = result.provenance["parameters"]
        return cls(
            result.arrays,
            parameters["normalize"],
            parameters["on_bad_rows"],
            result.history,
            result.provenance,
            result.feature_names,
            result.scaling,
        )

    def digest(self) -> str:
        """Return the SHA-256 digest of the arrays; equal digests mean bit-identical arrays."""
        return digest_of(self.arrays, self.scaling)

    # --- defined by each kind ---------------------------------------------------------------------

    @property
    @abstractmethod
    def counts(self) -> NDArray[np.float64]:
        """(k,) total weight of the rows of each cluster."""

    @property
    @abstractmethod
    def n_features(self) -> int:
        """Number of columns of the rows."""

    @abstractmethod
    def _score(self, passes: BasePasses) -> float:
        """Return the score of all rows; see :meth:`score`."""

    def score_figures(self, score: float, n_rows: int) -> dict[str, float]:
        """Return additional values that ``largek score`` prints for a score of ``n_rows`` rows."""
        return {}

    def fit_figures(self) -> dict[str, float]:
        """Return measures of the fit other than the objective, by name."""
        return {}

    @abstractmethod
    def _label(
        self, passes: BasePasses, out: LabelStore | None
    ) -> tuple[NDArray[np.int32] | None, dict[str, Any]]:
        """Return the labels of all rows (None if written to ``out``), and metadata for ``out``."""

    def _cluster_centers(self) -> NDArray[Any] | None:
        """Return (k, d) centres of the clusters; None if clusters have no centres."""
        return None

    def _labelling(self, dtype: DTypeLike) -> Any:
        """Return the ``Labelling`` for rows of a dtype, if clusters have centres."""
        raise NotImplementedError

    @abstractmethod
    def _check(self) -> None:
        """Raise ValueError if the arrays do not fit together."""

    def _own_facts(self) -> dict[str, str]:
        """Return additional properties to display, by name."""
        return {}

    # --- use --------------------------------------------------------------------------------------

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
        include: Collection[str] = (),
        partition_by: Literal["cluster"] | None = None,
        column: str | None = None,
        ids: Any = None,
        client: Client | None = None,
        n_threads: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> NDArray[np.int32] | None:
        """Return the cluster of every row: its nearest centre or its most probable component.

        Parameters
        ----------
        rows : anything that ``open_rows`` takes
            (n, d) rows. If the rows and the model have column names, columns may be in any order.
        out : str or Folder, optional
            URL of a Zarr array, or of a file with the suffix ``.npy``, ``.csv`` or ``.parquet``
            (column "label"), to which labels are written instead of being returned. A run that was
            killed resumes when it is started again.
        include : collection of {"id", "distance", "second"}
            Further columns of a ``.csv`` or ``.parquet`` file: ids of the rows (their numbers, if
            they have no ids); the exact distance to the own centre, Euclidean, or cosine if the
            model normalises rows; the second nearest centre and the distance to it. Centres are
            ranked by the Euclidean distance, as for labels; with ``KMeans(normalize="l2")``, whose
            centres are shorter than 1, the second may have a smaller cosine distance. Such a file
            is written as a whole, and a killed run starts again.
        partition_by : {"cluster"}, optional
            Write ``out`` as a folder of Parquet files ``cluster=N/part-M.parquet``. Skipped rows
            are in ``cluster=-1``, which readers of such datasets return as the label -1.
        column, ids : optional
            As in :func:`~largek_dask.open_rows`.
        client : distributed.Client, optional
            Compute on the client's cluster; None: on threads of this process.
        n_threads : int, optional
            Number of threads of this process.
        storage_options : mapping, optional
            Options of fsspec for ``out``.

        Returns
        -------
        ndarray of int32 (n,) or None
            -1 for rows that are skipped; None if labels are written to ``out``.

        Raises
        ------
        ParameterError
            The number or the names of columns differ from those of the model, or ``out`` has the
            suffix of an unsupported kind of file.
        BadRowsError
            A row holds NaN or infinity, and the model does not skip such rows.
        OutputError
            ``out`` exists or cannot be written; raised before computing.
        """
        opened = self._open(rows, column=column, ids=ids)
        if include or partition_by is not None:
            if out is None:
                raise ParameterError("include and partition_by need out=, the URL to write to.")
            table = self._table(out, include, partition_by, storage_options)
            with self._passes(opened, client, n_threads) as passes:
                table.write(passes)
            return None
        store = None
        if out is not None:
            owner = {"model": self.digest(), "data": opened.fingerprint()["content"]}
            store = LabelStore(out, opened.chunk_table, owner, storage_options)
        with self._passes(opened, client, n_threads) as passes:
            labels, noted = self._label(passes, store)
        if store is not None:
            store.finish({"model": self.digest(), **noted})
        return labels

    @without_causes
    def score(
        self,
        rows: Any,
        *,
        sample_weight: Any = None,
        client: Client | None = None,
        n_threads: int | None = None,
    ) -> float:
        """Return the score of the model on these rows; higher is better.

        For models with centres, the score is the negative inertia, ``-sum w ||x - c||^2``; for
        mixtures, it is the mean log-likelihood per row, in nats.

        Raises
        ------
        DataError
            The score overflows float64; the message names the most extreme value.
        """
        opened = self._open(rows, sample_weight)
        with self._passes(opened, client, n_threads) as passes:
            return self._score(passes)

    def _table(self, out: str | Folder, include: Collection[str], *about: Any) -> PredictionTable:
        raise ParameterError(
            f"a model of kind {self.kind!r} has no distances to centres: leave out include and "
            "partition_by."
        )

    def _open(self, source: Any, sample_weight: Any = None, **more: Any) -> Rows:
        rows = self._by_name(open_rows(source, sample_weight=sample_weight, **more))
        if rows.n_features != self.n_features:
            raise ParameterError(
                f"The rows have {rows.n_features} features, but the model was fitted on rows with "
                f"{self.n_features} features; pass rows with the same columns."
            )
        parameters = self.provenance.get("parameters", {})
        rows = DitheredRows(rows, parameters["seed"]) if parameters.get("dither") else rows
        return rows if self.scaling is None else StandardizedRows(rows, self.scaling)

    def _by_name(self, rows: Rows) -> Rows:
        """Reorder named columns of the rows to the order of the fit."""
        mine, theirs = self.feature_names, rows.feature_names
        where = rows.describe_source(rows.location)
        if mine is None or theirs == mine:
            return rows
        if theirs is not None:
            order = order_by_name(mine, theirs, where)
            return rows if order is None else ColumnRows(rows, order)
        if rows.n_features == self.n_features:
            warn(
                f"{where} has no column names, and the model was fitted on rows with names "
                f"({listed(mine, 5)}); columns are matched by position.",
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

    def report(self, exemplars: Exemplars | None = None) -> Report:
        """Return an HTML report: progress of the fit, cluster sizes, and centres by feature.

        A notebook shows the report; ``report().save("report.html")`` writes a self-contained file.
        ``report(model.exemplars(rows))`` also lists the rows nearest to the centres of k-means.
        """
        # Imported here, because prediction does not need it.
        from largek_dask.plots.report import make_report

        return make_report(self, exemplars=exemplars)

    def plot(self) -> Plot:
        """Return charts of the fit and of the cluster sizes: see :class:`Plot`.

        A notebook shows the charts; ``plot().figure().savefig("fit.png")`` writes an image.
        """
        from largek_dask.plots.plot_collection import plot_of_model

        return plot_of_model(self)

    @without_causes
    def to_faiss(self, metric: Literal["l2", "ip"] | None = None) -> Any:
        """Return a trained, empty faiss index whose lists are the clusters.

        ``index.add(rows)`` then fills it without training. Both hold float32. The index of a model
        with ``normalize="l2"`` takes rows and queries of unit length (``faiss.normalize_L2``).

        Parameters
        ----------
        metric : "l2" or "ip", optional
            Euclidean distance, or inner product; as faiss does, "ip" scales centres to unit length.
            None: "ip" if the model normalises rows, otherwise "l2".

        Returns
        -------
        faiss.IndexIVFFlat
            With one list per cluster, in the order of the labels.

        Raises
        ------
        ParameterError
            The metric is unknown, the model has no centres (a mixture), or a centre overflows
            float32.
        MissingDependencyError
            faiss is not installed.
        """
        return faiss_index(self, metric)

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
            Replace an existing model.
        storage_options : mapping, optional

        Raises
        ------
        ParameterError
            ``url`` has the suffix of a file format, but a model is a Zarr group.
        OutputError
            ``url`` exists or cannot be written.
        """
        place = Folder.of(url, storage_options)
        refuse_file(place.url)
        folder, name = place.parent()
        if folder.exists(name) and not (overwrite and _is_model(place)):
            raise OutputError(
                f"{place.url} already exists; nothing was changed. Choose another name"
                + ("." if overwrite else ", or pass overwrite=True to replace a model.")
            )
        records = folder.write_arrays(name, named_arrays(self.arrays, self.scaling))
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

        # Write the description last, in one write, because a group without it is not a model.
        def describe() -> None:
            group = zarr.open_group(folder.store(name), mode="r+")
            declare(group, {ATTRIBUTE: description})

        try:
            retry_io(describe)
        except OSError as error:
            raise OutputError(
                f"{place.url} cannot be written: {error}; check free space and permissions."
            ) from error

    # --- display ----------------------------------------------------------------------------------

    def _facts(self) -> dict[str, str]:
        facts = {
            "clusters": f"{self.n_clusters:,}",
            "features": f"{self.n_features:,}",
            "rows (weight)": f"{self.counts.sum():,.6g}",
            **self._own_facts(),
        }
        value = self.provenance.get(self.objective.name)
        if value is not None:
            facts[self.objective.words] = f"{value:.9g}"
        algorithm = self.provenance.get("parameters", {}).get("algorithm")
        engine = self.provenance.get("engine")
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
        if self.scaling is not None:
            facts["scale"] = "standard"
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
    """Return the class and the JSON of a stored model.

    Raises ModelFormatError if the kind or format is wrong, and OSError if storage cannot be read.
    """
    try:
        node = json.loads(place.read(DESCRIPTION, LARGEST_DESCRIPTION))
    except FileNotFoundError:
        raise ModelFormatError(
            f"{place.url} is not a model and does not contain {NAME}; pass the URL that was given "
            "to Model.save, or the folder of a fit."
            if place.exists()
            else f"{place.url} does not exist; check the address of the model."
        ) from None
    except (ValueError, RecursionError, OSError, DamagedError) as error:
        if unanswered(error):
            raise
        raise ModelFormatError(
            f"{place.url} is not a readable model: {error}; check that it is complete."
        ) from error
    try:
        notes = node["attributes"][ATTRIBUTE]
        store, number = notes["kind"], notes["format"]
    except (KeyError, TypeError):
        raise ModelFormatError(
            f"{place.url} is a Zarr store, but not a model; pass the URL that was given to "
            "Model.save, or the folder of a fit."
        ) from None
    if store != "model" or type(number) is not int or number < 1:
        raise ModelFormatError(
            f"{place.url} is not a model: its kind is {reprlib.repr(store)}, and its format is "
            f"{reprlib.repr(number)}."
        )
    if number > FORMAT:
        raise ModelFormatError(
            f"{place.url} has format {number}, but this version of largek_dask only reads formats "
            f"up to {FORMAT}; install the newer version that wrote the model."
        )
    kind = notes.get("model_kind", "centers" if number == 1 else None)
    return kind_named(kind, place.url), notes


def kind_named(name: object, place: str) -> type[Model]:
    """Return the class of a kind; messages name the model ``place``, e.g. its URL.

    Raises ModelFormatError if the kind is unknown.
    """
    if isinstance(name, str) and name in KINDS:
        return KINDS[name]
    raise ModelFormatError(
        f"{place} is a model of the kind {reprlib.repr(name)}, but this version of largek_dask "
        f"only reads the kinds {', '.join(map(repr, sorted(KINDS)))}. If a newer version wrote the "
        "model, install that version."
    )


@without_causes
def load_model(url: str | Folder, *, storage_options: Mapping[str, Any] | None = None) -> Model:
    """Read a model of any kind, written by :meth:`Model.save`.

    Every array is checked against its checksum. Stored code is never executed, and no array may be
    larger than declared.

    Parameters
    ----------
    url : str or Folder
        Path or URL of a model, or of the folder of a fit that contains ``model.zarr``.
    storage_options : mapping, optional

    Raises
    ------
    ModelFormatError
        There is no model, or the model is damaged or has a newer format or an unknown kind.
    OSError
        The storage does not respond or denies access.
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
            raise ValueError("the digest does not match the arrays")
    except DAMAGE as error:
        raise ModelFormatError(
            f"{place.url} is damaged: {str(error).rstrip('.')}. Use another copy, or fit again."
        ) from error
    return model


def restored(
    kind: type[Model], arrays: Mapping[str, NDArray[Any]], notes: Mapping[str, Any]
) -> Model:
    """Rebuild a model from stored or transmitted arrays and metadata.

    Raises KeyError, TypeError or ValueError if they do not describe a model of this kind.
    """
    _check_names(kind, arrays)
    own = {name: array for name, array in arrays.items() if name not in SCALING}
    model = kind(
        arrays=kind.holds(**own),
        normalize=notes["normalize"],
        on_bad_rows=notes["on_bad_rows"],
        history=_history_in(notes),
        provenance=dict(notes["provenance"]),
        feature_names=_names_in(notes),
        scaling=Scaling(*(arrays[name] for name in SCALING)) if len(own) < len(arrays) else None,
    )
    if model.normalize not in (None, "l2") or model.on_bad_rows not in ("raise", "skip"):
        raise ValueError(
            f"normalize={model.normalize!r} or on_bad_rows={model.on_bad_rows!r} is invalid"
        )
    value = model.provenance.get(kind.objective.name)
    if not isinstance(value, Real | None):
        raise ValueError(f"{kind.objective.name} is {reprlib.repr(value)}, not a number")
    model._check()
    if model.scaling is not None:
        check_numbers("mean", model.scaling.mean, (model.n_features,))
        least = float(np.nextafter(0, 1))
        check_numbers("scale", model.scaling.scale, (model.n_features,), least=least)
    if model.feature_names is not None and len(model.feature_names) != model.n_features:
        raise ValueError(
            f"there are {len(model.feature_names)} names for {model.n_features} columns"
        )
    return model


def _check_names(kind: type[Model], found: Mapping[str, Any]) -> None:
    """Raise ValueError unless ``found`` has the arrays of the kind, and of a scaling or none."""
    names = [f.name for f in fields(kind.holds)]
    if set(found) not in (set(names), {*names, *SCALING}):
        raise ValueError(
            f"a model of the kind {kind.kind!r} must have the arrays {', '.join(names)}, but has "
            f"{reprlib.repr(sorted(found))}"
        )


def _names_in(notes: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the names of columns; None for models of earlier versions, which have no names."""
    names = notes.get("feature_names")
    if names is None:
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("column names are not a list of strings")
    if equal := equal_names(names):
        raise ValueError(f"several columns have the same name: {listed(equal)}")
    return tuple(names)


def _history_in(notes: Mapping[str, Any]) -> tuple[StepRecord, ...]:
    """Return the records of the steps, each with at least a step number and a cost."""
    history = notes["history"]
    if not isinstance(history, list):
        raise ValueError("the history is not a list of steps")
    for record in history:
        if not isinstance(record["step"], int) or not isinstance(record["cost"], Real | None):
            raise ValueError(f"the history has an invalid step: {reprlib.repr(record)}")
    return tuple(history)


def check_numbers(
    name: str,
    array: NDArray[Any],
    shape: tuple[int, ...],
    dtype: DTypeLike = np.float64,
    least: float = -np.inf,
) -> None:
    """Raise ValueError unless an array has this shape and type, and finite values >= ``least``.

    The message names the first wrong value.
    """
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(f"{name} has an invalid shape {array.shape} or type {array.dtype}")
    wrong = ~(np.isfinite(array) & (array >= least))
    if wrong.any():
        place = np.unravel_index(int(np.argmax(wrong)), shape)
        found, at = array[place], ", ".join(map(str, place))
        wanted = "a finite number" if least == -np.inf else f"a finite number of at least {least:g}"
        raise ValueError(f"the value of {name} at [{at}] is {found}, which is not {wanted}")
