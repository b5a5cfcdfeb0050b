"""
Our open frame: what is offered, and what it says of the connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from proton import Connection, symbol, uint

from amqp_ext.frames.sole_connection import DETECTION_POLICY, SOLE_CONNECTION, STRONG
from gateway.amqp.acceptor import OpenClient

OFFERED: Final = ("ANONYMOUS-RELAY", "SHARED-SUBS", "rewind:replay-start")
"""Capabilities of our open frame, on every listener."""

NOT_ESTABLISHED: Final = "amqp:connection-establishment-failed"
"""Property of our open frame that says: a close with the reason follows. Without, Qpid JMS takes the connection for one
that was open and got lost."""


class Offering(Protocol):
    """What a listener offers beside that."""

    @property
    def offered_capabilities(self) -> tuple[str, ...]:
        """Capabilities."""

    @property
    def open_properties(self) -> Mapping[str, str]:
        """Properties."""


def answer_open(engine: Connection, listener: Offering, client: OpenClient | None) -> None:
    """
    Fill in our open frame.

    Args:
        client: Whose connection it is; None where it is refused.
    """
    offered = [*OFFERED, *listener.offered_capabilities]
    properties: dict[Any, Any] = {symbol(key): value for key, value in listener.open_properties.items()}
    if client is None:
        properties[symbol(NOT_ESTABLISHED)] = True
    elif client.is_alone:
        offered.append(SOLE_CONNECTION)
        properties[symbol(DETECTION_POLICY)] = uint(STRONG)
    engine.offered_capabilities = [symbol(capability) for capability in offered]
    engine.properties = properties
