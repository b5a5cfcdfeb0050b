"""What Spark's filters let a batch leave unread: bounds on offsets and times, and a set of topics.

Invariant: what is kept is never less than what the filters let through. Every filter also goes back to Spark,
which applies it once more, so a filter that is not understood here costs time and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

MOST_TOPICS = 500  # topics to look for in one statement; with more, Spark's own filter does it
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Bounds that every wanted row fulfils; None where there is none.

    Offsets and times (ms) are both included; a time bound is as wide as its millisecond.
    """

    first: int | None = None
    last: int | None = None
    since: int | None = None
    until: int | None = None
    topics: frozenset[str] | None = None

    def narrowed(self, condition: Filter) -> Wanted:
        """Narrower by one more condition, where it is one of those understood here."""
        column = ".".join(getattr(condition, "attribute", ())).lower()
        value: Any = getattr(condition, "value", None)
        match column:
            case "offset":
                return self._offsets(condition, value)
            case "enqueuedtime":
                return self._times(condition, value)
            case "topic" if isinstance(condition, EqualTo):
                return self._topics([value])
            case "topic" if isinstance(condition, In):
                return self._topics(value)
        return self

    def _offsets(self, condition: Filter, value: Any) -> Wanted:
        values = value if isinstance(condition, In) else [value]
        numbers = [item for item in values if type(item) is int]
        if not numbers:
            return self
        low, high = min(numbers), max(numbers)
        match condition:
            case EqualTo() | In():
                return self._between(low, high)
            case GreaterThan():
                return self._between(low + 1, None)
            case GreaterThanOrEqual():
                return self._between(low, None)
            case LessThan():
                return self._between(None, high - 1)
            case LessThanOrEqual():
                return self._between(None, high)
        return self

    def _between(self, first: int | None, last: int | None) -> Wanted:
        return replace(self, first=_larger(self.first, first), last=_smaller(self.last, last))

    def _times(self, condition: Filter, value: Any) -> Wanted:
        if not isinstance(value, datetime) or value.tzinfo is None:
            return self
        since: int | None = (value - _EPOCH) // _MILLISECOND
        until = since
        match condition:
            case EqualTo():
                pass
            case GreaterThan() | GreaterThanOrEqual():
                until = None
            case LessThan() | LessThanOrEqual():
                since = None
            case _:
                return self
        return replace(self, since=_larger(self.since, since), until=_smaller(self.until, until))

    def _topics(self, values: Iterable[Any]) -> Wanted:
        texts = frozenset(value for value in values if isinstance(value, str))
        topics = texts if self.topics is None else self.topics & texts
        return replace(self, topics=topics) if len(topics) <= MOST_TOPICS else self


def _larger(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else max(one, other)


def _smaller(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)
