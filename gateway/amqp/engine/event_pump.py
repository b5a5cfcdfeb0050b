"""
The loop over the engine's events: transfers, dispositions and credit go to their links in batches.

It runs once an event, which is once a message and more: dictionary lookups by C structure, and no object made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from cproton_ffi import lib
from proton import Collector

from gateway.amqp.engine.attached_link import Receiving, Sending
from gateway.amqp.engine.link_table import LinkTable
from gateway.amqp.engine.native import NULL

DELIVERY: Final = lib.PN_DELIVERY
LINK_FLOW: Final = lib.PN_LINK_FLOW
TRANSPORT: Final = lib.PN_TRANSPORT


def _discard(link: Any) -> None:
    """
    Let go of transfers that nobody reads: they crossed our detach, or their attach was refused. The engine would keep
    them, however many a peer sends.
    """
    if lib.pn_link_is_receiver(link):
        while (delivery := lib.pn_link_current(link)) != NULL:
            lib.pn_link_advance(link)
            lib.pn_delivery_settle(delivery)


class EventPump:
    """
    Takes the events of one connection's engine.

    Args:
        links: Who takes what, by C structure.
    """

    def __init__(self, links: LinkTable) -> None:
        self._incoming, self._outgoing = links.incoming, links.outgoing
        self.flowed: Any = None
        """The C structure of the link of the last flow that was taken."""

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
        impl = collector._impl
        incoming, outgoing = self._incoming, self._outgoing
        arrived: dict[Receiving, None] = {}
        settled: dict[Sending, None] = {}
        flowed: dict[Sending, None] = {}
        peek, kind_of, pop = lib.pn_collector_peek, lib.pn_event_type, lib.pn_collector_pop
        # A C structure is true, NULL is not: that costs half of what comparing it does.
        while event := peek(impl):
            kind = kind_of(event)
            if kind == DELIVERY:
                link = lib.pn_event_link(event)
                receiving = incoming.get(link)
                if receiving is not None:
                    arrived[receiving] = None
                else:
                    sending = outgoing.get(link)
                    if sending is not None:
                        settled[sending] = None
                        sending.updated(impl)
                        continue
                    _discard(link)
            elif kind == LINK_FLOW:
                link = self.flowed = lib.pn_event_link(event)
                sending = outgoing.get(link)
                if sending is not None:
                    flowed[sending] = None
            elif kind != TRANSPORT:
                # In order: what came before a detach or close is dealt with first.
                self._finish(arrived, settled, flowed)
                goes_on = other()
                pop(impl)
                if not goes_on:
                    return False
                continue
            pop(impl)
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
