"""
A message as an object of JSON, as `rewind tail --json` prints it and `GET /v1/log` sends it.

=====================  ==================================================================================
in the object          is
=====================  ==================================================================================
``offset``             the message's place in its log; with ``replayId``, ``enqueuedTime``, ``topic``
``replayEnd``          true on the last message before live
``annotations``        those that came with the message
``messageId`` …        what its properties section has, as far as programs ask for it
``properties``         its application properties
``bodyType``           ``data``, ``value`` or ``sequence``; ``body`` has what is in it
``malformed``          why it cannot be read; ``body`` then has all of the bare message
=====================  ==================================================================================

``message_of`` (``amqp_ext.message.json_message``) makes a message of such an object.
"""

from __future__ import annotations

import base64
import math
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from amqp_ext.codec import CodecError, Described, Symbol, Timestamp, decode
from amqp_ext.message.sections import (
    application_properties,
    bare_offset,
    body,
    message_annotations,
    properties,
)

SEQUENCE_NUMBER: Final = "x-opt-sequence-number"
ENQUEUED_TIME: Final = "x-opt-enqueued-time"
REPLAY_ID: Final = "x-opt-replay-id"
REPLAY_END: Final = "x-opt-replay-end"
TOPIC: Final = "x-opt-topic"

SAID_ELSEWHERE: Final = {SEQUENCE_NUMBER, ENQUEUED_TIME, REPLAY_ID, REPLAY_END, TOPIC, "x-opt-offset"}
"""Annotations that have a place of their own in the object."""


def iso(time_ms: int) -> str:
    """
    A time as RFC 3339 has it, to the millisecond, in UTC.

    Raises:
        ValueError, OverflowError, OSError: No calendar has it: AMQP's times are any 64-bit number.
    """
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def plain(value: Any) -> Any:
    """
    An AMQP value as JSON can say it: times as RFC 3339, or in ms where no calendar has them; binary as text, or
    ``{"base64": …}`` where it is none; numbers that JSON does not have as text.
    """
    if isinstance(value, Timestamp):
        try:
            return iso(int(value))
        except (ValueError, OverflowError, OSError):
            return int(value)
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return as_base64(value)
    if isinstance(value, Described):
        return {"descriptor": plain(value.descriptor), "value": plain(value.value)}
    if isinstance(value, dict):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Symbol | str):
        return str(value)
    return repr(value)


def as_base64(value: bytes) -> dict[str, str]:
    """Bytes as JSON can say them."""
    return {"base64": base64.b64encode(value).decode("ascii")}


def as_object(content: bytes) -> dict[str, Any]:
    """
    A delivered message as an object of JSON; what it does not have is left out.

    The gateway keeps what it was sent, bit for bit, and so does not look behind the first section of the bare message:
    where the rest cannot be read, ``malformed`` says why, and the body is all of it.

    Raises:
        amqp_ext.codec.CodecError: It is no AMQP message.
    """
    bare = bare_offset(content)
    annotations = {str(key): value for key, value in message_annotations(content).items()} if bare else {}
    found: dict[str, Any] = {
        "offset": plain(annotations.get(SEQUENCE_NUMBER)),
        "replayId": plain(annotations.get(REPLAY_ID)),
        "enqueuedTime": plain(annotations.get(ENQUEUED_TIME)),
        "topic": plain(annotations.get(TOPIC)),
        "replayEnd": True if annotations.get(REPLAY_END) else None,
        "annotations": plain({key: item for key, item in annotations.items() if key not in SAID_ELSEWHERE})
        or None,
    }
    return {key: item for key, item in found.items() if item is not None} | said_by_publisher(content[bare:])


def said_by_publisher(content: bytes) -> dict[str, Any]:
    """The part of the object that the bare message says."""
    try:
        found = _sections(content)
    except CodecError as error:
        found = {"malformed": str(error), "body": as_base64(content)}
    return {key: item for key, item in found.items() if item is not None or key == "body"}


def _sections(content: bytes) -> dict[str, Any]:
    described = properties(content)
    kind, parts = body(content)
    return {
        "messageId": plain(described.message_id),
        "correlationId": plain(described.correlation_id),
        "subject": described.subject,
        "replyTo": described.reply_to,
        "contentType": described.content_type,
        "groupId": described.group_id,
        "properties": plain(application_properties(content)) or None,
        "bodyType": kind,
        "body": _body(kind, parts),
    }


def _body(kind: str, parts: tuple[bytes, ...]) -> Any:
    if kind == "data":
        return plain(b"".join(parts))
    # Each part is a section as it was encoded: a descriptor and its value.
    values = [decode(part)[0] for part in parts]
    inner = [plain(value.value if isinstance(value, Described) else value) for value in values]
    return inner[0] if kind == "value" else inner
