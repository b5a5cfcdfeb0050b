"""
An encoded message cut into its sections, without decoding more than asked for (AMQP 1.0 section 3.2).

A message is a sequence of described values:

    header 70 | delivery-annotations 71 | message-annotations 72 | properties 73 | application-properties 74 |
    body: data 75, one or more, or amqp-sequence 76, one or more, or one amqp-value 77 | footer 78

All but the body may be absent. We also take properties without a body: proton sends that for a body None.

The first three may change at every hop. From properties to the end of the body is the bare message, which
nobody may change. Invariant: everything here only reads. Offsets are found by jumping from size to size, and values are
built only in the functions named after them, or by a ``MessageView`` when selectors and filters ask for them. Whatever
the bytes, every function returns or raises ``MalformedMessage``.

The work for one evaluation of a selector or filter is bounded (``MessageView.spend``), in steps of some 100 ns: message
and selector come from two strangers, and each of them alone looks harmless. The bound is in steps and not in time, so
that a log read twice gives the same messages twice.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import Any, Final, Literal, NamedTuple, get_args, get_type_hints
from uuid import UUID

from amqp_ext.codec import CodecError, Symbol, decode, skip

try:
    from amqp_ext.message._fronts import all_begin_with as all_begin_with  # noqa: PLC0414 - others take it from here
except ImportError:  # it was not built: the same, slower

    def all_begin_with(front: bytes, contents: list[bytes], behind: int, /) -> bool:
        """Whether each of ``contents`` begins with ``front``, and has ``behind`` more bytes at least."""
        # Compared together, which takes two thirds of the time of a comparison one by one.
        are_alike = b"".join(map(itemgetter(slice(len(front))), contents)) == front * len(contents)
        return are_alike and all(len(content) - len(front) >= behind for content in contents)


MOST_STEPS: Final = 50_000
"""The most steps of one evaluation: some 5 ms. A selector of 250 terms over usual properties takes at most a tenth."""

QUICK_BYTES: Final = 64
"""Bytes that are compared, copied or decoded as text in the time of one step."""

ITEM_STEPS: Final = 8
"""The steps for building one value of a map or list."""

SMALL_BYTES: Final = 2_048
"""A section of up to so many bytes is decoded without counting steps."""

WIDE_FORM: Final = 0xD0
"""Lists and maps with a format code from this on have sizes of four bytes; below it they have 255 bytes at most."""

NESTED_BYTE_STEPS: Final = 4
"""The steps for each byte of a list, map or array inside a section: each byte may be a value of its own."""


class TooMuchWork(CodecError):
    """A section is not decoded, because that would take too long."""


def check_decoding(content: bytes, offset: int, steps: int) -> int:
    """
    The steps for decoding the map or list at ``offset``; 0 for a small one.

    Args:
        steps: The steps that are left.

    Raises:
        TooMuchWork: Decoding takes more than that.
        CodecError: A value inside is cut short.
    """
    if content[offset] < WIDE_FORM:
        return 0
    size = int.from_bytes(content[offset + 1 : offset + 5], "big")
    if size <= SMALL_BYTES:
        return 0
    count = int.from_bytes(content[offset + 5 : offset + 9], "big")
    needed = size // QUICK_BYTES + count * ITEM_STEPS
    position = offset + 9
    if needed <= steps:
        for _ in range(count):
            behind = skip(content, position)
            if content[position] == 0x00 or content[position] >= 0xC0:
                needed += (behind - position) * NESTED_BYTE_STEPS
            position = behind
    if needed > steps:
        raise TooMuchWork(offset, f"decoding {count} values in {size} bytes takes too long")
    return needed


HEADER = 0x70
DELIVERY_ANNOTATIONS = 0x71
MESSAGE_ANNOTATIONS = 0x72
PROPERTIES = 0x73
APPLICATION_PROPERTIES = 0x74
DATA = 0x75
AMQP_SEQUENCE = 0x76
AMQP_VALUE = 0x77
FOOTER = 0x78

# Section to its name and type, of which its symbolic descriptor is made.
_KINDS = {
    HEADER: ("header", "list"),
    DELIVERY_ANNOTATIONS: ("delivery-annotations", "map"),
    MESSAGE_ANNOTATIONS: ("message-annotations", "map"),
    PROPERTIES: ("properties", "list"),
    APPLICATION_PROPERTIES: ("application-properties", "map"),
    DATA: ("data", "binary"),
    AMQP_SEQUENCE: ("amqp-sequence", "list"),
    AMQP_VALUE: ("amqp-value", "*"),
    FOOTER: ("footer", "map"),
}

_CODES_OF_TYPE = {
    "list": frozenset({0x45, 0xC0, 0xD0}),
    "map": frozenset({0xC1, 0xD1}),
    "binary": frozenset({0xA0, 0xB0}),
    "*": frozenset(range(256)),
}
_SHORT = frozenset({0xA0, 0xA1, 0xC0, 0xC1})  # of the above, those with a one-byte size
_LONG = frozenset({0xB0, 0xB1, 0xD0, 0xD1})  # those with a four-byte size

_NAMES = {code: name for code, (name, _) in _KINDS.items()}
_FORMS = {code: _CODES_OF_TYPE[type_] for code, (_, type_) in _KINDS.items()}
"""Section to the format codes its value may have."""
_SYMBOLIC = {f"amqp:{name}:{type_}": code for code, (name, type_) in _KINDS.items()}

USUAL_DESCRIPTORS = {bytes((0x00, 0x53, code)): code for code in _NAMES}
"""The usual encoding of a descriptor: zero and a smallulong."""

_DESCRIPTOR_FORMS = (b"\x80", b"\xa3", b"\xb3", b"\x53", b"\x44")

# How ``bare_offset`` reads: descriptor and format code as one number, then the size if that is one byte.
_head_and_size = struct.Struct(">IB").unpack_from
_long_size = struct.Struct(">I").unpack_from

SOME = 4
"""From so many messages on, it is worth checking whether they are alike."""

_NO_BODY = "a message needs at least a body section"


class MalformedMessage(CodecError):
    """
    Bytes that are not one AMQP message.

    Attributes:
        offset: The position of the error, in bytes from 0.
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

    The bytes after that offset are not checked; ``validate`` does that.

    Raises:
        MalformedMessage: The bytes before it are no such sections or are out of order, or nothing follows.
    """
    offset = _usual_bare_offset(content)
    if offset >= 0:
        return offset
    # Delivery annotations, a rarer encoding, or malformed: the full walk tells which.
    for code, start, _, _ in walk(content):
        if code > MESSAGE_ANNOTATIONS:
            return start
    raise MalformedMessage(len(content), _NO_BODY)


def bare_offsets(contents: list[bytes]) -> list[int]:
    """
    The offset of each message's bare message, as ``bare_offset`` has it.

    Called for all messages that come in. Messages that come together mostly have the same front: a comparison takes a
    tenth of the time that reading each front takes.

    Raises:
        MalformedMessage: As ``bare_offset`` does, for one of them.
    """
    first = contents[0]
    offset = _usual_bare_offset(first) if len(contents) >= SOME else -1
    if offset < 0:
        return list(map(bare_offset, contents))
    # All that was read of the first message; one more byte has to follow.
    front, read = first[: offset + 4], offset + 4
    if all_begin_with(front, contents, 1):
        return [offset] * len(contents)
    return [
        offset if content.startswith(front) and len(content) > read else bare_offset(content)
        for content in contents
    ]


def _usual_bare_offset(content: bytes) -> int:
    """
    The same for a message in the usual encoding, with as few calls as possible (0.2 us); else -1. It reads no further
    than the descriptor and format code of the bare message's first section, which has at least one more byte.
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

    The bare message is not read: it is delivered as it came, even if it is malformed.
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
        MalformedMessage: As ``validate`` does, after the sections before the error.
    """
    offset, end, previous = 0, len(content), 0
    while offset < end:
        code, value, behind = section_at(content, offset)
        # rising up to the first data section needs no closer look
        if not (previous < code <= DATA or _may_follow(previous, code)):
            after = f"after {_NAMES[previous]}" if previous else "first"
            raise MalformedMessage(offset, f"{_NAMES[code]} may not come {after}")
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
        MalformedMessage: There is no section.
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
        # What skip would return, without the call: that costs more than all the rest.
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
    """A section's descriptor in any encoding: its code, and the offset of the value after it."""
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


_USUAL_PROPERTIES = bytes((0x00, 0x53, PROPERTIES, 0xC0))
"""Properties in a list with one byte for its size."""

_BEFORE_TO = ("message-id", "user-id")

_STRING = 0xA1

USUAL_WIDTHS = {0x40: 1, 0x43: 1, 0x44: 1, 0x53: 2, 0x80: 9, 0x83: 9, 0x98: 17, 0xA0: 0, _STRING: 0, 0xA3: 0}
"""How many bytes a value of the properties takes, by its format code; 0: the second byte is the size."""


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


_Fields = Mapping[str, tuple[type, ...]]
"""Fields of a section, in order, and the types that each may have."""


def _fields_of(section: type) -> _Fields:
    return {name: get_args(hint) or (hint,) for name, hint in get_type_hints(section).items()}


_HEADER_FIELDS = _fields_of(Header)
_PROPERTY_FIELDS = _fields_of(Properties)

_DEFAULT_HEADER = Header()
_NO_PROPERTIES = Properties()


def read_header(content: bytes) -> Header:
    """
    The header, or its defaults where there is none.

    Raises:
        MalformedMessage: The first section is malformed, or a field has the wrong type or a number out of its range.
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
    """The same in a fifth of the time, for the usual encoding; None means that a closer look is needed."""
    if content[bare : bare + 4] != _USUAL_PROPERTIES:
        return None
    try:
        end = bare + 5 + content[bare + 4]
        if content[bare + 5] < 3 or end > len(content):
            return None
        at = bare + 6
        for _ in _BEFORE_TO:
            at += USUAL_WIDTHS[content[at]] or 2 + content[at + 1]
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


_EMPTY_VALUES: Final = (b"\x40", b"\xa0\x00", b"\xa1\x00", b"\xb0\0\0\0\0", b"\xb1\0\0\0\0")
"""Null, and binaries and strings of no length."""


def has_empty_body(content: bytes, bare: int) -> bool:
    """
    Whether a message brings no data: it has no body, data sections without a byte, or one value that is null, an empty
    string or an empty binary. A message whose sections cannot be read counts as one with data. The cost is small: the
    first bytes of a long body show that it has data.

    Args:
        bare: Where its bare message begins (``bare_offset``).
    """
    offset = bare
    try:
        while offset < len(content):
            code, value, offset = section_at(content, offset)
            if code == AMQP_SEQUENCE or (
                code in (DATA, AMQP_VALUE) and not content.startswith(_EMPTY_VALUES, value)
            ):
                return False
    except MalformedMessage:
        return False
    return True


def _value_at(content: bytes, offset: int) -> Any:
    try:
        return decode(content, offset)[0]
    except CodecError as error:
        raise MalformedMessage(error.offset, error.reason) from None


def map_at(content: bytes, offset: int) -> dict[Any, Any]:
    """
    The map whose value starts at ``offset``; empty for -1, which means that there is none.

    Raises:
        MalformedMessage: The map is malformed.
    """
    found: dict[Any, Any] = {} if offset < 0 else _value_at(content, offset)
    return found


def properties_at(content: bytes, offset: int) -> Properties:
    """
    The properties whose value starts at ``offset``; every field None for -1, which means that there are none.

    Raises:
        MalformedMessage: They are malformed, or a field has the wrong type.
    """
    if offset < 0:
        return _NO_PROPERTIES
    return Properties(**_fields(content, offset, _PROPERTY_FIELDS, "properties"))


_GREATEST: Final = (("priority", 2**8 - 1), ("ttl_ms", 2**32 - 1), ("delivery_count", 2**32 - 1))
"""The greatest numbers that fields of the header can have: some senders encode them in a wider type."""


def _decode_header(encoded: bytes) -> Header:
    fields = _fields(encoded, 0, _HEADER_FIELDS, "header")
    for name, greatest in _GREATEST:
        if not 0 <= fields.get(name, 0) <= greatest:
            raise MalformedMessage(0, f"header: {name} is from 0 to {greatest}, not {fields[name]}")
    return Header(**fields)


# Publishers send the same few headers over and over. 1,024 of at most 32 bytes take little memory.
_cached_header = lru_cache(maxsize=1024)(_decode_header)


def _fields(content: bytes, offset: int, fields: _Fields, section: str) -> dict[str, Any]:
    """The fields of the list at ``offset`` that are present, by name; their types are checked."""
    # What cannot be right is not built: a list of a million nulls, or a list in the place of a number.
    if content[offset] >= WIDE_FORM:
        check_decoding(content, offset, MOST_STEPS)
    values: list[Any] = _value_at(content, offset)
    if len(values) > len(fields):
        reason = f"{section} has {len(values)} fields, at most {len(fields)} are defined"
        raise MalformedMessage(offset, reason)
    present = {}
    for (name, kinds), value in zip(fields.items(), values, strict=False):
        if value is None:
            continue
        # bool is an int to Python, and to nobody else
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise MalformedMessage(offset, f"{section}: {name} may not be {type(value).__name__}")
        present[name] = value
    return present


class MessageView:
    """
    A message that a selector reads: each section is decoded when first read, then kept.

    Every property raises ``MalformedMessage`` like the function of its name, and ``TooMuchWork`` if decoding takes more
    steps than are left. A view is made for one evaluation.

    Args:
        bare: The offset of the bare message, as ``bare_offset`` gave it.
    """

    _steps = MOST_STEPS
    is_exhausted = False
    """Whether a section or value was not read, because reading it would take too many steps."""

    def __init__(self, content: bytes, bare: int) -> None:
        self.content = content
        self.bare = bare

    def spend(self, steps: int) -> bool:
        """Take steps from the budget of this message; False if too few are left."""
        if steps > self._steps:
            self.is_exhausted = True
            return False
        self._steps -= steps
        return True

    @property
    def spent(self) -> int:
        """The steps that were taken for this message so far."""
        return MOST_STEPS - self._steps

    @cached_property
    def header(self) -> Header:
        """The header, or its defaults where there is none."""
        return read_header(self.content)

    @cached_property
    def message_annotations(self) -> dict[Any, Any]:
        """Message annotations by key; empty without the section."""
        return self._map_at(find_value(self.content, MESSAGE_ANNOTATIONS)) if self.bare else {}

    @cached_property
    def properties(self) -> Properties:
        """The properties, every field None without the section."""
        offset = find_value(self.content, PROPERTIES, self.bare)
        self._check_decoding(offset)
        return properties_at(self.content, offset)

    @cached_property
    def application_properties(self) -> dict[Any, Any]:
        """Application properties by name; empty without the section."""
        return self._map_at(find_value(self.content, APPLICATION_PROPERTIES, self.bare))

    def _map_at(self, offset: int) -> dict[Any, Any]:
        self._check_decoding(offset)
        return map_at(self.content, offset)

    def _check_decoding(self, offset: int) -> None:
        if offset < 0 or self.content[offset] < WIDE_FORM:
            return
        try:
            self._steps -= check_decoding(self.content, offset, self._steps)
        except TooMuchWork:
            self.is_exhausted = True
            raise
