"""Cache of the packed forms of a set of centres; each is made at most once per process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from numpy.typing import NDArray

Form = TypeVar("Form")


class PackedCache:
    """Packed forms of (k, d) centres, keyed by the function that makes the form."""

    __slots__ = ("_centers", "_forms", "_lock")

    def __init__(self, centers: NDArray[Any]) -> None:
        self._centers = centers
        # A reentrant lock, because one form may be made from another.
        self._lock = threading.RLock()
        self._forms: dict[Callable[..., Any], Any] = {}

    def get(self, make: Callable[..., Form], *more: Any) -> Form:
        """Return ``make(centers, *more)``, called only once; other threads wait for the result."""
        with self._lock:
            if make not in self._forms:
                self._forms[make] = make(self._centers, *more)
            form: Form = self._forms[make]
            return form
