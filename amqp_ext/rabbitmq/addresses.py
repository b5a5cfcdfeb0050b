"""
RabbitMQ's addresses, version 2: ``/queues/orders`` is the queue, percent-encoded, and ``/exchanges/…`` a topic where
exchanges are spoken of (``exchanges``), and nothing elsewhere.

Source: RabbitMQ documentation, "AMQP 1.0", address version 2.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

from amqp_ext.addresses.forms import AddressForm
from amqp_ext.addresses.texts import AddressError, percent_decoded, shown
from amqp_ext.rabbitmq.exchanges import ExchangeError, topic_of

MANAGEMENT: Final = "/management"
"""The node that queues, exchanges and bindings are declared at."""

_QUEUES: Final = "/queues/"
_EXCHANGES: Final = "/exchanges/"


def address_of_queue(name: str) -> str:
    """The address of a queue: its name percent-encoded."""
    return f"{_QUEUES}{quote(name, safe='')}"


def queue_of(path: str) -> str | None:
    """
    The queue that a path stands for; None for any other.

    Raises:
        AddressError: What is encoded is no text; or it is an exchange, and those are not spoken of here.
    """
    if path.startswith(_QUEUES):
        return percent_decoded(path.removeprefix(_QUEUES), path)
    if path.startswith(_EXCHANGES):
        raise AddressError(
            f"There are no exchanges here, so {shown(path)} names nothing; use 'topic://…' instead."
        )
    return None


def topic_of_address(address: str) -> str | None:
    """
    The topic of an address ``/exchanges/EXCHANGE/KEY`` or ``/exchanges/EXCHANGE``; None for any other.

    Raises:
        AddressError: It begins like one, and is none.
    """
    if not address.startswith(_EXCHANGES):
        return None
    parts = address.removeprefix(_EXCHANGES).split("/")
    if len(parts) > 2:
        raise AddressError(
            f"{address!r:.200} has too many parts: it is '/exchanges/', the exchange, '/' and the routing key, each "
            "percent-encoded"
        )
    try:
        exchange, *key = (unquote(part, errors="strict") for part in parts)
        return topic_of(exchange, key[0] if key else "")
    except UnicodeDecodeError:
        raise AddressError(f"what is percent-encoded in {address!r:.200} is not UTF-8") from None
    except ExchangeError as error:
        raise AddressError(str(error)) from None


PATHS: Final = AddressForm(nodes=frozenset({MANAGEMENT}), queue_of=queue_of)
