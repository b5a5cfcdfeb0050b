"""
Forms of addresses that vendors have beside ours, as the reader of addresses wants them; and the texts that all forms
are made of: percent-encoded parts, and how they are shown in errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """Where in a partitioned log a receiver attaches: for which group of consumers, and to which partition."""

    consumer_group: str
    partition: str


class PartitionAddress(NamedTuple):
    """A place to receive from, and the queue that it is of."""

    queue: str
    position: PartitionPosition


def _none_of_his(*address: str) -> None:
    """Reads the addresses of a vendor who has none of a kind."""


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
    queue_of: Callable[[str], str | None] = _none_of_his
    partition_of_source: Callable[[str], PartitionAddress | None] = _none_of_his
    queue_of_target: Callable[[str, str], str | None] = _none_of_his


_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2}).{0,2}")


class AddressError(ValueError):
    """An address that names nothing here. Its text is a sentence for the one who wrote the address."""


def percent_decoded(text: str, address: str) -> str:
    """
    A part of an address, percent-decoded; a ``+`` stays a ``+`` (RFC 3986).

    Args:
        address: The whole, for the error text.

    Raises:
        AddressError: What is encoded is not UTF-8, or a ``%`` encodes nothing.
    """
    if bad := _BAD_ESCAPE.search(text):
        raise AddressError(
            f"{bad[0]!r} in the address {quoted(address)} is no percent-encoded byte; a '%' itself is '%25'."
        )
    try:
        return unquote_to_bytes(text).decode()
    except ValueError:  # either way round: not encodable, or not UTF-8 when decoded
        raise AddressError(
            f"What is percent-encoded in the address {quoted(address)} is not UTF-8."
        ) from None


def quoted(text: str) -> str:
    """``text`` for an error sentence: quoted, and cut where a hostile peer made it long."""
    limit = 120
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}…"
