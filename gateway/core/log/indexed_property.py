"""
Properties that can be looked up: their names in a configuration, and the text under which a value is indexed.

Invariant: two values that a selector's ``=`` or a message-id start takes for equal are indexed by the same text, as
long as the one that is looked for has a text here (``lookup_text``). The reverse need not hold: what is looked up is
compared again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from amqp_ext.codec import CodecError
from amqp_ext.message.message_id import JMS_TYPE_PREFIX
from amqp_ext.message.sections import MessageView
from amqp_ext.selector.fields import Reference

FIELDS: Final[Mapping[str, str]] = {
    "message-id": "message_id",
    "correlation-id": "correlation_id",
    "group-id": "group_id",
    "subject": "subject",
}
"""Names that mean a field of the properties section; every other name is an application property's."""

TEXT_CHARACTERS: Final = 128
"""As much of a text is indexed: enough to tell values apart, and a bound on what a row can weigh."""

_EXACT: Final = 1 << 53
"""Up to here every integer is the same number as its float (JMS compares both as floats)."""

_NAMES: Final = {Reference("properties", attribute): name for name, attribute in FIELDS.items()}
_JMS_NAMES: Final = {"JMSMessageID": "message-id", "JMSCorrelationID": "correlation-id"}


def indexed_text(message: MessageView, name: str) -> str | None:
    """The text that a message is indexed by for a property; None when it has none, or cannot be read."""
    try:
        field = FIELDS.get(name)
        value = (
            message.application_properties.get(name) if field is None else getattr(message.properties, field)
        )
    except CodecError:
        return None
    return text_of(value)


def text_of(value: Any) -> str | None:
    """The text a value is indexed by; None for null, lists and maps, which nothing is looked up by."""
    match value:
        case bool():
            text = "true" if value else "false"
        case int() | UUID():
            text = str(int(value)) if isinstance(value, int) else str(value)
        case float():
            text = str(int(value)) if abs(value) <= _EXACT and value.is_integer() else repr(float(value))
        case str():
            text = str(value)
        case bytes():
            text = value.hex()
        case _:
            return None
    return text[:TEXT_CHARACTERS]


def lookup_text(value: Any) -> str | None:
    """
    The one text by which every value is indexed that a selector takes for equal to this literal.

    None where there is no such text: numbers that are no integers, or beyond what a float holds exactly.
    """
    if isinstance(value, bool | str) or (isinstance(value, int) and abs(value) <= _EXACT):
        return text_of(value)
    return None


def name_of(reference: Reference, value: Any) -> str | None:
    """The property that a selector compares with ``value``; None if what it reads can be under no index."""
    section, name = reference
    if section == "application_properties":
        return None if name in FIELDS else name
    if section == "jms" and isinstance(value, str) and not value.startswith(JMS_TYPE_PREFIX):
        # Without a prefix that says another type it is the field's own text.
        return _JMS_NAMES.get(name)
    return _NAMES.get(reference)
