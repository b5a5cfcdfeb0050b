"""The bare message is never re-encoded: every byte is delivered as it was sent, on every way to a consumer."""

from __future__ import annotations

import struct
import uuid

from amqp_ext.codec import Described, Symbol, Timestamp, UByte, UInt, ULong
from tests.amqp_ext.test_codec import ENCODINGS
from tests.gateway.amqp.conftest import Connect
from tests.support.client import Received
from tests.support.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    data,
    section,
)
from tests.support.running import RunningGateway

FULL_PROPERTIES = [
    uuid.UUID(int=7),
    b"user",
    "orders",
    "subject",
    "topic://replies",
    ULong(99),
    Symbol("text/plain"),
    Symbol("gzip"),
    Timestamp(1_800_000_000_000),
    Timestamp(1_700_000_000_000),
    "group",
    UInt(5),
    "reply group",
]

BARE: dict[str, bytes] = {
    "data": data("x"),
    "empty data": data(b""),
    "data with a long size": b"\x00\x53\x75\xb0" + struct.pack(">I", 3) + b"abc",
    "several data sections": data("one") + data(b"") + data("three" * 100),
    "a sequence": section(SEQUENCE, [1, "two", None]),
    "several sequences": section(SEQUENCE, [1]) + section(SEQUENCE, []) + section(SEQUENCE, [[2], {"k": 3}]),
    "a null value": section(VALUE, None),
    "no body, as proton sends an empty message": section(PROPERTIES, ["id"]),
    "all sections": section(PROPERTIES, FULL_PROPERTIES)
    + section(APPLICATION_PROPERTIES, {"a": 1, "b": "two", "c": None, "d": Timestamp(5)})
    + data("x")
    + section(FOOTER, {Symbol("x-opt-crc"): UInt(0xDEADBEEF)}),
    "a footer after sequences": section(SEQUENCE, [1])
    + section(SEQUENCE, [2])
    + section(FOOTER, {Symbol("f"): b"\x00"}),
    "properties with nulls at the end": section(PROPERTIES, ["id", None, None, None]) + data("x"),
    "empty properties": section(PROPERTIES, []) + data("x"),
    "an empty map of application properties": section(APPLICATION_PROPERTIES, {}) + data("x"),
    "described application properties": section(APPLICATION_PROPERTIES, {"k": Described(Symbol("d"), 1)})
    + data("x"),
    "long descriptors": b"\x00\x80" + struct.pack(">Q", DATA) + b"\xa0\x01x",
    "symbolic descriptors": b"\x00\xa3\x10amqp:data:binary\xa0\x01x",
    "100 KB": section(APPLICATION_PROPERTIES, {"k": "v"}) + data(bytes(range(256)) * 400),
    # Also in encodings that nobody would choose: they must not be tidied up.
    **{f"value {wire}": b"\x00\x53\x77" + bytes.fromhex(wire) for wire, _ in ENCODINGS},
}

FRONTS: dict[str, bytes] = {
    "nothing": b"",
    "a header": section(HEADER, [True, UByte(9), UInt(60_000_000), True, UInt(0)]),
    "an empty header": section(HEADER, []),
    "a header in a long list": b"\x00\x53\x70\xd0" + struct.pack(">II", 4 + 1, 1) + b"\x41",
    "annotations": section(
        MESSAGE_ANNOTATIONS, {Symbol("x-opt-theirs"): [1, {"a": "b"}], Symbol("x-other"): b"\x00"}
    ),
    "annotations that are ours to set": section(
        MESSAGE_ANNOTATIONS,
        {
            Symbol("x-opt-replay-id"): "forged",
            Symbol("x-opt-sequence-number"): 10**6,
            Symbol("x-opt-theirs"): Symbol("kept"),
            Symbol("x-opt-replay-end"): True,
        },
    ),
    "all": section(HEADER, [True])
    + section(DELIVERY_ANNOTATIONS, {Symbol("x-hop"): 1})
    + section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-theirs"): Described(Symbol("d"), None)}),
}


def by_every_way(gateway: RunningGateway, connect: Connect, raws: list[bytes]) -> dict[str, list[Received]]:
    """Publish messages and receive them from queue, topic endpoint, log and replay, before and after a restart."""
    count = len(raws)
    connect(gateway).sender("orders").send_all(raws)
    found = {}
    for way, address, accepts in (
        ("log", "log://>?replay-start=beginning", False),
        ("queue", "orders", False),
        ("queue, again", "orders", True),
        ("replay", "orders?replay-start=beginning", False),
        ("queue after a restart", "orders", True),
        ("replay after a restart", "orders?replay-start=beginning", True),
        ("log after a restart", "log://>?replay-start=beginning", True),
    ):
        if way == "queue after a restart":
            gateway.restart()
        client = connect(gateway)
        receiver = client.receiver(address, credit=count)
        found[way] = receiver.take_and_accept(count) if accepts else receiver.take(count)
        client.close()
    return found


def test_every_kind_of_message_by_every_way(gateway: RunningGateway, connect: Connect) -> None:
    """Messages of all shapes, with values of all types, arrive bit for bit from queue, log and replay."""
    raws = list(BARE.values())
    for way, taken in by_every_way(gateway, connect, raws).items():
        for (name, bare), message in zip(BARE.items(), taken, strict=True):
            assert message.bare == bare, f"{name}, by {way}"


def test_every_kind_of_front_by_every_way(gateway: RunningGateway, connect: Connect) -> None:
    """
    A message's own header and annotations are delivered, in any form; those that the gateway sets cannot be forged.
    """
    bare = BARE["all sections"]
    for way, taken in by_every_way(gateway, connect, [front + bare for front in FRONTS.values()]).items():
        for number, (name, message) in enumerate(zip(FRONTS, taken, strict=True)):
            where = f"{name}, by {way}"
            assert message.bare == bare, where
            assert message.annotations["x-opt-sequence-number"] == number + 1, where
            assert message.annotations["x-opt-replay-id"].startswith("rmid1:"), where
            # A replayed message on the queue is still one after a restart.
            is_replayed = way not in ("queue", "queue, again")
            assert message.is_end == (number == len(FRONTS) - 1 and is_replayed), where
        by_name = dict(zip(FRONTS, taken, strict=True))
        again = way == "queue, again"
        assert by_name["annotations"].annotations["x-opt-theirs"] == [1, {"a": "b"}]
        assert by_name["annotations"].annotations["x-other"] == b"\x00"
        assert by_name["annotations that are ours to set"].annotations["x-opt-theirs"] == Symbol("kept")
        assert by_name["all"].annotations["x-opt-theirs"] == Described(Symbol("d"), None)
        header = by_name["a header"].header
        assert header is not None
        assert header[:2] == [True, 9]
        assert by_name["a header"].delivery_count == (1 if again else 0)
        if not again:
            assert by_name["nothing"].header is None
