"""
What one connection reads: bytes go to its engine, the engine's events to the links and sessions that they are about,
and messages to the links that they came on. It calls proton's C engine directly.

Transfers, dispositions and credit go to their links in batches: the loop over events has one round for a run of events
of one link, not for each event. Events about sessions, links and their ends may take a while, and thousands fit into
one read: only some of them are handled in a turn of the loop.

The work for each message is in the loops (``python_loops``, ``native_loops``), which the benchmark measures. The work
for each call of the loops, and for the few messages that are taken alone, is here.

Safety: a C delivery lives as long as its link; once a link is closed here, its deliveries are never touched again.
Deliveries are always passed on as handles of the loops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from cproton_ffi import ffi, lib
from proton import Collector, Event, Link, Transport

from amqp_ext.frames.flow import StateRequest, fields_of, frames_of, with_link_state
from amqp_ext.frames.performatives import FLOW
from amqp_ext.frames.walk import Finding, FrameWalk, Piece
from gateway.amqp.engine.link_table import LinkTable, Sending
from gateway.amqp.engine.loops import LOOPS, Loops, pull
from gateway.amqp.engine.native import (
    ACCEPTED,
    DELIVERY,
    LINK_FLOW,
    REJECTED,
    RELEASED,
    TRANSACTIONAL,
    Buffer,
    Stop,
    push,
    state_fields,
)
from gateway.amqp.engine.output import Output
from gateway.core.errors import ErrorCode, Refused

RARE_EVENTS: Final = 64
"""Events about sessions, links and their ends that are handled in one turn of the loop: some milliseconds."""


class InputHandlers(NamedTuple):
    """What a connection does about its input."""

    act: Callable[[Finding], None]
    """Called with a finding of the walk over the peer's frames, once all input before it is handled."""
    deal_with: Callable[[Event], None]
    """Called with each event that is no transfer, disposition or flow."""
    is_busy: Callable[[], bool]
    """Whether so much is under way for the peer that nothing more is to begin. ``Input.wake`` ends that."""
    go_on: Callable[[], None]
    """Calls ``Input.go_on``, in another turn of the loop, and guards it."""
    end: Callable[[], None]
    """Called when the engine takes no more input."""


class Input:
    """
    The input of one connection.

    Args:
        walk: The walk over the peer's frames, before the engine gets them.
    """

    def __init__(self, links: LinkTable, output: Output, walk: FrameWalk, handlers: InputHandlers) -> None:
        self._output = output
        self._walk = walk
        self._handlers: InputHandlers | None = handlers
        """None once the connection is gone."""
        self._loop = asyncio.get_running_loop()
        self._events = EventPump(links)
        self._echoes = FlowEchoes(links)
        self._transport: Transport | None = None
        self._collector: Collector | None = None
        self._unread: list[bytes] = []
        """Input that the engine has not been given. It is little: nothing more is read meanwhile."""
        self._pieces: list[Piece] = []
        """The pieces of the oldest input, the last piece first."""
        self._found: Finding | None = None
        """A finding to act on once all of the engine's events are taken."""
        self._rare_left = 0
        self._is_scheduled = False
        self.is_waiting = False
        """Whether input waits for another turn of the loop, so that other peers get theirs: nothing more is read."""

    def begin(self, transport: Transport, collector: Collector) -> None:
        """The connection has an engine."""
        self._transport, self._collector = transport, collector

    def take(self, data: bytes) -> None:
        """
        Take bytes from the peer.

        Raises:
            Refused: As ``go_on``.
        """
        self._unread.append(data)
        if not self.is_waiting:
            self.go_on()

    def go_on(self) -> None:
        """
        Give the engine its input, and take its events, as far as this turn of the loop allows.

        Raises:
            Refused: The peer has broken a rule; the connection cannot go on.
        """
        self.is_waiting = self._is_scheduled = False
        self._rare_left = RARE_EVENTS
        has_failed = False
        while (
            (transport := self._transport) is not None
            and self._collector is not None
            and (handlers := self._handlers) is not None
        ):
            if not self._events.pump(self._collector, self._dispatch):
                self.is_waiting = True
                if not handlers.is_busy():
                    self._wake()
                return
            self._act_on_found(transport)
            if has_failed:
                handlers.end()
            while not self._pieces:
                if not self._unread:
                    return
                self._pieces = self._walk.pieces_of(self._unread.pop(0))[::-1]
            piece, self._found = self._pieces.pop()
            has_failed = push(transport, piece) < 0
            if has_failed:
                # Unless the peer has closed, this makes the engine report the error.
                transport.close_tail()

    def wake(self) -> None:
        """Go on: less is under way for the peer."""
        if self.is_waiting:
            self._wake()

    def drop(self) -> None:
        """Drop the input that the engine has not been given."""
        self._unread.clear()
        self._pieces.clear()
        self._found = None

    def lost(self) -> None:
        """The connection is gone: drop the references to its parts."""
        self.drop()
        self._transport = self._collector = self._handlers = None

    def _wake(self) -> None:
        if self._handlers is not None and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._handlers.go_on)

    def _dispatch(self) -> bool:
        """Have the rare event on top of the collector handled; return whether another may follow in this turn."""
        if self._collector is None or self._handlers is None:
            return False
        event = self._collector.peek()
        if event is None:
            return True
        handlers = self._handlers
        self._rare_left -= 1
        handlers.deal_with(event)
        return self._rare_left > 0 and not handlers.is_busy()

    def _act_on_found(self, transport: Transport) -> None:
        found, self._found = self._found, None
        if isinstance(found, StateRequest):
            if self._output.is_writable:
                self._output.write(self._echoes.answer(found, self._events.flowed, transport))
        elif found is not None and self._handlers is not None:
            self._handlers.act(found)


class EventPump:
    """
    Takes the events of one connection's engine.

    Args:
        links: Knows what takes the events of a link, by its handle.
    """

    def __init__(self, links: LinkTable, loops: Loops = LOOPS) -> None:
        self._loops = loops
        self._incoming, self._outgoing = links.incoming, links.outgoing
        self.flowed: Any = None
        """The handle of the link of the last flow that was taken."""

    def pump(self, collector: Collector, other: Callable[[], bool]) -> bool:
        """
        Take all events. Transfers, dispositions and credit are handled here, in batches; for every other event
        ``other`` is called while the event is on top of the collector.

        Args:
            other: Returns whether to go on: such an event may take a while, and thousands can come together.

        Returns:
            Whether all events are taken.

        Raises:
            Refused: The peer sends where it receives, or without credit; the connection cannot go on.
        """
        loops = self._loops
        # This call keeps a reference to the collector: a handler of its events may lose the connection.
        handle = loops.handle_of(collector._impl)
        incoming, outgoing = self._incoming, self._outgoing
        arrived: dict[Callable[[], None], None] = {}
        settled: dict[Sending, None] = {}
        flowed: dict[Sending, None] = {}
        top, skip = loops.top, loops.skip
        while (found := top(handle)) is not None:
            kind, link = found
            if kind == DELIVERY:
                receive = incoming.get(link)
                if receive is not None:
                    arrived[receive] = None
                else:
                    sending = outgoing.get(link)
                    if sending is not None:
                        settled[sending] = None
                        sending.updated(handle)
                        continue
                    # Transfers that crossed our detach, or whose attach was refused. The engine would keep all of them.
                    loops.discard(link)
                skip(handle, kind, link)
            elif kind == LINK_FLOW:
                self.flowed = link
                sending = outgoing.get(link)
                if sending is not None:
                    flowed[sending] = None
                skip(handle, kind, link)
            else:
                # In order: events before a detach or close are handled first.
                self._finish(arrived, settled, flowed)
                goes_on = other()
                loops.drop(handle)
                if not goes_on:
                    return False
        self._finish(arrived, settled, flowed)
        return True

    @staticmethod
    def _finish(
        arrived: dict[Callable[[], None], None],
        settled: dict[Sending, None],
        flowed: dict[Sending, None],
    ) -> None:
        for receive in arrived:
            receive()
        arrived.clear()
        for sending in settled:
            sending.report()
        settled.clear()
        for sending in flowed:
            sending.on_flow()
        flowed.clear()


class FlowEchoes:
    """Answers a peer's flows that ask for our state."""

    def __init__(self, links: LinkTable) -> None:
        self._links = links

    def answer(self, request: StateRequest, flowed: Any, transport: Transport) -> bytes:
        """
        The output to write now for a flow that the engine has just taken, with all output before it.

        Args:
            flowed: The handle of the link that the engine names.
        """
        output = self._pull(transport)
        if request.handle is None:
            # The engine does not tell on which session the flow came.
            for session in self._links.sessions:
                session.incoming_capacity = 0
            return output
        link = self._links.attached_at(flowed)
        if link is None:
            return output
        if link.is_receiver:
            if request.is_echo:
                link.session.incoming_capacity = 0
                link.flow(0)
            return output
        return output + self._state_of(link, request, output, transport)

    def _state_of(self, link: Link, request: StateRequest, said: bytes, transport: Transport) -> bytes:
        """The state of a link that we send on, unless it was just written, or will be once its credit is used up."""
        handle = self._links.names.handles.get(link)
        if handle is None or (link.credit > 0 and not request.is_echo):
            return b""
        if request.is_drain and link.queued:
            # The session's window is closed: what is queued goes first, and then the engine writes the state.
            return b""
        flows = (fields_of(frame, FLOW) for frame in frames_of(said))
        if any(fields is not None and fields[4:5] == [handle] for fields in flows):
            return b""
        link.session.incoming_capacity = 0
        output = self._pull(transport)
        credit = link.credit + link.queued
        count = request.limit - credit
        # Below 0 where the peer has taken back credit that was used up already.
        return with_link_state(output, handle, count=count, credit=max(credit, 0), is_drain=request.is_drain)

    def _pull(self, transport: Transport) -> bytes:
        output = b"".join(iter(lambda: pull(transport), b""))
        self._links.names.saw(output)
        self._links.names.written()
        return output


_incoming = Buffer()


def _ignore(*_: Any) -> None:
    """The callback of a closed link."""


class IncomingTransfers:
    """
    Messages coming in on one link.

    Args:
        window: Credit the publisher is kept at: messages it may have on the way or uncommitted.
        max_message_bytes: For a larger message ``on_too_large`` is called, and nothing more is read.
        on_messages: Called with contents and their unsettled deliveries, or contents that came settled and None.
        on_too_large: Called with the size in bytes, and the fields of the transactional-state or None.
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
        loops: Loops = LOOPS,
    ) -> None:
        self._loops = loops
        self._link = link._impl
        self._handle = loops.handle_of(link._impl)
        self._max_message_bytes = max_message_bytes
        self._on_messages = on_messages
        self._on_too_large = on_too_large
        self._on_transactional = on_transactional
        self._is_batch: Callable[[bytes], bool] | None = None
        self._on_batch: Callable[[bytes, Any], None]
        self._window = window
        self._used = 0
        self.taken = 0
        """How many messages were taken."""
        self.is_closed = False

    def close(self) -> None:
        """
        The link is gone: drop the references to the engine and the callbacks. Later calls, such as those after a
        commit, do nothing.
        """
        self.is_closed = True
        self._link = self._handle = None
        self._is_batch = None
        self._on_messages = self._on_too_large = self._on_transactional = self._on_batch = _ignore

    def expect_batches(
        self, is_batch: Callable[[bytes], bool], on_batch: Callable[[bytes, Any], None]
    ) -> None:
        """Have each delivery whose tag ``is_batch`` accepts go to ``on_batch``, by itself."""
        self._is_batch, self._on_batch = is_batch, on_batch

    def open(self) -> None:
        """Grant the first credit."""
        if not self.is_closed:
            lib.pn_link_flow(self._link, self._window)

    def receive(self) -> None:
        """Take every message that is complete."""
        if self.is_closed:
            return
        take = self._loops.take_messages
        while True:
            contents, deliveries, stop = take(self._handle, self._max_message_bytes, self._is_batch)
            if contents:
                self.taken += len(contents)
                self._on_messages(contents, deliveries)
                # The callback may have closed the link.
                if self._link is None:
                    return
                if deliveries is None:
                    self._replenish(len(contents))
            if stop == Stop.NOTHING:
                break
            if stop != Stop.TURN and not self._take_alone(is_batch=stop == Stop.BATCH):
                return
        if lib.pn_link_credit(self._link) < 0:
            raise Refused(
                ErrorCode.TRANSFER_LIMIT,
                "transfers came beyond the credit of their link (AMQP 1.0 section 2.6.7)",
            )

    def _take_alone(self, *, is_batch: bool) -> bool:
        """Take the current delivery by itself; return whether the link can take more."""
        link = self._link
        delivery = lib.pn_link_current(link)
        size = lib.pn_delivery_pending(delivery)
        if size > self._max_message_bytes:
            self._on_too_large(size, state_fields(delivery))
            return False
        if lib.pn_delivery_aborted(delivery):
            lib.pn_link_advance(link)
            lib.pn_delivery_settle(delivery)
            self._replenish(1)
            return True
        content = b""
        if size:
            buffer = _incoming.of(size)
            lib.pn_link_recv(link, buffer, size)
            content = ffi.unpack(buffer, size)
        settled = lib.pn_delivery_settled(delivery)
        # A message of a transaction is never taken for a batch.
        more = () if is_batch else (state_fields(delivery),)
        lib.pn_link_advance(link)
        if settled:
            lib.pn_delivery_settle(delivery)
        self.taken += 1
        hand_over: Callable[..., None] = self._on_batch if is_batch else self._on_transactional
        hand_over(content, None if settled else self._loops.handle_of(delivery), *more)
        if self.is_closed:
            return False
        if settled:
            self._replenish(1)
        return True

    def set_provisional_outcome(self, delivery: Any, state: bytes) -> None:
        """
        Tell the publisher the outcome that a delivery will have if its transaction commits (AMQP 1.0 section 4.4.1).

        Args:
            state: Fields of a transactional-state, encoded.
        """
        if self.is_closed:
            return
        local = lib.pn_delivery_local(self._loops.delivery_at(delivery))
        lib.pn_data_decode(lib.pn_disposition_data(local), state, len(state))
        self._settle((delivery,), TRANSACTIONAL)

    def accept(self, deliveries: Sequence[Any]) -> None:
        """Tell the publisher that these are accepted, and let it send as many more."""
        self._settle(deliveries, ACCEPTED)

    def release(self, deliveries: Sequence[Any]) -> None:
        """Tell the publisher that these are released: nobody takes them."""
        self._settle(deliveries, RELEASED)

    def reject(self, deliveries: Sequence[Any], describe: Callable[[Any], None]) -> None:
        """
        Tell the publisher that these are rejected; ``describe`` puts the error into each delivery's disposition.

        It gets a C condition: proton's public disposition would need a wrapper object for each delivery.
        """
        if self.is_closed:
            return
        for delivery in deliveries:
            local = lib.pn_delivery_local(self._loops.delivery_at(delivery))
            describe(lib.pn_disposition_condition(local))
        self._settle(deliveries, REJECTED)

    def _settle(self, deliveries: Sequence[Any], outcome: int) -> None:
        if self.is_closed:
            return
        self._loops.settle(deliveries, outcome)
        self._replenish(len(deliveries))

    def _replenish(self, count: int) -> None:
        # Credit goes back in quarters of the window: one flow frame for many transfers.
        self._used += count
        if self._used * 4 >= self._window:
            lib.pn_link_flow(self._link, self._used)
            self._used = 0
