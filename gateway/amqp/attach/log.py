"""
Answering an attach that reads the replay log: a reader of the topics that match, history first, then live.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from proton import Link

from amqp_ext.filters.filter_set import Filters
from amqp_ext.message.annotations import Splicer
from amqp_ext.replay_start import ReplayStart, StartKind
from gateway.amqp.attach.reply import fill_reply, log_attach
from gateway.amqp.attach.request import is_gone, wants_batches
from gateway.amqp.attach.selection import selection_of
from gateway.amqp.links.outgoing import ReadingLink
from gateway.core.replay.pacing import Pacer

if TYPE_CHECKING:
    from gateway.amqp.connection import Connection
    from gateway.amqp.nodes.temporary import Hold

NOTHING_YET = ReplayStart(StartKind.LIVE)

Join = Callable[[ReadingLink], "Hold"]
"""Called with a reader before it is answered: what it has of its group; raises Refused if it may not read."""


async def read_log(
    connection: Connection,
    link: Link,
    patterns: Sequence[str],
    filters: Filters,
    start: ReplayStart | None,
    join: Join | None = None,
) -> None:
    """
    Attach a log reader.

    Raises:
        Refused: REPLAY_DISABLED; the start cannot be honoured; what ``join`` says.
    """
    vpn = connection.vpn
    vpn.broker.policy.check_reads("there is nothing to read")
    selects = selection_of(connection, filters)
    resolved = await vpn.resolve_start(start or NOTHING_YET, patterns)
    if is_gone(connection, link):
        return
    splicer = Splicer(vpn.broker.log.generation, stream_offset=filters.wants_stream_offset)
    reader = ReadingLink(connection, link, splicer)
    batches = wants_batches(link)
    is_said = fill_reply(
        connection, link, link.remote_source.address, filters, resolved, copies=True, batches=batches
    )
    reader.transfers.in_batches = batches and is_said
    if join is not None:
        reader.held = join(reader)
    connection.links.outgoing[reader.key] = reader.transfers
    connection.attached[link] = reader
    link.open()
    pacer = Pacer(start.speed, start.rate) if start is not None and (start.speed or start.rate) else None
    reader.feed = vpn.onlookers.read_log(resolved, patterns, reader, selects, pacer)
    log_attach(connection, link, start, resolved)
    reader.feed.run()
