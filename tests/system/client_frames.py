"""Frames that a client might send, and changes to their bytes: what chance begins with."""

from __future__ import annotations

from uuid import UUID

from amqp_ext.codec import Array, Described, Symbol, Timestamp, UByte, UInt, ULong, encode
from tests.support.frames import (
    DETACH,
    DISPOSITION,
    END,
    attach_frame,
    begin_frame,
    flow_frame,
    frame,
    transfer_frame,
)
from tests.support.frames import disposition as accepted
from tests.support.messages import data
from tests.system.corpus import attach_with, source_of

RICH = b"".join(
    encode(Described(ULong(code), value))
    for code, value in [
        (0x70, [True, UByte(7), UInt(60_000), False, UInt(2)]),
        (0x72, {Symbol("x-mine"): [1, "two"], Symbol("x-opt-topic"): "theirs"}),
        (0x73, ["id", b"user", "queue://hostile", "subject", None, UUID(int=7), Symbol("text/plain")]),
        (0x74, {"size": 5, "name": "five", "flag": True}),
        (0x77, {"a": [1.5, None, Timestamp(1)]}),
    ]
)
"""A message that has a bit of everything."""


def selecting(descriptor: str, value: object) -> dict[Symbol, Described]:
    return {Symbol(descriptor): Described(Symbol(descriptor), value)}


SELECTOR = "apache.org:selector-filter:string"

VALID = [
    begin_frame(),
    attach_frame(
        3,
        receiver=True,
        address="queue://hostile",
        filters=selecting(SELECTOR, "size > 3 AND name LIKE 'f%'"),
    ),
    attach_frame(4, receiver=False, address="topic://hostile/a"),
    attach_frame(5, receiver=True, address="log://hostile/>?replay-start=beginning"),
    attach_frame(
        6, receiver=True, address="log://>", filters=selecting("rewind:replay-start", {Symbol("ago"): 5})
    ),
    attach_frame(
        7, receiver=True, address="log://>", filters=selecting("rabbitmq:stream-offset-spec", "first")
    ),
    attach_with(
        handle=UInt(8),
        name="dynamic",
        source=Described(
            ULong(0x28),
            [None, None, None, None, True, {Symbol("lifetime-policy"): Described(ULong(0x2B), [])}],
        ),
    ),
    attach_with(
        handle=UInt(9),
        name="durable",
        source=source_of("topic://hostile/*", expiry=Symbol("never")),
    ),
    attach_with(
        handle=UInt(10),
        name="stolen",
        source=Described(
            ULong(0x28), ["queue://stolen?exclusive=steal", *[None] * 9, Array([Symbol("queue")])]
        ),
        offered=None,
        desired=None,
        unused=None,
        properties={Symbol("com.microsoft:epoch"): 3},
    ),
    flow_frame(1, 0, 5),
    flow_frame(3, 0, 5),
    flow_frame(6, 0, 5),
    flow_frame(0, 0, 2**32 - 1),
    transfer_frame(0, 0, RICH),
    transfer_frame(0, 1, data(b"two"), settled=True),
    transfer_frame(2, 0, RICH),
    transfer_frame(0, 2, data(b"three"), more=True),
    accepted(0, 0),
    accepted(0, 3, receiver=False),
    frame(
        DISPOSITION, [True, UInt(0), None, False, Described(ULong(0x27), [True, True, {Symbol("x-mine"): 1}])]
    ),
    frame(DISPOSITION, [True, UInt(0), UInt(1), True, Described(ULong(0x25), [])]),
    frame(DETACH, [UInt(1), True]),
    frame(DETACH, [UInt(0), False]),
    frame(END, []),
    b"\x00\x00\x00\x08\x02\x00\x00\x00",
]
"""Frames of a client with a sending link 0, a receiving link 1 and a relay 2."""


def changed(stream: bytes, changes: list[tuple[int, str, bytes]]) -> bytes:
    """A stream with bytes set, put in, taken out, or cut off."""
    data = bytearray(stream)
    for where, how, what in changes:
        at = where % (len(data) + 1)
        match how:
            case "set":
                data[at : at + len(what)] = what
            case "insert":
                data[at:at] = what
            case "delete":
                del data[at : at + len(what)]
            case "cut":
                del data[at:]
    return bytes(data)
