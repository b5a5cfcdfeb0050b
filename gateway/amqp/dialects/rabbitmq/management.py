"""
What RabbitMQ's clients ask ``/management`` for, each handed to who carries it out.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from amqp_ext.rabbitmq.commands import (
    Bind,
    Declared,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DescribeQueue,
    FindBinding,
    PurgeQueue,
    RenewToken,
    Unbind,
)
from gateway import log_keys
from gateway.amqp.dialects.hooks import DialectClient
from gateway.amqp.dialects.rabbitmq import queues
from gateway.amqp.dialects.rabbitmq.exchanges import Exchanges
from gateway.core.errors import ErrorCode, Refused


class Management:
    """The node ``/management``, served: one for a gateway, with the exchanges of every Message VPN."""

    def __init__(self) -> None:
        self._exchanges: defaultdict[str, Exchanges] = defaultdict(Exchanges)

    async def perform(self, client: DialectClient, command: Any) -> Any:
        """
        Carry out a command of ``amqp_ext.rabbitmq.commands``.

        Returns:
            What that module says of the command, once it is durable.

        Raises:
            Refused: It is not carried out.
        """
        found = await self._perform(client, command)
        is_change = not isinstance(command, (DescribeQueue, FindBinding, RenewToken))
        if is_change and not (isinstance(found, Declared) and not found.is_new):
            client.log.info("administered", **{log_keys.OPERATION: str(command)})
        return found

    async def _perform(self, client: DialectClient, command: Any) -> Any:
        exchanges = self._exchanges[client.vpn.name]
        match command:
            case DeclareQueue():
                return await queues.declare(client, command)
            case DescribeQueue(name=name):
                return await queues.describe(client, name)
            case PurgeQueue(name=name):
                return await queues.purge(client, name)
            case DeleteQueue(name=name):
                return await queues.delete(client, name)
            case DeclareExchange(name=name, kind=kind):
                exchanges.declare(client, name, kind)
            case DeleteExchange(name=name):
                await exchanges.delete(client, name)
            case Bind(binding=binding):
                await exchanges.bind(client, binding)
            case Unbind(binding=binding):
                await exchanges.unbind(client, binding)
            case FindBinding(binding=binding):
                return [binding] if exchanges.is_bound(client, binding) else []
            case RenewToken():
                raise Refused(
                    ErrorCode.NOT_IMPLEMENTED,
                    "there are no tokens here that expire: who has connected stays connected",
                )
            case _:
                raise AssertionError(f"{command!r} is no command")
        return None
