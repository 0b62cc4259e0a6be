"""How far centres have moved, with the same bits on every machine."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from largek_dask.kernels.jit import njit, readonly

__all__ = ["squared_movement"]


def squared_movement(new: NDArray[Any], old: NDArray[Any]) -> float:
    """Sum of squared differences of two (k, d) arrays, in float64, element after element.

    numpy's sums are split by the width of the machine's vectors; stop rules compare this number
    with a tolerance, so it must not depend on that.
    """
    return float(
        _squared_movement(
            readonly(np.ascontiguousarray(new).ravel()), readonly(np.ascontiguousarray(old).ravel())
        )
    )


@njit
def _squared_movement(new: Any, old: Any) -> Any:
    total = 0.0
    for i in range(new.shape[0]):
        difference = np.float64(new[i]) - np.float64(old[i])
        total += difference * difference
    return total
