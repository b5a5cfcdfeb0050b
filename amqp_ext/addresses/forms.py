"""
Forms of addresses that vendors have beside ours, as the reader of addresses wants them.

A vendor's folder makes these values, ``amqp_ext.vendor_forms`` composes them, and ``address`` reads by them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """Where in a partitioned log a receiver attaches: for which group of consumers, and to which partition."""

    consumer_group: str
    partition: str


class PartitionAddress(NamedTuple):
    """A place to receive from, and the queue that it is of."""

    queue: str
    position: PartitionPosition


@dataclass(frozen=True, slots=True)
class AddressForm:
    """
    The addresses of one vendor. Every reader returns None for an address that is none of his, and raises
    ``AddressError`` for one that looks like it.

    Attributes:
        nodes: Addresses of nodes that answer requests, and that are no queues on any listener.
        queue_of: The queue that a path stands for, at a source or a target.
        partition_of_source: The partition that a plain name (without a scheme, and no path) is, at a source.
        queue_of_target: The queue that such a name is, at a target; it is given the whole address, too, for its error
            text.
    """

    nodes: frozenset[str] = frozenset()
    queue_of: Callable[[str], str | None] | None = None
    partition_of_source: Callable[[str], PartitionAddress | None] | None = None
    queue_of_target: Callable[[str, str], str | None] | None = None
