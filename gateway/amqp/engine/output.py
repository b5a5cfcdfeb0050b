"""
What one connection writes: its engine's output once a turn of the loop, however many messages went into it, and not at
all while the socket's buffer is full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from proton import Transport

from gateway.amqp.engine.close_errors import CloseError
from gateway.amqp.engine.link_table import LinkTable
from gateway.amqp.engine.loops import LOOPS


class DeliveryGate(Protocol):
    """Whether messages may go out (``gateway.vpn.role.Lease``)."""

    def holds(self) -> bool:
        """They may, now."""

    def wait(self, resume: Callable[[], None]) -> None:
        """They may not: ``resume`` is called when they may again."""

    def forget(self, resume: Callable[[], None]) -> None:
        """Nobody waits with this any more."""


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
        self._is_scheduled = False
        self._is_writable = True
        self._close_error: CloseError | None = None
        self._all_written: Callable[[], None] | None = None
        self._gate: DeliveryGate | None = None
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
        if self._socket is None or not self._is_writable or self._links is None:
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
            self._loop.call_soon(self.flush)

    # --- what the connection does -------------------------------------------------------------------------------

    @property
    def is_writable(self) -> bool:
        """The socket's buffer has room."""
        return self._is_writable

    def was_taken(self) -> bool:
        """Whether the peer has taken some of what waits for it since this was asked last."""
        before, self._left_bytes = (
            self._left_bytes,
            0 if self._socket is None else self._socket.get_write_buffer_size(),
        )
        return self._left_bytes < before

    def watch(self, gate: DeliveryGate) -> None:
        """Messages go out while this says that they may, and not otherwise."""
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
        self._is_writable = False

    def resume(self) -> None:
        """The socket's buffer has room again."""
        self._is_writable = True
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
        self._filter = self._all_written = self._failed = None
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
                self.write(held)
            while self._is_writable:
                data = pull(handle)
                if not data:
                    self._has_messages = False
                    if links.names.unanswered:
                        links.names.written()
                    break
                if self._close_error is not None:
                    data = self._close_error.put_into(data + b"".join(iter(lambda: pull(handle), b"")))
                if links.names.unanswered:
                    links.names.saw(data)
                self.write(data)
            if links.is_waiting and self.free_bytes > 0:
                links.offer_output()
            if self._all_written is not None and self._is_writable and transport.pending() < 0:
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
        if links.names.unanswered:
            links.names.saw(data)
        if is_held_back:
            self._held += change(data)
        else:
            self.write(change(data))

    def write(self, data: bytes) -> None:
        """Bytes for the peer, as frames or what comes before them."""
        if self._filter is not None:
            data = self._filter(data)
        if data and self._socket is not None and not self._socket.is_closing():
            self._socket.write(data)
