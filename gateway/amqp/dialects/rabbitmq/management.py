"""
What RabbitMQ's clients ask ``/management`` for, done to the Message VPN of their connection.

A declaration is what an attach does on first use, with settings: who may publish to a queue, or consume from it, may
declare it. To purge and to delete is to administer. Who binds a queue to an exchange subscribes it, and needs `consume`
on the subscription's topics; to declare an exchange permits nothing by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from amqp_ext.addresses import AddressKind
from amqp_ext.rabbitmq.arguments import QueueArguments
from amqp_ext.rabbitmq.commands import (
    Bind,
    Binding,
    Declared,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DescribeQueue,
    FindBinding,
    PurgeQueue,
    QueueState,
    Removed,
    RenewToken,
    Unbind,
)
from amqp_ext.rabbitmq.exchanges import (
    PREDECLARED,
    ExchangeError,
    ExchangeKind,
    subscriptions_of,
    topic_of,
)
from gateway.amqp.nodes.exclusive import ExclusiveQueue, locked_text
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings, Exclusivity
from gateway.core.errors import ErrorCode, Refused
from gateway.core.permissions import Action
from gateway.vpn.administration import Administration

if TYPE_CHECKING:
    from gateway.amqp.connection import Connection

_USES: Final = (Action.PUBLISH, Action.CONSUME, Action.ADMINISTER)
"""Any of these permits to make a queue, and to find that it is there."""

MAX_EXCHANGES: Final = 10_000
"""Names of exchanges that are kept in mind in a Message VPN."""

_SETTINGS: Final = (
    "max_ttl_ms",
    "quota_messages",
    "quota_bytes",
    "dead_message_queue",
    "max_redelivery",
    "priorities",
)
"""What the arguments of a declaration and an endpoint's settings call alike."""


async def perform(connection: Connection, command: Any) -> Any:
    """
    Carry out a command of ``amqp_ext.rabbitmq.commands``.

    Returns:
        What that module says of the command, once it is durable.

    Raises:
        Refused: It is not carried out.
    """
    require, administration = connection.access.require_any, Administration(connection.vpn)
    match command:
        case DeclareQueue(name=name):
            require(_USES, AddressKind.QUEUE, name)
            connection.access.require_unlocked(name)
            return await _declare(connection, command)
        case DescribeQueue(name=name):
            require((*_USES, Action.BROWSE), AddressKind.QUEUE, name)
            return _state(connection, _find(administration, name))
        case PurgeQueue(name=name):
            require((Action.ADMINISTER,), AddressKind.QUEUE, name)
            connection.access.require_unlocked(name)
            return Removed(await administration.purge(_find(administration, name)))
        case DeleteQueue(name=name):
            require((Action.ADMINISTER,), AddressKind.QUEUE, name)
            connection.access.require_unlocked(name)
            return await _delete(connection, administration, name)
        case DeclareExchange(name=name, kind=asked):
            _declare_exchange(connection.access.exchanges, name, asked)
        case DeleteExchange(name=name):
            await _delete_exchange(connection, administration, name)
        case Bind(binding=binding):
            await _bind(connection, administration, binding)
        case Unbind(binding=binding):
            require((Action.CONSUME, Action.ADMINISTER), AddressKind.QUEUE, binding.queue)
            connection.access.require_unlocked(binding.queue)
            endpoint = _find(administration, binding.queue)
            for subscription in _subscriptions_of(connection, binding):
                if subscription in endpoint.subscriptions:
                    await administration.unsubscribe(endpoint, subscription)
        case FindBinding(binding=binding):
            require((*_USES, Action.BROWSE), AddressKind.QUEUE, binding.queue)
            there = _find(administration, binding.queue).subscriptions
            return [binding] if all(s in there for s in _subscriptions_of(connection, binding)) else []
        case RenewToken():
            raise Refused(
                ErrorCode.NOT_IMPLEMENTED,
                "there are no tokens here that expire: who has connected stays connected",
            )
        case _:
            raise AssertionError(f"{command!r} is no command")
    return None


async def _declare(connection: Connection, command: DeclareQueue) -> Declared:
    vpn, name, arguments = connection.vpn, command.name, command.arguments
    kind = EndpointKind.STREAM if arguments.is_stream else EndpointKind.QUEUE
    if vpn.broker.find(name) is not None:
        found, _ = vpn.broker.queue_for(name, kind=kind)
        _check_same(found, arguments)
        _check_same_life(connection, found, command)
        await vpn.committed(())
        return Declared(_state(connection, found), is_new=False)
    if name.startswith("#"):
        raise Refused(
            ErrorCode.NOT_ALLOWED, f"a name that begins with '#' is the gateway's own; {name!r} does"
        )
    if not vpn.broker.create_queues:
        connection.access.require_any((Action.ADMINISTER,), AddressKind.QUEUE, name)
    dead = arguments.dead_message_queue
    if dead:
        connection.access.require_any(_USES, AddressKind.QUEUE, dead)
    settings = EndpointSettings(
        exclusive=Exclusivity.WAIT if arguments.single_active_consumer else Exclusivity.NONE,
        temporary=command.is_exclusive,
        auto_delete=command.is_auto_delete,
        **{field: value for field in _SETTINGS if (value := getattr(arguments, field)) is not None},
    )
    made, effects = Administration(vpn).make(name, kind, settings)
    if command.is_exclusive:
        # Before anybody else's turn, and before its connection could go.
        ExclusiveQueue(connection, made)
    await vpn.committed(effects)
    return Declared(_state(connection, made), is_new=True)


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


def _check_same_life(connection: Connection, endpoint: Endpoint, command: DeclareQueue) -> None:
    if command.is_exclusive is not (_exclusive(connection, endpoint) is not None):
        raise Refused(ErrorCode.RESOURCE_LOCKED, locked_text(endpoint.name))
    if command.is_auto_delete is not endpoint.settings.auto_delete:
        raise Refused(
            ErrorCode.PRECONDITION_FAILED,
            f"queue {endpoint.name!r} has auto_delete = {endpoint.settings.auto_delete}, "
            f"the declaration says {command.is_auto_delete}",
        )


def _exclusive(connection: Connection, endpoint: Endpoint) -> ExclusiveQueue | None:
    found = connection.access.exclusive_queues.get(endpoint.name)
    return found if found is not None and found.endpoint is endpoint else None


def _declare_exchange(exchanges: dict[str, ExchangeKind], name: str, kind: ExchangeKind) -> None:
    """A name and how it looks at keys: whoever publishes through it, or binds to it, needs the permission for that."""
    found = exchanges.get(name)
    if found is None and len(exchanges) >= MAX_EXCHANGES:
        raise Refused(ErrorCode.RESOURCE_LIMIT, f"there are {MAX_EXCHANGES} exchanges already")
    if found is not None and found is not kind:
        raise Refused(
            ErrorCode.PRECONDITION_FAILED,
            f"exchange {name!r} is of type {found.value}, the declaration says {kind.value}",
        )
    exchanges[name] = kind


async def _delete_exchange(connection: Connection, administration: Administration, name: str) -> None:
    if name in PREDECLARED:
        raise Refused(ErrorCode.NOT_ALLOWED, f"the exchange {name!r} is always there")
    topic = topic_of(name, "")
    bound = [
        (endpoint, subscription)
        for endpoint in connection.vpn.broker.endpoints.values()
        if endpoint.kind is not EndpointKind.TOPIC_ENDPOINT
        for subscription in endpoint.subscriptions
        if subscription == topic or subscription.startswith(f"{topic}/")
    ]
    for endpoint, _ in bound:
        connection.access.require_any((Action.ADMINISTER,), AddressKind.QUEUE, endpoint.name)
    connection.access.exchanges.pop(name, None)
    for endpoint, subscription in bound:
        await administration.unsubscribe(endpoint, subscription)


async def _bind(connection: Connection, administration: Administration, binding: Binding) -> None:
    access = connection.access
    access.require_any((Action.CONSUME, Action.ADMINISTER), AddressKind.QUEUE, binding.queue)
    access.require_unlocked(binding.queue)
    subscriptions = _subscriptions_of(connection, binding)
    for subscription in subscriptions:
        access.require_any((Action.CONSUME,), AddressKind.TOPIC, subscription)
    endpoint = _find(administration, binding.queue)
    for subscription in subscriptions:
        if subscription not in endpoint.subscriptions:
            await administration.subscribe(endpoint, subscription)
    await connection.vpn.committed(())


def _subscriptions_of(connection: Connection, binding: Binding) -> tuple[str, ...]:
    kind = connection.access.exchanges.get(binding.exchange)
    if kind is None:
        raise Refused(
            ErrorCode.NOT_FOUND, f"no exchange {binding.exchange!r} was declared since the gateway started"
        )
    try:
        return subscriptions_of(kind, binding.exchange, binding.key)
    except ExchangeError as error:
        raise Refused(ErrorCode.INVALID_FIELD, str(error)) from error


def _find(administration: Administration, name: str) -> Endpoint:
    return administration.find(name, EndpointKind.QUEUE, EndpointKind.STREAM)


async def _delete(connection: Connection, administration: Administration, name: str) -> Removed:
    endpoint = administration.vpn.broker.find(name)
    if endpoint is None or endpoint.kind is EndpointKind.TOPIC_ENDPOINT:
        return Removed(0)
    exclusive = _exclusive(connection, endpoint)
    if endpoint.settings.temporary and exclusive is None:
        raise Refused(ErrorCode.NOT_ALLOWED, f"{name!r} is temporary: it goes with the link it was made for")
    count = endpoint.depth
    if exclusive is not None:
        exclusive.release()
        await connection.vpn.committed(())
    else:
        await administration.delete(endpoint)
    return Removed(count)


def _state(connection: Connection, endpoint: Endpoint) -> QueueState:
    return QueueState(
        endpoint.name,
        connection.vpn.name,
        _arguments_of(endpoint),
        endpoint.depth,
        len(endpoint.flows),
        is_exclusive=_exclusive(connection, endpoint) is not None,
        is_auto_delete=endpoint.settings.auto_delete,
    )


def _arguments_of(endpoint: Endpoint) -> QueueArguments:
    settings = endpoint.settings
    return QueueArguments(
        is_stream=endpoint.kind is EndpointKind.STREAM,
        single_active_consumer=settings.exclusive is Exclusivity.WAIT,
        **{field: getattr(settings, field) for field in _SETTINGS},
    )
