"""
What is in the sections of an encoded message, each decoded when it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple
from uuid import UUID

from amqp_ext.codec import CodecError, decode, skip
from amqp_ext.message.sections.boundaries import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    USUAL_DESCRIPTORS,
    MalformedMessage,
    bare_offset,
    find_value,
    section_at,
    walk,
)
from amqp_ext.message.sections.work import MOST_STEPS, WIDE_FORM, check_decoding

_USUAL_PROPERTIES = bytes((0x00, 0x53, PROPERTIES, 0xC0))
"""A list with one byte for its size."""

_BEFORE_TO = ("message-id", "user-id")

_STRING = 0xA1

_WIDTHS = {0x40: 1, 0x44: 1, 0x53: 2, 0x80: 9, 0x98: 17, 0xA0: 0, _STRING: 0}
"""How many bytes a value takes, by its format code; 0: the second byte says it."""


class Body(NamedTuple):
    """The body: the bytes in each data section; for the other kinds, each section as it is encoded."""

    kind: Literal["data", "sequence", "value"]
    parts: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Header:
    """The header section (section 3.2.1), with the specification's defaults where it or a field is absent."""

    durable: bool = False
    priority: int = 4
    ttl_ms: int | None = None
    first_acquirer: bool = False
    delivery_count: int = 0


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties section (section 3.2.4); None where it or a field is absent. Times are ms since the epoch."""

    message_id: int | UUID | bytes | str | None = None
    user_id: bytes | None = None
    to: str | None = None
    subject: str | None = None
    reply_to: str | None = None
    correlation_id: int | UUID | bytes | str | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    absolute_expiry_time: int | None = None
    creation_time: int | None = None
    group_id: str | None = None
    group_sequence: int | None = None
    reply_to_group_id: str | None = None


_ID = (int, UUID, bytes, str)
_HEADER_FIELDS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("durable", (bool,)),
    ("priority", (int,)),
    ("ttl_ms", (int,)),
    ("first_acquirer", (bool,)),
    ("delivery_count", (int,)),
)
_PROPERTY_FIELDS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("message_id", _ID),
    ("user_id", (bytes,)),
    ("to", (str,)),
    ("subject", (str,)),
    ("reply_to", (str,)),
    ("correlation_id", _ID),
    ("content_type", (str,)),
    ("content_encoding", (str,)),
    ("absolute_expiry_time", (int,)),
    ("creation_time", (int,)),
    ("group_id", (str,)),
    ("group_sequence", (int,)),
    ("reply_to_group_id", (str,)),
)

_DEFAULT_HEADER = Header()
_NO_PROPERTIES = Properties()


def read_header(content: bytes) -> Header:
    """
    The header, or its defaults where there is none.

    Raises:
        MalformedMessage: The first section is malformed, or a field has the wrong type.
    """
    if content[:3] in USUAL_DESCRIPTORS and content[2] != HEADER:
        return _DEFAULT_HEADER
    code, value, behind = section_at(content, 0)
    if code != HEADER:
        return _DEFAULT_HEADER
    if behind - value > 32:  # five small fields take at most 20 bytes; anything else is not worth keeping
        return _decode_header(content[value:behind])
    return _cached_header(content[value:behind])


def message_annotations(content: bytes) -> dict[Any, Any]:
    """
    Message annotations by key (Symbol or ULong); empty without the section.

    Raises:
        MalformedMessage: The section or one before it is malformed.
    """
    return map_at(content, find_value(content, MESSAGE_ANNOTATIONS))


def properties(content: bytes) -> Properties:
    """
    The properties, every field None without the section.

    Raises:
        MalformedMessage: The section or one before it is malformed, or a field has the wrong type.
    """
    return properties_at(content, find_value(content, PROPERTIES))


def application_properties(content: bytes) -> dict[Any, Any]:
    """
    Application properties by name; empty without the section.

    Raises:
        MalformedMessage: The section or one before it is malformed.
    """
    return map_at(content, find_value(content, APPLICATION_PROPERTIES))


def to_address(content: bytes, bare: int | None = None) -> str | None:
    """
    The ``to`` property, or None. Decodes nothing else: an anonymous relay asks this of every message.

    Args:
        bare: Where the bare message begins, if that is known (``bare_offset``).

    Raises:
        MalformedMessage: The properties or a section before them are malformed, or ``to`` is no string.
    """
    if bare is None:
        bare = bare_offset(content)
    usual = _usual_to_address(content, bare)
    if usual is not None:
        return usual
    code, value, behind = section_at(content, bare)
    if code != PROPERTIES:
        return None
    fields = content[value:behind]  # so that skipping cannot lead out of the section
    width = 4 if fields[0] == 0xD0 else 1
    if int.from_bytes(fields[1 + width : 1 + 2 * width], "big") < 3:  # list0 and a missing count read as zero
        return None
    try:
        address, _ = decode(fields, skip(fields, skip(fields, 1 + 2 * width)))
    except CodecError as error:
        raise MalformedMessage(value + error.offset, f"properties: {error.reason}") from None
    if address is not None and not isinstance(address, str):
        raise MalformedMessage(value, f"properties: to may not be {type(address).__name__}")
    return address


def _usual_to_address(content: bytes, bare: int) -> str | None:
    """The same in a fifth of the time, where it is spelled as usual; None leaves it to a closer look."""
    if content[bare : bare + 4] != _USUAL_PROPERTIES:
        return None
    try:
        end = bare + 5 + content[bare + 4]
        if content[bare + 5] < 3 or end > len(content):
            return None
        at = bare + 6
        for _ in _BEFORE_TO:
            at += _WIDTHS[content[at]] or 2 + content[at + 1]
        start = at + 2
        stop = start + content[at + 1]
        return content[start:stop].decode() if content[at] == _STRING and stop <= end else None
    except (IndexError, KeyError, UnicodeDecodeError):
        return None


def body(content: bytes) -> Body:
    """
    The body's kind and parts; data without parts where a message has properties only.

    Raises:
        MalformedMessage: As ``validate`` does.
    """
    parts = [section for section in walk(content) if DATA <= section[0] <= AMQP_VALUE]
    if not parts or parts[0][0] == DATA:
        return Body("data", tuple(_value_at(content, value) for _, _, value, _ in parts))
    kind: Literal["sequence", "value"] = "sequence" if parts[0][0] == AMQP_SEQUENCE else "value"
    return Body(kind, tuple(content[start:end] for _, start, _, end in parts))


def _value_at(content: bytes, offset: int) -> Any:
    try:
        return decode(content, offset)[0]
    except CodecError as error:
        raise MalformedMessage(error.offset, error.reason) from None


def map_at(content: bytes, offset: int) -> dict[Any, Any]:
    """
    The map whose value starts at ``offset``; empty for -1, where there is none.

    Raises:
        MalformedMessage: It is malformed.
    """
    found: dict[Any, Any] = {} if offset < 0 else _value_at(content, offset)
    return found


def properties_at(content: bytes, offset: int) -> Properties:
    """
    The properties whose value starts at ``offset``; every field None for -1, where there are none.

    Raises:
        MalformedMessage: They are malformed, or a field has the wrong type.
    """
    if offset < 0:
        return _NO_PROPERTIES
    return Properties(**_fields(content, offset, _PROPERTY_FIELDS, "properties"))


def _decode_header(encoded: bytes) -> Header:
    return Header(**_fields(encoded, 0, _HEADER_FIELDS, "header"))


# Publishers send the same few headers over and over. 1,024 of at most 32 bytes are nothing to keep.
_cached_header = lru_cache(maxsize=1024)(_decode_header)


def _fields(
    content: bytes, offset: int, fields: tuple[tuple[str, tuple[type, ...]], ...], section: str
) -> dict[str, Any]:
    """The fields of the list at ``offset`` that are present, by name, after a look at their types."""
    # What cannot be right is not built: a list of a million nulls, or one where a number should be.
    if content[offset] >= WIDE_FORM:
        check_decoding(content, offset, MOST_STEPS)
    values: list[Any] = _value_at(content, offset)
    if len(values) > len(fields):
        raise MalformedMessage(
            offset, f"{section} has {len(values)} fields, at most {len(fields)} are defined"
        )
    present = {}
    for (name, kinds), value in zip(fields, values, strict=False):
        if value is None:
            continue
        # bool is an int to Python, and to nobody else
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise MalformedMessage(offset, f"{section}: {name} may not be {type(value).__name__}")
        present[name] = value
    return present
