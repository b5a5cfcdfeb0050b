"""
The dialect of RabbitMQ's clients: how a listener introduces itself, its addresses, and the requests to
``/management``.

Queues and streams: a declaration makes a queue as an attach does on first use, but with settings. A user who may
publish to a queue, or consume from it, may declare it. To purge or delete it needs ``administer``.

Exchanges and bindings: an exchange is a prefix of topics, and a kind that says how its bindings match keys
(``amqp_ext.rabbitmq.forms``); to declare one grants nothing. A binding is a subscription of a queue, and needs
``consume`` on the subscription's topics.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields
from typing import Any, Final

from amqp_ext.addresses.address import AddressKind, check_queue_name
from amqp_ext.addresses.forms import AddressError
from amqp_ext.rabbitmq import forms
from amqp_ext.rabbitmq import management as asked
from amqp_ext.rabbitmq.management import Binding, Declared, DeclareQueue, QueueArguments, QueueState, Removed
from gateway.amqp.dialects.hooks import Dialect, DialectClient, ServedNode
from gateway.amqp.nodes import ExclusiveQueue, locked_text
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import SETTINGS, EndpointKind, EndpointSettings, Exclusivity
from gateway.core.errors import ErrorCode, Refused, refusing
from gateway.core.permissions import Action
from gateway.logging import log_keys
from gateway.users import Users
from gateway.vpn.administration import Administration


def rabbitmq_dialect(users: Users) -> Dialect:
    """
    The dialect, with the exchanges that its clients declare in all Message VPNs of a gateway.

    Args:
        users: The directory, which knows the identity providers.
    """
    return Dialect(
        open_properties=forms.OPEN_PROPERTIES,
        offered_capabilities=forms.OFFERED_CAPABILITIES,
        default_vhost=forms.DEFAULT_VHOST,
        nodes={forms.MANAGEMENT: ServedNode(asked.ManagementNode(), Management(users).perform)},
        topic_of_address=forms.topic_of_address,
        address_of_queue=forms.address_of_queue,
        consumer_priority=forms.CONSUMER_PRIORITY,
        consumer_timeout=forms.CONSUMER_TIMEOUT,
        passwords_are_tokens=True,
    )


class Management:
    """Carries out the requests to ``/management``. One for a gateway, with the exchanges of every Message VPN."""

    def __init__(self, users: Users) -> None:
        self._users = users
        self._exchanges: defaultdict[str, Exchanges] = defaultdict(Exchanges)

    async def perform(self, client: DialectClient, command: Any) -> Any:
        """
        Carry out a command of ``amqp_ext.rabbitmq.management``.

        Returns:
            The result that the module defines for the command, once it is durable.

        Raises:
            Refused: It is not carried out.
        """
        found = await self._perform(client, command)
        is_change = not isinstance(command, (asked.DescribeQueue, asked.FindBinding, asked.RenewToken))
        if is_change and not (isinstance(found, Declared) and not found.is_new):
            client.log.info("administered", **{log_keys.OPERATION: str(command)})
        return found

    async def _perform(self, client: DialectClient, command: Any) -> Any:
        exchanges = self._exchanges[client.vpn.name]
        match command:
            case DeclareQueue():
                return await declare_queue(client, command)
            case asked.DescribeQueue(name=name):
                return describe_queue(client, name)
            case asked.PurgeQueue(name=name):
                return await purge_queue(client, name)
            case asked.DeleteQueue(name=name):
                return await delete_queue(client, name)
            case asked.DeclareExchange(name=name, kind=kind):
                exchanges.declare(client, name, kind)
            case asked.DeleteExchange(name=name):
                await exchanges.delete(client, name)
            case asked.Bind(binding=binding):
                await exchanges.bind(client, binding)
            case asked.Unbind(binding=binding):
                await exchanges.unbind(client, binding)
            case asked.FindBinding(binding=binding):
                return [binding] if exchanges.is_bound(client, binding) else []
            case asked.RenewToken(token=token):
                if not self._users.providers:
                    raise Refused(
                        ErrorCode.NOT_IMPLEMENTED,
                        "this gateway has no tokens that expire: a connected client stays connected",
                    )
                client.renew(await self._users.of_token(token.decode(errors="replace")))
            case _:
                raise AssertionError(f"{command!r} is no command")
        return None


USES: Final = (Action.PUBLISH, Action.CONSUME, Action.ADMINISTER)
"""Any of these permits making a queue, and learning that it exists."""

_SETTINGS: Final = tuple(said.name for said in fields(QueueArguments) if said.name in SETTINGS)
"""Settings of an endpoint that the arguments of a declaration can give, under the same names."""


async def declare_queue(client: DialectClient, command: DeclareQueue) -> Declared:
    """
    Make a queue, or find that it exists as declared.

    Raises:
        Refused: UNAUTHORIZED; RESOURCE_LOCKED, it is exclusive to another connection; PRECONDITION_FAILED, it exists
            with other settings; NOT_ALLOWED, the gateway reserves its name.
    """
    _require_own(client, command.name, *USES)
    vpn, name, arguments = client.vpn, command.name, command.arguments
    kind = EndpointKind.STREAM if arguments.is_stream else EndpointKind.QUEUE
    if vpn.endpoints.by_name.get(name) is not None:
        found = vpn.endpoints.queue_for(name, kind=kind)
        _check_same(found, arguments)
        _check_same_life(client, found, command)
        await vpn.committer.committed()
        return Declared(_state(client, found), is_new=False)
    _check_new(client, name)
    dead = arguments.dead_message_queue
    if dead:
        # Dead messages are published to that queue, which is made where it does not exist.
        _require_own(client, dead, Action.PUBLISH)
        if vpn.endpoints.by_name.get(dead) is None:
            _check_new(client, dead)
    settings = EndpointSettings(
        exclusive=Exclusivity.WAIT if arguments.single_active_consumer else Exclusivity.NONE,
        temporary=command.is_exclusive,
        auto_delete=command.is_auto_delete,
        **{
            field: SETTINGS[field].read(value, None)
            for field in _SETTINGS
            if (value := getattr(arguments, field)) is not None
        },
    )
    made = vpn.endpoints.create(name, kind, settings)
    if command.is_exclusive:
        # Before the next await: until then no other client can use it, and its connection cannot be lost.
        ExclusiveQueue(client.owner, made)
    await vpn.committer.committed()
    return Declared(_state(client, made), is_new=True)


def _check_new(client: DialectClient, name: str) -> None:
    """Check that a queue of this name may be made."""
    if name.startswith("#"):
        raise Refused(
            ErrorCode.NOT_ALLOWED, f"a name that begins with '#' is the gateway's own; {name!r} does"
        )
    with refusing(AddressError):
        check_queue_name(name)
    if not client.vpn.broker.create_queues:
        client.authorization.require_any((Action.ADMINISTER,), AddressKind.QUEUE, name)


def describe_queue(client: DialectClient, name: str) -> QueueState:
    """
    Describe a queue.

    Raises:
        Refused: UNAUTHORIZED; NOT_FOUND.
    """
    client.authorization.require_any((*USES, Action.BROWSE), AddressKind.QUEUE, name)
    return _state(client, find_queue(client, name))


async def purge_queue(client: DialectClient, name: str) -> Removed:
    """
    Remove all messages from a queue.

    Raises:
        Refused: UNAUTHORIZED; RESOURCE_LOCKED, it is exclusive to another connection; NOT_FOUND.
    """
    _require_own(client, name, Action.ADMINISTER)
    return Removed(await Administration(client.vpn).purge(find_queue(client, name)))


async def delete_queue(client: DialectClient, name: str) -> Removed:
    """
    Delete a queue, where there is one.

    Raises:
        Refused: UNAUTHORIZED; RESOURCE_LOCKED, it is exclusive to another connection; NOT_ALLOWED, it is the temporary
            queue of a link.
    """
    _require_own(client, name, Action.ADMINISTER)
    endpoint = client.vpn.endpoints.by_name.get(name)
    if endpoint is None or endpoint.kind is EndpointKind.TOPIC_ENDPOINT:
        return Removed(0)
    exclusive = _exclusive(client, endpoint)
    if endpoint.settings.temporary and exclusive is None:
        raise Refused(
            ErrorCode.NOT_ALLOWED,
            f"{name!r} is temporary: it is deleted with its link",
        )
    count = endpoint.depth
    if exclusive is not None:
        exclusive.release()
        await client.vpn.committer.committed()
    else:
        await Administration(client.vpn).delete(endpoint)
    return Removed(count)


def find_queue(client: DialectClient, name: str) -> Endpoint:
    """
    A queue or stream by its name.

    Raises:
        Refused: NOT_FOUND.
    """
    return Administration(client.vpn).find(name, EndpointKind.QUEUE, EndpointKind.STREAM)


def _check_same(endpoint: Endpoint, arguments: QueueArguments) -> None:
    """Compare the settings that a declaration gives; the rest may have been set by somebody else."""
    there = _arguments_of(endpoint)
    for field in (*_SETTINGS, "single_active_consumer"):
        asked, found = getattr(arguments, field), getattr(there, field)
        if asked is not None and asked != found:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"queue {endpoint.name!r} has {field} = {found!r}, but the declaration has {asked!r}",
            )


def _check_same_life(client: DialectClient, endpoint: Endpoint, command: DeclareQueue) -> None:
    if command.is_exclusive is not (_exclusive(client, endpoint) is not None):
        raise Refused(ErrorCode.RESOURCE_LOCKED, locked_text(endpoint.name))
    if command.is_auto_delete is not endpoint.settings.auto_delete:
        raise Refused(
            ErrorCode.PRECONDITION_FAILED,
            f"queue {endpoint.name!r} has auto_delete = {endpoint.settings.auto_delete}, but the declaration "
            f"has {command.is_auto_delete}",
        )


def _exclusive(client: DialectClient, endpoint: Endpoint) -> ExclusiveQueue | None:
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
        **{field: SETTINGS[field].told(getattr(settings, field), None) for field in _SETTINGS},
    )


def _require_own(client: DialectClient, queue: str, *actions: Action) -> None:
    """Check that one of these is permitted on a queue, and that no other connection has the queue to itself."""
    client.authorization.require_any(actions, AddressKind.QUEUE, queue)
    client.authorization.require_unlocked(queue)


MAX_EXCHANGES: Final = 10_000
"""Exchanges of one Message VPN; one user may declare half of them, as that needs no permission."""

MAX_EXCHANGE_BYTES: Final = 255
"""Longest name of an exchange, as in RabbitMQ."""


class Exchanges:
    """The exchanges of one Message VPN: those that are always there, and those declared since the gateway started."""

    def __init__(self) -> None:
        self._kinds: dict[str, forms.ExchangeKind] = dict(forms.PREDECLARED)
        self._declared_by: dict[str, str] = {}
        """By exchange: the user who declared its kind. Bindings of other users rely on that kind."""

    def declare(self, client: DialectClient, name: str, kind: forms.ExchangeKind) -> None:
        """
        Declare the kind of an exchange. Publishing through it and binding to it need permissions of their own.

        Raises:
            Refused: RESOURCE_LIMIT; INVALID_FIELD, its name is too long; PRECONDITION_FAILED, it exists and is of
                another kind.
        """
        found = self._kinds.get(name)
        if len(name.encode()) > MAX_EXCHANGE_BYTES:
            raise Refused(
                ErrorCode.INVALID_FIELD, f"an exchange's name has at most {MAX_EXCHANGE_BYTES} bytes"
            )
        own = sum(user == client.user for user in self._declared_by.values()) if found is None else 0
        if found is None and (len(self._kinds) >= MAX_EXCHANGES or own >= MAX_EXCHANGES // 2):
            raise Refused(
                ErrorCode.RESOURCE_LIMIT,
                f"there are {len(self._kinds)} exchanges, {own} of them of user {client.user!r}: no more may be made",
            )
        if found is not None and found is not kind:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"exchange {name!r} is of type {found.value}, but the declaration has {kind.value}",
            )
        if found is None:
            self._kinds[name] = kind
            self._declared_by[name] = client.user

    async def delete(self, client: DialectClient, name: str) -> None:
        """
        Forget an exchange, and unsubscribe the queues that are bound to it.

        Raises:
            Refused: NOT_ALLOWED, it is predeclared; UNAUTHORIZED, another user has declared it and the client may not
                administer its topics, or the client may not administer a queue that is bound to it.
        """
        if name in forms.PREDECLARED:
            raise Refused(ErrorCode.NOT_ALLOWED, f"the exchange {name!r} always exists")
        administration, topic = Administration(client.vpn), forms.topic_of(name, "")
        if self._declared_by.get(name, client.user) != client.user:
            client.authorization.require_any((Action.ADMINISTER,), AddressKind.TOPIC, f"{topic}/>")
        bound = [
            (endpoint, subscription)
            for endpoint in client.vpn.endpoints
            if endpoint.kind is not EndpointKind.TOPIC_ENDPOINT
            for subscription in endpoint.subscriptions
            if subscription == topic or subscription.startswith(f"{topic}/")
        ]
        for endpoint, _ in bound:
            client.authorization.require_any((Action.ADMINISTER,), AddressKind.QUEUE, endpoint.name)
        self._kinds.pop(name, None)
        self._declared_by.pop(name, None)
        for endpoint, subscription in bound:
            await administration.unsubscribe(endpoint, subscription)

    async def bind(self, client: DialectClient, binding: Binding) -> None:
        """
        Give a queue the subscriptions that a binding means.

        Raises:
            Refused: UNAUTHORIZED; RESOURCE_LOCKED, the queue is exclusive to another connection; NOT_FOUND;
                INVALID_FIELD, no subscription can express the binding.
        """
        _require_own(client, binding.queue, Action.CONSUME, Action.ADMINISTER)
        subscriptions = self._subscriptions_of(binding)
        for subscription in subscriptions:
            client.authorization.require_any((Action.CONSUME,), AddressKind.TOPIC, subscription)
        endpoint = find_queue(client, binding.queue)
        for subscription in subscriptions:
            if subscription not in endpoint.subscriptions:
                await Administration(client.vpn).subscribe(endpoint, subscription)
        await client.vpn.committer.committed()

    async def unbind(self, client: DialectClient, binding: Binding) -> None:
        """
        Remove the subscriptions that a binding means from a queue.

        Raises:
            Refused: As ``bind``.
        """
        _require_own(client, binding.queue, Action.CONSUME, Action.ADMINISTER)
        endpoint = find_queue(client, binding.queue)
        for subscription in self._subscriptions_of(binding):
            if subscription in endpoint.subscriptions:
                await Administration(client.vpn).unsubscribe(endpoint, subscription)

    def is_bound(self, client: DialectClient, binding: Binding) -> bool:
        """
        Whether a queue has the subscriptions that a binding means.

        Raises:
            Refused: UNAUTHORIZED; NOT_FOUND.
        """
        client.authorization.require_any((*USES, Action.BROWSE), AddressKind.QUEUE, binding.queue)
        there = find_queue(client, binding.queue).subscriptions
        return all(subscription in there for subscription in self._subscriptions_of(binding))

    def _subscriptions_of(self, binding: Binding) -> tuple[str, ...]:
        kind = self._kinds.get(binding.exchange)
        if kind is None:
            raise Refused(
                ErrorCode.NOT_FOUND,
                f"no exchange {binding.exchange!r} was declared since the gateway started",
            )
        with refusing(forms.ExchangeError):
            return forms.subscriptions_of(kind, binding.exchange, binding.key)
