from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from largek_dask.driver.labels import LabelStore, group_chunks, sums_from_json, sums_to_json
from largek_dask.kernels.exact.numbers import ExactSums


def table(*lengths: int) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)])


@pytest.mark.parametrize(
    ("lengths", "piece"),
    [((4, 4, 4), 4), ((4, 4, 1), 4), ((7,), 7), ((4, 4, 5), None), ((4, 3, 4), None)],
)
def test_only_whole_pieces_are_written_from_elsewhere(
    lengths: tuple[int, ...], piece: int | None, tmp_path: Path
) -> None:
    """Two chunks must not share a stored piece if two processes may write them at once."""
    store = LabelStore(str(tmp_path / "labels.zarr"), table(*lengths), {})
    assert (store.writer is not None) == (piece is not None)
    store.begin("centers")
    array = zarr.open_array(str(tmp_path / "labels.zarr"), mode="r")
    assert array.chunks == (piece or sum(lengths),)
    assert (array[...] == -2).all()


@settings(deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 120))
def test_groups_hold_every_chunk_once_and_few_rows(lengths: list[int], rows: int) -> None:
    from largek_dask.driver import labels

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labels, "GROUP_ROWS", rows)
        groups = list(group_chunks(table(*lengths)))
    assert [i for group in groups for i in group] == list(range(len(lengths)))
    for group in groups:
        assert len(group) == 1 or sum(lengths[i] for i in group) <= rows


@settings(deadline=None)
@given(
    st.lists(
        st.floats(-1e300, 1e300)
        | st.floats(-1e-300, 1e-300)
        | st.integers(-(1 << 60), 1 << 60).map(float),
        max_size=30,
    ),
    st.integers(1, 4),
)
def test_exact_sums_come_back_exactly(values: list[float], n_cells: int) -> None:
    sums = ExactSums(n_cells)
    sums.add(np.array(values, float), None, np.arange(len(values)) % n_cells)
    back = sums_from_json(sums_to_json(sums))
    np.testing.assert_array_equal(back.values, sums.values)
    # Not only the rounded value: what is added later meets the same sum.
    more = np.array([1e-200, 1.0, 3e200])
    cells = np.arange(3) % n_cells
    back.add(more, None, cells)
    sums.add(more, None, cells)
    np.testing.assert_array_equal(back.values, sums.values)
