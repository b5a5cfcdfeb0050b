"""3.5.3 and 3.5.4, sources and targets: fields of other types, or with values that there are not, refuse the attach."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_ext.codec import Array, Described, Symbol, UByte, UInt, ULong
from tests.gateway.amqp.spec.conftest import Opened
from tests.support.frames import ATTACH, DETACH, END, error_of, frame
from tests.support.messages import data

DECODE_ERROR, INVALID_FIELD = "amqp:decode-error", "amqp:invalid-field"
ADDRESS, DURABLE, EXPIRY, TIMEOUT, DYNAMIC, PROPERTIES, MODE, FILTER, _, _, CAPABILITIES = range(11)
TARGET_CAPABILITIES = 6

OF_BOTH = [
    (ADDRESS, 7, DECODE_ERROR),
    (ADDRESS, Symbol("queue://q"), DECODE_ERROR),
    (ADDRESS, b"queue://q", DECODE_ERROR),
    (DURABLE, "yes", DECODE_ERROR),
    (DURABLE, UByte(1), DECODE_ERROR),
    (DURABLE, UInt(3), INVALID_FIELD),
    (EXPIRY, "never", DECODE_ERROR),
    (EXPIRY, Symbol("tomorrow"), INVALID_FIELD),
    (TIMEOUT, "soon", DECODE_ERROR),
    (DYNAMIC, UInt(1), DECODE_ERROR),
    (PROPERTIES, [], DECODE_ERROR),
    (PROPERTIES, {"lifetime-policy": Described(ULong(0x2B), [])}, DECODE_ERROR),
    (PROPERTIES, {Symbol("lifetime-policy"): Described(ULong(0x2B), [])}, INVALID_FIELD),
]


def terminus(index: int, value: Any) -> list[Any]:
    fields: list[Any] = ["queue://q", *[None] * 10]
    fields[index] = value
    return fields[: max(index, 0) + 1]


@pytest.mark.parametrize(
    ("index", "value", "condition"),
    [
        *OF_BOTH,
        (MODE, "move", DECODE_ERROR),
        (MODE, Symbol("steal"), INVALID_FIELD),
        (FILTER, ["selector"], DECODE_ERROR),
        (FILTER, {"selector": "a = 1"}, DECODE_ERROR),
        (CAPABILITIES, "queue", DECODE_ERROR),
        (CAPABILITIES, ["queue"], DECODE_ERROR),
        (CAPABILITIES, {Symbol("queue"): True}, DECODE_ERROR),
    ],
)
@pytest.mark.parametrize("receiver", [True, False])
def test_a_source(opened: Opened, receiver: bool, index: int, value: Any, condition: str) -> None:
    """Of a receiver, and of a sender, whose own it is."""
    peer = opened()
    peer.attach(0, receiver=receiver, source=terminus(index, value), target=["queue://q"])
    refused = peer.skip_to(DETACH, never=END)
    assert error_of(refused)[0] == condition
    assert refused.field(2).value[2][Symbol("field")]
    peer.attach(1, receiver=True, source=["queue://q"])


@pytest.mark.parametrize(
    ("index", "value", "condition"),
    [*OF_BOTH, (TARGET_CAPABILITIES, "queue", DECODE_ERROR), (TARGET_CAPABILITIES, ["queue"], DECODE_ERROR)],
)
def test_a_target(opened: Opened, index: int, value: Any, condition: str) -> None:
    """The attach is answered without one, and detached; its session goes on."""
    peer = opened()
    answer = peer.attach(0, target=terminus(index, value))
    assert answer.field(6) is None
    assert error_of(peer.skip_to(DETACH, never=END))[0] == condition
    peer.attach(1, target=["queue://q"])
    peer.transfer(1, 0, data(b"one"))
    peer.told()


def test_all_that_there_is_may_be_said(opened: Opened) -> None:
    """Each field with a value of its type."""
    peer = opened()
    said = [
        "queue://q",
        UInt(0),
        Symbol("session-end"),
        UInt(0),
        False,
        {},
        Symbol("move"),
        {},
        Described(ULong(0x26), []),
        Array([Symbol("amqp:accepted:list")]),
        Array([Symbol("queue")]),
    ]
    assert peer.attach(0, receiver=True, source=said).field(5) is not None


def test_a_source_that_is_no_list(opened: Opened) -> None:
    """There is nothing to be read in it."""
    peer = opened()
    peer.send(frame(ATTACH, ["n", UInt(0), True, None, None, Described(ULong(0x28), {})]))
    peer.skip_to(ATTACH)
    assert error_of(peer.skip_to(DETACH))[0] == DECODE_ERROR
