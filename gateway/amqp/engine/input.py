"""
What one connection reads: bytes go to its engine, and the engine's events to whom they concern. Of events that may take
a while, sessions, links and their ends, only some are dealt with in a turn of the loop, as thousands fit into one read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from proton import Collector, Event, Transport

from amqp_ext.flow_frames import StateRequest
from amqp_ext.frames.findings import Finding
from amqp_ext.frames.walk import FrameWalk, Piece
from gateway.amqp.engine.event_pump import EventPump
from gateway.amqp.engine.flow_echoes import FlowEchoes
from gateway.amqp.engine.link_table import LinkTable
from gateway.amqp.engine.native import push
from gateway.amqp.engine.output import Output

RARE_EVENTS: Final = 64
"""Sessions, links and their ends that are dealt with in one turn of the loop: some milliseconds."""


class Input:
    """
    The input of one connection.

    Args:
        deal_with: Called with each event that is no transfer, disposition or flow.
        is_busy: Whether so much is under way for the peer that nothing more is to begin. ``wake`` says when it is less.
        go_on: Calls ``go_on`` here, in another turn of the loop, and guards it.
        end: The engine takes no more.
        walk: Over the peer's frames, before the engine has them.
        act: Called with what that finds, once all was dealt with that came before it.
    """

    def __init__(
        self,
        links: LinkTable,
        output: Output,
        walk: FrameWalk,
        act: Callable[[Finding], None],
        deal_with: Callable[[Event], None],
        is_busy: Callable[[], bool],
        go_on: Callable[[], None],
        end: Callable[[], None],
    ) -> None:
        self._output = output
        self._walk = walk
        self._act: Callable[[Finding], None] | None = act
        self._told: tuple[Callable[[Event], None], Callable[[], bool], Callable[[], None]] | None = (
            deal_with,
            is_busy,
            end,
        )
        self._go_on: Callable[[], None] | None = go_on
        self._loop = asyncio.get_running_loop()
        self._events = EventPump(links)
        self._echoes = FlowEchoes(links)
        self._transport: Transport | None = None
        self._collector: Collector | None = None
        self._unread: list[bytes] = []
        """What has come, and the engine was not given. Few: nothing more is read meanwhile."""
        self._pieces: list[Piece] = []
        """The oldest of these, as it will be given, the last first."""
        self._found: Finding | None = None
        """To be acted on once all that the engine has to tell was taken."""
        self._rare_left = 0
        self._is_scheduled = False
        self.is_waiting = False
        """There is more to do for this peer than others should wait for: nothing more is to be read."""

    def begin(self, transport: Transport, collector: Collector) -> None:
        """The engine is there."""
        self._transport, self._collector = transport, collector

    def take(self, data: bytes) -> None:
        """
        Bytes from the peer.

        Raises:
            Refused: As ``go_on``.
        """
        self._unread.append(data)
        if not self.is_waiting:
            self.go_on()

    def go_on(self) -> None:
        """
        Give the engine what has come, and take its events, as far as that is for this turn of the loop.

        Raises:
            Refused: The peer has broken a rule; the connection is of no use any more.
        """
        self.is_waiting = self._is_scheduled = False
        self._rare_left = RARE_EVENTS
        has_failed = False
        while (
            (transport := self._transport) is not None
            and self._collector is not None
            and self._told is not None
        ):
            _, is_busy, end = self._told
            if not self._events.pump(self._collector, self._dispatch):
                self.is_waiting = True
                if not is_busy():
                    self._wake()
                return
            self._act_on_found(transport)
            if has_failed:
                end()
            if not self._pieces:
                if not self._unread:
                    return
                self._pieces = self._walk.pieces_of(self._unread.pop(0))[::-1]
                continue
            piece, self._found = self._pieces.pop()
            has_failed = push(transport, piece) < 0
            if has_failed:
                # Unless the peer has closed, this has the engine say what is wrong.
                transport.close_tail()

    def wake(self) -> None:
        """Less is under way for the peer."""
        if self.is_waiting:
            self._wake()

    def drop(self) -> None:
        """What has come and the engine was not given is of no interest any more."""
        self._unread.clear()
        self._pieces.clear()
        self._found = None

    def lost(self) -> None:
        """The connection is gone: nothing of it is held."""
        self.drop()
        self._transport = self._collector = self._told = self._go_on = self._act = None

    def _wake(self) -> None:
        if self._go_on is not None and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._go_on)

    def _dispatch(self) -> bool:
        """Have one rare event dealt with, the one on top of the collector. Whether another may follow in this turn."""
        if self._collector is None or self._told is None:
            return False
        event = self._collector.peek()
        if event is None:
            return True
        deal_with, is_busy, _ = self._told
        self._rare_left -= 1
        deal_with(event)
        return self._rare_left > 0 and not is_busy()

    def _act_on_found(self, transport: Transport) -> None:
        found, self._found = self._found, None
        if isinstance(found, StateRequest):
            if self._output.is_writable:
                self._output.write(self._echoes.answer(found, self._events.flowed, transport))
        elif found is not None and self._act is not None:
            self._act(found)
