"""A clustering that is done: predict, transform, score, save and load.

Stored as a Zarr v3 group of plain arrays (``centers``, ``counts``, ``shift`` and whatever a kind of
model adds) with a JSON attribute ``largek`` that holds the format number, the checksum of every
array, preprocessing, history and provenance. Nothing in it is ever executed.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import zarr
from numpy.typing import NDArray

from largek_dask.algorithms.base import Chunk, ModelArrays
from largek_dask.data.patience import patiently
from largek_dask.data.rows import Rows
from largek_dask.data.sources import open_rows
from largek_dask.data.stores import ATTRIBUTE
from largek_dask.driver.final import Assignment, assign_rows
from largek_dask.driver.fit import FitResult, open_passes
from largek_dask.driver.labels import LabelStore, group_chunks
from largek_dask.driver.plan import check_output_fits
from largek_dask.driver.provenance import digest_of
from largek_dask.driver.stopping import StepRecord
from largek_dask.driver.storage import DamagedError, Folder
from largek_dask.errors import ModelFormatError, OutputError, ParameterError
from largek_dask.kernels.distances import PackedCenters, pack_centers, scores

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Model", "load_model"]

FORMAT = 1
LARGEST_DESCRIPTION = 64 << 20
"""Bytes of a model's JSON that are read at most."""
LARGEST_ARRAY = 64 << 30
"""Bytes of a model's array that are read at most."""


@dataclass(frozen=True, eq=False)
class Model:
    """Centres, and all that is needed to label rows with them as the fit did.

    Examples
    --------
    >>> import numpy as np
    >>> import largek_dask as lk
    >>> x = np.repeat(np.eye(3, dtype=np.float32), 5, axis=0)
    >>> model = lk.KMeans(3, random_state=0).fit(x).model_
    >>> len(set(model.predict(x)))
    3
    """

    arrays: ModelArrays
    normalize: Literal["l2"] | None = None
    """"l2": rows are scaled to unit length first."""
    on_bad_rows: Literal["raise", "skip"] = "raise"
    """What becomes of rows with NaN or infinity: an error, or the label -1."""
    history: tuple[StepRecord, ...] = ()
    """One record a step of the fit; of a long one 10,000 evenly spread ones."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Versions, seed, data fingerprint, parameters, how the fit ended."""

    @classmethod
    def of(cls, result: FitResult) -> Model:
        """The model of a fit."""
        asked = result.provenance["parameters"]
        return cls(
            result.arrays,
            asked["normalize"],
            asked["on_bad_rows"],
            result.history,
            result.provenance,
        )

    @property
    def centers(self) -> NDArray[Any]:
        """(k, d) centres in the coordinates of the (normalised) data."""
        return self.arrays.centers

    @property
    def counts(self) -> NDArray[np.float64]:
        """(k,) weight of the rows of each cluster."""
        return self.arrays.counts

    @property
    def n_clusters(self) -> int:
        """Number of centres k."""
        return len(self.arrays.centers)

    @property
    def n_features(self) -> int:
        """Columns d."""
        return int(self.arrays.centers.shape[1])

    def digest(self) -> str:
        """sha256 over centres and counts (and variances): equal digests are equal bits."""
        return digest_of(self.arrays)

    # --- using it ---------------------------------------------------------------------------------

    def predict(
        self,
        rows: Any,
        *,
        out: str | Folder | None = None,
        client: Client | None = None,
        n_threads: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> NDArray[np.int32] | None:
        """The nearest centre of every row.

        Parameters
        ----------
        rows : whatever ``open_rows`` takes
            (n, d) rows.
        out : str or Folder, optional
            URL of a Zarr array to write labels to, instead of returning them. A killed run
            goes on where it was when it is started again.
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
            The rows have another number of columns than the model.
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
        found = self._assign(opened, client, n_threads, labels=True, out=store)
        if store is not None:
            store.finish({"model": self.digest(), "inertia": found.inertia})
        return found.labels

    def score(
        self,
        rows: Any,
        *,
        sample_weight: Any = None,
        client: Client | None = None,
        n_threads: int | None = None,
    ) -> float:
        """Minus the inertia of these rows: minus the sum of ``w ||x - c||^2``."""
        opened = self._open(rows, sample_weight)
        return -self._assign(opened, client, n_threads, labels=False, out=None).inertia

    def transform(
        self, rows: Any, *, client: Client | None = None, n_threads: int | None = None
    ) -> NDArray[Any]:
        """Distances from every row to every centre.

        Returns
        -------
        ndarray of shape (n, k)
            Compute dtype; NaN for rows that are skipped. Where the square is too small for the
            type (distances below 1e-22 in float32) 0.

        Raises
        ------
        ParameterError
            The rows have another number of columns than the model.
        NotEnoughMemoryError
            The distances do not fit the memory there is; found before computing.
        """
        opened = self._open(rows)
        packed = pack_centers(self.arrays.centers, self.arrays.shift)
        check_output_fits((opened.n_rows, self.n_clusters), packed.dtype.itemsize)
        distances = np.empty((opened.n_rows, self.n_clusters), packed.dtype)
        with self._passes(opened, client, n_threads) as passes:
            for group in group_chunks(opened.chunk_table):
                parts: dict[int, NDArray[Any]] = passes.reduce(
                    _distances_chunk, packed, start=dict, combine=_union, chunks=list(group)
                )
                for i, part in parts.items():
                    distances[opened.chunk_table[i] : opened.chunk_table[i + 1]] = part
        return distances

    def _open(self, source: Any, sample_weight: Any = None) -> Rows:
        rows = open_rows(source, sample_weight=sample_weight)
        if rows.n_features != self.n_features:
            raise ParameterError(
                f"The rows have {rows.n_features} features, but the model was fitted on rows of "
                f"{self.n_features}."
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

    def _assign(
        self,
        rows: Rows,
        client: Client | None,
        n_threads: int | None,
        *,
        labels: bool,
        out: LabelStore | None,
    ) -> Assignment:
        with self._passes(rows, client, n_threads) as passes:
            return assign_rows(passes, self.arrays, labels=labels, out=out)

    # --- storage ----------------------------------------------------------------------------------

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
        OutputError
            Something is there already, or it cannot be written.
        """
        place = Folder.of(url, storage_options)
        folder, name = place.parent()
        if folder.exists(name) and not (overwrite and _is_model(place)):
            raise OutputError(
                f"{place.url} exists already; nothing was changed. Choose another name"
                + ("." if overwrite else ", or overwrite=True to replace a model.")
            )
        records = folder.write_arrays(name, self.arrays.named())
        description = {
            "format": FORMAT,
            "kind": "model",
            "complete": True,
            "arrays": records,
            "normalize": self.normalize,
            "on_bad_rows": self.on_bad_rows,
            "digest": self.digest(),
            "history": list(self.history),
            "provenance": dict(self.provenance),
        }

        # Last, in one write: before it there is a group that is no model.
        def describe() -> None:
            group = zarr.open_group(folder.store(name), mode="r+")
            group.update_attributes({ATTRIBUTE: description})

        try:
            patiently(describe)
        except OSError as error:
            raise OutputError(f"{place.url} cannot be written: {error}") from error

    # --- showing it -------------------------------------------------------------------------------

    def _facts(self) -> dict[str, str]:
        asked = self.provenance.get("parameters", {})
        facts = {
            "clusters": f"{self.n_clusters:,}",
            "features": f"{self.n_features:,} ({self.arrays.centers.dtype.name})",
            "rows (weight)": f"{self.counts.sum():,.6g}",
        }
        if self.provenance.get("inertia") is not None:
            facts["inertia"] = f"{self.provenance['inertia']:.9g}"
        algorithm = asked.get("algorithm")
        if isinstance(algorithm, Mapping):
            facts["algorithm"] = str(algorithm.get("name"))
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
        cells = "".join(
            f"<tr><th style='text-align:left'>{html.escape(key)}</th>"
            f"<td style='text-align:left'>{html.escape(value)}</td></tr>"
            for key, value in self._facts().items()
        )
        return f"<table><caption>largek_dask model</caption>{cells}</table>"


def _distances_chunk(chunk: Chunk, total: dict[int, NDArray[Any]], centers: PackedCenters) -> None:
    """Distances of a chunk's rows to all centres."""
    distances = np.sqrt(scores(chunk.x, centers))
    if chunk.bad is not None:
        distances[chunk.bad] = np.nan
    total[chunk.index] = distances


def _union(a: dict[int, Any], b: dict[int, Any]) -> dict[int, Any]:
    a.update(b)
    return a


def _is_model(place: Folder) -> bool:
    try:
        _describe(place)
    except ModelFormatError:
        return False
    return True


def _describe(place: Folder) -> dict[str, Any]:
    """The JSON of a stored model, as far as its kind and format are right.

    Raises
    ------
    ModelFormatError
        There is none.
    """
    try:
        node = json.loads(place.read("zarr.json", LARGEST_DESCRIPTION))
        notes = node["attributes"][ATTRIBUTE]
        kind, number = notes["kind"], notes["format"]
    except FileNotFoundError:
        raise ModelFormatError(f"{place.url} does not exist or is not a model.") from None
    except (OSError, ValueError, KeyError, TypeError, DamagedError) as error:
        raise ModelFormatError(f"{place.url} is not a model: {error!r}") from error
    if kind != "model" or not isinstance(number, int):
        raise ModelFormatError(f"{place.url} is not a model but {kind!r}.")
    if number > FORMAT:
        raise ModelFormatError(
            f"{place.url} has format {number}, and this version of largek_dask reads up to "
            f"{FORMAT}: it was written by a newer one. Upgrade with pip install -U largek_dask."
        )
    return notes  # type: ignore[no-any-return]


def load_model(url: str | Folder, *, storage_options: Mapping[str, Any] | None = None) -> Model:
    """Read a model that :meth:`Model.save` has written.

    Every array is checked against its checksum; nothing that is read is executed, and nothing
    larger than it says it is will be held.

    Parameters
    ----------
    url : str or Folder
        Path or URL.
    storage_options : mapping, optional

    Raises
    ------
    ModelFormatError
        Not a model, a damaged one, or one of a newer format.
    """
    place = Folder.of(url, storage_options)
    notes = _describe(place)
    folder, name = place.parent()
    try:
        records = notes["arrays"]
        for record in records.values():
            _check_record(record)
        found = folder.read_arrays(name, records)
        model = Model(
            arrays=ModelArrays.of_named(found),
            normalize=notes["normalize"],
            on_bad_rows=notes["on_bad_rows"],
            history=tuple(notes["history"]),
            provenance=dict(notes["provenance"]),
        )
        _check_shapes(model)
        intact = notes["digest"] == model.digest()
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, DamagedError) as error:
        raise ModelFormatError(f"{place.url} is damaged: {error}") from error
    if not intact:
        raise ModelFormatError(f"{place.url} is damaged: its digest is not that of its arrays.")
    return model


def _check_record(record: Mapping[str, Any]) -> None:
    """Refuse an array of a strange type or size before any of it is read."""
    dtype = np.dtype(record["dtype"])
    shape = record["shape"]
    if dtype.kind not in "biuf" or not 1 <= len(shape) <= 3:
        raise ValueError(f"an array of {dtype} with shape {shape}")
    if not all(isinstance(n, int) and n >= 0 for n in shape):
        raise ValueError(f"shape {shape}")
    if float(np.prod(np.asarray(shape, float))) * dtype.itemsize > LARGEST_ARRAY:
        raise ValueError(f"an array of shape {shape} is too large for a model")


def _check_shapes(model: Model) -> None:
    """Refuse arrays that do not belong together."""
    centers, counts, shift = model.arrays.centers, model.arrays.counts, model.arrays.shift
    if centers.ndim != 2 or centers.dtype not in (np.float32, np.float64):
        raise ValueError(f"centres of shape {centers.shape} and type {centers.dtype}")
    if counts.shape != (len(centers),) or counts.dtype != np.float64:
        raise ValueError(f"counts of shape {counts.shape} and type {counts.dtype}")
    if shift.shape != (centers.shape[1],) or shift.dtype != centers.dtype:
        raise ValueError(f"a shift of shape {shift.shape} and type {shift.dtype}")
    if model.normalize not in (None, "l2") or model.on_bad_rows not in ("raise", "skip"):
        raise ValueError(f"normalize={model.normalize!r}, on_bad_rows={model.on_bad_rows!r}")
