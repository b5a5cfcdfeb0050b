"""
How a connection is accepted: what it is given by its listener, its SASL handshake (AMQP 1.0 part 5.3), and our open
frame.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, Protocol, TypeVar

from proton import Connection, Link, symbol, uint

from amqp_ext.frames.sole_connection import DETECTION_POLICY, SOLE_CONNECTION, STRONG, EnforcementPolicy
from amqp_ext.frames.termini import AttachedTermini
from amqp_ext.sasl.server import Identity, SaslServer, SaslState
from gateway.config import Limits
from gateway.ledger import Account
from gateway.users import TooManyChecks

ConnectionT_contra = TypeVar("ConnectionT_contra", contravariant=True)
"""The connection."""


class FrameFilter(Protocol):
    """
    What the frames of one connection go through, where more is wanted of them than the engine tells or writes.

    Invariant: the engine and the peer understand the same with and without this.
    """

    @property
    def receive(self) -> Callable[[bytes], bytes]:
        """Given any piece of what the peer sent; returns what the engine is given instead."""

    @property
    def write(self) -> Callable[[bytes], bytes]:
        """Given any piece of what the engine has to say; returns what is written instead."""


class OpenClient(Protocol):
    """The client of a connection that is open, in its Message VPN: what its links are, is known there."""

    @property
    def vpn_name(self) -> str:
        """The Message VPN."""

    @property
    def is_alone(self) -> bool:
        """Its container wants to have no other connection, and that is kept."""

    @property
    def wait_for_room(self) -> Callable[[Callable[[], None]], bool]:
        """Whether too much is uncommitted to read more; if so, what it is given is called once it is less."""

    async def attach(self, link: Link, termini: AttachedTermini) -> None:
        """
        Answer an attach; never raises for a mistake of the peer's.

        Args:
            termini: What is said of its source and target.
        """

    def retired(self, txn_id: bytes, count: int, found: int) -> None:
        """
        A disposition was dealt with that gives deliveries an outcome in a transaction.

        Args:
            count: Of its range.
            found: Those that a link has.
        """

    def abandon_transactions(self) -> None:
        """Links are about to be dropped, and see to what they have: nothing of open transactions happens."""

    def links_lost(self, guarded: Callable[[Callable[[], None]], None]) -> None:
        """
        The connection is gone, and its links were told.

        Args:
            guarded: Calls what it is given, whatever that raises: no mistake is to cost another thing its end.
        """

    def left(self) -> None:
        """The connection is gone with all that was its."""


class Acceptor(Protocol[ConnectionT_contra]):
    """Where a connection was accepted: what its listener has it be."""

    @property
    def limits(self) -> Limits:
        """Those in effect now."""

    @property
    def container_id(self) -> str:
        """Ours."""

    def account(self, close: Callable[[str], None]) -> Account:
        """
        Where it is entered what the connection makes us hold.

        Args:
            close: Closes it, as the one that holds the most; called with the name of the bound that was passed.
        """

    def joined(self, connection: ConnectionT_contra) -> None:
        """It has a socket."""

    def opened(self, identity: Identity) -> None:
        """
        Its handshake is over, and its open frame here.

        Raises:
            Refused: RESOURCE_LIMIT, its user has as many connections as one may have.
        """

    def left(self, connection: ConnectionT_contra) -> None:
        """It is gone."""

    def admits_line(self, kind: str, held_back: int) -> int | None:
        """
        One more log line of a kind, that stands for so many left out before.

        Returns:
            How many were held back since the last one; None if this one is to be held back, too.
        """

    def count_failure(self) -> None:
        """A mistake of ours has cost a connection."""

    def sasl(self, certificate_name: str | None) -> SaslServer:
        """A fresh negotiation; ``certificate_name`` is the common name of the client's verified certificate."""

    async def check_password(self, work: Callable[[], bool]) -> bool:
        """
        Have a password checked, off the loop.

        Raises:
            gateway.users.TooManyChecks: Its peer may try again later.
        """

    def frame_filter(self, identity: Identity) -> FrameFilter | None:
        """What the frames of a client go through of whom SASL says this; None where nothing wants to see them."""

    @property
    def offered_capabilities(self) -> tuple[str, ...]:
        """Capabilities of our open frame, besides those that every listener offers."""

    @property
    def open_properties(self) -> Mapping[str, str]:
        """Properties of our open frame."""

    def open_client(
        self, connection: ConnectionT_contra, hostname: str | None, policy: EnforcementPolicy | None
    ) -> OpenClient:
        """
        The client, in the Message VPN that its open frame asks for.

        Args:
            policy: What that asks of other connections of its container; None where it asks for nothing.

        Raises:
            Refused: There is no such Message VPN, or its user may not enter that; or its container has another
                connection, and keeps that.
        """


class Negotiating(Protocol):
    """The connection that a handshake is of."""

    def write(self, data: bytes) -> None:
        """Bytes for the peer."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that takes time, until the connection is lost."""

    def authenticated(self, identity: Identity, leftover: bytes) -> None:
        """The peer is known; the first bytes behind the handshake are here."""

    def turn_away(self, reason: str | None) -> None:
        """The handshake has failed, and said so."""


class Handshake:
    """
    What a connection does with its bytes before there is an engine for them.

    Args:
        check: Has a password checked, off the loop; raises ``TooManyChecks``.
    """

    def __init__(
        self,
        connection: Negotiating,
        sasl: SaslServer,
        check: Callable[[Callable[[], bool]], Awaitable[bool]],
    ) -> None:
        self._connection = connection
        self._check = check
        self._sasl = sasl

    def receive(self, data: bytes) -> None:
        """Bytes from the peer; at the end the connection is told of it."""
        connection, sasl = self._connection, self._sasl
        before = sasl.state
        sasl.receive(data)
        connection.write(sasl.drain_output())
        match sasl.state:
            # Once: what a client sends ahead, in however many pieces, must not have its password hashed again.
            case SaslState.VERIFYING if before is not SaslState.VERIFYING:
                connection.spawn(self._verify())
            case SaslState.DONE:
                assert sasl.identity is not None
                connection.authenticated(sasl.identity, sasl.leftover)
            case SaslState.FAILED:
                connection.turn_away(sasl.failure)

    def close(self) -> None:
        """The connection is gone."""
        self._sasl.close()

    async def _verify(self) -> None:
        """A password's hash is slow on purpose: it is computed off the loop."""
        sasl = self._sasl
        assert sasl.verification is not None
        try:
            sasl.resolve(await self._check(sasl.verification))
        except TooManyChecks:
            sasl.put_off("too many passwords are being checked")
        self.receive(b"")


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
