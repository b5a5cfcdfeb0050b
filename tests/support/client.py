"""The AMQP client of the tests: proton's engine over a plain blocking socket, with links, settlement and filters.

It keeps to the protocol; ``tests.support.peer`` breaks its rules. It runs on the caller's thread alone, and reads and
writes only during calls of its methods, while they wait for a condition. Messages are bytes in both directions.
"""

from __future__ import annotations

import itertools
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

from cproton_ffi import ffi, lib
from proton import (
    UNDESCRIBED,
    Array,
    Collector,
    Condition,
    Connection,
    Data,
    Delivery,
    Described,
    Endpoint,
    Link,
    Session,
    Terminus,
    Transport,
    symbol,
)

from tests.support.messages import content_of, take_apart

T = TypeVar("T")

WAIT_SECONDS = 20.0
"""How long a condition may take to come true before the test fails: long, because test machines are busy."""

_names = itertools.count(1)


class Refused(Exception):
    """The peer answered an attach with a refusal, or detached or closed with an error."""

    def __init__(self, condition: Condition | None) -> None:
        super().__init__(
            "without an error" if condition is None else f"{condition.name}: {condition.description}"
        )
        self.name: str = "" if condition is None else str(condition.name)
        self.text: str = "" if condition is None else condition.description or ""
        self.info: dict[str, Any] = {} if condition is None or not condition.info else dict(condition.info)

    @property
    def replay_error(self) -> str | None:
        """The info map's ``rewind:replay-error``."""
        found = self.info.get("rewind:replay-error")
        return None if found is None else str(found)

    @property
    def subcode(self) -> int | None:
        """The info map's ``subcode``."""
        return self.info.get("subcode")

    @property
    def replay_refusal(self) -> tuple[str, str | None, int | None]:
        """The condition, the replay error and its subcode, as in the table of refusals."""
        return self.name, self.replay_error, self.subcode


SELECTOR: Final = "apache.org:selector-filter:string"
NO_LOCAL: Final = "apache.org:no-local-filter:list"
BEGINNING: Final = {"rewind:replay-start": "beginning"}
"""A filter-set that asks for the whole log."""

MESSAGE_UNAVAILABLE: Final = ("amqp:resource-deleted", "message-unavailable", 140)
"""``Refused.replay_refusal`` of a reader whose next messages have left the log."""


class Received:
    """A delivery that arrived completely."""

    def __init__(self, raw: bytes, delivery: Delivery) -> None:
        self.raw = raw
        self.delivery = delivery

    @cached_property
    def _parts(self) -> tuple[list[Any] | None, dict[str, Any], bytes]:
        # Decoded on first use: tests look at a part of most messages, and at nothing of many.
        header, annotations, bare = take_apart(self.raw)
        return header, dict(annotations or {}), bare

    @property
    def header(self) -> list[Any] | None:
        """The fields of the header section; None if the message has none."""
        return self._parts[0]

    @property
    def annotations(self) -> dict[str, Any]:
        """The message annotations."""
        return self._parts[1]

    @property
    def bare(self) -> bytes:
        """The bare message."""
        return self._parts[2]

    @cached_property
    def text(self) -> str:
        """The body, if it is a data section."""
        return content_of(self.bare)

    @property
    def id(self) -> int:
        """The message's number in its Message VPN."""
        return int(self.annotations["x-opt-sequence-number"])

    @property
    def delivery_count(self) -> int:
        """Failed deliveries before this one, from the header."""
        return (
            int(self.header[4]) if self.header is not None and len(self.header) > 4 and self.header[4] else 0
        )

    @property
    def is_end(self) -> bool:
        """Whether this message is marked as the last one before live."""
        return bool(self.annotations.get("x-opt-replay-end", False))


class Client:
    """One connection with one session, which links use unless another session is given."""

    def __init__(
        self,
        address: str,
        *,
        hostname: str | None = None,
        container: str | None = None,
        max_frame_size: int | None = None,
        idle_timeout: float | None = None,
        user: tuple[str, str] | None = None,
        properties: dict[Any, Any] | None = None,
    ) -> None:
        """
        Args:
            address: HOST:PORT, or a URL.
            hostname: The hostname in the open frame; the address's host if None.
            container: The container id of the open frame; a new unique one if None.
            max_frame_size: The largest frame that the client accepts, in bytes.
            idle_timeout: The idle time-out of the open frame, in seconds.
            properties: The properties of the open frame.
            user: Name and password for SASL PLAIN; without them the client does not use SASL.
        """
        if "://" in address:
            address = urlsplit(address).netloc
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=WAIT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self.transport = Transport()
        if max_frame_size is not None:
            self.transport.max_frame_size = max_frame_size
        if idle_timeout is not None:
            self.transport.idle_timeout = idle_timeout
        self.connection = Connection()
        self._collector = Collector()
        self.connection.collect(self._collector)
        self.connection.container = f"test-{next(_names)}" if container is None else container
        if properties:
            self.connection.properties = properties
        self.connection.hostname = host if hostname is None else hostname
        if user is not None:
            self.connection.user, self.connection.password = user
            sasl = self.transport.sasl()
            sasl.allow_insecure_mechs = True
            sasl.allowed_mechs("PLAIN")
        self.transport.bind(self.connection)
        self._receivers: dict[Link, Receiver] = {}
        self._detached: set[Link] = set()
        self.is_cut = False
        self.connection.open()
        self.wait(
            lambda: self.connection.state & (Endpoint.REMOTE_ACTIVE | Endpoint.REMOTE_CLOSED),
            "the peer opens the connection",
        )
        if self.connection.state & Endpoint.REMOTE_ACTIVE:
            self.session = self.open_session()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.cut()

    # --- connection and sessions -----------------------------------------------------------------------------

    def open_session(self) -> Session:
        """One more session."""
        session = self.connection.session()
        session.open()
        self.wait(lambda: session.state & Endpoint.REMOTE_ACTIVE, "the peer begins the session")
        return session

    def close(self) -> None:
        """Close the connection as AMQP requires, and wait for the peer's close."""
        if not self.is_cut:
            self.connection.close()
            self.wait(
                lambda: self.is_cut or self.connection.state & Endpoint.REMOTE_CLOSED, "the peer closes"
            )
        self.cut()

    def cut(self) -> None:
        """Close the socket without a close frame, as when the network breaks."""
        if self._socket.fileno() >= 0:
            self._socket.close()
        self.is_cut = True

    def closed_by_peer(self) -> Refused:
        """Wait until the peer closes the connection; returns its error."""
        self.wait(lambda: self.connection.state & Endpoint.REMOTE_CLOSED, "the peer closes the connection")
        return Refused(self.connection.remote_condition)

    # --- links -----------------------------------------------------------------------------------------------

    def sender(
        self,
        address: str | None,
        *,
        name: str | None = None,
        session: Session | None = None,
        dynamic: bool = False,
        capabilities: Sequence[str] = (),
        snd_settle_mode: int = Link.SND_MIXED,
        rcv_settle_mode: int = Link.RCV_FIRST,
        set_up: Callable[[Link], None] | None = None,
    ) -> Sender:
        """
        Attach a link to send on. Without an address, and not dynamic, it leads to the anonymous relay.

        Raises:
            Refused: The peer refused it.
        """
        link = (session or self.session).sender(name or f"sender-{next(_names)}")
        if address is not None:
            link.target.address = address
        link.target.dynamic = dynamic
        _put_capabilities(link.target, capabilities)
        link.snd_settle_mode, link.rcv_settle_mode = snd_settle_mode, rcv_settle_mode
        if set_up is not None:
            set_up(link)
        link.open()
        self._answered(link)
        return Sender(self, link)

    def receiver(
        self,
        address: str | None,
        *,
        credit: int = 0,
        name: str | None = None,
        session: Session | None = None,
        dynamic: bool = False,
        durable: bool = False,
        capabilities: Sequence[str] = (),
        filters: dict[str, Any] | None = None,
        snd_settle_mode: int = Link.SND_MIXED,
        rcv_settle_mode: int = Link.RCV_FIRST,
        set_up: Callable[[Link], None] | None = None,
    ) -> Receiver:
        """
        Attach a link to receive on.

        Args:
            credit: Granted right after the attach; it is not renewed.
            durable: Expiry policy never and durability unsettled-state, which make a topic subscription durable.
            filters: The filter-set: values by descriptor, which is also the key. ``Described`` values stay as they are.

        Raises:
            Refused: The peer refused it.
        """
        link = (session or self.session).receiver(name or f"receiver-{next(_names)}")
        source = link.source
        if address is not None:
            source.address = address
        source.dynamic = dynamic
        if durable:
            source.durability, source.expiry_policy = Terminus.DELIVERIES, Terminus.EXPIRE_NEVER
        _put_capabilities(source, capabilities)
        if filters is not None:
            source.filter.put_object(
                {
                    symbol(key): value if isinstance(value, Described) else Described(symbol(key), value)
                    for key, value in filters.items()
                }
            )
        link.snd_settle_mode, link.rcv_settle_mode = snd_settle_mode, rcv_settle_mode
        if set_up is not None:
            set_up(link)
        receiver = Receiver(self, link)
        self._receivers[link] = receiver
        link.open()
        self._answered(link)
        if credit:
            receiver.flow(credit)
        return receiver

    def read_log(self, topics: str = ">", start: str = "beginning", more: str = "") -> list[Received]:
        """The log's present messages of some topics, from a start that is given as in an address."""
        return self.receiver(f"log://{topics}?replay-start={start}&until=now{more}").take_to_end()

    def watch(self, receiver: Receiver) -> None:
        """Receive messages also on a link that the test opened by hand."""
        self._receivers[receiver.link] = receiver

    def is_detached(self, link: Link) -> bool:
        """Whether the peer has detached or closed a link."""
        # The engine keeps no state of a detach without close: there is only an event.
        return link in self._detached or bool(link.state & Endpoint.REMOTE_CLOSED)

    def _answered(self, link: Link) -> None:
        self.wait(
            lambda: link.state & (Endpoint.REMOTE_ACTIVE | Endpoint.REMOTE_CLOSED), "the attach is answered"
        )
        terminus = link.remote_target if link.is_sender else link.remote_source
        if terminus.type == Terminus.UNSPECIFIED:
            # Refused as section 2.6.3 has it: a null terminus, and a detach that says why.
            self.wait(lambda: link.state & Endpoint.REMOTE_CLOSED, "the refused link is detached")
            refused = Refused(link.remote_condition)
            link.close()
            self._write()  # Otherwise the engine would send a later attach of the same name first.
            raise refused

    # --- input and output ------------------------------------------------------------------------------------

    def wait(
        self, condition: Callable[[], T], what: str, seconds: float = WAIT_SECONDS, turn: float = 0.05
    ) -> T:
        """
        Read and write until ``condition`` is true; returns its result. Fails with ``what`` after ``seconds``.

        Args:
            turn: Seconds between calls of ``condition`` while nothing arrives: it may look into the gateway.
        """
        deadline = time.monotonic() + seconds
        self._write()
        while not (found := condition()):
            left = deadline - time.monotonic()
            assert left > 0, f"waited {seconds} s in vain: {what} ({self.connection.remote_condition})"
            assert not self.is_cut, f"the connection is gone while waiting: {what}"
            self._turn(min(left, turn))
        self._write()
        return found

    def _write(self) -> bool:
        """Write as much as the socket takes; returns whether more is left."""
        if self.is_cut:
            return False
        transport = self.transport
        while (pending := transport.pending()) > 0:
            try:
                written = self._socket.send(transport.peek(pending))
            except BlockingIOError:
                return True
            except OSError:
                self.cut()
                return False
            transport.pop(written)
        return False

    def _turn(self, seconds: float) -> None:
        has_more = self._write()
        if self.is_cut:
            return
        readable, _, _ = select.select([self._socket], [self._socket] if has_more else [], [], seconds)
        self.transport.tick(time.monotonic())
        if readable:
            try:
                read = self._socket.recv(min(1 << 18, max(self.transport.capacity(), 1)))
            except OSError:
                read = b""
            if read:
                self.transport.push(read)
            else:
                self.transport.close_tail()
                self.cut()
        self._handle()
        self._write()

    def _handle(self) -> None:
        # By the binding's C functions: proton makes five objects of each event, which takes longer than all else here.
        collector = self._collector._impl
        while (event := lib.pn_collector_peek(collector)) != ffi.NULL:
            kind = lib.pn_event_type(event)
            if kind == lib.PN_DELIVERY and self._receivers:
                receiver = self._receivers.get(Link.wrap(lib.pn_event_link(event)))
                if receiver is not None:
                    receiver.read()
            elif kind == lib.PN_LINK_REMOTE_DETACH:
                self._detached.add(Link.wrap(lib.pn_event_link(event)))
            lib.pn_collector_pop(collector)


class _End:
    """What senders and receivers have in common."""

    def __init__(self, client: Client, link: Link) -> None:
        self.client = client
        self.link = link

    def close(self) -> None:
        """Detach for good, and wait for the peer's answer."""
        self.link.close()
        self.client.wait(lambda: self.link.state & Endpoint.REMOTE_CLOSED, "the peer closes the link")
        self.link.free()

    def detach(self) -> None:
        """Detach without closing, so that the terminus may live on."""
        self.link.detach()
        self.client.wait(lambda: self.client.is_detached(self.link), "the peer detaches the link, too")
        self.link.free()

    def detached_by_peer(self) -> Refused:
        """Wait until the peer detaches; returns its error."""
        self.client.wait(lambda: self.link.state & Endpoint.REMOTE_CLOSED, "the peer detaches the link")
        refused = Refused(self.link.remote_condition)
        self.link.close()
        self.client.wait(lambda: True, "the answer is written")
        return refused


class Sender(_End):
    """The sending end of a link."""

    @property
    def address(self) -> str:
        """The target address in the peer's attach: for a dynamic node its name."""
        return str(self.link.remote_target.address)

    def send(self, raw: bytes, *, settled: bool = False) -> Delivery:
        """Send one message as soon as there is credit for it."""
        if self.link.credit <= 0:
            self.client.wait(lambda: self.link.credit > 0, "there is credit")
        delivery = self.link.delivery(f"{next(_names)}")
        self.link.stream(raw)
        if settled:
            delivery.settle()
        self.link.advance()
        return delivery

    def outcome(self, delivery: Delivery) -> str:
        """Wait for a delivery's outcome: ``ACCEPTED``, ``REJECTED`` …"""
        self.client.wait(
            lambda: delivery.remote_state or delivery.settled or self._is_gone(), "there is an outcome"
        )
        return delivery.remote_state.name if delivery.remote_state else "NONE"

    def rejection(self, delivery: Delivery) -> Refused:
        """Wait until a delivery is rejected; returns the error."""
        assert self.outcome(delivery) == "REJECTED"
        return Refused(delivery.remote.condition)

    def send_all(self, messages: Iterable[bytes]) -> None:
        """Send messages and wait until every one is accepted."""
        deliveries = [self.send(raw) for raw in messages]
        for delivery in deliveries:
            assert self.outcome(delivery) == "ACCEPTED"
            delivery.settle()

    def outcomes(self, messages: Iterable[bytes]) -> list[str]:
        """Send messages, and wait for their outcomes."""
        deliveries = [self.send(raw) for raw in messages]
        return [self.outcome(delivery) for delivery in deliveries]

    def _is_gone(self) -> bool:
        return bool(self.link.state & Endpoint.REMOTE_CLOSED)


class Receiver(_End):
    """The receiving end of a link. Messages that have arrived are in ``arrived`` until they are taken."""

    def __init__(self, client: Client, link: Link) -> None:
        super().__init__(client, link)
        self.arrived: deque[Received] = deque()

    @property
    def address(self) -> str:
        """The source address in the peer's attach: for a dynamic node its name."""
        return str(self.link.remote_source.address)

    @property
    def filters(self) -> dict[str, Any]:
        """The filter-set in the peer's attach: the filters that are in place, by key."""
        found = self.link.remote_source.filter
        found.rewind()
        return dict(found.get_object()) if found.next() else {}

    @property
    def start(self) -> dict[str, Any]:
        """The resolved start of the replay: the value of the reply's ``rewind:replay-start``."""
        return dict(self.filters["rewind:replay-start"].value)

    def read(self) -> None:
        """Take the complete deliveries from the engine."""
        while (delivery := self.link.current) is not None and not delivery.partial:
            raw = self.link.recv(delivery.pending) if delivery.pending else b""
            self.link.advance()
            self.arrived.append(Received(raw or b"", delivery))

    def flow(self, credit: int) -> None:
        """Grant more credit."""
        self.link.flow(credit)

    def take(self, count: int) -> list[Received]:
        """Wait for this many messages and take them; credit for them must have been granted."""
        self.client.wait(lambda: len(self.arrived) >= count, f"{count} messages arrive")
        return [self.arrived.popleft() for _ in range(count)]

    def take_and_accept(self, count: int) -> list[Received]:
        """Wait for this many messages, accept and settle them."""
        taken = self.take(count)
        self.settle(taken)
        return taken

    def collect(self, taken: list[Received], count: int, credit: int = 500) -> None:
        """Take and accept messages, ``credit`` at a time, until ``taken`` has at least ``count``."""
        while len(taken) < count:
            if self.link.credit <= credit // 2:
                self.flow(credit - self.link.credit)
            self.client.wait(lambda: self.arrived, "another message arrives")
            taken += self.take_and_accept(len(self.arrived))

    def drain(self, credit: int = 1_000) -> list[Received]:
        """Grant this much credit with drain; returns the messages that the peer had to send."""
        self.link.drain(credit)
        self.client.wait(lambda: not self.link.draining(), "credit is drained")
        self.link.drain_mode = False
        taken = list(self.arrived)
        self.arrived.clear()
        return taken

    def update(self, messages: Iterable[Received], outcome: int = Delivery.ACCEPTED) -> None:
        """Send an outcome for messages without settling them."""
        for message in messages:
            message.delivery.update(outcome)

    def settle(self, messages: Iterable[Received], outcome: int | None = Delivery.ACCEPTED) -> None:
        """Settle messages, with an outcome or without."""
        for message in messages:
            if outcome is not None:
                message.delivery.update(outcome)
            message.delivery.settle()

    def modify(
        self,
        messages: Iterable[Received],
        *,
        failed: bool = False,
        undeliverable: bool = False,
        again: Any = None,
    ) -> None:
        """Settle messages as modified; ``again`` is the time of their redelivery."""
        for message in messages:
            if again is not None:
                message.delivery.local.annotations = {symbol("x-opt-delivery-time"): again}
            message.delivery.local.failed = failed
            message.delivery.local.undeliverable = undeliverable
            message.delivery.update(Delivery.MODIFIED)
            message.delivery.settle()

    def take_to_end(self, credit: int = 500) -> list[Received]:
        """Accept all messages of a bounded replay until the peer detaches without an error at its end."""
        taken: list[Received] = []
        while not self.link.state & Endpoint.REMOTE_CLOSED:
            if self.link.credit < credit // 2:
                self.flow(credit - self.link.credit)
            self.client.wait(
                lambda: self.arrived or self.link.state & Endpoint.REMOTE_CLOSED,
                "there is another message or the end",
            )
            while self.arrived:
                message = self.arrived.popleft()
                self.settle([message])
                taken.append(message)
        refused = self.detached_by_peer()
        assert not refused.name, refused
        return taken


def _put_capabilities(terminus: Terminus, capabilities: Sequence[str]) -> None:
    if capabilities:
        terminus.capabilities.put_object(Array(UNDESCRIBED, Data.SYMBOL, *map(symbol, capabilities)))


def texts(messages: Iterable[Received]) -> list[str]:
    """The bodies of messages."""
    return [message.text for message in messages]


def refusal(attach: Callable[..., Any], *arguments: Any, **options: Any) -> Refused:
    """The refusal of an attach; fails if the attach succeeds."""
    try:
        attach(*arguments, **options)
    except Refused as refused:
        return refused
    raise AssertionError("the attach is not refused")


def browsing(link: Link) -> None:
    """Sets up a link that browses (distribution mode copy)."""
    link.source.distribution_mode = Terminus.DIST_MODE_COPY


def with_properties(properties: dict[str, Any]) -> Callable[[Link], None]:
    """Sets up a link with properties, by symbol."""

    def set_up(link: Link) -> None:
        link.properties = {symbol(key): value for key, value in properties.items() if value is not None}

    return set_up


def numbered(*numbers: int) -> list[str]:
    """The numbers of ``range`` with these arguments, as texts."""
    return [str(number) for number in range(*numbers)]
