"""
What a listener speaks beyond AMQP 1.0: the hooks of its dialects, as one.
"""

from __future__ import annotations

from collections.abc import Callable

from amqp_ext.addresses.forms import PartitionPosition
from gateway.amqp.dialects.hooks import (
    Dialect,
    DialectClient,
    FrameHooks,
    ReaderGroups,
    ServedNode,
    TokenCheck,
)


class Spoken:
    """
    What a listener speaks beyond AMQP 1.0.

    Args:
        dialects: Later ones win where two say the same.
        check_position: Whether a partition is there, of any dialect's addresses; raises ``Refused``. It is asked on
            any listener: who reads four partitions must not get everything four times.
    """

    def __init__(self, dialects: list[Dialect], check_position: Callable[[PartitionPosition], None]) -> None:
        self._dialects = dialects
        self.check_position = check_position
        self.open_properties: dict[str, str] = {"product": "Rewind"}
        self.offered_capabilities: tuple[str, ...] = ()
        self.nodes: dict[str, ServedNode] = {}
        """Request nodes by address."""
        for dialect in dialects:
            self.open_properties |= dialect.open_properties
            self.offered_capabilities += dialect.offered_capabilities
            self.nodes |= dialect.nodes
        self.queues_are_streams = any(dialect.queues_are_streams for dialect in dialects)
        """Whether a queue that an attach makes is a stream where it does not say what it is."""
        self.consumer_priorities = [d.consumer_priority for d in dialects if d.consumer_priority is not None]
        """Properties of a consumer's link that say its priority."""
        self._vhosts = {f"vhost:{d.default_vhost}" for d in dialects if d.default_vhost is not None}
        self._topics = [d.topic_of_address for d in dialects if d.topic_of_address is not None]
        self._queues = [d.address_of_queue for d in dialects if d.address_of_queue is not None]
        self._groups: Callable[[str], ReaderGroups] | None = None
        self._token_check: Callable[[DialectClient], TokenCheck] | None = None
        self._frames: Callable[[int], FrameHooks] | None = None
        for dialect in dialects:
            self._groups = dialect.reader_groups or self._groups
            self._token_check = dialect.token_check or self._token_check
            self._frames = dialect.frames or self._frames

    # --- the connection -----------------------------------------------------------------------------------------

    def mechanisms(self, named: tuple[str, ...], *, accepts_tokens: bool) -> tuple[str, ...]:
        """
        The SASL mechanisms to offer, best first.

        Args:
            named: Those that the listener's settings name.
            accepts_tokens: Whether tokens may say who a client is.
        """
        for dialect in self._dialects:
            if dialect.mechanisms is not None:
                named = dialect.mechanisms(named, accepts_tokens)
        return named

    def vpn_name_of(self, hostname: str | None) -> str | None:
        """The hostname of an open frame; None, which names no Message VPN, where it is a dialect's own default."""
        return None if hostname in self._vhosts else hostname

    def token_check(self, client: DialectClient) -> TokenCheck | None:
        """What checks the attaches of a client of whom only tokens say who it is."""
        return self._token_check(client) if self._token_check is not None else None

    def frames(self, largest_bytes: int) -> FrameHooks | None:
        """
        What a new connection's frames go through; None where nothing wants to see them.

        Args:
            largest_bytes: The largest frame that is taken.
        """
        return self._frames(largest_bytes) if self._frames is not None else None

    # --- links ---------------------------------------------------------------------------------------------------

    def topic_of(self, address: str) -> str | None:
        """
        The topic that a target's address stands for in a dialect; None where none has such addresses.

        Raises:
            amqp_ext.addresses.texts.AddressError: It looks like such an address, and is none.
        """
        for read in self._topics:
            if (topic := read(address)) is not None:
                return topic
        return None

    def address_of(self, queue: str) -> str:
        """The address of a queue that was made for a client: what its kind of client can send to."""
        return self._queues[0](queue) if self._queues else queue

    @property
    def targets_are_exchanges(self) -> bool:
        """Who sends to a queue sends to an exchange in front of it, in its vendor's view, and stays when it goes."""
        return bool(self._queues)

    def reader_groups(self, vpn: str) -> ReaderGroups | None:
        """Who reads the partitions of a Message VPN, by its name; None where receivers of one are in no group."""
        return self._groups(vpn) if self._groups is not None else None
