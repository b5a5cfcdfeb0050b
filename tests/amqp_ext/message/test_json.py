"""Messages as JSON: as a line that can be published again, and by their sections."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amqp_ext.codec import CodecError, Symbol, Timestamp, UByte, UInt, ULong, decode
from amqp_ext.message.annotations import OURS, Splicer, erased
from amqp_ext.message.json_message import (
    SAID_ELSEWHERE,
    MessageFormError,
    as_object,
    message_of,
    message_of_line,
    plain,
)
from amqp_ext.message.json_rows import (
    MOST_BODY_BYTES,
    MOST_BRIEF_BYTES,
    MOST_BRIEF_TEXT,
    JsonRows,
    body_bytes,
    brief,
    is_erased,
    sections_of,
)
from amqp_ext.message.sections import bare_offset, properties
from tests.amqp_ext.test_codec import SYMBOLS, TEXT, VALUES
from tests.support.chance import times
from tests.support.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    data,
    section,
)

# --- Lines of JSON: many at a time as one by one, published again, bounded --------------------------------------------

GENERATION = 0x1234567890ABCDEF
OURS_TOO = OURS | SAID_ELSEWHERE

IDS = st.one_of(st.none(), TEXT, st.binary(max_size=20), st.integers(0, 2**64 - 1).map(ULong), st.uuids())
TEXTS = st.one_of(st.none(), TEXT)
TIMES = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1).map(Timestamp))
USUAL = st.one_of(
    TEXT,
    st.booleans(),
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    TIMES,
    st.binary(max_size=9),
)
FIELDS = st.tuples(
    IDS, st.one_of(st.none(), st.binary(max_size=9)), TEXTS, TEXTS, TEXTS, IDS,
    st.one_of(st.none(), SYMBOLS), st.one_of(st.none(), SYMBOLS), TIMES, TIMES, TEXTS,
).map(list)  # fmt: skip
"""The fields of the properties section, up to the group-id."""
BODIES = st.one_of(
    st.binary(max_size=600).map(data),
    TEXT.map(data),
    st.lists(st.binary(max_size=9), min_size=2, max_size=3).map(lambda each: b"".join(map(data, each))),
    VALUES.map(lambda value: section(VALUE, value)),
    st.text(st.characters(codec="utf-8"), max_size=600).map(lambda text: section(VALUE, text)),
    st.lists(st.lists(VALUES, max_size=3), min_size=1, max_size=2).map(
        lambda each: b"".join(section(SEQUENCE, one) for one in each)
    ),
)


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """Messages of every kind."""
    keys = SYMBOLS.filter(lambda key: key not in OURS_TOO)
    parts = [
        draw(st.sampled_from([b"", section(HEADER, [True]), section(HEADER, [])])),
        draw(
            st.one_of(
                st.just(b""),
                st.dictionaries(keys, VALUES, max_size=2).map(lambda a: section(MESSAGE_ANNOTATIONS, a)),
            )
        ),
        draw(st.one_of(st.just(b""), FIELDS.map(lambda fields: section(PROPERTIES, fields)))),
        draw(
            st.one_of(
                st.just(b""),
                st.dictionaries(TEXT, st.one_of(USUAL, VALUES), max_size=4).map(
                    lambda found: section(APPLICATION_PROPERTIES, found)
                ),
            )
        ),
        draw(BODIES),
        draw(st.sampled_from([b"", b"", section(FOOTER, {})])),
    ]
    return b"".join(parts)


def row(content: bytes, message_id: int = 1, time_ms: int = 1_700_000_000_123, topic: str = "a/b") -> Any:
    return (message_id, time_ms, topic, bare_offset(content), 0, None, content)


class Marked(NamedTuple):
    """The name of a replay, for the messages of history below an id."""

    name: str
    below: int | None


def printed(content: bytes, number: int = 1, end_id: int | None = None, mark: str = "") -> Any:
    """What ``rewind tail --json`` prints of a message, as an object."""
    found = row(content, number)
    front = Splicer(GENERATION, replay_name=mark).fronts([found], {}, end_id)[0]
    return json.loads(json.dumps(as_object(front + content[found[3] :])))


@settings(max_examples=times(100, 5_000))
@given(
    st.lists(contents(), min_size=1, max_size=3),
    st.integers(1, 2**63 - 10),
    st.sampled_from(["", "look", '"', "ü"]),
    st.none() | st.integers(0, 4),
)
def test_the_text_of_many_is_what_is_printed_of_each(
    found: list[bytes], first: int, name: str, history: int | None
) -> None:
    """
    For any messages, ``JsonRows`` writes the same as the way through objects, in one line each. Messages of history
    have the name of the replay, as for an AMQP reader; those published after the start of the read have none.
    """
    rows = [row(content, first + at) for at, content in enumerate(found)]
    mark = Marked(name, None if history is None else first + history) if name else None
    texts = JsonRows(GENERATION, mark).texts(rows, rows[-1][0])
    for at, (one, text) in enumerate(zip(rows, texts, strict=True)):
        assert "\n" not in text
        assert "\r" not in text
        is_marked = history is None or at < history
        assert json.loads(text) == printed(one[6], one[0], rows[-1][0], mark=name if is_marked else "")


@settings(max_examples=times(100, 5_000))
@given(contents(), st.data())
@example(section(PROPERTIES, ["id"]) + data(b"x"), None)
def test_damaged_messages_are_shown_as_they_are_printed(content: bytes, draw: Any) -> None:
    """Of a damaged message ``JsonRows`` writes the same as the way through objects; both may call it malformed."""
    bare = bare_offset(content)
    if draw is not None:
        at = draw.draw(st.integers(bare, len(content) - 1))
        content = content[:at] + bytes([draw.draw(st.integers(0, 255))]) + content[at + 1 :]
        content = content[: draw.draw(st.integers(at + 1, len(content)))]
    try:
        if bare_offset(content) != bare:
            return
    except CodecError:
        return
    (text,) = JsonRows(GENERATION).texts([row(content)], None)
    found, wanted = json.loads(text), printed(content)
    if "malformed" in found and "malformed" in wanted:
        wanted["malformed"] = found["malformed"]  # of several errors, another may be found first
    assert found == wanted


@settings(max_examples=times(100, 5_000))
@given(contents())
def test_what_was_printed_can_be_published_and_prints_the_same(content: bytes) -> None:
    """JSON has fewer types than AMQP, but a printed message that is published prints the same again."""
    once = printed(content)
    assert printed(message_of_line(json.dumps(once).encode())) == once


@pytest.mark.parametrize(
    ("line", "sections"),
    [
        ('{"body":"ü"}', [(DATA, "ü".encode())]),
        ("{}", [(DATA, b"")]),
        ('{"body":{"base64":"/w=="}}', [(DATA, b"\xff")]),
        ('{"body":{"a":[1,1.5,null,true]}}', [(VALUE, {"a": [1, 1.5, None, True]})]),
        ('{"bodyType":"sequence","body":[[1],["x"]]}', [(SEQUENCE, [1]), (SEQUENCE, ["x"])]),
        ('{"messageId":7,"subject":"s","body":""}', [(PROPERTIES, [7, None, None, "s"]), (DATA, b"")]),
        ('{"properties":{"n":1},"body":""}', [(APPLICATION_PROPERTIES, {"n": 1}), (DATA, b"")]),
        ('{"annotations":{"x-opt-a":"b"},"body":""}', [(MESSAGE_ANNOTATIONS, {"x-opt-a": "b"}), (DATA, b"")]),
    ],
)
def test_a_line_becomes_the_message_that_it_says(line: str, sections: list[tuple[int, Any]]) -> None:
    """The message is durable, and each key of the line is in its section."""
    content, position, found = message_of_line(line.encode()), 0, []
    while position < len(content):
        described, position = decode(content, position)
        found.append((int(described.descriptor), described.value))
    assert found == [(HEADER, [True]), *sections]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"{", "not JSON"),
        (b'{"body":NaN}', "not a number"),
        (b"[1]", "is an object"),
        (b'{"text":"x"}', "'text' is not a field of a message"),
        (b'{"body":"\\ud800"}', "surrogate"),
        (b'{"bodyType":"value","body":"\\ud800"}', "cannot be encoded in AMQP"),
        (b'{"bodyType":"xml","body":"x"}', "data, value or sequence"),
        (b'{"bodyType":"data","body":1}', "`body` is a text"),
        (b'{"bodyType":"data","body":{"base64":"*"}}', "`body` is a text"),
        (b'{"bodyType":"sequence","body":[]}', "list of lists"),
        (b'{"bodyType":"value","body":123456789012345678901234567890}', "cannot be encoded in AMQP"),
        (b'{"messageId":-1}', "`messageId`"),
        (b'{"subject":1}', "`subject` is a text"),
        (b'{"properties":[]}', "`properties` is an object"),
        (b'{"annotations":1}', "`annotations` is an object"),
        (b'{"malformed":"so","body":"x"}', "`body` is a text"),
        (b'{"body":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too deep"),
        (b'{"body":' + b"[" * 100 + b"]" * 100 + b"}", "cannot be encoded in AMQP"),
    ],
)
def test_a_line_that_is_no_message_is_refused_with_a_sentence(line: bytes, said: str) -> None:
    """The error is one sentence that names the problem."""
    with pytest.raises(MessageFormError, match=r"\.$") as refused:
        message_of_line(line)
    assert said in str(refused.value)


def test_what_the_gateway_said_of_a_message_is_no_part_of_what_is_sent() -> None:
    """Keys that the gateway added are ignored, so output can be piped to publish; keys that are not ASCII are kept."""
    found = {"offset": 9, "replayId": "rmid1:", "enqueuedTime": "x", "topic": "t", "replayEnd": True}
    assert message_of({**found, "body": "x"}) == message_of({"body": "x"})
    content = message_of({"annotations": {"ü": 1}, "contentType": "ü/x", "body": "x"})
    assert as_object(content)["annotations"] == {"ü": 1}
    assert as_object(content)["contentType"] == "ü/x"


@pytest.mark.parametrize(
    "make",
    [
        lambda: section(SEQUENCE, [None] * 1_000_000),
        lambda: section(VALUE, {str(number): number for number in range(100_000)}),
        lambda: section(VALUE, [[[1] * 100_000]]),
        lambda: b"\x00\x53\x77\xf0\x00\x0f\x42\x44\x00\x0f\x42\x3f\x50" + bytes(999_999),
        lambda: b"\x00\x53\x75\xa0\x00" * 200_000,
        lambda: section(SEQUENCE, [1] * 20) * 20_000,
        lambda: section(APPLICATION_PROPERTIES, {str(number): None for number in range(100_000)}) + data(""),
        lambda: section(PROPERTIES, [None] * 1_000_000) + data(""),
    ],
)
def test_no_message_takes_long_to_show(make: Callable[[], bytes]) -> None:
    """A message that would take long to print is printed as its bytes, which can be published again."""
    content = make()
    rows = JsonRows(GENERATION)
    took = []
    for _ in range(3):
        began = time.process_time()
        (text,) = rows.texts([row(content)], None)
        took.append(time.process_time() - began)
    found = json.loads(text)
    assert "malformed" in found
    assert min(took) < 0.2
    assert message_of(found) == content


def test_a_text_of_control_characters_is_shown_as_bytes() -> None:
    """A control character takes six in JSON: bytes keep the line below about twice the message's size."""
    for content in (
        data(b"\x00" * 300_000),
        section(VALUE, "\x00" * 300_000),
        section(VALUE, "\x00" * 300_000) + section(FOOTER, {}),
    ):
        (text,) = JsonRows(GENERATION).texts([row(content)], None)
        assert len(text) < 2 * len(content) + 1_000
        assert set(json.loads(text)["body"]) == {"base64"}


def test_what_is_remembered_is_bounded() -> None:
    """Ever new topics, fronts and properties do not fill the memory."""
    rows = JsonRows(GENERATION)
    for first in range(0, 10_000, 500):
        rows.texts(
            [
                row(
                    section(MESSAGE_ANNOTATIONS, {Symbol("x-n"): number})
                    + section(PROPERTIES, [str(number)])
                    + data("x"),
                    number + 1,
                    topic=f"t/{number}",
                )
                for number in range(first, first + 500)
            ],
            None,
        )
    assert max(len(rows._topics), len(rows._fronts), len(rows._properties)) <= 1_024


def test_times_and_ids_of_any_size_are_written() -> None:
    """Times are right across a full second, and ids beyond 32 bits."""
    rows = [row(data("x"), 2**40 + 5, 1_999), row(data("x"), 2**40 + 6, 2_000)]
    first, second = map(json.loads, JsonRows(GENERATION).texts(rows, None))
    assert first["enqueuedTime"] == "1970-01-01T00:00:01.999Z"
    assert second["enqueuedTime"] == "1970-01-01T00:00:02.000Z"
    assert first["replayId"] == "rmid1:12345-67890abcdef-00000100-00000005"


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (-1, "1969-12-31T23:59:59.999Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, 253_402_300_800_000),
        (-(2**63), -(2**63)),
    ],
)
def test_a_time_is_written_to_the_millisecond(time_ms: int, text: str | int) -> None:
    """A time is exact as far as calendars go, and a number beyond: clients write "never" as the last millisecond."""
    assert plain(Timestamp(time_ms)) == text


# --- The sections of a message as JSON --------------------------------------------------------------------------------

FRONT = section(HEADER, [True, UByte(7), UInt(1_000)]) + section(
    MESSAGE_ANNOTATIONS, {Symbol("x-opt-a"): Timestamp(0)}
)
SAID = section(
    PROPERTIES,
    ["id", b"ann", "to", "about", "back", UUID(int=1), Symbol("application/json"), None, Timestamp(1_000)],
) + section(APPLICATION_PROPERTIES, {"n": 1, "raw": b"\xff"})


def test_every_section_has_its_place() -> None:
    """Each section is shown with the names of its fields; fields without a value are left out."""
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
    """A body is shown as text, other values as JSON; as a file, text and bytes are unchanged."""
    body = sections_of(encoded)["body"]
    assert (body["kind"], body["text"], body["base64"]) == (kind, text, None)
    if raw is not None:
        assert body_bytes(encoded, 0) == raw
        assert body["size"] in (len(raw), len(raw) + 2, len(raw) + 5)


def test_a_long_body_is_cut() -> None:
    """A long body is cut, text at a character, and its full size is given."""
    long = "\N{EURO SIGN}" * MOST_BODY_BYTES
    body = sections_of(data(long))["body"]
    assert body["isCut"]
    assert body["size"] == 3 * MOST_BODY_BYTES
    assert body["text"] == long[: MOST_BODY_BYTES // 3]
    binary = sections_of(data(b"\xff" * (MOST_BODY_BYTES + 1)))["body"]
    assert (binary["text"], binary["isCut"]) == (None, True)
    assert base64.b64decode(binary["base64"]) == b"\xff" * MOST_BODY_BYTES


def test_what_cannot_be_read_is_said() -> None:
    """The sections before the damage are shown with the error; as a file, the whole bare message is given."""
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
    """Parts that would take long are left out, which is reported as malformed, and the text is bounded."""
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
    """Any bytes are shown as valid JSON, without an error."""
    json.dumps(sections_of(content), allow_nan=False).encode()
    body_bytes(content, 0)
    brief(content, 0)


@given(FIELDS)
def test_what_a_list_says_is_what_the_section_says(fields: list[object]) -> None:
    """The fields in a list of messages, read in place, equal the decoded ones, whatever their types."""
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
    """A list of messages has the content-type, the cut correlation-id, and whether a message was erased."""
    content = FRONT + SAID + data(1)
    bare = bare_offset(content)
    assert brief(content, bare) == ("application/json", str(UUID(int=1)))
    for without_either in (data(1), section(PROPERTIES, []) + data(1)):
        assert brief(without_either, 0) == (None, None)
    long = section(PROPERTIES, [None, None, None, None, None, "c" * 900]) + data(1)
    assert brief(long, 0) == (None, "c" * MOST_BRIEF_TEXT)
    longer = section(PROPERTIES, [None, None, None, "s" * 5_000, None, ULong(1)]) + data(1)
    assert brief(longer, 0) == (None, None)
    raw = section(PROPERTIES, [None, None, None, None, None, b"\xff"]) + data(1)
    assert brief(raw, 0) == (None, "/w==")

    assert not is_erased(content, bare)
    assert is_erased(*erased(content, bare, 1, "why"))
    assert not is_erased(FRONT + data("x-opt-erased-time"), len(FRONT))
