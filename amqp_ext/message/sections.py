"""
An encoded message cut into its sections, without decoding more than asked for (AMQP 1.0 §3.2).

A message is a row of described values:

    header 70 | delivery-annotations 71 | message-annotations 72 | properties 73 | application-properties 74 |
    body: data 75, one or more, or amqp-sequence 76, one or more, or one amqp-value 77 | footer 78

All but the body may be absent. We also take properties without a body: proton sends that for a body None.

The first three may change at every hop. From properties to the end of the body is the bare message, which
nobody may touch. Invariant: everything here only reads. Offsets are found by jumping from size to size, and
values are built only in the functions named after them. Whatever the bytes, all of them answer or raise
MalformedMessage.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple
from uuid import UUID

from amqp_ext.codec import CodecError, Symbol, decode, skip

__all__ = [
    "AMQP_SEQUENCE", "AMQP_VALUE", "APPLICATION_PROPERTIES", "DATA", "DELIVERY_ANNOTATIONS", "FOOTER",
    "HEADER", "MESSAGE_ANNOTATIONS", "PROPERTIES", "Body", "Header", "MalformedMessage", "MessageView",
    "Properties", "Section", "application_properties", "bare_offset", "body", "delivery_annotations",
    "message_annotations", "properties", "read_header", "split", "split_front", "to_address", "validate",
]  # fmt: skip

HEADER = 0x70
DELIVERY_ANNOTATIONS = 0x71
MESSAGE_ANNOTATIONS = 0x72
PROPERTIES = 0x73
APPLICATION_PROPERTIES = 0x74
DATA = 0x75
AMQP_SEQUENCE = 0x76
AMQP_VALUE = 0x77
FOOTER = 0x78

_NAMES = {
    HEADER: "header",
    DELIVERY_ANNOTATIONS: "delivery-annotations",
    MESSAGE_ANNOTATIONS: "message-annotations",
    PROPERTIES: "properties",
    APPLICATION_PROPERTIES: "application-properties",
    DATA: "data",
    AMQP_SEQUENCE: "amqp-sequence",
    AMQP_VALUE: "amqp-value",
    FOOTER: "footer",
}

_LIST = frozenset({0x45, 0xC0, 0xD0})
_MAP = frozenset({0xC1, 0xD1})
_BINARY = frozenset({0xA0, 0xB0})
_ANY = frozenset(range(256))
_SHORT = frozenset({0xA0, 0xA1, 0xC0, 0xC1})  # of the above, those with a one-byte size
_LONG = frozenset({0xB0, 0xB1, 0xD0, 0xD1})  # those with a four-byte size

# Section to the format codes its value may have.
_FORMS = {
    HEADER: _LIST,
    DELIVERY_ANNOTATIONS: _MAP,
    MESSAGE_ANNOTATIONS: _MAP,
    PROPERTIES: _LIST,
    APPLICATION_PROPERTIES: _MAP,
    DATA: _BINARY,
    AMQP_SEQUENCE: _LIST,
    AMQP_VALUE: _ANY,
    FOOTER: _MAP,
}

_SYMBOLIC = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": AMQP_SEQUENCE,
    "amqp:amqp-value:*": AMQP_VALUE,
    "amqp:footer:map": FOOTER,
}

# The usual spelling of a descriptor: zero and a smallulong.
_USUAL = {bytes((0x00, 0x53, code)): code for code in _NAMES}

_DESCRIPTOR_FORMS = (b"\x80", b"\xa3", b"\xb3", b"\x53", b"\x44")

# How ``bare_offset`` reads: descriptor and format code as one number, then the size if that is one byte.
_head_and_size = struct.Struct(">IB").unpack_from
_long_size = struct.Struct(">I").unpack_from

_NO_BODY = "a message needs at least a body section"


class MalformedMessage(CodecError):
    """Bytes that are not one AMQP message. ``offset`` says where, ``reason`` what is wrong there."""


class Section(NamedTuple):
    """One section: its descriptor code, and the half-open range of bytes it takes, descriptor included."""

    code: int
    start: int
    end: int


class Body(NamedTuple):
    """The body: the bytes in each data section; for the other kinds, each section as it is encoded."""

    kind: Literal["data", "sequence", "value"]
    parts: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Header:
    """The header section (§3.2.1), with the specification's defaults where it or a field is absent."""

    durable: bool = False
    priority: int = 4
    ttl_ms: int | None = None
    first_acquirer: bool = False
    delivery_count: int = 0


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties section (§3.2.4); None where it or a field is absent. Times are ms since the epoch."""

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


# --- Where sections are -----------------------------------------------------------------------------


def bare_offset(content: bytes) -> int:
    """
    The offset of the bare message: of the first section that is no header and no annotations.

    Called once for every message that comes in, so the usual spellings are read here, without a call more
    than needed (0.3 us). What lies behind that offset is not looked at; ``validate`` does that.

    Raises:
        MalformedMessage: the bytes in front are no such sections or are out of order, or nothing follows.
    """
    offset = 0
    try:
        head, size = _head_and_size(content, 0)
        if head < 0x00537100:
            if head == 0x005370C0:
                offset = 5 + size
            elif head == 0x00537045:
                offset = 4
            elif head == 0x005370D0:
                offset = 8 + _long_size(content, 4)[0]
            head, size = _head_and_size(content, offset)
        if head < 0x00537300:
            if head == 0x005372C1:
                offset += 5 + size
            elif head == 0x005372D1:
                offset += 8 + _long_size(content, offset + 4)[0]
            head, _ = _head_and_size(content, offset)
        if 0x00537300 <= head < 0x00537800:
            return offset
    except struct.error:
        pass  # fewer than five bytes left
    # Delivery annotations, a rarer spelling, or malformed: the full walk tells which.
    for code, start, _, _ in _walk(content):
        if code > MESSAGE_ANNOTATIONS:
            return start
    raise MalformedMessage(len(content), _NO_BODY)


def validate(content: bytes) -> None:
    """
    Walk every section to the end.

    Raises:
        MalformedMessage: a section is unknown, cut short, of the wrong type or out of order, body kinds are
            mixed, or there is no bare message. What is inside maps and lists is not looked at.
    """
    for _ in _walk(content):
        pass


def split(content: bytes) -> list[Section]:
    """
    Every section in order, as ``validate`` finds them.

    Raises:
        MalformedMessage: as ``validate`` does.
    """
    return [Section(code, start, end) for code, start, _, end in _walk(content)]


def split_front(content: bytes, bare: int) -> list[Section]:
    """
    The sections in front of the bare message, which begins at ``bare`` (``bare_offset`` has found it).

    The bare message is not looked at: it is delivered as it came, also when it is malformed.
    """
    found = []
    start = 0
    while start < bare:
        code, _, end = _section(content, start)
        found.append(Section(code, start, end))
        start = end
    return found


def _walk(content: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Every section: its code, where it starts, where its value starts, where it ends."""
    offset, end, previous = 0, len(content), 0
    while offset < end:
        code, value, behind = _section(content, offset)
        # rising up to the first data section needs no closer look
        if not (previous < code <= DATA or _may_follow(previous, code)):
            after = f"behind {_NAMES[previous]}" if previous else "in front"
            raise MalformedMessage(offset, f"{_NAMES[code]} may not stand {after}")
        yield code, offset, value, behind
        offset, previous = behind, code
    if previous < PROPERTIES:
        raise MalformedMessage(end, _NO_BODY)


def _may_follow(previous: int, code: int) -> bool:
    if code == previous:
        return code in (DATA, AMQP_SEQUENCE)
    if code in (AMQP_SEQUENCE, AMQP_VALUE):
        return previous < DATA
    if code == FOOTER:
        return DATA <= previous <= AMQP_VALUE
    return code > previous


def _section(content: bytes, offset: int) -> tuple[int, int, int]:
    """The section at ``offset``: its code, where its value starts, where it ends."""
    code = _USUAL.get(content[offset : offset + 3], 0)
    value = offset + 3
    if not code:
        code, value = _descriptor(content, offset)
    if value >= len(content):
        raise MalformedMessage(value, f"{_NAMES[code]} has no value")
    form = content[value]
    if form not in _FORMS[code]:
        raise MalformedMessage(value, f"{_NAMES[code]} may not have format code {form:#04x}")
    try:
        # What skip would say, without asking: it costs more than all the rest.
        if form in _SHORT:
            behind = value + 2 + content[value + 1]
        elif form in _LONG:
            behind = value + 5 + _long_size(content, value + 1)[0]
        else:
            behind = skip(content, value)
        return code, value, behind if behind <= len(content) else skip(content, value)
    except (IndexError, struct.error):
        raise MalformedMessage(value, f"{_NAMES[code]}: the size is cut short") from None
    except CodecError as error:
        raise MalformedMessage(error.offset, f"{_NAMES[code]}: {error.reason}") from None


def _descriptor(content: bytes, offset: int) -> tuple[int, int]:
    """Any spelling of a section's descriptor: its code, and the offset of the value behind it."""
    if content[offset : offset + 1] != b"\x00":
        raise MalformedMessage(offset, "a section must start with a descriptor (0x00)")
    if content[offset + 1 : offset + 2] not in _DESCRIPTOR_FORMS:
        raise MalformedMessage(offset + 1, "the descriptor of a section must be a ulong or a symbol")
    try:
        descriptor, value = decode(content, offset + 1)
    except CodecError as error:
        raise MalformedMessage(error.offset, f"descriptor of a section: {error.reason}") from None
    code = _SYMBOLIC.get(descriptor, 0) if isinstance(descriptor, Symbol) else int(descriptor)
    if code not in _NAMES:
        raise MalformedMessage(offset, f"{descriptor!r:.60} is not the descriptor of a message section")
    return code, value


def _find(content: bytes, wanted: int, offset: int = 0) -> int:
    """Where the value of the first ``wanted`` section starts, looking from ``offset``; -1 without one."""
    while offset < len(content):
        code, value, offset = _section(content, offset)
        if code == wanted:
            return value
        if code > wanted:
            break
    return -1


# --- What is in them --------------------------------------------------------------------------------


def read_header(content: bytes) -> Header:
    """
    The header, or its defaults where there is none.

    Raises:
        MalformedMessage: the first section is malformed, or a field has the wrong type.
    """
    if content[:3] in _USUAL and content[2] != HEADER:
        return _DEFAULT_HEADER
    code, value, behind = _section(content, 0)
    if code != HEADER:
        return _DEFAULT_HEADER
    if behind - value > 32:  # five small fields take at most 20 bytes; anything else is not worth keeping
        return _decode_header(content[value:behind])
    return _cached_header(content[value:behind])


def delivery_annotations(content: bytes) -> dict[Any, Any]:
    """
    Delivery annotations by key (Symbol or ULong); empty without the section.

    Raises:
        MalformedMessage: the section or one before it is malformed.
    """
    return _map_at(content, _find(content, DELIVERY_ANNOTATIONS))


def message_annotations(content: bytes) -> dict[Any, Any]:
    """
    Message annotations by key (Symbol or ULong); empty without the section.

    Raises:
        MalformedMessage: the section or one before it is malformed.
    """
    return _map_at(content, _find(content, MESSAGE_ANNOTATIONS))


def properties(content: bytes) -> Properties:
    """
    The properties, every field None without the section.

    Raises:
        MalformedMessage: the section or one before it is malformed, or a field has the wrong type.
    """
    return _properties_at(content, _find(content, PROPERTIES))


def application_properties(content: bytes) -> dict[Any, Any]:
    """
    Application properties by name; empty without the section.

    Raises:
        MalformedMessage: the section or one before it is malformed.
    """
    return _map_at(content, _find(content, APPLICATION_PROPERTIES))


def to_address(content: bytes) -> str | None:
    """
    The ``to`` property, or None. Decodes nothing else: an anonymous relay asks this of every message.

    Raises:
        MalformedMessage: the properties or a section before them are malformed, or ``to`` is no string.
    """
    code, value, behind = _section(content, bare_offset(content))
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


def body(content: bytes) -> Body:
    """
    The body's kind and parts; data without parts where a message has properties only.

    Raises:
        MalformedMessage: as ``validate`` does.
    """
    parts = [section for section in _walk(content) if DATA <= section[0] <= AMQP_VALUE]
    if not parts or parts[0][0] == DATA:
        return Body("data", tuple(_value_at(content, value) for _, _, value, _ in parts))
    kind: Literal["sequence", "value"] = "sequence" if parts[0][0] == AMQP_SEQUENCE else "value"
    return Body(kind, tuple(content[start:end] for _, start, _, end in parts))


class MessageView:
    """
    A message that a selector asks questions of: each section is decoded when first asked for, then kept.

    ``bare`` is the offset of the bare message, as ``bare_offset`` gave it. Every property raises MalformedMessage
    like the function of its name.
    """

    def __init__(self, content: bytes, bare: int) -> None:
        self.content = content
        self.bare = bare

    @cached_property
    def header(self) -> Header:
        return read_header(self.content)

    @cached_property
    def message_annotations(self) -> dict[Any, Any]:
        return message_annotations(self.content) if self.bare else {}

    @cached_property
    def properties(self) -> Properties:
        return _properties_at(self.content, _find(self.content, PROPERTIES, self.bare))

    @cached_property
    def application_properties(self) -> dict[Any, Any]:
        return _map_at(self.content, _find(self.content, APPLICATION_PROPERTIES, self.bare))


def _value_at(content: bytes, offset: int) -> Any:
    try:
        return decode(content, offset)[0]
    except CodecError as error:
        raise MalformedMessage(error.offset, error.reason) from None


def _map_at(content: bytes, offset: int) -> dict[Any, Any]:
    found: dict[Any, Any] = {} if offset < 0 else _value_at(content, offset)
    return found


def _properties_at(content: bytes, offset: int) -> Properties:
    if offset < 0:
        return _NO_PROPERTIES
    return Properties(**_fields(_value_at(content, offset), _PROPERTY_FIELDS, "properties", offset))


def _decode_header(encoded: bytes) -> Header:
    return Header(**_fields(_value_at(encoded, 0), _HEADER_FIELDS, "header", 0))


# Publishers send the same few headers over and over. 1,024 of at most 32 bytes are nothing to keep.
_cached_header = lru_cache(maxsize=1024)(_decode_header)


def _fields(
    values: list[Any], fields: tuple[tuple[str, tuple[type, ...]], ...], section: str, offset: int
) -> dict[str, Any]:
    """The fields of a list that are present, by name, after a look at their types."""
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
