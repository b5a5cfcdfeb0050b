"""
Texts of addresses: percent-encoded parts, and how they are shown in errors.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote_to_bytes

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
            f"{bad[0]!r} in the address {shown(address)} is no percent-encoded byte; a '%' itself is '%25'."
        )
    try:
        return unquote_to_bytes(text).decode()
    except ValueError:  # either way round: not encodable, or not UTF-8 when decoded
        raise AddressError(f"What is percent-encoded in the address {shown(address)} is not UTF-8.") from None


def shown(text: str) -> str:
    """``text`` for an error sentence: quoted, and cut where a hostile peer made it long."""
    limit = 120
    return repr(text) if len(text) <= limit else f"{text[:limit]!r}…"
