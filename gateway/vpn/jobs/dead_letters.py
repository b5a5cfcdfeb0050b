"""
What lies on a dead message queue, counted by why and where it died: a browser that looks at every message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.errors import Refused
from gateway.core.model import CONTENT, Row
from gateway.vpn.delivery.readers import Readers
from gateway.vpn.jobs.dead_return import DEAD_ENDPOINT, DEAD_REASON, JobClient, annotation_of

AT_ONCE: Final = 256
"""Messages looked at in one turn of the loop."""

MOST_GROUPS: Final = 1_000
"""Groups that are told apart; what belongs to further ones is counted as one, without names."""

MOST_CHARACTERS: Final = 200
"""Of a reason or a name, which whoever published the message may have written."""

Key: TypeAlias = "tuple[str, str]"
"""Why, and where; empty where a message does not say, or where that is not asked."""


@dataclass(slots=True)
class Group:
    """Messages that are alike."""

    messages: int = 0
    size_bytes: int = 0


class _Counting:
    """The link of a browser that counts."""

    client = JobClient("rewind: counting", "")

    def __init__(self, by: str, loop: asyncio.AbstractEventLoop) -> None:
        self._by_reason = by != "endpoint"
        self._by_endpoint = by != "reason"
        self._loop = loop
        self._left = AT_ONCE
        self.groups: dict[Key, Group] = {}
        self.done: asyncio.Future[None] = loop.create_future()
        self.more = asyncio.Event()

    def room(self) -> int:
        return self._left

    def send(self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None) -> None:
        groups = self.groups
        for row in rows:
            key = (
                annotation_of(row, DEAD_REASON)[:MOST_CHARACTERS] if self._by_reason else "",
                annotation_of(row, DEAD_ENDPOINT)[:MOST_CHARACTERS] if self._by_endpoint else "",
            )
            group = groups.get(key)
            if group is None:
                group = groups.setdefault(key if len(groups) < MOST_GROUPS else ("", ""), Group())
            group.messages += 1
            group.size_bytes += len(row[CONTENT])
        self._left -= len(rows)
        if self._left <= 0:
            self.more.set()

    def go_on(self) -> None:
        """It can take as many again."""
        self.more.clear()
        self._left = AT_ONCE

    def nothing_to_send(self) -> None:
        self._end(None)

    def finish(self) -> None:
        self._end(None)

    def refuse(self, refused: Refused) -> None:
        self._end(refused)

    def _end(self, refused: Refused | None) -> None:
        if not self.done.done():
            if refused is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(refused)
        self.more.set()


async def count_dead(
    readers: Readers,
    endpoint: Endpoint,
    by: Literal["reason", "endpoint", "both"],
    loop: asyncio.AbstractEventLoop,
) -> dict[Key, Group]:
    """
    The messages on a queue by why and where they died; the largest groups first.

    Raises:
        Refused: It was emptied meanwhile, or could not be read.
    """
    link = _Counting(by, loop)
    feed = readers.browse(endpoint, link, None)
    try:
        feed.run()
        while not link.done.done():
            await link.more.wait()
            if link.done.done():
                break
            await asyncio.sleep(0)
            link.go_on()
            feed.run()
        await link.done
    finally:
        feed.close()
    return dict(sorted(link.groups.items(), key=lambda item: (-item[1].messages, item[0])))
