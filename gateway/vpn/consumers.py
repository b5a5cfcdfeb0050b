"""
Consumers of endpoints and readers of streams: binding and unbinding, demand, and the outcomes of messages.

A reader of a stream is a flow bound to it, so that exclusivity, limits and deletion are those of every endpoint. That
flow never gets messages of the endpoint: the log feeds the reader's link, from the start that was resolved at the
attach, however long the reader had to wait for its turn. Invariant: reading a stream and settling its messages cause no
effect, so nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Final

from gateway.core.effects import CountAttempts
from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.endpoint.settings import Exclusivity, RetryType
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import Row
from gateway.core.replay.reading import Pacer
from gateway.core.replay.starts import Resolved
from gateway.core.settlements import PendingRetry, PendingSettlement
from gateway.vpn.clients import ConsumerLink, LockingLink, LogLink
from gateway.vpn.feeds.endpoint_feed import Feeds
from gateway.vpn.feeds.log_feed import LogFeed, Readers
from gateway.vpn.state import VpnPart, VpnState
from store.errors import WriteFailed

AT_ONCE: Final[Mapping[int, int]] = MappingProxyType({})


class Consumers(VpnPart):
    def __init__(self, state: VpnState, feeds: Feeds) -> None:
        super().__init__(state)
        self._feeds = feeds

    # --- who consumes ---------------------------------------------------------------------------------------------

    def bind(
        self,
        endpoint: Endpoint,
        client: ConsumerLink,
        epoch: int | None = None,
        selects: Callable[[Row], bool] | None = None,
        priority: int = 0,
        lock_timeout_ms: int | None = None,
    ) -> Flow:
        """
        Bind a consumer to an endpoint.

        Args:
            epoch: On an exclusive=steal endpoint, a consumer displaces another one with the same or a lower epoch.
            selects: The consumer's selector and filters, if it has any.
            priority: While this consumer has demand, consumers of a lower priority get no messages.
            lock_timeout_ms: How long its deliveries are locked, in ms, in place of the endpoint's setting.

        Raises:
            Refused: The endpoint's exclusivity or its limits say so.
        """
        flow = Flow(endpoint, client, epoch, selects, priority, lock_timeout_ms)
        displaced = endpoint.bind(flow)
        if endpoint.settings.exclusive is not Exclusivity.NONE:
            endpoint.pass_stalled()
            # One consumer at a time: the new one gets what a detached consumer still holds, as if it resumed the link.
            for suspended in list(endpoint.suspended):
                self._displace(
                    suspended, Refused(ErrorCode.STOLEN, f"a consumer took {endpoint.name!r} over")
                )
        self._feeds.of(endpoint)
        self._feeds.replays.consumer_bound(endpoint)
        if displaced is not None:
            who = "a consumer" if epoch is None else f"a consumer of epoch {epoch}"
            self._displace(displaced, Refused(ErrorCode.STOLEN, f"{who} took {endpoint.name!r} over"))
        return flow

    def unbind(self, flow: Flow, *, failed: bool = True) -> None:
        """
        Unbind a consumer; its unsettled messages are ready for others.

        Args:
            failed: Count this as a failed delivery.
        """
        self._take_back(flow, failed=failed)
        self._feeds.deliver(flow.endpoint)

    def unbind_settling(self, flow: Flow) -> None:
        """Unbind a consumer; its unsettled messages count as consumed."""
        flow.demand = 0
        self.settle(flow, list(flow.unsettled))
        self.unbind(flow)

    def unbind_rejecting(self, flow: Flow) -> None:
        """Unbind a consumer; its unsettled messages are rejected, and no other consumer gets them meanwhile."""
        flow.endpoint.suspend(flow)
        self._feeds.dead_letters.reject(flow, list(flow.unsettled), lambda: self.unbind(flow))

    def suspend(self, flow: Flow) -> None:
        """Give the consumer nothing more; it keeps its unsettled messages until ``unbind``."""
        flow.endpoint.suspend(flow)
        self._feeds.deliver(flow.endpoint)

    def displace_all(self, endpoint: Endpoint, refused: Refused, *, but: Flow | None = None) -> None:
        """Detach the endpoint's consumers with an error."""
        for flow in list(endpoint.flows):
            if flow is not but:
                self._displace(flow, refused)

    def _displace(self, flow: Flow, refused: Refused) -> None:
        self._take_back(flow)
        flow.link.refuse(refused)

    @staticmethod
    def _take_back(flow: Flow, *, failed: bool = True) -> None:
        # The consumer may have seen what it had not settled: the next one is told so by the delivery-count.
        flow.endpoint.release(flow, list(flow.unsettled), failed=failed)
        flow.endpoint.unbind(flow)
        flow.endpoint.end_suspended(flow)

    def set_demand(self, flow: Flow, room: int) -> None:
        """The consumer can take ``room`` messages now."""
        flow.demand = room
        if room > 0:
            self._feeds.deliver(flow.endpoint)

    def take_back(self, flow: Flow, ids: list[int]) -> None:
        """The consumer's locks on these messages have ended: others get them."""
        link: LockingLink = flow.link
        flow.is_stalled, flow.demand = True, 0
        flow.endpoint.share_by_key()
        has_to_confirm = link.take_back(ids)
        self.release(flow, ids, failed=False)
        if not has_to_confirm:
            self.confirmed(flow)
            flow.demand = link.room()

    def confirmed(self, flow: Flow) -> None:
        """The consumer has confirmed all that was taken back from it: it may get more."""
        flow.is_stalled = False
        flow.endpoint.share_by_key()
        if flow.endpoint.pass_stalled():
            self.turn_passed(flow.endpoint)

    def turn_passed(self, endpoint: Endpoint) -> None:
        """It is another consumer's turn at an exclusive endpoint."""
        endpoint.share_by_key()
        self._feeds.deliver(endpoint)

    def renew(self, flow: Flow, ids: list[int]) -> None:
        """The consumer still works on these messages: renew their locks."""
        flow.unsettled.renew(ids, self._now_ms())

    @staticmethod
    def lower_demand(flow: Flow, room: int) -> None:
        """The consumer can take only ``room`` messages from now on; nothing is delivered for that."""
        flow.demand = room

    # --- what becomes of messages ---------------------------------------------------------------------------------

    def settle(self, flow: Flow, ids: list[int]) -> None:
        """Settle messages as consumed."""
        self._counters.activity += 1
        gone, effects = self._broker.settlements.settle(flow, ids)
        self._committer.commit_when_convenient(*effects)
        self._settled(flow.endpoint, gone)

    def settled_by_transaction(self, settlement: PendingSettlement) -> None:
        """The transaction that consumed these messages is durable."""
        self._committer.commit_when_convenient(*self._broker.settlements.committed(settlement))
        self._settled(settlement.endpoint, settlement.messages)

    def _settled(self, endpoint: Endpoint, ids: Collection[int]) -> None:
        self._counters.settled_messages += len(ids)
        if self._tracing is not None:
            self._tracing.settled(endpoint.name, ids, "accepted")
        if endpoint.replay is not None:
            self._feeds.replays.acknowledged(endpoint)
        if endpoint.by_key is not None and endpoint.by_key.has_news():
            # Other messages of the same keys may have waited for these.
            self._feeds.deliver(endpoint)

    def not_settled_by_transaction(self, settlement: PendingSettlement) -> None:
        """The transaction that consumed these messages failed: their flow has them again, or they are ready."""
        self._committer.commit(self._broker.settlements.failed(settlement))
        self._feeds.replays.acknowledged(settlement.endpoint)

    def release(
        self, flow: Flow, ids: list[int], *, failed: bool, asked_ms: Mapping[int, int] = AT_ONCE
    ) -> None:
        """
        Take messages back from a consumer, to be redelivered immediately, or later if the endpoint's settings say so.

        Args:
            failed: Count this as a failed delivery.
            asked_ms: By id, when the consumer wants a message to be redelivered, in ms since the epoch.
        """
        endpoint = flow.endpoint
        if asked_ms or endpoint.settings.retry_type is not RetryType.DISABLED:
            ids = self._hold_back(flow, ids, asked_ms, failed=failed)
        back = endpoint.release(flow, ids, failed=failed)
        if not back:
            return
        if self._tracing is not None:
            self._tracing.settled(endpoint.name, back, "modified" if failed else "released")
        if failed:
            # The store counts no attempts of a message that only the archive has: it does not know the message.
            archived = endpoint.backlog.put.archived
            attempts = [(i, endpoint.attempts[i]) for i in back if i not in archived]
            if attempts:
                self._committer.commit_when_convenient(CountAttempts(endpoint.cursor_number, attempts))
        self._feeds.deliver(endpoint)

    def _hold_back(
        self, flow: Flow, ids: list[int], asked_ms: Mapping[int, int], *, failed: bool
    ) -> list[int]:
        """Delay the messages that are to be retried later; returns the others."""
        now_ms = self._runtime.clock.now_ms()
        due_ms = flow.endpoint.retry_times(flow, ids, asked_ms, now_ms, failed=failed)
        if not due_ms:
            return ids
        if self._tracing is not None:
            outcome = "modified" if failed else "released"
            self._tracing.settled(flow.endpoint.name, list(due_ms), outcome)
        pending = self._broker.settlements.hold_back(flow, due_ms)
        self._committer.commit(pending.effects, partial(self._held_back, pending))
        return [i for i in ids if i not in due_ms]

    def _held_back(self, pending: PendingRetry, error: WriteFailed | None) -> None:
        """The delay is durable; or the write failed, and the messages are ready."""
        settlements, endpoint = self._broker.settlements, pending.endpoint
        effects = settlements.held_back(pending) if error is None else settlements.failed(pending)
        self._committer.commit(effects)
        self._broker.publications.delayed_on[endpoint] = None
        if endpoint.replay is not None:
            self._feeds.replays.acknowledged(endpoint)
        self._feeds.deliver(endpoint)

    def reject(self, flow: Flow, ids: list[int]) -> None:
        """Reject messages: they leave the endpoint, for its dead message queue if it has one."""
        if self._tracing is not None:
            self._tracing.settled(flow.endpoint.name, ids, "rejected")
        flow.unsettled.unlock(ids)
        self._feeds.dead_letters.reject(flow, ids)

    def exclude(self, flow: Flow, ids: Sequence[int]) -> None:
        """Do not give these messages to this consumer again (undeliverable-here, AMQP 1.0 section 3.4.5)."""
        flow.endpoint.select(flow, flow.exclude(ids))


@dataclass(eq=False)
class StreamFeed:
    """Carries a stream to one of its readers: nothing while the reader waits for its turn, then the log."""

    flow: Flow
    _resolved: Resolved
    _begin: Callable[[Resolved], LogFeed]
    _tell_closed: Callable[[Flow], None]
    _reading: LogFeed | None = None
    _is_closed: bool = False

    @property
    def is_reading(self) -> bool:
        """The reader's turn has come."""
        return self._reading is not None

    @property
    def position(self) -> int:
        """The first id that may not have been sent."""
        return self._resolved.first if self._reading is None else self._reading.position

    def run(self) -> None:
        """Send what the link takes. Called when credit, room or the reader's turn came."""
        if self._is_closed:
            return
        if self._reading is None:
            if self.flow not in self.flow.endpoint.active_flows:
                # The reader gets nothing until the active one is gone: a drain can end now.
                self.flow.link.nothing_to_send()
                return
            self._reading = self._begin(self._resolved)
        self._reading.run()

    def read_anew(self) -> None:
        """The stream's subscriptions changed: read by the new ones from the reader's position."""
        reading = self._reading
        if reading is None or reading.cursor.is_finished:
            return
        self._resolved = replace(
            self._resolved,
            first=reading.position,
            is_live=reading.cursor.caught_up,
            values_from=reading.values_from,
        )
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


class Streams(VpnPart):
    def __init__(self, state: VpnState, consumers: Consumers, readers: Readers) -> None:
        super().__init__(state)
        self._consumers = consumers
        self._readers = readers
        self._feeds: dict[Flow, StreamFeed] = {}

    def read(
        self,
        endpoint: Endpoint,
        client: LogLink,
        resolved: Resolved,
        *,
        epoch: int | None = None,
        selects: Callable[[Row], bool] | None = None,
        pacer: Pacer | None = None,
    ) -> StreamFeed:
        """
        Bind a reader to a stream. Call ``run`` on the feed whenever the link can take more, ``close`` when it is gone.

        Args:
            resolved: Where it starts, immediately or when its turn comes.
            epoch: On an exclusive=steal stream, a reader displaces another one with the same or a lower epoch.
            selects: The reader's selector and filters, if it has any.
            pacer: Its pace, if one was asked for; it counts from the reader's first message.

        Raises:
            Refused: The stream's exclusivity or its limits say so; REPLAY_MESSAGE_UNAVAILABLE, it was purged meanwhile.
        """
        readers = self._readers
        if resolved.first < endpoint.settings.purged_below:
            raise _purged(endpoint)

        def begin(resolved: Resolved) -> LogFeed:
            patterns = endpoint.topics.patterns
            return readers.read_log(resolved, patterns, client, selects, pacer, stream=endpoint)

        flow = self._consumers.bind(endpoint, client, epoch)
        feed = self._feeds[flow] = StreamFeed(flow, resolved, begin, self._left)
        return feed

    def _left(self, flow: Flow) -> None:
        """A reader is gone."""
        self._feeds.pop(flow, None)
        self._consumers.unbind(flow)
        if flow.endpoint.settings.exclusive is not Exclusivity.NONE:
            # In the loop's next turn: if the stream is being deleted, all its readers are gone by then.
            self._loop.call_soon(self.settings_changed, flow.endpoint)

    def settings_changed(self, endpoint: Endpoint) -> None:
        """The readers or the exclusivity of a stream changed: start those whose turn has come."""
        for flow in list(endpoint.active_flows):
            feed = self._feeds.get(flow)
            if feed is not None and not feed.is_reading:
                feed.run()

    def subscriptions_changed(self, endpoint: Endpoint) -> None:
        """Each reader continues from its position by the new subscriptions, as a queue's consumers do."""
        for flow in list(endpoint.flows):
            feed = self._feeds.get(flow)
            if feed is not None:
                feed.read_anew()

    async def purge(self, endpoint: Endpoint) -> None:
        """
        Purge a stream, as an administrator: it shows none of its present messages any more. Returns when that is
        durable. Readers that still had some of them to read are detached with an error. Neither the log nor any other
        endpoint loses a message.

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
