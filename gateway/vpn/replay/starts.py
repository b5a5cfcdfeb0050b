"""
Places in the log: where a replay starts, as it was asked for, and the points that administrators gave a name.

The log is looked at off the loop, and a point is durable before anybody is told that it is there.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from amqp_ext.replay_start import ReplayStart, StartKind
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.log.point import ListedPoint, Point
from gateway.core.replay.search import search_for
from gateway.core.replay.starts import LogProbe, Resolved, check_start, resolve
from gateway.vpn.replay.log_search import LogSearch

if TYPE_CHECKING:
    from gateway.vpn.message_vpn import MessageVpn


async def resolve_start(
    vpn: MessageVpn,
    start: ReplayStart,
    patterns: Sequence[str],
    matches: Callable[[str], bool] | None,
    now_ms: int,
    endpoint: Endpoint | None = None,
) -> Resolved:
    """
    Where a replay starts; a message-id or a selector is searched for first, in what the log holds at this moment.

    Args:
        patterns: The topics to be replayed.
        matches: Whether a topic is one of them; None when every topic is.
        endpoint: What is replayed or read, if it is not the log itself: a stream may show no more than a part of it.

    Raises:
        Refused: It cannot start there.
    """
    # What can be refused at once is refused before a search that may take minutes.
    facts = vpn.broker.log_facts(endpoint)
    check_start(start, facts)
    search = search_for(start, matches)
    found = None if search is None else await LogSearch(vpn, start, search, patterns, facts).run()
    facts, reader = vpn.broker.log_facts(endpoint), vpn.reader
    probe: LogProbe = reader
    return await asyncio.wrap_future(
        reader.submit(lambda: resolve(start, facts, probe, now_ms, matches, found))
    )


async def create_point(vpn: MessageVpn, name: str, start: ReplayStart | None, now_ms: int) -> Point:
    """
    Name a place in the log; returns when that is durable.

    Args:
        start: The place, in any way that a replay start says one; None (or live) for now.

    Raises:
        Refused: The name is taken or bad, the log has no such place, or the store could not write.
    """
    broker = vpn.broker
    broker.points.check(name)
    position = time_ms = None
    if start is not None and start.kind is not StartKind.LIVE:
        resolved = await vpn.resolve_start(start, (">",))
        position, time_ms = resolved.first, resolved.time_ms
    point, effects = broker.points.create(name, position, time_ms, now_ms)

    def written(error: sqlite3.Error | None) -> None:
        if error is not None:
            broker.points.deleted(point)

    vpn.commit(effects, written)
    await vpn.committed(())
    return point


async def delete_point(vpn: MessageVpn, name: str) -> None:
    """
    Take a name away; returns when that is durable.

    Raises:
        Refused: There is none of this name, or the store could not write.
    """
    broker = vpn.broker
    point, effects = broker.points.delete(name)

    def written(error: sqlite3.Error | None) -> None:
        if error is None:
            broker.points.deleted(point)

    vpn.commit(effects, written)
    await vpn.committed(())


def list_points(vpn: MessageVpn) -> list[ListedPoint]:
    """All points, in the order of the log."""
    broker = vpn.broker
    points = sorted(broker.points.values(), key=lambda point: (point.position, point.name))
    return [ListedPoint(point, broker.points.is_trimmed(point)) for point in points]
