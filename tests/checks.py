"""What tests in several folders check of a fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from largek_dask.driver import fit as fit_module
from largek_dask.passes.base import BasePasses


@contextmanager
def watched_passes() -> Iterator[list[BasePasses]]:
    """The passes of every fit inside: how many chunks they had, and who computed them."""
    seen: list[BasePasses] = []
    original = fit_module.open_passes

    @contextmanager
    def open_passes(*arguments: Any, **options: Any) -> Iterator[BasePasses]:
        with original(*arguments, **options) as passes:
            seen.append(passes)
            yield passes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_module, "open_passes", open_passes)
        yield seen


def computing_workers(passes: BasePasses) -> int:
    """How many workers have computed chunks."""
    return sum(report.chunks > 0 for report in passes.by_worker.values())
