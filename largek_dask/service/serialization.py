"""Encode messages between a scheduler and its clients as plain values and arrays, never pickles.

Errors are sent as class name and text, and are restored only to exception classes of this package
or of Python.
"""

from __future__ import annotations

import builtins
import contextlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from distributed.protocol import to_serialize

from largek_dask import errors
from largek_dask.driver.events import plain
from largek_dask.driver.provenance import named_arrays
from largek_dask.errors import FailedJobError, ModelFormatError
from largek_dask.model.base import Model, kind_named, restored


def message_of_model(model: Model) -> dict[str, Any]:
    """Convert a model to a message; its arrays are sent in separate frames."""
    notes = {
        "normalize": model.normalize,
        "on_bad_rows": model.on_bad_rows,
        "history": plain(model.history),
        "provenance": plain(model.provenance),
        "feature_names": model.feature_names,
    }
    return {
        "kind": model.kind,
        "arrays": {
            name: to_serialize(np.asarray(array))
            for name, array in named_arrays(model.arrays, model.scaling).items()
        },
        "notes": json.dumps(notes, allow_nan=False),
    }


def model_of(message: Mapping[str, Any]) -> Model:
    sent = "The scheduler's message"
    try:
        kind = kind_named(message["kind"], sent)
        return restored(kind, message["arrays"], json.loads(message["notes"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFormatError(
            f"{sent} is not a model: {error}. Use the same version of largek_dask on both sides."
        ) from error


def error_of(name: str, message: str, traceback: str | None = None) -> Exception:
    """Create the exception with this class name; an unknown name gives a ``FailedJobError``.

    The remote ``traceback`` is added as a note.
    """
    kind = getattr(errors, name, None) or getattr(builtins, name, None)
    found: Exception = FailedJobError(f"{name}: {message}")
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, Warning):
        # Some exception classes require more arguments than a message.
        with contextlib.suppress(TypeError):
            found = kind(message)
    if traceback:
        found.add_note(f"On the scheduler and its workers:\n{traceback}")
    return found
