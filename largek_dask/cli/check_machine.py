"""What ``largek doctor`` looks at on this machine."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from importlib import metadata, util

from largek_dask.cli.findings import Finding, broken, note, ok
from largek_dask.driver.words import human_bytes
from largek_dask.version import __version__

__all__ = ["PACKAGES", "check_machine"]

PACKAGES = ("numpy", "numba", "llvmlite", "dask", "distributed", "zarr", "fsspec", "scikit-learn")
"""Packages whose versions are told and compared with the cluster's."""

EXTRAS = {
    "s3": ("s3fs", "s3:// URLs"),
    "parquet": ("pyarrow", "CSV and Parquet files in `largek ingest`"),
    "hdf5": ("h5py", "HDF5 files in `largek ingest`"),
    "plots": ("matplotlib", "pictures of `largek demo` and `largek plot`"),
}

LOW_MEMORY = 1 << 30
LOW_DISK = 256 << 20
MODEST_DISK = 5 << 30


def check_machine() -> Iterator[Finding]:
    """All findings about CPU, kernels, versions, BLAS, memory, disk and stores."""
    yield from _cpu()
    yield from _kernel_cache()
    yield from _versions()
    yield from _blas()
    yield from _memory()
    yield from _disk()
    yield from _stores()


def _cpu() -> Iterator[Finding]:
    from llvmlite import binding

    from largek_dask import config
    from largek_dask.kernels.tile import select_tile

    wanted = ("avx512f", "avx2", "fma", "neon", "sve")
    has = binding.get_host_cpu_features()
    present = [name for name in wanted if has.get(name)]
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield ok(
        "cpu",
        f"{binding.get_host_cpu_name()} ({platform.machine()}), {usable} of {os.cpu_count()} "
        f"cores usable, features: {' '.join(present) or 'none of those we look for'}",
    )
    tile = select_tile()
    forced = config.get("kernels.tile")
    text = (
        f"dense kernels use the tile {tile.name} ({tile.centres} × {tile.vectors} × {tile.lanes})"
    )
    if forced != "auto":
        yield note(
            "kernels",
            f"{text}, forced by the configuration value largek.kernels.tile",
            "unset it (DASK_LARGEK__KERNELS__TILE) for the fastest one; results are the same",
        )
    elif tile.name == "plain" and not {"avx2", "avx512f"} & set(present):
        yield note(
            "kernels",
            f"{text}: correct, but untuned for this CPU",
            "expect a fraction of the speed of a CPU with AVX2",
        )
    else:
        yield ok("kernels", f"{text}, chosen from these features")


def _kernel_cache() -> Iterator[Finding]:
    from largek_dask.kernels.jit import cache_folder

    folder = cache_folder()
    files = list(folder.glob("*.bin"))
    size = human_bytes(sum(path.stat().st_size for path in files))
    existing = folder
    while not existing.exists():
        existing = existing.parent
    if not os.access(existing, os.W_OK):
        yield note(
            "kernels",
            f"the cache of compiled code cannot be written ({folder}): every process compiles "
            "again, for some seconds",
            "make it writable, or set DASK_LARGEK__KERNELS__CACHE_DIR to a folder that is",
        )
    elif files:
        yield ok("kernels", f"{len(files)} compiled kernels, {size}, in {folder}")
    else:
        yield ok(
            "kernels",
            f"no compiled kernels of this version yet in {folder}",
            "the first fit compiles for some seconds; later ones start at once",
        )


def _versions() -> Iterator[Finding]:
    told = [f"largek_dask {__version__}", f"Python {platform.python_version()}"]
    told += [f"{name} {metadata.version(name)}" for name in PACKAGES]
    yield ok("versions", ", ".join(told))


def _blas() -> Iterator[Finding]:
    import scipy.linalg  # noqa: F401  (loads its BLAS, so that threadpoolctl sees it)
    from threadpoolctl import threadpool_info

    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    told = {
        f"{pool['internal_api']} {pool['version']} ({pool.get('architecture', '?')}), "
        f"{pool['num_threads']} threads"
        for pool in pools
    }
    yield ok(
        "blas",
        "; ".join(sorted(told)) or "no BLAS that threadpoolctl knows",
        "nothing here computes with it, and tasks hold it to one thread",
    )
    for name in sorted(name for name in os.environ if name.startswith("OPENBLAS_")):
        yield note(
            "blas",
            f"{name}={os.environ[name]} is set",
            "results and speed here do not depend on it, but those of numpy and scikit-learn "
            "do: unset it if you compare with them",
        )


def _memory() -> Iterator[Finding]:
    import psutil
    from distributed.system import MEMORY_LIMIT

    available = min(psutil.virtual_memory().available, MEMORY_LIMIT)
    text = f"{human_bytes(available)} available of {human_bytes(MEMORY_LIMIT)}"
    if available < LOW_MEMORY:
        yield note("memory", text, "close something: a fit wants at least 1 GiB free")
    else:
        yield ok("memory", text)


def _disk() -> Iterator[Finding]:
    for name, folder in (("this folder", os.getcwd()), ("temporary files", tempfile.gettempdir())):
        free = shutil.disk_usage(folder).free
        text = f"{human_bytes(free)} free for {name} ({folder})"
        if free < LOW_DISK:
            yield broken("disk", text, "free some, or work elsewhere (TMPDIR for the latter)")
        elif free < MODEST_DISK:
            yield note("disk", text, "enough for small data only")
        else:
            yield ok("disk", text)


def _stores() -> Iterator[Finding]:
    for extra, (module, purpose) in EXTRAS.items():
        if util.find_spec(module) is None:
            yield ok(
                "extras",
                f"{module} is not installed: no {purpose}",
                f"if you need them: pip install 'largek_dask[{extra}]'",
            )
        else:
            yield ok("extras", f"{module} {metadata.version(module)}: {purpose}")
