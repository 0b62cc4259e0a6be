"""Photographs as tables of colour patches, and back: the data of ``largek demo``."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

__all__ = ["PATCH", "Image", "codeword_mosaic", "patches", "psnr", "rebuild", "sample_photographs"]

PATCH = 8
"""Edge of a patch in pixels: a row has 8 · 8 · 3 = 192 numbers."""
GAP = 1
"""White pixels between codewords."""

Image = NDArray[np.uint8]


def sample_photographs() -> dict[str, Image]:
    """Return the two photographs that scikit-learn ships, by name: (height, width, 3) each."""
    from pathlib import Path

    from sklearn.datasets import load_sample_images

    bunch = load_sample_images()
    names = (Path(name).stem for name in bunch.filenames)
    return dict(zip(names, map(np.asarray, bunch.images), strict=True))


def patches(image: Image, stride: int) -> Image:
    """Return the patches of a (height, width, 3) image as (n, 192) rows.

    Their corners lie on a grid of ``stride`` pixels, row by row; below ``PATCH`` they overlap.
    """
    windows = np.lib.stride_tricks.sliding_window_view(image, (PATCH, PATCH), axis=(0, 1))
    grid = windows[::stride, ::stride].transpose(0, 1, 3, 4, 2)
    return np.ascontiguousarray(grid).reshape(-1, PATCH * PATCH * 3)


def rebuild(
    codewords: NDArray[np.float64], labels: NDArray[np.int32], shape: tuple[int, int], stride: int
) -> Image:
    """Return a photograph of a shape from the codeword of each of its :func:`patches`.

    Every pixel is the mean of all codewords laid over it. Pixels that no patch covers (fewer than
    ``stride`` at the right and lower edge) are cut off.
    """
    rows, columns = ((edge - PATCH) // stride + 1 for edge in shape)
    height, width = (rows - 1) * stride + PATCH, (columns - 1) * stride + PATCH
    total, cover = np.zeros((height, width, 3)), np.zeros((height, width, 1))
    tiles = codewords.reshape(-1, PATCH, PATCH, 3)
    grid = labels.reshape(rows, columns)
    # One pixel of all patches at a time: within it no two patches meet, so a slice adds it.
    for i, j in product(range(PATCH), repeat=2):
        down, across = slice(i, height - PATCH + i + 1), slice(j, width - PATCH + j + 1)
        total[down, across][::stride, ::stride] += tiles[grid, i, j]
        cover[down, across][::stride, ::stride] += 1
    return _pixels(total / np.maximum(cover, 1))


def _pixels(values: NDArray[np.float64]) -> Image:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def psnr(image: Image, other: Image) -> float:
    """Return the peak signal-to-noise ratio in dB over the area both have."""
    height, width = map(min, image.shape[:2], other.shape[:2])
    difference = image[:height, :width].astype(np.int64) - other[:height, :width]
    error = float(np.mean(difference**2))
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))


def codeword_mosaic(codewords: NDArray[np.float64], counts: NDArray[np.float64]) -> Image:
    """Return all (k, 192) codewords on one sheet, those of the most rows first."""
    k = len(codewords)
    columns = int(np.ceil(np.sqrt(k)))
    cell = PATCH + GAP
    sheet = np.full((-(-k // columns) * cell + GAP, columns * cell + GAP, 3), 255, np.uint8)
    tiles = _pixels(codewords).reshape(k, PATCH, PATCH, 3)
    for place, codeword in enumerate(np.argsort(-counts, kind="stable")):
        top, left = GAP + place // columns * cell, GAP + place % columns * cell
        sheet[top : top + PATCH, left : left + PATCH] = tiles[codeword]
    return sheet
