"""
What a name in a selector means: which part of the message it reads.

A name becomes a Reference once, when the selector is compiled, and a Reference becomes a reader, a function
from message to value. Invariant: two names that read the same thing have equal References, whatever way they
were written. An absent value is None, which selectors call NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from amqp_ext.message.fields import text_of
from amqp_ext.message.sections import QUICK_BYTES, Header, MessageView, Properties, TooMuchWork
from amqp_ext.selector.lexer import SelectorError, Syntax

Reader = Callable[[MessageView], Any]


class Reference(NamedTuple):
    """A section of a message and a field or key in it; section ``jms`` is a header as JMS shows it."""

    section: str
    name: str


# Field of the header (AMQP 1.0 section 3.2.1) to the attribute that holds it.
HEADER_FIELDS = {field.removesuffix("_ms"): field for field in Header.__dataclass_fields__}

# Fields of the properties (section 3.2.4).
PROPERTIES_FIELDS = tuple(Properties.__dataclass_fields__)

# JMS headers and properties whose value is exactly that of an AMQP field ("AMQP JMS Mapping 1.0"). JMS itself
# lets selectors name only some of them (section 3.8.1.1); the others cost nothing, and users ask for them.
_JMS_ALIASES: Mapping[str, Reference] = {
    "JMSType": Reference("properties", "subject"),
    "JMSDestination": Reference("properties", "to"),
    "JMSReplyTo": Reference("properties", "reply_to"),
    "JMSPriority": Reference("header", "priority"),
    "JMSTimestamp": Reference("properties", "creation_time"),
    "JMSExpiration": Reference("properties", "absolute_expiry_time"),
    "JMSXGroupID": Reference("properties", "group_id"),
    "JMSXGroupSeq": Reference("properties", "group_sequence"),
}

# Prefix of a dotted name: its section. The one-letter forms are the OASIS draft's (section 6.4.4.4); in a JMS
# selector only "m." is taken, because "a.b" may well be the name of an application property there.
_JMS_SECTIONS = {
    "header": "header",
    "properties": "properties",
    "application_properties": "application_properties",
    "message_annotations": "message_annotations",
    "m": "message_annotations",
    "amqp": "amqp",
}
_SQL_SECTIONS = _JMS_SECTIONS | {"h": "header", "p": "properties", "a": "application_properties"}

_ANNOTATION = "annotation."


def resolve(name: str, syntax: Syntax, position: int) -> Reference:
    """
    What an identifier at ``position`` reads.

    Raises:
        SelectorError: There is no such field.
    """
    prefix, dot, field = name.partition(".")
    section = (_SQL_SECTIONS if syntax is Syntax.SQL else _JMS_SECTIONS).get(prefix) if dot else None
    if section is None:
        if dot and syntax is Syntax.SQL:
            raise SelectorError(
                f"expected {', '.join(_JMS_SECTIONS)}, h, p or a before the dot, found {prefix}",
                position,
            )
        return _plain(name, syntax)
    if section == "amqp":
        return _amqp(name, field, position)
    if section == "header" and field not in HEADER_FIELDS:
        raise SelectorError(f"expected a header field ({', '.join(HEADER_FIELDS)}), found {name}", position)
    if section == "properties" and field not in PROPERTIES_FIELDS:
        raise SelectorError(
            f"expected a properties field ({', '.join(PROPERTIES_FIELDS)}), found {name}", position
        )
    return Reference(section, field)


def _plain(name: str, syntax: Syntax) -> Reference:
    if syntax is Syntax.JMS:
        if name in _JMS_ALIASES:
            return _JMS_ALIASES[name]
        if name in _JMS_READERS:
            return Reference("jms", name)
    return Reference("application_properties", name)


def _amqp(name: str, field: str, position: int) -> Reference:
    """``amqp.annotation.<key>`` as Event Hubs has it, ``amqp.<field>`` as Apache's selector filter has it."""
    if field.startswith(_ANNOTATION) and len(field) > len(_ANNOTATION):
        return Reference("message_annotations", field.removeprefix(_ANNOTATION))
    if field in PROPERTIES_FIELDS:
        return Reference("properties", field)
    if field in HEADER_FIELDS:
        return Reference("header", field)
    raise SelectorError(
        f"expected amqp.annotation.<key> or amqp.<field of the message>, found {name}", position
    )


def reader(reference: Reference) -> Reader:
    """The function that reads a reference from a message; None where it is absent."""
    section, name = reference
    match section:
        case "application_properties":
            return lambda message: message.application_properties.get(name)
        case "message_annotations":
            return lambda message: message.message_annotations.get(name)
        case "properties":
            return attrgetter(f"properties.{name}")
        case "header":
            return attrgetter(f"header.{HEADER_FIELDS[name]}")
        case _:
            return _JMS_READERS[name]


def _spend(message: MessageView, value: bytes) -> None:
    """Take the steps for making a text of a long value. If too few are left there is no value, which is not NULL."""
    if len(value) > QUICK_BYTES and not message.spend(len(value) // QUICK_BYTES):
        raise TooMuchWork(0, "converting a long value to text takes too long")


def _id_text(message: MessageView, value: Any) -> Any:
    """
    A message-id as JMS clients show it: text as it is, other types with Qpid JMS's prefix (AmqpMessageIdHelper).
    """
    if isinstance(value, bytes):
        _spend(message, value)
    return None if value is None else text_of(value)


def _user_text(message: MessageView, value: Any) -> Any:
    """user-id is binary in AMQP and a String in JMS; bytes that are not UTF-8 are no String, so NULL."""
    if not isinstance(value, bytes):
        return value
    _spend(message, value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


_JMS_READERS: Mapping[str, Reader] = {
    "JMSMessageID": lambda message: _id_text(message, message.properties.message_id),
    "JMSCorrelationID": lambda message: _id_text(message, message.properties.correlation_id),
    "JMSXUserID": lambda message: _user_text(message, message.properties.user_id),
    "JMSDeliveryMode": lambda message: "PERSISTENT" if message.header.durable else "NON_PERSISTENT",
    "JMSRedelivered": lambda message: message.header.delivery_count > 0,
    "JMSXDeliveryCount": lambda message: message.header.delivery_count + 1,
}
