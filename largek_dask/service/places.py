"""Where folders are, whatever they are called: two names of one folder are one place.

A place is told by its name alone, and on this machine by its links: what lies behind two mounts, or
two end points of an object store, is not seen here. (There the claims in a job's folder tell, see
``lease.py``.) Where names leave it open whether two places are one, they are taken for one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from fsspec import get_filesystem_class
from fsspec.core import split_protocol

from largek_dask.data.stores import is_local, normalize
from largek_dask.service.spec import JobSpec

__all__ = ["Place", "Places", "place_of"]


@dataclass(frozen=True, slots=True)
class Place:
    """A folder or file of a file system."""

    protocol: str
    """Which file system it is, by a driver's first name for it; nothing for this machine's."""
    parts: tuple[str, ...]

    def is_within(self, other: Place) -> bool:
        """Whether it is the other one, or lies in it."""
        begin = self.parts[: len(other.parts)]
        return self.protocol == other.protocol and begin == other.parts

    def overlaps(self, other: Place) -> bool:
        """Whether one of both lies in the other."""
        return self.is_within(other) or other.is_within(self)


def place_of(url: str, *, links: bool = True) -> Place:
    """The place of an absolute path or URL.

    Parameters
    ----------
    url : str
    links : bool
        Whether links are followed, for which the file system is asked.
    """
    # Of a chain such as simplecache::s3://… the last link says where the files are.
    location = normalize(url.rpartition("::")[2])
    if is_local(location):
        return Place("", _parts((os.path.realpath if links else os.path.normpath)(location)))
    protocol, path = split_protocol(location)
    assert protocol is not None
    try:
        driver = get_filesystem_class(protocol)
    except (ImportError, ValueError):
        # Nothing can be written there from here; its own name has to do.
        return Place(f"{protocol}://", _parts(path))
    known = driver.protocol
    first = known if isinstance(known, str) else known[0]
    # Some drivers have the machine's name in the path, others beside it.
    beside = driver._get_kwargs_from_urls(location)
    machine = ":".join(str(beside[name]) for name in ("host", "port") if beside.get(name))
    return Place(f"{first}://{machine}", _parts(str(driver._strip_protocol(location))))


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in path.split("/") if part not in ("", "."))


@dataclass(frozen=True, slots=True)
class Places:
    """Where a job reads and writes."""

    url: str
    """The output, as its user calls it."""
    output: Place
    data: tuple[Place, ...]

    @classmethod
    def of(cls, spec: JobSpec, *, links: bool = True) -> Places:
        """The places of a job, as its file systems name them at the moment.

        Without ``links`` by their names alone: no file system is asked, which may hang.
        """
        urls = (spec.data, spec.sample_weight)
        data = tuple(place_of(url, links=links) for url in urls if url is not None)
        return cls(spec.output, place_of(spec.output, links=links), data)
