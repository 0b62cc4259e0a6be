"""Which jobs are listed: filtered, ordered and cut on the scheduler, so that answers stay short."""

from __future__ import annotations

import base64
import heapq
import json
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from fnmatch import translate
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from largek_dask.driver.stopping import parse_duration
from largek_dask.errors import ParameterError
from largek_dask.service.known import STATES, KnownJob

__all__ = ["Order", "Query", "listing", "moment_of"]

Order = Literal["created", "newest", "oldest", "name"]
MOST_LISTED = 1_000
"""Most rows of one answer."""
MOST_OF = {"name": 56, "owner": 28, "output": 72}
"""Bytes of JSON that texts of a row may take: 100 rows are to be less than 40 kB."""
LETTER = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u....|\\.|.")
"""What stands for one letter in the JSON of a text."""
DATE = re.compile(r"\d{4}-\d\d-\d\d")

Text = Annotated[str, Field(min_length=1, max_length=200)]


class Query(BaseModel):
    """What is asked of a listing; None: whatever it is."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    state: Annotated[list[Text], Field(max_length=20)] | None = None
    """States, any of which a job has."""
    owner: Text | None = None
    name: Text | None = None
    """A pattern such as ``"night*"``; upper and lower case differ."""
    algorithm: Text | None = None
    since: float | None = None
    """Seconds since 1970, at which a job was submitted or later."""
    until: float | None = None
    """Seconds since 1970, before which it was."""
    order: Order = "created"
    limit: Annotated[int, Field(ge=1, le=MOST_LISTED)] = 100
    after: Annotated[str, Field(max_length=4_000)] | None = None
    """Where the page before has ended, as its answer says."""

    @classmethod
    def of(cls, asked: Mapping[str, Any]) -> Query:
        """The question in a client's message.

        Raises
        ------
        ParameterError
            It is none.
        """
        try:
            query = cls.model_validate(dict(asked))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = first["loc"][0] if first["loc"] else "the question"
            raise ParameterError(
                f"{where} of a listing of jobs: {first['msg']}; give it as jobs() says."
            ) from None
        for state in query.state or ():
            if state not in STATES:
                raise ParameterError(
                    f"state of a listing must be of {', '.join(STATES)}, got {state[:80]!r}."
                )
        return query


class _Listed(NamedTuple):
    """A job as it is at one moment; those whose records cannot be read come as the newest."""

    created: float
    id: str
    name: str
    state: str
    job: KnownJob | None


def moment_of(value: object, name: str, now: float | None = None) -> float:
    """Seconds since 1970 of a date, or of a time before now.

    Parameters
    ----------
    value : datetime or str
        ``"2026-11-25"``, ``"2026-11-25T08:30"`` (UTC unless it says otherwise), or how long ago,
        such as ``"90m"`` or ``"30d"``.
    name : str
        What it is, for the error.
    now : float, optional
        Seconds since 1970.

    Raises
    ------
    ParameterError
        It is neither.
    """
    found = value
    if isinstance(value, str) and DATE.match(value.strip()):
        try:
            found = datetime.fromisoformat(value.strip())
        except ValueError:
            found = None
    if isinstance(found, datetime):
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    if isinstance(found, str):
        try:
            return (time.time() if now is None else now) - parse_duration(found, name)
        except ParameterError:
            pass
    raise ParameterError(
        f"{name} must be a date such as '2026-11-25' or '2026-11-25T08:30', or how long ago, such "
        f"as '12h' or '30d', got {value!r}."
    )


def listing(
    jobs: Iterable[KnownJob], unreadable: Mapping[str, str], query: Query
) -> dict[str, Any]:
    """The rows of a page, and what there is beside it.

    Parameters
    ----------
    jobs : iterable of KnownJob
    unreadable : mapping
        Ids of jobs whose records cannot be read.
    query : Query

    Returns
    -------
    dict
        ``jobs`` (rows), ``counts`` (how many there are by state, whichever states are asked for),
        ``total`` (how many are asked for), ``after`` (where to go on; None at the end).
    """
    found = _found(jobs, unreadable, query)
    counts = Counter(listed.state for listed in found)
    if query.state is not None:
        wanted = frozenset(query.state)
        found = [listed for listed in found if listed.state in wanted]
    total = len(found)
    page, after = _page(found, query)
    return {
        "jobs": [_row(listed) for listed in page],
        "counts": {state: counts[state] for state in STATES if counts[state]},
        "total": total,
        "after": after,
    }


def _found(jobs: Iterable[KnownJob], unreadable: Mapping[str, str], query: Query) -> list[_Listed]:
    """Jobs of all states that are asked for."""
    named = None if query.name is None else re.compile(translate(query.name)).match
    since = -math.inf if query.since is None else query.since
    until = math.inf if query.until is None else query.until
    found = []
    for job in jobs:
        record = job.record
        spec = record.spec
        if (
            since <= record.created < until
            and query.owner in (None, record.owner)
            and query.algorithm in (None, spec.algorithm.name)
            and (named is None or named(spec.name or ""))
        ):
            found.append(_Listed(record.created, record.id, spec.name or "", job.state, job))
    unknown = (query.owner, query.name, query.algorithm, query.since, query.until)
    if unknown == (None,) * len(unknown):
        found += [_Listed(math.inf, name, "", "unreadable", None) for name in unreadable]
    return found


def _page(found: list[_Listed], query: Query) -> tuple[list[_Listed], str | None]:
    """The rows after the page before, and where to go on after these."""
    by_name, backwards = query.order == "name", query.order in ("created", "newest")

    def key(listed: _Listed) -> tuple[Any, ...]:
        told = (listed.created, listed.id)
        return (listed.name, *told) if by_name else told

    if query.after is not None:
        last = _key_in(query.after, query.order)
        found = [item for item in found if (key(item) < last if backwards else key(item) > last)]
    take = heapq.nlargest if backwards else heapq.nsmallest
    page = take(query.limit, found, key=key)
    after = _cursor(query.order, key(page[-1])) if len(page) < len(found) else None
    return page[::-1] if query.order == "created" else page, after


def _cursor(order: str, key: tuple[Any, ...]) -> str:
    return base64.urlsafe_b64encode(json.dumps([order, *key]).encode()).decode()


def _key_in(cursor: str, order: str) -> tuple[Any, ...]:
    """The key of the last row of the page before.

    Raises
    ------
    ParameterError
        It is no cursor, or that of another order.
    """
    try:
        of, *key = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        kinds = (str, float, str) if order == "name" else (float, str)
        if of == order and len(key) == len(kinds) and all(map(isinstance, key, kinds)):
            return tuple(key)
    except (ValueError, TypeError):
        pass
    raise ParameterError(
        f"after={cursor[:80]!r} is no end of a page of this order ({order}): give the after of the "
        "page before, and ask for the same order."
    )


def _row(listed: _Listed) -> dict[str, Any]:
    if listed.job is None:
        return {"id": listed.id, "name": None, "state": listed.state}
    record = listed.job.record
    spec = record.spec
    return {
        "id": record.id,
        "name": None if spec.name is None else _cut(spec.name, MOST_OF["name"]),
        "state": listed.state,
        "reason": listed.job.reason,
        "owner": _cut(record.owner, MOST_OF["owner"]),
        "created": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="seconds"),
        "algorithm": spec.algorithm.name,
        "n_clusters": spec.n_clusters,
        "output": _cut(spec.output, MOST_OF["output"], is_end=True),
    }


def _cut(text: str, most: int, is_end: bool = False) -> str:
    """The begin, or the end, of a text that takes more than so many bytes as JSON."""
    written = json.dumps(text)[1:-1]
    if len(written) <= most:
        return text
    letters = LETTER.findall(written)
    kept, room = [], most - len(json.dumps("…")[1:-1])
    for letter in reversed(letters) if is_end else letters:
        if (room := room - len(letter)) < 0:
            break
        kept.append(letter)
    told = json.loads(f'"{"".join(reversed(kept) if is_end else kept)}"')
    return f"…{told}" if is_end else f"{told}…"
