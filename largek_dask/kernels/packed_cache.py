"""Cache of packed forms of centres, which are computed at most once per process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from numpy.typing import NDArray

Form = TypeVar("Form")


class PackedCache:
    """Cache of packed forms of (k, d) centres, keyed by the function that packs them."""

    __slots__ = ("_centers", "_forms", "_lock")

    def __init__(self, centers: NDArray[Any]) -> None:
        self._centers = centers
        # The lock is reentrant, because one form may be computed from another form.
        self._lock = threading.RLock()
        self._forms: dict[Callable[..., Any], Any] = {}

    def get(self, make: Callable[..., Form], *more: Any) -> Form:
        """Return ``make(centers, *more)``, which is computed once while other threads wait."""
        with self._lock:
            if make not in self._forms:
                self._forms[make] = make(self._centers, *more)
            form: Form = self._forms[make]
            return form
