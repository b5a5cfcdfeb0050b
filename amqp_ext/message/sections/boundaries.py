"""
Where the sections of an encoded message begin and end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from amqp_ext.codec import CodecError, Symbol, decode, skip

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

USUAL_DESCRIPTORS = {bytes((0x00, 0x53, code)): code for code in _NAMES}
"""The usual spelling of a descriptor: zero and a smallulong."""

_DESCRIPTOR_FORMS = (b"\x80", b"\xa3", b"\xb3", b"\x53", b"\x44")

# How ``bare_offset`` reads: descriptor and format code as one number, then the size if that is one byte.
_head_and_size = struct.Struct(">IB").unpack_from
_long_size = struct.Struct(">I").unpack_from

SOME = 4
"""Messages from which on it is worth looking whether they are alike."""

_NO_BODY = "a message needs at least a body section"


class MalformedMessage(CodecError):
    """
    Bytes that are not one AMQP message.

    Attributes:
        offset: Where, in bytes from 0.
        reason: What is wrong there.
    """


class Section(NamedTuple):
    """One section: its descriptor code, and the half-open range of bytes it takes, descriptor included."""

    code: int
    start: int
    end: int


def bare_offset(content: bytes) -> int:
    """
    The offset of the bare message: of the first section that is no header and no annotations.

    What lies behind that offset is not looked at; ``validate`` does that.

    Raises:
        MalformedMessage: The bytes in front are no such sections or are out of order, or nothing follows.
    """
    offset = _usual_bare_offset(content)
    if offset >= 0:
        return offset
    # Delivery annotations, a rarer spelling, or malformed: the full walk tells which.
    for code, start, _, _ in walk(content):
        if code > MESSAGE_ANNOTATIONS:
            return start
    raise MalformedMessage(len(content), _NO_BODY)


def bare_offsets(contents: Sequence[bytes]) -> list[int]:
    """
    The offset of each message's bare message, as ``bare_offset`` has it.

    Called for all messages that come in. Those that come together are mostly alike in front: one look at each tells
    (0.08 us), where reading it takes 0.2.

    Raises:
        MalformedMessage: As ``bare_offset`` does, for one of them.
    """
    first = contents[0]
    offset = _usual_bare_offset(first) if len(contents) >= SOME else -1
    if offset < 0:
        return list(map(bare_offset, contents))
    # All that was read of the first one, and as many bytes as had to be there.
    front, read = first[: offset + 4], offset + 4
    return [
        offset if content.startswith(front) and len(content) > read else bare_offset(content)
        for content in contents
    ]


def _usual_bare_offset(content: bytes) -> int:
    """
    The same where a message is spelled as usual, without a call more than needed (0.2 us); else -1. It goes by nothing
    behind the descriptor and the format code of the bare message's first section, which has one byte more, at least.
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
    return -1


def validate(content: bytes) -> None:
    """
    Walk every section to the end.

    Raises:
        MalformedMessage: A section is unknown, cut short, of the wrong type or out of order, body kinds are
            mixed, or there is no bare message. What is inside maps and lists is not looked at.
    """
    for _ in walk(content):
        pass


def split(content: bytes) -> list[Section]:
    """
    Every section in order, as ``validate`` finds them.

    Raises:
        MalformedMessage: As ``validate`` does.
    """
    return [Section(code, start, end) for code, start, _, end in walk(content)]


def split_front(content: bytes, bare: int) -> list[Section]:
    """
    The sections in front of the bare message, which begins at ``bare`` (``bare_offset`` has found it).

    The bare message is not looked at: it is delivered as it came, also when it is malformed.
    """
    found = []
    start = 0
    while start < bare:
        code, _, end = section_at(content, start)
        found.append(Section(code, start, end))
        start = end
    return found


def walk(content: bytes) -> Iterator[tuple[int, int, int, int]]:
    """
    Every section: its code, where it starts, where its value starts, where it ends.

    Raises:
        MalformedMessage: As ``validate`` does, after the sections in front of the mistake.
    """
    offset, end, previous = 0, len(content), 0
    while offset < end:
        code, value, behind = section_at(content, offset)
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


def section_at(content: bytes, offset: int) -> tuple[int, int, int]:
    """
    The section at ``offset``: its code, where its value starts, where it ends.

    Raises:
        MalformedMessage: There is none.
    """
    code = USUAL_DESCRIPTORS.get(content[offset : offset + 3], 0)
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


def find_value(content: bytes, wanted: int, offset: int = 0) -> int:
    """Where the value of the first ``wanted`` section starts, looking from ``offset``; -1 without one."""
    while offset < len(content):
        code, value, offset = section_at(content, offset)
        if code == wanted:
            return value
        if code > wanted:
            break
    return -1


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
