"""
What a replay onto an endpoint would bring, and what it would cost, without doing it.

Counted as of now: what is published meanwhile, or is on its way into the store, is not in it. Nothing is held while it
is counted: log and endpoint are read page by page off the loop, and others come between.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import CONTENT, HELD, ID, Row
from gateway.core.replay.starts import Resolved
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.replay.unlogged import unlogged_on
from gateway.vpn.user_turns import ADMINISTRATION
from store.errors import LogTrimmed, ReadFailed

TALLY_IDS: Final = 50_000
"""Ids of the log counted in one statement: some ten milliseconds on a reader's thread."""

MOST_TOPICS: Final = 1_000
"""Topics that are counted one by one; those that come later are counted together."""

SHOWN_TOPICS: Final = 20
SHOWN_CLIENTS: Final = 20

PIECE: Final = 1_000
"""References looked up at once."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What lies on an endpoint and is in neither log nor archive: a replay drops it for good."""

    messages: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Kept:
    """The same that a replay is to keep there."""

    messages: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Brought:
    """What of the log a replay puts on an endpoint."""

    messages: int
    size_bytes: int
    topics: Mapping[str, tuple[int, int]]
    """Messages and bytes by topic, those with the most messages first; a few of them."""
    last_ms: int | None
    """When the newest arrived; None where the log has none of them."""


@dataclass(frozen=True, slots=True)
class Preview:
    """A replay that has not begun."""

    resolved: Resolved
    brought: Brought
    loss: Loss
    kept: Kept
    dropped: int
    """Messages that lie on the endpoint, and leave it."""
    clients: tuple[str, ...]
    """Containers of some of the consumers that would be detached."""
    client_count: int


async def preview(
    vpn: MessageVpn, endpoint: Endpoint, resolved: Resolved, *, keep_unlogged: bool = False
) -> Preview:
    """
    Count it.

    Args:
        keep_unlogged: What the log does not have is to stay.

    Raises:
        Refused: REPLAY_MESSAGE_UNAVAILABLE, it was trimmed meanwhile; INTERNAL, the store cannot be read; and as
            ``unlogged_on`` has it.
    """
    brought = await count_brought(vpn, endpoint, resolved)
    loss, kept = Loss(), Kept()
    if not keep_unlogged:
        loss = await count_loss(vpn, endpoint)
    elif endpoint.kind is not EndpointKind.STREAM:
        found = await unlogged_on(vpn, endpoint)
        kept = Kept(len(found), sum(one.size_bytes for one in found))
    is_stream = endpoint.kind is EndpointKind.STREAM
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


async def count_brought(vpn: MessageVpn, endpoint: Endpoint, resolved: Resolved) -> Brought:
    """
    Count what of the log is for the endpoint.

    Raises:
        Refused: As ``preview`` has it.
    """
    matches, patterns = vpn.log.matcher_of(endpoint), vpn.log.patterns_of(endpoint)
    messages = size_bytes = 0
    by_topic: dict[str, tuple[int, int]] = {}
    position, end = resolved.first, vpn.broker.log.next_id
    while position < end:
        stop = min(position + TALLY_IDS, end)
        try:
            async with vpn.search_turns.turn(ADMINISTRATION):
                found, position = await vpn.history.tally(position, stop, patterns, ADMINISTRATION)
        except LogTrimmed as trimmed:
            raise Refused(
                ErrorCode.REPLAY_MESSAGE_UNAVAILABLE, f"the log was trimmed under the preview: {trimmed}"
            ) from None
        except ReadFailed as error:
            vpn.runtime.report("archive_read_failed", error)
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
        messages, size_bytes, dict(most), await _last_ms(vpn, endpoint, resolved) if messages else None
    )


async def _last_ms(vpn: MessageVpn, endpoint: Endpoint, resolved: Resolved) -> int | None:
    reader, matches = vpn.reader, vpn.log.matcher_of(endpoint)

    def ask() -> int | None:
        last = reader.last_matching(matches)
        return None if last is None or last < resolved.first else reader.time_of(last)

    try:
        async with vpn.search_turns.turn(ADMINISTRATION):
            return await asyncio.wrap_future(reader.submit(ask))
    except ReadFailed as error:
        raise _unreadable(vpn, error) from None


async def count_loss(vpn: MessageVpn, endpoint: Endpoint) -> Loss:
    """
    Count what lies on the endpoint and is in neither the log nor its archive: what the log did not take, and what left
    it unarchived.

    Raises:
        Refused: INTERNAL, the store cannot be read, or the archive.
    """
    if endpoint.kind is EndpointKind.STREAM:
        return Loss()
    reader, backlog = vpn.reader, endpoint.backlog
    messages = size_bytes = 0

    async def count(rows: list[Row]) -> None:
        nonlocal messages, size_bytes
        found = [row for row in rows if row[HELD] is not None and backlog.has(row)]
        archived = await vpn.history.archived([row[ID] for row in found])
        for row in found:
            if row[ID] not in archived:
                messages += 1
                size_bytes += len(row[CONTENT])

    number, end = endpoint.cursor_number, vpn.broker.log.next_id
    routes = sorted({route for part in backlog.parts for route in backlog.route_numbers(part)})
    after = min(cursor.floor for cursor in backlog.parts.values())
    references = sorted(backlog.put.references)
    try:
        while routes and after + 1 < end and endpoint.cursor_number == number:
            async with vpn.search_turns.turn(ADMINISTRATION):
                page = await asyncio.wrap_future(
                    reader.submit(lambda after=after: reader.routed_page(routes, after, end))  # type: ignore[misc]
                )
            # What references lead to is counted below, whatever route it came by.
            await count([row for row in page.rows if row[ID] not in backlog.put.references])
            after = page.position - 1
        for first in range(0, len(references), PIECE):
            ids = references[first : first + PIECE]
            async with vpn.search_turns.turn(ADMINISTRATION):
                rows = await asyncio.wrap_future(
                    reader.submit(lambda ids=ids: reader.messages(ids))  # type: ignore[misc]
                )
            await count(rows)
    except ReadFailed as error:
        raise _unreadable(vpn, error) from None
    return Loss(messages, size_bytes)


def _unreadable(vpn: MessageVpn, error: ReadFailed) -> Refused:
    vpn.runtime.report("endpoint_read_failed", error)
    return Refused(ErrorCode.INTERNAL, "the store could not be read; the gateway's log says why")


async def check_guard(
    vpn: MessageVpn, endpoint: Endpoint, resolved: Resolved, expected: int | None, loss_at_most: int | None
) -> None:
    """
    That a replay is what whoever asks for it takes it to be.

    Args:
        expected: How many messages of the log it brings; None where that does not matter.
        loss_at_most: How many messages may be dropped that neither log nor archive has; None for any number.

    Raises:
        Refused: PRECONDITION_FAILED, it is not, with what it is; and as ``preview`` has it.
    """
    if expected is not None:
        brought = await count_brought(vpn, endpoint, resolved)
        if brought.messages != expected:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"the replay would bring {brought.messages} messages to {endpoint.name!r}, and {expected} were "
                "expected: nothing was done; look at the preview again",
            )
    if loss_at_most is not None:
        loss = await count_loss(vpn, endpoint)
        if loss.messages > loss_at_most:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"{loss.messages} messages ({loss.size_bytes} bytes) lie on {endpoint.name!r} that neither the log nor "
                f"an archive has, and {loss_at_most} may be lost: nothing was done; have them consumed first",
            )
