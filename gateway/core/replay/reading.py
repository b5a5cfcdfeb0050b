"""
How the replay log is read: the filters, the position and the pace of a reader.

A ``LogCursor`` is the position of a log reader: it reads the log from its own start, in order, and goes on with live
messages. The position is its only state. History comes as pages from the store, then as slices of the message cache.
Both are offered here in id order, without a gap, and each id once; so the reader gets all messages, and each once.
While the reader is behind, the last match is held back until the next match or the end of the log is known, so that
exactly the last message before live is marked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from amqp_ext.codec import CodecError, Symbol
from amqp_ext.filters.filter_set import Filters
from amqp_ext.filters.property_filter import (
    PropertyFilterError,
    compile_application_properties_filter,
    compile_properties_filter,
)
from amqp_ext.message.annotations import REPLAY_NAME, ReplayMark
from amqp_ext.message.sections import MessageView
from amqp_ext.selector.lexer import SelectorError
from amqp_ext.selector.selector import compile_selector, compile_sql_filter
from amqp_ext.topics import TopicFilter, TopicPattern
from gateway.core.errors import refusing
from gateway.core.model import BARE, CONTENT, HELD, HELD_OF, ID, TIME_MS, TOPIC, TOPIC_OF, Row


class _MarkedView(MessageView):
    """A message as the reader of a named replay gets it: with the replay's name in its annotations."""

    def __init__(self, content: bytes, bare: int, replay_name: str) -> None:
        super().__init__(content, bare)
        self._replay_name = replay_name

    @cached_property
    def message_annotations(self) -> dict[Any, Any]:
        return {**super().message_annotations, REPLAY_NAME: self._replay_name}


def compile_filters(
    filters: Filters, too_costly: Callable[[Row], None] | None = None, mark: ReplayMark | None = None
) -> Callable[[Row], bool] | None:
    """
    Compile the filters of a source that test messages; None when every message passes. A message has to pass every
    filter (AMQP 1.0 section 3.5.8). A message whose sections cannot be read passes none.

    Args:
        too_costly: Called once, for the first message whose test would have taken too long: the result of the filters
            is unknown, and the message does not pass.
        mark: The mark that the reader's messages get; None for no mark.

    Raises:
        Refused: INVALID_FIELD, with the place in the selector and the reason.
    """
    tests: list[Callable[[MessageView], bool]] = []
    with refusing(SelectorError, PropertyFilterError, field=Symbol("filter")):
        if filters.selector is not None:
            tests.append(compile_selector(filters.selector))
        if filters.sql is not None:
            tests.append(compile_sql_filter(filters.sql))
        if filters.properties is not None:
            tests.append(compile_properties_filter(filters.properties))
        if filters.application_properties is not None:
            tests.append(compile_application_properties_filter(filters.application_properties))
        if filters.message_filter is not None:
            tests.append(filters.message_filter.compile())
    if not tests:
        return None

    untold = too_costly

    def passes(row: Row) -> bool:
        nonlocal untold
        if mark is None or (mark.below is not None and row[ID] >= mark.below):
            view: Any = MessageView(row[CONTENT], row[BARE])
        else:
            view = _MarkedView(row[CONTENT], row[BARE], mark.name)
        try:
            return all(test(view) for test in tests)
        except CodecError:
            return False
        finally:
            if untold is not None and view.is_exhausted:
                told, untold = untold, None
                told(row)

    return passes


@dataclass(slots=True, eq=False)
class LogCursor:
    """The position of a log reader."""

    position: int
    """The next id to consider."""
    last: int | None
    """The last id that a bounded replay delivers; None for an unbounded one."""
    matches: Callable[[str], bool] | None
    """Whether a topic is subscribed to; None when every topic is."""
    caught_up: bool
    """All messages before live were considered. True from the beginning for a reader that starts live."""
    selects: Callable[[Row], bool] | None = None
    """The reader's selector and filters; None when it has none."""
    held_back: Row | None = None

    @property
    def is_finished(self) -> bool:
        """Whether a bounded replay has considered its last id and holds no message back."""
        return self.last is not None and self.position > self.last and self.held_back is None

    def offer(self, rows: Sequence[Row], position: int, end: int, limit: int) -> tuple[list[Row], bool]:
        """Like ``offer_logged``, for rows that may include messages that the log does not hold."""
        return self.offer_logged(logged(rows), position, end, limit)

    def offer_logged(
        self, rows: list[Row], position: int, end: int, limit: int, topics: Collection[str] | None = None
    ) -> tuple[list[Row], bool]:
        """
        Consider all messages of the log from ``self.position`` to ``position`` (excluded).

        Args:
            rows: These messages, rising, at most ``limit``, including topics that the reader does not subscribe to. The
                caller must not use the list afterwards.
            position: The next id to consider afterwards.
            end: One past the last committed id: live is reached there.
            limit: How many rows may be delivered. One row more is held back: to get it, offer no rows at the same
                position.
            topics: Each of their topics once, if known.

        Returns:
            The rows to deliver now, in order, and whether the last of them is the last before live (or the last of
            a bounded replay).
        """
        self.position = position
        last = self.last
        if last is not None and rows and rows[-1][ID] > last:
            rows = [row for row in rows if row[ID] <= last]
        chosen = self.choose(rows, topics)
        if self.caught_up and last is None:
            return chosen, False
        if self.held_back is not None:
            chosen.insert(0, self.held_back)
            self.held_back = None
        if len(chosen) <= limit and (position >= end or (last is not None and position > last)):
            self.caught_up = True
            return chosen, bool(chosen) and (last is None or position > last)
        if chosen:
            self.held_back = chosen.pop()
        return chosen, False

    def choose(self, rows: list[Row], topics: Collection[str] | None = None) -> list[Row]:
        """The logged messages of these that the reader gets; ``topics`` has each of their topics once, if known."""
        chosen = rows
        if self.matches is not None:
            chosen = of_topics(chosen, self.matches, topics)
        return chosen if self.selects is None else list(filter(self.selects, chosen))


def logged(rows: Sequence[Row]) -> list[Row]:
    """The messages of these that the log holds, in a new list."""
    are_all = list(map(HELD_OF, rows)).count(None) == len(rows)
    return list(rows) if are_all else [row for row in rows if row[HELD] is None]


def of_topics(
    rows: list[Row], matches: Callable[[str], bool], topics: Collection[str] | None = None
) -> list[Row]:
    """
    The messages of these whose topics match. Each topic is tested once, because topics repeat.

    Args:
        topics: Each of their topics once, if known.
    """
    if topics is None:
        topics = set(map(TOPIC_OF, rows))
    wanted = set(filter(matches, topics))
    return rows if len(wanted) == len(topics) else [row for row in rows if row[TOPIC] in wanted]


def topic_matcher(patterns: Sequence[str]) -> Callable[[str], bool] | None:
    """The test of whether a log reader subscribes to a topic; None when it subscribes to all."""
    is_whole = ">" in patterns and not any(pattern.startswith("!") for pattern in patterns)
    return None if is_whole else TopicFilter([TopicPattern.parse(p) for p in patterns]).matches


CATCH_UP_MS: Final = 100
"""How much of a delay by a late timer, a commit or a busy machine is made up for. The rest of a pause is not, so that a
slow consumer gets no burst."""

SHORTEST_WAIT_MS: Final = 5
"""Messages that are due within this time are sent together: a timer and a commit for each message are too slow for a
high rate."""


class Pacer:
    """
    Args:
        speed: Factor of the original pace, which is 1.0; None for no pace.
        rate: The most messages per second; None for no limit.
        catch_up_ms: How much of a delay is made up for, in milliseconds.
    """

    def __init__(self, speed: float | None, rate: float | None, catch_up_ms: float = CATCH_UP_MS) -> None:
        self._speed = speed
        self._interval_ms = None if rate is None else 1_000 / rate
        self._catch_up_ms = catch_up_ms
        self._began: tuple[int, int] | None = None
        self._free_ms = 0.0

    def due(self, rows: Sequence[Row], now_ms: int) -> int:
        """How many of ``rows``, from the first on, may be sent now; they count as sent."""
        self._forget_pause(now_ms)
        for count, row in enumerate(rows):
            if self.due_ms(row, now_ms) > now_ms:
                return count
            if self._interval_ms is not None:
                self._free_ms += self._interval_ms
        return len(rows)

    def wait_s(self, row: Row, now_ms: int) -> float:
        """In how many seconds to ask again, for a message that is not due now."""
        return max(self.due_ms(row, now_ms) - now_ms, SHORTEST_WAIT_MS) / 1_000

    def due_ms(self, row: Row, now_ms: int) -> float:
        """When a message may be sent, in ms since the epoch."""
        due = 0.0
        if self._speed is not None:
            if self._began is None:
                self._began = (row[TIME_MS], now_ms)
            first_ms, started_ms = self._began
            due = started_ms + (row[TIME_MS] - first_ms) / self._speed
        return max(due, self._free_ms)

    def _forget_pause(self, now_ms: int) -> None:
        interval_ms = self._interval_ms
        if interval_ms is None or now_ms - self._free_ms < interval_ms:
            return
        made_up_ms = max(self._catch_up_ms - interval_ms, 0.0) if self._free_ms else 0.0
        self._free_ms = max(self._free_ms, now_ms - made_up_ms)
