"""
The addresses of event hubs.

``<hub>/ConsumerGroups/<group>/Partitions/0`` is received from; sent to is the hub's name, or ``<hub>/Partitions/0``.

Source: the clients of Azure Event Hubs.
"""

from __future__ import annotations

import re
from typing import Final

from amqp_ext.addresses.forms import AddressForm, PartitionAddress, PartitionPosition
from amqp_ext.addresses.texts import AddressError, shown

CBS: Final = "$cbs"
"""The node that takes tokens."""

MANAGEMENT: Final = "$management"
"""The node that tells of hubs and their partitions."""

PARTITION: Final = "0"
"""The one partition that an event hub has here: a log has one order."""

_RECEIVE: Final = re.compile(r"(.+)/ConsumerGroups/([^/]+)/Partitions/([^/]+)")
_SEND: Final = re.compile(r"(.+)/Partitions/([^/]+)")


def partition_path(hub: str, position: PartitionPosition) -> str:
    """The path of a partition that is received from, as tokens are made for it."""
    return f"{hub}/ConsumerGroups/{position.consumer_group}/Partitions/{position.partition}"


def send_path(hub: str) -> str:
    """The path of the one partition that is sent to, as tokens are made for it."""
    return f"{hub}/Partitions/{PARTITION}"


def partition_of_source(name: str) -> PartitionAddress | None:
    """The partition that a receiver attaches to; None for any other name."""
    found = _RECEIVE.fullmatch(name)
    return PartitionAddress(found[1], PartitionPosition(found[2], found[3])) if found else None


def hub_of_target(name: str, address: str) -> str | None:
    """
    The hub whose partition a sender attaches to; None for any other name.

    Args:
        address: The whole, for the error text.

    Raises:
        AddressError: It is one to receive from, or a partition that is not there.
    """
    if _RECEIVE.fullmatch(name):
        raise AddressError(
            f"The address {shown(address)} is one to receive from; send to the event hub by its name alone."
        )
    found = _SEND.fullmatch(name)
    if found and found[2] != PARTITION:
        raise AddressError(
            f"An event hub has one partition here, 0, so {shown(address)} is none; a queue of that name "
            "is 'queue://…'."
        )
    return found[1] if found else None


HUBS: Final = AddressForm(
    nodes=frozenset({CBS, MANAGEMENT}),
    partition_of_source=partition_of_source,
    queue_of_target=hub_of_target,
)
