"""What is made of an object's fields when it is asked for, and can be made again."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar

__all__ = ["Derives"]


class Derives:
    """Base of classes whose cached properties hang on their fields alone.

    These do not travel with the object, and it can let go of them: whoever asks makes them again.
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
        """Whether anything is here that can be made again."""
        return not self._derived.isdisjoint(self.__dict__)

    def forget(self) -> None:
        """Let go of what can be made again."""
        for name in self._derived:
            self.__dict__.pop(name, None)
