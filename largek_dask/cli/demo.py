"""``largek demo``: a complete example, which learns a codebook of two photographs."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from largek_dask.cli.common import command, emit, wants_json

if TYPE_CHECKING:
    import numpy as np
    from distributed import Client
    from numpy.typing import NDArray

    from largek_dask.model import CentersModel

    Image = NDArray[np.uint8]

MAX_ITER = 12
"""Number of steps; more steps would reduce the cost by less than 0.1 %."""
PATCH = 8
"""Width and height of a patch in pixels; a row has 8 · 8 · 3 = 192 features."""
GAP = 1


@command("largek demo --out largek-demo")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("largek-demo"),
    show_default=True,
    metavar="DIR",
    help="New folder for the output.",
)
@click.option(
    "-k", "--n-clusters", type=click.IntRange(min=1), default=256, show_default=True, metavar="K"
)
@click.option(
    "--stride",
    type=click.IntRange(1, 8),
    default=2,
    show_default=True,
    help="Distance of patches in pixels: 1 gives 531,720 rows, 2 gives 133,140, 8 gives 8,480.",
)
def demo(out: Path, n_clusters: int, stride: int) -> None:
    """Run a complete example: cluster patches of two photographs.

    The command cuts the two sample photographs of scikit-learn into 8 × 8 colour patches, stores
    the patches as Zarr, compiles kernels, starts a local Dask cluster, learns a codebook, and
    rebuilds the photographs from the codebook.
    """
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np
    from sklearn.datasets import load_sample_images

    from largek_dask.data.ingest import ingest
    from largek_dask.errors import OutputError
    from largek_dask.estimators.kmeans import KMeans

    if out.exists():
        raise OutputError(f"{out} already exists: choose another --out, or remove it")
    is_shown = not wants_json()
    # Use absolute paths, because workers have other working directories.
    data, saved, labels, picture = (
        str(out.resolve() / name)
        for name in ("patches.zarr", "model.zarr", "labels.zarr", "codebook.png")
    )
    images = load_sample_images().images
    table = np.concatenate([patches(image, stride) for image in images])
    # Write four chunks, so that two workers get equal shares.
    ingest(table, data, chunk_rows=-(-len(table) // 4), progress=False)
    asked: dict[str, Any] = {"max_iter": MAX_ITER, "random_state": 0}
    # This short fit compiles the kernels that the workers load later.
    km = KMeans(n_clusters, **asked).fit(data)
    # Close the cluster in the background, because closing takes seconds.
    with ThreadPoolExecutor(1) as background:
        client = local_client()
        try:
            if is_shown:
                click.echo(f"Dashboard of a local cluster: {client.dashboard_link}", err=True)
            km = KMeans(n_clusters, client=client, verbose=is_shown, **asked).fit(data)
            km.model_.save(saved)
            km.model_.predict(data, out=labels, client=client)
        finally:
            background.submit(client.close)
        psnr = draw(km.model_, images, km.labels_, stride, picture)
    if km.stop_reason_ == "interrupted":
        raise KeyboardInterrupt
    payload = {
        "out": str(out),
        "n_rows": len(table),
        "n_features": table.shape[1],
        "n_clusters": n_clusters,
        "n_iter": km.n_iter_,
        "inertia": km.inertia_,
        "psnr": psnr,
        "digest": km.model_.digest(),
        "picture": picture if Path(picture).exists() else None,
    }
    emit(payload, then=f"largek fit {data} -k 1000 --out run")


def local_client() -> Client:
    """Start a cluster of two single-threaded workers, or of one worker if there is one core."""
    import logging

    import dask.system
    from distributed import Client

    return Client(
        n_workers=min(2, dask.system.CPU_COUNT),
        threads_per_worker=1,
        processes=True,
        dashboard_address=":0",
        # Workers import this module before their first task.
        preload="largek_dask.passes.cluster",
        set_as_default=False,
        # Hide Dask's log messages: important errors are raised as exceptions.
        silence_logs=logging.CRITICAL,
    )


def patches(image: Image, stride: int) -> Image:
    """Return the patches of a (height, width, 3) image as (n, 192) rows.

    Patches start every ``stride`` pixels, row by row, and overlap if ``stride`` is less than
    ``PATCH``.
    """
    import numpy as np

    windows = np.lib.stride_tricks.sliding_window_view(image, (PATCH, PATCH), axis=(0, 1))
    grid = windows[::stride, ::stride].transpose(0, 1, 3, 4, 2)
    return np.ascontiguousarray(grid).reshape(-1, PATCH * PATCH * 3)


def rebuild(codewords: Any, labels: Any, image: Image, stride: int) -> tuple[Image, float]:
    """Rebuild an image from the codewords of its :func:`patches`; return image and PSNR in dB.

    Each pixel is the mean of all codewords that cover the pixel. Fewer than ``stride`` pixels at
    the right and lower edges are covered by no patch and are cut off.
    """
    import numpy as np

    rows, columns = ((edge - PATCH) // stride + 1 for edge in image.shape[:2])
    height, width = (rows - 1) * stride + PATCH, (columns - 1) * stride + PATCH
    total, cover = np.zeros((height, width, 3)), np.zeros((height, width, 1))
    tiles = codewords.reshape(-1, PATCH, PATCH, 3)
    grid = labels.reshape(rows, columns)
    # Process one pixel position of all patches at a time: no two patches write to the same pixel.
    for i, j in product(range(PATCH), repeat=2):
        down, across = slice(i, height - PATCH + i + 1), slice(j, width - PATCH + j + 1)
        total[down, across][::stride, ::stride] += tiles[grid, i, j]
        cover[down, across][::stride, ::stride] += 1
    again = np.rint(total / np.maximum(cover, 1)).clip(0, 255).astype(np.uint8)
    error = np.mean((again - image[:height, :width].astype(float)) ** 2)
    return again, 10 * math.log10(255**2 / error) if error else math.inf


def mosaic(codewords: Any, counts: Any) -> Image:
    """Draw all (k, 192) codewords on one sheet, ordered by their number of rows."""
    import numpy as np

    columns, cell = math.ceil(math.sqrt(len(codewords))), PATCH + GAP
    n_rows = -(-len(codewords) // columns)
    sheet = np.full((n_rows * cell + GAP, columns * cell + GAP, 3), 255, np.uint8)
    for place, codeword in enumerate(np.argsort(-counts, kind="stable")):
        top, left = GAP + place // columns * cell, GAP + place % columns * cell
        tile = np.rint(codewords[codeword]).clip(0, 255).reshape(PATCH, PATCH, 3)
        sheet[top : top + PATCH, left : left + PATCH] = tile
    return sheet


def draw(
    model: CentersModel, images: list[Image], labels: Any, stride: int, path: str
) -> list[float]:
    """Draw the codewords and the photographs rebuilt from them; return the PSNR of each photograph.

    If matplotlib is missing, a warning is given instead.
    """
    from largek_dask.errors import MissingDependencyError, ParameterWarning, warn
    from largek_dask.plots.pictures import new_figure

    shown = [("The codewords, most used first", mosaic(model.centers, model.counts))]
    decibels, n_rows = [], len(labels)
    for image in images:
        n = len(patches(image, stride))
        again, psnr = rebuild(model.centers, labels[:n], image, stride)
        labels = labels[n:]
        decibels.append(psnr)
        shown += [("A photograph", image), (f"rebuilt, PSNR {psnr:.1f} dB", again)]
    try:
        figure = new_figure(16, 7.8)
    except MissingDependencyError as error:
        warn(f"No picture is drawn: {error}", ParameterWarning)
        return decibels
    figure.suptitle(f"{n_rows:,} colour patches of 8 × 8 pixels in {len(model.centers)} clusters")
    grid = figure.add_gridspec(2, 3, width_ratios=[1.32, 1, 1])
    places = [grid[:, 0], *(grid[row, column] for row in (0, 1) for column in (1, 2))]
    for place, (caption, image) in zip(places, shown, strict=True):
        axes = figure.add_subplot(place)
        axes.imshow(image)
        axes.set_title(caption)
        axes.set_anchor("N")
        axes.set_axis_off()
    figure.savefig(path)
    return decibels
