"""Fitted models of all kinds: predict, score, save and load.

``base.py`` has the base class of all kinds; ``centers.py``, ``mixture.py`` and ``path.py`` define
one kind each.
"""

from largek_dask.model.base import KINDS, Model, load_model
from largek_dask.model.centers import CentersModel
from largek_dask.model.mixture import MixtureModel
from largek_dask.model.path import PathModel

__all__ = ["KINDS", "CentersModel", "MixtureModel", "Model", "PathModel", "load_model"]

# All kinds that this version reads and writes; register new kinds here.
KINDS.update({kind.kind: kind for kind in (CentersModel, MixtureModel, PathModel)})
