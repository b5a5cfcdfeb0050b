"""
Hostile byte streams, each as one client sends it from the first byte on, and how the gateway ends each. Streams found
by a fuzzer or a user are added here.
"""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass
from typing import Any

from amqp_ext.codec import Described, Symbol, UByte, UInt, ULong
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
from tests.support.messages import data

UNSIGNED_MAX = 2**32 - 1


class End(enum.Enum):
    """How the gateway ends a stream: the event in its log."""

    HANDSHAKE = "handshake_failed"
    """Before the AMQP connection exists: a SASL outcome or a protocol header, then the socket is closed."""

    PROTOCOL = "protocol_error"
    """Immediately, by a close frame with an error."""

    SILENCE = "local-idle-timeout"
    """The engine accepts the stream, which is harmless; the idle timeout then ends the connection."""

    REFUSED = "connection_refused"
    """By a close frame with an error that the gateway itself sends, not the engine."""

    REFUSED_LINK = "attach_refused"
    """The attach is refused; the connection goes on until the idle timeout ends it."""

    SESSION = "session_ended"
    """The session is ended with an error; the connection goes on until the idle timeout ends it."""

    CLOSE = "connection_closed"
    """The client closes the connection itself."""


@dataclass(frozen=True, slots=True)
class Case:
    """A stream, and how it ends."""

    end: End
    data: bytes


def ending(end: End, begin: bytes, **streams: bytes) -> dict[str, Case]:
    """Cases by name that have the same end and the same beginning."""
    return {name: Case(end, begin + stream) for name, stream in streams.items()}


def performative(code: int, encoded_list: bytes, **header: Any) -> bytes:
    """A performative whose list is given in encoded form, so that it can be wrong."""
    return framed(b"\x00\x53" + bytes([code]) + encoded_list, **header)


def list32(items: bytes, *, count: int, size: int | None = None) -> bytes:
    length = 4 + len(items) if size is None else size
    return b"\xd0" + length.to_bytes(4, "big") + count.to_bytes(4, "big") + items


def string(content: bytes) -> bytes:
    return b"\xb1" + len(content).to_bytes(4, "big") + content


def nested_lists(depth: int) -> bytes:
    """Nested lists, the innermost empty, each with a correct size and count."""
    encoded = b"\x45"
    for _ in range(depth):
        encoded = list32(encoded, count=1)
    return encoded


def attach_with(**changed: Any) -> bytes:
    """An attach of a receiver in which some fields are wrong."""
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
    """An attach of a receiver whose source is given in encoded form."""
    items = b"\xa1\x07hostile" + b"\x43\x41\x50\x00\x50\x00" + source + b"\x00\x53\x29\x45"
    return performative(ATTACH, list32(items, count=7))


def map32(items: bytes, *, count: int) -> bytes:
    return b"\xd1" + (4 + len(items)).to_bytes(4, "big") + count.to_bytes(4, "big") + items


def attach_filtered(filters: bytes) -> bytes:
    """An attach of a receiver whose source has a filter-set that is given in encoded form."""
    return attach_from(b"\x00\x53\x28" + list32(b"\xa1\x07hostile" + b"\x40" * 6 + filters, count=8))


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


FILTER = b"\xa3\x13rewind:replay-start"
NULLS_4_BILLION = b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40"
"""An array of nulls: they take no bytes, so that only the count says how many there are."""


def attach_replaying(value: bytes) -> bytes:
    """An attach of a receiver whose replay start is given in encoded form."""
    return attach_filtered(map32(FILTER + b"\x00" + FILTER + value, count=2))


NESTED_SELECTOR = Described(
    Symbol("apache.org:selector-filter:string"), "(" * 20_000 + "a = 1" + ")" * 20_000
)
ANONYMOUS_INIT = sasl(SASL_INIT, Symbol("ANONYMOUS"))
ENCODED_LIST_OF_4_BILLION = list32(b"", count=UNSIGNED_MAX)
HTTP = b"GET / HTTP/1.1\r\n"
FINAL = frame(CLOSE, [])
DURABLE = source_of("topic://a", expiry=Symbol("never"))

BEFORE_OPEN = {
    **ending(
        End.HANDSHAKE,
        b"",
        nothing=b"",
        http=HTTP + b"Host: localhost\r\n\r\n",
        tls_hello=bytes.fromhex("16030100a5010000a10303") + NOISE[:160],
        noise=NOISE,
        header_amqp_0_9_1=b"AMQP\x00\x00\x09\x01",
        header_amqp_1_1=b"AMQP\x00\x01\x01\x00",
        header_tls=b"AMQP\x02\x01\x00\x00",
        header_cut=b"AMQP\x03",
        sasl_then_http=TO_OPEN[:-8] + HTTP + b"\r\n",
    ),
    **ending(
        End.HANDSHAKE,
        TO_SASL,
        sasl_frame_of_4_gib=framed(b"", size=UNSIGNED_MAX, kind=1),
        sasl_frame_of_4_bytes=framed(b"", size=4, kind=1),
        sasl_frame_empty=framed(b"", kind=1),
        sasl_frame_body_behind_its_end=framed(b"", offset=255, kind=1),
        sasl_frame_is_amqp=open_frame(),
        sasl_frame_cut=ANONYMOUS_INIT[:12],
        sasl_noise=NOISE,
        sasl_mechanism_unknown=sasl(SASL_INIT, Symbol("GUESS"), b""),
        sasl_mechanism_not_offered=sasl(SASL_INIT, Symbol("PLAIN"), b"\0a\0b"),
        sasl_mechanism_is_a_number=sasl(SASL_INIT, ULong(7)),
        sasl_init_without_fields=sasl(SASL_INIT),
        sasl_response_first=sasl(SASL_RESPONSE, b""),
        sasl_outcome_by_the_client=sasl(SASL_OUTCOME, UByte(0)),
        sasl_list_of_4_billion=performative(SASL_INIT, ENCODED_LIST_OF_4_BILLION, kind=1),
        sasl_nested=performative(SASL_INIT, nested_lists(200), kind=1),
        sasl_twice=sasl(SASL_INIT, Symbol("ANONYMOUS"), b"") + TO_SASL,
    ),
    **ending(End.REFUSED, b"", header_only=AMQP_HEADER),
    **ending(
        End.REFUSED,
        TO_OPEN,
        begin_before_open=begin_frame(),
        open_cut=open_frame()[:-3],
        heartbeats_before_open=framed(b"") * 100,
    ),
}

FRAMES = {
    **ending(
        End.PROTOCOL,
        OPENED,
        frame_noise=NOISE,
        frame_of_0_bytes=framed(b"", size=0),
        frame_of_7_bytes=framed(b"", size=7),
        frame_of_4_gib=framed(b"", size=UNSIGNED_MAX),
        frame_of_2_gib=framed(b"", size=2**31),
        frame_over_max_announced=framed(b"", size=65_537),
        frame_over_max_sent=begin_frame() + frame(ATTACH, [string(bytes(70_000)).hex()]),
        frame_body_in_its_header=framed(b"", offset=1),
        frame_body_behind_its_end=framed(b"", offset=255),
        frame_is_sasl=ANONYMOUS_INIT,
        frame_is_of_no_type=framed(b"", kind=9),
        frame_performative_unknown=frame(0x77, []),
        frame_performative_is_a_string=framed(b"\x00\x53\x11" + string(b"begin")),
    ),
    **ending(
        End.REFUSED,
        OPENED,
        frame_performative_is_noise=framed(NOISE[:200]),
        frame_performative_cut=framed(b"\x00\x53"),
    ),
    **ending(End.SILENCE, OPENED, frame_cut=begin_frame()[:9], frame_heartbeats=framed(b"") * 10_000),
}

TYPES = {
    **ending(
        End.REFUSED,
        TO_OPEN,
        open_list_of_4_billion=performative(OPEN, ENCODED_LIST_OF_4_BILLION),
        open_list_size_beyond=performative(OPEN, list32(b"", count=1, size=UNSIGNED_MAX)),
        open_without_fields=frame(OPEN, []),
        open_container_not_utf8=performative(OPEN, list32(string(b"\xff\xfe"), count=1)),
        open_hostname_not_utf8=performative(OPEN, list32(string(b"a") + string(b"\xc3"), count=2)),
        open_container_is_a_list=frame(OPEN, [["a"], None]),
    ),
    **ending(
        End.REFUSED,
        BEGUN,
        attach_list_of_4_billion=performative(ATTACH, list32(b"\xa1\x01a", count=UNSIGNED_MAX)),
        attach_string_beyond=performative(ATTACH, list32(b"\xb1\xff\xff\xff\xff", count=1)),
        attach_nested_1000=performative(ATTACH, nested_lists(1_000)),
        attach_nested_7000=performative(ATTACH, nested_lists(7_000)),
        attach_filters_of_odd_count=attach_filtered(map32(FILTER, count=1)),
        attach_filter_nested_6000=attach_replaying(nested_lists(6_000)),
        attach_filter_of_4_billion_nulls=attach_replaying(NULLS_4_BILLION),
        attach_name_not_utf8=performative(ATTACH, list32(string(b"\xff") + b"\x43\x41", count=3)),
        attach_address_not_utf8=attach_from(b"\x00\x53\x28" + list32(string(b"\xc0\x80"), count=1)),
    ),
    **ending(
        End.REFUSED_LINK,
        BEGUN,
        attach_filters_are_a_list=attach_filtered(list32(FILTER, count=1)),
        attach_filter_nested_20=attach_replaying(nested_lists(20)),
        attach_filter_key_is_a_float=attach_filtered(
            map32(b"\x82" + bytes(8) + b"\x00" + FILTER + b"\x45", count=2)
        ),
        attach_selector_nested=attach_with(
            source=source_of("hostile", filters={Symbol("jms-selector"): NESTED_SELECTOR})
        ),
    ),
}

STATES = {
    **ending(
        End.SILENCE,
        BEGUN,
        attach_target_is_a_source=attach_with(
            role=False, source=None, target=source_of("hostile"), initial=UInt(0)
        ),
        attach_queue_name_with_nul=attach_with(source=source_of("queue://nul\0name")),
        attach_queue_name_of_50_kb=attach_with(source=source_of("queue://" + "n" * 50_000)),
    ),
    **ending(
        End.REFUSED,
        BEGUN,
        begin_twice=begin_frame(),
        attach_handle_twice=SENDER + attach_frame(0, receiver=True, address="hostile", name="other"),
        attach_handle_2_billion=attach_frame(2**31, receiver=False, address="hostile"),
    ),
    **ending(
        End.SESSION,
        BEGUN,
        attach_without_fields=frame(ATTACH, []),
        attach_source_is_a_number=attach_with(source=ULong(3)),
        attach_durable_topic_without_name=attach_with(name=None, source=DURABLE),
    ),
    **ending(
        End.REFUSED_LINK,
        BEGUN,
        attach_address_is_a_map=attach_with(source=source_of({Symbol("a"): 1})),
        attach_durable_topic_with_empty_name=attach_with(name="", source=DURABLE),
        attach_topic_with_hole=attach_with(source=source_of("topic://a//b")),
        attach_replay_start_unknown=attach_with(source=source_of("log://>?replay-start=whenever")),
    ),
    **ending(
        End.PROTOCOL,
        BEGUN,
        attach_name_twice=SENDER + attach_frame(1, receiver=False, address="hostile", name="link-0"),
        attach_modes_unknown=attach_with(snd=UByte(77), rcv=UByte(77)),
        attach_after_end=frame(END, []) + SENDER,
        flow_unknown_handle=flow_frame(7, 0, 10),
        transfer_unknown_handle=transfer_frame(7, 0, data(b"x")),
        transfer_before_its_window=SENDER + transfer_frame(0, 0, data(b"x")),
        disposition_of_4_billion=RECEIVER
        + frame(DISPOSITION, [True, UInt(0), UInt(UNSIGNED_MAX - 1), True, Described(ULong(0x24), [])]),
        disposition_backwards=RECEIVER + frame(DISPOSITION, [True, UInt(9), UInt(3), True]),
        detach_unknown_handle=frame(DETACH, [UInt(9), True]),
        detach_twice=SENDER + frame(DETACH, [UInt(0), True]) * 2,
        end_twice=frame(END, []) * 2,
    ),
    **ending(
        End.PROTOCOL,
        OPENED,
        attach_before_begin=SENDER,
        flow_before_begin=flow_frame(0, 0, 10),
        transfer_before_begin=transfer_frame(0, 0, data(b"x")),
        end_before_begin=frame(END, []),
        channel_65535=framed(begin_frame()[8:], channel=65_535),
    ),
    **ending(End.SILENCE, OPENED, open_twice=open_frame()),
    **ending(End.REFUSED, OPENED, begin_300_times=begin_frame() * 300),
    **ending(
        End.CLOSE,
        OPENED,
        close_with_nonsense=frame(CLOSE, [Described(ULong(0x1D), [Symbol("x"), 7, ["y"]])]),
        close_then_noise=FINAL + NOISE,
        begin_after_close=FINAL + begin_frame(),
    ),
}

CASES = {**BEFORE_OPEN, **FRAMES, **TYPES, **STATES}
