"""A broker for tests: one thread that answers log readers from a dictionary, and misbehaves on request.

It uses proton's public engine, so the bridge's direct use of the C engine is tested against other code.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import Any

from proton import Collector, Condition, Connection, Endpoint, Event, Link, Terminus, Transport, symbol, ulong
from proton import Described as ProtonDescribed

from amqp_ext.codec import Described, Symbol, Timestamp, encode
from amqp_ext.message.fields import BATCHES, batch_of
from spark_bridge.amqp_client.wire import Broker

REPLAY_START = "rewind:replay-start"


def annotated(offset: int, *sections: Described, topic: str = "t/a", **more: Any) -> bytes:
    """An encoded message as a log reader gets it: the broker's annotations, then ``sections``."""
    annotations = {
        Symbol("x-opt-sequence-number"): offset,
        Symbol("x-opt-offset"): str(offset),
        Symbol("x-opt-enqueued-time"): Timestamp(1_700_000_000_000 + offset),
        Symbol("x-opt-topic"): topic,
        Symbol("x-opt-replay-id"): f"rmid1:{offset:05x}",
    }
    annotations |= {Symbol(key): value for key, value in more.items()}
    return b"".join(encode(section) for section in (Described(0x72, annotations), *sections))


def data(body: bytes) -> Described:
    """A data section."""
    return Described(0x75, body)


@dataclass
class LogPeer:
    """A log of encoded messages by id, served to any number of connections, one after the other.

    Its faults: ``refusal`` answers every attach with an error. ``echo`` off leaves the filter out of the reply.
    ``stop_after`` ends a read after so many messages, as ``ending`` says ("error": detach with an error, "drop":
    close the socket, "silent": do nothing more). ``bounds`` off sends beyond ``until``. ``first`` overrides the first
    id in the reply. With ``batch`` it grants batches of so many messages, and ``cut`` removes bytes from the end of
    each batch.
    """

    messages: dict[int, bytes] = field(default_factory=dict)
    generation: int = 7
    refusal: tuple[str, str] | None = None
    echo: bool = True
    bounds: bool = True
    stop_after: int | None = None
    ending: str = "error"
    first: int | None = None
    batch: int = 0
    cut: int = 0
    port: int = 0
    attaches: list[tuple[str, Any]] = field(default_factory=list)
    received: list[bytes] = field(default_factory=list)
    outcome: str = "ACCEPTED"

    @property
    def broker(self) -> Broker:
        """The peer's address, as the bridge's ``Broker``."""
        return Broker("127.0.0.1", self.port)

    @property
    def url(self) -> str:
        """The peer's address, as the option ``url``."""
        return self.broker.url

    def extent(self) -> tuple[int, int]:
        """First and last id of the log; (1, 0) when empty."""
        return (min(self.messages), max(self.messages)) if self.messages else (1, 0)

    def serve(self, listener: socket.socket) -> None:
        """Accept and answer until the listener is closed."""
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with sock:
                Conversation(self, sock).run()


class Conversation:
    """One connection to a LogPeer."""

    def __init__(self, peer: LogPeer, sock: socket.socket) -> None:
        self.peer, self.sock = peer, sock
        self.transport = Transport(Transport.SERVER)
        self.transport.sasl().allowed_mechs("ANONYMOUS")
        self.connection, self.collector = Connection(), Collector()
        self.connection.collect(self.collector)
        self.transport.bind(self.connection)
        self.replays: dict[str, list[int]] = {}
        self.endless: set[str] = set()
        self.sent = 0
        self.dropped = False

    def run(self) -> None:
        """Pump bytes and answer events until either side is done."""
        while not self.dropped:
            while event := self.collector.peek():
                self.answer(event)
                self.collector.pop()
            while not self.dropped and (pending := self.transport.pending()) > 0:
                self.sock.sendall(self.transport.peek(pending))
                self.transport.pop(pending)
            if self.dropped or self.transport.closed:
                return
            try:
                received = self.sock.recv(max(1, min(4096, self.transport.capacity())))
            except OSError:
                return
            if not received:
                return
            self.transport.push(received)

    def answer(self, event: Event) -> None:
        """React to an event of the bridge's side; the engine handles all others."""
        match event.type:
            case Event.CONNECTION_REMOTE_OPEN:
                self.connection.open()
            case Event.CONNECTION_REMOTE_CLOSE:
                self.connection.close()
            case Event.SESSION_REMOTE_OPEN:
                event.session.open()
            case Event.LINK_REMOTE_OPEN:
                self.attach(event.link)
            case Event.LINK_FLOW:
                self.send(event.link)
            case Event.LINK_REMOTE_CLOSE:
                event.link.close()
            case Event.DELIVERY:
                self.receive(event.delivery)

    def attach(self, link: Link) -> None:
        """Refuse the link, or resolve its start and echo it."""
        peer = self.peer
        if link.is_receiver:
            link.target.copy(link.remote_target)
            link.open()
            link.flow(1_000)
            return
        asked = dict(link.remote_source.filter.get_object() or {}) if link.remote_source.filter.next() else {}
        (value,) = [entry.value for entry in asked.values() if entry.descriptor == REPLAY_START]
        peer.attaches.append((link.remote_source.address, value))
        if peer.refusal:
            link.source.type = Terminus.UNSPECIFIED
            link.open()
            link.condition = Condition(*peer.refusal)
            link.close()
            return
        first, last = peer.extent()
        start = (
            {"beginning": first, "live": last + 1}.get(value, 0)
            if isinstance(value, str)
            else value["offset"]
        )
        if isinstance(value, str) and value.startswith("#"):
            start = int(value[1:])
        if value == "live":
            self.endless.add(link.name)
        until = last if isinstance(value, str) else value["until"]
        link.source.copy(link.remote_source)
        link.source.filter.clear()
        if peer.echo:
            resolved = {symbol("offset"): ulong(start), symbol("until"): ulong(until)}
            link.source.filter.put_object(
                {symbol(REPLAY_START): ProtonDescribed(symbol(REPLAY_START), resolved)}
            )
        link.properties = {
            symbol("rewind:replay-first"): ulong(first if peer.first is None else peer.first),
            symbol("rewind:replay-last"): ulong(last),
            symbol("rewind:replay-generation"): ulong(peer.generation),
        }
        if peer.batch and (link.remote_properties or {}).get(symbol(BATCHES)) is True:
            link.properties[symbol(BATCHES)] = True
        link.snd_settle_mode = Link.SND_SETTLED
        link.open()
        ids = sorted(peer.messages)
        self.replays[link.name] = [n for n in ids if n >= start and (n <= until or not peer.bounds)]

    def send(self, link: Link) -> None:
        """Send messages while there is credit; detach after the last message."""
        queue = self.replays.get(link.name)
        if queue is None or not link.state & Endpoint.LOCAL_ACTIVE:
            return
        while link.credit > 0 and queue:
            if self.sent == self.peer.stop_after:
                self.break_off(link)
                return
            delivery = link.delivery(str(self.sent))
            link.send(self.next_of(queue))
            delivery.settle()
            self.sent += 1
        if not queue and link.credit and link.name not in self.endless:
            link.close()

    def next_of(self, queue: list[int]) -> bytes:
        """The content of the next delivery: a message, or a batch."""
        peer = self.peer
        if not peer.batch:
            return peer.messages[queue.pop(0)]
        messages = [peer.messages[n] for n in queue[: peer.batch]]
        del queue[: peer.batch]
        envelope = batch_of([b""] * len(messages), messages)
        return envelope[: len(envelope) - peer.cut]

    def break_off(self, link: Link) -> None:
        """End a read too early, as ``ending`` says."""
        if self.peer.ending == "drop":
            self.dropped = True
        elif self.peer.ending == "error":
            link.condition = Condition("amqp:resource-deleted", "trimmed during the replay")
            link.close()

    def receive(self, delivery: Any) -> None:
        """Keep a received message, and settle it with the peer's ``outcome``."""
        link = delivery.link
        if not link.is_receiver or delivery.partial or not delivery.readable:
            return
        self.peer.received.append(link.recv(delivery.pending))
        delivery.local.condition = Condition("amqp:resource-limit-exceeded", "the log is full")
        delivery.update(getattr(delivery, self.peer.outcome))
        delivery.settle()  # which also advances the link
        link.flow(1)
