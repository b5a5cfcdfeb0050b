"""
Messages of the log as JSON texts, many at a time: what ``json_object.as_object`` makes of each delivered message,
without making an object of it.

A message is mostly like the one before: topics, properties and annotations are looked up by their encoded bytes, times
by their seconds. What is spelled as senders usually spell it is read where it stands; anything else is decoded, and
what would take too long to decode is shown as bytes.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from bisect import bisect_left
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring
from operator import itemgetter
from typing import Any, Final, Protocol, TypeAlias

from amqp_ext.codec import CodecError
from amqp_ext.message.annotations import OURS, REPLAY_NAME
from amqp_ext.message.json_object import SAID_ELSEWHERE, as_base64, iso, plain, said_by_publisher
from amqp_ext.message.sections import DATA, TooMuchWork, message_annotations, walk
from amqp_ext.message.sections.work import NESTED_BYTE_STEPS, SMALL_BYTES, WIDE_FORM, check_decoding
from amqp_ext.replay_id import format_replay_id

JsonRow: TypeAlias = "tuple[int, int, str, int, int, int | None, bytes]"
"""A message as the log has it: (id, time ms, topic, offset of the bare message, anything, anything, content)."""

KNOWN: Final = 1_024
"""Texts that are remembered of a kind; beyond, it starts over."""

KNOWN_BYTES: Final = 256
"""Bytes of a section whose text is remembered: larger ones are rarely alike."""

LONG_TEXT: Final = 64 * 1024
"""Characters of a text from which on its form in JSON may have no more than twice as many: control characters take six
each."""

MOST_STEPS: Final = 100_000
"""Steps (``amqp_ext.message.sections.work``) of decoding one message: some 10 ms."""

MOST_SECTIONS: Final = 1_000
"""Sections that a message is looked through for."""

_ID_OF: Final = itemgetter(0)

_DATA8: Final = b"\x00\x53\x75\xa0"
_DATA32: Final = b"\x00\x53\x75\xb0"
_TEXT8: Final = b"\x00\x53\x77\xa1"
_TEXT32: Final = b"\x00\x53\x77\xb1"
_PROPERTIES8: Final = b"\x00\x53\x73\xc0"
_APPLICATION_PROPERTIES8: Final = b"\x00\x53\x74\xc1"
_NOT_OURS: Final = OURS | SAID_ELSEWHERE

_dumps: Final[Callable[[Any], str]] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Mark(Protocol):
    """What the history that a reader is given has on it."""

    @property
    def name(self) -> str:
        """The replay's."""

    @property
    def below(self) -> int | None:
        """Ids from this one on are not history; None while that is not known, and all are."""


class _Unusual(Exception):
    """It is not spelled as usual."""


class JsonRows:
    """
    The JSON of one reader's messages.

    Args:
        generation: The log's, part of every replay id.
        mark: What history has on it; None where it has nothing.
    """

    def __init__(self, generation: int, mark: Mark | None = None) -> None:
        self._mark = mark
        self._marked_fronts: dict[bytes, str] = {}
        self._replay_id = format_replay_id(generation, 0)[: -len("00000000-00000000")]
        self._topics: dict[str, str] = {}
        self._fronts: dict[bytes, str] = {b"": ""}
        self._properties: dict[bytes, str] = {}
        self._second = -1
        self._second_text = ""

    def texts(self, rows: Sequence[JsonRow], end_id: int | None) -> list[str]:
        """
        The JSON text of each, without a line end.

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
        self, rows: Sequence[JsonRow], end_id: int | None, fronts: dict[bytes, str], replay_name: str
    ) -> list[str]:
        found: list[str] = []
        append = found.append
        topics, replay_id = self._topics, self._replay_id
        second, second_text, high, high_text = self._second, self._second_text, -1, ""
        for message_id, time_ms, topic, bare, _, _, content in rows:
            if time_ms // 1_000 != second:
                second = time_ms // 1_000
                second_text = iso(second * 1_000)[:-4]
            if message_id >> 32 != high:
                high = message_id >> 32
                high_text = f"{replay_id}{high:08x}-"
            topic_text = topics.get(topic)
            if topic_text is None:
                topic_text = _remember(topics, topic, encode_basestring(topic))
            front_text = fronts.get(content[:bare])
            if front_text is None:
                front_text = _front(content[:bare], content, fronts, replay_name)
            # The bodies that nearly all messages have, and nothing else behind them.
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
        """What the bare message says, as text behind the rest of the object."""
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
    """What header and annotations add."""
    text = ""
    try:
        annotations = (
            {str(key): value for key, value in message_annotations(content).items()} if front else {}
        )
    except CodecError:
        annotations = {}  # as no delivery has them
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
        return f'{{"base64":"{base64.b64encode(value).decode("ascii")}"}}'


def _text(value: bytes) -> str:
    found: str = encode_basestring(value.decode())
    if len(found) > LONG_TEXT and len(found) > 2 * len(value):
        return f'{{"base64":"{base64.b64encode(value).decode("ascii")}"}}'
    return found


def _properties(section: bytes) -> str:
    """The fields that are shown; others are looked at for their types, as a field of a wrong one spoils them all."""
    text = ""
    position, end = 6, len(section)
    if section[4] + 5 != end or section[5] > len(_FIELDS):
        raise _Unusual
    for kind, name in _FIELDS[: section[5]]:
        code = section[position]
        if code == 0x40:
            position += 1
        elif code == 0xA1 and kind in _TEXTS:
            start = position + 2
            position = start + section[position + 1]
            text += (
                f',"{name}":{_text(section[start:position])}' if name else _skipped(section[start:position])
            )
        elif code == 0xA3 and kind in _TEXTS:
            start = position + 2
            position = start + section[position + 1]
            if not section[start:position].isascii():
                raise _Unusual
            text += f',"{name}":{_text(section[start:position])}' if name else ""
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


def _skipped(value: bytes) -> str:
    value.decode()
    return ""


_FIELDS: Final = (
    ("id", "messageId"),
    ("binary", ""),
    ("text", ""),
    ("text", "subject"),
    ("text", "replyTo"),
    ("id", "correlationId"),
    ("text", "contentType"),
    ("text", ""),
    ("time", ""),
    ("time", ""),
    ("text", "groupId"),
    ("number", ""),
    ("text", ""),
)
"""Of the properties section, in order: what a field is, and its name in the object where it is shown."""

_TEXTS: Final = frozenset({"id", "text"})


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
    """The text of a simple value, and where it ends; that may be behind the section's end."""
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
    """What a bare message says; where it would take too long to decode, its bytes."""
    try:
        _check(bare)
    except CodecError as error:
        return {"malformed": str(error), "body": as_base64(bare)}
    found = said_by_publisher(bare)
    body = found["body"]
    if isinstance(body, str) and len(body) > LONG_TEXT and len(encode_basestring(body)) > 2 * len(bare):
        found["body"] = as_base64(body.encode())
    return found


def _check(bare: bytes) -> None:
    """
    That a message is decoded soon enough.

    Raises:
        amqp_ext.message.sections.TooMuchWork: It is not.
        amqp_ext.codec.CodecError: It is no message.
    """
    left = MOST_STEPS
    for count, (code, start, value, end) in enumerate(walk(bare)):
        if count >= MOST_SECTIONS:
            raise TooMuchWork(start, f"more than {MOST_SECTIONS} sections are not looked through")
        form = bare[value]
        if code == DATA or 0xA0 <= form < 0xC0:
            continue
        if end - value > SMALL_BYTES and WIDE_FORM <= form < 0xE0:
            left -= check_decoding(bare, value, left)
        else:
            left -= (end - value) * NESTED_BYTE_STEPS
        if left < 0:
            raise TooMuchWork(value, "decoding it takes too long")
