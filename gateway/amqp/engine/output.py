"""
What one connection writes: messages go into its engine link by link, and the engine's output to the socket once a turn
of the loop, however many messages went into it, and not at all while the socket's buffer is full.

What happens once a message is in the loops (``python_loops``, ``native_loops``), and is measured by the benchmark;
what happens once a call of them, and for outcomes other than "accepted", is here.

Safety: a C delivery lives as long as its link; once a link is closed here, its deliveries are never touched again.
Deliveries are handles of the loops wherever they are kept or handed on.
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
        limit_bytes: Past so many bytes in the socket's buffer, no more messages are sent.
        failed: Called in the ``except`` block of a mistake that was made while something was written.
    """

    def __init__(self, limit_bytes: int, failed: Callable[[], None]) -> None:
        self._limit_bytes = limit_bytes
        self._failed: Callable[[], None] | None = failed
        self._loop = asyncio.get_running_loop()
        self._socket: asyncio.Transport | None = None
        self._transport: Transport | None = None
        self._handle: Any = None
        """The transport's."""
        self._links: LinkTable | None = None
        self._filter: Callable[[bytes], bytes] | None = None
        self._translation: Callable[[bytes], bytes] | None = None
        """What all that the engine says passes through, whole frames at a time."""
        self._is_scheduled = False
        self.is_writable = True
        self._close_error: CloseError | None = None
        self._all_written: Callable[[], None] | None = None
        self._gate: Lease | None = None
        """Of the Message VPN: messages go out while it holds."""
        self._has_messages = False
        """The engine was given messages since all that it had was written."""
        self._held = b""
        """What the engine had to say while messages may not go out, where it could not wait in there."""
        self._left_bytes = 0
        """What the socket had not taken when that was asked last."""

    # --- what links use -----------------------------------------------------------------------------------------

    @property
    def free_bytes(self) -> int:
        """
        How many bytes of messages may still be handed to the engine before there is enough to write: what the socket
        has not taken counts, and what the engine has not given to it, as a session's window may be closed.
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
        # Not if all was written meanwhile, as it is where a publisher is answered at once.
        if self._is_scheduled:
            self.flush()

    # --- what the connection does -------------------------------------------------------------------------------

    def after_read(self) -> None:
        """
        The engine has been given what came in one read: write what it has to say of that at the end of this turn, or at
        once where it has not yet written what it says of an earlier read.

        A turn may have 32 reads of 256 KB (libuv's ``uv__read``), each with thousands of messages that are refused: all
        their answers would be in the engine before the first is seen to fill the socket, and reading paused.
        """
        if self._is_scheduled:
            self.flush()
        else:
            self.schedule_flush()

    def was_taken(self) -> bool:
        """Whether the peer has taken some of what waits for it since this was asked last."""
        before, self._left_bytes = (
            self._left_bytes,
            0 if self._socket is None else self._socket.get_write_buffer_size(),
        )
        return self._left_bytes < before

    def watch(self, gate: Lease) -> None:
        """Messages go out while this holds, and not otherwise."""
        self._gate = gate

    def _is_held_back(self) -> bool:
        """
        Whether the engine has messages, and they may not go out: the process may have been stopped since they were
        given to it, or the peer's window closed. What stands behind them waits, too.
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
        The engine is there: what it has to say is written from now on.

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
        """The engine's close frame is to say this."""
        self._close_error = error

    def end(self, all_written: Callable[[], None]) -> None:
        """Nothing more begins: ``all_written`` is called whenever the engine has no more to say."""
        self._all_written = all_written

    def lost(self) -> None:
        """The connection is gone: nothing more is written, and nothing of it is held."""
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
        """Write what the engine has to say now, changed; names of links that it has are none of its affair."""
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
        """Have all that the engine says from now on pass through a function, whole frames at a time."""
        if self._translation is None:
            # What it has said until now may be written in part, up to the middle of a frame.
            self.rewrite(bytes)
            self._translation = translation

    def _translated(self, data: bytes | bytearray) -> bytes | bytearray:
        return data if self._translation is None else self._translation(bytes(data))

    def write(self, data: bytes | bytearray) -> None:
        """Bytes for the peer, as frames or what comes before them."""
        self._write_as_it_is(self._translated(data))

    def _write_as_it_is(self, data: bytes | bytearray) -> None:
        if self._filter is not None:
            data = self._filter(bytes(data))
        if data and self._socket is not None and not self._socket.is_closing():
            self._socket.write(data)


BATCH_BYTES: Final = 128 * 1024
"""Content in a delivery that is a batch, about."""


Others: TypeAlias = "list[tuple[int, int, bool, bool, int]]"
"""Deliveries that have come to something else than "accepted": id, outcome, failed, undeliverable here, when to deliver
again (in ms since the epoch; 0 for nothing said, ``NO_TIME`` where that is none)."""

NO_TIME: Final = -1

Confirm: TypeAlias = "Callable[[], None] | None"
"""To be called when what became of deliveries is durable: it settles those that the peer waits for, if any."""


class OutgoingLink(ABC):
    """A link that messages go out on: it is told what its peer says of them."""

    @abstractmethod
    def on_credit(self) -> None:
        """The peer has given credit, or taken it back."""

    @abstractmethod
    def on_outcomes(self, accepted: list[int], others: Others, confirm: Confirm) -> None:
        """
        The peer has said what became of deliveries.

        Args:
            accepted: Ids of messages.
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
        """The peer knows of all deliveries that were taken back."""

    @abstractmethod
    def on_renewed(self, ids: list[int]) -> None:
        """The peer works on these messages still."""


class OutgoingTransfers:
    """
    Messages going out on one link.

    Args:
        account: Where unsettled deliveries are entered.
        told: The link.
        pre_settled: Whether deliveries go out settled: the peer wants no say in them.
        default_outcome: What a delivery has come to that its receiver settles without an outcome.
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
        """What marks the messages of ``_replay_name``; remade when another replay sends."""
        self._replay_name = ""
        self._pre_settled = pre_settled
        self._default_outcome = default_outcome
        self._unsettled: dict[Any, int] = {}
        self._taken_back: set[Any] = set()
        """Deliveries that are unsettled until the peer has said that it knows."""
        self._has_confirmed = False
        self._renewed: list[int] = []
        self._account = account
        self._entered = 0
        """Unsettled deliveries that the account knows of."""
        self._accepted: list[int] = []
        self._others: Others = []
        self._confirm: list[Any] = []
        self._average_bytes = 256
        self.in_batches = False
        """Several messages go in one delivery (``amqp_ext.message.fields``); only where they go out settled."""
        self.sent = 0
        """Messages."""
        self.is_closed = False

    def close(self) -> None:
        """
        The link is gone: nothing of the engine's is used here any more, nor held, and nobody is told of anything. What
        comes later, as the news of a commit does, finds it closed.
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
        """Deliveries were taken back, and the peer has not said of all that it knows."""
        return bool(self._taken_back)

    def room(self, free_bytes: int) -> int:
        """Messages that can be sent now, by credit and by the bytes that may still be buffered."""
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
        """The same in as few deliveries as their size allows: never more than messages, so there is credit for them."""
        total = sum([len(row[CONTENT]) for row in rows])
        count = max(1, min(len(rows), len(rows) * BATCH_BYTES // max(total, 1)))
        for first in range(0, len(rows), count):
            batch = rows[first : first + count]
            self._loops.send_batch(self._handle, batch, splicer, attempts, end_id)
        self._average_bytes = max(total // len(rows), 1) + 200

    def updated(self, collector: Any) -> None:
        """
        The event on top is about one of our deliveries: note what the peer said, there and in those that follow.

        Args:
            collector: Its handle.
        """
        loops = self._loops
        if not loops.take_outcomes(collector, self._unsettled, self._accepted, self._confirm):
            self._updated(loops.delivery_on_top(collector))
            loops.drop(collector)

    def _updated(self, delivery: Any) -> None:
        """The same for whatever the peer may have said of a delivery."""
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
            # Ours are never current here: each is complete when it is made.
            raise Refused(ErrorCode.NOT_ALLOWED, "a transfer came on a link that its sender receives on")
        if is_settled:
            lib.pn_delivery_settle(structure)
        elif message_id is not None:
            lib.pn_delivery_update(structure, state)
            self._confirm.append(delivery)

    def _updated_in_transaction(self, delivery: Any, is_settled: bool) -> None:
        """The delivery stays unsettled here until the transaction is over; its peer may have settled it."""
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
        Deliveries are the peer's no more: they are released at the sender, spontaneously, and settled once the peer has
        said that it knows, whatever else it says of them (AMQP 1.0 section 2.6.12).
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
        """A transaction has committed what the peer said of a delivery."""
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
        """Hand on what was noted since the last time."""
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
        There is nothing to send: credit the peer wants drained is used up (AMQP 1.0 section 2.6.7). False: not before
        what is queued is written; the engine would not tell it once the session's window opens.
        """
        link, is_drain = self._link, not self.is_closed and lib.pn_link_get_drain(self._link)
        return not is_drain or (not lib.pn_link_queued(link) and lib.pn_link_drained(link) >= 0)


LEAST_IDLE_TIMEOUT_MS: Final = 100
"""Shortest idle-time-out that is honoured."""

_LEAST_WAIT_SECONDS: Final = 0.05


def check_idle_timeout(transport: Transport) -> None:
    """
    Look at the idle-time-out in the peer's open.

    Raises:
        Refused: NOT_ALLOWED, the peer wants to hear of us more often than it will; it would take us for dead.
    """
    idle_timeout_ms = round(transport.remote_idle_timeout * 1000)
    if 0 < idle_timeout_ms < LEAST_IDLE_TIMEOUT_MS:
        raise Refused(
            ErrorCode.NOT_ALLOWED,
            f"an idle-time-out of {idle_timeout_ms} ms: at least {LEAST_IDLE_TIMEOUT_MS} ms, or none, can be kept to",
        )


def seconds_to_tick(transport: Transport, left: float, own_idle_ms: int) -> float:
    """
    How long to wait until the engine is asked again.

    Args:
        left: Seconds until the engine wants to be asked.
        own_idle_ms: Silence of the peer's that we tolerate.
    """
    # The engine counts silence from when it is asked, so it is asked four times as often as the peer wants to hear of
    # us: a heartbeat is due at half its time-out, and goes at three quarters of it at the latest.
    idle = transport.remote_idle_timeout or own_idle_ms / 1000
    return max(min(left, idle / 4), _LEAST_WAIT_SECONDS)
