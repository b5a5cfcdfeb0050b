"""What names read: JMS headers, AMQP fields, annotations, application properties."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from amqp_ext.codec import Symbol, Timestamp, UByte, ULong
from amqp_ext.message.sections import MessageView, bare_offset
from amqp_ext.selector.fields import PROPERTIES_FIELDS, Reference, reader, resolve
from amqp_ext.selector.lexer import SelectorError, Syntax
from amqp_ext.selector.selector import compile_selector, compile_sql_filter
from tests.amqp_ext.selector.examples import message
from tests.support.messages import data, section


@pytest.mark.parametrize(
    ("header", "field", "value", "shown"),
    [
        ("JMSMessageID", "message_id", "ID:1", "ID:1"),
        ("JMSMessageID", "message_id", ULong(42), "ID:AMQP_ULONG:42"),
        ("JMSMessageID", "message_id", b"\x0a\xff", "ID:AMQP_BINARY:0AFF"),
        ("JMSCorrelationID", "correlation_id", "order 7", "order 7"),
        ("JMSCorrelationID", "correlation_id", UUID(int=7), f"ID:AMQP_UUID:{UUID(int=7)}"),
        ("JMSType", "subject", "car", "car"),
        ("JMSDestination", "to", "queue://a", "queue://a"),
        ("JMSReplyTo", "reply_to", "queue://b", "queue://b"),
        ("JMSTimestamp", "creation_time", Timestamp(1_735_689_600_000), 1_735_689_600_000),
        ("JMSExpiration", "absolute_expiry_time", Timestamp(5), 5),
        ("JMSXGroupID", "group_id", "g", "g"),
        ("JMSXGroupSeq", "group_sequence", 3, 3),
        ("JMSXUserID", "user_id", "josé".encode(), "josé"),
        ("JMSXUserID", "user_id", b"\xff", None),
    ],
)
def test_jms_headers_read_their_amqp_fields(header: str, field: str, value: Any, shown: Any) -> None:
    """Each JMS name shows its AMQP field as a JMS client would, and NULL where that is absent."""
    read = reader(resolve(header, Syntax.JMS, 0))
    assert read(message(properties={field: value})) == shown
    assert read(message()) is None


@pytest.mark.parametrize(
    ("name", "field", "value", "shown", "default"),
    [
        ("JMSPriority", "priority", 9, 9, 4),
        ("JMSDeliveryMode", "durable", True, "PERSISTENT", "NON_PERSISTENT"),
        ("JMSDeliveryMode", "durable", False, "NON_PERSISTENT", "NON_PERSISTENT"),
        ("JMSRedelivered", "delivery_count", 2, True, False),
        ("JMSXDeliveryCount", "delivery_count", 2, 3, 1),
        ("header.durable", "durable", True, True, False),
        ("header.ttl", "ttl_ms", 100, 100, None),
    ],
)
def test_header_fields_have_their_amqp_defaults(
    name: str, field: str, value: Any, shown: Any, default: Any
) -> None:
    """A header field that is absent has the default of AMQP 1.0."""
    read = reader(resolve(name, Syntax.JMS, 0))
    assert read(message(header={field: value})) == shown
    assert read(message()) == default


@pytest.mark.parametrize("field", PROPERTIES_FIELDS)
def test_every_properties_field_has_its_names(field: str) -> None:
    """properties.x, p.x in SQL filters and amqp.x in Apache's form are one reference."""
    for syntax, prefixes in {Syntax.SQL: ("properties", "p"), Syntax.JMS: ("properties", "amqp")}.items():
        for prefix in prefixes:
            assert resolve(f"{prefix}.{field}", syntax, 0) == Reference("properties", field)


def test_annotations_are_read_under_any_of_their_names() -> None:
    """The Artemis form, the Event Hubs form quoted and bare, and the SQL form read one annotation."""
    enqueued = message(annotations={Symbol("x-opt-enqueued-time"): Timestamp(1_735_689_600_000)})
    for text in (
        '"m.x-opt-enqueued-time" >= 1735689600000',
        '"amqp.annotation.x-opt-enqueued-time" >= 1735689600000',
        "amqp.annotation.x-opt-enqueued-time >= 1735689600000",
        '"message_annotations.x-opt-enqueued-time" = 1735689600000',
    ):
        assert compile_selector(text).matches(enqueued)
        assert not compile_selector(text).matches(message())
    assert compile_sql_filter("m.x IS NOT NULL").matches(message(annotations={Symbol("x"): 1}))


def test_plain_and_quoted_names_are_application_properties() -> None:
    """Any other name is an application property, with dots and blanks if it is quoted."""
    assert resolve("colour", Syntax.JMS, 0) == Reference("application_properties", "colour")
    assert compile_selector('"order id" = 5 AND "order.id" = 6').matches(
        message(**{"order id": 5, "order.id": 6})
    )
    assert compile_selector("a.b = 1 AND p.to = 2").matches(message(**{"a.b": 1, "p.to": 2}))
    assert compile_selector('"application_properties.JMSType" = 1').matches(message(JMSType=1))


def test_sql_filters_know_no_jms_names() -> None:
    """In an SQL filter JMSPriority is an application property, and brackets always name one."""
    assert compile_sql_filter("JMSPriority = 'x'").matches(message(JMSPriority="x"))
    assert compile_sql_filter("[p.to] = TRUE AND p.to = 'q'").matches(
        message(properties={"to": "q"}, **{"p.to": True})
    )
    assert compile_sql_filter("a.key = 1 AND application_properties.key = 1 AND [NOT] = 2").matches(
        message(key=1, NOT=2)
    )


@pytest.mark.parametrize(
    ("name", "syntax"),
    [
        ("header.colour", Syntax.JMS),
        ("properties.message-id", Syntax.JMS),
        ("amqp.annotation.", Syntax.JMS),
        ("amqp.colour", Syntax.JMS),
        ("my.key", Syntax.SQL),
        ("footer.x", Syntax.SQL),
        ("h.invalid", Syntax.SQL),
    ],
)
def test_fields_that_do_not_exist_are_refused(name: str, syntax: Syntax) -> None:
    """A name in a section that has no such field is an error with its place, not NULL for ever."""
    with pytest.raises(SelectorError, match=f"found {name.split('.', maxsplit=1)[0]}") as refused:
        resolve(name, syntax, 7)
    assert refused.value.position == 7


def test_an_encoded_message_can_be_asked() -> None:
    """A view of an encoded message answers selectors of both syntaxes."""
    content = section(0x70, [True, UByte(7)]) + section(0x72, {Symbol("x-opt-a"): 1})
    content += section(0x73, ["id-1", None, "queue://q"]) + section(0x74, {"colour": "red"}) + data(1)
    view = MessageView(content, bare_offset(content))
    assert compile_selector(
        "JMSDeliveryMode = 'PERSISTENT' AND JMSPriority = 7 AND \"m.x-opt-a\" = 1 AND JMSMessageID = 'id-1' "
        "AND JMSDestination LIKE 'queue:%' AND colour IN ('red', 'blue') AND JMSType IS NULL"
    ).matches(view)
    assert compile_sql_filter("h.priority > 6 AND p.message_id = 'id-1' AND colour > 'blue'").matches(view)
