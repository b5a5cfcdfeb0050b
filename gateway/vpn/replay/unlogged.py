"""
What lies on an endpoint and the log does not have, for a replay that is to keep it: found before the replay starts, and
known to be all at the moment of the start.

Pages are read off the loop, while others publish, settle and trim. What is settled meanwhile is left out in the end,
what came meanwhile is in memory, and where something was trimmed meanwhile, or is about to be, it is read again between
the ids that were. More than the log lacks may be found: it does no harm, as the replay does not put what is kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol

from gateway.core.broker import Broker
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.errors import ErrorCode, Refused
from gateway.core.message_cache import MessageCache
from gateway.core.model import CONTENT, HELD, ID, ROUTE, Row
from gateway.core.replay.commands import KeptMessage
from gateway.vpn.committer import Committer
from gateway.vpn.runtime import Runtime
from gateway.vpn.user_turns import ADMINISTRATION, UserTurns
from store.errors import ReadFailed
from store.ports import Reader, RoutedPage

MOST_MESSAGES: Final = 10_000
"""Each may become a range of two cursors, which are written in one commit and held in memory."""

TRIES: Final = 100
"""Each reads what was trimmed during the one before it."""

PIECE: Final = 1_000
"""References looked up at once."""


class ReadVpn(Protocol):
    """What is asked of a Message VPN."""

    @property
    def broker(self) -> Broker:
        """Its broker."""

    @property
    def committer(self) -> Committer:
        """Waited for where something is in doubt."""

    @property
    def reader(self) -> Reader:
        """Its store's."""

    @property
    def cache(self) -> MessageCache:
        """The newest messages."""

    @property
    def search_turns(self) -> UserTurns:
        """Administrators' turns at the store."""

    @property
    def runtime(self) -> Runtime:
        """Told of what cannot be read."""


async def unlogged_on(vpn: ReadVpn, endpoint: Endpoint) -> list[KeptMessage]:
    """
    What lies on an endpoint by routes and the log does not have, rising. It is so until whoever awaits this awaits
    anything else; what is not committed yet is not in it.

    Raises:
        Refused: RESOURCE_LIMIT, it is too much; PRECONDITION_FAILED, it was dropped meanwhile, or changes too fast, or
            something of it is there by a reference; NOT_FOUND, the endpoint was deleted; INTERNAL, the store cannot be
            read.
    """
    search = _Search(vpn, endpoint)
    try:
        for _ in range(TRIES):
            found = await search.go_on()
            if found is not None:
                return found
    except ReadFailed as error:
        vpn.runtime.report("endpoint_read_failed", error)
        raise Refused(ErrorCode.INTERNAL, "the store could not be read; the gateway's log says why") from None
    raise Refused(
        ErrorCode.PRECONDITION_FAILED,
        f"what lies on {endpoint.name!r} changed each time it was read, as its messages are trimmed, erased or in "
        "transactions: nothing was done; try again",
    )


class _Search:
    """Contents are not held."""

    def __init__(self, vpn: ReadVpn, endpoint: Endpoint) -> None:
        self._vpn = vpn
        self._endpoint = endpoint
        self._cursor_number = endpoint.cursor_number
        self._begin()

    def _begin(self) -> None:
        """Nothing is known."""
        broker, backlog = self._vpn.broker, self._endpoint.backlog
        self._erasures = broker.erasing.erasures
        self._found: dict[int, KeptMessage] = {}
        self._read_below = min(cursor.floor for cursor in backlog.parts.values()) + 1
        self._trimmed_below = broker.trimming.below
        self._topic_pieces = broker.trimming.topic_pieces_made
        self._has_read_references = False

    async def go_on(self) -> list[KeptMessage] | None:
        """
        Read what is not known.

        Returns:
            All of it; None where something has changed since it was read.
        """
        vpn, endpoint = self._vpn, self._endpoint
        broker, backlog = vpn.broker, endpoint.backlog
        if broker.find(endpoint.name) is not endpoint:
            raise Refused(ErrorCode.NOT_FOUND, f"{endpoint.name!r} was deleted meanwhile")
        if endpoint.cursor_number != self._cursor_number:
            # Many who ask at once would each read all of it again for each of the others.
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"another replay of {endpoint.name!r} began, or it was purged, while what lies there was being read: "
                "nothing was done; look at it, and try again",
            )
        if broker.erasing.erasures != self._erasures:
            self._begin()
        references = backlog.put.references
        if references and min(references) < self._below:
            raise self._refused_references()
        if references and not self._has_read_references:
            self._has_read_references = True
            await self._check_references()
            return None
        spans = self._unknown_spans()
        if spans or (references and not self._has_read_references):
            for first, end in spans:
                await self._read(first, end)
            return None
        if self._read_below < broker.log.next_id:
            self._take(vpn.cache.since(self._read_below, broker.log.next_id - self._read_below), {})
            self._read_below = broker.log.next_id
        found = [one for _, one in sorted(self._found.items()) if self._lies_there(one)]
        in_doubt = endpoint.withdrawals.ids | broker.erasing.markers.keys()
        if in_doubt and any(one.message_id in in_doubt for one in found):
            await vpn.committer.committed()
            return None
        return found

    @property
    def _below(self) -> int:
        """The log has nothing below this id, or is about not to have it."""
        broker = self._vpn.broker
        return max(broker.trimming.below, broker.log.first_id)

    def _unknown_spans(self) -> list[tuple[int, int]]:
        """Between which ids, (first, one past the last), to read; from now on they count as read."""
        log, trimming = self._vpn.broker.log, self._vpn.broker.trimming
        spans: list[tuple[int, int]] = []
        if trimming.below > self._trimmed_below:
            spans.append((self._trimmed_below, trimming.below))
            self._trimmed_below = trimming.below
        pieces = trimming.topic_pieces_made - self._topic_pieces
        if pieces:
            self._has_read_references = False
        if pieces > len(trimming.topic_pieces):
            spans.append((1, self._read_below))
        elif pieces:
            newest = islice(reversed(trimming.topic_pieces), pieces)
            spans += [(piece.start, piece.stop) for piece in newest]
        self._topic_pieces = trimming.topic_pieces_made
        spans = [(first, min(end, self._read_below)) for first, end in spans if first < self._read_below]
        if self._read_below < min(self._vpn.cache.first_id, log.next_id):
            spans.append((self._read_below, log.next_id))
            self._read_below = log.next_id
        return spans

    async def _read(self, first: int, end: int) -> None:
        backlog, reader, number = self._endpoint.backlog, self._vpn.reader, self._cursor_number
        after = max(first - 1, min(cursor.floor for cursor in backlog.parts.values()))
        while after + 1 < end and self._endpoint.cursor_number == number:
            routes = sorted({route for part in backlog.parts for route in backlog.route_numbers(part)})
            if not routes:
                return

            def read(
                routes: list[int] = routes, after: int = after
            ) -> tuple[RoutedPage, list[tuple[int, int]]]:
                page = reader.routed_page(routes, after, end)
                rows = page.rows
                return page, reader.attempts(number, rows[0][ID], rows[-1][ID]) if rows else []

            async with self._vpn.search_turns.turn(ADMINISTRATION):
                page, attempts = await asyncio.wrap_future(reader.submit(read))
            self._take(page.rows, dict(attempts))
            after = page.position - 1

    def _take(self, rows: Iterable[Row], attempts: Mapping[int, int]) -> None:
        """
        Take those of these that the log does not have, or is about not to have.

        Args:
            attempts: Failed deliveries that the store has of them. Of what is in the message cache the endpoint knows
                all: they were after the start, as the messages were.

        Raises:
            Refused: RESOURCE_LIMIT, they are too many.
        """
        broker, backlog = self._vpn.broker, self._endpoint.backlog
        below, is_gone = self._below, broker.retention.is_gone
        # What was about to be trimmed when they were read may have failed since, and may be tried again.
        self._trimmed_below = min(self._trimmed_below, broker.trimming.below)
        rows = [
            row
            for row in rows
            if (row[HELD] is not None or row[ID] < below or is_gone(row))
            and row[ID] not in self._found
            and row[ID] not in backlog.put.references
            and backlog.has(row)
        ]
        for row in broker.erasing.sized(rows):
            self._found[row[ID]] = KeptMessage(
                row[ID], row[ROUTE], len(row[CONTENT]), attempts.get(row[ID], 0)
            )
        if len(self._found) > MOST_MESSAGES:
            raise Refused(
                ErrorCode.RESOURCE_LIMIT,
                f"more than {MOST_MESSAGES} messages lie on {self._endpoint.name!r} that the log does not have: so "
                "many are not kept; have some consumed first",
            )

    def _lies_there(self, one: KeptMessage) -> bool:
        backlog = self._endpoint.backlog
        return any(
            one.route in route.numbers and not backlog.parts[backlog.part_of(route)].is_done(one.message_id)
            for route in backlog.routes
        )

    async def _check_references(self) -> None:
        """
        Raises:
            Refused: PRECONDITION_FAILED, the log does not have what references lead to.
        """
        reader, references = self._vpn.reader, sorted(self._endpoint.backlog.put.references)
        for at in range(0, len(references), PIECE):
            ids: Sequence[int] = references[at : at + PIECE]
            while ids:
                async with self._vpn.search_turns.turn(ADMINISTRATION):
                    rows = await asyncio.wrap_future(
                        reader.submit(lambda ids=ids: reader.messages(ids))  # type: ignore[misc]
                    )
                if any(row[HELD] is not None for row in rows):
                    raise self._refused_references()
                ids = [i for i in ids if i > rows[-1][ID]] if rows else ()

    def _refused_references(self) -> Refused:
        return Refused(
            ErrorCode.PRECONDITION_FAILED,
            f"messages lie on {self._endpoint.name!r} that a copy or an earlier replay had put there and that the log "
            "has dropped since: these are not kept; have them consumed first",
        )
