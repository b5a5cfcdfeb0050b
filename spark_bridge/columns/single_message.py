"""
One message to a row: the decoder of every kind of message, however it is encoded.

Usual messages are read by ``message_block``, many at a time; what is unusual comes here. A message whose bare part
cannot be decoded still gives a row: the columns concerned are null, and ``systemProperties`` says why under
``rewind:undecodable``; one bad publisher must not make the log unreadable.

A Spark worker decodes every such message, so here a microsecond counts. Nearly all senders use the short forms of
strings, symbols, binaries and integers; those are read in line, faster than by ``amqp_ext``, which reads all others.
Invariant: on a well-formed message the answers are those of ``amqp_ext.codec.decode``, but for one thing: a symbol
comes as plain ``str``. The order of sections is not checked.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from struct import Struct
from struct import error as StructError
from typing import Any
from uuid import UUID

from amqp_ext.codec import CodecError, Described, Timestamp, decode, skip
from amqp_ext.message import sections
from spark_bridge.errors import UnreadableMessage

_INT64 = Struct(">q").unpack_from


def items(message: bytes, value: int) -> list[Any]:
    """
    The items of the list or map at ``value``; of a map, key after value after key.

    Raises:
        CodecError: The list or map is malformed.
    """
    form = message[value]
    if form in {0xC0, 0xC1}:
        count, position, end = message[value + 2], value + 3, value + 2 + message[value + 1]
    elif form in {0xD0, 0xD1}:
        count = int.from_bytes(message[value + 5 : value + 9], "big")
        position, end = value + 9, value + 5 + int.from_bytes(message[value + 1 : value + 5], "big")
    elif form == 0x45:
        return []
    else:
        raise CodecError(value, f"format code {form:#04x} is neither a list nor a map")
    if end > len(message) or count > end - position:
        raise CodecError(value, f"{count} items are declared where {len(message) - position} bytes are left")
    found: list[Any] = []
    for _ in range(count):
        code = message[position] if position < end else -1
        if code in {0xA1, 0xA3}:
            start = position + 2
            position = start + message[position + 1]
            found.append(str(message[start:position], "utf-8"))
        elif code == 0x40:
            position += 1
            found.append(None)
        elif code == 0x55:
            small = message[position + 1]
            position += 2
            found.append(small - 256 if small > 127 else small)
        elif code == 0x81:
            found.append(_INT64(message, position + 1)[0])
            position += 9
        elif code == 0x83:
            found.append(Timestamp(_INT64(message, position + 1)[0]))
            position += 9
        else:
            item, position = decode(message, position)
            found.append(item)
    if position != end:
        raise CodecError(position, "the items do not fill the list or map they are in")
    return found


UNDECODABLE = "rewind:undecodable"
BAD_CONTENT = (CodecError, ValueError, TypeError, IndexError, StructError)
SYSTEM = "systemProperties"

# Column to its place in the properties section (AMQP 1.0, 3.2.4).
PROPERTY_AT = {
    "messageId": 0,
    "subject": 3,
    "replyTo": 4,
    "correlationId": 5,
    "contentType": 6,
    "groupId": 10,
}
# The broker's annotations that have a column of their own.
_ANNOTATIONS = {
    "x-opt-sequence-number": "offset",
    "x-opt-enqueued-time": "enqueuedTime",
    "x-opt-topic": "topic",
    "x-opt-replay-id": "replayId",
}
_ANNOTATION_KEYS = {key.encode() for key in _ANNOTATIONS}
_GATEWAYS_FRONT = b"\x00\x53\x72\xd1"
# The offset once more, and a mark that depends on how a read was split: but a row is the same, however it is read.
_LEFT_OUT = {"x-opt-offset", "x-opt-replay-end"}
_BODY_TYPES = {sections.AMQP_SEQUENCE: "sequence", sections.AMQP_VALUE: "value"}
_HEADER_NAMES = ("durable", "priority", "ttl")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def text(value: Any) -> str | None:
    """
    An AMQP value as the text of a map's value: text as it is, null as null, everything else as JSON, with
    binary in base64 and timestamps in ISO 8601.
    """
    if value is None or type(value) is str:
        return value
    if type(value) is int:
        return str(value)
    plain = _plain(value)
    return str(plain) if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def text_at(message: bytes, position: int) -> str | None:
    """The same for the encoded value at ``position``."""
    return text(decode(message, position)[0])


def _plain(value: Any) -> Any:
    """The value, made of JSON's types."""
    match value:
        case bool() | None:
            return value
        case Timestamp():
            return _iso(value)
        case int() | float():
            return value
        case str():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
        case UUID():
            return str(value)
        case Described():
            return _plain(value.value)
        case dict():
            return {text(key) or "null": _plain(item) for key, item in value.items()}
        case _:
            return [_plain(item) for item in value]


def _iso(milliseconds: int) -> str:
    try:
        return (_EPOCH + timedelta(milliseconds=milliseconds)).isoformat(timespec="milliseconds")
    except OverflowError:  # beyond the year 9999
        return str(int(milliseconds))


def _told(message: bytes) -> dict[Any, Any]:
    """
    The annotations, or the gateway's alone if the sender's cannot be decoded.

    Raises:
        BAD_CONTENT: One of these: the gateway's cannot be decoded, either.
    """
    try:
        return sections.message_annotations(message)
    except BAD_CONTENT:
        start = 0
        while message[start : start + 4] != _GATEWAYS_FRONT:
            start = skip(message, start)
        found, position = {}, start + 12
        for _ in range(int.from_bytes(message[start + 8 : position], "big") // 2):
            value = skip(message, position)
            key = message[position + 2 : value]  # of a short symbol, as all of the gateway's are
            position = skip(message, value)
            if key in _ANNOTATION_KEYS:
                found[key.decode()] = decode(message, value)[0]
        return found


class MessageDecoder:
    """Reads single messages into dictionaries by column name. ``names`` are the columns worth decoding."""

    def __init__(self, names: frozenset[str]) -> None:
        self.system = SYSTEM in names
        self.properties = [(name, place) for name, place in PROPERTY_AT.items() if name in names]
        self.application = "properties" in names
        self.body = not names.isdisjoint({"body", "bodyType"})

    def of(self, message: bytes) -> dict[str, Any]:
        """
        One message as a log reader gets it, without the columns that it has no value for. Times are in microseconds.

        Raises:
            UnreadableMessage: The message lacks the gateway's annotations.
        """
        row: dict[str, Any] = {SYSTEM: {}}
        try:
            try:
                self.fill(row, message)
            except BAD_CONTENT as error:
                if "offset" not in row:
                    self._annotate(row, _told(message))
                row[SYSTEM][UNDECODABLE] = str(error)
            row["enqueuedTime"] *= 1000
        except (*BAD_CONTENT, KeyError) as error:
            raise UnreadableMessage(
                f"A delivery lacks the annotations of a log reader ({error!r}); is the peer a Rewind gateway?"
            ) from error
        return row

    def fill(self, row: dict[str, Any], message: bytes) -> None:
        """
        Fill in every column that the sections of the message give.

        Raises:
            BAD_CONTENT: One of these: the sections cannot be decoded.
        """
        end = 0
        while end < len(message):
            start = end
            code, value, end = sections.section_at(message, start)
            if code == sections.MESSAGE_ANNOTATIONS:
                flat = items(message, value)
                self._annotate(row, dict(zip(flat[::2], flat[1::2], strict=True)))
            elif code == sections.DATA:
                if self.body:
                    row["bodyType"] = "data"
                    data = message[value + (2 if message[value] == 0xA0 else 5) : end]
                    row["body"] = row["body"] + data if "body" in row else data
            elif code == sections.PROPERTIES:
                if self.properties:
                    fields = items(message, value)
                    for name, place in self.properties:
                        if place < len(fields):
                            row[name] = text(fields[place])
            elif code == sections.APPLICATION_PROPERTIES:
                if self.application:
                    flat = [text(item) for item in items(message, value)]
                    row["properties"] = dict(zip(flat[::2], flat[1::2], strict=True))
            elif code == sections.HEADER:
                if self.system:
                    named = zip(_HEADER_NAMES, items(message, value), strict=False)
                    row[SYSTEM] |= {name: text(item) for name, item in named if item is not None}
            elif code in _BODY_TYPES and self.body:
                row["bodyType"] = _BODY_TYPES[code]
                row["body"] = row.get("body", b"") + message[start:end]

    def _annotate(self, row: dict[str, Any], annotations: dict[Any, Any]) -> None:
        """The broker's annotations become columns; the publisher's go into systemProperties."""
        for key, value in annotations.items():
            column = _ANNOTATIONS.get(key)
            if column is not None:
                row[column] = value
            elif self.system and key not in _LEFT_OUT:
                row[SYSTEM][text(key)] = text(value)
