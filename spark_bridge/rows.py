"""AMQP messages to Arrow record batches.

Invariants: a batch has exactly the columns asked for, in that order, with the types Spark derives from the
schema (Spark compares them for equality). A section that no asked-for column needs is not decoded. A
message whose bare part cannot be decoded still gives a row: the columns concerned are null, and
``systemProperties`` says why under ``rewind:undecodable``; one bad publisher must not make the log
unreadable.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from struct import error as StructError
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from amqp_ext.annotations import Splicer
from amqp_ext.codec import CodecError, Described, Timestamp
from amqp_ext.replay_id import format_replay_id
from amqp_ext.sections import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    message_annotations,
)
from amqp_ext.topics import TopicFilter
from spark_bridge.errors import UnreadableMessage
from spark_bridge.quick import items, only_body, sections
from spark_bridge.schema import COLUMNS

if TYPE_CHECKING:
    from spark_bridge.log_file import StoredRow

_BODY_TYPES = {AMQP_SEQUENCE: "sequence", AMQP_VALUE: "value"}
UNDECODABLE = "rewind:undecodable"
_BAD_CONTENT = (CodecError, ValueError, TypeError, IndexError, StructError)

_ARROW = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
# Column to its place in the properties section (AMQP 1.0, 3.2.4).
_PROPERTY_AT = {
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
# The offset once more, and a mark that depends on how a read was split: a row is the same however it is read.
_LEFT_OUT = {"x-opt-offset", "x-opt-replay-end"}
_HEADER_NAMES = ("durable", "priority", "ttl")
_SHORT_HEADER = b"\x00\x53\x70\xc0"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def arrow_schema(columns: Sequence[tuple[str, str]]) -> pa.Schema:
    """The Arrow schema of a batch with these columns, each a pair of our name and the user's."""
    return pa.schema([pa.field(label, _ARROW[COLUMNS[name]]) for name, label in columns])


def text(value: Any) -> str | None:
    """An AMQP value as the text of a map's value: text as it is, null as null, everything else as JSON, with
    binary in base64 and timestamps in ISO 8601."""
    if value is None or type(value) is str:
        return value
    if type(value) is int:
        return str(value)
    plain = _plain(value)
    return str(plain) if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """A value made of what JSON has."""
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


class Rows:
    """Turns pages of encoded messages into record batches of the chosen columns.

    ``topics`` drops messages whose topic does not match: for patterns that one log address cannot carry.
    ``partition`` is what the column of that name says.
    """

    def __init__(
        self, columns: Sequence[tuple[str, str]], topics: TopicFilter | None = None, partition: int = 0
    ) -> None:
        self._schema = arrow_schema(columns)
        self._names = [name for name, _ in columns]
        self._topics = topics
        self._partition = partition
        # Which sections are worth decoding.
        names = set(self._names)
        self._system = "systemProperties" in names
        self._properties = [(name, place) for name, place in _PROPERTY_AT.items() if name in names]
        self._application = "properties" in names
        self._body = not names.isdisjoint({"body", "bodyType"})
        self.needs_content = bool(self._system or self._properties or self._application or self._body)
        """Whether any column comes from the message itself, not from what the broker keeps beside it."""
        self._only_body = self._body and not (self._system or self._properties or self._application)

    def batch(self, messages: Sequence[bytes]) -> tuple[pa.RecordBatch, list[int]]:
        """The rows that pass the topic filter, and the offsets of all messages in order.

        Raises UnreadableMessage for a message without the broker's annotations.
        """
        rows = [self._row(message) for message in messages]
        offsets = [row["offset"] for row in rows]
        if self._topics is not None:
            rows = [row for row in rows if self._topics.matches(row["topic"] or "")]
        arrays = [_array(_ARROW[COLUMNS[name]], [row.get(name) for row in rows]) for name in self._names]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema), offsets

    def stored(self, rows: Sequence[StoredRow], splicer: Splicer, generation: int) -> pa.RecordBatch:
        """The same rows from messages as they are stored, before the broker put its annotations in front."""
        if self._topics is not None:
            rows = [row for row in rows if self._topics.matches(row[2])]
        if self.needs_content:
            decoded = self._bodies(rows) if self._only_body else None
            if decoded is None:
                decoded = self._decoded(rows, splicer)
        else:
            decoded = {}
        arrays = []
        for name in self._names:
            kind = _ARROW[COLUMNS[name]]
            if name == "offset":
                array = pa.array([row[0] for row in rows], kind)
            elif name == "enqueuedTime":
                array = pa.array([row[1] * 1000 for row in rows], kind)
            elif name == "topic":
                array = pa.array([row[2] for row in rows], kind)
            elif name == "replayId":
                array = pa.array([format_replay_id(generation, row[0]) for row in rows], kind)
            elif name == "partition":
                array = pa.array([self._partition] * len(rows), kind)
            else:
                array = _array(kind, decoded[name])
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _bodies(self, rows: Sequence[StoredRow]) -> dict[str, list[Any]] | None:
        """Body columns where every body of the page is one data section; None where one is not."""
        bodies = [None if row[4] is None else only_body(row[4], row[3]) for row in rows]
        return None if None in bodies else {"body": bodies, "bodyType": ["data"] * len(rows)}

    def _decoded(self, rows: Sequence[StoredRow], splicer: Splicer) -> dict[str, list[Any]]:
        """The columns that come from the messages themselves."""
        found: list[dict[str, Any]] = []
        for number, time_ms, topic, bare, content in rows:
            assert content is not None
            if not bare or (content[:4] == _SHORT_HEADER and content[4] + 5 == bare):
                row: dict[str, Any] = {"systemProperties": {}}
                try:
                    self._fill(row, content)
                    found.append(row)
                    continue
                except _BAD_CONTENT:
                    pass  # told below, in the words it is told in over AMQP
            front = splicer.front(number, time_ms, topic, bare, content, 0, False)
            found.append(self._row(front + content[bare:]))
        return {name: [row.get(name) for row in found] for name in self._names}

    def _row(self, message: bytes) -> dict[str, Any]:
        """One message by column name; what it does not have is missing."""
        row: dict[str, Any] = {"partition": self._partition, "systemProperties": {}}
        try:
            try:
                self._fill(row, message)
            except _BAD_CONTENT as error:
                if "offset" not in row:
                    self._annotate(row, message_annotations(message))
                row["systemProperties"][UNDECODABLE] = str(error)
            row["enqueuedTime"] *= 1000  # to microseconds
        except (*_BAD_CONTENT, KeyError) as error:
            raise UnreadableMessage(
                f"A delivery lacks the annotations of a log reader ({error!r}); is the peer a Rewind gateway?"
            ) from error
        return row

    def _annotate(self, row: dict[str, Any], annotations: dict[Any, Any]) -> None:
        """The broker's annotations become columns; the publisher's go into systemProperties."""
        for key, value in annotations.items():
            column = _ANNOTATIONS.get(key)
            if column is not None:
                row[column] = value
            elif self._system and key not in _LEFT_OUT:
                row["systemProperties"][text(key)] = text(value)

    def _fill(self, row: dict[str, Any], message: bytes) -> None:
        """Every column but partition, from the sections of the message."""
        for code, start, value, end in sections(message):
            if code == MESSAGE_ANNOTATIONS:
                flat = items(message, value)
                self._annotate(row, dict(zip(flat[::2], flat[1::2], strict=True)))
            elif code == DATA:
                if self._body:
                    row["bodyType"] = "data"
                    data = message[value + (2 if message[value] == 0xA0 else 5) : end]
                    row["body"] = row["body"] + data if "body" in row else data
            elif code == PROPERTIES:
                if self._properties:
                    fields = items(message, value)
                    for name, place in self._properties:
                        if place < len(fields):
                            row[name] = text(fields[place])
            elif code == APPLICATION_PROPERTIES:
                if self._application:
                    flat = [text(item) for item in items(message, value)]
                    row["properties"] = dict(zip(flat[::2], flat[1::2], strict=True))
            elif code == HEADER:
                if self._system:
                    named = zip(_HEADER_NAMES, items(message, value), strict=False)
                    row["systemProperties"] |= {name: text(item) for name, item in named if item is not None}
            elif code in _BODY_TYPES and self._body:
                row["bodyType"] = _BODY_TYPES[code]
                row["body"] = row.get("body", b"") + message[start:end]


def _array(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if not pa.types.is_map(kind):
        return pa.array(values, kind)
    offsets: list[int | None] = []
    keys: list[str] = []
    items: list[str | None] = []
    for value in values:
        if value is None:
            offsets.append(None)  # a null in the offsets is a null map
            continue
        offsets.append(len(keys))
        keys += value
        items += value.values()
    offsets.append(len(keys))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), pa.array(items, pa.string())
    )
