"""
Answers to peers that ask for our state: a flow with ``echo``, or a drain where there is no credit left to use up.

The engine looks at neither. It says a session's state when it is told the session's capacity anew, and with it the
state of a link that we receive on; that of a link we send on is added to it here. Such flows are found by the walk over
the peer's frames (``amqp_ext.frames.walk``).
"""

from __future__ import annotations

from typing import Any

from proton import Link, Transport

from amqp_ext.flow_frames import (
    FLOW,
    StateRequest,
    fields_of,
    frames_of,
    with_link_state,
)
from gateway.amqp.engine.link_table import LinkTable
from gateway.amqp.engine.loops import pull


class FlowEchoes:
    """The flows of one connection's peer, and what is said to them."""

    def __init__(self, links: LinkTable) -> None:
        self._links = links

    def answer(self, request: StateRequest, flowed: Any, transport: Transport) -> bytes:
        """
        What is to be written now for a flow that the engine has just taken, and before it.

        Args:
            flowed: The handle of the link that the engine says it is of.
        """
        output = self._pull(transport)
        if request.handle is None:
            # On which of them it came, the engine does not tell.
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
        """The state of a link that we send on, unless it was just said, or will be once its credit is used up."""
        handle = self._links.names.handle_of(link)
        if handle is None or (link.credit > 0 and not request.is_echo):
            return b""
        if request.is_drain and link.queued:
            # The session's window is closed: what waits for it goes first, and the engine tells the rest.
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
        names = self._links.names
        if names.unanswered:
            names.saw(output)
            names.written()
        return output
