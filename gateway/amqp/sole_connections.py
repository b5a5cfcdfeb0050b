"""
Containers that want one connection alone (AMQP Enforcing Connection Uniqueness 1.0), in one Message VPN, over all
listeners.

A container-id is whatever a client says. So it means something among the connections of one user: nobody closes, or
keeps out, another user's.
"""

from __future__ import annotations

from typing import Protocol

from amqp_ext.codec import Symbol
from amqp_ext.frames.sole_connection import ENFORCEMENT, EnforcementPolicy
from gateway.core.errors import ErrorCode, Refused


class ContainerConnection(Protocol):
    """An open connection of a container."""

    @property
    def is_connected(self) -> bool:
        """It can still carry something."""

    def displace(self, refused: Refused) -> None:
        """Another connection of its container takes its place: close it, and let go of what is its alone."""


class SoleConnections:
    """The open connections of the clients of a Message VPN, by whose they are and what their containers are called."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], dict[ContainerConnection, EnforcementPolicy | None]] = {}

    def join(
        self, connection: ContainerConnection, user: str, container: str, policy: EnforcementPolicy | None
    ) -> None:
        """
        A connection is about to be opened. An older one's policy is the one in force, where it has one.

        Args:
            policy: What it asks of others; None where it asks for nothing.

        Raises:
            Refused: INVALID_FIELD, its container has another connection, and by the policy keeps that.
        """
        others = {
            other: policy if its_own is None else its_own
            for other, its_own in self._of.get((user, container), {}).items()
            if other.is_connected
        }
        if EnforcementPolicy.REFUSE_CONNECTION in others.values():
            raise Refused(
                ErrorCode.INVALID_FIELD,
                f"the container {container!r:.80} has a connection, and is to have no other (refuse-connection)",
                **{"invalid-field": Symbol("container-id")},
            )
        for other, in_force in others.items():
            if in_force is EnforcementPolicy.CLOSE_EXISTING:
                other.displace(
                    Refused(
                        ErrorCode.RESOURCE_LOCKED,
                        f"the container {container!r:.80} has opened another connection (close-existing)",
                        **{ENFORCEMENT: True},
                    )
                )
        self._of.setdefault((user, container), {})[connection] = policy

    def leave(self, connection: ContainerConnection, user: str, container: str) -> None:
        """It is gone; nothing happens where it had not joined."""
        there = self._of.get((user, container), {})
        there.pop(connection, None)
        if not there:
            self._of.pop((user, container), None)
