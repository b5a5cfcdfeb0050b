"""
A receiver and a sender of whole encoded messages on a ``Wire``: the loops that run once a message.

Invariant: a link either ends properly (a detach without an error), or the call that notices raises. A
receiver hands out every delivery that came before the end, in order, exactly once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import uuid4

from cproton import ffi, lib

from amqp_ext.codec import Described, Symbol
from amqp_ext.message.fields import BATCHES
from spark_bridge.amqp_client.wire import Wire, mapping, put, refusal
from spark_bridge.errors import Refused
from store.archive.errors import ConnectionFailed

CREDIT = 2_000  # messages in flight to a receiver; 1,000 to 10,000 measured alike
WINDOW = 5_000
"""Messages in flight from a sender: enough that a group commit never waits for the next messages."""

BURST = 128  # messages handed to the engine between two looks at the socket


class Link:
    """What both directions share: attaching, being refused, ending."""

    def __init__(self, wire: Wire, pointer: Any, what: str) -> None:
        """``what`` names the link in errors. The subclass opens it."""
        self._wire = wire
        self._link = pointer
        self._what = what
        self.properties: dict[str, Any] = {}

    def _open(self, remote_terminus: Any) -> None:
        """Attach and wait for the answer. A null terminus in it announces a refusal (AMQP 1.0, 2.6.3)."""
        lib.pn_link_open(self._link)
        while lib.pn_link_state(self._link) & lib.PN_REMOTE_UNINIT:
            self._wire.pump()
        self.properties = mapping(lib.pn_link_remote_properties(self._link))
        if lib.pn_terminus_get_type(remote_terminus(self._link)) == lib.PN_UNSPECIFIED:
            while not lib.pn_link_state(self._link) & lib.PN_REMOTE_CLOSED:
                self._wire.pump()
            raise refusal(lib.pn_link_remote_condition(self._link), f"{self._what} was refused")

    @property
    def ended(self) -> bool:
        """Whether the peer has ended the link properly; raises Refused if it did so with an error."""
        if not lib.pn_link_state(self._link) & lib.PN_REMOTE_CLOSED:
            return False
        condition = lib.pn_link_remote_condition(self._link)
        if lib.pn_condition_is_set(condition):
            raise refusal(condition, f"{self._what} was ended by the broker")
        return True

    def detach(self) -> None:
        """Close the link and wait until the peer has; everything settled before has reached it by then."""
        lib.pn_link_close(self._link)
        while not self.ended:
            self._wire.pump()


class Receiver(Link):
    """
    Messages from ``address``. With ``settled`` the sender is asked to settle them itself (at most once);
    otherwise each is accepted as it is taken.
    """

    def __init__(
        self,
        wire: Wire,
        address: str,
        *,
        filters: Mapping[str, Described] | None = None,
        settled: bool = False,
        batches: bool = False,
        credit: int = CREDIT,
    ) -> None:
        """
        Attach; no credit is granted before the first ``receive``.

        With ``batches`` a log's sender is asked for many messages in a delivery, see
        ``amqp_ext.message.fields``; ``in_batches`` tells whether it does so.

        Raises:
            Refused: The broker refuses the link.
            ConnectionFailed: The connection was lost.
        """
        pointer = lib.pn_receiver(wire.session, f"rewind-{uuid4().hex[:12]}".encode())
        super().__init__(wire, pointer, f"Reading {address} from {wire.broker.url}")
        self._credit = credit
        self._buffer = ffi.new("char[]", 64 * 1024)
        source = lib.pn_link_source(pointer)
        lib.pn_terminus_set_address(source, address.encode())
        if filters:
            put(lib.pn_terminus_filter(source), {Symbol(key): value for key, value in filters.items()})
        if settled:
            lib.pn_link_set_snd_settle_mode(pointer, lib.PN_SND_SETTLED)
        if batches:
            put(lib.pn_link_properties(pointer), {Symbol(BATCHES): True})
        self._open(lib.pn_link_remote_source)
        self.in_batches = batches and self.properties.get(BATCHES) is True
        self._is_settled = lib.pn_link_remote_snd_settle_mode(pointer) == lib.PN_SND_SETTLED
        self.source_filter = mapping(lib.pn_terminus_filter(lib.pn_link_remote_source(pointer)))

    def receive(self, limit: int) -> list[bytes]:
        """The next deliveries, up to ``limit``; waits for the first. An empty list: the link has ended."""
        while True:
            low = lib.pn_link_credit(self._link)
            if low <= self._credit // 2:
                lib.pn_link_flow(self._link, self._credit - low)
            if taken := self._collect(limit):
                return taken
            if self.ended:
                return []
            self._wire.pump()

    def has_more(self) -> bool:
        """Whether a message has come, or the link has ended; does not wait."""
        if lib.pn_link_credit(self._link) <= 0:
            lib.pn_link_flow(self._link, self._credit)
        self._wire.pump(0)
        return bool(lib.pn_link_current(self._link)) or self.ended

    def drain(self) -> list[bytes]:
        """All that the sender has for this link now, using up the credit (AMQP 1.0, 2.6.7)."""
        lib.pn_link_set_drain(self._link, True)
        taken = self._collect(1 << 30)
        while lib.pn_link_draining(self._link) and not self.ended:
            self._wire.pump()
            taken += self._collect(1 << 30)
        lib.pn_link_set_drain(self._link, False)
        return taken + self._collect(1 << 30)

    def _collect(self, limit: int) -> list[bytes]:
        """Messages of complete deliveries that the engine holds. Only the last delivery it holds may be incomplete."""
        link, buffer, size, is_settled = self._link, self._buffer, len(self._buffer), self._is_settled
        current, pending, receive, unpack, advance, settle = (
            lib.pn_link_current, lib.pn_delivery_pending, lib.pn_link_recv, ffi.unpack, lib.pn_link_advance,
            lib.pn_delivery_settle,
        )  # fmt: skip
        taken: list[bytes] = []
        held = lib.pn_link_queued(link)
        for left in range(held, max(held - limit, 0), -1):
            delivery = current(link)
            if not delivery or (left == 1 and lib.pn_delivery_partial(delivery)):
                break
            length = pending(delivery)
            if length > size:
                size = length
                buffer = self._buffer = ffi.new("char[]", size)
            if receive(link, buffer, size) == length:
                taken.append(unpack(buffer, length))
            elif not lib.pn_delivery_aborted(delivery):
                raise ConnectionFailed(
                    f"{self._what} failed: a message of {length} bytes could not be received."
                )
            if not is_settled and not lib.pn_delivery_settled(delivery):
                lib.pn_delivery_update(delivery, lib.PN_ACCEPTED)
            advance(link)
            settle(delivery)
        return taken


class Sender(Link):
    """Messages to ``address``; with None, each to the address in its ``to`` (anonymous relay)."""

    def __init__(self, wire: Wire, address: str | None) -> None:
        """
        Attach.

        Raises:
            Refused: The broker refuses the link.
            ConnectionFailed: The connection was lost.
        """
        pointer = lib.pn_sender(wire.session, f"rewind-{uuid4().hex[:12]}".encode())
        super().__init__(
            wire, pointer, f"Sending to {address or 'each message’s own address'} at {wire.broker.url}"
        )
        target = lib.pn_link_target(pointer)
        if address is None:
            lib.pn_terminus_set_type(target, lib.PN_TARGET)
        else:
            lib.pn_terminus_set_address(target, address.encode())
        self._unsettled: deque[Any] = deque()
        self._open(lib.pn_link_remote_target)

    def send(self, messages: Iterable[bytes], progress: Callable[[int], None] = lambda accepted: None) -> int:
        """
        Send all, wait until the broker has accepted all, and return how many.

        ``progress`` is called now and then, with the number of accepted messages.

        Raises:
            Refused: A message was not accepted, or the broker ended the link.
        """
        link, unsettled = self._link, self._unsettled
        credit, deliver, transfer, advance = (
            lib.pn_link_credit, lib.pn_delivery, lib.pn_link_send, lib.pn_link_advance
        )  # fmt: skip
        accepted = 0
        for sent, message in enumerate(messages, start=1):
            while credit(link) <= 0 or len(unsettled) >= WINDOW:
                self._wait()
                accepted += self._settle()
                progress(accepted)
            tag = sent.to_bytes(8, "big")
            unsettled.append(deliver(link, (8, ffi.from_buffer(tag))))
            transfer(link, message, len(message))
            advance(link)
            if sent % BURST == 0:
                self._wire.pump(0)
                accepted += self._settle()
                progress(accepted)
        while unsettled:
            self._wait()
            accepted += self._settle()
            progress(accepted)
        return accepted

    def _wait(self) -> None:
        if self.ended:
            raise Refused(f"{self._what} was ended by the broker before all was sent.")
        self._wire.pump()

    def _settle(self) -> int:
        """Settle the oldest deliveries up to the first without an outcome; how many were accepted."""
        unsettled, count = self._unsettled, 0
        while unsettled and (state := lib.pn_delivery_remote_state(unsettled[0])):
            delivery = unsettled.popleft()
            if state != lib.PN_ACCEPTED:
                raise self._not_accepted(delivery, state)
            lib.pn_delivery_settle(delivery)
            count += 1
        return count

    def _not_accepted(self, delivery: Any, state: int) -> Refused:
        condition = lib.pn_disposition_condition(lib.pn_delivery_remote(delivery))
        if state == lib.PN_REJECTED and lib.pn_condition_is_set(condition):
            return refusal(condition, f"{self._what}: a message was rejected")
        outcome = {lib.PN_REJECTED: "rejected", lib.PN_RELEASED: "released", lib.PN_MODIFIED: "modified"}
        return Refused(f"{self._what}: a message was {outcome.get(state, 'not accepted')}.")
