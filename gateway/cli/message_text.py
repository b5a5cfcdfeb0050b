"""Messages as people and programs read them: a line of text, or an object of JSON."""

from __future__ import annotations

import base64
import json
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
            return _base64(value)
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


def _base64(value: bytes) -> dict[str, str]:
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
    try:
        said = _said_by_publisher(content)
    except CodecError as error:
        said = {"malformed": str(error), "body": _base64(content[bare:])}
    found: dict[str, Any] = {
        "offset": plain(annotations.get(SEQUENCE_NUMBER)),
        "replayId": plain(annotations.get(REPLAY_ID)),
        "enqueuedTime": plain(annotations.get(ENQUEUED_TIME)),
        "topic": plain(annotations.get(TOPIC)),
        "replayEnd": True if annotations.get(REPLAY_END) else None,
        "annotations": plain({key: item for key, item in annotations.items() if key not in SAID_ELSEWHERE})
        or None,
    } | said
    return {key: item for key, item in found.items() if item is not None or key == "body"}


def _said_by_publisher(content: bytes) -> dict[str, Any]:
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


def as_line(content: bytes) -> str:
    """
    A delivered message on one line: offset, arrival, topic, what names it, and its body.

    Raises:
        amqp_ext.codec.CodecError: It is no AMQP message.
    """
    found = as_object(content)
    pieces = [f"#{found['offset']}" if "offset" in found else "#-"]
    pieces += [str(found[key]) for key in ("enqueuedTime", "topic") if key in found]
    pieces += [f"{key}={_text(found[key])}" for key in ("messageId", "subject") if key in found]
    if "malformed" in found:
        pieces.append(f"malformed: {found['malformed']}:")
    pieces += [f"{key}={_text(value)}" for key, value in found.get("properties", {}).items()]
    return _one_line(" ".join([*pieces, _text(found["body"])]))


def _text(value: Any) -> str:
    """As itself where it is text, else as JSON has it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _one_line(text: str) -> str:
    """Nothing of a message, not its topic nor the name of a property, ends the line or steers the terminal."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )
