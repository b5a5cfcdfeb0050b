"""
The dialect of Event Hubs' clients: their tokens at ``$cbs``, their requests to ``$management``, their consumer groups
with owner levels, and the hooks for their frames.

An event hub is a stream with one partition. It may be a queue: then its messages are read from the log. A request
about a hub makes it, as an attach does, where queues are made on first use: the clients ask before they receive.

Tokens: a client that connects without a name to a listener that takes tokens has no user until it shows a token. A
shared access signature makes it the user whose key signed the token, for the token's entities. A token of an identity
provider makes it the user that the token names, for all entities; a client that has signed in by such a token renews
it here, too. Invariant: a connection has one user. When a token has expired and was not replaced, the connection is
closed: the token permitted its links.

Consumer groups: of two receivers with an owner level (epoch) the later one displaces the other if its level is as high
or higher; otherwise it is refused. A receiver without a level is displaced by one with a level, and refused while that
is attached. Any number of receivers without a level may read in parallel. A level holds while its receiver is attached.
Source: Microsoft, "Event Hubs: epoch receivers" (archived blog) and the documentation of ``PartitionReceiver``.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final

from amqp_ext.addresses.address import Address, AddressKind, check_queue_name, queue_topic
from amqp_ext.addresses.forms import AddressError, PartitionPosition
from amqp_ext.event_hubs import management as asked
from amqp_ext.event_hubs.forms import CBS, CBS_MECHANISM, MANAGEMENT, PARTITION, partition_path, send_path
from amqp_ext.event_hubs.frames import IncomingFrames, Padder
from amqp_ext.event_hubs.management import HubState, PartitionState, Token, TokenError, read_token
from gateway.amqp.connection import FrameHooks
from gateway.amqp.dialects.hooks import Dialect, DialectClient, ServedNode
from gateway.amqp.engine.link_table import AttachedLink
from gateway.amqp.nodes import Lease
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.errors import ErrorCode, Refused, refusing
from gateway.core.model import ID, TOPIC
from gateway.core.permissions import Action
from gateway.users import Users
from gateway.vpn.runtime import SystemClock
from store.errors import LogTrimmed, ReadFailed


def event_hubs_dialect(users: Users) -> Dialect:
    """
    The dialect, with the consumer groups of all Message VPNs of a gateway.

    Args:
        users: The directory, which knows keys and identity providers.
    """
    groups: defaultdict[str, ConsumerGroups] = defaultdict(ConsumerGroups)
    service = TokenService(users)
    return Dialect(
        nodes={
            CBS: ServedNode(asked.CbsNode(), service.perform, looks_at_tokens=True),
            MANAGEMENT: ServedNode(asked.ManagementNode(), Hubs(service).perform, looks_at_tokens=True),
        },
        queues_are_streams=True,
        reader_groups=groups.__getitem__,
        mechanisms=_mechanisms,
        token_check=Tokens,
        frames=new_frames,
    )


def _mechanisms(named: tuple[str, ...], accepts_tokens: bool) -> tuple[str, ...]:
    """The mechanisms to offer: where tokens are taken, those without credentials, too, as the last ones."""
    if accepts_tokens:
        return (*(name for name in named if name != "ANONYMOUS"), "ANONYMOUS", CBS_MECHANISM)
    return (*named, CBS_MECHANISM) if "ANONYMOUS" in named else named


class ConsumerGroups:
    """The receivers of all hubs of one Message VPN."""

    def __init__(self) -> None:
        self._receivers: dict[tuple[str, str], dict[AttachedLink, int | None]] = {}

    def check(self, queue: str, group: str, epoch: int | None) -> None:
        """
        Check that one more receiver may attach.

        Raises:
            Refused: STOLEN, a receiver with a higher level has the partition.
        """
        levels = [level for level in self._receivers.get((queue, group), {}).values() if level is not None]
        if not levels or (epoch is not None and epoch >= levels[0]):
            return
        asked = "a receiver without an owner level" if epoch is None else f"owner level {epoch}"
        raise Refused(
            ErrorCode.STOLEN,
            f"a receiver of owner level (epoch) {levels[0]} reads {queue!r} for consumer group {group!r}, so "
            f"{asked} is not accepted; attach with that level or a higher one, or detach the other receiver "
            "first",
        )

    def join(self, queue: str, group: str, epoch: int | None, reader: AttachedLink) -> Membership:
        """
        Add a receiver, and detach those that it displaces.

        Raises:
            Refused: As ``check``.
        """
        self.check(queue, group, epoch)
        receivers = self._receivers.setdefault((queue, group), {})
        thrown_out = [] if epoch is None else list(receivers)
        receivers[reader] = epoch
        for other in thrown_out:
            other.refuse(
                Refused(
                    ErrorCode.STOLEN,
                    f"a receiver of owner level (epoch) {epoch} took over {queue!r} for consumer group {group!r}",
                )
            )
        return Membership(self, (queue, group), reader)

    def leave(self, key: tuple[str, str], reader: AttachedLink) -> None:
        """A receiver is gone. A second call does nothing."""
        receivers = self._receivers.get(key)
        if receivers is not None:
            receivers.pop(reader, None)
            if not receivers:
                del self._receivers[key]


class Membership(Lease):
    """A receiver's place in its consumer group, until its link is gone."""

    def __init__(self, groups: ConsumerGroups, key: tuple[str, str], reader: AttachedLink) -> None:
        self._groups = groups
        self._key = key
        self._reader = reader

    def release(self) -> None:
        """The receiver is gone. A second call does nothing."""
        self._groups.leave(self._key, self._reader)


MAX_RESOURCES: Final = 1_000
"""Entities that one connection may have tokens for."""


class Tokens:
    """The tokens of one connection."""

    def __init__(self) -> None:
        self._tokens: dict[str, Token] = {}

    def put(self, client: DialectClient, token: Token) -> None:
        """
        Keep a checked token. It replaces an older one for the same entity if it expires later. The connection is closed
        as soon as one of its tokens has expired.

        Raises:
            Refused: RESOURCE_LIMIT.
        """
        kept = self._tokens.get(token.resource)
        if kept is None and len(self._tokens) >= MAX_RESOURCES:
            raise Refused(
                ErrorCode.RESOURCE_LIMIT, f"this connection has tokens for {MAX_RESOURCES} entities"
            )
        if kept is None or kept.expires_s < token.expires_s:
            self._tokens[token.resource] = token
        soonest = min(self._tokens.values(), key=lambda held: held.expires_s)
        what = soonest.resource or "all entities"
        client.expire_at(soonest.expires_s, f"the token for {what!r} has expired, and no new one came")

    def require(self, address: Address, *, publishes: bool) -> None:
        """
        Check that a token permits receiving from an address, or sending to it. A queue is an entity, and so is a
        partition of one; topics and the log need a token for all entities.

        Raises:
            Refused: UNAUTHORIZED, there is no token for it.
        """
        if address.kind is AddressKind.PARTITION and address.position is not None:
            self.require_path(partition_path(address.name, address.position))
        elif address.kind is not AddressKind.QUEUE:
            self.require_all()
        elif not (publishes and self.covers(send_path(address.name))):
            self.require_path(address.name)

    def require_all(self) -> None:
        """
        Check that a token covers all entities.

        Raises:
            Refused: UNAUTHORIZED, there is no token for everything.
        """
        self.require_path("")

    def require_path(self, path: str) -> None:
        """
        Check that a token covers the entity at a path.

        Raises:
            Refused: UNAUTHORIZED, there is no token for it.
        """
        if not self.covers(path):
            raise Refused(
                ErrorCode.UNAUTHORIZED,
                f"there is no token for {path or 'all entities'!r}: put one at $cbs before you attach",
            )

    def covers(self, path: str) -> bool:
        """Whether there is a token for the entity at a path."""
        now_s = SystemClock.now_ms() / 1_000
        return any(token.covers(path) and token.expires_s > now_s for token in self._tokens.values())


class TokenService:
    """
    Carries out the requests to ``$cbs``: it takes tokens.

    Args:
        users: The directory, which knows keys and identity providers.
    """

    def __init__(self, users: Users) -> None:
        self._users = users

    async def perform(self, client: DialectClient, command: asked.PutToken) -> None:
        """
        Carry out a command of the node.

        Raises:
            Refused: UNAUTHORIZED, the token is not valid; RESOURCE_LIMIT.
        """
        tokens = tokens_of(client)
        if command.kind == asked.JWT and self._users.providers and (tokens is not None or client.is_by_token):
            user = await self._users.of_token(command.token)
            if tokens is None:
                client.renew(user)
            else:
                client.become(user)
                tokens.put(client, Token(user.name, "", int(user.held_until_s), "", ""))
            return
        if tokens is None:
            # SASL has said who the client is, or no user has a key: the token decides nothing.
            return
        if command.kind != asked.SAS_TOKEN:
            raise Refused(
                ErrorCode.UNAUTHORIZED,
                f"tokens are shared access signatures, {asked.SAS_TOKEN}, or of an identity provider, {asked.JWT}, "
                f"where there is one; not {command.kind!r:.60}",
            )
        tokens.put(client, self.check(client, command.token))

    def check(self, client: DialectClient, text: str) -> Token:
        """
        Read and check a token; the client becomes the token's user.

        Raises:
            Refused: UNAUTHORIZED, the text is no token, or the token is not valid.
        """
        with refusing(TokenError, code=ErrorCode.UNAUTHORIZED):
            token = read_token(text)
            key = self._users.sas_keys.get(token.key_name)
            if key is None:
                raise TokenError(f"there is no key {token.key_name!r:.80}: a key has the name of its user")
            token.check(key, SystemClock.now_ms() / 1_000)
        client.become(token.key_name)
        return token


def tokens_of(client: DialectClient) -> Tokens | None:
    """The tokens of a client's connection; None where its user is known by other means."""
    check = client.token_check
    return check if isinstance(check, Tokens) else None


_USES: Final = (Action.PUBLISH, Action.CONSUME, Action.BROWSE, Action.ADMINISTER)
"""Any of these permits reading about a hub."""


def check_position(position: PartitionPosition) -> None:
    """
    Check that a partition exists.

    Raises:
        Refused: NOT_FOUND, it is not the hub's only partition.
    """
    _check_partition(position.partition)


def _check_partition(partition: str) -> None:
    if partition != PARTITION:
        raise Refused(
            ErrorCode.NOT_FOUND,
            f"there is no partition {partition!r}: an event hub has one here, {PARTITION!r}",
        )


class Hubs:
    """
    Carries out the requests to ``$management``: it describes event hubs and partitions.

    Args:
        tokens: Checks the tokens that come with requests.
    """

    def __init__(self, tokens: TokenService) -> None:
        self._tokens = tokens

    async def perform(self, client: DialectClient, command: Any) -> HubState | PartitionState:
        """
        Carry out a command of the node.

        Raises:
            Refused: UNAUTHORIZED; NOT_FOUND; INVALID_FIELD, no hub can have this name; what refuses a log reader.
        """
        match command:
            case asked.ReadHub(name=name, token=shown):
                hub = await self._find_or_make(client, name, shown)
                return HubState(name, client.vpn.broker.log_facts(hub).floor_ms)
            case asked.ReadPartition(hub=name, partition=partition, token=shown):
                hub = self._find(client, name, shown)
                _check_partition(partition)
                try:
                    return await _partition(client, hub)
                except (LogTrimmed, ReadFailed):
                    raise Refused(
                        ErrorCode.INTERNAL, "the history cannot be read now; try again later"
                    ) from None
        raise AssertionError(f"{command!r} is no command")

    def _require(self, client: DialectClient, name: str, shown: str | None) -> None:
        """
        Check that the client may read about a hub.

        Args:
            shown: The token in the request: the Java client puts none at ``$cbs`` for this. It permits this request
                alone and is not kept, so that its expiry does not close the connection.
        """
        tokens = tokens_of(client)
        if tokens is not None:
            # A token for the hub covers this path. The Go and JavaScript clients put one for this path alone.
            path = f"{name}/{MANAGEMENT}"
            if shown is None or tokens.covers(path):
                tokens.require_path(path)
            elif not self._tokens.check(client, shown).covers(path):
                raise Refused(
                    ErrorCode.UNAUTHORIZED, f"the security_token of the request is not for {name!r}"
                )
        client.authorization.require_any(_USES, AddressKind.QUEUE, name)

    async def _find_or_make(self, client: DialectClient, name: str, shown: str | None) -> Endpoint:
        with refusing(AddressError):
            check_queue_name(name)
        self._require(client, name, shown)
        kind = EndpointKind.STREAM if client.vpn.endpoints.by_name.get(name) is None else None
        found = client.vpn.endpoints.queue_for(name, kind=kind)
        await client.vpn.committer.committed()
        return found

    def _find(self, client: DialectClient, name: str, shown: str | None) -> Endpoint:
        self._require(client, name, shown)
        found = client.vpn.endpoints.by_name.get(name)
        if found is None or found.kind is EndpointKind.TOPIC_ENDPOINT:
            raise Refused(
                ErrorCode.NOT_FOUND,
                f"there is no event hub {name!r}; the first sender or receiver creates it",
            )
        return found


async def _partition(client: DialectClient, hub: Endpoint) -> PartitionState:
    broker, history, user = client.vpn.broker, client.vpn.history, client.user
    broker.policy.check_reads("there are no event hubs")
    facts = broker.log_facts(hub)
    is_stream = hub.kind is EndpointKind.STREAM
    matches = hub.topics.matches if is_stream else queue_topic(hub.name).__eq__
    patterns = hub.topics.patterns if is_stream else (queue_topic(hub.name),)

    last = await history.last_matching(matches, user)
    if last is None or not facts.first_id <= last < facts.next_id:
        return PartitionState(hub.name, facts.next_id, None, 0)
    begin = await _first_matching(client, facts.first_id, last, patterns, matches)
    return PartitionState(hub.name, begin, last, await history.time_of(last, user) or 0)


async def _first_matching(
    client: DialectClient, position: int, last: int, patterns: Sequence[str], matches: Callable[[str], bool]
) -> int:
    history, user = client.vpn.history, client.user
    while position < last:
        try:
            page, _ = await asyncio.wrap_future(history.page(position, last, patterns, user))
        except LogTrimmed:
            # Trimmed while we read: the last message is there, and may be the only one.
            break
        for row in page.rows:
            if matches(row[TOPIC]):
                return row[ID]
        position = page.position
    return last


def new_frames(largest_bytes: int) -> FrameHooks:
    """
    The hooks of a new connection.

    Args:
        largest_bytes: The largest frame that is accepted.
    """
    batches = IncomingFrames(largest_bytes)
    return FrameHooks(batches.receive, Padder().pad, batches)
