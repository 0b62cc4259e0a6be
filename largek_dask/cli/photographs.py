"""Photographs as tables of colour patches, and back: the data of ``largek demo``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["PATCH", "codeword_mosaic", "patches", "psnr", "rebuild", "sample_photographs"]

PATCH = 8
"""Edge of a patch in pixels: a row has 8 · 8 · 3 = 192 numbers."""
GAP = 1
"""White pixels between codewords."""


def sample_photographs() -> dict[str, NDArray[np.uint8]]:
    """The two photographs that scikit-learn ships, by name: (height, width, 3) each."""
    from pathlib import Path

    from sklearn.datasets import load_sample_images

    bunch = load_sample_images()
    return {
        Path(name).stem: np.asarray(image)
        for name, image in zip(bunch.filenames, bunch.images, strict=True)
    }


def patches(image: NDArray[np.uint8], stride: int) -> NDArray[np.uint8]:
    """All patches whose corner lies on a grid of ``stride`` pixels.

    Parameters
    ----------
    image : (height, width, 3) uint8
    stride : int
        Pixels between neighbouring corners; below ``PATCH`` patches overlap.

    Returns
    -------
    (n, 192) uint8, the patches row by row of the grid.
    """
    windows = np.lib.stride_tricks.sliding_window_view(image, (PATCH, PATCH), axis=(0, 1))
    grid = windows[::stride, ::stride].transpose(0, 1, 3, 4, 2)
    return np.ascontiguousarray(grid).reshape(-1, PATCH * PATCH * 3)


def rebuild(
    codewords: NDArray[np.float64], labels: NDArray[np.int32], shape: tuple[int, int], stride: int
) -> NDArray[np.uint8]:
    """A photograph from the codeword of each of its patches.

    Every pixel is the mean of all codewords laid over it; pixels that no patch covers (fewer
    than ``stride`` at the right and lower edge) are cut off.

    Parameters
    ----------
    codewords : (k, 192) float64
    labels : (n,) int32
        In the order of :func:`patches`.
    shape : (height, width)
        Of the photograph.
    stride : int
        As given to :func:`patches`.
    """
    rows = (shape[0] - PATCH) // stride + 1
    columns = (shape[1] - PATCH) // stride + 1
    height, width = (rows - 1) * stride + PATCH, (columns - 1) * stride + PATCH
    total = np.zeros((height, width, 3))
    cover = np.zeros((height, width, 1))
    tiles = codewords.reshape(-1, PATCH, PATCH, 3)
    grid = labels.reshape(rows, columns)
    # One pixel of all patches at a time: within it no two patches meet, so a slice adds it.
    for i in range(PATCH):
        for j in range(PATCH):
            window = (
                slice(i, i + (rows - 1) * stride + 1, stride),
                slice(j, j + (columns - 1) * stride + 1, stride),
            )
            total[window] += tiles[grid, i, j]
            cover[window] += 1
    # A stride above PATCH leaves gaps: they stay black.
    return np.clip(np.rint(total / np.maximum(cover, 1)), 0, 255).astype(np.uint8)


def psnr(image: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    """Peak signal-to-noise ratio in dB over the area both have; infinite for equal images."""
    height, width = (min(a, b) for a, b in zip(image.shape[:2], other.shape[:2], strict=True))
    difference = image[:height, :width].astype(np.int64) - other[:height, :width]
    error = float(np.mean(difference**2))
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))


def codeword_mosaic(
    codewords: NDArray[np.float64], counts: NDArray[np.float64]
) -> NDArray[np.uint8]:
    """All codewords on one sheet, the most used first, row by row.

    Parameters
    ----------
    codewords : (k, 192) float64
    counts : (k,) float64
        Weight of each codeword's rows.
    """
    k = len(codewords)
    columns = int(np.ceil(np.sqrt(k)))
    rows = -(-k // columns)
    cell = PATCH + GAP
    sheet = np.full((rows * cell + GAP, columns * cell + GAP, 3), 255, np.uint8)
    tiles = np.clip(np.rint(codewords), 0, 255).astype(np.uint8).reshape(k, PATCH, PATCH, 3)
    for place, codeword in enumerate(np.argsort(-counts, kind="stable")):
        top, left = GAP + place // columns * cell, GAP + place % columns * cell
        sheet[top : top + PATCH, left : left + PATCH] = tiles[codeword]
    return sheet
