"""
What publishes copies at another gateway: a connection of a job's own, behind a port, for a Message VPN opens none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from gateway.config import ReplayTarget


class RemotePublisher(Protocol):
    """Publishes to one address of a peer."""

    def publish(self, settings: ReplayTarget, contents: Sequence[bytes]) -> list[str]:
        """
        Publish encoded messages, and wait for what the peer says of each. Blocks: for a thread, one call at a time.

        Connects where there is no connection; where it cannot, or is cut off, the messages say so that nothing was
        heard of.

        Args:
            settings: Where the peer is, as the configuration has it now.

        Returns:
            For each message why it was not accepted; empty where it was.
        """

    def close(self) -> None:
        """Let go of the connection, and have a call that waits return soon. From any thread; for good."""


OpenRemote: TypeAlias = Callable[[str, str], RemotePublisher]
"""Called with the address there, and the name of the replay. Connects to nobody yet."""
