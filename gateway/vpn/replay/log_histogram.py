"""
When the messages of the log came: how many ids lie between evenly spaced times, for a picture of it.

Nothing is counted, and no index is needed: times never fall along ids, so where a time lies is a binary search, and
what came between two times has the ids between their places. Ids that the log does not have (a rule of retention took
them out, an endpoint alone holds them, a commit failed) are counted like others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from gateway.core.log import History
from gateway.vpn.replay.log_search import SearchShared
from gateway.vpn.user_turns import ADMINISTRATION
from store.errors import ReadFailed


class Moment(NamedTuple):
    """A message of the log, and when it arrived, ms since the epoch."""

    message_id: int
    time_ms: int


class Bucket(NamedTuple):
    """What arrived from a time (ms since the epoch) on, until that of the next bucket."""

    time_ms: int
    first_id: int
    """No message of it has a lower id."""
    ids: int
    """How many may be of it: one for each message, and those that the log does not have."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """
    Attributes:
        until_ms: The end of the last bucket, ms since the epoch; itself not in it.
        oldest: Of the log itself, with ``newest``; None where it is empty.
        archived: The oldest that the archive alone has; None where there is none.
    """

    buckets: Sequence[Bucket]
    until_ms: int
    oldest: Moment | None
    newest: Moment | None
    archived: Moment | None

    @property
    def from_ms(self) -> int:
        """Where the first bucket begins."""
        return self.buckets[0].time_ms

    @property
    def first_id(self) -> int:
        """No message of it has a lower id."""
        return self.buckets[0].first_id

    @property
    def last_id(self) -> int:
        """Nor a higher one; one less than ``first_id`` where nothing came."""
        return self.buckets[-1].first_id + self.buckets[-1].ids - 1


class LogHistogram:
    """Of one Message VPN's log, with its archive."""

    def __init__(self, shared: SearchShared, history: History) -> None:
        self._log_history = shared.history
        self._reader = shared.reader
        self._turns = shared.turns
        self._history = history
        self._now_ms = shared.runtime.clock.now_ms

    async def between(self, from_ms: int | None, until_ms: int | None, most: int) -> Histogram:
        """
        What came between two times, ms since the epoch.

        Args:
            from_ms: None for the beginning of log and archive.
            until_ms: After ``from_ms``; None for behind the newest message.
            most: Buckets, at most; each has a millisecond at least.

        Raises:
            store.errors.LogTrimmed, store.errors.ReadFailed: It cannot be read.
        """
        with suppress(ReadFailed):  # without the archive, then
            await self._log_history.look()
        async with self._turns.turn(ADMINISTRATION):
            oldest, newest = await asyncio.wrap_future(self._reader.submit(self._ends))
            archived = self._archived()
            start = archived or oldest
            until = until_ms if until_ms is not None else (newest.time_ms if newest else self._now_ms()) + 1
            since = from_ms if from_ms is not None else start.time_ms if start else until - 1
            if from_ms is None:
                since = min(since, until - 1)
            elif until_ms is None:
                until = max(until, since + 1)
            number = min(most, until - since)
            edges = [since + (until - since) * k // number for k in range(number + 1)]
            next_id = self._history.log.next_id
            places = [min(found, next_id) for found in await self._log_history.positions_since(edges)]
        buckets = [
            Bucket(time_ms, first, behind - first)
            for time_ms, (first, behind) in zip(edges, pairwise(places), strict=False)
        ]
        return Histogram(buckets, until, oldest, newest, archived)

    def _ends(self) -> tuple[Moment | None, Moment | None]:
        reader = self._reader
        oldest, newest = reader.first_since(0), reader.last_matching(None)
        if oldest is None or newest is None:
            return None, None
        times = reader.time_of(oldest), reader.time_of(newest)
        if times[0] is None or times[1] is None:
            return None, None  # They were trimmed meanwhile.
        return Moment(oldest, times[0]), Moment(newest, times[1])

    def _archived(self) -> Moment | None:
        history = self._history
        if not history.is_joined or history.archived is None:
            return None
        return Moment(history.archived.first_id, history.archived.first_ms)
