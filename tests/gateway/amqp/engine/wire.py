"""
A gateway's end of a connection and a peer's, with no socket or gateway around them: the loops are tested on these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from proton import Collector, Connection, Event, Link, Session, Transport, ulong
from proton import Described as EngineDescribed

from amqp_ext import codec
from amqp_ext.codec import Described, ULong
from amqp_ext.message.annotations import Splicer
from amqp_ext.transactions import Outcome
from gateway.amqp.connection_log import ConnectionLog
from gateway.amqp.engine.conditions import UNBOUNDED, describe
from gateway.amqp.engine.input import EventPump, IncomingTransfers
from gateway.amqp.engine.link_table import LinkTable, Sending
from gateway.amqp.engine.loops import Loops
from gateway.amqp.engine.native import ACCEPTED, MODIFIED, TRANSACTIONAL, push
from gateway.amqp.engine.output import OutgoingTransfers
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import Row
from gateway.ledger import Account, Ledger

WINDOW = 8
MAX_MESSAGE_BYTES = 60_000
FRAME_BYTES = 4096
PROVISIONAL = codec.encode([b"txn", Described(ULong(ACCEPTED), [])])


class Incoming:
    """A link on which we receive. It accepts nothing by itself."""

    def __init__(self, end: End, link: Link, name: str) -> None:
        self.end, self.link, self.name = end, link, name
        self.held: list[tuple[Any, bool]] = []
        """Unsettled deliveries, and whether each is part of a transaction."""
        self.transfers = IncomingTransfers(
            link,
            window=WINDOW,
            max_message_bytes=MAX_MESSAGE_BYTES,
            on_messages=self._arrived,
            on_too_large=self._too_large,
            on_transactional=self._transactional,
            loops=end.loops,
        )
        self.transfers.expect_batches(lambda tag: tag.startswith(b"batch"), self._batch)

    @property
    def incoming(self) -> Callable[[], None]:
        return self.transfers.receive

    @property
    def outgoing(self) -> Sending | None:
        return None

    def _arrived(self, contents: list[bytes], deliveries: list[Any] | None) -> None:
        self.end.told.append((self.name, "messages", contents, deliveries is not None))
        self.held += [(delivery, False) for delivery in deliveries or ()]
        if any(content.startswith(b"detach") for content in contents):
            self.end.table.detach(self.link, None)

    def _too_large(self, size: int, fields: Any) -> None:
        self.end.told.append((self.name, "too large", size, fields))
        self.end.table.detach(self.link, Refused(ErrorCode.MESSAGE_TOO_LARGE, "too large"))

    def _transactional(self, content: bytes, delivery: Any, fields: Any) -> None:
        self.end.told.append((self.name, "transactional", content, delivery is not None, fields))
        if delivery is not None:
            self.held.append((delivery, True))

    def _batch(self, content: bytes, delivery: Any) -> None:
        self.end.told.append((self.name, "batch", content, delivery is not None))
        if delivery is not None:
            self.held.append((delivery, False))

    def settle(self, count: int, how: str) -> None:
        """Give the oldest held deliveries this outcome."""
        some, self.held = self.held[:count], self.held[count:]
        deliveries = [delivery for delivery, _ in some]
        if how == "accept":
            self.transfers.accept(deliveries)
        elif how == "release":
            self.transfers.release(deliveries)
        elif how == "reject":
            self.transfers.reject(deliveries, describe(Refused(ErrorCode.NOT_ALLOWED, "no"), UNBOUNDED))
        else:
            for delivery in deliveries:
                self.transfers.set_provisional_outcome(delivery, PROVISIONAL)

    def detached(self, *, closed: bool) -> None:
        self.transfers.close()
        self.held.clear()

    def lost(self) -> None: ...

    def refuse(self, refused: Refused) -> None: ...


class Outgoing:
    """A link on which we send."""

    def __init__(self, end: End, link: Link, name: str) -> None:
        self.end, self.link, self.name = end, link, name
        self.confirms: list[Callable[[], None]] = []
        self.in_transaction: list[Any] = []
        self.transfers = OutgoingTransfers(
            link,
            Splicer(1),
            end.account,
            self,
            pre_settled=link.remote_snd_settle_mode == Link.SND_SETTLED,
            default_outcome=Outcome(MODIFIED, failed=True),
            loops=end.loops,
        )

    @property
    def incoming(self) -> Callable[[], None] | None:
        return None

    @property
    def outgoing(self) -> Sending:
        return self.transfers

    def on_outcomes(self, accepted: list[int], others: list[Any], confirm: Callable[[], None] | None) -> None:
        self.end.told.append((self.name, "outcomes", accepted, others, confirm is not None))
        if confirm is not None:
            self.confirms.append(confirm)

    def on_credit(self) -> None:
        self.end.told.append((self.name, "credit", self.transfers.credit))

    def on_transactional(self, message_id: int, fields: Any, delivery: Any) -> None:
        self.end.told.append((self.name, "transactional", message_id, fields, delivery is not None))
        if delivery is not None:
            self.in_transaction.append(delivery)

    def send(self, contents: Sequence[bytes]) -> None:
        """Send as many of these as there is credit for."""
        room = self.transfers.room(2**20)
        rows: list[Row] = []
        for content in contents[:room]:
            self.end.sent += 1
            rows.append((self.end.sent, 1_000, "topic", 0, 0, None, content))
        if rows:
            self.transfers.send(rows, {}, None)
        else:
            self.end.told.append((self.name, "drained", self.transfers.drained()))

    def confirm(self) -> None:
        """The outcomes are durable: settle the deliveries that wait for that."""
        while self.confirms:
            self.confirms.pop()()

    def commit(self) -> None:
        """Settle the deliveries that were acknowledged in a transaction."""
        while self.in_transaction:
            self.transfers.settle(self.in_transaction.pop(), ACCEPTED)

    def detached(self, *, closed: bool) -> None:
        self.transfers.close()
        self.end.told.append((self.name, "unsettled", self.transfers.unsettled_count))

    def lost(self) -> None: ...

    def refuse(self, refused: Refused) -> None: ...


class Engine:
    """One end of a connection: proton's objects."""

    def __init__(self, mode: int) -> None:
        self.connection, self.transport, self.collector = Connection(), Transport(mode), Collector()
        self.connection.collect(self.collector)
        self.connection.container = "end" if mode == Transport.SERVER else "peer"
        self.transport.max_frame_size = FRAME_BYTES
        self.transport.bind(self.connection)

    def take(self, data: bytes) -> None:
        """Give it bytes."""
        push(self.transport, data)


class End(Engine):
    """
    Our end: the links of a connection, run by ``loops``.

    Attributes:
        told: What its links were told, in order.
        written: What it wrote, in pieces.
    """

    def __init__(self, loops: Loops) -> None:
        super().__init__(Transport.SERVER)
        self.loops = loops
        self.account: Account = Ledger(2**30, 2**30).open(2**30, lambda _: None)
        self.table = LinkTable(ConnectionLog(1), self.account, lambda: None, loops)
        self.pump = EventPump(self.table, loops)
        self.links: dict[str, Any] = {}
        self.told: list[Any] = []
        self.written: list[bytes] = []
        self.sent = 0

    def read(self, data: bytes) -> None:
        """Handle bytes from the peer, and all events that follow."""
        self.take(data)
        try:
            while not self.pump.pump(self.collector, self._rare):
                pass
        except Refused as refused:
            self.told.append(refused.text)

    def output(self) -> bytes:
        """All that it has to write now."""
        pieces = []
        while data := self.loops.pull(self.loops.handle_of(self.transport._impl)):
            pieces.append(data)
        self.written += pieces
        # Drop the events that the engine raises for its own output.
        self.read(b"")
        return b"".join(pieces)

    def detach(self, name: str) -> None:
        """Detach a link from our side."""
        if name in self.links:
            self.table.detach(self.links[name].link, None)

    def _rare(self) -> bool:
        event = self.collector.peek()
        kind = event.type
        if kind == Event.CONNECTION_REMOTE_OPEN:
            self.connection.open()
        elif kind == Event.SESSION_REMOTE_OPEN:
            self.table.begin_session(event.session)
            event.session.open()
        elif kind == Event.LINK_REMOTE_OPEN:
            self._attach(event.link)
        elif kind in (Event.LINK_REMOTE_CLOSE, Event.LINK_REMOTE_DETACH):
            link = event.link
            self.links.pop(link.name, None)
            self.table.detached(link, closed=True)
        return True

    def _attach(self, link: Link) -> None:
        self.table.count_attach(link, 0)
        self.table.replaced_by(link)
        name = str(link.name)
        attached: Any = (Incoming if link.is_receiver else Outgoing)(self, link, name)
        self.links[name] = attached
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.snd_settle_mode = link.remote_snd_settle_mode
        self.table.register(attached)
        link.open()
        if link.is_receiver:
            attached.transfers.open()


class Peer(Engine):
    """The other end. Its caller says what it does; our end hears of that only in ``exchange``."""

    def __init__(self) -> None:
        super().__init__(Transport.CLIENT)
        self.connection.open()
        self.session: Session = self.connection.session()
        self.session.incoming_capacity = 2**20
        self.session.open()
        self.links: dict[str, Link] = {}
        self.partial: dict[str, Any] = {}
        self.received: dict[str, list[Any]] = {}
        self.tags = 0

    def attach(self, name: str, *, sends: bool, settled: bool = False) -> None:
        link: Link = self.session.sender(name) if sends else self.session.receiver(name)
        link.source.address = link.target.address = name
        if settled:
            link.snd_settle_mode = Link.SND_SETTLED
        link.open()
        self.links[name] = link
        self.received[name] = []

    def begin(self, name: str, content: bytes, *, kind: str) -> None:
        """Begin a delivery, or go on with the one under way."""
        link = self.links.get(name)
        if link is None:
            return
        if name not in self.partial:
            self.tags += 1
            delivery = link.delivery(f"{kind}-{self.tags}")
            if kind == "transactional":
                delivery.local.data = [b"txn"]
                delivery.update(TRANSACTIONAL)
            self.partial[name] = delivery
        link.stream(content)

    def finish(self, name: str, *, settled: bool) -> None:
        delivery = self.partial.pop(name, None)
        if delivery is None:
            return
        if settled:
            delivery.settle()
        else:
            self.links[name].advance()

    def abort(self, name: str) -> None:
        delivery = self.partial.pop(name, None)
        if delivery is not None:
            delivery.abort()

    def credit(self, name: str, count: int, *, drain: bool) -> None:
        link = self.links.get(name)
        if link is None:
            return
        if drain:
            link.drain(count)
        else:
            link.flow(count)

    def acknowledge(self, name: str, said: Sequence[tuple[int, int, int, bool]]) -> None:
        """
        Send dispositions for deliveries that were received.

        Args:
            said: Each: the first delivery's index, how many, the outcome (0 for none), whether they are settled.
        """
        deliveries = self.received.get(name, [])
        for first, count, outcome, is_settled in said:
            for delivery in deliveries[first : first + count]:
                if outcome == TRANSACTIONAL:
                    delivery.local.data = [b"txn", EngineDescribed(ulong(ACCEPTED), [])]
                elif outcome == MODIFIED:
                    delivery.local.failed = True
                    delivery.local.undeliverable = bool(count % 2)
                if outcome:
                    delivery.update(outcome)
                if is_settled:
                    delivery.settle()
            if is_settled:
                del deliveries[first : first + count]

    def detach(self, name: str) -> None:
        link = self.links.pop(name, None)
        if link is not None:
            self.partial.pop(name, None)
            self.received[name].clear()
            link.close()

    def output(self) -> bytes:
        """All that it has to send now."""
        pieces = []
        while (size := self.transport.pending()) > 0:
            pieces.append(self.transport.peek(size))
            self.transport.pop(size)
        return b"".join(pieces)

    def exchange(self, end: End) -> None:
        """Exchange output until neither end has any."""
        while True:
            said = self.output()
            end.read(said)
            answer = end.output()
            if not said and not answer:
                break
            self.take(answer)
            self._take_events()

    def _take_events(self) -> None:
        while (event := self.collector.peek()) is not None:
            if event.type == Event.DELIVERY:
                delivery = event.delivery
                link = delivery.link
                if link.is_receiver and delivery.readable and not delivery.partial:
                    link.recv(delivery.pending)
                    link.advance()
                    if self.links.get(link.name) == link:
                        self.received[link.name].append(delivery)
                elif link.is_sender and delivery.updated and delivery.settled:
                    delivery.settle()
            elif event.type == Event.LINK_REMOTE_CLOSE:
                self.detach(event.link.name)
            self.collector.pop()
