"""
Readers of streams: whose turn it is, and the log that each one reads when it is.

A reader is a flow bound to its stream, so that exclusivity, limits and deletion are those of every endpoint. Nothing
is ever handed to that flow: its link is fed from the log, from where its start was resolved at the attach, however
long it had to wait. Invariant: reading and acknowledging lead to no effect, so nothing is written for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.endpoint.settings import Exclusivity
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import Row
from gateway.core.replay.pacing import Pacer
from gateway.core.replay.starts import Resolved
from gateway.vpn.delivery.log_feed import LogFeed

if TYPE_CHECKING:
    from gateway.vpn.links import ConsumingLink
    from gateway.vpn.message_vpn import MessageVpn


class StreamFeed:
    """Carries a stream to one of its readers: nothing while that waits for its turn, then the log."""

    def __init__(
        self, streams: Streams, flow: Flow, resolved: Resolved, begin: Callable[[Resolved], LogFeed]
    ) -> None:
        self.flow = flow
        self._resolved = resolved
        self._streams = streams
        self._begin = begin
        self._reading: LogFeed | None = None
        self._is_closed = False

    @property
    def is_reading(self) -> bool:
        """Its turn has come."""
        return self._reading is not None

    @property
    def position(self) -> int:
        """The first id that may not have been sent."""
        return self._resolved.first if self._reading is None else self._reading.position

    def run(self) -> None:
        """Send what the link takes. Called when credit or room came, or its turn."""
        if self._is_closed:
            return
        if self._reading is None:
            if self.flow not in self.flow.endpoint.active_flows:
                # Nothing is for it until the active one is gone: credit that is to be drained can be used up.
                self.flow.link.idle()
                return
            self._reading = self._begin(self._resolved)
        self._reading.run()

    def read_anew(self) -> None:
        """The stream shows other topics from now on: those are read from where the reader is."""
        reading = self._reading
        if reading is None or reading.reader.is_finished:
            return
        reading.close()
        self._resolved = replace(self._resolved, first=reading.position, is_live=reading.reader.caught_up)
        self._reading = self._begin(self._resolved)
        self._reading.run()

    def close(self) -> None:
        """The link is gone; the next reader in line has its turn."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._reading is not None:
            self._reading.close()
        self._streams.left(self.flow)


class Streams:
    def __init__(self, vpn: MessageVpn) -> None:
        self._vpn = vpn
        self._feeds: dict[Flow, StreamFeed] = {}

    def read(
        self,
        endpoint: Endpoint,
        link: ConsumingLink,
        resolved: Resolved,
        *,
        epoch: int | None = None,
        selects: Callable[[Row], bool] | None = None,
        pacer: Pacer | None = None,
    ) -> StreamFeed:
        """
        One more reader of a stream. Call ``run`` on it whenever the link can take more, ``close`` when it is gone.

        Args:
            resolved: Where it starts, at once or when its turn comes.
            epoch: Of two readers of a stream that is exclusive=steal, the one with the higher or an equal epoch has it.
            selects: The reader's selector and filters, if it has any.
            pacer: Its pace, if one was asked for; it counts from the reader's first message.

        Raises:
            Refused: The stream's exclusivity or its limits say so; REPLAY_MESSAGE_UNAVAILABLE, it was purged meanwhile.
        """
        vpn = self._vpn
        if resolved.first < endpoint.settings.purged_below:
            raise _purged(endpoint)

        def begin(resolved: Resolved) -> LogFeed:
            patterns, matches = vpn.broker.topic_patterns(endpoint), vpn.broker.topic_matcher(endpoint)
            return vpn.onlookers.read_log(resolved, patterns, link, selects, pacer, matches=matches)

        flow = vpn.bind(endpoint, link, epoch)
        feed = self._feeds[flow] = StreamFeed(self, flow, resolved, begin)
        return feed

    def left(self, flow: Flow) -> None:
        """A reader is gone."""
        self._feeds.pop(flow, None)
        self._vpn.unbind(flow)
        if flow.endpoint.settings.exclusive is not Exclusivity.NONE:
            # In the next turn: of a stream that is being deleted, all readers are gone by then.
            self._vpn.next_turn(lambda: self.look_at(flow.endpoint))

    def look_at(self, endpoint: Endpoint) -> None:
        """Readers, or the exclusivity, of a stream have changed: it may be somebody's turn now."""
        for flow in list(endpoint.active_flows):
            feed = self._feeds.get(flow)
            if feed is not None and not feed.is_reading:
                feed.run()

    def subscriptions_changed(self, endpoint: Endpoint) -> None:
        """Readers go on by the new ones, each from where it is, as a queue's consumers would."""
        for flow in list(endpoint.flows):
            feed = self._feeds.get(flow)
            if feed is not None:
                feed.read_anew()

    async def purge(self, endpoint: Endpoint) -> None:
        """
        Take all that a stream shows out of its view, as an administrator; returns when that is durable. Readers that
        were not through with it are detached and told. Neither the log nor any other endpoint loses anything.

        Raises:
            Refused: INTERNAL, the store could not write.
        """
        vpn, before = self._vpn, endpoint.settings
        effects = vpn.broker.purge_stream(endpoint)
        first_id = endpoint.settings.purged_below
        try:
            await vpn.committed(effects)
        except Refused:
            endpoint.settings = before
            raise
        for feed in list(self._feeds.values()):
            if feed.flow.endpoint is endpoint and feed.position < first_id:
                feed.flow.link.refuse(_purged(endpoint))


def _purged(endpoint: Endpoint) -> Refused:
    return Refused(
        ErrorCode.REPLAY_MESSAGE_UNAVAILABLE,
        f"{endpoint.name!r} was purged: it begins at id {endpoint.settings.purged_below} now; attach again",
    )
