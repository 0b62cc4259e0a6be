"""Find the files that a path, a pattern, a folder or a list of paths stands for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsspec.core import split_protocol

from largek_dask.data.stores import filesystem, is_local, normalize
from largek_dask.data.svmlight import SVMLIGHT
from largek_dask.errors import DataError

PACKED = ("", ".gz", ".bz2", ".xz", ".zst", ".zip")
CSV = tuple(end + packed for end in (".csv", ".tsv", ".txt") for packed in PACKED)
TEXT = (*CSV, *(end + packed for end in (".dat", ".data", ".tab") for packed in PACKED))
"""Ends of names of texts: those of ``CSV`` are looked for in folders."""
PARQUET = (".parquet", ".pq")
HDF5 = (".h5", ".hdf5", ".h5ad", ".he5", ".nc", ".nc4")
ONE_FILE = (*TEXT, *PARQUET, *HDF5, *SVMLIGHT)
"""Ends of names of files that are read as a stream."""
ZARR_FILES = ("zarr.json", ".zarray", ".zgroup")
OTHERS = (".zarr", ".npy", ".npz")
WILD = "*?["
TEXTS = ".csv .tsv .txt .dat .data .tab, also packed as .gz .bz2 .xz .zst .zip"


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Several files of the same columns."""

    where: str
    location: str | None
    """The folder that they are in, if that is what was asked for."""
    urls: tuple[str, ...]
    ends: tuple[str, ...]


def check_readable(url: str) -> None:
    """Raise DataError for a local file of an unknown kind."""
    if not (is_local(url) and os.path.isfile(url)):
        return
    told = f"{url} is a file, but a Zarr store is a folder: give the folder's address."
    if url.lower().endswith(".zip"):
        raise DataError(f"{told} A store in an archive is opened as zip://::{url}; else unpack it.")
    raise DataError(
        f"{told} Files are read by their names: .npy; with largek ingest also {TEXTS}; "
        f"{' '.join(PARQUET)}; {' '.join(HDF5)}; {' '.join(SVMLIGHT)}. Rename or convert it."
    )


def is_paths(source: Any) -> bool:
    """Return whether something is a list of paths."""
    return (
        isinstance(source, (list, tuple))
        and bool(source)
        and all(isinstance(path, (str, os.PathLike)) for path in source)
    )


def find_table_files(
    source: Any, storage_options: Mapping[str, Any] | None = None
) -> TableFiles | None:
    """Return the files of a list of paths, a pattern or a folder; None for anything else.

    Files of a pattern or a folder (with its subfolders) are in the order of their paths, those of
    a list in its order. Of the former, names that begin with a dot or an underscore are skipped,
    and in a folder those that are not CSV or Parquet. Raises DataError if there are none, or both.
    """
    if is_paths(source):
        urls = [normalize(path) for path in source]
        return _of_one_format("the list of files", None, urls)
    if not isinstance(source, (str, os.PathLike)):
        return None
    url = normalize(source)
    if split_protocol(url)[0] in ("http", "https"):
        return None  # it can list nothing
    if any(sign in url for sign in WILD) and not (is_local(url) and os.path.exists(url)):
        fs, path = filesystem(url, storage_options)
        names = [name for name in sorted(fs.glob(path)) if not _is_hidden(name.split("/")[-1:])]
        found = [str(fs.unstrip_protocol(name)) for name in names]
        if not found:
            raise DataError(f"no file matches {url}; give a pattern such as folder/*.parquet.")
        return _of_one_format(url, None, [normalize(name) for name in found])
    return _in_folder(url, storage_options)


def _in_folder(url: str, storage_options: Mapping[str, Any] | None) -> TableFiles | None:
    if url.lower().endswith(OTHERS) or (is_local(url) and not os.path.isdir(url)):
        return None
    if not is_local(url) and url.lower().endswith((*TEXT, *HDF5, *SVMLIGHT)):
        return None
    fs, path = filesystem(url, storage_options)
    try:
        if not is_local(url) and fs.isfile(path):
            return None
        if any(fs.exists(f"{path}/{name}") for name in ZARR_FILES):
            return None
        names = sorted(fs.find(path))
    except (OSError, NotImplementedError, ValueError):
        # Whoever opens it as a store says what is wrong.
        return None
    inside = [(name, name.removeprefix(path).strip("/").split("/")) for name in names]
    kept = [
        normalize(str(fs.unstrip_protocol(name)))
        for name, parts in inside
        if not _is_hidden(parts) and name.lower().endswith((*CSV, *PARQUET))
    ]
    return _of_one_format(url, url, kept) if kept else None


def _is_hidden(parts: Sequence[str]) -> bool:
    """Return whether names are of files that Spark and others keep beside data."""
    return any(part.startswith((".", "_")) for part in parts)


def _of_one_format(where: str, location: str | None, urls: Sequence[str]) -> TableFiles:
    for url in urls:
        if not url.lower().endswith((*TEXT, *PARQUET)):
            raise DataError(
                f"{where}: {url} is no CSV or Parquet file by its name ({TEXTS}; "
                f"{', '.join(PARQUET)}); several files are read of these only."
            )
    parquet = [url for url in urls if url.lower().endswith(PARQUET)]
    if parquet and len(parquet) < len(urls):
        other = next(url for url in urls if url not in parquet)
        raise DataError(
            f"{where} holds CSV as well as Parquet files ({other}, {parquet[0]}): name those of "
            "one format, e.g. by a pattern such as folder/*.parquet."
        )
    return TableFiles(where, location, tuple(urls), PARQUET if parquet else TEXT)
