"""Suggest the number of clusters of a table of any size, from a curve of objectives.

For up to 50,000 rows (with up to 2^21 values) and 100 clusters, the curve is computed by
`PartitionPath`, for every number of clusters. For larger problems, the curve is computed
from nested partitions (:mod:`largek_dask.selection.nested`) of a sample, for every number up to 16,
for 24, 32, 48, 64, ..., and for more numbers around every bend. The decision rule
(:mod:`largek_dask.model.suggest_k`) is the same for both kinds of curve.

A number is suggested if four conditions hold. Two halves of the rows, clustered separately, give
the same partition. The partition is clearly better than any partition of a single Gaussian with the
same spectrum. The curve bends at this number. The curves of both halves suggest about the same
number.

Objectives of a sample are estimated on held-out rows. The standard errors measure how much the
estimates differ by chance from the objectives over all rows. The estimates are also too high,
because partitions found on all rows would be better.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from largek_dask.algorithms.base import Rng, RowSample
from largek_dask.algorithms.kmeans import exact_distances
from largek_dask.algorithms.partition_path.samples import take_rows
from largek_dask.algorithms.partition_path.stability import agreement_of, compare_halves
from largek_dask.algorithms.parts.spectrum import (
    MOST_FEATURES,
    lower_bounds,
    scatter_sums,
    spectral_bounds,
)
from largek_dask.data.rows import Rows
from largek_dask.data.sources import open_rows
from largek_dask.driver.events import ProgressLine
from largek_dask.driver.fit import fit, open_passes
from largek_dask.driver.options import FitOptions, check_integer
from largek_dask.driver.plan import check_scale
from largek_dask.errors import DegenerateDataWarning, ParameterError, without_causes
from largek_dask.estimators.base import draw_seed
from largek_dask.kernels.distances import nearest, pack_centers
from largek_dask.kernels.exact.numbers import ExactSums
from largek_dask.model import CentersModel, Model, PathModel
from largek_dask.model.path import records_of
from largek_dask.model.suggest_k import Curve, SuggestedK, spectrum_of, suggest_from
from largek_dask.selection.nested import (
    Partition,
    TimeLimit,
    count_partitions,
    nested_partitions,
    settle_partitions,
    without_rounding,
)

if TYPE_CHECKING:
    from distributed import Client
    from matplotlib.figure import Figure

    from largek_dask.passes.base import BasePasses

PATH_ROWS, PATH_CLUSTERS = 50_000, 100
"""Maximum numbers of rows and clusters for which the curve is computed by `PartitionPath`."""
PATH_VALUES = 1 << 21
"""Maximum number of values in these rows; for more values, `PartitionPath` takes minutes."""
BALANCED_CLUSTERS = 25
"""Maximum number of clusters for which `PartitionPath` uses the effort "balanced". For more
clusters, the effort "fast" takes far less time and leads to the same decision."""
SAMPLE_A_CLUSTER, LEAST_SAMPLE = 256, 1 << 16
"""Number of sampled rows per cluster of the last partition, and minimum number of sampled rows."""
SAMPLE_VALUES = 1 << 26
"""Maximum number of values in a sample if its size is not given."""
FEWEST_A_CLUSTER = 16
"""Minimum number of sampled rows per cluster if rows have many features."""
HELD_OUT, LEAST_HELD_OUT = 4, 1 << 13
"""Number of sampled rows per held-out row, and minimum number of held-out rows."""
SETTLING = 2
"""Number of Lloyd steps over all rows after a search on a part of the rows."""
COMPARED = 1 << 14
"""Maximum number of rows on which the partitions of two halves are compared."""
STAGES = 0.4, 0.6, 0.8
"""Fractions of the time limit at which the search on the sample, and the searches on its first
and second half, must end."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ElbowCurve(SuggestedK):
    """Objectives of partitions into 1 to k clusters, and the suggested number of clusters.

    :func:`suggest_k` returns this object; ``print`` explains the decision.
    """

    errors: Floats
    """(m,) standard errors of the objectives; 0 for objectives computed on all rows."""
    n_rows: int
    """Number of rows of the table with positive weight."""
    n_searched: int
    """Number of rows that were used to find the partitions."""
    method: Literal["partition-path", "nested"]
    """Method that found the partitions."""
    model_of: Callable[[int], CentersModel]
    """Function that :meth:`model` calls."""

    def model(self, n_clusters: int) -> CentersModel:
        """Return the partition into l clusters as a model; l must be one of `n_clusters`.

        Raises
        ------
        ParameterError
            The curve has no such partition.
        """
        if n_clusters not in self.n_clusters:
            near = self.n_clusters[np.argsort(np.abs(self.n_clusters - n_clusters))[:2]]
            numbers = " and ".join(map(str, sorted(near.tolist())))
            raise ParameterError(
                f"the curve has no partition into {n_clusters!r} clusters; the nearest partitions "
                f"have {numbers} clusters. Use one of these, or fit KMeans({n_clusters!r})."
            )
        return self.model_of(int(n_clusters))

    def __repr__(self) -> str:
        return f"<ElbowCurve to {int(self.n_clusters[-1]):,} clusters: {self.words}>"

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per partition, with None for unknown values."""
        columns = (self.n_clusters, self.inertia, self.errors, self.stability, self.gaussian)
        return records_of(
            ("n_clusters", "inertia", "standard_error", "stability", "gaussian"), columns
        )

    def plot(self) -> Figure:
        """Return a matplotlib figure of the inertia by number of clusters."""
        from largek_dask.plots.model_panels import curve_panel
        from largek_dask.plots.pictures import draw

        rows = f"{self.n_rows:,} rows"
        if self.n_searched < self.n_rows:
            rows = f"{self.n_searched:,} of {rows}"
        title = f"Partitions of {rows} into 1 to {int(self.n_clusters[-1]):,} clusters"
        return draw([curve_panel(self)], title, n_columns=1, words=self.words)


@without_causes
def suggest_k(
    rows: Any,
    k_max: int = 30,
    *,
    sample: int | Literal["auto", "all"] = "auto",
    sample_weight: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    normalize: Literal["l2"] | None = None,
    on_bad_rows: Literal["raise", "skip"] = "raise",
    random_state: Any = None,
    client: Client | None = None,
    n_threads: int | None = None,
    max_time: float | str | None = None,
    verbose: int = 0,
) -> ElbowCurve:
    """Suggest a number of clusters, if one stands out, and return the curve.

    Parameters
    ----------
    rows : array-like, sparse matrix, DataFrame, URL, zarr.Array, dask.array.Array or Rows
        (n_rows, n_features) numbers.
    k_max : int
        Largest number of clusters to examine; at most the number of rows is examined.
    sample : int, "auto" or "all"
        Number of rows on which partitions are found, drawn at random by the seed. "auto": 256 rows
        for each of ``k_max`` clusters and at least 65,536 rows, but fewer if rows have many
        features. "all": as "auto", but then all rows are read three times and assigned to all
        partitions, so that objectives are exact.
    sample_weight : array-like of shape (n_rows,) or URL, optional
        A row of weight 2 counts as two rows; a row of weight 0 is ignored.
    storage_options, normalize, on_bad_rows
        As in ``open_rows`` and ``KMeans``.
    random_state : int, RandomState, Generator or None
        The same data, seed and versions give identical results, unless ``max_time`` ends the run.
    client : distributed.Client, optional
        Read the rows on the client's cluster; the sample is searched in this process.
    n_threads, verbose
        As in ``KMeans``.
    max_time : float or str, optional
        Time limit in seconds or as text such as "90s"; unfinished partitions are left out.

    Returns
    -------
    ElbowCurve
        The curve, with the suggested number ``k`` (None if no number stands out) and its ``range``.

    Raises
    ------
    ParameterError, DataError
        A parameter is wrong, or ``rows`` is not a table of finite numbers.
    NoModelError
        The time limit ended the run before there was a partition.

    Examples
    --------
    >>> import numpy as np, largek_dask as lk
    >>> r = np.random.default_rng(0)
    >>> x = 20 * np.eye(3).repeat(100, axis=0) + r.normal(size=(300, 3))
    >>> found = lk.suggest_k(x, 6, random_state=0)
    >>> found.k, found.range, found.model(3).n_clusters
    (3, (3, 3), 3)
    >>> lk.suggest_k(r.normal(size=(300, 3)), 6, random_state=0).k is None
    True
    """
    check_integer("k_max", k_max, 1)
    if sample not in ("auto", "all"):
        check_integer("sample", sample, 1)
    opened = open_rows(rows, sample_weight=sample_weight, storage_options=storage_options)
    k = min(int(k_max), opened.n_rows)
    # FitOptions also checks the other parameters.
    options = FitOptions(
        n_clusters=k,
        algorithm="partition-path",
        effort="balanced" if k <= BALANCED_CLUSTERS else "fast",
        normalize=normalize,
        on_bad_rows=on_bad_rows,
        max_time=max_time,
        seed=draw_seed(random_state),
    )
    return _Request(opened, options, sample, client, n_threads, bool(verbose)).curve()


@dataclass(frozen=True, slots=True)
class _Request:
    rows: Rows
    options: FitOptions
    sample: int | str
    client: Client | None
    n_threads: int | None
    verbose: bool

    def curve(self) -> ElbowCurve:
        """Return the curve; small dense tables use `PartitionPath` instead of a sample."""
        n = self.rows.n_rows
        is_small = n <= PATH_ROWS and n * self.rows.n_features <= PATH_VALUES
        is_small = is_small and self.options.n_clusters <= PATH_CLUSTERS
        whole = isinstance(self.sample, str) or self.sample >= n
        if is_small and whole and not self.rows.is_sparse:
            return self._from_path()
        limit = TimeLimit(self.options.stop.seconds)
        with self.passes() as passes:
            check_scale(passes.statistics)
            return _NestedRun(self, passes, limit).result()

    def passes(self) -> Any:
        return open_passes(
            self.rows,
            client=self.client,
            n_threads=self.n_threads,
            normalize=self.options.normalize,
            on_bad_rows=self.options.on_bad_rows,
        )

    def _from_path(self) -> ElbowCurve:
        with self.passes() as passes:
            statistics = passes.statistics
            k = min(self.options.n_clusters, statistics.n_rows)
            x, weight = take_rows(passes, Rng(self.options.seed))
        with warnings.catch_warnings():
            # Do not warn if there are fewer clusters than k_max.
            warnings.simplefilter("ignore", DegenerateDataWarning)
            result = fit(
                self.rows,
                replace(self.options, n_clusters=k),
                client=self.client,
                n_threads=self.n_threads,
                labels=False,
                events=(ProgressLine(),) if self.verbose else (),
            )
        if result.stop_reason == "interrupted":
            raise KeyboardInterrupt
        model = Model.of(result)
        assert isinstance(model, PathModel)
        path, d = model.path_, self.rows.n_features
        halves = compare_halves(x, weight, Rng(self.options.seed), len(path), passes.threads)
        curves = [
            _curve_of_path(each, centers)
            for each, centers in zip(halves.rows, halves.paths, strict=True)
        ]
        sizes, spectrum = np.arange(1, len(path) + 1), spectrum_of(path.lower_bound, d)
        curve = Curve(sizes, path.inertia, statistics.total_weight, d, spectrum)
        found = suggest_from(curve, halves.stability, curves or None)
        n = statistics.n_rows
        exact = {"errors": np.zeros(len(path)), "n_rows": n, "n_searched": n}
        return _curve_with(found, **exact, method="partition-path", model_of=path.model)

    def sizes(self, n_rows: int) -> tuple[int, int]:
        """Return the numbers of sampled rows and of held-out rows."""
        k = self.options.n_clusters
        if isinstance(self.sample, str):
            n = max(LEAST_SAMPLE, SAMPLE_A_CLUSTER * k)
            n = max(min(n, SAMPLE_VALUES // self.rows.row_values), FEWEST_A_CLUSTER * k)
        else:
            n = self.sample
        n = min(n, n_rows)
        held_out = 0 if self.sample == "all" else max(n // HELD_OUT, LEAST_HELD_OUT)
        return n, min(held_out, n_rows - n)


class _NestedRun:
    """Nested partitions of a sample and of its halves."""

    def __init__(self, request: _Request, passes: BasePasses, limit: TimeLimit) -> None:
        self.request, self.passes, self.limit = request, passes, limit
        self.rng = Rng(request.options.seed)
        self.n_rows = passes.statistics.n_rows
        n, held_out = request.sizes(self.n_rows)
        self.drawn = passes.subset(RowSample(self.rng, "elbow", n + held_out))
        # Rows of weight 0 are not drawn.
        self.n = min(n, self.drawn.n_rows)
        self.k = min(request.options.n_clusters, self.n)

    def result(self) -> ElbowCurve:
        sample = self.drawn if self.n == self.drawn.n_rows else self.drawn.subset(np.arange(self.n))
        found = self._nested(sample, self.rng, (), STAGES[0], "all")
        is_late = self.limit.is_over(STAGES[0])
        found = _settle(sample, found)
        curve, found = _curve_of(sample, found)
        halves, stability = self._halves(sample, found)
        suggested = suggest_from(curve, stability, halves or None)
        inertia, errors, found = self._counted(found)
        models = {partition.n_clusters: partition for partition in found}
        words = suggested.words
        if is_late or self.limit.is_over(STAGES[2]):
            words += " The time limit ended the run early: more time may change this."
        return _curve_with(
            replace(suggested, inertia=inertia, words=words),
            errors=errors,
            n_rows=self.n_rows,
            n_searched=self.n,
            method="nested",
            model_of=lambda k: self.model(models[k]),
        )

    def _nested(
        self, rows: BasePasses, rng: Rng, wanted: Sequence[int], share: float, name: str
    ) -> list[Partition]:
        return nested_partitions(
            rows,
            rng,
            min(self.k, rows.n_rows),
            wanted=wanted,
            limit=self.limit,
            share=share,
            report=partial(_show, name) if self.request.verbose else None,
        )

    def _halves(self, sample: BasePasses, found: Sequence[Partition]) -> tuple[list[Curve], Floats]:
        """Return the curves of two halves, and the agreement of their partitions by size."""
        sizes = [partition.n_clusters for partition in found]
        stability = np.full(len(sizes), np.nan)
        stability[0] = 1.0
        half = self.n // 2
        if half < 2 or self.limit.is_over(STAGES[2]):
            return [], stability
        curves, centers = [], []
        for i, begin in enumerate((0, half)):
            rows = sample.subset(np.arange(begin, begin + half))
            rng = Rng(self.rng.seed, 1 + i)
            parts = self._nested(rows, rng, sizes, STAGES[1 + i], f"half {i + 1}")
            curve, parts = _curve_of(rows, _settle(rows, parts))
            curves.append(curve)
            centers.append({part.n_clusters: part.arrays.centers for part in parts})
        shift = self.passes.statistics.shift
        x = sample.take(np.arange(self.n)[:: max(1, self.n // COMPARED)]).x
        for at, size in enumerate(sizes):
            if size > 1 and all(size in each for each in centers):
                stability[at] = agreement_of(x, [each[size] for each in centers], shift)
        return curves, stability

    def _counted(self, found: Sequence[Partition]) -> tuple[Floats, Floats, list[Partition]]:
        """Return objectives, standard errors, and partitions with counts, all for all rows."""
        if self.request.sample == "all" and self.n < self.n_rows:
            rows = self.passes
            found = settle_partitions(rows, found, SETTLING)
        elif self.n < self.drawn.n_rows:
            rows = self.drawn.subset(np.arange(self.n, self.drawn.n_rows))
        else:
            rows = self.drawn
        count = count_partitions(rows, found)
        scale = self.passes.statistics.total_weight / count.weight
        exact = self.n == self.n_rows or self.request.sample == "all"
        costs = np.array([partition.cost for partition in count.partitions])
        if exact:
            return costs, np.zeros(len(costs)), count.partitions
        scaled = [
            replace(p, arrays=replace(p.arrays, counts=p.arrays.counts * scale))
            for p in count.partitions
        ]
        return costs * scale, count.errors * scale, scaled

    def model(self, partition: Partition) -> CentersModel:
        options = self.request.options
        provenance = {
            "partition": {"n_clusters": partition.n_clusters, "of": "suggest_k"},
            "parameters": {"seed": options.seed, "k_max": options.n_clusters},
            "data": {"n_rows": self.n_rows, "n_searched": self.n},
        }
        return CentersModel(
            partition.arrays,
            options.normalize,
            options.on_bad_rows,
            provenance=provenance,
            feature_names=self.request.rows.feature_names,
        )


def _settle(rows: BasePasses, found: Sequence[Partition]) -> list[Partition]:
    """Run Lloyd steps over all rows on partitions that were found on fewer rows."""
    few = [partition for partition in found if partition.n_rows < rows.n_rows]
    moved = iter(settle_partitions(rows, few, SETTLING))
    return [next(moved) if partition.n_rows < rows.n_rows else partition for partition in found]


def _curve_of(rows: BasePasses, found: Sequence[Partition]) -> tuple[Curve, list[Partition]]:
    """Return partitions that cost less than all smaller partitions, and their curve."""
    count = count_partitions(rows, found)
    kept: list[Partition] = []
    for partition in count.partitions:
        if not kept or partition.cost < kept[-1].cost:
            kept.append(partition)
    sizes = np.array([partition.n_clusters for partition in kept])
    inertia = np.array([partition.cost for partition in kept])
    d = rows.n_features
    spectrum = spectrum_of(lower_bounds(rows, d + 1), d)
    return Curve(sizes, inertia, count.weight, d, spectrum), kept


def _curve_of_path(x: Floats, path: Sequence[Floats]) -> Curve:
    """Return the curve of the partitions of one half of a sample."""
    d = x.shape[1]
    shift = x.sum(axis=0) / len(x)
    inertia = np.array([_cost_of(x, centers, shift) for centers in path])
    spectrum = None
    if d <= MOST_FEATURES:
        bounds = spectral_bounds(*scatter_sums(x, None, shift).matrix(), d + 1)
        spectrum = spectrum_of(bounds, d)
    return Curve(np.arange(1, len(inertia) + 1), inertia, float(len(x)), d, spectrum)


def _cost_of(x: Floats, centers: Floats, shift: Floats) -> float:
    packed, total = pack_centers(centers, shift), ExactSums()
    total.add(without_rounding(exact_distances(x, packed, nearest(x, packed)), x, centers.dtype))
    return float(total.value)


def _curve_with(found: SuggestedK, **more: Any) -> ElbowCurve:
    """Return an :class:`ElbowCurve` that includes the decision."""
    return ElbowCurve(**{each.name: getattr(found, each.name) for each in fields(found)}, **more)


def _show(name: str, partition: Partition) -> None:
    text = f"elbow, {name}: {partition.n_clusters:,} clusters, inertia {partition.cost:.6g}"
    print(text, file=sys.stderr, flush=True)
