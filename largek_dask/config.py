"""Settings of this package, stored in ``dask.config`` under the key ``largek``.

``largek.yaml`` contains the defaults, and ``largek-schema.yaml`` describes each setting. A setting
can be changed in Python (``dask.config.set({"largek.kernels.tile": "avx2"})``), in a YAML file that
Dask reads, or by an environment variable (``DASK_LARGEK__KERNELS__TILE=avx2``).
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
