"""Cached properties that can be dropped and computed again."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

__all__ = ["Derives"]


class Derives:
    """Base of classes whose cached properties depend on their fields alone.

    Pickles leave these out, and :meth:`forget` drops them; access computes them again.
    """

    _derived: ClassVar[frozenset[str]] = frozenset()
    """Names of the cached properties."""

    def __init_subclass__(cls) -> None:
        own = {name for name, value in vars(cls).items() if isinstance(value, cached_property)}
        cls._derived = cls._derived | own

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self._derived}

    @property
    def is_derived(self) -> bool:
        """True if a cached property is present."""
        return not self._derived.isdisjoint(self.__dict__)

    def forget(self) -> None:
        """Drop cached properties."""
        for name in self._derived:
            self.__dict__.pop(name, None)
