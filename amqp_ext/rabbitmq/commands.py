"""
What RabbitMQ's clients ask ``/management`` for, and what comes of it, as plain values. Nothing of HTTP is in here.
"""

from __future__ import annotations

from dataclasses import dataclass

from amqp_ext.rabbitmq.exchanges import ExchangeKind
from amqp_ext.rabbitmq.queue_arguments import QueueArguments


@dataclass(frozen=True, slots=True)
class DeclareQueue:
    """Make a queue or stream, or find that it is there and as it is described. Results in ``Declared``."""

    name: str
    arguments: QueueArguments
    is_exclusive: bool = False
    """It belongs to the connection, and goes with it."""
    is_auto_delete: bool = False
    """It goes with its last consumer."""


@dataclass(frozen=True, slots=True)
class DescribeQueue:
    """Results in ``QueueState``."""

    name: str


@dataclass(frozen=True, slots=True)
class PurgeQueue:
    """Results in ``Removed``."""

    name: str


@dataclass(frozen=True, slots=True)
class DeleteQueue:
    """Results in ``Removed``, also where there is no such queue: RabbitMQ deletes what is not there."""

    name: str


@dataclass(frozen=True, slots=True)
class RenewToken:
    """A new token for the connection's user, whose last one expires. Results in None."""

    token: bytes


@dataclass(frozen=True, slots=True)
class DeclareExchange:
    """Say of which kind an exchange is, or find that it is. Results in None."""

    name: str
    kind: ExchangeKind


@dataclass(frozen=True, slots=True)
class DeleteExchange:
    """Forget an exchange and its bindings. Results in None, also where there is none."""

    name: str


@dataclass(frozen=True, slots=True)
class Binding:
    """A queue's binding to an exchange."""

    exchange: str
    queue: str
    key: str


@dataclass(frozen=True, slots=True)
class Bind:
    """Results in None, also where the binding is there."""

    binding: Binding


@dataclass(frozen=True, slots=True)
class Unbind:
    """Results in None, also where the binding is not there."""

    binding: Binding


@dataclass(frozen=True, slots=True)
class FindBinding:
    """Whether a binding is there. Results in a list with it, or an empty one."""

    binding: Binding


Command = (
    DeclareQueue
    | DescribeQueue
    | PurgeQueue
    | DeleteQueue
    | DeclareExchange
    | DeleteExchange
    | Bind
    | Unbind
    | FindBinding
    | RenewToken
)


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue as it is."""

    name: str
    vpn: str
    arguments: QueueArguments
    messages: int
    consumers: int
    is_exclusive: bool = False
    is_auto_delete: bool = False


@dataclass(frozen=True, slots=True)
class Declared:
    """A queue as it is, and whether it was made just now."""

    queue: QueueState
    is_new: bool


@dataclass(frozen=True, slots=True)
class Removed:
    """How many messages are gone."""

    messages: int
