"""
Containers that want one connection alone (AMQP Enforcing Connection Uniqueness 1.0), in one Message VPN, over all
listeners.

A container-id is whatever a client says. So it means something among the connections of one user: nobody closes, or
keeps out, another user's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class _Container:
    """The connections of one: thousands may call themselves the same, and few ask to be alone."""

    asking: dict[ContainerConnection, EnforcementPolicy] = field(default_factory=dict)
    silent: dict[ContainerConnection, None] = field(default_factory=dict)

    def in_force(
        self, policy: EnforcementPolicy | None
    ) -> Iterable[tuple[ContainerConnection, EnforcementPolicy]]:
        """Who is connected, and what becomes of it, or of one with this policy, by the older one's where it has one."""
        for other, its_own in self.asking.items():
            if other.is_connected:
                yield other, its_own
        if policy is not None:
            for other in self.silent:
                if other.is_connected:
                    yield other, policy


class SoleConnections:
    """The open connections of the clients of a Message VPN, by whose they are and what their containers are called."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], _Container] = {}

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
        there = self._of.get((user, container)) or _Container()
        if any(in_force is EnforcementPolicy.REFUSE_CONNECTION for _, in_force in there.in_force(policy)):
            raise Refused(
                ErrorCode.INVALID_FIELD,
                f"the container {container!r:.80} has a connection, and is to have no other (refuse-connection)",
                **{"invalid-field": Symbol("container-id")},
            )
        for other, _ in list(there.in_force(policy)):  # all have to go
            other.displace(
                Refused(
                    ErrorCode.RESOURCE_LOCKED,
                    f"the container {container!r:.80} has opened another connection (close-existing)",
                    **{ENFORCEMENT: True},
                )
            )
        there = self._of.setdefault((user, container), there)
        if policy is None:
            there.silent[connection] = None
        else:
            there.asking[connection] = policy

    def leave(self, connection: ContainerConnection, user: str, container: str) -> None:
        """It is gone; nothing happens where it had not joined."""
        there = self._of.get((user, container))
        if there is None:
            return
        there.asking.pop(connection, None)
        there.silent.pop(connection, None)
        if not there.asking and not there.silent:
            del self._of[user, container]
