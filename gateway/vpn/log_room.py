"""
Publishers that wait for room in the replay log: what they sent is held, in order, while trimming makes room.

A burst outruns trimming, which goes on commit by commit. What it brings is not refused then: it waits, unsettled, and
is published in the order in which it came. What waits counts as content that is not committed yet, so that beyond a
bound nothing more is read from publishers; and where no room comes for some seconds, the first of them is refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.core.broker import Broker
from gateway.core.trimming import LogFull
from gateway.vpn.clients import PublisherLink
from gateway.vpn.committer import Committer
from gateway.vpn.settings import CurrentSettings


class RoomMaker(Protocol):
    """What trims the log."""

    def tell_of_room(self, made: Callable[[], None]) -> None:
        """Call this, too, whenever there is more room in the log."""

    def make_room(self, size_bytes: int) -> None:
        """A message of so many bytes waits for room in the log; 0: none does."""


@dataclass(slots=True)
class WaitingMessages:
    """Messages of one topic that came together on a link, and wait."""

    client: PublisherLink
    topic: str
    contents: list[bytes]
    bares: list[int]
    deliveries: list[Any]
    is_direct: bool
    origin: str
    since: float
    """When they came, by the loop's clock."""

    def only_last(self, count: int) -> None:
        """All but the last so many are dealt with."""
        done = len(self.contents) - count
        self.contents = self.contents[done:]
        self.bares = self.bares[done:]
        self.deliveries = self.deliveries[done:]


class LogRoom:
    """
    Args:
        offer: Publishes what waited, as far as there is room: how many of the messages, from the last one on, are
            still to wait, and for how many bytes the first of these does.
    """

    def __init__(
        self,
        broker: Broker,
        committer: Committer,
        trimmer: RoomMaker,
        settings: CurrentSettings,
        loop: asyncio.AbstractEventLoop,
        offer: Callable[[WaitingMessages], tuple[int, LogFull | None]],
    ) -> None:
        self._broker = broker
        self._committer = committer
        self._trimmer = trimmer
        self._settings = settings
        self._loop = loop
        self._offer = offer
        self._line: deque[WaitingMessages] = deque()
        self._by_client: dict[PublisherLink, int] = {}
        self._size_bytes = 0
        self._full: LogFull | None = None
        """Why the first one waits."""
        self._moved = 0.0
        """When the first one last became another, by the loop's clock."""
        self._timer: asyncio.Handle | None = None
        self._is_offering = False
        trimmer.tell_of_room(self.go_on)

    def __bool__(self) -> bool:
        """Whether somebody waits."""
        return bool(self._line)

    def __len__(self) -> int:
        return sum(len(waiting.contents) for waiting in self._line)

    @property
    def seconds(self) -> float:
        """For how long a publisher waits while no room comes; 0: it does not."""
        return self._settings.vpn.replay_log.wait_for_room_seconds

    def is_behind(self, client: PublisherLink, topic: str) -> bool:
        """Whether what a link brings is to wait behind what waits: it is the link's, or the log is to take it, too."""
        return client in self._by_client or self._broker.policy.takes(topic)

    def add(
        self,
        client: PublisherLink,
        topic: str,
        contents: list[bytes],
        bares: list[int],
        deliveries: list[Any],
        full: LogFull | None,
        *,
        is_direct: bool,
        origin: str,
    ) -> None:
        """
        Messages are to wait, behind all others.

        Args:
            full: Why, where nobody waits before them.
        """
        now = self._loop.time()
        waiting = WaitingMessages(client, topic, contents, bares, deliveries, is_direct, origin, now)
        self._line.append(waiting)
        self._by_client[client] = self._by_client.get(client, 0) + 1
        self._hold(sum(map(len, contents)))
        if len(self._line) == 1:
            self._moved, self._full = now, full
            self._wait()

    def go_on(self) -> None:
        """There may be room, or it is clear that there will be none."""
        if self._is_offering:
            return
        self._is_offering = True
        try:
            while self._line:
                waiting = self._line[0]
                count, size = len(waiting.contents), sum(map(len, waiting.contents))
                left, self._full = self._offer(waiting)
                if left:
                    waiting.only_last(left)
                    size -= sum(map(len, waiting.contents))
                else:
                    self._leave()
                if left < count:
                    self._moved = self._loop.time()
                self._hold(-size)
                if left:
                    break
        finally:
            self._is_offering = False
        self._wait()

    def close(self) -> None:
        """Nobody is told any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _hold(self, size_bytes: int) -> None:
        self._size_bytes += size_bytes
        if size_bytes > 0:
            self._committer.hold(size_bytes)
        else:
            self._committer.let_go(-size_bytes)

    def _leave(self) -> None:
        client = self._line.popleft().client
        self._by_client[client] -= 1
        if not self._by_client[client]:
            del self._by_client[client]

    def _wait(self) -> None:
        """Have room made for the first one."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._line or self._full is None:
            self._trimmer.make_room(0)
            return
        due = max(self._moved, self._line[0].since) + self.seconds
        self._timer = self._loop.call_later(max(due - self._loop.time(), 0.0), self._over)
        self._trimmer.make_room(self._full.size_bytes)

    def _over(self) -> None:
        """No room has come for as long as one waits for it."""
        self._timer = None
        now, full = self._loop.time(), self._full
        while self._line and full is not None and self.seconds <= now - max(self._moved, self._line[0].since):
            waiting = self._line[0]
            self._leave()
            self._hold(-sum(map(len, waiting.contents)))
            waiting.client.not_stored(waiting.deliveries, full)
        self.go_on()
