"""
What clients of Event Hubs say on links: addresses of event hubs and partitions, the selector that says where a
partition is read from, and names of properties and capabilities.
"""

from __future__ import annotations

import re
from typing import Final

from amqp_ext.addresses.forms import AddressError, PartitionAddress, PartitionPosition, quoted
from amqp_ext.replay_start import (
    NUMBER,
    ReplayStart,
    ReplayStartError,
    StartKind,
    check_date,
    check_offset,
    shown,
)

CBS: Final = "$cbs"
"""The node that takes tokens."""

MANAGEMENT: Final = "$management"
"""The node that describes hubs and their partitions."""

PARTITION: Final = "0"
"""The id of the one partition that an event hub has here: a log has one order."""

_RECEIVE: Final = re.compile(r"(.+)/ConsumerGroups/([^/]+)/Partitions/([^/]+)")
_SEND: Final = re.compile(r"(.+)/Partitions/([^/]+)")


def partition_path(hub: str, position: PartitionPosition) -> str:
    """The path of a partition to receive from, as tokens name it."""
    return f"{hub}/ConsumerGroups/{position.consumer_group}/Partitions/{position.partition}"


def send_path(hub: str) -> str:
    """The path of the one partition to send to, as tokens name it."""
    return f"{hub}/Partitions/{PARTITION}"


def partition_of_source(name: str) -> PartitionAddress | None:
    """The partition that a receiver attaches to; None for any other name."""
    found = _RECEIVE.fullmatch(name)
    return PartitionAddress(found[1], PartitionPosition(found[2], found[3])) if found else None


def hub_of_target(name: str, address: str) -> str | None:
    """
    The hub whose partition a sender attaches to; None for any other name.

    Args:
        address: The whole address, for the error text.

    Raises:
        AddressError: The address is one to receive from, or names a partition that does not exist.
    """
    if _RECEIVE.fullmatch(name):
        raise AddressError(
            f"The address {quoted(address)} is only for receiving; to send, use the name of the event hub "
            "alone."
        )
    found = _SEND.fullmatch(name)
    if found and found[2] != PARTITION:
        raise AddressError(
            f"An event hub has one partition here, 0, so {quoted(address)} does not exist; a queue of that "
            "name is 'queue://…'."
        )
    return found[1] if found else None


POSITION: Final = "event-hubs"
"""The name of this form of a start."""

_BEFORE_ALL_EVENTS: Final = re.compile(r"-1|0{1,20}")
_BEFORE_ALL_TIMES: Final = re.compile(r"-[0-9]{1,20}|0{1,20}")
_SELECTOR: Final = re.compile(
    r"""\s*(?P<quote>"?)amqp\.annotation\.x-opt-(?P<field>offset|sequence-number|enqueued-time)(?P=quote)"""
    r"""\s*(?P<operator>>=?)\s*(?:'(?P<text>[^']*)'|(?P<number>-?[0-9]+))\s*""",
    re.ASCII,
)


def from_position_selector(text: str) -> ReplayStart | None:
    """
    Read a selector of the form that Event Hubs' clients send; None where it has another form.

    The form is one comparison, ``amqp.annotation.x-opt-offset > '5'``, with ``offset``, ``sequence-number``
    or ``enqueued-time`` (ms since the epoch) and ``>`` or ``>=``. ``'@latest'`` is live. ``'-1'`` is the beginning,
    and so is a position that no event can have: the number 0, and any time up to the epoch, such as a date that was
    never set. Qpid JMS can send the selector only with the name in double quotes and the number without quotes, so
    that is read, too.

    Raises:
        ReplayStartError: The form is right, but the position is invalid.
    """
    found = _SELECTOR.fullmatch(text)
    if found is None:
        return None
    position = found["number"] or found["text"] or ""
    by_time = found["field"] == "enqueued-time"
    if position == "@latest" and not by_time:
        return ReplayStart(StartKind.LIVE, form=POSITION)
    if (_BEFORE_ALL_TIMES if by_time else _BEFORE_ALL_EVENTS).fullmatch(position):
        return ReplayStart(StartKind.BEGINNING, form=POSITION)
    if not NUMBER.fullmatch(position):
        allowed = (
            "a time in ms since the epoch" if by_time else "a number, '-1' (beginning) or '@latest' (live)"
        )
        raise ReplayStartError(
            f"The supplied {found['field']} {shown(position)} is invalid: it is {allowed}."
        )
    # '>' means from the next one on: offsets and milliseconds are whole numbers.
    place = int(position) + (found["operator"] == ">")
    if by_time:
        return ReplayStart(StartKind.DATE, check_date(place), form=POSITION)
    return ReplayStart(StartKind.OFFSET, check_offset(place), form=POSITION)


CBS_MECHANISM: Final = "MSSBCBS"
"""The SASL mechanism of a client that identifies itself later, by a token at ``$cbs``; until then we know no more of it
than with ANONYMOUS."""

EPOCH: Final = "com.microsoft:epoch"
"""A receiver's owner level, a whole number: of two receivers the one with the higher level has the partition."""
