"""Fitted models of all kinds: predict, score, save and load.

``base.py`` has what all kinds have in common; the other modules are one kind each.
"""

from largek_dask.model.base import KINDS, Model, load_model
from largek_dask.model.centers import CentersModel
from largek_dask.model.mixture import MixtureModel
from largek_dask.model.path import PathModel

__all__ = ["KINDS", "CentersModel", "MixtureModel", "Model", "PathModel", "load_model"]

# Every kind that this version reads and writes; add a new one here.
KINDS.update({kind.kind: kind for kind in (CentersModel, MixtureModel, PathModel)})
