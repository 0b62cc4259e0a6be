"""Find the table files that match a path, pattern, folder or list of paths."""

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
"""Suffixes of text files. In folders, text files are only read if their suffix is in ``CSV``."""
PARQUET = (".parquet", ".pq")
ARROW = (".arrow", ".feather")
VECS = {".fvecs": "<f4", ".bvecs": "u1", ".ivecs": "<i4"}
BIN = {".fbin": "<f4", ".u8bin": "u1", ".i8bin": "i1"}
"""Dtypes of the matrix formats of the big-ann benchmarks, by suffix."""
MAPPED = (".npy", *VECS, *BIN)
IN_PLACE = (*PARQUET, *ARROW, *MAPPED)
HDF5 = (".h5", ".hdf5", ".h5ad", ".he5", ".nc", ".nc4")
ONE_FILE = (*TEXT, *HDF5, *SVMLIGHT)
"""Suffixes of files that must be converted by ``ingest``."""
FORMATS = (TEXT, PARQUET, ARROW, MAPPED)
"""Groups of suffixes. Files can only be read together if their suffixes are in the same group."""
ZARR_FILES = ("zarr.json", ".zarray", ".zgroup")
CONVERSIONS = {
    ".npz": "numpy.save('x.npy', numpy.load({0!r})['NAME'])",
    ".mat": "numpy.save('x.npy', scipy.io.loadmat({0!r})['NAME'])",
    ".pt": "numpy.save('x.npy', torch.load({0!r}).float().numpy())",
    ".safetensors": "numpy.save('x.npy', safetensors.torch.load_file({0!r})['NAME'].float())",
    ".jsonl": "pandas.read_json({0!r}, lines=True).to_parquet('x.parquet')",
    ".avro": "polars.read_avro({0!r}).write_parquet('x.parquet')",
    ".orc": "pandas.read_orc({0!r}).to_parquet('x.parquet')",
    ".lance": "largek_dask.ingest(lance.dataset({0!r}).scanner().to_reader(), 'x.zarr')",
}
"""Python code that converts an unsupported format, by suffix."""
WILD = "*?["
TEXTS = ".csv .tsv .txt .dat .data .tab, also packed as .gz .bz2 .xz .zst .zip"


@dataclass(frozen=True, slots=True)
class TableFiles:
    """One or several files with the same columns that form a table."""

    where: str
    location: str | None
    """URL of the file, folder or pattern; None for a list of files."""
    urls: tuple[str, ...]
    ends: tuple[str, ...]


def check_readable(url: str) -> None:
    """Raise DataError if a local file or a Lance folder has an unsupported format."""
    suffix = os.path.splitext(url)[1].lower()
    if not (is_local(url) and (os.path.isfile(url) or suffix == ".lance")):
        return
    if suffix in CONVERSIONS:
        raise DataError(
            f"{url} has the format {suffix}, which is not supported. Convert it, e.g. with "
            f"{CONVERSIONS[suffix].format(url)}"
        )
    problem = f"{url} is a file, but a Zarr store is a folder: give the folder's address."
    if url.lower().endswith(".zip"):
        raise DataError(
            f"{problem} To open a store in a zip archive, pass zip://::{url}, or unpack the "
            "archive."
        )
    raise DataError(
        f"{problem} Supported suffixes of files are {' '.join(IN_PLACE)} and, with "
        f"largek ingest, {TEXTS}; {' '.join(HDF5)}; {' '.join(SVMLIGHT)}. Rename or convert the "
        "file."
    )


def is_paths(source: Any) -> bool:
    return (
        isinstance(source, (list, tuple))
        and bool(source)
        and all(isinstance(path, (str, os.PathLike)) for path in source)
    )


def find_table_files(
    source: Any, storage_options: Mapping[str, Any] | None = None
) -> TableFiles | None:
    """Return the table files of a path, pattern, folder or list; None for other sources.

    Folders are searched recursively, and files are sorted by path unless they are given as a list.
    Names that start with a dot or an underscore are skipped. In folders, files that are not tables
    are also skipped. Raises DataError if no file matches a pattern, or if formats differ.
    """
    if is_paths(source):
        urls = [normalize(path) for path in source]
        return _of_one_format("the list of files", None, urls)
    if not isinstance(source, (str, os.PathLike)):
        return None
    url = normalize(source)
    if split_protocol(url)[0] in ("http", "https"):
        return _single(url)  # Files on HTTP servers cannot be listed.
    if any(sign in url for sign in WILD) and not (is_local(url) and os.path.exists(url)):
        fs, path = filesystem(url, storage_options)
        names = [name for name in sorted(fs.glob(path)) if not _is_hidden(name.split("/")[-1:])]
        found = [str(fs.unstrip_protocol(name)) for name in names]
        if not found:
            raise DataError(f"no file matches {url}; use a pattern such as folder/*.parquet.")
        return _of_one_format(url, url, [normalize(name) for name in found])
    return _in_folder(url, storage_options) or _single(url)


def _single(url: str) -> TableFiles | None:
    return _of_one_format(url, url, [url]) if url.lower().endswith(IN_PLACE) else None


def _in_folder(url: str, storage_options: Mapping[str, Any] | None) -> TableFiles | None:
    if url.lower().endswith((".zarr", *MAPPED, *CONVERSIONS)):
        return None
    if not os.path.isdir(url) if is_local(url) else url.lower().endswith(ONE_FILE):
        return None
    fs, path = filesystem(url, storage_options)
    try:
        if not is_local(url) and fs.isfile(path):
            return None
        if any(fs.exists(f"{path}/{name}") for name in ZARR_FILES):
            return None
        names = sorted(fs.find(path))
    except (OSError, NotImplementedError, ValueError):
        # Opening the source as a store reports this error.
        return None
    inside = [(name, name.removeprefix(path).strip("/").split("/")) for name in names]
    kept = [
        normalize(str(fs.unstrip_protocol(name)))
        for name, parts in inside
        if not _is_hidden(parts) and name.lower().endswith((*CSV, *IN_PLACE))
    ]
    return _of_one_format(url, url, kept) if kept else None


def _is_hidden(parts: Sequence[str]) -> bool:
    """Return True for hidden files, Spark's marker files and Hugging Face's cache files."""
    cached = parts[-1].startswith("cache-") and parts[-1].endswith(".arrow")
    return cached or any(part.startswith((".", "_")) for part in parts)


def _of_one_format(where: str, location: str | None, urls: Sequence[str]) -> TableFiles:
    found: dict[tuple[str, ...], str] = {}
    for url in urls:
        ends = next((ends for ends in FORMATS if url.lower().endswith(ends)), None)
        if ends is None:
            raise DataError(
                f"{where}: {url} does not have the suffix of a table. "
                f"Supported suffixes are {TEXTS}; {' '.join(IN_PLACE)}."
            )
        found.setdefault(ends, url)
    if len(found) > 1:
        raise DataError(
            f"{where} contains files of several formats ({', '.join(found.values())}); select one "
            "format with a pattern such as folder/*.parquet."
        )
    return TableFiles(where, location, tuple(urls), next(iter(found)))
