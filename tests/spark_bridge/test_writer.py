"""Rows to messages, without a broker: what cannot be sent is told in a sentence."""

import pyarrow as pa
import pytest

from amqp_ext.codec import Described, encode
from amqp_ext.message.sections import to_address
from spark_bridge.columns.single_message import PROPERTY_AT, MessageDecoder
from spark_bridge.errors import SchemaError
from spark_bridge.writer import encoded
from store.archive.columns import ARROW_TYPES
from tests.spark_bridge.log_peer import annotated

pytestmark = pytest.mark.spark

VALUE = encode(Described(0x77, "v"))
SEQUENCE = encode(Described(0x76, [1]))


def batch(**columns: object) -> pa.RecordBatch:
    """One row."""
    return pa.RecordBatch.from_pydict({name: [value] for name, value in columns.items()})


@pytest.mark.parametrize("message_id", ["m", None])
def test_a_row_is_sent_with_all_that_a_message_has(message_id: str | None) -> None:
    """Read again it is what it was; without an id of its own its replay id is the message-id, and tells duplicates."""
    columns = {name: name for name in PROPERTY_AT} | {"messageId": message_id, "replayId": "r"}
    row = batch(**columns, topic="a/b", body="é", offset=5)
    [message] = encoded(
        row.append_column("properties", pa.array([{"k": "v"}], ARROW_TYPES["map<string,string>"])), None
    )
    found = MessageDecoder(frozenset({*columns, "properties", "body"})).of(annotated(1) + message)
    expected = {name: name for name in PROPERTY_AT} | {"messageId": message_id or "r"}
    assert {name: found[name] for name in PROPERTY_AT} == expected
    assert (found["properties"], found["body"]) == ({"k": "v"}, "é".encode())
    assert to_address(message) == "topic://a/b"


@pytest.mark.parametrize(
    ("body_type", "body"),
    [("value", VALUE), ("sequence", SEQUENCE), ("sequence", SEQUENCE * 2), ("data", b"x"), (None, b"")],
)
def test_a_body_of_any_kind_is_sent_as_it_was_read(body_type: str | None, body: bytes) -> None:
    """Values and sequences are in their column as they are encoded, and read again they are what they were."""
    [message] = encoded(batch(body=body, bodyType=body_type), "topic://t")
    row = MessageDecoder(frozenset({"body", "bodyType"})).of(annotated(1) + message)
    assert (row["body"], row["bodyType"]) == (body, body_type or "data")


@pytest.mark.parametrize(
    ("body_type", "body"),
    [("value", b"x"), ("value", b""), ("value", VALUE * 2), ("value", SEQUENCE), ("sequence", VALUE)],
)
def test_a_body_that_is_not_what_its_type_says_is_refused(body_type: str, body: bytes) -> None:
    """It would make a message that no receiver can read."""
    with pytest.raises(
        SchemaError, match=f"bodyType {body_type} has a body that is no encoded AMQP {body_type}"
    ):
        encoded(batch(body=body, bodyType=body_type), "topic://t")


def test_a_content_type_that_amqp_cannot_hold_is_refused() -> None:
    """A symbol is ASCII (AMQP 1.0, 1.6.21)."""
    with pytest.raises(SchemaError, match="The contentType 'é' is none"):
        encoded(batch(body=b"x", contentType="é"), "topic://t")
