"""Photographs as patches and back."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from largek_dask.cli.photographs import (
    PATCH,
    codeword_mosaic,
    patches,
    psnr,
    rebuild,
    sample_photographs,
)


def photograph(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def test_the_shipped_photographs_give_enough_rows():
    photographs = sample_photographs()
    assert list(photographs) == ["china", "flower"]
    assert all(image.shape == (427, 640, 3) for image in photographs.values())
    rows = sum(len(patches(image, 2)) for image in photographs.values())
    assert rows == 133_140


def test_patches__are_windows_of_the_image():
    image = photograph(20, 27)
    table = patches(image, 3)
    assert table.shape == (5 * 7, 192)
    assert table.flags.c_contiguous
    np.testing.assert_array_equal(table[7 * 2 + 4].reshape(8, 8, 3), image[6:14, 12:20])


@settings(max_examples=25, deadline=None)
@given(height=st.integers(8, 30), width=st.integers(8, 30), stride=st.integers(1, 8))
def test_rebuild__from_every_patch_as_its_own_codeword_is_the_image(height, width, stride):
    image = photograph(height, width)
    table = patches(image, stride)
    labels = np.arange(len(table), dtype=np.int32)
    again = rebuild(table.astype(float), labels, (height, width), stride)
    assert again.shape[0] > height - stride
    assert again.shape[1] > width - stride
    np.testing.assert_array_equal(again, image[: again.shape[0], : again.shape[1]])


def test_rebuild__overlapping_codewords_are_averaged():
    codewords = np.stack([np.full(192, 0.0), np.full(192, 100.0)])
    # two patches beside each other, 4 pixels apart
    again = rebuild(codewords, np.array([0, 1], np.int32), (8, 12), 4)
    np.testing.assert_array_equal(again[0, :, 0], [0] * 4 + [50] * 4 + [100] * 4)


def test_psnr():
    image = photograph(9, 9)
    assert psnr(image, image) == np.inf
    dark = np.zeros((8, 8, 3), np.uint8)
    # an error of 255 everywhere is 0 dB, of a tenth of it 20 dB; only the common area counts
    assert psnr(dark, np.full((9, 9, 3), 255, np.uint8)) == pytest.approx(0)
    assert psnr(dark, np.full((8, 8, 3), 25, np.uint8)) == pytest.approx(20.17, abs=0.01)


def test_codeword_mosaic__most_used_first_and_ties_by_index():
    codewords = np.repeat([[10.0], [20.0], [30.0], [300.0]], 192, axis=1)
    sheet = codeword_mosaic(codewords, np.array([1.0, 5.0, 1.0, 7.0]))
    cell = PATCH + 1
    assert sheet.shape == (2 * cell + 1, 2 * cell + 1, 3)
    corners = [sheet[1 + r * cell, 1 + c * cell, 0] for r in (0, 1) for c in (0, 1)]
    assert corners == [255, 20, 10, 30]
