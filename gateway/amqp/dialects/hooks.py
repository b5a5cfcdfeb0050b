"""
Hooks: what a dialect may change on the listeners that speak it.

A dialect is what the clients of one vendor want of a server beyond AMQP 1.0. Its module makes one ``Dialect`` value.
The registry picks the dialects that a listener speaks, and the rest of the gateway asks ``Spoken``, which combines
their hooks under neutral names. So no module outside the dialects names a vendor.

There is no hook for each message: ``FrameHooks`` see bytes as they are read and written, and a connection without them
calls nothing.
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
    """The log of its connection."""
    vpn: MessageVpn
    """The Message VPN that it opened."""
    authorization: Authorization
    """What its user may do there."""
    owner: NodeOwner
    """Its connection, as the owner of temporary and exclusive nodes."""
    token_check: TokenCheck | None
    """The check that the dialect made for it; None where its user is known by other means."""

    @property
    def user(self) -> str:
        """The name of its user."""

    @property
    def is_by_token(self) -> bool:
        """Whether it has signed in by a token of an identity provider."""

    def become(self, who: Who) -> None:
        """
        Take the user that a token names as the client's user.

        Raises:
            Refused: UNAUTHORIZED, the user may not enter the Message VPN, the connection is another user's, or the
                token gives the same user other rights.
        """

    def renew(self, user: TokenUser) -> None:
        """
        Take a newer token in place of the one that the client signed in with.

        Raises:
            Refused: PRECONDITION_FAILED, the client did not sign in with a token; else as ``become``.
        """

    def refuse(self, refused: Refused) -> None:
        """Close the connection with an error."""

    def expire_at(self, expires_s: float, text: str) -> None:
        """Close the connection at a time, in s since the epoch, and say why. A later call replaces the time."""


Perform = Callable[[Any, Any], Awaitable[Any]]
"""
Carries out a command for a ``DialectClient``, and returns its result once it is durable.

Raises:
    Refused: It is not carried out; the answer says why.
"""


class ServedNode(NamedTuple):
    """A request node, and the function that carries out its requests."""

    node: RequestNode
    perform: Perform
    looks_at_tokens: bool = False
    """Whether it checks the client's tokens by itself; else an attach to the node needs a token for all entities."""


class ReaderGroups(Protocol):
    """The readers of the partitions of one Message VPN, by consumer group."""

    def check(self, queue: str, group: str, epoch: int | None) -> None:
        """
        Check that one more reader may attach.

        Raises:
            Refused: STOLEN, a reader with a higher epoch has the partition.
        """

    def join(self, queue: str, group: str, epoch: int | None, reader: AttachedLink) -> Lease:
        """
        Add a reader, and detach those that it displaces.

        Raises:
            Refused: As ``check``.
        """


@dataclass(frozen=True, slots=True)
class Dialect:
    """
    What a listener says, has and does for one vendor's clients. A hook that is left out is as in plain AMQP 1.0.

    Attributes:
        open_properties: Properties of the open frame, by symbol.
        offered_capabilities: Capabilities of the open frame.
        default_vhost: The virtual host that the clients open when their user names none.
        nodes: Request nodes by address.
        topic_of_address: The topic that a target's address in the vendor's own form means; None for any other address.
            Raises ``AddressError`` for an address of that form that is malformed.
        address_of_queue: The vendor's form of the address of a queue that was made for a client, for it to send to.
        queues_are_streams: Whether a queue is a stream if an attach makes it and does not say which kind it is.
        consumer_priority: The property of a consumer's link that says its priority, a whole number.
        consumer_timeout: The property of a consumer's link that says how long a delivery is locked for it, in ms.
        reader_groups: The consumer groups of a Message VPN, by its name: receivers of a partition read its queue in a
            group. Without this hook they read the log, in no group.
        passwords_are_tokens: Whether its clients show tokens as passwords.
        mechanisms: The SASL mechanisms to offer, given those of the settings, best first, and whether tokens are taken.
        token_check: Makes the check for a client that only tokens identify.
        frames: Makes the hooks of a connection, given the largest frame that is accepted, in bytes.
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
    """The hook of a listener whose dialects have none."""


class Spoken:
    """
    What a listener speaks beyond AMQP 1.0.

    Args:
        dialects: Of two properties, nodes, groups, token checks or frame hooks that collide, the later one wins.
        check_position: Checks that a partition exists; raises ``Refused``. Called on every listener: a client that
            reads four partitions must not get everything four times.
    """

    def __init__(self, dialects: list[Dialect], check_position: Callable[[PartitionPosition], None]) -> None:
        self._dialects = dialects
        self.check_position = check_position
        self.open_properties: dict[str, str] = {"product": "Rewind"}
        self.offered_capabilities: tuple[str, ...] = ()
        self.nodes: dict[str, ServedNode] = {}
        """Request nodes by address."""
        self.reader_groups: Callable[[str], ReaderGroups | None] = _nothing
        """The consumer groups of a Message VPN, by its name; None where receivers of a partition are in no group."""
        self.token_check: Callable[[], TokenCheck | None] = lambda: None
        """Makes the check for a client that only tokens identify."""
        self.frames: Callable[[int], FrameHooks | None] = _nothing
        """Makes the hooks of a connection, given the largest accepted frame in bytes; None where there are none."""
        for dialect in dialects:
            self.open_properties |= dialect.open_properties
            self.offered_capabilities += dialect.offered_capabilities
            self.nodes |= dialect.nodes
            self.reader_groups = dialect.reader_groups or self.reader_groups
            self.token_check = dialect.token_check or self.token_check
            self.frames = dialect.frames or self.frames
        self.queues_are_streams = any(dialect.queues_are_streams for dialect in dialects)
        """Whether a queue is a stream if an attach makes it and does not say which kind it is."""
        self.passwords_are_tokens = any(dialect.passwords_are_tokens for dialect in dialects)
        """Whether clients show tokens as passwords."""
        self.consumer_priorities = [d.consumer_priority for d in dialects if d.consumer_priority is not None]
        """Properties of a consumer's link that say its priority."""
        self.consumer_timeouts = [d.consumer_timeout for d in dialects if d.consumer_timeout is not None]
        """Properties of a consumer's link that say how long a delivery is locked for it, in ms."""
        self._vhosts = {f"vhost:{d.default_vhost}" for d in dialects if d.default_vhost is not None}
        self._topics = [d.topic_of_address for d in dialects if d.topic_of_address is not None]
        self._queues = [d.address_of_queue for d in dialects if d.address_of_queue is not None]

    # --- the connection -----------------------------------------------------------------------------------------

    def mechanisms(self, named: tuple[str, ...], *, accepts_tokens: bool) -> tuple[str, ...]:
        """
        The SASL mechanisms to offer, best first.

        Args:
            named: The mechanisms that the listener's settings name.
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
        The topic that a target's address means in a dialect; None where no dialect has such addresses.

        Raises:
            amqp_ext.addresses.forms.AddressError: The address has a dialect's form, and is malformed.
        """
        for read in self._topics:
            if (topic := read(address)) is not None:
                return topic
        return None

    def address_of(self, queue: str) -> str:
        """The address of a queue that was made for a client, in the form that the client can send to."""
        return self._queues[0](queue) if self._queues else queue

    @property
    def targets_are_exchanges(self) -> bool:
        """Whether a sender to a queue sends to an exchange, as its vendor sees it, and outlives the queue."""
        return bool(self._queues)
