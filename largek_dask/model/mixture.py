"""Models of Gaussian mixtures: densities, and probabilities of components."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from largek_dask.algorithms.base import Chunk
from largek_dask.algorithms.mixture import (
    LOST,
    MIXTURE,
    MOST_AMISS,
    MixtureArrays,
    label_far,
    most_probable,
)
from largek_dask.algorithms.objective import Objective
from largek_dask.algorithms.problem import Labelling, RowValues
from largek_dask.data.rows import Rows
from largek_dask.data.store_writer import CSRWriter, check_output, unfinished
from largek_dask.driver.final import label_rows
from largek_dask.driver.labels import LabelStore, group_chunks
from largek_dask.driver.plan import beyond_reach, check_output_fits
from largek_dask.driver.storage import Folder
from largek_dask.errors import DataError, ParameterError, without_causes
from largek_dask.kernels.blocks import SparseBlock
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.kernels.exact.squares import row_squares
from largek_dask.kernels.exact.transcendental import exp
from largek_dask.kernels.log_likelihood import log_likelihoods, posteriors
from largek_dask.kernels.mixtures import PackedMixture
from largek_dask.model.base import Model, check_numbers

if TYPE_CHECKING:
    from distributed import Client
    from scipy.sparse import csr_matrix

    from largek_dask.passes.base import BasePasses

MOST_DENSE = 1_000
"""Maximum number of components for which probabilities are returned as a dense array by default."""
LEAST = 2.0**-20
"""Probabilities up to this value are left out of a sparse array."""
LEAST_DENSE = 2.0**-64
"""Probabilities up to this value are set to 0 in a dense array."""
GROUP_ROWS = 1 << 18
"""Approximate number of rows whose probabilities are in memory at a time."""
LOG_LIKELIHOODS = RowValues("log_likelihoods", "<f8", np.nan, np.nan)


class MixtureModel(Model):
    """Gaussian mixture model, with all settings needed to compute densities of rows.

    Densities are exact sums over all components. A row belongs to its most probable component, even
    if the mean of another component is nearer.
    """

    kind: ClassVar[str] = "mixture"
    holds: ClassVar[type[Any]] = MixtureArrays
    objective: ClassVar[Objective] = MIXTURE

    arrays: MixtureArrays

    @property
    def means(self) -> NDArray[Any]:
        """(k, d) means of the components in the coordinates of the (normalised) data."""
        return self.arrays.means

    @property
    def counts(self) -> NDArray[np.float64]:
        """(k,) weight of the rows for which each component is the most probable."""
        return self.arrays.counts

    @property
    def n_features(self) -> int:
        """Number of columns d."""
        return int(self.arrays.means.shape[1])

    @property
    def covariance(self) -> str:
        """Type of covariance: ``"iso"``, ``"isoflex"`` or ``"diag"``."""
        return self._packed().covariance

    @property
    def n_parameters(self) -> int:
        """Number of free parameters of all components in use, as in scikit-learn."""
        shape, n_alive = self.arrays.variances.shape, int(np.count_nonzero(self.arrays.alive))
        of_means = n_alive * self.n_features
        if shape == (1, 1):
            return of_means + 1
        return of_means + n_alive * int(shape[1]) + n_alive - 1

    def fit_figures(self) -> dict[str, float]:
        """Return the final lower bound F, the final energy, and the log-likelihood, all per row.

        The energy is the mean squared distance of the rows to the means, weighted by posteriors.
        The result includes the number of components with the minimum variance or too few rows
        ("collapsed") and the number of components without weight ("retired").
        """
        weight = float(np.cumsum(self.counts)[-1])
        total = self.provenance.get(MIXTURE.name)
        last = self.history[-1]["extra"] if self.history else {}
        figures = {
            "F": last.get("lower_bound"),
            "mean_log_likelihood": None if total is None else total / weight,
            "energy": last.get("energy"),
            "collapsed_components": last.get("collapsed"),
            "retired_components": float(np.count_nonzero(~self.arrays.alive)),
        }
        return {name: figure for name, figure in figures.items() if figure is not None}

    # --- densities and probabilities --------------------------------------------------------------

    @without_causes
    def score_samples(
        self,
        rows: Any,
        *,
        out: str | Folder | None = None,
        client: Client | None = None,
        n_threads: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> NDArray[np.float64] | None:
        """Return the log-likelihood of every row, in nats; outliers have the lowest values.

        Parameters
        ----------
        rows, out, client, n_threads, storage_options
            As in ``predict``, but ``out`` gets an array or column of float64.

        Returns
        -------
        ndarray of float64 (n,) or None
            NaN for rows that are skipped; None if log-likelihoods are written to ``out``.
        """
        opened = self._open(rows)
        store = None
        if out is not None:
            owner = {
                "model": self.digest(),
                "data": opened.fingerprint()["content"],
                "values": LOG_LIKELIHOODS.name,
            }
            store = LabelStore(out, opened.chunk_table, owner, storage_options, LOG_LIKELIHOODS)
        packed, marks = self.arrays.packed_for(opened.dtype), self._labelling(opened.dtype).marks
        labelling = Labelling(
            _likelihood_chunk, (packed,), {MIXTURE.name: 1}, marks, LOG_LIKELIHOODS
        )
        with self._passes(opened, client, n_threads) as passes:
            found = label_rows(passes, labelling, out=store)
        if store is not None:
            store.finish({"model": self.digest(), MIXTURE.name: found.sum_of(MIXTURE.name)})
        return found.labels

    @without_causes
    def predict_proba(
        self,
        rows: Any,
        *,
        dense: bool | None = None,
        out: str | None = None,
        client: Client | None = None,
        n_threads: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> NDArray[np.float64] | csr_matrix | None:
        """Return the probabilities of the components for every row.

        Parameters
        ----------
        rows : anything that ``open_rows`` takes
        dense : bool, optional
            True: return a dense array. False: return a sparse matrix of the probabilities above
            2^-20, whose rows sum to 1. None: dense up to 1,000 components, otherwise sparse.
        out : str, optional
            URL of a Zarr group to which probabilities are written instead of being returned, as
            sparse rows (CSR) in AnnData's layout. Remove the output of a killed run before
            starting again.
        client, n_threads, storage_options
            As in ``predict``.

        Returns
        -------
        ndarray of float64 or scipy.sparse.csr_matrix (n, k), or None
            Rows that are skipped are NaN in a dense array, and have no entries in a sparse matrix.

        Raises
        ------
        ParameterError
            The number of columns differs from that of the model, or ``out`` is combined with
            ``dense``.
        NotEnoughMemoryError
            A dense array does not fit into memory; raised before computing.
        OutputError
            ``out`` exists or cannot be written.
        """
        opened, k = self._open(rows), self.n_clusters
        if out is not None:
            if dense:
                raise ParameterError(
                    "out= writes sparse probabilities and cannot be combined with dense=True; omit "
                    "dense or out."
                )
            self._write_probabilities(opened, out, client, n_threads, storage_options)
            return None
        if dense is None:
            dense = k <= MOST_DENSE
        if not dense:
            return self._sparse_probabilities(opened, client, n_threads)
        check_output_fits((opened.n_rows, k), 8)
        table = np.zeros((opened.n_rows, k))
        begin = 0
        for block, bad in self._probabilities(opened, LEAST_DENSE, client, n_threads):
            own = table[begin : begin + len(block)]
            own[block.row_numbers(), block.indices] = block.data
            own[bad] = np.nan
            begin += len(block)
        return table

    # --- common to all kinds ----------------------------------------------------------------------

    def _open(self, source: Any, sample_weight: Any = None, **more: Any) -> Rows:
        opened = super()._open(source, sample_weight, **more)
        if opened.is_sparse:
            raise ParameterError(
                "mixtures support only dense rows, but the rows are sparse; pass a dense array."
            )
        return opened

    def _packed(self) -> PackedMixture:
        return self.arrays.packed_for(self.means.dtype)

    def _label(
        self, passes: BasePasses, out: LabelStore | None
    ) -> tuple[NDArray[np.int32] | None, dict[str, Any]]:
        found = label_rows(passes, self._labelling(passes.rows.dtype), out=out)
        return found.labels, {MIXTURE.name: found.sum_of(MIXTURE.name)}

    def _score(self, passes: BasePasses) -> float:
        total, weight = self._log_likelihood(passes)
        return total / weight

    def _log_likelihood(self, passes: BasePasses) -> tuple[float, float]:
        """Return the log-likelihood of all rows and their total weight."""
        labelled = label_rows(passes, self._labelling(passes.rows.dtype), labels=False)
        weight = math.fsum(labelled.sums["counts"].values)
        if not weight > 0:
            raise DataError(
                "a likelihood cannot be computed, because all rows have weight 0; pass at least "
                "one positive weight."
            )
        total = labelled.sum_of(MIXTURE.name)
        if not np.isfinite(total):
            raise beyond_reach(self.means.astype(np.float64))
        return total, weight

    def _probabilities(
        self, opened: Rows, least: float, client: Client | None, n_threads: int | None
    ) -> Iterator[tuple[SparseBlock, NDArray[np.bool_]]]:
        """Yield probabilities of successive rows, and a mask of the rows that are skipped."""
        packed = self.arrays.packed_for(opened.dtype)
        with self._passes(opened, client, n_threads) as passes:
            for group in group_chunks(opened.chunk_table, GROUP_ROWS):
                parts: dict[int, Any] = passes.reduce(
                    _posteriors_chunk,
                    packed,
                    least,
                    start=dict,
                    combine=operator.ior,
                    chunks=list(group),
                )
                for i in group:
                    shares, indices, indptr, bad = parts.pop(i)
                    yield SparseBlock(shares, indices, indptr, self.n_clusters), bad

    def _sparse_probabilities(
        self, opened: Rows, client: Client | None, n_threads: int | None
    ) -> csr_matrix:
        from scipy.sparse import csr_matrix

        found = [block for block, _ in self._probabilities(opened, LEAST, client, n_threads)]
        lengths = np.concatenate([np.diff(block.indptr) for block in found])
        return csr_matrix(
            (
                np.concatenate([block.data for block in found]),
                np.concatenate([block.indices for block in found]),
                np.concatenate([[0], np.cumsum(lengths)]),
            ),
            shape=(opened.n_rows, self.n_clusters),
        )

    def _write_probabilities(
        self,
        opened: Rows,
        out: str,
        client: Client | None,
        n_threads: int | None,
        storage_options: Mapping[str, Any] | None,
    ) -> None:
        url = check_output(out, storage_options)
        writer = CSRWriter(
            url,
            n_features=self.n_clusters,
            dtype=np.dtype(np.float64),
            storage_options=storage_options,
        )
        with unfinished(url, storage_options):
            for block, _ in self._probabilities(opened, LEAST, client, n_threads):
                writer.append(block)
            writer.finish({"model": self.digest(), "kind": "probabilities"})

    def _cluster_centers(self) -> NDArray[Any]:
        return self.arrays.means

    def _labelling(self, dtype: DTypeLike) -> Labelling:
        return most_probable(self.arrays, dtype)

    def _check(self) -> None:
        arrays = self.arrays
        shape, dtype = arrays.means.shape, arrays.means.dtype
        if len(shape) != 2 or 0 in shape or dtype not in (np.float32, np.float64):
            raise ValueError(f"means have an invalid shape {shape} or type {dtype}")
        k, d = shape
        check_numbers("means", arrays.means, (k, d), dtype)
        check_numbers("a shift", arrays.shift, (d,), dtype)
        check_numbers("counts", arrays.counts, (k,), least=0)
        logs = arrays.log_weights
        if logs.shape != (k,) or logs.dtype != np.float64:
            raise ValueError(f"log_weights have an invalid shape {logs.shape} or type {logs.dtype}")
        if arrays.variances.dtype != np.float64:
            raise ValueError(f"variances have an invalid type {arrays.variances.dtype}")
        if arrays.alive.dtype != np.bool_ or not arrays.alive.any():
            raise ValueError("alive is not a boolean mask with at least one True value")
        if not np.array_equal(arrays.alive, np.isfinite(arrays.log_weights)):
            raise ValueError(
                "a retired component has a weight, or a component in use has no weight"
            )
        with np.errstate(all="ignore"):
            try:
                self._packed()
            except ParameterError as error:
                raise ValueError(str(error)) from error
            check_numbers("inverse variances", 1 / arrays.variances, arrays.variances.shape)
        total = math.fsum(exp(arrays.log_weights[arrays.alive]).tolist())
        # The weights need not sum to 1 if a component was retired in the last step.
        least = 0.0 if not arrays.alive.all() else 1 - MOST_AMISS
        if not least <= total <= 1 + MOST_AMISS:
            raise ValueError(f"the weights sum to {total:.9g} instead of 1")

    def _own_facts(self) -> dict[str, str]:
        facts = {
            "features": f"{self.n_features:,} ({self.means.dtype.name})",
            "covariance": self.covariance,
        }
        n_retired = int(np.count_nonzero(~self.arrays.alive))
        return facts | ({"retired": f"{n_retired:,}"} if n_retired else {})


def _likelihood_chunk(
    chunk: Chunk, sums: dict[str, ExactSums], packed: PackedMixture
) -> NDArray[np.float64]:
    _, found = log_likelihoods(chunk.x, packed)
    sums[MIXTURE.name].add(found, chunk.weight)
    return found


def _posteriors_chunk(
    chunk: Chunk, total: dict[int, Any], packed: PackedMixture, least: float
) -> None:
    """Compute the probabilities of a chunk's rows; skipped rows get no entries."""
    found: tuple[NDArray[Any], ...] = posteriors(chunk.x, packed, least)
    bad = np.zeros(len(chunk.x), bool) if chunk.bad is None else chunk.bad
    weights = packed.precisions / 2 if packed.covariance == "diag" else packed.halves
    far = np.flatnonzero(row_squares(chunk.x, packed.shift) * weights.min() > -LOST)
    if len(far):
        labels, low = log_likelihoods(chunk.x[far], packed)
        lost = label_far(chunk.x[far], labels, low, packed)
        found = _with_rows(found, far[lost], labels[lost])
    if bad.any():
        found = _with_rows(found, np.flatnonzero(bad), None)
    indptr, indices, shares = found
    total[chunk.index] = shares, indices, indptr, bad


def _with_rows(
    found: tuple[NDArray[Any], ...], rows: NDArray[np.int64], labels: NDArray[np.int32] | None
) -> tuple[NDArray[Any], ...]:
    """Replace the probabilities of some rows by 1 for one component, or remove them."""
    indptr, indices, shares = found
    kept = np.ones(len(indptr) - 1, bool)
    kept[rows] = False
    lengths = np.diff(indptr)
    numbers = np.repeat(kept, lengths)
    lengths[rows] = 0 if labels is None else 1
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    same = np.repeat(kept, lengths)
    components, parts = np.zeros(len(same), np.int32), np.ones(len(same))
    components[same], parts[same] = indices[numbers], shares[numbers]
    if labels is not None:
        components[indptr[rows]] = labels
    return indptr, components, parts
