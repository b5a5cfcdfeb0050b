"""
Exchanges and bindings as RabbitMQ's clients declare them at ``/management``.

An exchange is a name in front of topics, and a kind that says how its bindings look at keys (``amqp_ext.rabbitmq.
exchanges``): to declare one permits nothing by itself. Who binds a queue subscribes it, and needs ``consume`` on the
subscription's topics.
"""

from __future__ import annotations

from typing import Final

from amqp_ext.addresses.address import AddressKind
from amqp_ext.rabbitmq.commands import Binding
from amqp_ext.rabbitmq.exchanges import (
    PREDECLARED,
    ExchangeError,
    ExchangeKind,
    subscriptions_of,
    topic_of,
)
from gateway.amqp.dialects.hooks import DialectClient
from gateway.amqp.dialects.rabbitmq.queues import USES, find
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.errors import ErrorCode, Refused
from gateway.core.permissions import Action
from gateway.vpn.administration import Administration

MAX_EXCHANGES: Final = 10_000
"""Names of exchanges that are kept in mind in a Message VPN."""


class Exchanges:
    """The exchanges of one Message VPN: those that are always there, and those declared since the gateway started."""

    def __init__(self) -> None:
        self._kinds: dict[str, ExchangeKind] = dict(PREDECLARED)
        self._declared_by: dict[str, str] = {}
        """The user who said of which kind an exchange is; others bind to it by that."""

    def declare(self, client: DialectClient, name: str, kind: ExchangeKind) -> None:
        """
        Say of which kind an exchange is: whoever publishes through it, or binds to it, needs the permission for that.

        Raises:
            Refused: RESOURCE_LIMIT; PRECONDITION_FAILED, it is there and of another kind.
        """
        found = self._kinds.get(name)
        if found is None and len(self._kinds) >= MAX_EXCHANGES:
            raise Refused(ErrorCode.RESOURCE_LIMIT, f"there are {MAX_EXCHANGES} exchanges already")
        if found is not None and found is not kind:
            raise Refused(
                ErrorCode.PRECONDITION_FAILED,
                f"exchange {name!r} is of type {found.value}, the declaration says {kind.value}",
            )
        if found is None:
            self._kinds[name] = kind
            self._declared_by[name] = client.user

    async def delete(self, client: DialectClient, name: str) -> None:
        """
        Forget an exchange, and unsubscribe the queues that are bound to it.

        Raises:
            Refused: NOT_ALLOWED, it is always there; UNAUTHORIZED, another user has declared it, and who asks may not
                administer its topics, or a queue that is bound to it.
        """
        if name in PREDECLARED:
            raise Refused(ErrorCode.NOT_ALLOWED, f"the exchange {name!r} is always there")
        administration, topic = Administration(client.vpn), topic_of(name, "")
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
        Subscribe a queue to what a binding means.

        Raises:
            Refused: UNAUTHORIZED; RESOURCE_LOCKED, the queue is another connection's; NOT_FOUND; INVALID_FIELD, no
                subscription says the same.
        """
        authorization, administration = client.authorization, Administration(client.vpn)
        authorization.require_any((Action.CONSUME, Action.ADMINISTER), AddressKind.QUEUE, binding.queue)
        authorization.require_unlocked(binding.queue)
        subscriptions = self._subscriptions_of(binding)
        for subscription in subscriptions:
            authorization.require_any((Action.CONSUME,), AddressKind.TOPIC, subscription)
        endpoint = find(administration, binding.queue)
        for subscription in subscriptions:
            if subscription not in endpoint.subscriptions:
                await administration.subscribe(endpoint, subscription)
        await client.vpn.committer.committed()

    async def unbind(self, client: DialectClient, binding: Binding) -> None:
        """
        Unsubscribe a queue from what a binding means.

        Raises:
            Refused: As ``bind``.
        """
        authorization, administration = client.authorization, Administration(client.vpn)
        authorization.require_any((Action.CONSUME, Action.ADMINISTER), AddressKind.QUEUE, binding.queue)
        authorization.require_unlocked(binding.queue)
        endpoint = find(administration, binding.queue)
        for subscription in self._subscriptions_of(binding):
            if subscription in endpoint.subscriptions:
                await administration.unsubscribe(endpoint, subscription)

    def is_bound(self, client: DialectClient, binding: Binding) -> bool:
        """
        Whether a queue has the subscriptions that a binding means.

        Raises:
            Refused: UNAUTHORIZED; NOT_FOUND.
        """
        client.authorization.require_any((*USES, Action.BROWSE), AddressKind.QUEUE, binding.queue)
        there = find(Administration(client.vpn), binding.queue).subscriptions
        return all(subscription in there for subscription in self._subscriptions_of(binding))

    def _subscriptions_of(self, binding: Binding) -> tuple[str, ...]:
        kind = self._kinds.get(binding.exchange)
        if kind is None:
            raise Refused(
                ErrorCode.NOT_FOUND,
                f"no exchange {binding.exchange!r} was declared since the gateway started",
            )
        try:
            return subscriptions_of(kind, binding.exchange, binding.key)
        except ExchangeError as error:
            raise Refused(ErrorCode.INVALID_FIELD, str(error)) from error
