"""
What the readers of our addresses and of vendors' share: partitions, how percent-encoded parts are decoded, and how
texts are shown in errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """Where a receiver attaches in a partitioned log: its consumer group, and the partition."""

    consumer_group: str
    partition: str


class PartitionAddress(NamedTuple):
    """A partition to receive from, and the queue that it belongs to."""

    queue: str
    position: PartitionPosition


_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2}).{0,2}")


class AddressError(ValueError):
    """An address that names nothing here. The text is a sentence for the address's author."""


def percent_decoded(text: str, address: str) -> str:
    """
    A part of an address, percent-decoded; a ``+`` stays a ``+`` (RFC 3986).

    Args:
        address: The whole address, for the error text.

    Raises:
        AddressError: The decoded bytes are not UTF-8, or a ``%`` encodes nothing.
    """
    if bad := _BAD_ESCAPE.search(text):
        raise AddressError(
            f"{bad[0]!r} in the address {quoted(address)} is not a percent-encoded byte; a '%' itself is "
            "written '%25'."
        )
    try:
        return unquote_to_bytes(text).decode()
    except ValueError:  # either way round: not encodable, or not UTF-8 when decoded
        raise AddressError(
            f"The percent-encoded bytes in the address {quoted(address)} are not UTF-8."
        ) from None


def quoted(text: str) -> str:
    """``text`` for an error sentence: quoted, and cut where a hostile peer made it long."""
    limit = 120
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}…"
