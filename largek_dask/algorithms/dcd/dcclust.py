"""The comparison method of DCD-Bundle's paper: its incremental algorithm with plain DC descents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from largek_dask.algorithms.dcd.published import Published

__all__ = ["DCClust"]


@dataclass(frozen=True)
class DCClust(Published):
    """Algorithm 7.1 with plain DC descents in place of Algorithm 5.1.

    The paper cites DCClust and does not describe it: this is our reading (``plain.py``), and
    measurements of it are called "plain DC". Parameters are those of ``DCDBundle.paper()``.
    """

    descent: Literal["bundle", "plain"] = "plain"
    takes_starts: ClassVar[bool] = False
