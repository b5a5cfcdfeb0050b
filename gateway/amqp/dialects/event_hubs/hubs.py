"""
What Event Hubs' clients ask ``$management`` for, done to the Message VPN of their connection.

An event hub is a stream (or a queue: then what was sent to it is read from the log) with one partition. Reading about
it makes it where queues are made on first use, as senders and receivers do: the clients read before they receive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from amqp_ext.addresses.address import AddressKind
from amqp_ext.addresses.forms import PartitionPosition
from amqp_ext.addresses.queue_names import check_queue_name, queue_topic
from amqp_ext.addresses.texts import AddressError
from amqp_ext.event_hubs.addresses import MANAGEMENT, PARTITION
from amqp_ext.event_hubs.commands import HubState, PartitionState, ReadHub, ReadPartition
from gateway.amqp.dialects.event_hubs.tokens import TokenService, tokens_of
from gateway.amqp.dialects.hooks import DialectClient
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ID, TOPIC
from gateway.core.permissions import Action
from store.errors import LogTrimmed, ReadFailed

_USES: Final = (Action.PUBLISH, Action.CONSUME, Action.BROWSE, Action.ADMINISTER)
"""Any of these permits to know of a hub."""


def check_position(position: PartitionPosition) -> None:
    """
    Whether a receiver can attach there.

    Raises:
        Refused: NOT_FOUND, the partition is not the one there is.
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
    What ``$management`` is asked for, done.

    Args:
        tokens: Checks those that come with a request.
    """

    def __init__(self, tokens: TokenService) -> None:
        self._tokens = tokens

    async def perform(self, client: DialectClient, command: Any) -> HubState | PartitionState:
        """
        Carry out a command of the node.

        Raises:
            Refused: UNAUTHORIZED; NOT_FOUND; INVALID_FIELD, the name is no hub's; as log readers are refused.
        """
        match command:
            case ReadHub(name=name, token=shown):
                hub = await self._find_or_make(client, name, shown)
                return HubState(name, client.vpn.log.facts(hub).floor_ms)
            case ReadPartition(hub=name, partition=partition, token=shown):
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
        Reading about a hub.

        Args:
            shown: A token that came with the request: the Java client puts none at ``$cbs`` for this. It permits the
                one request, and is not kept: when it expires, nothing that was attached by other tokens is lost.
        """
        tokens = tokens_of(client)
        if tokens is not None:
            # A token for the hub permits that, and so does one for this alone, as the Go and JavaScript clients put it.
            path = f"{name}/{MANAGEMENT}"
            if shown is None or tokens.covers(path):
                tokens.require_path(path)
            elif not self._tokens.check(client, shown).covers(path):
                raise Refused(
                    ErrorCode.UNAUTHORIZED, f"the security_token of the request is not for {name!r}"
                )
        client.authorization.require_any(_USES, AddressKind.QUEUE, name)

    async def _find_or_make(self, client: DialectClient, name: str, shown: str | None) -> Endpoint:
        try:
            check_queue_name(name)
        except AddressError as error:
            raise Refused(ErrorCode.INVALID_FIELD, str(error)) from None
        self._require(client, name, shown)
        kind = EndpointKind.STREAM if client.vpn.endpoints.find(name) is None else None
        found = client.vpn.endpoints.queue_for(name, kind=kind)
        await client.vpn.committer.committed()
        return found

    def _find(self, client: DialectClient, name: str, shown: str | None) -> Endpoint:
        self._require(client, name, shown)
        found = client.vpn.endpoints.find(name)
        if found is None or found.kind is EndpointKind.TOPIC_ENDPOINT:
            raise Refused(
                ErrorCode.NOT_FOUND, f"there is no event hub {name!r}; the first sender or receiver makes it"
            )
        return found


async def _partition(client: DialectClient, hub: Endpoint) -> PartitionState:
    log, history, user = client.vpn.log, client.vpn.history, client.user
    log.check_reads("there are no event hubs")
    facts = log.facts(hub)
    is_stream = hub.kind is EndpointKind.STREAM
    matches = log.matcher_of(hub) if is_stream else queue_topic(hub.name).__eq__
    patterns = log.patterns_of(hub) if is_stream else (queue_topic(hub.name),)

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
            # Under our eyes: the last one is there, and it may be the only one.
            break
        for row in page.rows:
            if matches(row[TOPIC]):
                return row[ID]
        position = page.position
    return last
