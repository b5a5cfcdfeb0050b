"""Messages: all sorts of sections, and the requests of RabbitMQ's and Event Hubs' clients to their management nodes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any
from urllib.parse import quote

from amqp_ext.codec import Byte, Described, Long, Symbol, UByte, UInt, ULong
from amqp_ext.event_hubs.management import sign
from tests.fuzz.made.kind import Answer, Kind, Listener, Step
from tests.fuzz.made.links import symbols
from tests.fuzz.made.texts import QUEUES, address, topic
from tests.fuzz.made.values import (
    changed,
    map_of,
    or_else,
    or_wrong,
    put,
    symbol,
    value,
    whole,
    word,
    words,
)
from tests.support import frames as amqp
from tests.support.messages import message_to
from tests.system.corpus import BEGUN

AT_ONCE = 100
REQUESTS_AT_ONCE = 4
"""Half of a request node's initial credit: new credit comes with the answer, some time after the outcome."""

_FRAME_BYTES = 30_000
MANY = 10_000
KEY = "the-key-of-the-hubs"
KEY_NAME = "hub"

_CLOSE = amqp.frame(amqp.CLOSE, [])


def _section(code: int, content: Any) -> bytes:
    return b"\x00\x53" + bytes([code]) + put(content)


def _pieces(dice: Random, number: int, message: bytes, *, handle: int = 0) -> bytes:
    """A delivery: mostly one transfer, sometimes several, sometimes aborted after its first."""
    if dice.random() < 0.9:
        return amqp.transfer_frame(handle, number, message)
    cut = dice.randrange(len(message) + 1)
    first = amqp.transfer_frame(handle, number, message[:cut], more=True)
    return first + amqp.frame(amqp.TRANSFER, [UInt(handle), None, None, None, None, False], message[cut:])


# --- sections -------------------------------------------------------------------------------------------------------

_ANNOTATIONS = symbols(
    "x-opt-topic x-opt-jms-msg-type x-opt-jms-dest x-stream-filter-value x-opt-partition-key x-opt-offset"
    " rewind:replay-id x-opt-replayed x-opt-delivery-time x-opt-delivery-delay x"
)


def _header(dice: Random) -> Any:
    ttl = dice.choice((None, UInt(0), UInt(1), UInt(whole(dice, 32))))
    fields = [dice.random() < 0.5, UByte(whole(dice, 8)), ttl, dice.random() < 0.3, UInt(whole(dice, 32))]
    return [or_else(dice, each, 0.03) for each in fields][: dice.randint(0, 5)]


def _properties(dice: Random) -> Any:
    identity = dice.choice((word(dice), ULong(whole(dice, 64)), dice.randbytes(16), None))
    fields = [identity, word(dice).encode(), dice.choice((None, address(dice))), word(dice), address(dice)]
    fields += [identity, Symbol("text/plain"), None, None, None, word(dice), UInt(whole(dice, 32)), None]
    return [or_else(dice, each, 0.04) for each in fields][: dice.choice((0, 4, 13, 13))]


def _annotations(dice: Random) -> Any:
    chosen = {dice.choice(_ANNOTATIONS): value(dice) for _ in range(dice.randrange(4))}
    if dice.random() < 0.3:
        chosen[Symbol("x-opt-delivery-delay")] = Long(dice.choice((0, 1, 50, 1_000, 2**40, -1)))
    if dice.random() < 0.1:
        chosen[Symbol("x-opt-jms-dest")] = Byte(dice.randrange(-1, 5))
    return chosen | map_of(dice, key=symbol) if dice.random() < 0.3 else chosen


def _body(dice: Random) -> bytes:
    match dice.randrange(5):
        case 0:
            return _section(0x77, or_wrong(dice, value(dice), 0.03))
        case 1:
            return b"".join(_section(0x76, [value(dice)]) for _ in range(dice.randrange(3)))
        case _:
            return b"".join(
                _section(0x75, or_else(dice, dice.randbytes(dice.choice((0, 1, 200, 3_000))), 0.02))
                for _ in range(dice.choice((1, 1, 1, 0, 3)))
            )


_SECTIONS: tuple[tuple[int, float, Callable[[Random], Any]], ...] = (
    (0x70, 0.5, _header),
    (0x71, 0.2, _annotations),
    (0x72, 0.5, _annotations),
    (0x73, 0.6, _properties),
    (0x74, 0.5, lambda dice: map_of(dice, key=word)),
)
"""The sections before the body: code, probability, and the function that makes the content."""


def message(dice: Random) -> bytes:
    """A message, mostly well-formed."""
    parts = [
        _section(code, or_wrong(dice, or_else(dice, make(dice), 0.02), 0.02))
        for code, chance, make in _SECTIONS
        if dice.random() < chance
    ]
    footer = _section(0x78, map_of(dice, key=symbol)) if dice.random() < 0.1 else b""
    parts += [_body(dice), footer]
    if dice.random() < 0.03:
        dice.shuffle(parts)
    whole_message = b"".join(parts)
    return changed(dice, whole_message) if dice.random() < 0.1 else whole_message


def _sections(dice: Random, place: int) -> bytes:
    return _pieces(dice, place, message(dice))


_TO_QUEUE = (
    BEGUN
    + amqp.attach_frame(0, receiver=False, address="queue://fuzz-sections")
    + amqp.attach_frame(1, receiver=True, address="queue://fuzz-sections", settled=True)
    + amqp.flow_frame(1, 0, MANY)
)


def _relayed(dice: Random, place: int) -> bytes:
    content = message(dice) if dice.random() < 0.5 else message_to(address(dice), b"x")
    return _pieces(dice, place, content)


_RELAY = BEGUN + amqp.attach_frame(0, receiver=False, address=None)

_FIRST_IDS = (0, 0, 2**32 - 5)


def _apart(dice: Random, place: int) -> bytes:
    """A delivery on one of three links with separate delivery ids; sometimes its sender settles it."""
    turn, handle = divmod(place, len(_FIRST_IDS))
    number = (_FIRST_IDS[handle] + turn) % 2**32
    said = amqp.disposition(number, number, receiver=False) if dice.random() < 0.1 else b""
    return said + _pieces(dice, number, message(dice), handle=handle)


_TO_APART = BEGUN + b"".join(
    amqp.attach_frame(handle, receiver=False, address="topic://fuzz/apart")
    for handle in range(len(_FIRST_IDS))
)

# --- RabbitMQ's /management -----------------------------------------------------------------------------------------

_ARGUMENTS = words(
    "x-queue-type x-message-ttl x-max-length x-max-length-bytes x-dead-letter-routing-key x-dead-letter-exchange"
    " x-delayed-retry-type x-delayed-retry-min x-delayed-retry-max"
    " x-delivery-limit x-consumer-timeout x-single-active-consumer x-max-priority x-max-age x-overflow x-expires x"
)
_BODY_FIELDS = words(
    "durable exclusive auto_delete arguments type internal source destination_queue destination_exchange"
    " binding_key x"
)


def _argument(dice: Random) -> Any:
    whole_or_name = (ULong(whole(dice, 32)), 1, dice.choice(QUEUES))
    return dice.choice(("quorum", "classic", "stream", True, False, *whole_or_name, "", "1h", None))


def _declaration(dice: Random) -> dict[str, Any]:
    fields: dict[str, Any] = {
        dice.choice(_BODY_FIELDS): or_else(dice, _argument(dice), 0.1) for _ in range(dice.randrange(4))
    }
    arguments = {
        dice.choice(_ARGUMENTS): or_else(dice, _argument(dice), 0.05) for _ in range(dice.randrange(4))
    }
    return {"durable": True, "arguments": arguments} | fields


def _binding(dice: Random) -> dict[str, Any]:
    return {
        "source": or_else(dice, dice.choice(QUEUES), 0.1),
        dice.choice(("destination_queue", "destination_exchange")): or_else(dice, dice.choice(QUEUES), 0.1),
        "binding_key": or_else(dice, dice.choice(("", "#", "a.#", "*.b", "a.#.b", topic(dice))), 0.1),
        "arguments": or_else(dice, {}, 0.1),
    }


def _rabbitmq(dice: Random, place: int) -> bytes:
    name = quote(dice.choice(QUEUES) if dice.random() < 0.9 else word(dice)[:40], safe="")
    method = dice.choice(("PUT", "PUT", "GET", "DELETE", "POST", word(dice)[:8]))
    other, key = dice.choice(QUEUES), quote(topic(dice))
    bindings = (
        f"/bindings?src={name}&dstq={other}&key={key}",
        f"/bindings/src={name};dstq={other};key={key};args=",
    )
    named = (
        f"/queues/{name}",
        f"/queues/{name}",
        f"/queues/{name}/messages",
        f"/exchanges/{name}",
        f"/{name}",
    )
    path = dice.choice((*named, *bindings, "/bindings", "/auth/tokens", "/", "%zz"))
    if path.startswith("/bindings") and method == "PUT":
        method = "POST"
    kind = {"type": dice.choice(("topic", "direct", "fanout", "headers"))}
    declared = (_declaration(dice), _declaration(dice), _binding(dice))
    body = dice.choice((None, *declared, kind, value(dice)))
    asked = [or_else(dice, part) for part in (path, method, "$me")]
    properties = [or_else(dice, f"{place}", 0.1), None, *asked]
    request = _section(0x73, properties) + _section(0x77, or_wrong(dice, body))
    return amqp.transfer_frame(0, place, changed(dice, request) if dice.random() < 0.05 else request)


def _paired(place: int, *, receiver: bool) -> bytes:
    ends = [Described(ULong(amqp.SOURCE), ["/management"]), Described(ULong(amqp.TARGET), ["/management"])]
    fields = ["pair", UInt(place), receiver, UByte(1), UByte(0), *ends, None, None]
    fields += [None if receiver else UInt(0), None, None, None, {Symbol("paired"): True}]
    return amqp.frame(amqp.ATTACH, fields)


_TO_MANAGEMENT = BEGUN + _paired(0, receiver=False) + _paired(1, receiver=True) + amqp.flow_frame(1, 0, MANY)

# --- Event Hubs' $cbs and $management, and batches --------------------------------------------------------------------


def token(resource: str, expires_s: int = 9_999_999_999, key: str = KEY, name: str = KEY_NAME) -> str:
    """A shared access signature."""
    encoded = quote(resource, safe="")
    signature = quote(sign(key, encoded, expires_s), safe="")
    return f"SharedAccessSignature sr={encoded}&sig={signature}&se={expires_s}&skn={name}"


def _put_token(text: Any) -> bytes:
    said = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": "sb://host/"}
    return _section(0x73, ["token", None, "$cbs", None, "cbs"]) + _section(0x74, said) + _section(0x77, text)


def _event_hubs(dice: Random, place: int) -> bytes:
    match dice.randrange(4):
        case 0:
            resource = dice.choice(("sb://host/", f"sb://host/{dice.choice(QUEUES)}", word(dice)[:50]))
            expires_s = dice.choice((0, 9_999_999_999, whole(dice, 64)))
            key, name = dice.choice((KEY, "other")), dice.choice((KEY_NAME, "nobody", "%00"))
            text = token(resource, expires_s, key, name)
            if dice.random() < 0.3:
                text = changed(dice, text.encode()).decode("latin-1")
            request = _put_token(or_else(dice, text, 0.1))
        case 1:
            asked = {
                "operation": "READ",
                "type": dice.choice(("com.microsoft:eventhub", "com.microsoft:partition")),
                "name": dice.choice(QUEUES),
                "partition": dice.choice(("0", "0", "1")),
            }
            if dice.random() < 0.2:
                asked["security_token"] = token("sb://host/")
            said = {name: or_else(dice, part) for name, part in asked.items()}
            properties = [str(place), None, None, None, or_else(dice, "cbs")]
            request = _section(0x73, properties) + _section(0x74, said)
        case 2:
            request = message(dice)
        case _:
            events = [or_else(dice, message(dice), 0.02) for _ in range(dice.choice((0, 1, 3, 10)))]
            sections = b"".join(_section(0x75, event) for event in events)
            return _batch(place + 1, changed(dice, sections) if dice.random() < 0.1 else sections)
    return amqp.transfer_frame(dice.choice((0, 1)), place + 1, request)


def _batch(place: int, content: bytes) -> bytes:
    """A delivery with the message format of a batch, in frames below the size limit."""
    pieces = [content[at : at + _FRAME_BYTES] for at in range(0, len(content), _FRAME_BYTES)] or [b""]
    fields = [UInt(2), UInt(place), place.to_bytes(4, "big"), UInt(0x80013700), False]
    return b"".join(
        amqp.frame(amqp.TRANSFER, [*fields, number < len(pieces)], piece)
        for number, piece in enumerate(pieces, 1)
    )


_CBS = [Described(ULong(amqp.SOURCE), ["$cbs"]), Described(ULong(amqp.TARGET), ["cbs"])]
_TO_CBS = amqp.attach_frame(0, receiver=False, address="$cbs") + amqp.frame(
    amqp.ATTACH, ["answers", UInt(3), True, UByte(1), UByte(0), *_CBS]
)
_TO_THE_REST = amqp.attach_frame(1, receiver=False, address="$management") + amqp.attach_frame(
    2, receiver=False, address=QUEUES[0]
)
_TO_HUBS = (
    Step(BEGUN + _TO_CBS + amqp.flow_frame(3, 0, MANY), amqp.FLOW, 1),
    Step(amqp.transfer_frame(0, 0, _put_token(token("sb://host/"))), amqp.TRANSFER, 1),
    Step(_TO_THE_REST, amqp.FLOW, 3),
)
"""A link to the hub may be attached only after the token has been put."""


def _kind(name: str, make: Any, where: Listener, *begin: Step, window: int = AT_ONCE) -> Kind:
    return Kind(
        name, where, Answer.DISPOSITION, make, at_once=AT_ONCE, window=window, begin=begin, end=_CLOSE
    )


TRANSFERS = (
    _kind("sections", _sections, Listener.PLAIN, Step(_TO_QUEUE, amqp.FLOW, 1)),
    _kind("relayed", _relayed, Listener.PLAIN, Step(_RELAY, amqp.FLOW, 1)),
    _kind("apart", _apart, Listener.PLAIN, Step(_TO_APART, amqp.FLOW, len(_FIRST_IDS))),
    _kind(
        "rabbitmq", _rabbitmq, Listener.RABBITMQ, Step(_TO_MANAGEMENT, amqp.FLOW, 1), window=REQUESTS_AT_ONCE
    ),
    _kind("event_hubs", _event_hubs, Listener.EVENT_HUBS, *_TO_HUBS, window=REQUESTS_AT_ONCE),
)
