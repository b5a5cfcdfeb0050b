"""
The options of an address: what is behind its first ``?``, ``key=value`` joined by ``&``.

Values are percent-decoded, and a ``+`` stays a ``+``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from amqp_ext.addresses.texts import AddressError, percent_decoded, shown

OPTIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "create": (
            "always",
            "never",
        ),  # whether this attach may make the queue; the VPN's setting if not given
        "epoch": (),  # a whole number: who takes over a queue that is exclusive=steal
        "exclusive": ("wait", "refuse", "steal"),  # what a second consumer of the queue meets
        "generation": (),
        "kind": ("queue", "stream"),  # what the queue is, or is to become if this attach makes it
        "missing": (),
        "rate": (),
        "replay-name": (),
        "replay-start": (),
        "speed": (),
        "until": (),
    }
)
"""Every option, with the values it may have; none listed means that who uses the option reads its text
(``amqp_ext.replay_start`` does for replays). On a target the options of a replay are allowed and idle: JMS
programs send to the very queue object they consume from."""

OPTIONS_OF_QUEUES: Final = ("epoch", "exclusive", "kind")
"""Options that say what a queue is, or is to be; a topic or a log that has one is a mistake."""

LONG_DIGITS: Final = 19
"""Digits of the largest AMQP long: an epoch has fewer."""

NO_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})
"""What an address without a ``?`` has."""


def read_options(query: str, address: str) -> Mapping[str, str]:
    """
    The options of an address.

    Args:
        query: What is behind the ``?``.
        address: The whole, for the error text.

    Raises:
        AddressError: One is unknown, is there twice, has no value, or one that it may not have.
    """
    options: dict[str, str] = {}
    for part in query.split("&"):
        key, equals, text = part.partition("=")
        if key not in OPTIONS:
            raise AddressError(
                f"{shown(key)} in the address {shown(address)} is not an option; the options are "
                f"{', '.join(OPTIONS)}, each written key=value and joined by '&'."
            )
        if not equals or not text:
            raise AddressError(f"The option {key!r} in the address {shown(address)} has no value.")
        if key in options:
            raise AddressError(f"The option {key!r} is in the address {shown(address)} twice.")
        value = percent_decoded(text, address)
        if (allowed := OPTIONS[key]) and value not in allowed:
            raise AddressError(f"The option {key!r} may be {' or '.join(allowed)}, not {shown(value)}.")
        if key == "epoch" and not (value.isascii() and value.isdigit() and len(value) < LONG_DIGITS):
            raise AddressError(f"The option 'epoch' is a whole number, not {shown(value)}.")
        options[key] = value
    return MappingProxyType(options)
