"""
A message as an object of JSON, written and read: as ``rewind tail --json`` prints it, ``GET /v1/log`` gives it and
``POST /v1/publish`` takes it.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn
from uuid import UUID

from amqp_ext.codec import CodecError, Described, Symbol, Timestamp, ULong, decode, encode
from amqp_ext.message.sections import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Header,
    Properties,
    application_properties,
    bare_offset,
    body,
    message_annotations,
    properties,
)
from amqp_ext.replay_start import date_text

SEQUENCE_NUMBER: Final = "x-opt-sequence-number"
ENQUEUED_TIME: Final = "x-opt-enqueued-time"
REPLAY_ID: Final = "x-opt-replay-id"
REPLAY_END: Final = "x-opt-replay-end"
TOPIC: Final = "x-opt-topic"


def field_names(section: type[Header | Properties]) -> dict[str, str]:
    """The fields of a section that is a list, in order, and their names in JSON."""
    fields = [
        (field.name, field.name.removesuffix("_ms").split("_")) for field in dataclasses.fields(section)
    ]
    return {field: words[0] + "".join(map(str.capitalize, words[1:])) for field, words in fields}


_NAMES_OF: Final = field_names(Properties)
_SHOWN: Final = ("message_id", "correlation_id", "subject", "reply_to", "content_type", "group_id")
"""The fields of the properties that are in the object."""

SAID_ELSEWHERE: Final = {SEQUENCE_NUMBER, ENQUEUED_TIME, REPLAY_ID, REPLAY_END, TOPIC, "x-opt-offset"}
"""Annotations that have a place of their own in the object."""


def plain(value: Any) -> Any:
    """
    An AMQP value as a value of JSON: times as RFC 3339, or in ms where no calendar has them; binary as text, or
    ``{"base64": …}`` where it is no text; numbers that JSON does not have as text.
    """
    if isinstance(value, Timestamp):
        try:
            return date_text(value)
        except OverflowError:
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
    if isinstance(value, str):
        return str(value)
    return repr(value)


def as_base64(value: bytes) -> dict[str, str]:
    """Bytes as an object of JSON."""
    return {"base64": base64.b64encode(value).decode("ascii")}


def as_object(content: bytes) -> dict[str, Any]:
    """
    A delivered message as an object of JSON, without the fields that the message does not have.

    The gateway keeps a message bit for bit, and does not read beyond the first section of the bare message. So the bare
    message may be malformed: then ``malformed`` says why, and the body is the whole bare message.

    Raises:
        amqp_ext.codec.CodecError: The content is no AMQP message.
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
    """The part of the object that comes from the bare message."""
    try:
        found = _sections(content)
    except CodecError as error:
        found = {"malformed": str(error), "body": as_base64(content)}
    return {key: item for key, item in found.items() if item is not None or key == "body"}


def _sections(content: bytes) -> dict[str, Any]:
    described = properties(content)
    kind, parts = body(content)
    return {
        **{_NAMES_OF[field]: plain(getattr(described, field)) for field in _SHOWN},
        "properties": plain(application_properties(content)) or None,
        "bodyType": kind,
        "body": _body_values(kind, parts),
    }


def _body_values(kind: str, parts: tuple[bytes, ...]) -> Any:
    if kind == "data":
        return plain(b"".join(parts))
    # Each part is a section as it was encoded: a descriptor and its value.
    values = [decode(part)[0] for part in parts]
    inner = [plain(value.value if isinstance(value, Described) else value) for value in values]
    return inner[0] if kind == "value" else inner


SAID_BY_GATEWAY: Final = frozenset({"offset", "replayId", "enqueuedTime", "topic", "replayEnd"})
"""Names in an object that say where a message was in a log; they are ignored when it is sent."""

PLACES: Final = {_NAMES_OF[field]: list(_NAMES_OF).index(field) for field in _SHOWN}
"""Their places in the properties section (AMQP 1.0 section 3.2.4)."""

_IDS: Final = ("messageId", "correlationId")
_SYMBOLS: Final = ("contentType",)
_NAMES: Final = frozenset(
    {*PLACES, *SAID_BY_GATEWAY, "annotations", "properties", "bodyType", "body", "malformed"}
)
_DURABLE: Final = b"\x00\x53\x70\xc0\x02\x01\x41"
_LONGS: Final = range(-(2**63), 2**63)
_ULONG_MAX: Final = 2**64 - 1


class MessageFormError(ValueError):
    """A text or value is no message in JSON; the error's text is one sentence."""


def message_of_line(line: bytes) -> bytes:
    """
    The message in a line of JSON, as AMQP encodes it; it is durable.

    Raises:
        MessageFormError: The line is not a message.
    """
    try:
        found = json.loads(line, parse_constant=_no_number)
    except RecursionError:
        raise MessageFormError("The line is nested too deep.") from None
    except ValueError as error:  # bytes that are not UTF-8 raise it, too
        raise MessageFormError(f"The line is not JSON: {str(error)[:200]}.") from None
    return message_of(found)


def message_of(found: Any) -> bytes:
    """
    The same for a line that was decoded.

    Raises:
        MessageFormError: The value is not a message.
    """
    if not isinstance(found, Mapping):
        raise MessageFormError('A message is an object, such as {"body": "text"}.')
    unknown = next((name for name in found if name not in _NAMES), None)
    if unknown is not None:
        raise MessageFormError(
            f"{unknown[:80]!r} is not a field of a message; the fields are: {', '.join(sorted(_NAMES))}."
        )
    if "malformed" in found:
        # It was shown as its bytes, and is sent as these.
        return _bytes_of("body", found.get("body"))
    try:
        return b"".join(
            (
                _DURABLE,
                _map(MESSAGE_ANNOTATIONS, "annotations", found.get("annotations"), _key),
                _properties(found),
                _map(APPLICATION_PROPERTIES, "properties", found.get("properties"), str),
                _encoded_body(found.get("bodyType"), found.get("body", "")),
            )
        )
    except CodecError as error:
        raise MessageFormError(f"The message cannot be encoded in AMQP: {error.reason[:200]}.") from None
    except RecursionError:
        raise MessageFormError("The message is nested too deep.") from None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")


def _section(code: int, value: bytes) -> bytes:
    return b"\x00\x53%c%s" % (code, value)


def _map(code: int, name: str, found: Any, key_of: Callable[[str], str]) -> bytes:
    if found is None:
        return b""
    if not isinstance(found, dict):
        raise MessageFormError(f"`{name}` is an object.")
    return _section(code, encode({key_of(key): _value(item) for key, item in found.items()}))


def _key(key: str) -> str:
    return Symbol(key) if key.isascii() else key


def _properties(found: Mapping[str, Any]) -> bytes:
    fields: list[Any] = []
    for name, place in PLACES.items():
        value = found.get(name)
        if value is None:
            continue
        fields += [None] * (place + 1 - len(fields))
        fields[place] = _id_of(name, value) if name in _IDS else _text_of(name, value)
    return _section(PROPERTIES, encode(fields)) if fields else b""


def _id_of(name: str, value: Any) -> Any:
    if _is_ulong(value):
        return ULong(value)
    return _text_of(name, value) if isinstance(value, str) else _bytes_of(name, value)


def _text_of(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise MessageFormError(f"`{name}` is a text.")
    return Symbol(value) if name in _SYMBOLS and value.isascii() else value


def _bytes_of(name: str, value: Any) -> bytes:
    found = _from_base64(value)
    if found is None:
        raise MessageFormError(f'`{name}` is a text, or bytes as {{"base64": …}}.')
    return found


def _encoded_body(kind: Any, body: Any) -> bytes:
    if kind is None:
        kind = "data" if isinstance(body, str) or _is_base64(body) else "value"
    if kind == "data":
        return _section(DATA, encode(_utf8(body) if isinstance(body, str) else _bytes_of("body", body)))
    if kind == "value":
        return _section(AMQP_VALUE, encode(_value(body)))
    if kind == "sequence":
        if not isinstance(body, list) or not body or not all(isinstance(part, list) for part in body):
            raise MessageFormError("The `body` of a sequence is a list of lists, one for each section.")
        return b"".join(_section(AMQP_SEQUENCE, encode(_value(part))) for part in body)
    raise MessageFormError(f"`bodyType` is data, value or sequence, not {kind!r:.80}.")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise MessageFormError("The `body` has half of a surrogate pair, which is not valid text.") from None


def _is_base64(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str)


def _from_base64(value: Any) -> bytes | None:
    """The bytes of an object that ``as_base64`` made; None for any other value."""
    try:
        return base64.b64decode(value["base64"], validate=True) if _is_base64(value) else None
    except ValueError:
        return None


def _value(value: Any) -> Any:
    """A value of JSON as the codec takes it."""
    if isinstance(value, dict):
        if (content := _from_base64(value)) is not None:
            return content
        if value.keys() == {"descriptor", "value"} and _is_descriptor(value["descriptor"]):
            return Described(value["descriptor"], _value(value["value"]))
        return {key: _value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_value(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and value not in _LONGS:
        return ULong(value)
    return value


def _is_descriptor(value: Any) -> bool:
    return value.isascii() if isinstance(value, str) else _is_ulong(value)


def _is_ulong(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _ULONG_MAX
