"""From one step to the next."""

from __future__ import annotations

import numpy as np

from largek_dask.algorithms.parts.moves import Moves
from largek_dask.algorithms.truncated.state import BEYOND, overstep


def test_centres_go_beyond_the_means():
    before, means = np.zeros((3, 2)), np.ones((3, 2))
    moves = Moves(np.array([0]), np.array([2]), np.ones((1, 2, 2)), 1.0)
    assert (overstep(before, means, None) == 1 + BEYOND).all()
    assert (overstep(before, means, moves)[[0, 2]] == 1).all()
    assert (overstep(before, means, moves)[1] == 1 + BEYOND).all()
