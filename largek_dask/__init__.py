"""Large-scale clustering with bit-identical results on one machine or on a Dask cluster."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from largek_dask.version import __version__

# Names are imported on first use, so that importing the package and running `largek` are fast.
_PUBLIC = {
    "IncrementalLloyd": "largek_dask.algorithms.incremental",
    "KMeans": "largek_dask.estimators.kmeans",
    "Lloyd": "largek_dask.algorithms.lloyd",
    "MiniBatch": "largek_dask.algorithms.minibatch",
    "MiniBatchKMeans": "largek_dask.estimators.minibatch",
    "Mixture": "largek_dask.estimators.mixture",
    "Model": "largek_dask.model",
    "NMBatch": "largek_dask.algorithms.nmbatch",
    "PartitionPath": "largek_dask.algorithms.partition_path",
    "SphericalKMeans": "largek_dask.estimators.spherical",
    "Truncated": "largek_dask.algorithms.truncated",
    "VCGMM": "largek_dask.algorithms.vcgmm",
    "DCDBundle": "largek_dask.algorithms.published.dcd_bundle",
    "VRKM": "largek_dask.algorithms.published.vrkm",
    "connect": "largek_dask.service.client",
    "ingest": "largek_dask.data.ingest",
    "load_model": "largek_dask.model",
    "near_duplicates": "largek_dask.selection.duplicates",
    "open_rows": "largek_dask.data.sources",
    "suggest_k": "largek_dask.selection.elbow",
    "warmup": "largek_dask.estimators.warmup",
}
_MODULES = {"errors": "largek_dask.errors", "scores": "largek_dask.selection.scores"}

__all__ = [
    "VCGMM",
    "VRKM",
    "DCDBundle",
    "IncrementalLloyd",
    "KMeans",
    "Lloyd",
    "MiniBatch",
    "MiniBatchKMeans",
    "Mixture",
    "Model",
    "NMBatch",
    "PartitionPath",
    "SphericalKMeans",
    "Truncated",
    "__version__",
    "connect",
    "errors",
    "ingest",
    "load_model",
    "near_duplicates",
    "open_rows",
    "scores",
    "suggest_k",
    "warmup",
]

if TYPE_CHECKING:
    from largek_dask import errors
    from largek_dask.algorithms.incremental import IncrementalLloyd
    from largek_dask.algorithms.lloyd import Lloyd
    from largek_dask.algorithms.minibatch import MiniBatch
    from largek_dask.algorithms.nmbatch import NMBatch
    from largek_dask.algorithms.partition_path import PartitionPath
    from largek_dask.algorithms.published.dcd_bundle import DCDBundle
    from largek_dask.algorithms.published.vrkm import VRKM
    from largek_dask.algorithms.truncated import Truncated
    from largek_dask.algorithms.vcgmm import VCGMM
    from largek_dask.data.ingest import ingest
    from largek_dask.data.sources import open_rows
    from largek_dask.estimators.kmeans import KMeans
    from largek_dask.estimators.minibatch import MiniBatchKMeans
    from largek_dask.estimators.mixture import Mixture
    from largek_dask.estimators.spherical import SphericalKMeans
    from largek_dask.estimators.warmup import warmup
    from largek_dask.model import Model, load_model
    from largek_dask.selection import scores
    from largek_dask.selection.duplicates import near_duplicates
    from largek_dask.selection.elbow import suggest_k
    from largek_dask.service.client import connect


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        value = getattr(import_module(_PUBLIC[name]), name)
        globals()[name] = value
        return value
    if name in _MODULES:
        module = globals()[name] = import_module(_MODULES[name])
        return module
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    special = (name for name in globals() if name.startswith("__"))
    return sorted({*__all__, *special})
