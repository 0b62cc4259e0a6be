"""Ascending integers, such as indices of rows, which are broadcast in few bytes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Ascending:
    """Ascending integers, pickled as differences.

    Of 2 million indices among 80 million rows, most differences take one or two bytes instead of
    eight.

    Parameters
    ----------
    values : (n,) int64
        Not negative.
    """

    __slots__ = ("_steps", "_values")

    def __init__(self, values: NDArray[np.int64]) -> None:
        self._values: NDArray[np.int64] | None = values
        self._steps: NDArray[np.unsignedinteger] | None = None

    @property
    def values(self) -> NDArray[np.int64]:
        if self._values is None:
            assert self._steps is not None
            self._values = np.cumsum(self._steps, dtype=np.int64)
        return self._values

    def __getstate__(self) -> NDArray[np.unsignedinteger]:
        if self._steps is None:
            steps = np.diff(self.values, prepend=np.int64(0))
            if steps.min(initial=0) < 0:
                raise ValueError("values must be ascending and not negative")
            self._steps = steps.astype(np.min_scalar_type(int(steps.max(initial=0))))
        # Workers pass broadcasts on to other workers, so keep the differences.
        return self._steps

    def __setstate__(self, steps: NDArray[np.unsignedinteger]) -> None:
        self._steps, self._values = steps, None
