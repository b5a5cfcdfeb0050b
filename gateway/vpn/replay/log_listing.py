"""
Messages of the log as a list for people: a page of those that were asked for, the oldest first or the newest first.

What is held of a message is what the list says of it, however large it was. Pages of the log are read in the
administrators' turns at searches, and a selector is asked on the thread that reads, as a search asks it.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from amqp_ext.message.json_sections import brief, is_erased
from amqp_ext.message.priority import DEFAULT as DEFAULT_PRIORITY
from amqp_ext.message.priority import priority_of
from gateway.core.model import HELD, ID, Row
from gateway.core.replay.search import PageWork, Search
from gateway.vpn.replay.log_search import SearchShared
from gateway.vpn.user_turns import ADMINISTRATION
from store.errors import LogTrimmed, ReadFailed

CHUNK: Final = 256
"""Messages that are read at once, if they are small."""


class Order(enum.StrEnum):
    """Which message a list has first."""

    OLDEST = "oldest"
    NEWEST = "newest"


class LoggedMessage(NamedTuple):
    """What a list says of a message."""

    message_id: int
    time_ms: int
    topic: str
    priority: int
    size_bytes: int
    content_type: str | None
    correlation_id: str | None
    is_erased: bool


class LoggedMessages(NamedTuple):
    """A page of the list."""

    messages: list[LoggedMessage]
    position: int | None
    """Where the next page begins: the next id to be looked at, or the id below which to look; None at the end."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """
    Which messages.

    Attributes:
        patterns: Their topics, for the store to look for.
        matches: Whether a topic is one of them.
        accepts: What else holds for each, by a selector.
    """

    patterns: Sequence[str]
    matches: Callable[[str], bool]
    accepts: Search | None = None


class LogListing:
    """Lists of one Message VPN's log."""

    def __init__(self, shared: SearchShared) -> None:
        self._history = shared.history
        self._reader = shared.reader
        self._turns = shared.turns

    async def one(self, message_id: int) -> Row | None:
        """
        A message of the log, or of its archive; None where neither has it.

        Raises:
            store.errors.ReadFailed: The log cannot be read.
        """
        if message_id < self._history.first_id:
            with suppress(ReadFailed):  # Then it is not known what the archive has.
                await self._history.look()
        if message_id < self._history.first_id:
            return None
        rows = await asyncio.wrap_future(self._history.messages([message_id]))
        if not rows or (rows[0][HELD] is not None and not self._history.is_archived(message_id)):
            return None
        return rows[0]

    async def oldest_first(self, wanted: Wanted, position: int, end: int, count: int) -> LoggedMessages:
        """
        Messages from ``position`` on, below ``end``; at most ``count``.

        Raises:
            store.errors.ReadFailed: The log cannot be read.
        """
        position = max(position, self._history.first_id)
        found: list[LoggedMessage] = []
        while position < end:
            try:
                async with self._turns.turn(ADMINISTRATION):
                    page, _ = await asyncio.wrap_future(
                        self._history.page(position, end, list(wanted.patterns))
                    )
                    taken, stopped = await self._taken(wanted, page.rows)
            except LogTrimmed as trimmed:
                position = trimmed.first_id
                continue
            found += taken
            if len(found) > count:
                return LoggedMessages(found[:count], found[count].message_id)
            position = page.position if stopped is None else stopped
        return LoggedMessages(found, None)

    async def newest_first(self, wanted: Wanted, before: int, first: int, count: int) -> LoggedMessages:
        """
        Messages below ``before``, down to ``first``, their ids falling; at most ``count``.

        Raises:
            store.errors.ReadFailed: The log cannot be read.
        """
        found: list[LoggedMessage] = []
        size = CHUNK
        while before > first:
            try:
                async with self._turns.turn(ADMINISTRATION):
                    page = await self._history.topics_below(before, first, wanted.patterns)
            except LogTrimmed:
                break
            ids = [number for number, topic in page.found if wanted.matches(topic)]
            while ids:
                chunk = ids[:size]
                async with self._turns.turn(ADMINISTRATION):
                    rows = await asyncio.wrap_future(self._history.messages(chunk[::-1]))
                    if len(chunk) > 1 and (not rows or rows[-1][ID] != chunk[0]):
                        # They are too large for one page, or some are gone; the newest of them is wanted first.
                        size = max(len(chunk) // 4, 1)
                        continue
                    # The log, or its archive, has them: that an endpoint holds one, too, is nothing to a list.
                    logged = [_as_logged(row) for row in reversed(rows)]
                    taken, stopped = await self._taken(wanted, logged)
                size = min(size * 2, CHUNK)
                found += taken
                if len(found) > count:
                    return LoggedMessages(found[:count], found[count].message_id + 1)
                passed = chunk[-1] if stopped is None else stopped + 1
                ids = [number for number in ids[: len(chunk)] if number < passed] + ids[len(chunk) :]
                if len(found) == count and ids:
                    return LoggedMessages(found, ids[0] + 1)
            before = page.position
            if len(found) == count:
                # Whether there is one more may take long to see.
                return LoggedMessages(found, before if before > first else None)
        return LoggedMessages(found, None)

    async def _taken(self, wanted: Wanted, rows: Sequence[Row]) -> tuple[list[LoggedMessage], int | None]:
        """Those that are wanted; and the id of the first that was not asked, where a selector had taken its time."""
        selecting = partial(_select, wanted, rows)
        if wanted.accepts is None:
            return selecting()
        return await asyncio.wrap_future(self._reader.submit(selecting))


def _as_logged(row: Row) -> Row:
    message_id, time_ms, topic, bare, route, _held, content = row
    return message_id, time_ms, topic, bare, route, None, content


def _select(wanted: Wanted, rows: Sequence[Row]) -> tuple[list[LoggedMessage], int | None]:
    work, found = PageWork(), list[LoggedMessage]()
    search = wanted.accepts
    for row in rows:
        message_id, _, topic, _, _, held, _ = row
        if held is not None or not wanted.matches(topic):
            continue
        if search is not None:
            if work.is_over:
                return found, message_id
            if not search.takes(row, work):
                continue
        found.append(summary(row))
    return found, None


def summary(row: Row) -> LoggedMessage:
    """What a list says of a message."""
    message_id, time_ms, topic, bare, _route, _held, content = row
    priority = priority_of(content) if bare else DEFAULT_PRIORITY
    content_type, correlation_id = brief(content, bare)
    return LoggedMessage(
        message_id,
        time_ms,
        topic,
        priority,
        len(content),
        content_type,
        correlation_id,
        bool(bare) and is_erased(content, bare),
    )
