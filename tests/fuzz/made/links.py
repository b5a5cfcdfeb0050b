"""Attaches, each followed by a detach: addresses, filter-sets, and selectors on a queue with messages."""

from __future__ import annotations

from random import Random
from typing import Any

from amqp_ext.codec import Array, Described, Symbol, Timestamp, UByte, UInt, ULong
from tests.fuzz.made.kind import Answer, Kind, Listener, Step
from tests.fuzz.made.texts import QUEUES, address, selector, start
from tests.fuzz.made.values import Encoded, map_of, or_else, or_wrong, put, symbol, value, whole, word
from tests.support.frames import ATTACH, CLOSE, DETACH, SOURCE, TARGET, flow_frame, frame, framed
from tests.support.messages import section
from tests.system.corpus import BEGUN

LOOKED_AT = "queue://fuzz-looked-at"
AT_ONCE = 100


def symbols(text: str) -> tuple[Symbol, ...]:
    """The words of a text as symbols."""
    return tuple(map(Symbol, text.split()))


CAPABILITIES = symbols("queue topic shared global temporary-queue temporary-topic stream x")
PROPERTIES = symbols(
    "com.microsoft:epoch com.microsoft:receiver-name rabbitmq:priority rabbitmq:consumer-timeout paired"
    " rewind:batches x"
)
POLICIES = symbols("never link-detach session-end connection-close x")


def performative(code: int, fields: list[Any]) -> bytes:
    """A frame whose fields may be ``Encoded``."""
    return framed(b"\x00\x53" + bytes([code]) + put(fields))


def attach(
    place: int, dice: Random, where: Any, filters: Any = None, *, receiver: bool, browse: bool = False
) -> bytes:
    """An attach whose other fields are those of usual clients."""
    capabilities = None
    if dice.random() < 0.3:
        chosen = dice.sample(CAPABILITIES, dice.randint(1, 3))
        capabilities = Array(chosen) if dice.random() < 0.8 else chosen[0]
    durable = or_else(dice, UInt(dice.choice((0, 0, 1, 2))))
    expiry = or_else(dice, dice.choice((None, None, *POLICIES)))
    dynamic, lifetime = dice.random() < 0.03, None
    if dynamic:
        where = or_else(dice, None, 0.2)
        policy = Described(ULong(dice.choice((0x2B, 0x2C, 0x2D, 0x2E, 0x2F))), [])
        lifetime = {Symbol("lifetime-policy"): policy}
    terminus: list[Any] = [where, durable, expiry, UInt(0), dynamic, lifetime]
    if receiver:
        distribution = Symbol("copy") if browse else None
        if dice.random() < 0.1:
            distribution = dice.choice(symbols("move copy x"))
        terminus += [distribution, filters, None, None]
    ours, others = (SOURCE, TARGET) if receiver else (TARGET, SOURCE)
    own = Described(ULong(ours), [*terminus, capabilities])
    other = or_else(dice, Described(ULong(others), ["here"]), 0.02)
    properties = None
    if dice.random() < 0.2:
        properties = {dice.choice(PROPERTIES): or_else(dice, whole(dice, 16), 0.3) for _ in range(2)}
    name = f"fuzz-{place}" if dice.random() < 0.98 else word(dice)
    modes = [or_else(dice, UByte(dice.randrange(most)), 0.01) for most in (3, 2)]
    ends = (own, other) if receiver else (other, own)
    count = None if receiver else UInt(0)
    fields = [name, UInt(place), receiver, *modes, *ends, or_else(dice, None, 0.01), None, count]
    fields += [or_else(dice, None, 0.02), None, None, properties]
    return performative(ATTACH, [or_wrong(dice, each, 0.0001) for each in fields])


def _detach(place: int) -> bytes:
    return frame(DETACH, [UInt(place), True])


# --- addresses ------------------------------------------------------------------------------------------------------


def _address(dice: Random, place: int) -> bytes:
    where = or_else(dice, address(dice), 0.02)
    return attach(place, dice, where, receiver=dice.random() < 0.6) + _detach(place)


# --- filters --------------------------------------------------------------------------------------------------------

_STARTS = symbols(
    "from date offset after at ago point message-id match until missing generation speed rate name x"
)
_FIELDS = symbols(
    "message-id user-id to subject reply-to correlation-id content-type group-id group-sequence creation-time x"
)


def _start(dice: Random) -> Any:
    if dice.random() < 0.3:
        return start(dice)
    return {
        dice.choice(_STARTS): dice.choice(
            (start, value, lambda dice: Timestamp(whole(dice, 64, signed=True)))
        )(dice)
        for _ in range(dice.randint(0, 3))
    }


def _fields(dice: Random) -> dict[Any, Any]:
    count = dice.choice((0, 1, 2, 5, 20))
    return {dice.choice(_FIELDS): value(dice) for _ in range(count)}


_FILTERS: dict[str | int, Any] = {
    "rewind:replay-start": _start,
    "apache.org:selector-filter:string": selector,
    "apache.org:no-local-filter:list": lambda dice: [],
    "amqp:sql-filter": selector,
    "amqp:properties-filter": _fields,
    "amqp:application-properties-filter": lambda dice: map_of(dice, key=word),
    "rabbitmq:stream-offset-spec": lambda dice: dice.choice(
        ("first", "last", "next", "1h", "x", ULong(whole(dice, 64)), Timestamp(whole(dice, 64, signed=True)))
    ),
    "rabbitmq:stream-filter": lambda dice: dice.choice((word(dice), [word(dice)] * dice.choice((1, 100)), 7)),
    "rabbitmq:stream-match-unfiltered": lambda dice: True,
    "rewind:batches": lambda dice: or_else(dice, whole(dice, 32), 0.3),
    0x173: _fields,
    0x174: lambda dice: map_of(dice, key=word),
    0x0000468C00000004: selector,
    0x0000468C00000003: lambda dice: None,
    0x120: selector,
    "x-unknown": value,
}


def _filter_set(dice: Random) -> Any:
    filters: dict[Any, Any] = {}
    for _ in range(dice.choice((1, 1, 2, 3, 8))):
        name = dice.choice(list(_FILTERS))
        descriptor = Symbol(name) if isinstance(name, str) else ULong(name)
        content = or_else(dice, _FILTERS[name](dice), 0.1)
        key = descriptor if isinstance(descriptor, Symbol) and dice.random() < 0.8 else symbol(dice)
        filters[key] = or_else(dice, Described(descriptor, content), 0.05)
    if dice.random() < 0.003:
        return Encoded(put(filters)[:-3])
    return or_else(dice, filters, 0.02)


def _filters(dice: Random, place: int) -> bytes:
    odd = (f"queue://{dice.choice(QUEUES)}?kind=stream", f"topic://{word(dice)[:20]}")
    where = dice.choice(("log://>", LOOKED_AT, "topic://a/>", *odd))
    attached = attach(place, dice, where, _filter_set(dice), receiver=True, browse=where == LOOKED_AT)
    return attached + flow_frame(place, 0, 3) + _detach(place)


# --- selectors ------------------------------------------------------------------------------------------------------


def _selectors(dice: Random, place: int) -> bytes:
    name = Symbol("amqp:sql-filter" if dice.random() < 0.3 else "apache.org:selector-filter:string")
    filters = {name: Described(name, selector(dice))}
    where = LOOKED_AT if dice.random() < 0.9 else "log://>?replay-start=beginning"
    source = Described(ULong(SOURCE), [where, *[None] * 5, Symbol("copy"), filters])
    ends = [source, Described(ULong(TARGET), ["here"])]
    attached = frame(ATTACH, [f"fuzz-{place}", UInt(place), True, UByte(1), UByte(0), *ends])
    return attached + flow_frame(place, 0, 5) + _detach(place)


def looked_at(count: int) -> list[bytes]:
    """Messages for the queue on which the selectors are tried."""
    return [
        section(0x73, [f"id-{n}", b"user", None, "subject", None, n, *[None] * 4, "g", UInt(n)])
        + section(0x74, {"size": n, "name": "f" * n, "flag": n % 2 == 0, "p.a": None, "x": 1.5})
        + section(0x77, [n, None])
        for n in range(count)
    ]


_CLOSE = frame(CLOSE, [])


def _kind(name: str, make: Any, where: Listener = Listener.PLAIN) -> Kind:
    return Kind(
        name, where, Answer.DETACH, make, at_once=AT_ONCE, window=10, begin=(Step(BEGUN),), end=_CLOSE
    )


LINKS = (_kind("addresses", _address), _kind("filters", _filters), _kind("selectors", _selectors))
