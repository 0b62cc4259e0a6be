"""Settings, kept in ``dask.config`` under the key ``largek``.

Defaults are in ``largek.yaml``, their meaning in ``largek-schema.yaml``. Each can be set in Python
(``dask.config.set({"largek.kernels.tile": "avx2"})``), in a YAML file that Dask reads, or in the
environment (``DASK_LARGEK__KERNELS__TILE=avx2``).
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import dask.config
import yaml

dask.config.update_defaults(yaml.safe_load((files(__package__) / "largek.yaml").read_text()))


def get(key: str) -> Any:
    """Return the value of ``largek.<key>``, e.g. ``get("kernels.tile")``."""
    return dask.config.get(f"largek.{key}")
