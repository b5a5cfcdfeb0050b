"""
Attached links that messages go out on: a queue consumer's, a log reader's. Each knows its part of the Message VPN and
its transfers, and lives from the attach that was answered to the detach. See ``publishing`` for those they come in on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from proton import Link

from amqp_ext.message.annotations import Splicer
from amqp_ext.transactions import Outcome
from gateway import log_keys
from gateway.amqp.engine.conditions import condition_of, room_of
from gateway.amqp.engine.transfers import ACCEPTED, MODIFIED, RELEASED, OutgoingTransfers
from gateway.core.endpoint.endpoint import Flow
from gateway.core.errors import Refused
from gateway.core.model import Row

if TYPE_CHECKING:
    from gateway.amqp.connection import Connection
    from gateway.amqp.links.transactions import Transaction
    from gateway.amqp.nodes.temporary import Hold
    from gateway.vpn.delivery.browse_feed import BrowseFeed
    from gateway.vpn.delivery.log_feed import LogFeed
    from gateway.vpn.delivery.streams import StreamFeed

FINISH_SECONDS: Final = 30.0
"""How long a bounded replay that has sent everything waits for settlements before it detaches."""


class AttachedLink(Protocol):
    """What a connection needs to know of its links."""

    @property
    def key(self) -> Any:
        """The link's C structure."""

    def detached(self, *, closed: bool) -> None:
        """The peer has detached (or closed) the link, or its session is gone."""

    def lost(self) -> None:
        """The connection is gone."""

    def refuse(self, refused: Refused) -> None:
        """Detach with an error."""


def detach(connection: Connection, link: Link, refused: Refused | None) -> None:
    """Close a link from our side, with an error or without."""
    if refused is not None:
        link.condition = condition_of(refused, room_of(link))
        connection.log_event(
            "link_detached",
            **{
                log_keys.LINK: connection.names.of(link),
                log_keys.CONDITION: refused.code.condition,
                log_keys.REPLAY_ERROR: refused.code.replay_error,
                log_keys.REASON: refused.text,
            },
        )
    link.close()
    connection.forget(link)


class _Outgoing:
    """What a queue consumer's and a log reader's links have in common."""

    def __init__(
        self,
        connection: Connection,
        link: Link,
        splicer: Splicer,
        *,
        default_outcome: int,
        on_credit: Callable[[], None],
        on_outcomes: Callable[
            [list[int], list[tuple[int, int, bool, bool]], Callable[[], None] | None], None
        ],
    ) -> None:
        self._connection = connection
        self._link = link
        self._vpn = connection.vpn
        self._waits_to_drain = False
        """There is nothing to send, and credit to be drained once all that was sent is written."""
        self.is_pre_settled = link.remote_snd_settle_mode == Link.SND_SETTLED
        self.transfers = OutgoingTransfers(
            link,
            splicer,
            pre_settled=self.is_pre_settled,
            default_outcome=default_outcome,
            on_credit=on_credit,
            on_outcomes=on_outcomes,
            on_transactional=self._transactional,
        )

    def _transactional(self, message_id: int, state: Any, delivery: Any) -> None:
        """A delivery got an outcome in a transaction."""
        raise NotImplementedError

    @property
    def client(self) -> Connection:
        """Whose link it is (``gateway.vpn.links.Client``)."""
        return self._connection

    @property
    def key(self) -> Any:
        return self.transfers.key

    def room(self) -> int:
        transfers = self.transfers
        room = transfers.room(self._connection.free_bytes - transfers.buffered_bytes)
        if room <= 0 and transfers.credit > 0:
            self._connection.waiting_for_output[self] = None
        return room

    def writable(self) -> None:
        """The connection has room for output again."""
        if not self._waits_to_drain:
            self._resume()
        elif self.transfers.drained():
            self.idle()
        else:
            self._connection.waiting_for_output[self] = None

    def _resume(self) -> None:
        """Go on sending, where that stopped for want of room."""
        raise NotImplementedError

    def send(self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None) -> None:
        self.transfers.send(rows, attempts, end_id)
        self._connection.schedule_flush()

    def idle(self) -> None:
        self._waits_to_drain = not self.transfers.drained()
        if self._waits_to_drain:
            self._connection.waiting_for_output[self] = None
        self._connection.schedule_flush()

    def detached(self, *, closed: bool) -> None:
        """The peer has detached (or closed) the link, or its session is gone."""
        raise NotImplementedError

    def lost(self) -> None:
        self.detached(closed=False)

    def refuse(self, refused: Refused) -> None:
        detach(self._connection, self._link, refused)


class QueueConsumer(_Outgoing):
    """A consumer bound to an endpoint."""

    def __init__(
        self,
        connection: Connection,
        link: Link,
        splicer: Splicer,
        *,
        held: Hold | None,
    ) -> None:
        super().__init__(
            connection,
            link,
            splicer,
            # The engine does not show the source's default outcome; a failed delivery loses nothing.
            default_outcome=MODIFIED,
            on_credit=self._ask,
            on_outcomes=self._outcomes,
        )
        self._held = held
        self._max_unsettled = connection.limits.max_unsettled_per_flow
        self.flow: Flow | None = None
        self.in_transaction: dict[int, Transaction | None] = {}
        """Unsettled deliveries that a transaction acknowledges; None is one that was rolled back."""

    def room(self) -> int:
        room = super().room()
        if self.flow is not None and not self.is_pre_settled:
            return min(room, self._most_unsettled(self.flow) - len(self.flow.unsettled))
        return room

    def _most_unsettled(self, flow: Flow) -> int:
        """Deliveries it may leave unsettled: as its endpoint has it, else the gateway."""
        return flow.endpoint.settings.max_unsettled or self._max_unsettled

    def send(self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None) -> None:
        super().send(rows, attempts, end_id)
        if self.is_pre_settled and self.flow is not None:
            # At most once is what the peer asked for: sent is consumed.
            self._vpn.settle(self.flow, [row[0] for row in rows])

    def idle(self) -> None:
        super().idle()
        if self.flow is not None:
            # Credit that was drained is gone: what comes next is not for this flow.
            self.flow.demand = self.room()

    def _ask(self) -> None:
        flow = self.flow
        if flow is None:
            return
        self._vpn.ask(flow, self.room())
        if len(flow.unsettled) >= self._most_unsettled(flow):
            # There is nothing for it until it settles: a drain need not wait for that.
            self.idle()

    def _outcomes(
        self,
        accepted: list[int],
        others: list[tuple[int, int, bool, bool]],
        confirm: Callable[[], None] | None,
    ) -> None:
        flow = self.flow
        if flow is None:
            return
        if self.in_transaction:
            self._leave_transactions([*accepted, *(message_id for message_id, _, _, _ in others)])
        if accepted:
            self._vpn.settle(flow, accepted)
        # Rejected means: never again (AMQP 1.0 section 3.4.3).
        rejected = [i for i, state, _, _ in others if state not in (RELEASED, MODIFIED)]
        if rejected:
            self._vpn.dead.bury_rejected(flow, rejected)
        undeliverable = [i for i, _, _, undeliverable in others if undeliverable]
        if undeliverable:
            self._vpn.shun(flow, undeliverable)
        back = [i for i, state, failed, _ in others if state in (RELEASED, MODIFIED) and not failed]
        if back:
            self._vpn.release(flow, back, failed=False)
        failed = [i for i, state, failed, _ in others if state == MODIFIED and failed]
        if failed:
            self._vpn.release(flow, failed, failed=True)
        if confirm is not None:
            self._vpn.commit((), lambda _: self._confirmed(confirm))
        self._ask()

    def _transactional(self, message_id: int, state: Any, delivery: Any) -> None:
        self._connection.transactions.acknowledge(self, message_id, state, delivery)

    def _leave_transactions(self, ids: list[int]) -> None:
        """What the peer says of these holds at once."""
        for message_id in ids:
            transaction = self.in_transaction.pop(message_id, None)
            if transaction is not None:
                self._connection.transactions.settled_outside(transaction)
                self.in_transaction.pop(message_id, None)

    def committed(self, outcomes: list[tuple[int, Outcome, Any]]) -> None:
        """A transaction has committed these: those accepted are gone, the others get what was said of them."""
        for message_id, outcome, delivery in outcomes:
            self.in_transaction.pop(message_id, None)
            if delivery is not None:
                self.transfers.settle(delivery, outcome.code)
        others = [(i, o.code, o.failed, o.undeliverable) for i, o, _ in outcomes if o.code != ACCEPTED]
        self._outcomes([], others, None)
        self._connection.schedule_flush()

    def revert(self, message_id: int, delivery: Any) -> None:
        """
        What was said of a delivery in a transaction is void. It stays with its consumer, which says what becomes of it;
        one that the consumer has settled (None) is as one that failed (AMQP 1.0 section 4.4.2).
        """
        self.in_transaction.pop(message_id, None)
        if delivery is not None:
            self.in_transaction[message_id] = None
        elif self.flow is not None:
            self._vpn.release(self.flow, [message_id], failed=True)
            self._ask()

    def _confirmed(self, confirm: Callable[[], None]) -> None:
        confirm()
        self._connection.schedule_flush()

    def _resume(self) -> None:
        if self.flow is not None and self.flow.demand <= 0 and self.transfers.credit > 0:
            self._ask()

    def detached(self, *, closed: bool) -> None:
        self.transfers.is_closed = True
        if self.flow is not None:
            self._vpn.unbind(self.flow)
            self.flow = None
        if self._held is not None:
            self._held.release()

    def finish(self) -> None:
        detach(self._connection, self._link, None)


class ReadingLink(_Outgoing):
    """
    A log reader, a stream's reader or a browser. Whatever it says of a delivery changes nothing: nothing is written
    when it is read.
    """

    def __init__(self, connection: Connection, link: Link, splicer: Splicer) -> None:
        super().__init__(
            connection,
            link,
            splicer,
            default_outcome=ACCEPTED,
            on_credit=self._run,
            on_outcomes=self._outcomes,
        )
        self.feed: LogFeed | BrowseFeed | StreamFeed | None = None
        self.held: Hold | None = None
        """What it has on the temporary queue that it browses."""
        self._is_finished = False

    def _run(self) -> None:
        if self.feed is not None:
            self.feed.run()

    def _outcomes(
        self,
        accepted: list[int],
        others: list[tuple[int, int, bool, bool]],
        confirm: Callable[[], None] | None,
    ) -> None:
        if confirm is not None:
            confirm()
            self._connection.schedule_flush()
        if self._is_finished and not self.transfers.unsettled_count:
            self._end()

    def _transactional(self, message_id: int, state: Any, delivery: Any) -> None:
        if delivery is not None:
            self.transfers.settle(delivery, ACCEPTED)
        self._outcomes([], [], None)

    def _resume(self) -> None:
        if self.transfers.credit > 0:
            self._run()

    def detached(self, *, closed: bool) -> None:
        self.transfers.is_closed = True
        if self.feed is not None:
            self.feed.close()
            self.feed = None
        if self.held is not None:
            self.held.release()

    def finish(self) -> None:
        # A client that settles may do so to the end; one that never does has the end marked on its last message.
        self._is_finished = True
        if self.transfers.unsettled_count:
            self._vpn.later(FINISH_SECONDS, self._end)
        else:
            self._end()

    def _end(self) -> None:
        if not self.transfers.is_closed:
            detach(self._connection, self._link, None)
