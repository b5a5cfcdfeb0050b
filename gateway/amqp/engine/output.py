"""
What one connection writes. Messages go into its engine link by link. The engine's output goes to the socket once a turn
of the loop, however many messages went into it, and not while the socket's buffer is full.

The work for each message is in the loops (``python_loops``, ``native_loops``), which the benchmark measures. The work
for each call of the loops, and for outcomes other than "accepted", is here.

Safety: a C delivery lives as long as its link; once a link is closed here, its deliveries are never touched again.
Deliveries are always kept and passed on as handles of the loops.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from cproton_ffi import lib
from proton import Link, Transport

from amqp_ext.message.annotations import Splicer
from amqp_ext.message.fields import DeliveryTimeError, retry_time
from amqp_ext.transactions import Outcome
from gateway.amqp.engine.conditions import CloseError
from gateway.amqp.engine.link_table import LinkTable
from gateway.amqp.engine.loops import LOOPS, Loops
from gateway.amqp.engine.native import (
    ACCEPTED,
    MODIFIED,
    NULL,
    OUTPUT_BYTES,
    RECEIVED,
    REJECTED,
    RELEASED,
    TRANSACTIONAL,
    modified_annotations,
    state_fields,
)
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import CONTENT, Row
from gateway.ledger import DELIVERY_BYTES, Account, Kind
from gateway.vpn.role import Lease


class Output:
    """
    The output of one connection.

    Args:
        limit_bytes: With so many bytes in the socket's buffer, no more messages are sent.
        failed: Called in the ``except`` block of an error while output is written.
    """

    def __init__(self, limit_bytes: int, failed: Callable[[], None]) -> None:
        self._limit_bytes = limit_bytes
        self._failed: Callable[[], None] | None = failed
        self._loop = asyncio.get_running_loop()
        self._socket: asyncio.Transport | None = None
        self._transport: Transport | None = None
        self._handle: Any = None
        """The handle of the transport."""
        self._links: LinkTable | None = None
        self._filter: Callable[[bytes], bytes] | None = None
        self._translation: Callable[[bytes], bytes] | None = None
        """A function that all output of the engine passes through, whole frames at a time."""
        self._is_scheduled = False
        self.is_writable = True
        self._close_error: CloseError | None = None
        self._all_written: Callable[[], None] | None = None
        self._gate: Lease | None = None
        """The lease of the Message VPN: messages go out while it holds."""
        self._has_messages = False
        """Whether the engine was given messages since all of its output was written."""
        self._held = b""
        """Output that had to be taken from the engine (``rewrite``) while messages may not go out."""
        self._left_bytes = 0
        """What the socket had not taken at the last call of ``was_taken``."""

    # --- what links use -----------------------------------------------------------------------------------------

    @property
    def free_bytes(self) -> int:
        """
        How many bytes of messages the engine may still be given. Bytes that the socket has not taken count, and bytes
        that the engine has not written, as a session's window may be closed.
        """
        if self._socket is None or not self.is_writable or self._links is None:
            return 0
        if self._gate is not None and not self._gate.holds():
            self._gate.wait(self.schedule_flush)
            return 0
        return self._limit_bytes - self._socket.get_write_buffer_size() - self._links.buffered_bytes

    def sent(self) -> None:
        """The engine was given messages: write them at the end of this turn of the loop."""
        self._has_messages = True
        self.schedule_flush()

    def schedule_flush(self) -> None:
        """Write what the engine has at the end of this turn of the loop."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._flush_scheduled)

    def _flush_scheduled(self) -> None:
        # Unless all was written meanwhile, as for a publisher that is answered immediately.
        if self._is_scheduled:
            self.flush()

    # --- what the connection does -------------------------------------------------------------------------------

    def after_read(self) -> None:
        """
        The engine was given the input of one read: write its output at the end of this turn, or immediately if the
        output of an earlier read is not written yet.

        A turn may have 32 reads of 256 KB (libuv's ``uv__read``), each with thousands of messages that are refused. All
        answers would be in the engine before the first of them fills the socket and pauses reading.
        """
        if self._is_scheduled:
            self.flush()
        else:
            self.schedule_flush()

    def was_taken(self) -> bool:
        """Whether the peer has taken some of the output that waits for it since the last call."""
        before, self._left_bytes = (
            self._left_bytes,
            0 if self._socket is None else self._socket.get_write_buffer_size(),
        )
        return self._left_bytes < before

    def watch(self, gate: Lease) -> None:
        """Let messages go out only while this lease holds."""
        self._gate = gate

    def _is_held_back(self) -> bool:
        """
        Whether the engine has messages that may not go out, as the lease does not hold: the process may have been
        suspended since they were given to the engine, or the peer's window was closed. Output after them waits, too.
        """
        gate, links = self._gate, self._links
        if gate is None or links is None or not (self._has_messages or self._held or links.buffered_bytes):
            return False
        if gate.holds():
            return False
        gate.wait(self.schedule_flush)
        return True

    def connect(self, socket: asyncio.Transport) -> None:
        """The socket is there: bytes can be written."""
        self._socket = socket

    def begin(
        self, transport: Transport, links: LinkTable, output_filter: Callable[[bytes], bytes] | None
    ) -> None:
        """
        The connection has an engine, whose output is written from now on.

        Args:
            output_filter: Given any piece of the engine's output; returns what is written instead.
        """
        self._transport = transport
        self._handle = LOOPS.handle_of(transport._impl)
        self._links = links
        self._filter = output_filter

    def pause(self) -> None:
        """The socket's buffer is full."""
        self.is_writable = False

    def resume(self) -> None:
        """The socket's buffer has room again."""
        self.is_writable = True
        self.flush()

    def close_with(self, error: CloseError) -> None:
        """Put this error into the engine's close frame."""
        self._close_error = error

    def end(self, all_written: Callable[[], None]) -> None:
        """The connection is closing: ``all_written`` is called whenever all output of the engine is written."""
        self._all_written = all_written

    def lost(self) -> None:
        """The connection is gone: write no more, and drop the references to its parts."""
        if self._gate is not None:
            self._gate.forget(self.schedule_flush)
        self._transport = self._handle = self._links = self._socket = self._gate = None
        self._filter = self._translation = self._all_written = self._failed = None
        self._held = b""

    def flush(self) -> None:
        """Write what the engine has, as far as the socket takes it."""
        self._is_scheduled = False
        transport, links, failed = self._transport, self._links, self._failed
        handle, pull = self._handle, LOOPS.pull
        if transport is None or links is None or failed is None:
            return
        if self._gate is not None and self._is_held_back():
            return
        try:
            if self._held:
                held, self._held = self._held, b""
                self._write_as_it_is(held)
            while self.is_writable:
                data = pull(handle)
                is_all = len(data) < OUTPUT_BYTES
                if data:
                    if self._close_error is not None or self._translation is not None:
                        data = bytes(data) + b"".join(iter(lambda: pull(handle), b""))
                        if self._close_error is not None:
                            data = self._close_error.put_into(data)
                    links.names.saw(data)
                    self.write(data)
                if is_all:
                    self._has_messages = False
                    links.names.written()
                    break
            if links.is_waiting and self.free_bytes > 0:
                links.offer_output()
            if self._all_written is not None and self.is_writable and transport.pending() < 0:
                self._all_written()
        except Exception:
            failed()

    def rewrite(self, change: Callable[[bytes], bytes]) -> None:
        """Write the engine's present output, changed by a function. The engine keeps the names of links."""
        handle, links = self._handle, self._links
        if handle is None or links is None:
            return
        is_held_back = self._gate is not None and self._is_held_back()
        data = b"".join(iter(lambda: LOOPS.pull(handle), b""))
        links.names.saw(data)
        changed = self._translated(change(data))
        if is_held_back:
            self._held += changed
        else:
            self._write_as_it_is(changed)

    def translate(self, translation: Callable[[bytes], bytes]) -> None:
        """Pass all output of the engine from now on through a function, whole frames at a time."""
        if self._translation is None:
            # Its output until now may be written in part, up to the middle of a frame.
            self.rewrite(bytes)
            self._translation = translation

    def _translated(self, data: bytes | bytearray) -> bytes | bytearray:
        return data if self._translation is None else self._translation(bytes(data))

    def write(self, data: bytes | bytearray) -> None:
        """Write bytes for the peer: frames, or the handshake before them."""
        self._write_as_it_is(self._translated(data))

    def _write_as_it_is(self, data: bytes | bytearray) -> None:
        if self._filter is not None:
            data = self._filter(bytes(data))
        if data and self._socket is not None and not self._socket.is_closing():
            self._socket.write(data)


BATCH_BYTES: Final = 128 * 1024
"""About how many bytes of content a batch has."""


Others: TypeAlias = "list[tuple[int, int, bool, bool, int]]"
"""Deliveries with an outcome other than "accepted": id, outcome, failed, undeliverable here, when to deliver again (in
ms since the epoch; 0 where the peer does not say, ``NO_TIME`` where it says something that is no time)."""

NO_TIME: Final = -1

Confirm: TypeAlias = "Callable[[], None] | None"
"""To be called when the outcomes are durable: it settles the deliveries that the peer has not; None without any."""


class OutgoingLink(ABC):
    """A link that messages go out on, as it is told of its peer's dispositions and flows."""

    @abstractmethod
    def on_credit(self) -> None:
        """The peer has given credit, or taken it back."""

    @abstractmethod
    def on_outcomes(self, accepted: list[int], others: Others, confirm: Confirm) -> None:
        """
        The peer has given deliveries an outcome.

        Args:
            accepted: Ids of the accepted messages.
        """

    @abstractmethod
    def on_transactional(self, message_id: int, state: Any, delivery: Any) -> None:
        """
        The peer has given a delivery an outcome in a transaction.

        Args:
            state: The fields of the transactional-state.
            delivery: None where the peer has settled it.
        """

    @abstractmethod
    def on_confirmed(self) -> None:
        """The peer has confirmed all deliveries that were taken back."""

    @abstractmethod
    def on_renewed(self, ids: list[int]) -> None:
        """The peer still works on these messages."""


class OutgoingTransfers:
    """
    Messages going out on one link.

    Args:
        account: The account in which unsettled deliveries are entered.
        told: The link.
        pre_settled: Whether deliveries go out settled.
        default_outcome: The outcome of a delivery that its receiver settles without one.
    """

    def __init__(
        self,
        link: Link,
        splicer: Splicer,
        account: Account,
        told: OutgoingLink,
        *,
        pre_settled: bool,
        default_outcome: Outcome,
        loops: Loops = LOOPS,
    ) -> None:
        self._loops = loops
        self._told: OutgoingLink | None = told
        self._link = link._impl
        self._handle = loops.handle_of(link._impl)
        self._splicer = splicer
        self._marked = splicer
        """The splicer that marks messages of ``_replay_name``; replaced when another replay sends."""
        self._replay_name = ""
        self._pre_settled = pre_settled
        self._default_outcome = default_outcome
        self._unsettled: dict[Any, int] = {}
        self._taken_back: set[Any] = set()
        """Deliveries that were taken back, and are unsettled until the peer has confirmed that."""
        self._has_confirmed = False
        self._renewed: list[int] = []
        self._account = account
        self._entered = 0
        """How many unsettled deliveries are entered in the account."""
        self._accepted: list[int] = []
        self._others: Others = []
        self._confirm: list[Any] = []
        self._average_bytes = 256
        self.in_batches = False
        """Whether several messages go in one delivery (``amqp_ext.message.fields``); only where they go out settled."""
        self.sent = 0
        """How many messages were sent."""
        self.is_closed = False

    def close(self) -> None:
        """
        The link is gone: drop the references to the engine and to the link. Later calls, such as those after a commit,
        do nothing.
        """
        self.is_closed = True
        self._link = self._handle = self._told = None
        self._unsettled.clear()
        self._taken_back.clear()
        self._enter()
        self._accepted, self._others, self._confirm, self._renewed = [], [], [], []

    @property
    def credit(self) -> int:
        return 0 if self.is_closed else int(lib.pn_link_credit(self._link))

    @property
    def unsettled_count(self) -> int:
        return len(self._unsettled) + len(self._taken_back)

    @property
    def are_unconfirmed(self) -> bool:
        """Whether deliveries were taken back that the peer has not confirmed."""
        return bool(self._taken_back)

    def room(self, free_bytes: int) -> int:
        """How many messages can be sent now, by credit and by the bytes that may still be buffered."""
        if self.is_closed or free_bytes <= 0:
            return 0
        room = min(int(lib.pn_link_credit(self._link)), free_bytes // self._average_bytes + 1)
        return room if self._pre_settled else min(room, self._account.room_for_deliveries)

    def _enter(self) -> None:
        more = self.unsettled_count - self._entered
        if more:
            self._entered += more
            self._account.hold(Kind.UNSETTLED, more * DELIVERY_BYTES)

    def send(
        self, rows: Sequence[Row], attempts: Mapping[int, int], end_id: int | None, replay_name: str = ""
    ) -> None:
        """Send messages; there must be credit for them. ``replay_name``: the mark on them, if it is not empty."""
        if self.is_closed:
            return
        self.sent += len(rows)
        splicer = self._splicer_for(replay_name) if replay_name else self._splicer
        if self.in_batches:
            self._send_batches(rows, splicer, attempts, end_id)
            return
        unsettled = None if self._pre_settled else self._unsettled
        total = self._loops.send(self._handle, rows, splicer, attempts, end_id, unsettled)
        self._average_bytes = max(total // len(rows), 1) + 200
        if not self._pre_settled:
            self._enter()

    def _splicer_for(self, replay_name: str) -> Splicer:
        if replay_name != self._replay_name:
            self._marked, self._replay_name = self._splicer.marked(replay_name), replay_name
        return self._marked

    def _send_batches(
        self, rows: Sequence[Row], splicer: Splicer, attempts: Mapping[int, int], end_id: int | None
    ) -> None:
        """The same in as few deliveries as their size allows; there is credit for them, as they are never more."""
        total = sum([len(row[CONTENT]) for row in rows])
        count = max(1, min(len(rows), len(rows) * BATCH_BYTES // max(total, 1)))
        for first in range(0, len(rows), count):
            batch = rows[first : first + count]
            self._loops.send_batch(self._handle, batch, splicer, attempts, end_id)
        self._average_bytes = max(total // len(rows), 1) + 200

    def updated(self, collector: Any) -> None:
        """
        Note the disposition in the event on top of a collector, which is about one of our deliveries, and in those that
        follow.

        Args:
            collector: The handle of the collector.
        """
        loops = self._loops
        if not loops.take_outcomes(collector, self._unsettled, self._accepted, self._confirm):
            self._updated(loops.delivery_on_top(collector))
            loops.drop(collector)

    def _updated(self, delivery: Any) -> None:
        """The same for one delivery and any disposition."""
        if self.is_closed:
            return
        structure = self._loops.delivery_at(delivery)
        is_settled = lib.pn_delivery_settled(structure)
        state = lib.pn_delivery_remote_state(structure)
        if delivery in self._taken_back:
            if is_settled or state not in (0, RECEIVED):
                self._taken_back.discard(delivery)
                lib.pn_delivery_settle(structure)
                self._has_confirmed = not self._taken_back
            return
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
                self._note(structure, message_id, state)
        else:
            message_id = None
            if state == RECEIVED and delivery in self._unsettled:
                self._renewed.append(self._unsettled[delivery])
        if message_id is None and lib.pn_link_current(self._link) != NULL:
            # Our own deliveries are never current: each is complete when it is made.
            raise Refused(ErrorCode.NOT_ALLOWED, "a transfer came on a link that its sender receives on")
        if is_settled:
            lib.pn_delivery_settle(structure)
        elif message_id is not None:
            lib.pn_delivery_update(structure, state)
            self._confirm.append(delivery)

    def _updated_in_transaction(self, delivery: Any, is_settled: bool) -> None:
        """The delivery stays unsettled here until the transaction has ended; its peer may have settled it."""
        message_id = self._unsettled.get(delivery)
        structure = self._loops.delivery_at(delivery)
        fields = state_fields(structure)
        if is_settled:
            self._unsettled.pop(delivery, None)
            lib.pn_delivery_settle(structure)
        if message_id is not None and self._told is not None:
            self._told.on_transactional(message_id, fields, None if is_settled else delivery)

    def take_back(self, ids: Sequence[int]) -> None:
        """
        Take deliveries back from the peer: release them at the sender, spontaneously, and settle them once the peer has
        confirmed that by an outcome, whichever, or by settling them (AMQP 1.0 section 2.6.12).
        """
        wanted, found = set(ids), []
        for delivery, message_id in self._unsettled.items():
            if message_id in wanted:
                found.append(delivery)
                if len(found) == len(wanted):
                    break
        for delivery in found:
            del self._unsettled[delivery]
            lib.pn_delivery_update(self._loops.delivery_at(delivery), RELEASED)
        self._taken_back.update(found)

    def settle(self, delivery: Any, outcome: int) -> None:
        """A transaction has committed the outcome that the peer gave to a delivery."""
        if not self.is_closed and self._unsettled.pop(delivery, None) is not None:
            self._loops.settle((delivery,), outcome)

    def _note(self, structure: Any, message_id: int, state: int) -> None:
        if state not in (REJECTED, RELEASED, MODIFIED):
            # Settled without an outcome: the source's default outcome holds (AMQP 1.0 section 3.5.3).
            default = self._default_outcome
            if default.code == ACCEPTED:
                self._accepted.append(message_id)
            else:
                self._others.append(
                    (message_id, default.code, default.failed, default.undeliverable, default.again_ms)
                )
            return
        failed = undeliverable = False
        again_ms = 0
        if state == MODIFIED:
            disposition = lib.pn_delivery_remote(structure)
            failed = bool(lib.pn_disposition_is_failed(disposition))
            undeliverable = bool(lib.pn_disposition_is_undeliverable(disposition))
            try:
                again_ms = retry_time(modified_annotations(disposition))
            except DeliveryTimeError:
                again_ms = NO_TIME
        self._others.append((message_id, state, failed, undeliverable, again_ms))

    def report(self) -> None:
        """Pass on what was noted since the last call."""
        self._enter()
        accepted, others, confirm = self._accepted, self._others, self._confirm
        if self._renewed and self._told is not None:
            renewed, self._renewed = self._renewed, []
            self._told.on_renewed(renewed)
        if self._has_confirmed and self._told is not None:
            self._has_confirmed = False
            self._told.on_confirmed()
        if self._told is None or (not accepted and not others):
            return
        self._accepted, self._others, self._confirm = [], [], []
        self._told.on_outcomes(accepted, others, (lambda: self._settle(confirm)) if confirm else None)

    def _settle(self, deliveries: Sequence[Any]) -> None:
        if not self.is_closed:
            self._loops.settle(deliveries, 0)

    def on_flow(self) -> None:
        if self._told is not None:
            self._told.on_credit()

    def drained(self) -> bool:
        """
        There is nothing to send: use up the credit that the peer wants drained (AMQP 1.0 section 2.6.7). Returns False
        where queued output has to be written first: the engine would not tell the peer once the session's window opens.
        """
        link, is_drain = self._link, not self.is_closed and lib.pn_link_get_drain(self._link)
        return not is_drain or (not lib.pn_link_queued(link) and lib.pn_link_drained(link) >= 0)


LEAST_IDLE_TIMEOUT_MS: Final = 100
"""Shortest idle-time-out that is honoured."""

_LEAST_WAIT_SECONDS: Final = 0.05


def check_idle_timeout(transport: Transport) -> None:
    """
    Check the idle-time-out in the peer's open frame.

    Raises:
        Refused: NOT_ALLOWED, the peer wants heartbeats more often than it would get them, and would take us for dead.
    """
    idle_timeout_ms = round(transport.remote_idle_timeout * 1000)
    if 0 < idle_timeout_ms < LEAST_IDLE_TIMEOUT_MS:
        raise Refused(
            ErrorCode.NOT_ALLOWED,
            f"an idle-time-out of {idle_timeout_ms} ms: the gateway can keep to {LEAST_IDLE_TIMEOUT_MS} ms or "
            "more, or to none",
        )


def seconds_to_tick(transport: Transport, left: float, own_idle_ms: int) -> float:
    """
    How long to wait until the engine is asked again.

    Args:
        left: Seconds until the engine wants to be asked.
        own_idle_ms: How long the peer may be silent.
    """
    # The engine counts silence from when it is asked, so it is asked four times within the peer's time-out: a heartbeat
    # is due at half the time-out, and goes out at three quarters of it at the latest.
    idle = transport.remote_idle_timeout or own_idle_ms / 1000
    return max(min(left, idle / 4), _LEAST_WAIT_SECONDS)
