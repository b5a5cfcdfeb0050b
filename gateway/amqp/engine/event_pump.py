"""
The loop over the engine's events: transfers, dispositions and credit go to their links in batches.

Events of one link follow each other mostly: it goes round once a run of them, not once an event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proton import Collector

from gateway.amqp.engine.attached_link import Receiving, Sending
from gateway.amqp.engine.link_table import LinkTable
from gateway.amqp.engine.loops import LOOPS, Loops
from gateway.amqp.engine.native import DELIVERY, LINK_FLOW


class EventPump:
    """
    Takes the events of one connection's engine.

    Args:
        links: Who takes what, by handle.
    """

    def __init__(self, links: LinkTable, loops: Loops = LOOPS) -> None:
        self._loops = loops
        self._incoming, self._outgoing = links.incoming, links.outgoing
        self.flowed: Any = None
        """The handle of the link of the last flow that was taken."""

    def pump(self, collector: Collector, other: Callable[[], bool]) -> bool:
        """
        Take the events there are. Transfers, dispositions and credit are handled here, in batches; for all else
        ``other`` is called with the event on top of the collector.

        Args:
            other: Says whether to go on: what happens once a link may take a while, and thousands can come at once.

        Returns:
            Whether there is none left.

        Raises:
            Refused: The peer sends where it receives, or without credit; the connection is of no use any more.
        """
        loops = self._loops
        # The collector is held here: what is called for its events may lose the connection.
        handle = loops.handle_of(collector._impl)
        incoming, outgoing = self._incoming, self._outgoing
        arrived: dict[Receiving, None] = {}
        settled: dict[Sending, None] = {}
        flowed: dict[Sending, None] = {}
        top, skip = loops.top, loops.skip
        while (found := top(handle)) is not None:
            kind, link = found
            if kind == DELIVERY:
                receiving = incoming.get(link)
                if receiving is not None:
                    arrived[receiving] = None
                else:
                    sending = outgoing.get(link)
                    if sending is not None:
                        settled[sending] = None
                        sending.updated(handle)
                        continue
                    # They crossed our detach, or their attach was refused. The engine would keep them, however many a
                    # peer sends.
                    loops.discard(link)
                skip(handle, kind, link)
            elif kind == LINK_FLOW:
                self.flowed = link
                sending = outgoing.get(link)
                if sending is not None:
                    flowed[sending] = None
                skip(handle, kind, link)
            else:
                # In order: what came before a detach or close is dealt with first.
                self._finish(arrived, settled, flowed)
                goes_on = other()
                loops.drop(handle)
                if not goes_on:
                    return False
        self._finish(arrived, settled, flowed)
        return True

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
