"""A clustering that is done: predict, score, save and load, of whichever kind it is.

``base.py`` is what all kinds of model have in common; every other module is one kind.
"""

from largek_dask.model.base import KINDS, Model, load_model
from largek_dask.model.centers import CentersModel
from largek_dask.model.mixture import MixtureModel
from largek_dask.model.path import PathModel

__all__ = ["KINDS", "CentersModel", "MixtureModel", "Model", "PathModel", "load_model"]

# Every kind that this version reads and writes: a new one is added here.
KINDS.update({kind.kind: kind for kind in (CentersModel, MixtureModel, PathModel)})
