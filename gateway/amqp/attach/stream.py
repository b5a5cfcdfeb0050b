"""
Answering an attach to a stream: a log reader of what the stream is a view of, by the stream's exclusivity.

The reader brings its own start, or gets the stream's default one; it is resolved here, before the answer, and holds for
a reader that has to wait for its turn, too: it reads on from there when its turn comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from proton import Link

from amqp_ext.filters.filter_set import Filters
from amqp_ext.message.annotations import Splicer
from amqp_ext.replay_start import ReplayStart, StartKind, parse_text
from gateway.amqp.attach.log import Join
from gateway.amqp.attach.reply import fill_reply, log_attach
from gateway.amqp.attach.request import epoch_of, is_gone
from gateway.amqp.attach.selection import selection_of
from gateway.amqp.links.outgoing import ReadingLink
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.errors import ErrorCode, Refused
from gateway.core.replay.pacing import Pacer

if TYPE_CHECKING:
    from gateway.amqp.connection import Connection


async def read_stream(
    connection: Connection,
    link: Link,
    endpoint: Endpoint,
    filters: Filters,
    start: ReplayStart | None,
    options: Mapping[str, str],
    join: Join | None = None,
) -> None:
    """
    Attach a reader to a stream.

    Args:
        join: Called before the answer, to make it one of a group of readers.

    Raises:
        Refused: As for log readers; RESOURCE_LOCKED or STOLEN, the stream has its one reader; RESOURCE_LIMIT, it has
            as many as it takes; RESOURCE_DELETED.
    """
    vpn = connection.vpn
    vpn.broker.policy.check_reads("there is nothing to read")
    selects = selection_of(connection, filters)
    epoch = epoch_of(link, options)
    if start is None and endpoint.settings.default_start:
        start = parse_text(endpoint.settings.default_start)
    resolved = await vpn.resolve_start_on(endpoint, start or ReplayStart(StartKind.LIVE))
    if vpn.broker.find(endpoint.name) is not endpoint:
        raise Refused(ErrorCode.RESOURCE_DELETED, f"{endpoint.name!r} was deleted meanwhile")
    if is_gone(connection, link):
        return
    pacer = Pacer(start.speed, start.rate) if start is not None and (start.speed or start.rate) else None
    splicer = Splicer(vpn.broker.log.generation, stream_offset=filters.wants_stream_offset)
    reader = ReadingLink(connection, link, splicer)
    feed = vpn.streams.read(endpoint, reader, resolved, epoch=epoch, selects=selects, pacer=pacer)
    try:
        if join is not None:
            reader.held = join(reader)
        fill_reply(
            connection,
            link,
            link.remote_source.address,
            filters,
            resolved,
            copies=True,
            first_id=endpoint.settings.purged_below,
        )
    except BaseException:
        feed.close()
        if reader.held is not None:
            reader.held.release()
        raise
    connection.links.outgoing[reader.key] = reader.transfers
    connection.attached[link] = reader
    link.open()
    reader.feed = feed
    log_attach(connection, link, start, resolved)
    feed.run()
