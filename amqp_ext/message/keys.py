"""
The key of a message: messages with the same key stay in order. It is the group that the message belongs to (AMQP 1.0
section 3.2.4, group-id; JMSXGroupID at JMS), or another property.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from amqp_ext.codec import CodecError
from amqp_ext.message.sections import PROPERTIES, USUAL_WIDTHS, MessageView

GROUP_ID: Final = "group-id"

FIELDS: Final = {
    GROUP_ID: "group_id",
    "message-id": "message_id",
    "correlation-id": "correlation_id",
    "subject": "subject",
}
"""Names that mean a field of the properties section; every other name is an application property's."""

LAST_SEQUENCE: Final = 0xFFFF_FFFF
"""The group-sequence of a group's last message: -1 at JMS, where it is signed (Artemis, "Message Grouping")."""

Key: TypeAlias = "bytes | None"

_USUAL_PROPERTIES: Final = bytes((0x00, 0x53, PROPERTIES, 0xC0))
_BEFORE_GROUP_ID: Final = range(10)
_LAST: Final = b"\x70\xff\xff\xff\xff"
_STRING: Final = 0xA1


def group_of(content: bytes, bare: int) -> tuple[Key, bool]:
    """
    The group-id of a message, None if it has none that can be read; and whether the message is the last of its group.

    Args:
        bare: Where its bare message begins.
    """
    try:
        if content[bare : bare + 4] == _USUAL_PROPERTIES:
            # What a closer look would find, in a tenth of the time: this is asked of every message of a queue.
            if content[bare + 5] <= 10:
                return None, False
            at, end, widths = bare + 6, bare + 5 + content[bare + 4], USUAL_WIDTHS
            for _ in _BEFORE_GROUP_ID:
                at += widths[content[at]] or 2 + content[at + 1]
            if content[at] == _STRING:
                behind = at + 2 + content[at + 1]
                if behind <= end:
                    return content[at + 2 : behind], content[behind : behind + 5] == _LAST and behind < end
    except (IndexError, KeyError):
        pass
    try:
        said = MessageView(content, bare).properties
    except CodecError:
        return None, False
    group = said.group_id
    return None if group is None else group.encode(), said.group_sequence == LAST_SEQUENCE


def property_reader(name: str) -> Callable[[bytes, int], Key]:
    """
    A reader of one property of messages, as bytes that are equal for equal values; None if there is no value that can
    be read. The reader takes a content, and where its bare message begins.

    Args:
        name: One of ``FIELDS``, or an application property's.
    """
    if name == GROUP_ID:
        return lambda content, bare: group_of(content, bare)[0]
    field = FIELDS.get(name)

    def read(content: bytes, bare: int) -> Key:
        view = MessageView(content, bare)
        try:
            value = (
                view.application_properties.get(name) if field is None else getattr(view.properties, field)
            )
        except CodecError:
            return None
        if value is None or isinstance(value, bytes):
            return value
        return str(value).encode()

    return read
