"""
Back to AMQP: ``df.write.format("rewind").option("topic", ...).mode("append").save()`` publishes every row, and
``df.writeStream.format("rewind")`` every row of a stream.

The columns are those of the log, by name. ``body`` is needed, the other columns of a message are sent if they are
there, and those that only a log can give (``offset``, ``enqueuedTime``, ...) are ignored. So rows that were read can
be written again, in two lines.

Invariant: ``write`` returns after the broker has accepted every row of its partition. The broker may have got some
rows twice (a lost connection, a task that Spark repeats): receivers drop duplicates by message-id, which is
``messageId``, or ``replayId`` where that is null.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from amqp_ext.codec import CodecError, Described, Symbol, encode
from amqp_ext.message import sections
from spark_bridge.amqp_client.links import Sender
from spark_bridge.amqp_client.wire import Broker, Wire
from spark_bridge.columns.single_message import PROPERTY_AT
from spark_bridge.errors import OptionError, SchemaError
from spark_bridge.options import parse
from store.archive.columns import COLUMNS
from store.archive.errors import ConnectionFailed

TRIES = 6  # connections in a row on which no row was accepted, after which the task fails
PAUSE = 0.2  # seconds before the second of them; doubled each time
_WITH_URL = ("url", "messageVpn", "user", "passwordFile", "tlsCa")
TO = 2  # the place of a message's address in its properties (AMQP 1.0, 3.2.4)
_ENCODED = {"value": sections.AMQP_VALUE, "sequence": sections.AMQP_SEQUENCE}
"""Kinds of bodies whose column has the encoded sections."""
_OF_A_MESSAGE = ("body", "bodyType", "topic", "properties", *PROPERTY_AT, "replayId")
"""The columns that are sent; only a log can give the others."""


@dataclass
class Written(WriterCommitMessage):
    """How many messages the broker accepted from one partition."""

    accepted: int


class LogWriter(DataSourceArrowWriter):
    """Publishes a DataFrame. Options: ``url`` and its login, ``topic`` (default: each row's own)."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """
        Raises:
            OptionError: An option is wrong.
            SchemaError: A column is wrong.
        """
        self._broker, self._address = _target(given)
        if overwrite:
            raise OptionError(
                'A log cannot be overwritten; use mode("append"), a stream outputMode("append").'
            )
        _check(schema, needs_topic=self._address is None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish one partition, unsettled, in order; Spark may call it again for the same rows."""
        accepted = 0
        wire: Wire | None = None
        try:
            for batch in iterator:
                messages = encoded(batch, self._address)
                done = tries = 0
                while done < len(messages):
                    sent = [0]
                    try:
                        if wire is None:
                            wire = Wire(self._broker)
                        sender = Sender(wire, self._address)
                        sender.send(messages[done:], sent.append)
                        sender.detach()
                        done = len(messages)
                    except ConnectionFailed:
                        if wire is not None:
                            wire.close()
                            wire = None
                        done += sent[-1]
                        tries = 0 if sent[-1] else tries + 1
                        if tries == TRIES:
                            raise
                        time.sleep(PAUSE * 2**tries)
                accepted += len(messages)
        finally:
            if wire is not None:
                wire.close()
        return Written(accepted)


class LogStreamWriter(DataSourceStreamArrowWriter):
    """
    Publishes each micro-batch of a stream: ``df.writeStream.format("rewind")``. A batch that Spark repeats after a
    failure is published again, so this is at least once, too.
    """

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish one partition of a micro-batch."""
        return self._writer.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the broker has accepted every row by now."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: published messages stay, and are published again with the batch."""


def _target(given: Mapping[str, str]) -> tuple[Broker, str | None]:
    topic: str | None = None
    rest: dict[str, str] = {}
    allowed = {name.lower() for name in _WITH_URL}
    for name, value in given.items():
        if name.lower() == "topic":
            topic = value.strip()
        elif name.lower() in allowed:
            rest[name] = value
        else:
            raise OptionError(
                f"Option {name} is not an option of a writer; the options are topic, {', '.join(_WITH_URL)}."
            )
    options = parse(rest)
    if len(options.addresses) > 1:
        raise OptionError("Option url names several brokers; a writer has one.")
    if topic == "":
        raise OptionError("Option topic is empty; give a topic, or an address such as queue://orders.")
    return options.broker, None if topic is None else _address(topic)


def _address(topic: str) -> str:
    return topic if "://" in topic else f"topic://{topic}"


def _check(schema: StructType, *, needs_topic: bool) -> None:
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    problems = [
        f"There is no column {name}; there are {', '.join(COLUMNS)}." for name in kinds if name not in COLUMNS
    ]
    if "body" not in kinds:
        problems.append("The column body is missing: a message needs one.")
    if needs_topic and "topic" not in kinds:
        problems.append("Neither the option topic nor a column topic says where to publish.")
    for name, kind in kinds.items():
        wanted = {COLUMNS[name]} | ({"string"} if name == "body" else set()) if name in COLUMNS else {kind}
        if kind not in wanted:
            problems.append(f"Column {name} is {kind}; it has to be {' or '.join(sorted(wanted))}.")
    if problems:
        raise SchemaError(" ".join(problems))


def encoded(batch: pa.RecordBatch, address: str | None) -> list[bytes]:
    """The rows as encoded messages; if there is an address, the column topic is ignored."""
    columns = {
        name: batch.column(name).to_pylist()
        for name in _OF_A_MESSAGE
        if name in batch.schema.names and (name != "topic" or address is None)
    }
    return [_message(dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def _message(row: Mapping[str, Any]) -> bytes:
    """One message (AMQP 1.0, 3.2); the column of a body of values or sequences has the encoded sections."""
    fields: list[Any] = [None] * (max(PROPERTY_AT.values()) + 1)
    for name, place in PROPERTY_AT.items():
        fields[place] = row.get(name)
    fields[PROPERTY_AT["messageId"]] = row.get("messageId") or row.get("replayId")
    topic, content_type, body, body_type = map(row.get, ("topic", "contentType", "body", "bodyType"))
    if topic is not None:
        fields[TO] = _address(topic)
    if content_type is not None:
        fields[PROPERTY_AT["contentType"]] = _symbol(content_type)
    front = encode(Described(sections.PROPERTIES, fields))
    if row.get("properties"):
        front += encode(Described(sections.APPLICATION_PROPERTIES, dict(row["properties"])))
    content = body.encode() if isinstance(body, str) else bytes(body or b"")
    if body_type in _ENCODED:
        _check_encoded(content, body_type)
        return front + content
    return front + encode(Described(sections.DATA, content))


def _symbol(content_type: str) -> Symbol:
    if not content_type.isascii():
        raise SchemaError(f"The contentType {content_type!r} is not valid: AMQP permits only ASCII there.")
    return Symbol(content_type)


def _check_encoded(content: bytes, body_type: str) -> None:
    """Check that the body is encoded sections, as a log gives it; else nobody could read the message."""
    try:
        codes = [code for code, _, _ in sections.split(content)]
    except CodecError:
        codes = []
    wanted = _ENCODED[body_type]
    if set(codes) != {wanted} or (len(codes) > 1 and wanted == sections.AMQP_VALUE):
        raise SchemaError(
            f"A row with bodyType {body_type} has a body that is not an encoded AMQP {body_type}, as the log "
            "gives it; leave the column bodyType out to send bytes."
        )
