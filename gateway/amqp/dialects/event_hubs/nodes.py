"""
What Event Hubs' clients ask ``$cbs`` and ``$management`` for, done to their connection and its Message VPN.

An event hub is a stream (or a queue: then what was sent to it is read from the log) with one partition. Reading about
it makes it where queues are made on first use, as senders and receivers do: the clients read before they receive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from amqp_ext.addresses import AddressError, AddressKind, check_queue_name, queue_topic
from amqp_ext.event_hubs import MANAGEMENT, PARTITION
from amqp_ext.event_hubs.nodes import SAS_TOKEN, HubState, PartitionState, PutToken, ReadHub, ReadPartition
from amqp_ext.event_hubs.tokens import Token, TokenError, read_token
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.errors import ErrorCode, Refused
from gateway.core.permissions import Action
from gateway.vpn.clock import now_ms
from store.errors import LogTrimmed
from store.sqlite.reader import Reader

if TYPE_CHECKING:
    from gateway.amqp.connection import Connection

_USES: Final = (Action.PUBLISH, Action.CONSUME, Action.BROWSE, Action.ADMINISTER)
"""Any of these permits to know of a hub."""


async def perform(connection: Connection, command: Any) -> Any:
    """
    Carry out a command of ``amqp_ext.event_hubs.nodes``.

    Returns:
        What that module says of the command.

    Raises:
        Refused: It is not carried out.
    """
    match command:
        case PutToken(token=token, kind=kind):
            _put_token(connection, token, kind)
            return None
        case ReadHub(name=name, token=shown):
            hub = await _find_or_make(connection, name, shown)
            return HubState(name, connection.vpn.broker.log_facts(hub).floor_ms)
        case ReadPartition(hub=name, partition=partition, token=shown):
            hub = _find(connection, name, shown)
            check_partition(partition)
            return await _partition(connection, hub)
    raise AssertionError(f"{command!r} is no command")


def check_partition(partition: str) -> None:
    """
    Raises:
        Refused: NOT_FOUND, it is not the one there is.
    """
    if partition != PARTITION:
        raise Refused(
            ErrorCode.NOT_FOUND,
            f"there is no partition {partition!r}: an event hub has one here, {PARTITION!r}",
        )


def _put_token(connection: Connection, text: str, kind: str) -> None:
    """Where nobody has a key there is nothing to check, and every token is as good as none."""
    if connection.claims is None:
        return
    if kind != SAS_TOKEN:
        raise Refused(
            ErrorCode.UNAUTHORIZED, f"tokens are shared access signatures, {SAS_TOKEN}, not {kind!r:.60}"
        )
    connection.claims.put(_checked(connection, text))


def _checked(connection: Connection, text: str) -> Token:
    """The token in a text; who showed it is from now on its user."""
    try:
        token = read_token(text)
        key = connection.container.users.sas_key(token.key_name)
        if key is None:
            raise TokenError(f"there is no key {token.key_name!r:.80}: it is called like its user")
        token.check(key, now_ms() / 1_000)
    except TokenError as error:
        raise Refused(ErrorCode.UNAUTHORIZED, str(error)) from None
    connection.become(token.key_name)
    return token


def _require(connection: Connection, name: str, shown: str | None) -> None:
    """
    Reading about a hub.

    Args:
        shown: A token that came with the request: the Java client puts none at ``$cbs`` for this. It permits the one
            request, and is not kept: when it expires, nothing that was attached by other tokens is lost.
    """
    if connection.claims is not None:
        # A token for the hub permits that, and so does one for this alone, as the Go and JavaScript clients put it.
        path = f"{name}/{MANAGEMENT}"
        if shown is None or connection.claims.covers(path):
            connection.claims.require(path)
        elif not _checked(connection, shown).covers(path):
            raise Refused(ErrorCode.UNAUTHORIZED, f"the security_token of the request is not for {name!r}")
    connection.access.require_any(_USES, AddressKind.QUEUE, name)


async def _find_or_make(connection: Connection, name: str, shown: str | None) -> Endpoint:
    try:
        check_queue_name(name)
    except AddressError as error:
        raise Refused(ErrorCode.INVALID_FIELD, str(error)) from None
    _require(connection, name, shown)
    broker = connection.vpn.broker
    kind = EndpointKind.STREAM if broker.find(name) is None else None
    found, effects = broker.queue_for(name, kind=kind)
    await connection.vpn.committed(effects)
    return found


def _find(connection: Connection, name: str, shown: str | None) -> Endpoint:
    _require(connection, name, shown)
    found = connection.vpn.broker.find(name)
    if found is None or found.kind is EndpointKind.TOPIC_ENDPOINT:
        raise Refused(
            ErrorCode.NOT_FOUND, f"there is no event hub {name!r}; the first sender or receiver makes it"
        )
    return found


def patterns_of(connection: Connection, hub: Endpoint) -> tuple[str, ...]:
    """The topics whose messages a hub's readers get."""
    is_stream = hub.kind is EndpointKind.STREAM
    return connection.vpn.broker.topic_patterns(hub) if is_stream else (queue_topic(hub.name),)


async def _partition(connection: Connection, hub: Endpoint) -> PartitionState:
    broker, reader = connection.vpn.broker, connection.vpn.reader
    broker.policy.check_reads("there are no event hubs")
    facts = broker.log_facts(hub)
    matches = broker.topic_matcher(hub) if hub.kind is EndpointKind.STREAM else queue_topic(hub.name).__eq__
    patterns = patterns_of(connection, hub)

    def look() -> PartitionState:
        last = reader.last_matching(matches)
        if last is None or not facts.first_id <= last < facts.next_id:
            return PartitionState(hub.name, facts.next_id, None, 0)
        begin = _first_matching(reader, facts.first_id, last, patterns, matches)
        return PartitionState(hub.name, begin, last, reader.time_of(last) or 0)

    return await asyncio.wrap_future(reader.submit(look))


def _first_matching(
    reader: Reader, position: int, last: int, patterns: Sequence[str], matches: Callable[[str], bool]
) -> int:
    while position < last:
        try:
            page = reader.log_page(position, last, patterns)
        except LogTrimmed:
            # Under our eyes: the last one is there, and it may be the only one.
            break
        for row in page.rows:
            if matches(row[2]):
                return row[0]
        position = page.position
    return last
