"""
Hooks: what a dialect may change on the listeners that speak it.

A dialect is what the clients of one vendor want of a server beyond AMQP 1.0. Its module makes one ``Dialect`` value,
the registry picks those that a listener speaks, and the rest of the gateway asks ``Spoken``, their hooks as one, by
the names below. So nobody outside a dialect's module names a vendor.

What happens for every message has no hook: ``FrameHooks`` see bytes as they are read and written, and a connection
without them does not ask.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from amqp_ext.addresses.forms import PartitionPosition
from amqp_ext.request_nodes import RequestNode
from gateway.amqp.authorization import Authorization, TokenCheck
from gateway.amqp.connection import FrameHooks
from gateway.amqp.connection_log import ConnectionLog
from gateway.amqp.engine.link_table import AttachedLink
from gateway.amqp.nodes import Lease, NodeOwner
from gateway.core.errors import Refused
from gateway.identity_providers import TokenUser
from gateway.users import Who
from gateway.vpn.message_vpn import MessageVpn


class DialectClient(Protocol):
    """What a dialect needs of a client."""

    log: ConnectionLog
    """Lines about it."""
    vpn: MessageVpn
    """The Message VPN that it opened."""
    authorization: Authorization
    """What its user may do there."""
    owner: NodeOwner
    """What goes with it."""
    token_check: TokenCheck | None
    """What the dialect made for it, where tokens say who it is."""

    @property
    def user(self) -> str:
        """Whose connection it is."""

    @property
    def is_by_token(self) -> bool:
        """Whether it has signed in by a token of an identity provider."""

    def become(self, who: Who) -> None:
        """
        A token has said who the client is.

        Raises:
            Refused: UNAUTHORIZED, the user may not enter the Message VPN, or it is another user's connection; or the
                same user's, with other rights.
        """

    def renew(self, user: TokenUser) -> None:
        """
        The client has shown a newer token than the one that it has signed in with.

        Raises:
            Refused: PRECONDITION_FAILED, it has signed in otherwise; else as ``become``.
        """

    def refuse(self, refused: Refused) -> None:
        """Close the connection with an error."""

    def expire_at(self, expires_s: float, text: str) -> None:
        """Close the connection at a time, in s since the epoch, and say why; unless another time is said before."""


Perform = Callable[[Any, Any], Awaitable[Any]]
"""
Carries out a command for a ``DialectClient``, and returns what came of it once that is durable.

Raises:
    Refused: It is not carried out; the answer says why.
"""


class ServedNode(NamedTuple):
    """A request node, and who carries out what is asked of it."""

    node: RequestNode
    perform: Perform
    looks_at_tokens: bool = False
    """Whether it sees to it itself that its client has a token for what it asks; else that takes one for everything."""


class ReaderGroups(Protocol):
    """Who reads the partitions of one Message VPN for which group of consumers."""

    def check(self, queue: str, group: str, epoch: int | None) -> None:
        """
        Whether one more reader may come.

        Raises:
            Refused: STOLEN, one with a higher epoch has the partition.
        """

    def join(self, queue: str, group: str, epoch: int | None, reader: AttachedLink) -> Lease:
        """
        One more reader; those that it throws out are detached.

        Raises:
            Refused: As ``check``.
        """


@dataclass(frozen=True, slots=True)
class Dialect:
    """
    What a listener says, has and does for one vendor's clients; what is left out is as AMQP 1.0 has it.

    Attributes:
        open_properties: Properties of the open frame, by symbol.
        offered_capabilities: Capabilities of the open frame.
        default_vhost: The virtual host that the clients open when their user names none.
        nodes: Request nodes by address.
        topic_of_address: The topic that a target's address of the vendor's own form stands for; None for any other.
            Raises ``AddressError`` for one that looks like it and is none.
        address_of_queue: How the vendor spells the address of a queue that was made for a client, and that it will
            send to.
        queues_are_streams: Whether a queue that an attach makes is a stream where it does not say what it is.
        consumer_priority: The property of a consumer's link that says its priority, a whole number.
        consumer_timeout: The one that says how long deliveries are its own, in ms.
        reader_groups: Of a Message VPN, by its name: receivers of a partition are readers of its queue in a group of
            consumers. Without, they are readers of the log, with no group.
        passwords_are_tokens: Whether its clients show tokens as passwords.
        mechanisms: SASL mechanisms to offer: of those that are, best first, and of whether tokens say who a client is.
        token_check: Made for a client of whom only tokens say who it is.
        frames: Made for each connection, of the largest frame that is taken, in bytes.
    """

    open_properties: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    offered_capabilities: tuple[str, ...] = ()
    default_vhost: str | None = None
    nodes: Mapping[str, ServedNode] = field(default_factory=lambda: MappingProxyType({}))
    topic_of_address: Callable[[str], str | None] | None = None
    address_of_queue: Callable[[str], str] | None = None
    queues_are_streams: bool = False
    consumer_priority: str | None = None
    consumer_timeout: str | None = None
    reader_groups: Callable[[str], ReaderGroups] | None = None
    passwords_are_tokens: bool = False
    mechanisms: Callable[[tuple[str, ...], bool], tuple[str, ...]] | None = None
    token_check: Callable[[], TokenCheck] | None = None
    frames: Callable[[int], FrameHooks] | None = None


def _nothing(_: Any) -> None:
    """What no dialect has."""


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
        self.reader_groups: Callable[[str], ReaderGroups | None] = _nothing
        """Who reads the partitions of a Message VPN, by its name; None where receivers of one are in no group."""
        self.token_check: Callable[[], TokenCheck | None] = lambda: None
        """What checks the attaches of a client of whom only tokens say who it is."""
        self.frames: Callable[[int], FrameHooks | None] = _nothing
        """
        What a new connection's frames go through, by the largest that is taken, in bytes; None where nothing wants to
        see them.
        """
        for dialect in dialects:
            self.open_properties |= dialect.open_properties
            self.offered_capabilities += dialect.offered_capabilities
            self.nodes |= dialect.nodes
            self.reader_groups = dialect.reader_groups or self.reader_groups
            self.token_check = dialect.token_check or self.token_check
            self.frames = dialect.frames or self.frames
        self.queues_are_streams = any(dialect.queues_are_streams for dialect in dialects)
        """Whether a queue that an attach makes is a stream where it does not say what it is."""
        self.passwords_are_tokens = any(dialect.passwords_are_tokens for dialect in dialects)
        """Whether clients show tokens as passwords."""
        self.consumer_priorities = [d.consumer_priority for d in dialects if d.consumer_priority is not None]
        """Properties of a consumer's link that say its priority."""
        self.consumer_timeouts = [d.consumer_timeout for d in dialects if d.consumer_timeout is not None]
        """Those that say how long deliveries are its own, in ms."""
        self._vhosts = {f"vhost:{d.default_vhost}" for d in dialects if d.default_vhost is not None}
        self._topics = [d.topic_of_address for d in dialects if d.topic_of_address is not None]
        self._queues = [d.address_of_queue for d in dialects if d.address_of_queue is not None]

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

    # --- links ---------------------------------------------------------------------------------------------------

    def topic_of(self, address: str) -> str | None:
        """
        The topic that a target's address stands for in a dialect; None where none has such addresses.

        Raises:
            amqp_ext.addresses.forms.AddressError: It looks like such an address, and is none.
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
