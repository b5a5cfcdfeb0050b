"""
Readers of streams: whose turn it is, and the log that each one reads when it is.

A reader is a flow bound to its stream, so that exclusivity, limits and deletion are those of every endpoint. Nothing
is ever handed to that flow: its link is fed from the log, from where its start was resolved at the attach, however
long it had to wait. Invariant: reading and acknowledging lead to no effect, so nothing is written for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from gateway.core.broker import Broker
from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.endpoint.settings import Exclusivity
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import Row
from gateway.core.replay.reading import Pacer
from gateway.core.replay.starts import Resolved
from gateway.vpn.clients import ConsumerLink
from gateway.vpn.committer import Committer
from gateway.vpn.delivery.consumers import Consumers
from gateway.vpn.delivery.log_feed import LogFeed
from gateway.vpn.delivery.readers import Readers


class StreamFeed:
    """Carries a stream to one of its readers: nothing while that waits for its turn, then the log."""

    def __init__(
        self,
        flow: Flow,
        resolved: Resolved,
        begin: Callable[[Resolved], LogFeed],
        closed: Callable[[Flow], None],
    ) -> None:
        self.flow = flow
        self._resolved = resolved
        self._tell_closed = closed
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
                self.flow.link.nothing_to_send()
                return
            self._reading = self._begin(self._resolved)
        self._reading.run()

    def read_anew(self) -> None:
        """The stream shows other topics from now on: those are read from where the reader is."""
        reading = self._reading
        if reading is None or reading.cursor.is_finished:
            return
        self._resolved = replace(self._resolved, first=reading.position, is_live=reading.cursor.caught_up)
        reading.close()
        self._reading = self._begin(self._resolved)
        self._reading.run()

    def close(self) -> None:
        """The link is gone; the next reader in line has its turn."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._reading is not None:
            self._reading.close()
        self._tell_closed(self.flow)


class Streams:
    def __init__(
        self,
        broker: Broker,
        consumers: Consumers,
        readers: Readers,
        committer: Committer,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._broker = broker
        self._consumers = consumers
        self._readers = readers
        self._committer = committer
        self._loop = loop
        self._feeds: dict[Flow, StreamFeed] = {}

    def read(
        self,
        endpoint: Endpoint,
        client: ConsumerLink,
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
        readers = self._readers
        if resolved.first < endpoint.settings.purged_below:
            raise _purged(endpoint)

        def begin(resolved: Resolved) -> LogFeed:
            patterns, matches = endpoint.topics.patterns, endpoint.topics.matches
            return readers.read_log(
                resolved, patterns, client, selects, pacer, matches=matches, stream=endpoint.name
            )

        flow = self._consumers.bind(endpoint, client, epoch)
        feed = self._feeds[flow] = StreamFeed(flow, resolved, begin, self._left)
        return feed

    def _left(self, flow: Flow) -> None:
        """A reader is gone."""
        self._feeds.pop(flow, None)
        self._consumers.unbind(flow)
        if flow.endpoint.settings.exclusive is not Exclusivity.NONE:
            # In the next turn: of a stream that is being deleted, all readers are gone by then.
            self._loop.call_soon(self.settings_changed, flow.endpoint)

    def settings_changed(self, endpoint: Endpoint) -> None:
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
        before = endpoint.settings
        effects = self._broker.purge_stream(endpoint)
        first_id = endpoint.settings.purged_below
        try:
            await self._committer.committed(effects)
        except Refused:
            endpoint.change_settings(before)
            raise
        for feed in list(self._feeds.values()):
            if feed.flow.endpoint is endpoint and feed.position < first_id:
                feed.flow.link.refuse(_purged(endpoint))


def _purged(endpoint: Endpoint) -> Refused:
    return Refused(
        ErrorCode.REPLAY_MESSAGE_UNAVAILABLE,
        f"{endpoint.name!r} was purged: it begins at id {endpoint.settings.purged_below} now; attach again",
    )
