"""
SASL on one connection, from its first byte until the peer is known or turned away (AMQP 1.0 part 5.3).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from amqp_ext.sasl.server import Identity, SaslServer, SaslState
from gateway.password_checks import TooManyChecks


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
