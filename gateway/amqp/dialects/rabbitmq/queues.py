"""
Queues and streams as RabbitMQ's clients declare, describe, purge and delete them at ``/management``.

A declaration is what an attach does on first use, with settings: who may publish to a queue, or consume from it, may
declare it. To purge and to delete is to administer.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from amqp_ext.addresses.address import AddressKind
from amqp_ext.addresses.queue_names import check_queue_name
from amqp_ext.addresses.texts import AddressError
from amqp_ext.rabbitmq.commands import Declared, DeclareQueue, QueueState, Removed
from amqp_ext.rabbitmq.queue_arguments import QueueArguments
from gateway.amqp.dialects.hooks import DialectClient
from gateway.amqp.nodes.exclusive import ExclusiveQueue, locked_text
from gateway.amqp.nodes.ownership import LockedQueue
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import SETTINGS, EndpointKind, EndpointSettings, Exclusivity
from gateway.core.errors import ErrorCode, Refused
from gateway.core.permissions import Action
from gateway.vpn.administration import Administration

USES: Final = (Action.PUBLISH, Action.CONSUME, Action.ADMINISTER)
"""Any of these permits to make a queue, and to find that it is there."""

_SETTINGS: Final = tuple(said.name for said in fields(QueueArguments) if said.name in SETTINGS)
"""Settings of an endpoint that the arguments of a declaration can say, by their own names."""


async def declare(client: DialectClient, command: DeclareQueue) -> Declared:
    """
    Make a queue, or find that it is there as it is declared.

    Raises:
        Refused: UNAUTHORIZED; RESOURCE_LOCKED, it is another connection's; PRECONDITION_FAILED, it is another than
            declared; NOT_ALLOWED, its name is the gateway's.
    """
    client.authorization.require_any(USES, AddressKind.QUEUE, command.name)
    client.authorization.require_unlocked(command.name)
    vpn, name, arguments = client.vpn, command.name, command.arguments
    kind = EndpointKind.STREAM if arguments.is_stream else EndpointKind.QUEUE
    if vpn.endpoints.find(name) is not None:
        found = vpn.endpoints.queue_for(name, kind=kind)
        _check_same(found, arguments)
        _check_same_life(client, found, command)
        await vpn.committer.committed()
        return Declared(_state(client, found), is_new=False)
    _check_new(client, name)
    dead = arguments.dead_message_queue
    if dead:
        # Where dead messages go, they are sent; and what is not there is made.
        client.authorization.require_any((Action.PUBLISH,), AddressKind.QUEUE, dead)
        client.authorization.require_unlocked(dead)
        if vpn.endpoints.find(dead) is None:
            _check_new(client, dead)
    settings = EndpointSettings(
        exclusive=Exclusivity.WAIT if arguments.single_active_consumer else Exclusivity.NONE,
        temporary=command.is_exclusive,
        auto_delete=command.is_auto_delete,
        **{field: value for field in _SETTINGS if (value := getattr(arguments, field)) is not None},
    )
    made = vpn.endpoints.create(name, kind, settings)
    if command.is_exclusive:
        # Before anybody else's turn, and before its connection could go.
        ExclusiveQueue(client.owner, vpn.endpoints, made)
    await vpn.committer.committed()
    return Declared(_state(client, made), is_new=True)


def _check_new(client: DialectClient, name: str) -> None:
    """Whether a queue of this name may be made."""
    if name.startswith("#"):
        raise Refused(
            ErrorCode.NOT_ALLOWED, f"a name that begins with '#' is the gateway's own; {name!r} does"
        )
    try:
        check_queue_name(name)
    except AddressError as error:
        raise Refused(ErrorCode.INVALID_FIELD, str(error)) from None
    if not client.vpn.endpoints.are_created_on_use:
        client.authorization.require_any((Action.ADMINISTER,), AddressKind.QUEUE, name)


async def describe(client: DialectClient, name: str) -> QueueState:
    """
    A queue as it is.

    Raises:
        Refused: UNAUTHORIZED; NOT_FOUND.
    """
    client.authorization.require_any((*USES, Action.BROWSE), AddressKind.QUEUE, name)
    return _state(client, find(Administration(client.vpn), name))


async def purge(client: DialectClient, name: str) -> Removed:
    """
    Remove what lies on a queue.

    Raises:
        Refused: UNAUTHORIZED; RESOURCE_LOCKED, it is another connection's; NOT_FOUND.
    """
    client.authorization.require_any((Action.ADMINISTER,), AddressKind.QUEUE, name)
    client.authorization.require_unlocked(name)
    administration = Administration(client.vpn)
    return Removed(await administration.purge(find(administration, name)))


async def delete(client: DialectClient, name: str) -> Removed:
    """
    Delete a queue, where there is one.

    Raises:
        Refused: UNAUTHORIZED; RESOURCE_LOCKED, it is another connection's; NOT_ALLOWED, it is a link's temporary one.
    """
    client.authorization.require_any((Action.ADMINISTER,), AddressKind.QUEUE, name)
    client.authorization.require_unlocked(name)
    administration = Administration(client.vpn)
    endpoint = administration.vpn.endpoints.find(name)
    if endpoint is None or endpoint.kind is EndpointKind.TOPIC_ENDPOINT:
        return Removed(0)
    exclusive = _exclusive(client, endpoint)
    if endpoint.settings.temporary and exclusive is None:
        raise Refused(ErrorCode.NOT_ALLOWED, f"{name!r} is temporary: it goes with the link it was made for")
    count = endpoint.depth
    if exclusive is not None:
        exclusive.release()
        await client.vpn.committer.committed()
    else:
        await administration.delete(endpoint)
    return Removed(count)


def find(administration: Administration, name: str) -> Endpoint:
    """
    A queue or stream by its name.

    Raises:
        Refused: NOT_FOUND.
    """
    return administration.find(name, EndpointKind.QUEUE, EndpointKind.STREAM)


def _check_same(endpoint: Endpoint, arguments: QueueArguments) -> None:
    """What a declaration does not say, it does not ask for: somebody else may have set it."""
    there = _arguments_of(endpoint)
    for field in (*_SETTINGS, "single_active_consumer"):
        asked, found = getattr(arguments, field), getattr(there, field)
        if asked is not None and asked != found:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"queue {endpoint.name!r} has {field} = {found!r}, the declaration says {asked!r}",
            )


def _check_same_life(client: DialectClient, endpoint: Endpoint, command: DeclareQueue) -> None:
    if command.is_exclusive is not (_exclusive(client, endpoint) is not None):
        raise Refused(ErrorCode.RESOURCE_LOCKED, locked_text(endpoint.name))
    if command.is_auto_delete is not endpoint.settings.auto_delete:
        raise Refused(
            ErrorCode.PRECONDITION_FAILED,
            f"queue {endpoint.name!r} has auto_delete = {endpoint.settings.auto_delete}, "
            f"the declaration says {command.is_auto_delete}",
        )


def _exclusive(client: DialectClient, endpoint: Endpoint) -> LockedQueue | None:
    return client.owner.registry.exclusive_queue_of(endpoint)


def _state(client: DialectClient, endpoint: Endpoint) -> QueueState:
    return QueueState(
        endpoint.name,
        client.vpn.name,
        _arguments_of(endpoint),
        endpoint.depth,
        len(endpoint.flows),
        is_exclusive=_exclusive(client, endpoint) is not None,
        is_auto_delete=endpoint.settings.auto_delete,
    )


def _arguments_of(endpoint: Endpoint) -> QueueArguments:
    settings = endpoint.settings
    return QueueArguments(
        is_stream=endpoint.kind is EndpointKind.STREAM,
        single_active_consumer=settings.exclusive is Exclusivity.WAIT,
        **{field: getattr(settings, field) for field in _SETTINGS},
    )
