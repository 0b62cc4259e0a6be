"""Follow a fit through the events in its folder, without a scheduler."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any

from largek_dask import config
from largek_dask.data.storage_errors import unanswered
from largek_dask.driver.checkpoint import description_in
from largek_dask.driver.event_log import Tail
from largek_dask.driver.events import Event
from largek_dask.driver.job_view import JobView
from largek_dask.driver.storage import Folder
from largek_dask.errors import DataError, LargekError
from largek_dask.retry import retry

__all__ = ["FitFolder", "follow"]

logger = logging.getLogger(__name__)

LOCAL_SECONDS, REMOTE_SECONDS = 1.0, 5.0
"""Pause between two reads of a local folder, and of a remote one."""


class FitFolder:
    """A fit or a job, as described by the events in its folder; ``view`` has its state."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        name = folder.url.rpartition("/")[2]
        self._about = {"id": name, "title": name, "output": folder.url}
        self.view = JobView(self._about)
        self._tail = Tail(folder)
        self._is_described = False

    @property
    def has_ended(self) -> bool:
        """Return whether its last event is that of an end; it may still be resumed."""
        return self.view.has_ended

    def update(self) -> list[Event]:
        """Return the events added since the last call; raise DataError if the folder has none."""
        try:
            events: list[Event] = list(self._tail.new())
        except FileNotFoundError as error:
            raise DataError(f"{error} Give the folder of a fit or a job.") from error
        self.view.update_all(events)
        if events and not self._is_described:
            self._describe()
        return events

    def _describe(self) -> None:
        """Read the description of the fit, if there is one; the events do without it."""
        with contextlib.suppress(LargekError, OSError):
            about = description_in(self.folder)
            if about is None:
                return
            self._is_described = True
            job = _mapping(about.get("job"))
            self.view.set_status(
                {
                    **self._about,
                    "data": _mapping(about.get("data")).get("location") or "rows in memory",
                    "algorithm": _mapping(job.get("algorithm")).get("name"),
                    "n_clusters": job.get("n_clusters"),
                    **({"mixture": job["mixture"]} if job.get("mixture") else {}),
                }
            )


def follow(fit: FitFolder) -> Iterator[Event | None]:
    """Yield events as they are added, and None after each read, until the fit has ended.

    Storage that is away is waited for, for ``stores.patience-seconds``; a warning is logged.

    Raises
    ------
    DataError
        The folder holds no events.
    OSError
        They cannot be read, at the first read or for longer than that.
    """
    pause = LOCAL_SECONDS if fit.folder.is_local else REMOTE_SECONDS
    seconds = float(config.get("stores.patience-seconds"))

    def report(error: Exception, left: float) -> None:
        url = fit.folder.url
        logger.warning("%s cannot be read: %s. Waiting for it, at most %.0f s", url, error, left)

    yield from fit.update()
    while not fit.has_ended:
        time.sleep(pause)
        yield from retry(
            fit.update,
            lambda error: seconds if unanswered(error) else None,
            pause=pause,
            from_first_error=True,
            report=report,
        )
        yield None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
