"""What a notice is: that something has come of a job, for a target of the scheduler's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["MOST_BYTES", "MOST_TEXT", "Kind", "Notice", "body_of", "shortened"]

Kind = Literal["finished", "failed", "waiting", "stalled", "taken-over"]
"""What notices are sent of."""
MOST_BYTES = 4_096
"""Most bytes of the JSON that is sent."""
MOST_TEXT = 600
"""Most letters of its text."""
MOST_ANSWER = 200
"""Letters that are kept of what a target answers."""


class Notice(BaseModel):
    """A notice of a job for one target, in the job's record until the job is gone on with."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    id: Annotated[str, Field(min_length=1, max_length=200)]
    """The same at every try, and for every target."""
    kind: Kind
    target: Annotated[str, Field(min_length=1, max_length=200)]
    run: Annotated[int, Field(ge=1)]
    at: Annotated[float, Field(ge=0)]
    """When that was, in seconds since 1970."""
    text: Annotated[str, Field(max_length=MOST_TEXT)]
    tries: Annotated[int, Field(ge=0)] = 0
    state: Literal["pending", "sent", "given up"] = "pending"
    answer: Annotated[str, Field(max_length=MOST_ANSWER)] | None = None
    """What came of the last try."""


def shortened(text: str, most: int) -> str:
    """At most so many letters of a text; "…" stands for what is left out."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def body_of(document: Mapping[str, Any]) -> bytes:
    """A document as it is sent, whatever length its texts have: the longest are cut, by "…"."""
    left = dict(document)
    while len(body := json.dumps(left, allow_nan=False).encode()) > MOST_BYTES:
        texts = [name for name, value in left.items() if isinstance(value, str)]
        longest = max(texts, key=lambda name: len(json.dumps(left[name])))
        text = left[longest].removesuffix("…")
        left[longest] = f"{text[: 3 * len(text) // 4]}…"
    return body
