"""Total that collects results by chunk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from largek_dask.algorithms.parts.totals import Additive


@dataclass
class ChunkResults(Additive):
    """Results by chunk index; a chunk function writes the result of its chunk."""

    chunks: dict[int, Any] = field(default_factory=dict)

    def in_order(self) -> list[Any]:
        return [self.chunks[index] for index in sorted(self.chunks)]
