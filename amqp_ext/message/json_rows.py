"""
Messages of the log as JSON texts, many at a time; and one message in full, section by section, for a person to look at.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from operator import itemgetter
from typing import Any, Final, Literal

from amqp_ext.codec import CodecError, decode
from amqp_ext.message.annotations import ERASED_TIME, OURS, REPLAY_NAME, OutgoingRow, ReplayMark
from amqp_ext.message.json_message import (
    PLACES,
    SAID_ELSEWHERE,
    as_base64,
    field_names,
    plain,
    said_by_publisher,
)
from amqp_ext.message.sections import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    NESTED_BYTE_STEPS,
    PROPERTIES,
    SMALL_BYTES,
    USUAL_WIDTHS,
    WIDE_FORM,
    Header,
    Properties,
    TooMuchWork,
    check_decoding,
    message_annotations,
    properties,
    walk,
)
from amqp_ext.replay_id import format_replay_id
from amqp_ext.replay_start import date_text

MOST_BODY_BYTES: Final = 256 * 1024
"""The most bytes of a body that are shown, along with the size of the whole body."""

MOST_SECTION_BYTES: Final = 256 * 1024
"""The largest section, in bytes, that is shown at all."""

MOST_STEPS: Final = 100_000
"""The most steps (``amqp_ext.message.sections``) for decoding one message: some 10 ms."""

MOST_SECTIONS: Final = 1_000
"""The most sections of a message that are read."""

MOST_BRIEF_BYTES: Final = 2_048
"""The most bytes of a properties section that are read for a list of messages."""

MOST_BRIEF_TEXT: Final = 250
"""The most characters of a property in a list of messages."""

BodyKind = Literal["data", "sequence", "value", "none"]

_ERASED: Final = ERASED_TIME.encode()
PROPERTIES_SECTION: Final = b"\x00\x53\x73"
"""How the section begins, as everybody encodes it."""


_EMPTY_LIST: Final = 0x45
_SHORT_LIST: Final = 0xC0
_NULL: Final = 0x40
_TEXT: Final = 0xA1
_SYMBOL: Final = 0xA3

_CORRELATION_ID: Final = 5
_CONTENT_TYPE: Final = 6
"""Places in the properties section."""

_FIELDS: Final = {
    HEADER: list(field_names(Header).values()),
    PROPERTIES: list(field_names(Properties).values()),
}
"""Fields of sections that are lists (AMQP 1.0 sections 3.2.1 and 3.2.4)."""

_NAMES: Final = {
    HEADER: "header",
    MESSAGE_ANNOTATIONS: "messageAnnotations",
    PROPERTIES: "properties",
    APPLICATION_PROPERTIES: "applicationProperties",
    FOOTER: "footer",
}


def is_erased(content: bytes, bare: int) -> bool:
    """Whether a message's content was erased and replaced (``amqp_ext.message.annotations``)."""
    return content.find(_ERASED, 0, bare) >= 0


def brief(content: bytes, bare: int) -> tuple[str | None, str | None]:
    """
    The content-type and the correlation-id of a message, for a list of messages; None if the message has none, or has
    it in an encoding that nobody uses.

    Args:
        bare: Where its bare message begins.
    """
    if content[bare : bare + 3] != PROPERTIES_SECTION:
        return None, None
    try:
        content_type, correlation = _quickly(content, bare)
    except (IndexError, KeyError, UnicodeDecodeError):
        try:
            found = properties(content[bare : bare + MOST_BRIEF_BYTES])
        except CodecError:
            return None, None
        content_type, correlation = found.content_type, plain(found.correlation_id)
        if isinstance(correlation, dict):
            correlation = correlation["base64"]
    return (
        None if content_type is None else str(content_type)[:MOST_BRIEF_TEXT],
        None if correlation is None else str(correlation)[:MOST_BRIEF_TEXT],
    )


def _quickly(content: bytes, bare: int) -> tuple[str | None, str | None]:
    """
    The same for a short section in the usual encoding, with texts.

    Raises:
        IndexError, KeyError, UnicodeDecodeError: The section is of another kind.
    """
    if content[bare + 3] == _EMPTY_LIST:
        return None, None
    if content[bare + 3] != _SHORT_LIST:
        raise KeyError
    count, at, end = content[bare + 5], bare + 6, bare + 5 + content[bare + 4]
    correlation = None
    for field in range(min(count, _CONTENT_TYPE + 1)):
        code = content[at]
        behind = at + (USUAL_WIDTHS[code] or 2 + content[at + 1])
        if field >= _CORRELATION_ID and code != _NULL:
            if behind > end or code not in (_TEXT, _SYMBOL):
                raise KeyError
            text = content[at + 2 : behind].decode("utf-8" if code == _TEXT else "ascii")
            if field == _CONTENT_TYPE:
                return text, correlation
            correlation = text
        at = behind
    return None, correlation


@dataclass(frozen=True, slots=True)
class _Parts:
    """The sections of a message, as bytes."""

    sections: dict[int, bytes]
    """The sections before and after the body: their encoded values, by code."""
    kind: BodyKind
    body: Sequence[bytes]
    """The bytes of each data section; for the other kinds, each section's encoded value."""
    malformed: str | None


def _walked(content: bytes) -> Iterator[tuple[int, int, int]]:
    """
    Every section: its code, where its value starts, where it ends.

    Raises:
        CodecError: A section is malformed, or there are too many.
    """
    for count, (code, start, value, end) in enumerate(walk(content)):
        if count >= MOST_SECTIONS:
            raise TooMuchWork(start, f"it has more than {MOST_SECTIONS} sections")
        yield code, value, end


def _cut(content: bytes) -> _Parts:
    sections: dict[int, bytes] = {}
    body: list[bytes] = []
    kind: BodyKind = "none"
    malformed: str | None = None
    try:
        for code, value, end in _walked(content):
            if code == DATA:
                kind = "data"
                body.append(content[value + (5 if content[value] == 0xB0 else 2) : end])
            elif code in (AMQP_SEQUENCE, AMQP_VALUE):
                kind = "value" if code == AMQP_VALUE else "sequence"
                body.append(content[value:end])
            else:
                sections[code] = content[value:end]
    except CodecError as error:
        malformed = str(error)
    return _Parts(sections, kind, body, malformed)


class _Work:
    """The steps that are left for decoding one message."""

    def __init__(self) -> None:
        self._left = MOST_STEPS

    def decoded(self, encoded: bytes) -> Any:
        """
        A decoded value.

        Raises:
            CodecError: It is malformed, or decoding it would take too long.
        """
        size = len(encoded)
        if size > MOST_SECTION_BYTES:
            raise TooMuchWork(0, f"{size:,} bytes are too many to show")
        self.spend(encoded, 0, size)
        return decode(encoded)[0]

    def spend(self, content: bytes, start: int, end: int) -> None:
        """
        Take the steps for decoding the value from ``start`` to ``end``.

        Raises:
            CodecError: Decoding would take too long, or a value inside is cut short.
        """
        form, size = content[start], end - start
        if 0xA0 <= form < 0xC0:
            return
        if size > SMALL_BYTES and WIDE_FORM <= form < 0xE0:
            self._left -= check_decoding(content, start, self._left)
        else:
            self._left -= size * NESTED_BYTE_STEPS
        if self._left < 0:
            raise TooMuchWork(start, "decoding it takes too long")


def sections_of(content: bytes) -> dict[str, Any]:
    """A message, section by section, as values of JSON. Whatever the bytes are, this returns."""
    parts, work = _cut(content), _Work()
    problems = [] if parts.malformed is None else [parts.malformed]
    found: dict[str, Any] = {}
    for code, name in _NAMES.items():
        found[name] = {}
        encoded = parts.sections.get(code)
        if encoded is None:
            continue
        try:
            value = work.decoded(encoded)
        except CodecError as error:
            problems.append(f"{name}: {error}")
            continue
        if code in _FIELDS:
            pairs = zip(_FIELDS[code], value, strict=False)
            found[name] = {field: plain(item) for field, item in pairs if item is not None}
        else:
            found[name] = plain(value)
    body, problem = _body(parts, work)
    if problem is not None:
        problems.append(f"body: {problem}")
    content_type = found["properties"].get("contentType")
    found["body"] = {
        "kind": parts.kind,
        "contentType": content_type if isinstance(content_type, str) else None,
        **body,
    }
    found["malformed"] = "; ".join(problems) or None
    return found


def _body(parts: _Parts, work: _Work) -> tuple[dict[str, Any], str | None]:
    """The body, and why it is shown as bytes where it could not be read."""
    if parts.kind in ("data", "none"):
        return _shown(_joined(parts.body, MOST_BODY_BYTES + 1), sum(map(len, parts.body))), None
    size = sum(map(len, parts.body))
    try:
        values = [work.decoded(encoded) for encoded in parts.body]
    except CodecError as error:
        found = _shown(_joined(parts.body, MOST_BODY_BYTES + 1), size)
        return found, str(error)
    value = values[0] if parts.kind == "value" else values
    if isinstance(value, bytes):
        return _shown(value, len(value)), None
    text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
    return _shown(text.encode("utf-8", "replace"), size), None


def _joined(parts: Sequence[bytes], most: int) -> bytes:
    """The parts joined, up to ``most`` bytes."""
    found: list[bytes] = []
    left = most
    for part in parts:
        found.append(part[:left])
        left -= len(found[-1])
        if left <= 0:
            break
    return b"".join(found)


def _shown(body: bytes, size: int) -> dict[str, Any]:
    """Bytes as text if they are UTF-8, else in base64."""
    is_cut = len(body) > MOST_BODY_BYTES
    body = body[:MOST_BODY_BYTES]
    text: str | None
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        # The last character may be cut.
        text = body[: error.start].decode() if is_cut and len(body) - error.start < 4 else None
    return {
        "text": text,
        "base64": None if text is not None else base64.b64encode(body).decode("ascii"),
        "isCut": is_cut,
        "size": size,
    }


def body_bytes(content: bytes, bare: int) -> bytes:
    """
    The body as a file: the bytes of its data sections, or of a value that is text or binary; otherwise the encoded
    value, or the encoded values of a sequence's sections. The whole bare message if it cannot be read.

    Args:
        bare: Where the bare message begins.
    """
    parts = _cut(content)
    if parts.malformed is not None:
        return content[bare:]
    if parts.kind == "value" and 0xA0 <= parts.body[0][0] < 0xC0:
        value = parts.body[0]
        return value[5 if value[0] & 0x10 else 2 :]
    return b"".join(parts.body)


KNOWN: Final = 1_024
"""How many texts of each kind are cached; a full cache is cleared."""

KNOWN_BYTES: Final = 256
"""The largest section, in bytes, whose text is cached: larger ones are rarely alike."""

LONG_TEXT: Final = 64 * 1024
"""A text whose form in JSON is longer than this, in characters, and more than twice as long as its value, is given in
base64: control characters take six characters each."""


_ID_OF: Final = itemgetter(0)

_DATA8: Final = b"\x00\x53\x75\xa0"
_DATA32: Final = b"\x00\x53\x75\xb0"
_TEXT8: Final = b"\x00\x53\x77\xa1"
_TEXT32: Final = b"\x00\x53\x77\xb1"
_PROPERTIES8: Final = b"\x00\x53\x73\xc0"
_APPLICATION_PROPERTIES8: Final = b"\x00\x53\x74\xc1"
_NOT_OURS: Final = OURS | SAID_ELSEWHERE

_dumps: Final[Callable[[Any], str]] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class _Unusual(Exception):
    """A message or section is not in the usual encoding."""


class JsonRows:
    """
    The JSON of one reader's messages.

    Args:
        generation: The log's generation, part of every replay id.
        mark: The mark on history; None for no mark.
    """

    def __init__(self, generation: int, mark: ReplayMark | None = None) -> None:
        self._mark = mark
        self._marked_fronts: dict[bytes, str] = {}
        self._replay_id = format_replay_id(generation, 0)[: -len("00000000-00000000")]
        self._topics: dict[str, str] = {}
        self._fronts: dict[bytes, str] = {b"": ""}
        self._properties: dict[bytes, str] = {}
        self._second = -1
        self._second_text = ""

    def texts(self, rows: Sequence[OutgoingRow], end_id: int | None) -> list[str]:
        """
        The JSON text of each message, without a line end.

        Args:
            end_id: The last message before live, if it is among them.
        """
        mark = self._mark
        if mark is None or (mark.below is not None and rows and rows[0][0] >= mark.below):
            return self._texts(rows, end_id, self._fronts, "")
        below = mark.below
        count = len(rows) if below is None else bisect_left(rows, below, key=_ID_OF)
        history = self._texts(rows[:count], end_id, self._marked_fronts, mark.name)
        return history + self._texts(rows[count:], end_id, self._fronts, "")

    def _texts(
        self, rows: Sequence[OutgoingRow], end_id: int | None, fronts: dict[bytes, str], replay_name: str
    ) -> list[str]:
        found: list[str] = []
        append = found.append
        topics, replay_id = self._topics, self._replay_id
        second, second_text, high, high_text = self._second, self._second_text, -1, ""
        for message_id, time_ms, topic, bare, _, _, content in rows:
            if time_ms // 1_000 != second:
                second = time_ms // 1_000
                second_text = date_text(second * 1_000)[:-4]
            if message_id >> 32 != high:
                high = message_id >> 32
                high_text = f"{replay_id}{high:08x}-"
            topic_text = topics.get(topic)
            if topic_text is None:
                topic_text = _remember(topics, topic, encode_basestring(topic))
            front_text = fronts.get(content[:bare])
            if front_text is None:
                front_text = _front(content[:bare], content, fronts, replay_name)
            # The bodies that nearly all messages have, with nothing after them.
            head, rest = content[bare : bare + 4], len(content) - bare
            if head == _DATA8 and rest == 5 + content[bare + 4]:
                said = _data(content, bare + 5)
            elif head == _DATA32 and rest == 8 + int.from_bytes(content[bare + 4 : bare + 8], "big"):
                said = _data(content, bare + 8)
            else:
                said = self._said(content, bare)
            end_text = ',"replayEnd":true' if message_id == end_id else ""
            append(
                f'{{"offset":{message_id},"replayId":"{high_text}{message_id & 0xFFFFFFFF:08x}",'
                f'"enqueuedTime":"{second_text}{time_ms % 1_000:03d}Z","topic":{topic_text}'
                f"{end_text}{front_text}{said}}}"
            )
        self._second, self._second_text = second, second_text
        return found

    def _said(self, content: bytes, bare: int) -> str:
        """The JSON of the bare message, as text to append to the rest of the object."""
        try:
            return self._usual(content, bare)
        except (_Unusual, IndexError, UnicodeDecodeError):
            return f",{_dumps(_bounded(content[bare:]))[1:-1]}"

    def _usual(self, content: bytes, at: int) -> str:
        text = ""
        if content[at : at + 4] == _PROPERTIES8:
            behind = at + 5 + content[at + 4]
            text, at = self._section(content[at:behind], _properties), behind
        if content[at : at + 4] == _APPLICATION_PROPERTIES8:
            behind = at + 5 + content[at + 4]
            text, at = text + self._section(content[at:behind], _application_properties), behind
        head, rest = content[at : at + 4], len(content) - at
        if head == _DATA8 and rest == 5 + content[at + 4]:
            return text + _data(content, at + 5)
        if head == _DATA32 and rest == 8 + int.from_bytes(content[at + 4 : at + 8], "big"):
            return text + _data(content, at + 8)
        if head == _TEXT8 and rest == 5 + content[at + 4]:
            return f'{text},"bodyType":"value","body":{_text(content[at + 5 :])}'
        if head == _TEXT32 and rest == 8 + int.from_bytes(content[at + 4 : at + 8], "big"):
            return f'{text},"bodyType":"value","body":{_text(content[at + 8 :])}'
        raise _Unusual

    def _section(self, section: bytes, read: Callable[[bytes], str]) -> str:
        known = self._properties.get(section)
        return _remember(self._properties, section, read(section)) if known is None else known


def _front(front: bytes, content: bytes, fronts: dict[bytes, str], replay_name: str) -> str:
    """The text that the annotations and the mark add."""
    text = ""
    try:
        annotations = (
            {str(key): value for key, value in message_annotations(content).items()} if front else {}
        )
    except CodecError:
        annotations = {}  # deliveries do not have them, either
    shown = plain({key: item for key, item in annotations.items() if key not in _NOT_OURS})
    if replay_name:
        shown[REPLAY_NAME] = replay_name
    if shown:
        text = f',"annotations":{_dumps(shown)}'
    return _remember(fronts, front, text) if len(front) <= KNOWN_BYTES else text


def _remember(known: dict[Any, str], key: Any, text: str) -> str:
    if len(known) >= KNOWN:
        known.clear()
    known[key] = text
    return text


def _data(content: bytes, start: int) -> str:
    return f',"bodyType":"data","body":{_text_or_bytes(content[start:])}'


def _text_or_bytes(value: bytes) -> str:
    try:
        return _text(value)
    except UnicodeDecodeError:
        return _dumps(as_base64(value))


def _text(value: bytes) -> str:
    found: str = encode_basestring(value.decode())
    if len(found) > LONG_TEXT and len(found) > 2 * len(value):
        return _dumps(as_base64(value))
    return found


def _properties(section: bytes) -> str:
    """The text of the fields that are shown. The others are checked, too: a wrong type makes the section unreadable."""
    text = ""
    position, end = 6, len(section)
    if section[4] + 5 != end or section[5] > len(_PROPERTIES):
        raise _Unusual
    for kind, name in _PROPERTIES[: section[5]]:
        code = section[position]
        if code == 0x40:
            position += 1
        elif code in _TEXT_CODES and kind in _TEXTS:
            start = position + 2
            position = start + section[position + 1]
            value = section[start:position]
            if code == _SYMBOL and not value.isascii():
                raise _Unusual
            if name:
                text += f',"{name}":{_text(value)}'
            else:
                value.decode()  # to see whether it is text
        elif kind == "id" and code in _UNSIGNED:
            number, position = _value(section, position)
            text += f',"{name}":{number}'
        elif kind == "binary" and code == 0xA0:
            position += 2 + section[position + 1]
        elif (kind == "time" and code == 0x83) or (kind == "number" and code in _UNSIGNED):
            position += 1 + _INTEGERS.get(code, 8)
        else:
            raise _Unusual
    if position != end:
        raise _Unusual
    return text


_KIND_OF: Final = {
    "messageId": "id",
    "userId": "binary",
    "correlationId": "id",
    "absoluteExpiryTime": "time",
    "creationTime": "time",
    "groupSequence": "number",
}
"""The kinds of the fields of the properties that are not text."""

_PROPERTIES: Final = [
    (_KIND_OF.get(name, "text"), name if name in PLACES else "") for name in _FIELDS[PROPERTIES]
]
"""The fields of the properties section, in order: the kind, and the name in the object; empty if it is not shown."""

_TEXTS: Final = frozenset({"id", "text"})
_TEXT_CODES: Final = frozenset({_TEXT, _SYMBOL})


def _application_properties(section: bytes) -> str:
    items: list[str] = []
    keys: set[bytes] = set()
    position, end = 6, len(section)
    if section[4] + 5 != end or section[5] % 2:
        raise _Unusual
    for _ in range(section[5] // 2):
        if section[position] != 0xA1:
            raise _Unusual
        behind = position + 2 + section[position + 1]
        key = section[position + 2 : behind]
        keys.add(key)
        text, position = _value(section, behind)
        items.append(f"{_text(key)}:{text}")
    if position != end or len(keys) != len(items):
        raise _Unusual
    return f',"properties":{{{",".join(items)}}}' if items else ""


def _value(section: bytes, position: int) -> tuple[str, int]:
    """The text of a simple value, and where the value ends, which may be beyond the section's end."""
    code = section[position]
    if code == 0xA1:
        behind = position + 2 + section[position + 1]
        return _text(section[position + 2 : behind]), behind
    if code in _WORDS:
        return _WORDS[code], position + 1
    if code == 0x82:
        (number,) = _DOUBLE(section[position + 1 : position + 9].ljust(8))
        if not math.isfinite(number):
            raise _Unusual
        return repr(number), position + 9
    width = _INTEGERS.get(code)
    if width is None:
        raise _Unusual
    behind = position + 1 + width
    return str(int.from_bytes(section[position + 1 : behind], "big", signed=code in _SIGNED)), behind


_WORDS: Final = {0x40: "null", 0x41: "true", 0x42: "false"}
_DOUBLE: Final = struct.Struct(">d").unpack
_INTEGERS: Final = {
    0x43: 0, 0x44: 0, 0x50: 1, 0x51: 1, 0x52: 1, 0x53: 1, 0x54: 1, 0x55: 1, 0x60: 2, 0x61: 2, 0x70: 4, 0x71: 4, 0x80: 8,
    0x81: 8,
}  # fmt: skip
"""Bytes of an integer, by its format code."""

_SIGNED: Final = frozenset({0x51, 0x54, 0x55, 0x61, 0x71, 0x81})
_UNSIGNED: Final = frozenset(_INTEGERS) - _SIGNED


def _bounded(bare: bytes) -> dict[str, Any]:
    """The object for a bare message; its bytes if decoding it would take too long."""
    work = _Work()
    try:
        for _, start, end in _walked(bare):
            work.spend(bare, start, end)
    except CodecError as error:
        return {"malformed": str(error), "body": as_base64(bare)}
    found = said_by_publisher(bare)
    body = found["body"]
    if isinstance(body, str) and len(body) > LONG_TEXT and len(encode_basestring(body)) > 2 * len(bare):
        found["body"] = as_base64(body.encode())
    return found
