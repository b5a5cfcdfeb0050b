"""AMQP messages as rows of the DataFrame."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from amqp_ext.codec import Described, Symbol, Timestamp, UByte, UInt, ULong, encode
from amqp_ext.topics import TopicFilter, TopicPattern
from spark_bridge.columns.record_batches import BatchBuilder
from spark_bridge.columns.single_message import UNDECODABLE, text
from spark_bridge.errors import UnreadableMessage
from store.archive.columns import COLUMNS
from tests.spark_bridge.log_peer import annotated, data
from tests.spark_bridge.reading import delivered

pytestmark = pytest.mark.spark


def row(message: bytes, *names: str) -> dict[str, Any]:
    """One message as a row with these columns, or with all."""
    batch, _ = BatchBuilder([(name, name) for name in names or COLUMNS]).batch(delivered([message]))
    return batch.to_pylist(maps_as_pydicts="strict")[0]


def test_every_column_is_filled_from_its_place() -> None:
    """A message with every section fills the columns as documented."""
    properties = [
        "m1",
        b"user",
        "topic://t/a",
        "subj",
        "back",
        ULong(7),
        Symbol("text/json"),
        None,
        None,
        None,
        "g",
    ]
    message = (
        encode(Described(0x70, [True, UByte(9), UInt(1000)]))
        + annotated(3, topic="t/a", **{"x-opt-colour": "red", "x-opt-replay-end": True})
        + encode(Described(0x73, properties))
        + encode(Described(0x74, {"flight": 1545, "tailnum": "N1"}))
        + encode(data(b"hello"))
        + encode(Described(0x78, {Symbol("crc"): 1}))
    )
    assert row(message) == {
        "offset": 3,
        "enqueuedTime": datetime(2023, 11, 14, 22, 13, 20, 3000, tzinfo=UTC),
        "topic": "t/a",
        "body": b"hello",
        "bodyType": "data",
        "messageId": "m1",
        "correlationId": "7",
        "subject": "subj",
        "contentType": "text/json",
        "groupId": "g",
        "replyTo": "back",
        "properties": {"flight": "1545", "tailnum": "N1"},
        "systemProperties": {"durable": "true", "priority": "9", "ttl": "1000", "x-opt-colour": "red"},
        "partition": 0,
        "replayId": "rmid1:00003",
    }


def test_what_a_message_lacks_is_null() -> None:
    """A message with a data section only has null, rather than empty, properties."""
    found = row(annotated(1, data(b"")))
    assert found["body"] == b""
    assert found["systemProperties"] == {}
    assert [name for name, value in found.items() if value is None] == [
        "messageId", "correlationId", "subject", "contentType", "groupId", "replyTo", "properties"
    ]  # fmt: skip


def test_data_sections_are_joined() -> None:
    """A body of several data sections, short and long, is one value."""
    assert row(annotated(1, data(b"a"), data(b"b" * 300), data(b"c")))["body"] == b"a" + b"b" * 300 + b"c"


@pytest.mark.parametrize(
    ("sections", "kind"),
    [([Described(0x77, "text")], "value"), ([Described(0x76, [1]), Described(0x76, [2])], "sequence")],
)
def test_other_bodies_stay_as_they_are_encoded(sections: list[Described], kind: str) -> None:
    """A value or sequence body keeps its AMQP types: the column has the encoded sections."""
    found = row(annotated(1, *sections))
    assert (found["body"], found["bodyType"]) == (b"".join(map(encode, sections)), kind)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("plain", "plain"),
        (Symbol("sym"), "sym"),
        (True, "true"),
        (-5, "-5"),
        (ULong(1 << 63), "9223372036854775808"),
        (1.5, "1.5"),
        (b"\x00\xff", "AP8="),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Timestamp(1_500), "1970-01-01T00:00:01.500+00:00"),
        (Timestamp(1 << 62), str(1 << 62)),
        ([1, "a", None, b"x"], '[1, "a", null, "eA=="]'),
        ({Symbol("k"): [True]}, '{"k": [true]}'),
        (Described(1, "inner"), "inner"),
    ],
)
def test_values_as_text(value: Any, expected: str | None) -> None:
    """Text stays text, null stays null, and other values become JSON or their usual text."""
    assert text(value) == expected


def test_an_unasked_section_is_not_decoded() -> None:
    """If only the body is selected, broken properties are not decoded and do not matter."""
    broken = b"\x00\x53\x73\xc0\x03\x01\xa1\x09"
    message = annotated(1) + broken + encode(data(b"x"))
    assert row(message, "body") == {"body": b"x"}


def test_a_message_that_cannot_be_decoded_is_still_a_row() -> None:
    """A malformed message does not fail the read; its row has the error in systemProperties."""
    found = row(annotated(8) + b"\x00\x53\x74\xc1\x03\x02\xa1\x09" + encode(data(b"x")))
    assert (found["offset"], found["properties"]) == (8, None)
    assert UNDECODABLE in found["systemProperties"]


def test_a_message_cut_short_keeps_its_place() -> None:
    """If no section after the annotations can be read, the row still has offset and topic."""
    found = row(annotated(8) + b"\x00\x53\x75\xb0\x00\x00\xff\xff")
    assert (found["offset"], found["topic"], found["body"]) == (8, "t/a", None)
    assert "65535" in found["systemProperties"][UNDECODABLE]


def test_annotations_of_unusual_spelling_are_read() -> None:
    """Annotations with a symbol as descriptor are read."""
    annotations = {Symbol("x-opt-sequence-number"): 4, Symbol("x-opt-enqueued-time"): Timestamp(0)}
    message = encode(Described("amqp:message-annotations:map", annotations)) + encode(data(b"x"))
    assert row(message, "offset", "body") == {"offset": 4, "body": b"x"}


@pytest.mark.parametrize("message", [b"", encode(data(b"x")), b"\xff" * 30])
def test_a_message_without_the_brokers_annotations_is_an_error(message: bytes) -> None:
    """A message without the gateway's annotations is an error, which asks whether the peer is a gateway."""
    with pytest.raises(UnreadableMessage, match="is the peer a Rewind gateway"):
        BatchBuilder([("offset", "offset")]).batch(delivered([message]))


def test_topics_filter_rows_and_keep_all_offsets() -> None:
    """Offsets include messages that the topics filter out, as the check of a range needs them all."""
    topics = TopicFilter([TopicPattern.parse("a/>"), TopicPattern.parse("!a/secret")])
    messages = [annotated(n, data(b""), topic=t) for n, t in enumerate(["a/x", "b", "a/secret", "a/y"])]
    batch, offsets = BatchBuilder([("offset", "offset")], topics).batch(delivered(messages))
    assert (batch.column(0).to_pylist(), offsets.tolist()) == ([0, 3], [0, 1, 2, 3])


def test_a_map_column_keeps_nulls_and_empties_apart() -> None:
    """No section gives null, an empty section an empty map, and a null value a null in the map."""
    maps = [None, {}, {"a": None, "b": 2}]
    messages = [
        annotated(n, *([] if m is None else [Described(0x74, m)]), data(b"")) for n, m in enumerate(maps)
    ]
    batch, _ = BatchBuilder([("properties", "properties")]).batch(delivered(messages))
    assert batch.column(0).to_pylist() == [None, [], [("a", None), ("b", "2")]]
