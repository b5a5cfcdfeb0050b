"""
The hot path: transfers and dispositions, straight on proton's C engine.

What happens once a message happens here, and is measured by the benchmark: some C calls, one bytes object in, one out.
No logging, no wrapper objects. Everything that happens once a link is elsewhere and uses proton's public objects,
which these classes take apart only to reach the C structures inside.

Safety: a C delivery lives as long as its link; once a link is closed here, its deliveries are never touched again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from cproton_ffi import ffi, lib
from proton import Collector, Link

from amqp_ext.message.annotations import Splicer
from amqp_ext.message.reader_batches import batch_of
from gateway.amqp.engine.link_sides import Receiving, Sending
from gateway.amqp.engine.native import TRANSACTIONAL, Buffer, state_fields, tag_of
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import Row

NULL: Final = ffi.NULL
DELIVERY: Final = lib.PN_DELIVERY
LINK_FLOW: Final = lib.PN_LINK_FLOW
TRANSPORT: Final = lib.PN_TRANSPORT
ACCEPTED: Final = lib.PN_ACCEPTED
REJECTED: Final = lib.PN_REJECTED
RELEASED: Final = lib.PN_RELEASED
MODIFIED: Final = lib.PN_MODIFIED

SMALL_BYTES: Final = 16 * 1024
"""Up to this a message is joined with its front and handed to the engine at once: copying beats another call."""

BATCH_BYTES: Final = 128 * 1024
"""Content in a delivery that is a batch, about."""

_incoming = Buffer()
_tag = ffi.new("uint64_t *")
_tag_bytes = ffi.new("pn_bytes_t *", {"size": 8, "start": ffi.cast("char *", _tag)})[0]


def _discard(link: Any) -> None:
    """
    Let go of transfers that nobody reads: they crossed our detach, or their attach was refused. The engine would keep
    them, however many a peer sends.
    """
    if lib.pn_link_is_receiver(link):
        while (delivery := lib.pn_link_current(link)) != NULL:
            lib.pn_link_advance(link)
            lib.pn_delivery_settle(delivery)


class Links:
    """The links of one connection by their C structures, and the loop over the engine's events."""

    def __init__(self) -> None:
        self.incoming: dict[Any, Receiving] = {}
        self.outgoing: dict[Any, Sending] = {}
        self.flowed: Any = None
        """The link of the last flow that was taken."""

    def pump(self, collector: Collector, other: Callable[[], None]) -> None:
        """
        Take every event there is. Transfers, dispositions and credit are handled here, in batches; for all else
        ``other`` is called with the event on top of the collector.

        Raises:
            Refused: The peer sends where it receives, or without credit; the connection is of no use any more.
        """
        impl = collector._impl
        incoming, outgoing = self.incoming, self.outgoing
        arrived: dict[Receiving, None] = {}
        settled: dict[Sending, None] = {}
        flowed: dict[Sending, None] = {}
        peek, kind_of, pop = lib.pn_collector_peek, lib.pn_event_type, lib.pn_collector_pop
        while (event := peek(impl)) != NULL:
            kind = kind_of(event)
            if kind == DELIVERY:
                link = lib.pn_event_link(event)
                receiving = incoming.get(link)
                if receiving is not None:
                    arrived[receiving] = None
                else:
                    sending = outgoing.get(link)
                    if sending is not None:
                        sending.updated(lib.pn_event_delivery(event))
                        settled[sending] = None
                    else:
                        _discard(link)
            elif kind == LINK_FLOW:
                link = self.flowed = lib.pn_event_link(event)
                sending = outgoing.get(link)
                if sending is not None:
                    flowed[sending] = None
            elif kind != TRANSPORT:
                # In order: what came before a detach or close is dealt with first.
                self._finish(arrived, settled, flowed)
                other()
            pop(impl)
        self._finish(arrived, settled, flowed)

    @staticmethod
    def _finish(
        arrived: dict[Receiving, None],
        settled: dict[Sending, None],
        flowed: dict[Sending, None],
    ) -> None:
        for receiving in arrived:
            receiving.receive()
        arrived.clear()
        for sending in settled:
            sending.report()
        settled.clear()
        for sending in flowed:
            sending.on_flow()
        flowed.clear()


class IncomingTransfers:
    """
    Messages coming in on one link.

    Args:
        window: Credit the publisher is kept at: messages it may have on the way or uncommitted.
        max_message_bytes: Past this ``on_too_large`` is called, and nothing more is read.
        on_messages: Called with contents and their unsettled deliveries, or contents that came settled and None.
        on_too_large: Called with bytes, and the fields of the transactional-state if it has one.
        on_transactional: Called with a message of a transaction, its delivery (None where that came settled), and the
            fields of its transactional-state.
    """

    def __init__(
        self,
        link: Link,
        *,
        window: int,
        max_message_bytes: int,
        on_messages: Callable[[list[bytes], list[Any] | None], None],
        on_too_large: Callable[[int, Any], None],
        on_transactional: Callable[[bytes, Any, Any], None],
    ) -> None:
        self._link = link._impl
        self._max_message_bytes = max_message_bytes
        self._on_messages = on_messages
        self._on_too_large = on_too_large
        self._on_transactional = on_transactional
        self._is_batch: Callable[[bytes], bool] | None = None
        self._on_batch: Callable[[bytes, Any], None]
        self._window = window
        self._used = 0
        self.is_closed = False

    @property
    def key(self) -> Any:
        return self._link

    def expect_batches(
        self, is_batch: Callable[[bytes], bool], on_batch: Callable[[bytes, Any], None]
    ) -> None:
        """Deliveries with a tag that ``is_batch`` go to ``on_batch``, as messages of a transaction go to theirs."""
        self._is_batch, self._on_batch = is_batch, on_batch

    def open(self) -> None:
        """Grant the first credit."""
        lib.pn_link_flow(self._link, self._window)

    def receive(self) -> None:
        """Take every message that is complete."""
        if self.is_closed:
            return
        link = self._link
        current, partial, pending = lib.pn_link_current, lib.pn_delivery_partial, lib.pn_delivery_pending
        advance, receive, is_settled = lib.pn_link_advance, lib.pn_link_recv, lib.pn_delivery_settled
        # Each is asked, with a coordinator or without: a message of an unknown transaction must not exist.
        state_of = lib.pn_delivery_remote_state
        unpack, buffer_of = ffi.unpack, _incoming.of
        limit = self._max_message_bytes
        is_batch = self._is_batch
        contents: list[bytes] = []
        deliveries: list[Any] = []
        direct: list[bytes] = []
        while (delivery := current(link)) != NULL:
            size = pending(delivery)
            if size > limit:
                fields = state_fields(delivery)
                self._hand_over(contents, deliveries, direct)
                self._on_too_large(size, fields)
                return
            # The engine drops what an aborted delivery had brought: only an empty one can be one.
            if not size and lib.pn_delivery_aborted(delivery):
                advance(link)
                lib.pn_delivery_settle(delivery)
                self._use(1)
                continue
            if partial(delivery):
                break
            if size:
                buffer = buffer_of(size)
                receive(link, buffer, size)
                content = unpack(buffer, size)
            else:
                content = b""
            settled = is_settled(delivery)
            if state_of(delivery) == TRANSACTIONAL:
                fields = state_fields(delivery)
                advance(link)
                self._hand_over(contents, deliveries, direct)
                contents, deliveries, direct = [], [], []
                if not self._take_alone(content, delivery, settled, self._on_transactional, fields):
                    return
                continue
            if is_batch is not None and is_batch(tag_of(delivery)):
                advance(link)
                self._hand_over(contents, deliveries, direct)
                contents, deliveries, direct = [], [], []
                if not self._take_alone(content, delivery, settled, self._on_batch):
                    return
                continue
            advance(link)
            if settled:
                lib.pn_delivery_settle(delivery)
                if contents:
                    self._hand_over(contents, deliveries, direct)
                    contents, deliveries = [], []
                direct.append(content)
            else:
                if direct:
                    self._hand_over(contents, deliveries, direct)
                    direct = []
                contents.append(content)
                deliveries.append(delivery)
        self._hand_over(contents, deliveries, direct)
        if lib.pn_link_credit(link) < 0 and not self.is_closed:
            raise Refused(
                ErrorCode.TRANSFER_LIMIT,
                "transfers came beyond the credit of their link (AMQP 1.0 section 2.6.7)",
            )

    def _hand_over(self, contents: list[bytes], deliveries: list[Any], direct: list[bytes]) -> None:
        if contents:
            self._on_messages(contents, deliveries)
        if direct:
            self._on_messages(direct, None)
            if not self.is_closed:
                self._use(len(direct))

    def _take_alone(
        self, content: bytes, delivery: Any, settled: bool, take: Callable[..., None], *more: Any
    ) -> bool:
        """A delivery that goes together with no other. Whether the link can take more."""
        if self.is_closed:
            return False
        if settled:
            lib.pn_delivery_settle(delivery)
        take(content, None if settled else delivery, *more)
        if settled and not self.is_closed:
            self._use(1)
        return not self.is_closed

    def presume(self, delivery: Any, state: bytes) -> None:
        """
        Tell the publisher the outcome that a delivery will have if its transaction commits (AMQP 1.0 section 4.4.1).

        Args:
            state: Fields of a transactional-state, encoded.
        """
        if self.is_closed:
            return
        data = lib.pn_disposition_data(lib.pn_delivery_local(delivery))
        lib.pn_data_decode(data, state, len(state))
        self._settle((delivery,), TRANSACTIONAL)

    def accept(self, deliveries: Sequence[Any]) -> None:
        """Tell the publisher that these are accepted, and let it send as many more."""
        if self.is_closed:
            return
        update, settle = lib.pn_delivery_update, lib.pn_delivery_settle
        for delivery in deliveries:
            update(delivery, ACCEPTED)
            settle(delivery)
        self._use(len(deliveries))

    def release(self, deliveries: Sequence[Any]) -> None:
        """Nobody takes these."""
        self._settle(deliveries, RELEASED)

    def reject(self, deliveries: Sequence[Any], describe: Callable[[Any], None]) -> None:
        """
        These are not taken; ``describe`` is given each delivery's disposition to put the error in.

        A C condition is what it gets: proton's public disposition would need a wrapper object for each.
        """
        if self.is_closed:
            return
        for delivery in deliveries:
            describe(lib.pn_disposition_condition(lib.pn_delivery_local(delivery)))
        self._settle(deliveries, REJECTED)

    def _settle(self, deliveries: Sequence[Any], outcome: int) -> None:
        if self.is_closed:
            return
        for delivery in deliveries:
            lib.pn_delivery_update(delivery, outcome)
            lib.pn_delivery_settle(delivery)
        self._use(len(deliveries))

    def _use(self, count: int) -> None:
        # Credit goes back in quarters of the window: one flow frame for many transfers.
        self._used += count
        if self._used * 4 >= self._window:
            lib.pn_link_flow(self._link, self._used)
            self._used = 0


class OutgoingTransfers:
    """
    Messages going out on one link.

    Args:
        pre_settled: Whether deliveries go out settled: the peer wants no say in them.
        on_outcomes: Called with what the peer said of deliveries: ids accepted, and (id, outcome, failed,
            undeliverable here) of all others; and, to be called when that is durable, how to settle those deliveries
            that the peer waits for (None when it waits for none).
        on_transactional: Called with an id, the fields of the transactional-state that the peer gave its delivery,
            and the delivery, None where the peer has settled it.
    """

    def __init__(
        self,
        link: Link,
        splicer: Splicer,
        *,
        pre_settled: bool,
        default_outcome: int,
        on_credit: Callable[[], None],
        on_outcomes: Callable[
            [list[int], list[tuple[int, int, bool, bool]], Callable[[], None] | None], None
        ],
        on_transactional: Callable[[int, Any, Any], None],
    ) -> None:
        self._on_transactional = on_transactional
        self._link = link._impl
        self._session = lib.pn_link_session(self._link)
        self._splicer = splicer
        self._pre_settled = pre_settled
        self._default_outcome = default_outcome
        self._on_credit = on_credit
        self._on_outcomes = on_outcomes
        self._unsettled: dict[Any, int] = {}
        self._accepted: list[int] = []
        self._others: list[tuple[int, int, bool, bool]] = []
        self._confirm: list[Any] = []
        self._average_bytes = 256
        self.in_batches = False
        """Several messages go in one delivery (``amqp_ext.message.reader_batches``); only where they go out settled."""
        self.is_closed = False

    @property
    def key(self) -> Any:
        return self._link

    @property
    def credit(self) -> int:
        return 0 if self.is_closed else int(lib.pn_link_credit(self._link))

    @property
    def unsettled_count(self) -> int:
        return len(self._unsettled)

    @property
    def buffered_bytes(self) -> int:
        """What the session holds that the peer, or the socket, has not taken yet."""
        return 0 if self.is_closed else int(lib.pn_session_outgoing_bytes(self._session))

    def room(self, free_bytes: int) -> int:
        """Messages that can be sent now, by credit and by the bytes that may still be buffered."""
        if self.is_closed or free_bytes <= 0:
            return 0
        return min(int(lib.pn_link_credit(self._link)), free_bytes // self._average_bytes + 1)

    def send(self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None) -> None:
        """Send messages; there must be credit for them."""
        if self.is_closed:
            return
        link, tag, tag_bytes = self._link, _tag, _tag_bytes
        deliver, send, advance = lib.pn_delivery, lib.pn_link_send, lib.pn_link_advance
        unsettled = self._unsettled
        pre_settled = self._pre_settled
        fronts = self._splicer.fronts(rows, attempts, end_id)
        if self.in_batches:
            self._send_batches(rows, fronts)
            return
        total = 0
        for (message_id, _, _, bare, _, content), front in zip(rows, fronts, strict=True):
            tag[0] = message_id
            delivery = deliver(link, tag_bytes)
            size = len(content)
            if size < SMALL_BYTES:
                data = front + (content[bare:] if bare else content)
                send(link, data, len(data))
            else:
                send(link, front, len(front))
                send(link, content[bare:] if bare else content, size - bare)
            total += size
            advance(link)
            if pre_settled:
                lib.pn_delivery_settle(delivery)
            else:
                unsettled[delivery] = message_id
        self._average_bytes = max(total // len(rows), 1) + 200

    def _send_batches(self, rows: Sequence[Row], fronts: Sequence[bytes]) -> None:
        """The same in as few deliveries as their size allows: never more than messages, so there is credit for them."""
        total = sum(len(row[5]) for row in rows)
        count = max(1, min(len(rows), len(rows) * BATCH_BYTES // max(total, 1)))
        for first in range(0, len(rows), count):
            batch = rows[first : first + count]
            bares = [row[5][row[3] :] if row[3] else row[5] for row in batch]
            data = batch_of(fronts[first : first + count], bares)
            _tag[0] = batch[0][0]
            delivery = lib.pn_delivery(self._link, _tag_bytes)
            lib.pn_link_send(self._link, data, len(data))
            lib.pn_link_advance(self._link)
            lib.pn_delivery_settle(delivery)
        self._average_bytes = max(total // len(rows), 1) + 200

    def updated(self, delivery: Any) -> None:
        """An event about one of our deliveries: note what the peer said."""
        if self.is_closed:
            return
        is_settled = lib.pn_delivery_settled(delivery)
        state = lib.pn_delivery_remote_state(delivery)
        if state == ACCEPTED:
            message_id = self._unsettled.pop(delivery, None)
            if message_id is not None:
                self._accepted.append(message_id)
        elif state == TRANSACTIONAL:
            self._updated_in_transaction(delivery, bool(is_settled))
            return
        elif state in (REJECTED, RELEASED, MODIFIED) or is_settled:
            message_id = self._unsettled.pop(delivery, None)
            if message_id is not None:
                self._note(delivery, message_id, state)
        else:
            # Received (a partial state), or nothing new.
            message_id = None
        if message_id is None and lib.pn_link_current(self._link) != NULL:
            # Ours are never current here: each is complete when it is made.
            raise Refused(ErrorCode.NOT_ALLOWED, "a transfer came on a link that its sender receives on")
        if is_settled:
            lib.pn_delivery_settle(delivery)
        elif message_id is not None:
            lib.pn_delivery_update(delivery, state)
            self._confirm.append(delivery)

    def _updated_in_transaction(self, delivery: Any, is_settled: bool) -> None:
        """The delivery stays unsettled here until the transaction is over; its peer may have settled it."""
        message_id = self._unsettled.get(delivery)
        fields = state_fields(delivery)
        if is_settled:
            self._unsettled.pop(delivery, None)
            lib.pn_delivery_settle(delivery)
        if message_id is not None:
            self._on_transactional(message_id, fields, None if is_settled else delivery)

    def settle(self, delivery: Any, outcome: int) -> None:
        """A transaction has committed what the peer said of a delivery."""
        if not self.is_closed and self._unsettled.pop(delivery, None) is not None:
            lib.pn_delivery_update(delivery, outcome)
            lib.pn_delivery_settle(delivery)

    def _note(self, delivery: Any, message_id: int, state: int) -> None:
        if state not in (REJECTED, RELEASED, MODIFIED):
            # Settled without an outcome: the source's default outcome holds (AMQP 1.0 section 3.5.3).
            state = self._default_outcome
            if state == ACCEPTED:
                self._accepted.append(message_id)
                return
            # Modified, as JMS clients name it in their sources: delivery-failed.
            self._others.append((message_id, state, True, False))
            return
        failed = undeliverable = False
        if state == MODIFIED:
            disposition = lib.pn_delivery_remote(delivery)
            failed = bool(lib.pn_disposition_is_failed(disposition))
            undeliverable = bool(lib.pn_disposition_is_undeliverable(disposition))
        self._others.append((message_id, state, failed, undeliverable))

    def report(self) -> None:
        """Hand on what was noted since the last time."""
        accepted, others, confirm = self._accepted, self._others, self._confirm
        if not accepted and not others:
            return
        self._accepted, self._others, self._confirm = [], [], []
        self._on_outcomes(accepted, others, (lambda: self._settle(confirm)) if confirm else None)

    def _settle(self, deliveries: Sequence[Any]) -> None:
        if self.is_closed:
            return
        for delivery in deliveries:
            lib.pn_delivery_settle(delivery)

    def on_flow(self) -> None:
        if not self.is_closed:
            self._on_credit()

    def drained(self) -> bool:
        """
        There is nothing to send: credit the peer wants drained is used up (AMQP 1.0 section 2.6.7). False: not before
        what is queued is written; the engine would not tell it once the session's window opens.
        """
        link, is_drain = self._link, not self.is_closed and lib.pn_link_get_drain(self._link)
        return not is_drain or (not lib.pn_link_queued(link) and lib.pn_link_drained(link) >= 0)
