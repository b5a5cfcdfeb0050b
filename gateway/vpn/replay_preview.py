"""
Previews: what a replay onto an endpoint would bring and what it would drop, without starting it; and which messages a
replay is to keep.

A preview counts as of now: messages that are published meanwhile, or are not committed yet, are not in it. Nothing is
locked while it counts: log and endpoint are read page by page off the loop, with other work in between.

A replay that keeps messages which the log does not have needs all of them at the moment it starts. They are searched
for before that, and the search ends when it is known to be complete. Messages settled meanwhile are left out in the
end; new messages are in memory; ids that were trimmed meanwhile, or are about to be, are read again. The search may
find messages that the log still has. This does no harm, as the replay does not put what is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import CONTENT, HELD, ID, ROUTE, Row
from gateway.core.replay.commands import KeptMessage
from gateway.core.replay.starts import Resolved
from gateway.vpn.feeds.browse_feed import EndpointListing
from gateway.vpn.feeds.endpoint_feed import floor_of, routes_of
from gateway.vpn.state import VpnState
from gateway.vpn.turns import ADMINISTRATION
from store.errors import LogTrimmed, ReadFailed
from store.ports import LogPage

MOST_MESSAGES: Final = 10_000
"""Messages that a replay keeps, at most: each may become a range of two cursors, which are written in one commit and
held in memory."""

TRIES: Final = 100
"""Tries to find them all; each reads what was trimmed during the one before it."""

PIECE: Final = 1_000
"""Messages looked up in one call."""

TALLY_IDS: Final = 50_000
"""Ids of the log counted in one statement: some ten milliseconds on a reader's thread."""

MOST_TOPICS: Final = 1_000
"""Topics that are counted one by one; further topics count only in the total."""

SHOWN_TOPICS: Final = 20
SHOWN_CLIENTS: Final = 20


class Amount(NamedTuple):
    """Messages on an endpoint, and their size."""

    messages: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Brought:
    """What a replay puts on an endpoint from the log."""

    messages: int
    size_bytes: int
    topics: Mapping[str, tuple[int, int]]
    """Messages and bytes by topic, those with the most messages first; a few of them."""
    last_ms: int | None
    """When the newest of them arrived; None if the log has none of them."""


@dataclass(frozen=True, slots=True)
class Preview:
    """A replay that has not begun."""

    resolved: Resolved
    brought: Brought
    loss: Amount
    """Messages that are in neither log nor archive: the replay drops them for good."""
    kept: Amount
    """Messages that the log does not have, and that the replay keeps on the endpoint."""
    dropped: int
    """Messages that leave the endpoint."""
    clients: tuple[str, ...]
    """Containers of some of the consumers that would be detached."""
    client_count: int


async def preview(
    state: VpnState, endpoint: Endpoint, resolved: Resolved, *, keep_unlogged: bool = False
) -> Preview:
    """
    Count what a replay would do.

    Args:
        keep_unlogged: Messages that the log does not have are to stay.

    Raises:
        Refused: REPLAY_MESSAGE_UNAVAILABLE, the start was trimmed meanwhile; INTERNAL, the store cannot be read; and as
            ``unlogged_on``.
    """
    brought = await count_brought(state, endpoint, resolved)
    loss, kept = Amount(), Amount()
    is_stream = endpoint.kind.is_view
    if not keep_unlogged:
        loss = await count_loss(state, endpoint)
    elif not is_stream:
        found = await unlogged_on(state, endpoint)
        kept = Amount(len(found), sum(one.size_bytes for one in found))
    flows = [] if is_stream else list(endpoint.flows)
    return Preview(
        resolved,
        brought,
        loss,
        kept,
        0 if is_stream else endpoint.depth - kept.messages,
        tuple(flow.link.client.peer_container for flow in flows[:SHOWN_CLIENTS]),
        len(flows),
    )


async def count_brought(state: VpnState, endpoint: Endpoint, resolved: Resolved) -> Brought:
    """
    Count the messages of the log that match the endpoint's subscriptions.

    Raises:
        Refused: As ``preview``.
    """
    matches, patterns = endpoint.topics.matches, endpoint.topics.patterns
    messages = size_bytes = 0
    by_topic: dict[str, tuple[int, int]] = {}
    position, end = resolved.first, state.broker.log.next_id
    while position < end:
        stop = min(position + TALLY_IDS, end)
        try:
            async with state.search_turns.turn(ADMINISTRATION):
                found, position = await state.history.tally(position, stop, patterns)
        except LogTrimmed as trimmed:
            raise Refused(
                ErrorCode.REPLAY_MESSAGE_UNAVAILABLE, f"the log was trimmed during the preview: {trimmed}"
            ) from None
        except ReadFailed as error:
            state.runtime.report("archive_read_failed", error)
            raise Refused(
                ErrorCode.INTERNAL, "the history could not be read; the gateway's log says why"
            ) from None
        for topic, count, size in found:
            if not matches(topic):
                continue
            messages += count
            size_bytes += size
            if topic in by_topic or len(by_topic) < MOST_TOPICS:
                known, known_bytes = by_topic.get(topic, (0, 0))
                by_topic[topic] = known + count, known_bytes + size
    most = sorted(by_topic.items(), key=lambda item: (-item[1][0], item[0]))[:SHOWN_TOPICS]
    return Brought(
        messages, size_bytes, dict(most), await _last_ms(state, endpoint, resolved) if messages else None
    )


async def _last_ms(state: VpnState, endpoint: Endpoint, resolved: Resolved) -> int | None:
    reader, matches = state.reader, endpoint.topics.matches

    def ask() -> int | None:
        last = reader.last_matching(matches)
        return None if last is None or last < resolved.first else reader.time_of(last)

    try:
        return await state.read_in_turn(ask)
    except ReadFailed as error:
        raise _unreadable(state, error) from None


async def count_loss(state: VpnState, endpoint: Endpoint) -> Amount:
    """
    Count the messages on the endpoint that are in neither the log nor its archive: the log did not take them, or they
    left it unarchived.

    Raises:
        Refused: INTERNAL, the store cannot be read, or the archive.
    """
    if endpoint.kind.is_view:
        return Amount()
    messages = size_bytes = 0
    try:
        async for rows in EndpointListing(state).pages(endpoint, 0, PIECE):
            held = [row for row in rows if row[HELD] is not None]
            archived = await state.history.archived([row[ID] for row in held])
            for row in held:
                if row[ID] not in archived:
                    messages += 1
                    size_bytes += len(row[CONTENT])
    except ReadFailed as error:
        raise _unreadable(state, error) from None
    return Amount(messages, size_bytes)


def _unreadable(state: VpnState, error: ReadFailed) -> Refused:
    state.runtime.report("endpoint_read_failed", error)
    return Refused(ErrorCode.INTERNAL, "the store could not be read; the gateway's log says why")


async def check_guard(
    state: VpnState, endpoint: Endpoint, resolved: Resolved, expected: int | None, loss_at_most: int | None
) -> None:
    """
    Check that a replay does what its requester expects.

    Args:
        expected: How many messages of the log it brings; None for any number.
        loss_at_most: How many messages that neither log nor archive has may be dropped; None for any number.

    Raises:
        Refused: PRECONDITION_FAILED, it does something else, and the text says what; and as ``preview``.
    """
    if expected is not None:
        brought = await count_brought(state, endpoint, resolved)
        if brought.messages != expected:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"the replay would bring {brought.messages} messages to {endpoint.name!r}, and {expected} "
                "were expected: nothing was done; ask for a preview again",
            )
    if loss_at_most is not None:
        loss = await count_loss(state, endpoint)
        if loss.messages > loss_at_most:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"{loss.messages} messages ({loss.size_bytes} bytes) are on {endpoint.name!r} that neither "
                f"the log nor an archive has, and {loss_at_most} may be lost: nothing was done; have them "
                "consumed first",
            )


async def unlogged_on(state: VpnState, endpoint: Endpoint) -> list[KeptMessage]:
    """
    The messages that an endpoint has by routes and the log does not have, by rising ids. The result holds until the
    caller awaits anything else; uncommitted messages are not in it.

    Raises:
        Refused: RESOURCE_LIMIT, there are too many; PRECONDITION_FAILED, they were dropped meanwhile, or change too
            fast, or the endpoint has one by a reference; NOT_FOUND, the endpoint was deleted; INTERNAL, the store
            cannot be read.
    """
    search = _Search(state, endpoint)
    try:
        for _ in range(TRIES):
            found = await search.go_on()
            if found is not None:
                return found
    except ReadFailed as error:
        raise _unreadable(state, error) from None
    raise Refused(
        ErrorCode.PRECONDITION_FAILED,
        f"the messages on {endpoint.name!r} changed each time they were read, because they are being trimmed, "
        "erased or settled in transactions: nothing was done; try again",
    )


class _Search:
    """A search of ``unlogged_on``; it holds no contents."""

    def __init__(self, state: VpnState, endpoint: Endpoint) -> None:
        self._state = state
        self._endpoint = endpoint
        self._cursor_number = endpoint.cursor_number
        self._begin()

    def _begin(self) -> None:
        """Begin the search anew: nothing is known."""
        broker, backlog = self._state.broker, self._endpoint.backlog
        self._erasures = broker.erasing.erasures
        self._found: dict[int, KeptMessage] = {}
        self._read_below = floor_of(backlog) + 1
        self._trimmed_below = broker.trimming.below
        self._topic_pieces = broker.trimming.topic_pieces_made
        self._has_read_references = False

    async def go_on(self) -> list[KeptMessage] | None:
        """
        Read what is not known yet.

        Returns:
            All messages that the search is for; None if something has changed since it was read: call this again.
        """
        state, endpoint = self._state, self._endpoint
        broker, backlog = state.broker, endpoint.backlog
        if broker.endpoints.get(endpoint.name) is not endpoint:
            raise Refused(ErrorCode.NOT_FOUND, f"{endpoint.name!r} was deleted meanwhile")
        if endpoint.cursor_number != self._cursor_number:
            # If many ask at the same time, each would have to read everything again for each of the others.
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"another replay of {endpoint.name!r} began, or it was purged, while its messages were being "
                "read: nothing was done; look at it, and try again",
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
            self._take(state.cache.since(self._read_below, broker.log.next_id - self._read_below), {})
            self._read_below = broker.log.next_id
        found = [one for _, one in sorted(self._found.items()) if self._lies_there(one)]
        in_doubt = endpoint.withdrawn | broker.erasing.markers.keys()
        if in_doubt and any(one.message_id in in_doubt for one in found):
            await state.committer.committed()
            return None
        return found

    @property
    def _below(self) -> int:
        """What is below this id is not in the log, or is about to be trimmed."""
        broker = self._state.broker
        return max(broker.trimming.below, broker.log.first_id)

    def _unknown_spans(self) -> list[tuple[int, int]]:
        """The ranges of ids, (first, one past the last), to read; from now on they count as read."""
        log, trimming = self._state.broker.log, self._state.broker.trimming
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
        if self._read_below < min(self._state.cache.first_id, log.next_id):
            spans.append((self._read_below, log.next_id))
            self._read_below = log.next_id
        return spans

    async def _read(self, first: int, end: int) -> None:
        backlog, number = self._endpoint.backlog, self._cursor_number
        after = max(first - 1, floor_of(backlog))
        while after + 1 < end and self._endpoint.cursor_number == number:
            routes = routes_of(backlog)
            if not routes:
                return

            page, attempts = await self._state.read_in_turn(self._page, routes, after, end)
            self._take(page.rows, dict(attempts))
            after = page.position - 1

    def _page(self, routes: list[int], after: int, end: int) -> tuple[LogPage, list[tuple[int, int]]]:
        reader = self._state.reader
        page = reader.routed_page(routes, after, end)
        rows = page.rows
        return page, reader.attempts(self._cursor_number, rows[0][ID], rows[-1][ID]) if rows else []

    def _take(self, rows: Iterable[Row], attempts: Mapping[int, int]) -> None:
        """
        Take those of these rows that the log does not have, or is about to lose.

        Args:
            attempts: Their failed deliveries, as the store has them. Empty for messages of the message cache: the
                endpoint itself knows all their attempts, as these are newer than the start.

        Raises:
            Refused: RESOURCE_LIMIT, there are too many.
        """
        broker, backlog = self._state.broker, self._endpoint.backlog
        below, is_gone = self._below, broker.retention.is_gone
        # A trim that was about to happen when they were read may have failed since, and may be tried again.
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
                f"more than {MOST_MESSAGES} messages are on {self._endpoint.name!r} that the log does not "
                "have: so many cannot be kept; have some consumed first",
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
            Refused: PRECONDITION_FAILED, the log does not have a message that a reference leads to.
        """
        reader, references = self._state.reader, sorted(self._endpoint.backlog.put.references)
        for at in range(0, len(references), PIECE):
            ids: Sequence[int] = references[at : at + PIECE]
            while ids:
                rows = await self._state.read_in_turn(reader.messages, ids)
                if any(row[HELD] is not None for row in rows):
                    raise self._refused_references()
                ids = [i for i in ids if i > rows[-1][ID]] if rows else ()

    def _refused_references(self) -> Refused:
        return Refused(
            ErrorCode.PRECONDITION_FAILED,
            f"messages are on {self._endpoint.name!r} that a copy or an earlier replay put there and that the "
            "log has dropped since: these cannot be kept; have them consumed first",
        )
