"""A fit of this process as a card in a notebook, as long as it runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from largek_dask.driver.events import Event, plain
from largek_dask.driver.fit import FitResult
from largek_dask.driver.job_view import JobView
from largek_dask.model.base import Model
from largek_dask.observe.cards import EVERY_SECONDS, Card, card

__all__ = ["FitCard"]


class FitCard:
    """A sink of events that shows a fit as a card, the same as that of a job.

    Used as a context, so that the card says how the fit has ended, whatever it was.

    Parameters
    ----------
    about : mapping
        What is known before it begins, by the names of :meth:`Job.status`: ``title``, ``data``,
        ``algorithm``, ``n_clusters``, ``max_iter``, and ``mixture`` where one is asked for.
    """

    def __init__(self, about: Mapping[str, Any]) -> None:
        self._about = about
        self._view = JobView({**about, "state": "running"})
        self._card = Card(card(self._view))
        self._shown_at = time.monotonic()

    def __call__(self, event: Event) -> None:
        """Take an event in, and show it if it is time to."""
        self._view.update(event)
        if time.monotonic() - self._shown_at >= EVERY_SECONDS:
            self._show()

    def end(self, result: FitResult, model: Model) -> None:
        """Show what the fit has come to."""
        self._close(
            "finished",
            {
                "stop_reason": result.stop_reason,
                "n_iter": result.n_iter,
                "seconds": result.seconds,
                **result.objective.describe(value=result.value),
                "figures": model.fit_figures(),
                "digest": model.digest(),
            },
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            self._close("failed", {"error": type(error).__name__, "message": str(error)})
        elif error is not None:
            self._close("cancelled", {})

    def _close(self, state: str, result: Mapping[str, Any]) -> None:
        self._view.set_status({**self._about, "state": state, "result": plain(result)})
        self._show()

    def _show(self) -> None:
        self._card.show(card(self._view))
        self._shown_at = time.monotonic()
