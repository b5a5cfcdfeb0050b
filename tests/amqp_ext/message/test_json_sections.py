"""All that a message says as JSON: by hand, and for any bytes."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amqp_ext.codec import Symbol, Timestamp, UByte, UInt, ULong
from amqp_ext.message.annotations import erased
from amqp_ext.message.json_message import plain
from amqp_ext.message.json_rows import (
    MOST_BODY_BYTES,
    MOST_BRIEF_BYTES,
    MOST_BRIEF_TEXT,
    body_bytes,
    brief,
    is_erased,
    sections_of,
)
from amqp_ext.message.sections import bare_offset, properties
from tests.amqp_ext.message.test_json import FIELDS
from tests.amqp_ext.test_codec import VALUES
from tests.support.messages import (
    APPLICATION_PROPERTIES,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    data,
    section,
)

FRONT = section(HEADER, [True, UByte(7), UInt(1_000)]) + section(
    MESSAGE_ANNOTATIONS, {Symbol("x-opt-a"): Timestamp(0)}
)
SAID = section(
    PROPERTIES,
    ["id", b"ann", "to", "about", "back", UUID(int=1), Symbol("application/json"), None, Timestamp(1_000)],
) + section(APPLICATION_PROPERTIES, {"n": 1, "raw": b"\xff"})


def test_every_section_has_its_place() -> None:
    """By the names of its fields; what is not said is left out."""
    found = sections_of(FRONT + SAID + data('{"a":1}') + section(FOOTER, {Symbol("sum"): 3}))
    assert found == {
        "header": {"durable": True, "priority": 7, "ttl": 1_000},
        "messageAnnotations": {"x-opt-a": "1970-01-01T00:00:00.000Z"},
        "properties": {
            "messageId": "id",
            "userId": "ann",
            "to": "to",
            "subject": "about",
            "replyTo": "back",
            "correlationId": str(UUID(int=1)),
            "contentType": "application/json",
            "absoluteExpiryTime": "1970-01-01T00:00:01.000Z",
        },
        "applicationProperties": {"n": 1, "raw": {"base64": "/w=="}},
        "footer": {"sum": 3},
        "body": {
            "kind": "data",
            "contentType": "application/json",
            "text": '{"a":1}',
            "base64": None,
            "isCut": False,
            "size": 7,
        },
        "malformed": None,
    }


@pytest.mark.parametrize(
    ("encoded", "kind", "text", "raw"),
    [
        (data("a") + data("b"), "data", "ab", b"ab"),
        (section(VALUE, "text"), "value", "text", b"text"),
        (section(VALUE, "t" * 300), "value", "t" * 300, b"t" * 300),
        (section(VALUE, b"bytes"), "value", "bytes", b"bytes"),
        (section(VALUE, {"a": [1, None]}), "value", '{"a": [1, null]}', None),
        (section(SEQUENCE, [1]) + section(SEQUENCE, ["x"]), "sequence", '[[1], ["x"]]', None),
        (section(PROPERTIES, ["id"]), "none", "", b""),
    ],
)
def test_a_body_is_shown_as_what_it_is(encoded: bytes, kind: str, text: str, raw: bytes | None) -> None:
    """Text as itself, other values as JSON; as a file, text and bytes are themselves."""
    body = sections_of(encoded)["body"]
    assert (body["kind"], body["text"], body["base64"]) == (kind, text, None)
    if raw is not None:
        assert body_bytes(encoded, 0) == raw
        assert body["size"] in (len(raw), len(raw) + 2, len(raw) + 5)


def test_a_long_body_is_cut() -> None:
    """At a character of text; its size is told all the same."""
    long = "\N{EURO SIGN}" * MOST_BODY_BYTES
    body = sections_of(data(long))["body"]
    assert body["isCut"]
    assert body["size"] == 3 * MOST_BODY_BYTES
    assert body["text"] == long[: MOST_BODY_BYTES // 3]
    binary = sections_of(data(b"\xff" * (MOST_BODY_BYTES + 1)))["body"]
    assert (binary["text"], binary["isCut"]) == (None, True)
    assert base64.b64decode(binary["base64"]) == b"\xff" * MOST_BODY_BYTES


def test_what_cannot_be_read_is_said() -> None:
    """What comes before it is shown; a file of it is all of the bare message."""
    broken = FRONT + SAID + b"\x00\x53\x75\xa0\xffshort"
    found = sections_of(broken)
    assert found["properties"]["subject"] == "about"
    assert "only 5 are left" in found["malformed"]
    assert body_bytes(broken, len(FRONT)) == broken[len(FRONT) :]


@pytest.mark.parametrize(
    "make",
    [
        lambda: section(APPLICATION_PROPERTIES, {f"{i}": i for i in range(100_000)}) + data(1),
        lambda: section(VALUE, [[i] for i in range(100_000)]),
        lambda: section(APPLICATION_PROPERTIES, {"n": "x" * 1_000_000}) + data(1),
        lambda: data(b"") * 100_000,
        lambda: section(VALUE, [b""] * 60_000),
    ],
)
def test_a_message_is_shown_soon_however_it_is_made(make: Callable[[], bytes]) -> None:
    """What would take long is left out, and that is said; the text for it is bounded."""
    content = make()
    began = time.process_time()
    found = sections_of(content)
    assert time.process_time() - began < 0.2
    assert found["malformed"] is not None
    assert len(json.dumps(found)) < 3 * MOST_BODY_BYTES


@given(st.one_of(st.binary(max_size=200), VALUES.map(lambda value: section(VALUE, value))))
@example(b"")
@example(section(PROPERTIES, [1, 2, 3, 4, 5, 6, 7]) + data(1))
@example(section(HEADER, ["x"] * 9) + data(1))
def test_any_bytes_are_shown_somehow(content: bytes) -> None:
    """It says what it can, as JSON, and never fails."""
    json.dumps(sections_of(content), allow_nan=False).encode()
    body_bytes(content, 0)
    brief(content, 0)


@given(FIELDS)
def test_what_a_list_says_is_what_the_section_says(fields: list[object]) -> None:
    """Read where it stands, or decoded: the same, in whatever form the fields come."""
    content = section(PROPERTIES, fields) + data(1)
    found = properties(content)
    wanted = plain(found.correlation_id)
    if isinstance(wanted, dict):
        wanted = wanted["base64"]
    expected = (
        None if found.content_type is None else str(found.content_type)[:MOST_BRIEF_TEXT],
        None if wanted is None else str(wanted)[:MOST_BRIEF_TEXT],
    )
    assert brief(content, 0) == expected or len(content) > MOST_BRIEF_BYTES


def test_a_list_says_little_of_it() -> None:
    """Its content-type and correlation-id, cut; and whether it was erased."""
    content = FRONT + SAID + data(1)
    bare = bare_offset(content)
    assert brief(content, bare) == ("application/json", str(UUID(int=1)))
    assert brief(data(1), 0) == (None, None)
    long = section(PROPERTIES, [None, None, None, None, None, "c" * 900]) + data(1)
    assert brief(long, 0) == (None, "c" * MOST_BRIEF_TEXT)
    longer = section(PROPERTIES, [None, None, None, "s" * 5_000, None, ULong(1)]) + data(1)
    assert brief(longer, 0) == (None, None)
    raw = section(PROPERTIES, [None, None, None, None, None, b"\xff"]) + data(1)
    assert brief(raw, 0) == (None, "/w==")

    assert not is_erased(content, bare)
    assert is_erased(*erased(content, bare, 1, "why"))
    assert not is_erased(FRONT + data("x-opt-erased-time"), len(FRONT))
