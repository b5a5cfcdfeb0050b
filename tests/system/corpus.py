"""
Hostile byte streams, each what one client sends from its first byte on; kept in ``corpus/`` as files.

    python -m tests.system.corpus      writes the files anew

A case says how the gateway ends it. Streams that a fuzzer or a user found are added as files without a case here:
they are played, too, and held to what holds for all.

Frames that a client might send, and changes to their bytes: what chance begins with.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from amqp_ext.codec import Array, Described, Symbol, Timestamp, UByte, UInt, ULong, encode
from tests.support.frames import (
    AMQP_HEADER,
    ATTACH,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    OPEN,
    SASL_FRAME,
    SASL_HEADER,
    SASL_INIT,
    SASL_OUTCOME,
    SASL_RESPONSE,
    SOURCE,
    TARGET,
    anonymous_start,
    attach_frame,
    begin_frame,
    flow_frame,
    frame,
    framed,
    open_frame,
    transfer_frame,
)
from tests.support.frames import disposition as accepted
from tests.support.messages import data

FOLDER = Path(__file__).parent / "corpus"

UNSIGNED_MAX = 2**32 - 1


class End(enum.Enum):
    """How the gateway ends a stream: what its log says of it."""

    HANDSHAKE = "handshake_failed"
    """Before there was an AMQP connection: SASL's outcome, or a protocol header, then the end."""

    PROTOCOL = "protocol_error"
    """A close frame with an error at once."""

    SILENCE = "local-idle-timeout"
    """The engine takes it as it is, harmlessly; the silence after it ends the connection."""

    REFUSED = "connection_refused"
    """The gateway's own close frame with an error."""

    REFUSED_LINK = "attach_refused"
    """The attach is refused, the connection goes on until silence ends it."""

    SESSION = "session_ended"
    """An end of the session with an error, the connection goes on until silence ends it."""

    CLOSE = "connection_closed"
    """It closes itself."""


@dataclass(frozen=True, slots=True)
class Case:
    """A named stream, and how it ends."""

    name: str
    end: End
    data: bytes


def performative(code: int, encoded_list: bytes, **header: Any) -> bytes:
    """A performative whose list is given encoded, so that it can be wrong."""
    return framed(b"\x00\x53" + bytes([code]) + encoded_list, **header)


def list32(items: bytes, *, count: int, size: int | None = None) -> bytes:
    length = 4 + len(items) if size is None else size
    return b"\xd0" + length.to_bytes(4, "big") + count.to_bytes(4, "big") + items


def string(content: bytes) -> bytes:
    return b"\xb1" + len(content).to_bytes(4, "big") + content


def nested_lists(depth: int) -> bytes:
    """Lists in lists, the innermost empty, each with a true size and count."""
    encoded = b"\x45"
    for _ in range(depth):
        encoded = list32(encoded, count=1)
    return encoded


def attach_with(**changed: Any) -> bytes:
    """An attach of a receiver with some fields made wrong."""
    fields: dict[str, Any] = {
        "name": "hostile",
        "handle": UInt(0),
        "role": True,
        "snd": UByte(0),
        "rcv": UByte(0),
        "source": Described(ULong(SOURCE), ["hostile"]),
        "target": Described(ULong(TARGET), ["here"]),
        "unsettled": None,
        "incomplete": None,
        "initial": None,
    } | changed
    return frame(ATTACH, list(fields.values()))


def attach_from(source: bytes) -> bytes:
    """An attach of a receiver whose source is given encoded."""
    items = b"\xa1\x07hostile" + b"\x43\x41\x50\x00\x50\x00" + source + b"\x00\x53\x29\x45"
    return performative(ATTACH, list32(items, count=7))


def source_with_filters(filters: bytes) -> bytes:
    """A source whose filter-set is given encoded."""
    return b"\x00\x53\x28" + list32(b"\xa1\x07hostile" + b"\x40" * 6 + filters, count=8)


def map32(items: bytes, *, count: int) -> bytes:
    return b"\xd1" + (4 + len(items)).to_bytes(4, "big") + count.to_bytes(4, "big") + items


def source_of(address: Any, *, expiry: Any = None, filters: Any = None) -> Described:
    return Described(ULong(SOURCE), [address, None, expiry, None, None, None, None, filters])


NOISE = random.Random(1).randbytes(4096)
TO_SASL = SASL_HEADER
TO_OPEN = anonymous_start()
OPENED = TO_OPEN + open_frame()
BEGUN = OPENED + begin_frame()
SENDER = attach_frame(0, receiver=False, address="queue://hostile")
RECEIVER = attach_frame(0, receiver=True, address="queue://hostile")


def sasl(code: int, *fields: Any) -> bytes:
    return frame(code, list(fields), kind=SASL_FRAME)


BEFORE_OPEN = [
    Case("nothing", End.HANDSHAKE, b""),
    Case("http", End.HANDSHAKE, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    Case("tls_hello", End.HANDSHAKE, bytes.fromhex("16030100a5010000a10303") + NOISE[:160]),
    Case("noise", End.HANDSHAKE, NOISE),
    Case("header_amqp_0_9_1", End.HANDSHAKE, b"AMQP\x00\x00\x09\x01"),
    Case("header_amqp_1_1", End.HANDSHAKE, b"AMQP\x00\x01\x01\x00"),
    Case("header_tls", End.HANDSHAKE, b"AMQP\x02\x01\x00\x00"),
    Case("header_cut", End.HANDSHAKE, b"AMQP\x03"),
    Case("sasl_frame_of_4_gib", End.HANDSHAKE, TO_SASL + framed(b"", size=UNSIGNED_MAX, kind=1)),
    Case("sasl_frame_of_4_bytes", End.HANDSHAKE, TO_SASL + framed(b"", size=4, kind=1)),
    Case("sasl_frame_empty", End.HANDSHAKE, TO_SASL + framed(b"", kind=1)),
    Case("sasl_frame_body_behind_its_end", End.HANDSHAKE, TO_SASL + framed(b"", offset=255, kind=1)),
    Case("sasl_frame_is_amqp", End.HANDSHAKE, TO_SASL + open_frame()),
    Case("sasl_frame_cut", End.HANDSHAKE, TO_SASL + sasl(SASL_INIT, Symbol("ANONYMOUS"))[:12]),
    Case("sasl_noise", End.HANDSHAKE, TO_SASL + NOISE),
    Case("sasl_mechanism_unknown", End.HANDSHAKE, TO_SASL + sasl(SASL_INIT, Symbol("GUESS"), b"")),
    Case("sasl_mechanism_not_offered", End.HANDSHAKE, TO_SASL + sasl(SASL_INIT, Symbol("PLAIN"), b"\0a\0b")),
    Case("sasl_mechanism_is_a_number", End.HANDSHAKE, TO_SASL + sasl(SASL_INIT, ULong(7))),
    Case("sasl_init_without_fields", End.HANDSHAKE, TO_SASL + sasl(SASL_INIT)),
    Case("sasl_response_first", End.HANDSHAKE, TO_SASL + sasl(SASL_RESPONSE, b"")),
    Case("sasl_outcome_by_the_client", End.HANDSHAKE, TO_SASL + sasl(SASL_OUTCOME, UByte(0))),
    Case(
        "sasl_list_of_4_billion",
        End.HANDSHAKE,
        TO_SASL + performative(SASL_INIT, list32(b"", count=UNSIGNED_MAX), kind=1),
    ),
    Case("sasl_nested", End.HANDSHAKE, TO_SASL + performative(SASL_INIT, nested_lists(200), kind=1)),
    Case("sasl_twice", End.HANDSHAKE, TO_SASL + sasl(SASL_INIT, Symbol("ANONYMOUS"), b"") + TO_SASL),
    Case("sasl_then_http", End.HANDSHAKE, TO_OPEN[:-8] + b"GET / HTTP/1.1\r\n\r\n"),
    Case("header_only", End.REFUSED, AMQP_HEADER),
    Case("begin_before_open", End.REFUSED, TO_OPEN + begin_frame()),
    Case("open_cut", End.REFUSED, TO_OPEN + open_frame()[:-3]),
    Case("heartbeats_before_open", End.REFUSED, TO_OPEN + framed(b"") * 100),
]

FRAMES = [
    Case("frame_noise", End.PROTOCOL, OPENED + NOISE),
    Case("frame_of_0_bytes", End.PROTOCOL, OPENED + framed(b"", size=0)),
    Case("frame_of_7_bytes", End.PROTOCOL, OPENED + framed(b"", size=7)),
    Case("frame_of_4_gib", End.PROTOCOL, OPENED + framed(b"", size=UNSIGNED_MAX)),
    Case("frame_of_2_gib", End.PROTOCOL, OPENED + framed(b"", size=2**31)),
    Case("frame_over_max_announced", End.PROTOCOL, OPENED + framed(b"", size=65_537)),
    Case("frame_over_max_sent", End.PROTOCOL, BEGUN + frame(ATTACH, [string(bytes(70_000)).hex()])),
    Case("frame_body_in_its_header", End.PROTOCOL, OPENED + framed(b"", offset=1)),
    Case("frame_body_behind_its_end", End.PROTOCOL, OPENED + framed(b"", offset=255)),
    Case("frame_cut", End.SILENCE, OPENED + begin_frame()[:9]),
    Case("frame_is_sasl", End.PROTOCOL, OPENED + sasl(SASL_INIT, Symbol("ANONYMOUS"))),
    Case("frame_is_of_no_type", End.PROTOCOL, OPENED + framed(b"", kind=9)),
    Case("frame_performative_is_noise", End.PROTOCOL, OPENED + framed(NOISE[:200])),
    Case("frame_performative_cut", End.PROTOCOL, OPENED + framed(b"\x00\x53")),
    Case("frame_performative_unknown", End.PROTOCOL, OPENED + frame(0x77, [])),
    Case("frame_performative_is_a_string", End.PROTOCOL, OPENED + framed(b"\x00\x53\x11" + string(b"begin"))),
    Case("frame_heartbeats", End.SILENCE, OPENED + framed(b"") * 10_000),
]

FILTER = b"\xa3\x13rewind:replay-start"
NULLS_4_BILLION = b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40"
"""An array of nulls: no byte each, so that its count is all there is of it."""

TYPES = [
    Case(
        "open_list_of_4_billion", End.SILENCE, TO_OPEN + performative(OPEN, list32(b"", count=UNSIGNED_MAX))
    ),
    Case(
        "open_list_size_beyond",
        End.PROTOCOL,
        TO_OPEN + performative(OPEN, list32(b"", count=1, size=UNSIGNED_MAX)),
    ),
    Case("open_without_fields", End.REFUSED, TO_OPEN + frame(OPEN, [])),
    Case(
        "open_container_not_utf8",
        End.REFUSED,
        TO_OPEN + performative(OPEN, list32(string(b"\xff\xfe"), count=1)),
    ),
    Case(
        "open_hostname_not_utf8",
        End.REFUSED,
        TO_OPEN + performative(OPEN, list32(string(b"a") + string(b"\xc3"), count=2)),
    ),
    Case("open_container_is_a_list", End.REFUSED, TO_OPEN + frame(OPEN, [["a"], None])),
    Case(
        "attach_list_of_4_billion",
        End.SILENCE,
        BEGUN + performative(ATTACH, list32(b"\xa1\x01a", count=UNSIGNED_MAX)),
    ),
    Case(
        "attach_string_beyond",
        End.PROTOCOL,
        BEGUN + performative(ATTACH, list32(b"\xb1\xff\xff\xff\xff", count=1)),
    ),
    Case("attach_nested_1000", End.PROTOCOL, BEGUN + performative(ATTACH, nested_lists(1_000))),
    Case("attach_nested_7000", End.PROTOCOL, BEGUN + performative(ATTACH, nested_lists(7_000))),
    Case(
        "attach_name_not_utf8",
        End.REFUSED,
        BEGUN + performative(ATTACH, list32(string(b"\xff") + b"\x43\x41", count=3)),
    ),
    Case(
        "attach_address_not_utf8",
        End.REFUSED,
        BEGUN + attach_from(b"\x00\x53\x28" + list32(string(b"\xc0\x80"), count=1)),
    ),
    Case(
        "attach_filters_are_a_list",
        End.REFUSED_LINK,
        BEGUN + attach_from(source_with_filters(list32(FILTER, count=1))),
    ),
    Case(
        "attach_filters_of_odd_count",
        End.REFUSED_LINK,
        BEGUN + attach_from(source_with_filters(map32(FILTER, count=1))),
    ),
    Case(
        "attach_filter_nested_20",
        End.REFUSED_LINK,
        BEGUN
        + attach_from(source_with_filters(map32(FILTER + b"\x00" + FILTER + nested_lists(20), count=2))),
    ),
    Case(
        "attach_filter_nested_6000",
        End.REFUSED_LINK,
        BEGUN
        + attach_from(source_with_filters(map32(FILTER + b"\x00" + FILTER + nested_lists(6_000), count=2))),
    ),
    Case(
        "attach_filter_of_4_billion_nulls",
        End.REFUSED_LINK,
        BEGUN + attach_from(source_with_filters(map32(FILTER + b"\x00" + FILTER + NULLS_4_BILLION, count=2))),
    ),
    Case(
        "attach_filter_key_is_a_float",
        End.REFUSED_LINK,
        BEGUN
        + attach_from(source_with_filters(map32(b"\x82" + bytes(8) + b"\x00" + FILTER + b"\x45", count=2))),
    ),
    Case(
        "attach_selector_nested",
        End.REFUSED_LINK,
        BEGUN
        + attach_with(
            source=source_of(
                "hostile",
                filters={
                    Symbol("jms-selector"): Described(
                        Symbol("apache.org:selector-filter:string"), "(" * 20_000 + "a = 1" + ")" * 20_000
                    )
                },
            )
        ),
    ),
]

STATES = [
    Case("open_twice", End.SILENCE, OPENED + open_frame()),
    Case("begin_twice", End.REFUSED, BEGUN + begin_frame()),
    Case("begin_300_times", End.REFUSED, OPENED + begin_frame() * 300),
    Case("attach_before_begin", End.PROTOCOL, OPENED + SENDER),
    Case("attach_without_fields", End.SESSION, BEGUN + frame(ATTACH, [])),
    Case(
        "attach_handle_twice",
        End.REFUSED,
        BEGUN + SENDER + attach_frame(0, receiver=True, address="hostile", name="other"),
    ),
    Case(
        "attach_name_twice",
        End.PROTOCOL,
        BEGUN + SENDER + attach_frame(1, receiver=False, address="hostile", name="link-0"),
    ),
    Case(
        "attach_handle_2_billion",
        End.REFUSED,
        BEGUN + attach_frame(2**31, receiver=False, address="hostile"),
    ),
    Case("attach_modes_unknown", End.PROTOCOL, BEGUN + attach_with(snd=UByte(77), rcv=UByte(77))),
    Case(
        "attach_address_is_a_map", End.REFUSED_LINK, BEGUN + attach_with(source=source_of({Symbol("a"): 1}))
    ),
    Case("attach_source_is_a_number", End.SESSION, BEGUN + attach_with(source=ULong(3))),
    Case(
        "attach_target_is_a_source",
        End.SILENCE,
        BEGUN + attach_with(role=False, source=None, target=source_of("hostile"), initial=UInt(0)),
    ),
    Case(
        "attach_durable_topic_without_name",
        End.SESSION,
        BEGUN + attach_with(name=None, source=source_of("topic://a", expiry=Symbol("never"))),
    ),
    Case(
        "attach_durable_topic_with_empty_name",
        End.REFUSED_LINK,
        BEGUN + attach_with(name="", source=source_of("topic://a", expiry=Symbol("never"))),
    ),
    Case(
        "attach_queue_name_with_nul", End.SILENCE, BEGUN + attach_with(source=source_of("queue://nul\0name"))
    ),
    Case(
        "attach_queue_name_of_50_kb",
        End.SILENCE,
        BEGUN + attach_with(source=source_of("queue://" + "n" * 50_000)),
    ),
    Case("attach_topic_with_hole", End.REFUSED_LINK, BEGUN + attach_with(source=source_of("topic://a//b"))),
    Case(
        "attach_replay_start_unknown",
        End.REFUSED_LINK,
        BEGUN + attach_with(source=source_of("log://>?replay-start=whenever")),
    ),
    Case("attach_after_end", End.PROTOCOL, BEGUN + frame(END, []) + SENDER),
    Case("flow_before_begin", End.PROTOCOL, OPENED + flow_frame(0, 0, 10)),
    Case("flow_unknown_handle", End.PROTOCOL, BEGUN + flow_frame(7, 0, 10)),
    Case("transfer_before_begin", End.PROTOCOL, OPENED + transfer_frame(0, 0, data(b"x"))),
    Case("transfer_unknown_handle", End.PROTOCOL, BEGUN + transfer_frame(7, 0, data(b"x"))),
    Case("transfer_before_its_window", End.PROTOCOL, BEGUN + SENDER + transfer_frame(0, 0, data(b"x"))),
    Case(
        "disposition_of_4_billion",
        End.PROTOCOL,
        BEGUN
        + RECEIVER
        + frame(DISPOSITION, [True, UInt(0), UInt(UNSIGNED_MAX - 1), True, Described(ULong(0x24), [])]),
    ),
    Case(
        "disposition_backwards",
        End.PROTOCOL,
        BEGUN + RECEIVER + frame(DISPOSITION, [True, UInt(9), UInt(3), True]),
    ),
    Case("detach_unknown_handle", End.PROTOCOL, BEGUN + frame(DETACH, [UInt(9), True])),
    Case("detach_twice", End.PROTOCOL, BEGUN + SENDER + frame(DETACH, [UInt(0), True]) * 2),
    Case("end_before_begin", End.PROTOCOL, OPENED + frame(END, [])),
    Case("end_twice", End.PROTOCOL, BEGUN + frame(END, []) * 2),
    Case("channel_65535", End.PROTOCOL, OPENED + framed(begin_frame()[8:], channel=65_535)),
    Case(
        "close_with_nonsense",
        End.CLOSE,
        OPENED + frame(CLOSE, [Described(ULong(0x1D), [Symbol("x"), 7, ["y"]])]),
    ),
    Case("close_then_noise", End.CLOSE, OPENED + frame(CLOSE, []) + NOISE),
    Case("begin_after_close", End.CLOSE, OPENED + frame(CLOSE, []) + begin_frame()),
]

CASES = {case.name: case for case in [*BEFORE_OPEN, *FRAMES, *TYPES, *STATES]}


def main() -> None:
    """Write every case's file; files that are no case's are left as they are."""
    FOLDER.mkdir(exist_ok=True)
    for case in CASES.values():
        (FOLDER / f"{case.name}.bin").write_bytes(case.data)


if __name__ == "__main__":
    main()


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
