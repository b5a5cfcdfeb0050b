"""
All that a message says, section by section, as JSON can say it: what a person who looks at one message is shown.

=========================  ===============================================================================
in the object              is
=========================  ===============================================================================
``header`` …               the sections of section 3.2 of AMQP 1.0, by the names of their fields; what a
                           section or field is not there for is left out
``body``                   its kind, its bytes as text or in base64, cut where they are very many
``malformed``              why some of it cannot be read, or is not; None mostly
=========================  ===============================================================================

Values are as ``json_object.plain`` has them. A message is a stranger's: what would take too long to decode is not, and
what is said of it is bounded, however large it is.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from amqp_ext.codec import CodecError, decode
from amqp_ext.message.erased import ERASED_TIME
from amqp_ext.message.json_object import plain
from amqp_ext.message.sections import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    TooMuchWork,
    properties,
    walk,
)
from amqp_ext.message.sections.work import NESTED_BYTE_STEPS, SMALL_BYTES, WIDE_FORM, check_decoding

MOST_BODY_BYTES: Final = 256 * 1024
"""Bytes of a body that are shown; the others are told of by their number."""

MOST_SECTION_BYTES: Final = 256 * 1024
"""Bytes of a section that is shown at all."""

MOST_STEPS: Final = 100_000
"""Steps (``amqp_ext.message.sections.work``) of decoding one message: some 10 ms."""

MOST_SECTIONS: Final = 1_000
"""Sections that a message is looked through for."""

MOST_BRIEF_BYTES: Final = 2_048
"""Bytes of a properties section that is looked at for a list."""

MOST_BRIEF_TEXT: Final = 250
"""Characters of a property in a list."""

BodyKind = Literal["data", "sequence", "value", "none"]

_ERASED: Final = ERASED_TIME.encode()
PROPERTIES_SECTION: Final = b"\x00\x53\x73"
"""How the section begins, as everybody spells it."""


_EMPTY_LIST: Final = 0x45
_SHORT_LIST: Final = 0xC0
_NULL: Final = 0x40
_TEXT: Final = 0xA1
_SYMBOL: Final = 0xA3
_WIDTHS: Final = {
    _NULL: 1,
    0x43: 1,
    0x44: 1,
    0x53: 2,
    0x80: 9,
    0x83: 9,
    0x98: 17,
    0xA0: 0,
    _TEXT: 0,
    _SYMBOL: 0,
}
"""Bytes that a value takes, by its format code; 0: the second byte says it."""

_CORRELATION_ID: Final = 5
_CONTENT_TYPE: Final = 6
"""Places in the properties section."""

_FIELDS: Final = {
    HEADER: ("durable", "priority", "ttl", "firstAcquirer", "deliveryCount"),
    PROPERTIES: (
        "messageId",
        "userId",
        "to",
        "subject",
        "replyTo",
        "correlationId",
        "contentType",
        "contentEncoding",
        "absoluteExpiryTime",
        "creationTime",
        "groupId",
        "groupSequence",
        "replyToGroupId",
    ),
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
    """Whether the content is a marker in the place of what was erased (``amqp_ext.message.erased``)."""
    return content.find(_ERASED, 0, bare) >= 0


def brief(content: bytes, bare: int) -> tuple[str | None, str | None]:
    """
    The content-type and the correlation-id of a message, for a list; None where it says none, or in a spelling that
    nobody uses.

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
    The same of a section that is spelled as usual, short, with texts.

    Raises:
        IndexError, KeyError, UnicodeDecodeError: It is not.
    """
    if content[bare + 3] == _EMPTY_LIST:
        return None, None
    if content[bare + 3] != _SHORT_LIST:
        raise KeyError
    count, at, end = content[bare + 5], bare + 6, bare + 5 + content[bare + 4]
    correlation = None
    for field in range(min(count, _CONTENT_TYPE + 1)):
        code = content[at]
        behind = at + (_WIDTHS[code] or 2 + content[at + 1])
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
    """Those in front of and behind the body: their values as encoded, by code."""
    kind: BodyKind
    body: Sequence[bytes]
    """The bytes of each data section; for the other kinds, each section's value as it is encoded."""
    malformed: str | None


def _cut(content: bytes) -> _Parts:
    sections: dict[int, bytes] = {}
    body: list[bytes] = []
    kind: BodyKind = "none"
    malformed: str | None = None
    try:
        for count, (code, _, value, end) in enumerate(walk(content)):
            if count >= MOST_SECTIONS:
                malformed = f"more than {MOST_SECTIONS} sections are not looked through"
                break
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
    """What decoding may still take."""

    def __init__(self) -> None:
        self._left = MOST_STEPS

    def decoded(self, encoded: bytes) -> Any:
        """
        A value.

        Raises:
            CodecError: It is none, or would take too long.
        """
        form, size = encoded[0], len(encoded)
        if size > MOST_SECTION_BYTES:
            raise TooMuchWork(0, f"{size:,} bytes are too many to be shown")
        if not 0xA0 <= form < 0xC0:
            if size > SMALL_BYTES and WIDE_FORM <= form < 0xE0:
                self._left -= check_decoding(encoded, 0, self._left)
            else:
                self._left -= size * NESTED_BYTE_STEPS
        if self._left < 0:
            raise TooMuchWork(0, "decoding it takes too long")
        return decode(encoded)[0]


def sections_of(content: bytes) -> dict[str, Any]:
    """What a message says; see above. Whatever the bytes are, this returns."""
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
    """What is in the first of them, some of it if that is much."""
    found: list[bytes] = []
    left = most
    for part in parts:
        found.append(part[:left])
        left -= len(found[-1])
        if left <= 0:
            break
    return b"".join(found)


def _shown(body: bytes, size: int) -> dict[str, Any]:
    """Bytes as text where they are some, else in base64."""
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
    The body as a file: what is in its data sections, or in a value that is text or binary; of any other the value, or
    the values of a sequence's sections, as encoded. All of the bare message where that cannot be read.

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
