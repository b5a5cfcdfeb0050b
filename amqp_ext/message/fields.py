"""
Single fields of an encoded message, read without decoding the rest: priority and time-to-live in its header (AMQP 1.0
section 3.2.1), its delivery time, message-ids as people write them, and the trace that it belongs to (W3C Trace
Context). Also batches: many messages in one delivery.

Batches of a log reader: if the reader asked for them, a delivery brings several messages, each whole, in a data section
of its own. The envelope is an ordinary message whose body is data sections (AMQP 1.0 section 3.2.6), as in the batches
that Event Hubs' clients send.

A reader asks with the link property ``rewind:batches`` (true) on an attach with snd-settle-mode ``settled``. The answer
has the property, too, if batches are granted. Many messages then share the cost of a delivery in engines and loops: for
readers of millions of messages.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from struct import Struct
from struct import error as StructError
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from amqp_ext.codec import CodecError
from amqp_ext.message.sections import (
    SOME,
    Header,
    MessageView,
    TooMuchWork,
    all_begin_with,
    read_header,
    to_address,
)

T = TypeVar("T")

REMEMBERED_HEADERS: Final = 1_024
"""How many different headers are cached for each field; a full cache is cleared."""

_SHORT_HEADER: Final = b"\x00\x53\x70\xc0"
_CODE: Final = b"\x70"


def header_field(get: Callable[[Header], T], default: T) -> Callable[[bytes], T]:
    """
    A reader of one header field, for messages that have something before their bare message; only that part need be
    given.

    Args:
        default: The value if there is no header, or none that can be read.
    """

    memo: dict[bytes, T] = {}

    def read(content: bytes) -> T:
        try:
            return get(read_header(content))
        except CodecError:
            return default

    def field_of(content: bytes) -> T:
        start = content[:4]
        if start != _SHORT_HEADER:
            # No header in front, or one in an encoding nobody uses; or a long one.
            return read(content) if start[2:3] == _CODE else default
        header = content[: content[4] + 5]
        try:
            return memo[header]
        except KeyError:
            if len(memo) >= REMEMBERED_HEADERS:
                memo.clear()
            value = memo[header] = read(content)
            return value

    return field_of


LOWEST: Final = 0
DEFAULT: Final = 4
"""The priority if there is no header, or it gives none, or it cannot be read."""
HIGHEST: Final = 9

priority_of: Final[Callable[[bytes], int]] = header_field(
    lambda header: min(max(header.priority, LOWEST), HIGHEST), DEFAULT
)
"""The priority of a message that has something before its bare message; only that part need be given."""


def priorities_of(contents: Iterable[bytes], bares: Iterable[int]) -> list[int]:
    """The priorities of received messages; ``bares`` are the offsets of their bare messages, 0 without a header."""
    return [priority_of(content) if bare else DEFAULT for content, bare in zip(contents, bares, strict=False)]


ttl_of: Final[Callable[[bytes], int | None]] = header_field(lambda header: header.ttl_ms, None)
"""The time to live of a message in ms; None if it never expires, or its header cannot be read."""

DELIVERY_TIME: Final = "x-opt-delivery-time"
"""Message annotation: when to deliver, in ms since the epoch (Artemis; Qpid JMS sends it)."""
DELIVERY_DELAY: Final = "x-opt-delivery-delay"
"""Message annotation: after how many ms to deliver (Artemis). With both, the time counts."""

DELIVERY_ANNOTATIONS: Final = frozenset({DELIVERY_TIME, DELIVERY_DELAY})
"""The annotations that the gateway leaves out of its copies of a message: the delivery time has passed."""

_DELIVERY_MARK: Final = b"x-opt-delivery-"
_LATEST_MS: Final = 1 << 53
"""Some 285,000 years: a later time is a mistake in the unit."""


class DeliveryTimeError(ValueError):
    """A message has an invalid delivery time; the text is a sentence for its sender."""


def delivery_times(
    contents: list[bytes], bares: Sequence[int], now_ms: int
) -> list[int | DeliveryTimeError] | None:
    """
    The delivery times of messages, in ms since the epoch: 0 for immediate delivery, an error for an invalid time. None
    if all are to be delivered immediately.

    Args:
        bares: Where their bare messages begin.
        now_ms: When they arrived, in ms since the epoch.
    """
    if max(bares) <= len(_DELIVERY_MARK):
        return None
    # Messages often have the same delay, and so the same front.
    front = contents[0][: bares[0]]
    if bares.count(bares[0]) == len(bares) and all_begin_with(front, contents, 0):
        time = _time_in(front, now_ms)
        return [time] * len(contents) if time else None
    times: list[int | DeliveryTimeError] = []
    front, time = b"", 0
    for content, bare in zip(contents, bares, strict=True):
        if bare != len(front) or not content.startswith(front):
            front = content[:bare]
            time = _time_in(front, now_ms)
        times.append(time)
    return times if any(times) else None


def _time_in(front: bytes, now_ms: int) -> int | DeliveryTimeError:
    at = front.find(_DELIVERY_MARK)
    return 0 if at < 0 else _remembered_time(front, at, now_ms)


_fronts: Final[dict[tuple[bytes, bytes], bool | None]] = {}
"""The bytes of a front before and after a number of fixed width: True if the number is the delivery time, False if it
is the delay, None if it is neither."""
_WIDTHS: Final = {0x81: 8, 0x83: 8, 0x80: 8, 0x71: 4, 0x70: 4}
"""Octets of numbers, by their format codes."""
_LONGEST_FRONT: Final = 512
"""The longest front, in bytes, that is cached."""
_TRIED: Final = (0x5A5A_5A5A, 0x1234_5678)
_NAME_OF_TIME: Final = DELIVERY_TIME.encode()
_TIME_LENGTH, _DELAY_LENGTH = len(DELIVERY_TIME), len(DELIVERY_DELAY)


def _remembered_time(front: bytes, mark: int, now_ms: int) -> int | DeliveryTimeError:
    """
    Like ``_delivery_time``, at a tenth of the cost if many fronts differ only in the number.

    Args:
        front: The bytes before the bare message.
        mark: Where the name of the annotation seems to begin.
    """
    length = len(front)
    start = mark + (_TIME_LENGTH if front.startswith(_NAME_OF_TIME, mark) else _DELAY_LENGTH) + 1
    stop = start + _WIDTHS.get(front[start - 1], 0) if start < length else 0
    if start < stop <= length <= _LONGEST_FRONT:
        around = front[:start], front[stop:]
        if around not in _fronts:
            if len(_fronts) >= REMEMBERED_HEADERS:
                _fronts.clear()
            _fronts[around] = _is_time_there(*around, stop - start)
        is_time = _fronts[around]
        value = int.from_bytes(front[start:stop], "big")
        if is_time is not None and value <= _LATEST_MS and not front[start] & 0x80:
            due_ms = value if is_time else now_ms + value
            return due_ms if due_ms > now_ms else 0
    return _delivery_time(front, length, now_ms)


def _is_time_there(before: bytes, behind: bytes, width: int) -> bool | None:
    """The value for ``_fronts``, by trial: put numbers there, and see whether the delivery time follows them."""
    fronts = [before + tried.to_bytes(width, "big") + behind for tried in _TRIED]
    read = [_delivery_time(front, len(front), 1) for front in fronts]
    return True if read == [*_TRIED] else False if read == [1 + tried for tried in _TRIED] else None


def _delivery_time(content: bytes, bare: int, now_ms: int) -> int | DeliveryTimeError:
    try:
        annotations = MessageView(content, bare).message_annotations
    except TooMuchWork as error:
        return DeliveryTimeError(
            f"the message has a delivery time, but too many annotations to read it: {error}"
        )
    except CodecError:
        return 0
    at = annotations.get(DELIVERY_TIME)
    name, value = (DELIVERY_DELAY, annotations.get(DELIVERY_DELAY)) if at is None else (DELIVERY_TIME, at)
    if value is None:
        return 0
    if not _is_time(value):
        return DeliveryTimeError(f"{name} is a whole number of milliseconds, up to 2^53, not {value!r:.60}")
    due_ms = value if at is not None else now_ms + value
    return due_ms if due_ms > now_ms else 0


def _is_time(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LATEST_MS


DEDUP_ID: Final = "x-opt-dedup-id"
"""Message annotation: the id by which duplicates are recognised, in place of the message-id."""

_DEDUP_MARK: Final = DEDUP_ID.encode()
_PROPERTIES: Final = b"\x00\x53\x73"
_SHORT_PROPERTIES: Final = _PROPERTIES + b"\xc0"
_TEXTS: Final = (b"\xa0", b"\xa1")
_LONG_DESCRIPTOR: Final = b"\x00\x80"
_FIXED_IDS: Final = {0x98: 17, 0x80: 9}
"""Octets of a uuid, and of a ulong in full."""
_LONGEST_KEPT: Final = 32
"""The longest id, in bytes, that is kept as it is; a longer one is replaced by a hash of 128 bits (BLAKE2b). Two of ten
million ids have the same hash by accident once in 10^24; a publisher that makes two such ids loses a message of its
own."""


def publisher_ids(contents: list[bytes], bares: Sequence[int]) -> list[bytes]:
    """
    The publishers' ids of messages: short bytes that differ for each id and each type of id (AMQP 1.0 section 3.2.4: a
    ulong, uuid, binary or string), however it is encoded. Empty if a message has no id that can be read.

    Messages that come together mostly have ids of one type and length, after the same bytes: a comparison takes a third
    of the time that reading each id takes.

    Args:
        bares: Where their bare messages begin.
    """
    if len(contents) >= SOME:
        first, start = contents[0], bares[0] + 6
        usual = _publisher_id(first, bares[0])
        front = first[: start + (2 if usual[:1] in _TEXTS else 1)]
        is_kept = usual != b"" and first.startswith(usual, start)
        if is_kept and first.startswith(_SHORT_PROPERTIES, start - 6) and _DEDUP_MARK not in front:
            stop = start + len(usual)
            if all_begin_with(front, contents, stop - len(front)):
                return [content[start:stop] for content in contents]
            return [
                content[start:stop]
                if content.startswith(front) and len(content) >= stop
                else _publisher_id(content, bare)
                for content, bare in zip(contents, bares, strict=True)
            ]
    return [_publisher_id(content, bare) for content, bare in zip(contents, bares, strict=True)]


def _publisher_id(content: bytes, bare: int) -> bytes:
    try:
        if bare and content.find(_DEDUP_MARK, 0, bare) >= 0:
            said = MessageView(content, bare).message_annotations.get(DEDUP_ID)
            if said is not None:
                return _id_key(said)
        if content[bare : bare + 3] == _PROPERTIES:
            code = content[bare + 3]
            # A short list that is not empty, with an id that is kept as it is: what most clients send.
            if code == 0xC0 and content[bare + 5]:
                start, kind = bare + 6, content[bare + 6]
                size = 2 + content[bare + 7] if kind in (0xA1, 0xA0) else _FIXED_IDS.get(kind, 0)
                if 0 < size <= 2 + _LONGEST_KEPT and start + size <= len(content):
                    return content[start : start + size]
        elif content[bare : bare + 2] != _LONG_DESCRIPTOR:
            return b""
        return _id_key(MessageView(content, bare).properties.message_id)
    except (CodecError, TooMuchWork, IndexError):
        return b""


def _id_key(one: Any) -> bytes:
    """A code for the type, and the id; the code, or a length after it, says where the id ends (``split_ids``)."""
    if isinstance(one, bool) or one is None:
        return b""
    if isinstance(one, UUID):
        return b"\x98" + one.bytes
    if isinstance(one, int):
        return b"\x80" + int(one).to_bytes(8, "big") if 0 <= one <= _MAX_ULONG else b""
    if not isinstance(one, (str, bytes)):
        return b""
    code, value = (b"\xa1", one.encode()) if isinstance(one, str) else (b"\xa0", bytes(one))
    if len(value) <= _LONGEST_KEPT:
        return code + bytes([len(value)]) + value
    return b"#" + blake2b(code + value, digest_size=16).digest()


def split_ids(joined: bytes) -> list[bytes]:
    """Cut joined ids of ``publisher_ids`` into the single ids."""
    found: list[bytes] = []
    start = 0
    while start < len(joined):
        code = joined[start]
        size = 2 + joined[start + 1] if code in (0xA0, 0xA1) else 9 if code == 0x80 else 17
        found.append(joined[start : start + size])
        start += size
    return found


def retry_time(annotations: Any) -> int:
    """
    When to redeliver a message, by the annotations of the outcome modified, in ms since the epoch; 0 if they do not say
    (RabbitMQ 4.3, "Delayed Retry", "Explicit Delivery Time").

    Raises:
        DeliveryTimeError: The annotations have an invalid time.
    """
    value = annotations.get(DELIVERY_TIME) if isinstance(annotations, dict) else None
    if value is None:
        return 0
    if not _is_time(value):
        raise DeliveryTimeError(
            f"{DELIVERY_TIME} in modified, the time to deliver again, is a whole number of milliseconds since "
            f"1970, up to 2^53, not {value!r:.60}"
        )
    return int(value)


class Destination(NamedTuple):
    """The destination of a message to the anonymous relay."""

    address: str | None
    """The message's ``to``."""

    capabilities: tuple[str, ...]
    """The capabilities of a target for it: JMS clients say them in the annotation ``x-opt-jms-dest``."""


_JMS_DESTINATION: Final = "x-opt-jms-dest"
_JMS_DESTINATION_MARK: Final = _JMS_DESTINATION.encode()
_JMS_DESTINATIONS: Final = {0: ("queue",), 1: ("topic",), 2: ("queue",), 3: ("topic",)}
"""Queue, topic, temporary queue, temporary topic."""


def destination_of(content: bytes, bare: int) -> Destination:
    """
    The destination of a message to the anonymous relay.

    Args:
        bare: Where its bare message begins.

    Raises:
        CodecError: The content is not a message.
    """
    address = to_address(content, bare)
    if content.find(_JMS_DESTINATION_MARK, 0, bare) < 0:
        return Destination(address, ())
    kind = MessageView(content, bare).message_annotations.get(_JMS_DESTINATION)
    return Destination(address, _JMS_DESTINATIONS.get(kind, ()) if isinstance(kind, int) else ())


MessageId: TypeAlias = "str | int | UUID | bytes"

JMS_TYPE_PREFIX: Final = "ID:AMQP_"
"""The prefix with which a JMS client shows an id that is not a string."""

_MAX_ULONG: Final = (1 << 64) - 1
_ULONG: Final = re.compile(r"0|[1-9][0-9]{0,19}", re.ASCII)
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_BINARY: Final = re.compile(r"([0-9a-f]{2})+", re.ASCII | re.IGNORECASE)


def readings(text: str) -> frozenset[MessageId]:
    """Every message-id that ``text`` stands for: the string itself, and other types if the text has their form."""
    found: set[MessageId] = {text}
    prefix = next((p for p in ("ULONG:", "UUID:", "BINARY:") if text.startswith(JMS_TYPE_PREFIX + p)), None)
    rest = text if prefix is None else text[len(JMS_TYPE_PREFIX) + len(prefix) :]
    if prefix in (None, "ULONG:") and _ULONG.fullmatch(rest) and int(rest) <= _MAX_ULONG:
        found.add(int(rest))
    if prefix in (None, "UUID:") and _UUID.fullmatch(rest):
        found.add(UUID(rest))
    if prefix in (None, "BINARY:") and _BINARY.fullmatch(rest):
        found.add(bytes.fromhex(rest))
    return frozenset(found)


def text_of(value: MessageId) -> str:
    """The text that stands for ``value`` in its type alone; a string stands for itself."""
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{JMS_TYPE_PREFIX}ULONG:{int(value)}"
    if isinstance(value, UUID):
        return f"{JMS_TYPE_PREFIX}UUID:{value}"
    return f"{JMS_TYPE_PREFIX}BINARY:{value.hex().upper()}"


def traces(ids: frozenset[MessageId]) -> tuple[bytes, ...]:
    """Byte strings, one of which is in every message with one of these ids; empty if there are no such strings."""
    found = [_trace(one) for one in ids]
    return tuple(found) if all(found) else ()


def _trace(one: MessageId) -> bytes:
    if isinstance(one, str):
        return one.encode()
    if isinstance(one, int):
        # Whatever its width, an encoded number ends with its own octets; zero has an encoding without any.
        return one.to_bytes((one.bit_length() + 7) // 8, "big")
    return one.bytes if isinstance(one, UUID) else one


TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

LOOKED_AT: Final = 4_096
"""The first bytes of a message, in which its trace context is looked for: it comes before the body."""

MOST_STATE: Final = 512
"""Characters of a tracestate that are passed on (W3C Trace Context, section 3.3.1.5); a longer one is left out."""

NEEDLE: Final = TRACEPARENT.encode()
"""Occurs in every message that has a trace context."""

_PARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_STATE: Final = re.compile(r"[\x20-\x7e]*")


class TraceContext(NamedTuple):
    """The place of a message in a trace: the ids of the trace and of the span that it was sent in."""

    trace_id: int
    span_id: int
    is_sampled: bool
    state: str = ""


def may_have_context(content: bytes) -> bool:
    """Whether a look at a message's sections may find a trace context; a quick search of some bytes."""
    return content.find(NEEDLE, 0, LOOKED_AT) >= 0


def context_of(content: bytes, bare: int) -> TraceContext | None:
    """
    The trace context of a message; None where it has none, or none that can be read.

    Args:
        bare: Where the bare message begins.
    """
    view = MessageView(content, bare)
    for section in ("application_properties", "message_annotations"):
        try:
            found: dict[Any, Any] = getattr(view, section)
        except CodecError:
            continue
        context = parse_context(found.get(TRACEPARENT), found.get(TRACESTATE))
        if context is not None:
            return context
    return None


def parse_context(parent: Any, state: Any = None) -> TraceContext | None:
    """
    The context of a ``traceparent`` with its ``tracestate``; None if the ``traceparent`` is invalid.

    An unknown version is read like the first one, as the recommendation says. Version ff and ids of zero are invalid.
    """
    found = _PARENT.fullmatch(parent) if isinstance(parent, str) and len(parent) <= MOST_STATE else None
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
        return None
    trace_id, span_id = int(found[2], 16), int(found[3], 16)
    if not trace_id or not span_id:
        return None
    is_state = isinstance(state, str) and len(state) <= MOST_STATE and _STATE.fullmatch(state)
    return TraceContext(trace_id, span_id, bool(int(found[4], 16) & 1), state if is_state else "")


BATCHES: Final = "rewind:batches"

DATA_HEAD: Final = 0x005375B0
"""The head of a data section whose size is in the next four bytes: the only encoding that is used here."""
_HEAD: Final = Struct(">II")
_pack = _HEAD.pack
HEAD_SIZE: Final = _HEAD.size
"""Octets in front of each message of an envelope."""


def head_of(size: int) -> bytes:
    """The octets before a message of ``size`` octets."""
    return _pack(DATA_HEAD, size)


def batch_of(fronts: Iterable[bytes], rests: Iterable[bytes]) -> bytes:
    """The envelope for messages that are given in two parts each."""
    parts: list[bytes] = []
    for front, rest in zip(fronts, rests, strict=True):
        parts += (head_of(len(front) + len(rest)), front, rest)
    return b"".join(parts)


def ends_of(envelope: bytes) -> list[int]:
    """
    Where each message of an envelope ends; the next one begins ``HEAD_SIZE`` octets after that.

    Raises:
        CodecError: The bytes are not an envelope.
    """
    ends: list[int] = []
    read, size, data, end = _HEAD.unpack_from, HEAD_SIZE, DATA_HEAD, len(envelope)
    append = ends.append
    start = position = 0
    try:
        while position < end:
            start = position
            found, length = read(envelope, position)
            if found != data:
                break
            position += size + length
            append(position)
    except StructError:
        pass  # the envelope is cut short
    if position != end:
        raise CodecError(start, "a batch is data sections with sizes of four bytes, and nothing else")
    return ends
