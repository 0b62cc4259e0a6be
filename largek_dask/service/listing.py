"""List jobs: filtered on the scheduler, one short row for each."""

from __future__ import annotations

import contextlib
import heapq
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from fnmatch import translate
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from largek_dask.driver.stopping import ENDS, parse_duration
from largek_dask.errors import ParameterError
from largek_dask.service.job_state import STATES, JobState

__all__ = ["Query", "listing", "moment_of"]

DATE = re.compile(r"\d{4}-\d\d-\d\d")

Text = Annotated[str, Field(min_length=1, max_length=200)]


class Query(BaseModel):
    """Filters of a listing; None: no filter."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    state: Annotated[list[Text], Field(max_length=20)] | None = None
    """Any of these states."""
    owner: Text | None = None
    name: Text | None = None
    """A pattern such as ``"night*"``; case-sensitive."""
    since: float | None = None
    """Submitted at or after this time, in seconds since 1970."""
    ended_before: float | None = None
    """Ended at or before this time, in seconds since 1970."""
    limit: Annotated[int, Field(ge=1)] | None = 100
    """Maximum number of jobs, the newest ones."""

    @classmethod
    def of(cls, asked: Mapping[str, Any]) -> Query:
        """The query in a client's message.

        Raises
        ------
        ParameterError
            A filter is unknown or not valid.
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
    """A job as it is at one moment; those whose records cannot be read count as the newest."""

    created: float
    id: str
    state: str
    job: JobState | None


def moment_of(value: object, name: str, now: float | None = None) -> float:
    """Seconds since 1970 of a date, or of a time before now.

    Parameters
    ----------
    value : datetime or str
        ``"2026-11-25"``, ``"2026-11-25T08:30"`` (UTC unless it says otherwise), or how long ago,
        such as ``"90m"`` or ``"30d"``.
    name : str
        Name of the parameter, for the error.
    now : float, optional
        Seconds since 1970.

    Raises
    ------
    ParameterError
        It is neither, or in the future.
    """
    now = time.time() if now is None else now
    found = value
    if isinstance(value, str) and DATE.match(value.strip()):
        try:
            found = datetime.fromisoformat(value.strip())
        except ValueError:
            found = None
    moment = None
    if isinstance(found, datetime):
        moment = (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    elif isinstance(found, str):
        with contextlib.suppress(ParameterError):
            moment = now - parse_duration(found, name)
    if moment is None or moment > now:
        raise ParameterError(
            f"{name} must be a date in the past such as '2026-11-25' or '2026-11-25T08:30', or how "
            f"long ago, such as '12h' or '30d', got {value!r}."
        )
    return moment


def listing(
    jobs: Iterable[JobState], unreadable: Mapping[str, str], query: Query
) -> dict[str, Any]:
    """Rows of the jobs that a query selects.

    Parameters
    ----------
    jobs : iterable of JobState
    unreadable : mapping
        Ids of jobs whose records cannot be read.
    query : Query

    Returns
    -------
    dict
        ``jobs`` (rows, the oldest first), ``counts`` (number of jobs by state, regardless of the
        filter by state), ``total`` (number of jobs selected, beyond the limit too).
    """
    found = _found(jobs, unreadable, query)
    counts = Counter(listed.state for listed in found)
    if query.state is not None:
        wanted = frozenset(query.state)
        found = [listed for listed in found if listed.state in wanted]
    limit = len(found) if query.limit is None else query.limit
    newest = heapq.nlargest(limit, found, key=lambda listed: (listed.created, listed.id))
    return {
        "jobs": [_row(listed) for listed in reversed(newest)],
        "counts": {state: counts[state] for state in STATES if counts[state]},
        "total": len(found),
    }


def _found(jobs: Iterable[JobState], unreadable: Mapping[str, str], query: Query) -> list[_Listed]:
    """Jobs of all states that pass the other filters."""
    named = None if query.name is None else re.compile(translate(query.name)).match
    since = -math.inf if query.since is None else query.since
    found = []
    for job in jobs:
        record, state = job.record, job.state
        if (
            since <= record.created
            and query.owner in (None, record.owner)
            and (named is None or named(record.spec.name or ""))
            and (query.ended_before is None or (state in ENDS and job.ended <= query.ended_before))
        ):
            found.append(_Listed(record.created, record.id, state, job))
    filters = (query.owner, query.name, query.since, query.ended_before)
    if all(wanted is None for wanted in filters):
        found += [_Listed(math.inf, name, "unreadable", None) for name in unreadable]
    return found


def _row(listed: _Listed) -> dict[str, Any]:
    if listed.job is None:
        return {"id": listed.id, "name": None, "state": listed.state}
    record = listed.job.record
    spec = record.spec
    return {
        "id": record.id,
        "name": spec.name,
        "state": listed.state,
        "reason": listed.job.reason,
        "owner": record.owner,
        "created": _written(record.created),
        "ended": _written(listed.job.ended) if listed.state in ENDS else None,
        "algorithm": spec.algorithm.name,
        "n_clusters": spec.n_clusters,
        "output": spec.output,
    }


def _written(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
