"""Whole connections: frames in any order with changed bytes, handshakes, sign-ins, and WebSockets around them."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from amqp_ext.codec import Described, Symbol, UInt, ULong, UShort
from tests.fuzz.made.kind import Answer, Kind, Listener, Step
from tests.fuzz.made.links import LINKS, attach, performative
from tests.fuzz.made.texts import address
from tests.fuzz.made.transfers import message
from tests.fuzz.made.values import (
    changed,
    list_of,
    map_of,
    octets,
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
from tests.system.corpus import BEGUN, OPENED, TO_OPEN

USER, PASSWORD = "ann", "secret"

_CLIENT = (
    BEGUN
    + amqp.attach_frame(0, receiver=False, address="queue://hostile")
    + amqp.attach_frame(1, receiver=True, address="queue://hostile")
    + amqp.flow_frame(1, 0, 3)
    + amqp.attach_frame(2, receiver=False, address=None)
)
"""A client with a sending link 0, a receiving link 1 and a relay 2, on which the usual frames are sent."""
COORDINATOR = 0x30

Maker = Callable[[Random], Any]


# --- frames -----------------------------------------------------------------------------------------------------------


def _usual(dice: Random) -> bytes:
    """A usual frame: another attach, or something on an existing link."""
    new, old, number = dice.randrange(3, 12), dice.randrange(3), dice.randrange(4)
    is_first = dice.random() < 0.5
    make = dice.choice(
        (
            lambda: attach(new, dice, address(dice), receiver=is_first),
            lambda: dice.choice(LINKS).make(dice, new),
            lambda: amqp.flow_frame(dice.choice((new, old)), 0, dice.choice((5, 2**32 - 1))),
            lambda: amqp.transfer_frame(2 * is_first, number, message(dice), more=dice.random() < 0.2),
            lambda: amqp.disposition(0, number, receiver=is_first),
            lambda: amqp.frame(amqp.DETACH, [UInt(old), is_first]),
            lambda: amqp.frame(amqp.END, []),
            amqp.begin_frame,
            lambda: amqp.framed(b""),
        )
    )
    return make()


def _handle(dice: Random) -> Any:
    return or_else(dice, UInt(dice.choice((0, 0, 1, 1, 2, 3, 7, 1_023, 1_024, 2**32 - 1))), 0.03)


def _number(dice: Random) -> UInt:
    return UInt(dice.choice((0, 0, 1, 2, 3, whole(dice, 32))))


def _state(dice: Random) -> Any:
    """A delivery state, which may be transactional."""
    code = dice.choice((0x23, 0x24, 0x24, 0x25, 0x26, 0x27, 0x34, 0x33, 0x29))
    fields: list[Any] = []
    if code == 0x25:
        fields = [or_else(dice, Described(ULong(0x1D), [symbol(dice), word(dice)]), 0.1)]
    elif code == 0x27:
        fields = [dice.random() < 0.5, dice.random() < 0.5, map_of(dice, key=symbol)]
    elif code == 0x34:
        fields = [octets(dice, 8), or_else(dice, Described(ULong(0x24), []), 0.3)]
    return or_else(dice, Described(ULong(code), fields), 0.05)


def _chance(chance: float) -> Maker:
    return lambda dice: dice.random() < chance


def _of(*alternatives: Any) -> Maker:
    return lambda dice: dice.choice(alternatives)


def _source(dice: Random) -> Described:
    dynamic = dice.random() < 0.1
    fields = [address(dice), UInt(dice.randrange(3)), None, None, dynamic, None, None, value(dice)]
    return Described(ULong(amqp.SOURCE), fields)


def _target(dice: Random) -> Described:
    return Described(
        ULong(dice.choice((amqp.TARGET, amqp.TARGET, COORDINATOR))), [dice.choice((None, address(dice)))]
    )


_PROPERTIES = partial(map_of, key=symbol)
_NULL = _of(None)
_FIELDS: dict[int, tuple[Maker, ...]] = {
    amqp.BEGIN: (_of(None, UShort(0), UShort(9)), *[_number] * 4, _NULL, _PROPERTIES),
    amqp.ATTACH: (word, _handle, _chance(0.5), _NULL, _NULL, _source, _target, value, _NULL, _of(UInt(0))),
    amqp.FLOW: (*[_number] * 4, _handle, _number, _number, _NULL, _chance(0.3), _chance(0.3)),
    amqp.TRANSFER: (
        *(_handle, _number, lambda dice: octets(dice, 34), _of(UInt(0)), _chance(0.3), _chance(0.2)),
        *(_NULL, lambda dice: _state(dice) if dice.random() < 0.2 else None, _NULL, _chance(0.1)),
    ),
    amqp.DISPOSITION: (_chance(0.8), _number, _number, _chance(0.7), _state, _chance(0.1)),
    amqp.DETACH: (_handle, _chance(0.7), lambda dice: or_else(dice, None, 0.3)),
}
"""Functions that make the fields of performatives, mostly of the right types."""
_ENDING = (amqp.OPEN, amqp.END, amqp.END, amqp.CLOSE, 0x19, 0x77)


def _odd(dice: Random) -> bytes:
    """A performative with fields of those types, or another one with any fields."""
    code = dice.choice((*_FIELDS, amqp.TRANSFER, amqp.DISPOSITION, None))
    if code is None:
        return _on_channel(dice, dice.choice(_ENDING), list_of(dice, 1))
    payload = message(dice) if code == amqp.TRANSFER else b""
    return _on_channel(dice, code, [make(dice) for make in _FIELDS[code]], payload)


def _on_channel(dice: Random, code: int, fields: list[Any], payload: bytes = b"") -> bytes:
    if dice.random() < 0.05:
        fields = fields[: dice.randrange(len(fields) + 1)]
    content = put([or_wrong(dice, or_else(dice, each, 0.02), 0.004) for each in fields])
    body = b"\x00\x53" + bytes([code]) + content
    channel = 0 if dice.random() < 0.97 else dice.choice((1, 9, 255, 65_535))
    return amqp.framed(body + payload, channel=channel)


_ENDS = [
    Described(ULong(amqp.SOURCE), ["here"]),
    Described(ULong(COORDINATOR), [Symbol("amqp:local-transactions")]),
]
_COORDINATOR = performative(
    amqp.ATTACH, ["coordinator", UInt(11), False, None, None, *_ENDS, None, None, UInt(0)]
)


def _control(dice: Random) -> bytes:
    """A declare or a discharge to a coordinator (AMQP 1.0 section 4.2)."""
    request = Described(ULong(0x31), [or_else(dice, None, 0.2)])
    if dice.random() < 0.5:
        transaction = dice.choice((octets(dice, 8), b"\0", value(dice)))
        request = Described(ULong(0x32), [transaction, dice.random() < 0.5])
    return amqp.transfer_frame(11, dice.randrange(4), b"\x00\x53\x77" + put(request))


def _frames(dice: Random, _: int) -> bytes:
    sent = []
    if dice.random() < 0.1:
        sent.append(_COORDINATOR)
        sent += [_control(dice) for _ in range(dice.randrange(3))]
    sent += [_usual(dice) if dice.random() < 0.5 else _odd(dice) for _ in range(dice.randint(1, 12))]
    stream = b"".join(sent)
    return changed(dice, stream) if dice.random() < 0.4 else stream


# --- handshakes ---------------------------------------------------------------------------------------------------


def _open(dice: Random) -> bytes:
    host, largest = ("default", "vhost:/", word(dice)), (0, 511, 512, 65_536, 2**32 - 1)
    fields = [word(dice), dice.choice((None, *host)), UInt(dice.choice(largest)), UShort(whole(dice, 16))]
    fields += [dice.choice((None, UInt(whole(dice, 32)))), *[None] * 4, map_of(dice, key=symbol)]
    return performative(amqp.OPEN, [or_wrong(dice, or_else(dice, each, 0.05)) for each in fields])


def _handshakes(dice: Random, _: int) -> bytes:
    start = dice.choice((b"", amqp.SASL_HEADER, TO_OPEN, TO_OPEN, amqp.AMQP_HEADER))
    sent = start + (_open(dice) if dice.random() < 0.8 else octets(dice, 300))
    sent += b"".join(
        dice.choice((amqp.begin_frame(), octets(dice), amqp.frame(0x18, []), _odd(dice)))
        for _ in range(dice.randrange(4))
    )
    return changed(dice, sent) if dice.random() < 0.4 else sent


# --- signing in -----------------------------------------------------------------------------------------------------


def _first(dice: Random) -> Any:
    name = dice.choice((USER, USER, "nobody", "a=2Cb", "a=b", word(dice)))
    match dice.randrange(4):
        case 0:
            secret = PASSWORD if dice.random() < 0.02 else word(dice)[:100]
            odd = (f"{name}\0{name}\0{secret}", f"{name}\0{secret}", "\0\0", f"\0{name}")
            return dice.choice((f"\0{name}\0{secret}", *odd)).encode()
        case 1 | 2:
            header = dice.choice((*words("n,, y,, n,a=x, p=tls-unique,, p=tls-server-end-point,, n,"), ""))
            nonce = dice.choice(("", "abc", "a,b", word(dice)))
            parts = [f"n={name}", f"r={nonce}", dice.choice(("", "m=1", "x=y"))]
            return (header + ",".join(part for part in parts if part)).encode()
        case _:
            return or_else(dice, octets(dice), 0.3)


_MECHANISMS = words("PLAIN SCRAM-SHA-256 SCRAM-SHA-512 EXTERNAL ANONYMOUS SCRAM-SHA-256-PLUS MSSBCBS")


def _sasl(dice: Random, _: int) -> bytes:
    name = Symbol(dice.choice((*_MECHANISMS, word(dice)[:20])).encode("ascii", "replace").decode())
    host = dice.choice((None, "host", value(dice)))
    init = [or_else(dice, name, 0.02), or_else(dice, _first(dice), 0.05), host]
    sent = amqp.SASL_HEADER + _sasl_frame(dice, amqp.SASL_INIT, init)
    for _ in range(dice.choice((0, 1, 1, 2))):
        final = f"c=biws,r={dice.choice(('abc', 'abcdef'))},p={base64.b64encode(octets(dice, 32)).decode()}".encode()
        sent += _sasl_frame(dice, amqp.SASL_RESPONSE, [or_else(dice, final, 0.2)])
    sent += dice.choice((b"", amqp.AMQP_HEADER + amqp.open_frame()))
    return changed(dice, sent) if dice.random() < 0.3 else sent


def _sasl_frame(dice: Random, code: int, fields: list[Any]) -> bytes:
    body = b"\x00\x53" + bytes([code]) + put([or_wrong(dice, each) for each in fields])
    return amqp.framed(body, kind=amqp.SASL_FRAME if dice.random() < 0.98 else amqp.AMQP_FRAME)


# --- WebSocket --------------------------------------------------------------------------------------------------------


_UPGRADE = """\
GET / HTTP/1.1
Host: localhost
Upgrade: websocket
Connection: Upgrade
Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==
Sec-WebSocket-Version: 13
Sec-WebSocket-Protocol: amqp
"""
_ODD_HEADERS = """\
Sec-WebSocket-Extensions: permessage-deflate
Origin: http://evil
Content-Length: 5
Sec-WebSocket-Version: 8
Sec-WebSocket-Protocol: x
Transfer-Encoding: chunked
Upgrade: h2c
POST / HTTP/1.1
é: é
"""


def upgrade(dice: Random) -> bytes:
    """A WebSocket upgrade request, which may contain a mistake."""
    lines = _UPGRADE.splitlines()
    if dice.random() < 0.3:
        at = dice.randrange(len(lines))
        odd = (*_ODD_HEADERS.splitlines(), "", ": ", "X: " + "y" * 9_000, lines[at], " " + lines[at])
        lines[at] = dice.choice(odd)
        if dice.random() < 0.3:
            lines.insert(at, dice.choice(odd))
    return "\r\n".join([*lines, "", ""]).encode()


def websocket_frame(dice: Random, content: bytes) -> bytes:
    """A frame (RFC 6455 section 5.2), mostly masked, binary and complete."""
    opcode = 2 if dice.random() < 0.85 else dice.choice((0, 1, 8, 9, 10, 3, 15))
    reserved = 0 if dice.random() < 0.98 else dice.choice((0x40, 0x20, 0x10))
    first = opcode | (0x80 if dice.random() < 0.9 else 0) | reserved
    is_masked = dice.random() < 0.98
    size = len(content) if dice.random() < 0.97 else dice.choice((0, 125, 65_535, 2**31, 2**63, 2**64 - 1))
    mask = 0x80 if is_masked else 0
    form = dice.random()
    if size < 126 and form < 0.95:
        head = bytes((first, size | mask))
    elif size < 65_536 and form < 0.99:
        head = struct.pack(">BBH", first, 126 | mask, size)
    else:
        head = struct.pack(">BBQ", first, 127 | mask, size)
    if not is_masked:
        return head + content
    key = dice.randbytes(4) if dice.random() < 0.7 else bytes(4)
    masks = (key * (len(content) // 4 + 1))[: len(content)]
    return head + key + bytes(octet ^ mask for octet, mask in zip(content, masks, strict=True))


def _websocket(dice: Random, _: int) -> bytes:
    stream = dice.choice((OPENED, BEGUN, BEGUN, BEGUN)) + b"".join(
        _usual(dice) if dice.random() < 0.7 else _odd(dice) for _ in range(dice.randrange(5))
    )
    sent = upgrade(dice)
    while stream:
        size = dice.choice((1, 7, 100, 1_000, 10_000))
        sent += websocket_frame(dice, stream[:size])
        # A frame for each octet of a stream would be too many.
        if size == 1 and dice.random() < 0.9:
            sent += websocket_frame(dice, stream[size:])
            break
        stream = stream[size:]
    return changed(dice, sent) if dice.random() < 0.25 else sent


STREAMS = (
    Kind("frames", Listener.PLAIN, Answer.END, _frames, begin=(Step(_CLIENT, amqp.FLOW, 2),)),
    Kind("handshakes", Listener.PLAIN, Answer.END, _handshakes),
    Kind("sasl", Listener.SIGN_IN, Answer.END, _sasl),
    Kind("websocket", Listener.WEBSOCKET, Answer.END, _websocket),
)
