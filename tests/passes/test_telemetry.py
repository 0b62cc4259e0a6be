"""How large an object is that is to be sent, and what figures of passes add up to."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import partial

import numpy as np

from largek_dask.passes.telemetry import PassReport, nbytes

ARRAY = np.zeros(1_000)


class Slotted:
    """As totals are."""

    __slots__ = ("absent", "x")

    def __init__(self):
        self.x = ARRAY


class Child(Slotted):
    """With slots of its own."""

    __slots__ = ("more",)

    def __init__(self):
        super().__init__()
        self.more = ARRAY


@dataclass
class Plain:
    """With a dictionary."""

    x: np.ndarray
    note: str = "short"


class Told:
    """Says it itself."""

    nbytes = np.int64(12_000)


def test_size_is_that_of_the_arrays_in_it():
    """Within what a few small things take: it decides how something travels."""
    for value, arrays in (
        (ARRAY, 1),
        (ARRAY.tobytes(), 1),
        ("x" * 8_000, 1),
        ([ARRAY, (ARRAY, {3: ARRAY})], 3),
        (frozenset([ARRAY.tobytes()]), 1),
        (partial(sum, ARRAY, start=ARRAY), 2),
        (Slotted(), 1),
        (Child(), 2),
        ([Told(), Plain(ARRAY), Child(), None, 1, "a"], 4.5),
    ):
        assert 8_000 * arrays <= nbytes(value) < 8_000 * arrays + 100, value


def test_reports_add_up_but_for_what_is_held_last():
    one, two = (
        PassReport(**{field.name: scale * at for at, field in enumerate(fields(PassReport), 1)})
        for scale in (1, 100)
    )
    before = asdict(one)
    one.add(two)
    for name, value in asdict(two).items():
        held = name in ("workers", "state_bytes", "cache_bytes")
        assert asdict(one)[name] == (value if held else before[name] + value), name
