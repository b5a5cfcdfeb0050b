"""
What the gateway puts before the bare message: header and message annotations of delivered messages, spliced, never
re-encoded; annotations of copies of logged messages; and the content that replaces an erased message.

The bare message follows bit for bit. The front of a message is taken apart only if the message brought annotations of
its own, or if a delivery of it has failed; other messages get a filled-in template. One ``Splicer`` serves one kind of
link of one log.

Annotations delivered (AMQP 1.0 section 3.2.10; clients may ignore ``x-opt-`` keys that they do not know):

=========================  =========  =============================================================================
``x-opt-topic``            string     what the message was published to
``x-opt-sequence-number``  long       the id
``x-opt-enqueued-time``    timestamp  arrival
``x-opt-replay-id``        string     ``rmid1:…``: the id with the log's generation
``x-opt-offset``           string     the id in decimal (Event Hubs)
``x-opt-replay-end``       boolean    true on the last message before live
``x-stream-offset``        long       the id, only for links that used RabbitMQ's filter
``x-opt-replay-name``      string     the replay that delivers it; replaces what the message came with
=========================  =========  =============================================================================

Annotations of copies, which a replay publishes with the bare message bit for bit:

============================  ======  =====================================================
``x-opt-replay-name``         string  the replay that published the copy
``x-opt-replay-source-topic`` string  the topic that the original was published to
``x-opt-replay-source-id``    long    the id of the original in the log it came from
============================  ======  =====================================================

A copy of a copy names the later replay, and the first original: so consumers recognise a message that they have
handled.

Annotations of an erased message, which has its header and no body:

======================  =========  =============================================================
``x-opt-erased-time``   timestamp  when it was erased
``x-opt-erased-reason`` string     why, in the words of whoever erased it; may be empty
======================  =========  =============================================================

The header stays: time to live and priority are not content, and queues need them. The body is the AMQP value null (AMQP
1.0 section 3.2.8).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

from amqp_ext import codec
from amqp_ext.codec import Long, Symbol, Timestamp, UByte, UInt
from amqp_ext.message.fields import DATA_HEAD, DELIVERY_ANNOTATIONS, HEAD_SIZE, batch_of, head_of
from amqp_ext.message.sections import (
    HEADER,
    MESSAGE_ANNOTATIONS,
    Header,
    bare_offset,
    message_annotations,
    read_header,
    split_front,
)
from amqp_ext.replay_id import format_replay_id

OutgoingRow: TypeAlias = "tuple[int, int, str, int, int, int | None, bytes]"

PACK_CACHE: Final = 1_024
"""The size of two caches: layouts of fronts, one for each combination of the lengths of topic, header and offset; and
starts of fronts, one for each topic. A full cache is cleared."""

LONGEST_FRONT: Final = 512
"""The longest front of a message, in bytes, that is cached with what was found in it."""

RUN: Final = 256
"""How many ids have replay ids that differ only in their last two digits."""

REPLAY_NAME: Final = "x-opt-replay-name"
"""The annotation by which consumers know that they may have received a message before."""

OURS: Final = frozenset(
    {
        "x-opt-topic",
        "x-opt-sequence-number",
        "x-opt-enqueued-time",
        "x-opt-replay-id",
        "x-opt-offset",
        "x-opt-replay-end",
        "x-stream-offset",
    }
)
_LONG: Final = struct.Struct(">q").pack
_SIZES: Final = struct.Struct(">II").pack
_MAP32: Final = b"\x00\x53\x72\xd1"
_END: Final = codec.encode(Symbol("x-opt-replay-end")) + b"\x41"
_STREAM_OFFSET: Final = codec.encode(Symbol("x-stream-offset")) + b"\x81"
_FIRST_PAIRS: Final = 5
_LAST_DIGITS: Final = [b"%02x" % number for number in range(RUN)]
_UINT_MAX: Final = 2**32 - 1
_SHORT_HEADER: Final = b"\x00\x53\x70\xc0"


@dataclass(slots=True)
class ReplayMark:
    """The mark on replayed history that a reader gets."""

    name: str
    below: int | None = None
    """Ids from this one on are not history; None while that is not known: then all ids are history."""


class Splicer:
    """
    Args:
        generation: The log's generation, part of every replay id.
        stream_offset: Whether the link asked with RabbitMQ's filter.
        replay_name: The replay's name, which marks all messages; empty for no mark.
    """

    def __init__(self, generation: int, *, stream_offset: bool = False, replay_name: str = "") -> None:
        self._generation = generation
        self._stream_offset = stream_offset
        # The mark is the first of our annotations: those after it are the same, in the same order, without it.
        self._mark = codec.encode(Symbol(REPLAY_NAME)) + codec.encode(replay_name) if replay_name else b""
        self._keys = OURS | {REPLAY_NAME} if replay_name else OURS
        self._pairs = _FIRST_PAIRS + bool(replay_name)
        replay_id = format_replay_id(generation, 0)
        # The last digits of a replay id, and the offset, are all that changes within a run of ids.
        self._replay_id = replay_id[: -len("00000000-00000000")].encode()
        self._before_time = codec.encode(Symbol("x-opt-enqueued-time")) + b"\x83"
        self._before_replay_id = codec.encode(Symbol("x-opt-replay-id")) + b"\xa1" + bytes([len(replay_id)])
        self._before_offset = codec.encode(Symbol("x-opt-offset")) + b"\xa1"
        self.pieces = (
            (2 * self._pairs).to_bytes(4, "big") + self._mark + codec.encode(Symbol("x-opt-topic")),
            codec.encode(Symbol("x-opt-sequence-number")) + b"\x81",
            self._before_time,
            self._before_replay_id + self._replay_id,
            self._before_offset,
        )
        """The constant pieces of the map of annotations, for code that writes the map itself. The first follows the
        map's size (four octets). Each is followed by a value: the topic, the id, the time, the end of the replay id
        (eight and eight hexadecimal digits), the offset (one octet of size, decimal digits)."""
        # The run that the template was made for: one topic, one time, ids from _first to below _stop.
        self._topic = ""
        self._time_ms = -1
        self._first = self._stop = 0
        self._start = self._middle = self._end = self._high = b""
        self._digit_count = 0
        # The front that the last message brought, our start that it was joined with, and the two joined up to the id.
        self._theirs = self._joined_of = self._joined = b""
        self._starts: dict[str, bytes] = {}
        self._packs: dict[tuple[int, int, int, bool], tuple[Callable[..., bytes], int]] = {}

    def marked(self, replay_name: str) -> Splicer:
        """The same splicer with a mark on all messages."""
        return Splicer(self._generation, stream_offset=self._stream_offset, replay_name=replay_name)

    def is_plain(self, attempts: Mapping[int, int], end_id: int | None) -> bool:
        """Whether all fronts get the same annotations of ours, and no delivery-count; args as for ``fronts``."""
        return not attempts and end_id is None and not self._stream_offset

    def fronts(
        self, rows: Sequence[OutgoingRow], attempts: Mapping[int, int], end_id: int | None
    ) -> list[bytes]:
        """
        What goes in front of the bare message of each row.

        Args:
            rows: (id, time ms, topic, offset of the bare message, anything, anything, content) of each message.
            attempts: Failed deliveries so far, by id: the header's delivery-count.
            end_id: The last message before live, if it is among them.
        """
        if not self.is_plain(attempts, end_id):
            return [
                self.front(i, time_ms, topic, bare, content, attempts.get(i, 0), i == end_id)
                for i, time_ms, topic, bare, _, _, content in rows
            ]
        return self._parts(rows, in_batch=False)

    def batch(self, rows: Sequence[OutgoingRow], attempts: Mapping[int, int], end_id: int | None) -> bytes:
        """
        The whole messages, in one envelope (``amqp_ext.message.fields``).

        Args: as for ``fronts``.
        """
        if not self.is_plain(attempts, end_id):
            rests = [content[bare:] for _, _, _, bare, _, _, content in rows]
            return batch_of(self.fronts(rows, attempts, end_id), rests)
        return b"".join(self._parts(rows, in_batch=True))

    def _parts(self, rows: Sequence[OutgoingRow], *, in_batch: bool) -> list[bytes]:
        """
        The front of each row; in a batch, each with the head of a data section before it and the rest of the message
        after it. One loop does both: a second loop over the fronts of a batch takes half as long again.
        """
        parts: list[bytes] = []
        append = parts.append
        last_digits, data_head = _LAST_DIGITS, DATA_HEAD
        # In most logs topics alternate and headers are alike: what was made for both is kept.
        known: dict[str, tuple[bytes, int, Callable[..., bytes]]] = {}
        topic_now: str | None = None
        header_now: bytes | None = None
        time_now, first, stop, digits = self._time_ms, self._first, self._stop, self._digit_count
        middle, end = self._middle, self._end
        for message_id, time_ms, topic, bare, _, _, content in rows:
            if time_ms != time_now or not first <= message_id < stop:
                self._prepare(message_id, time_ms, topic)
                time_now, first, stop = time_ms, self._first, self._stop
                middle, end = self._middle, self._end
                if digits != self._digit_count:
                    digits = self._digit_count
                    known.clear()
                    topic_now = None
            header = content[:bare]
            if header != header_now:
                if bare and not is_short_header(header):
                    front = self._front_like_the_last(message_id, time_ms, topic, header)
                    if in_batch:
                        rest = content[bare:]
                        parts += (head_of(len(front) + len(rest)), front, rest)
                    else:
                        append(front)
                    continue
                header_now = header
                known.clear()
                topic_now = None
            if topic != topic_now:
                found = known.get(topic)
                if found is None:
                    self._prepare(message_id, time_ms, topic)
                    start = header + self._start
                    pack, size = self._pack(len(start), in_batch=in_batch)
                    # The message grows by its front, which has the header already.
                    found = known[topic] = start, size - HEAD_SIZE - bare, pack
                start, growth, pack = found
                topic_now = topic
            last = last_digits[message_id & 0xFF]
            if in_batch:
                append(
                    pack(
                        data_head,
                        growth + len(content),
                        start,
                        message_id,
                        middle,
                        last,
                        end,
                        b"%d" % message_id,
                    )
                )
                append(content[bare:] if bare else content)
            else:
                append(pack(start, message_id, middle, last, end, b"%d" % message_id))
        return parts

    def front(
        self,
        message_id: int,
        time_ms: int,
        topic: str,
        bare: int,
        content: bytes,
        attempts: int,
        is_end: bool,
    ) -> bytes:
        """The front of one message; ``attempts`` and ``is_end`` are those of this message."""
        if bare and not (attempts or is_end or self._stream_offset):
            return self._front_like_the_last(message_id, time_ms, topic, content[:bare])
        self._prepare(message_id, time_ms, topic)
        annotations = self._filled(self._start, message_id)
        if is_end or self._stream_offset:
            annotations = self._extended(annotations, message_id, is_end)
        if not bare and not attempts:
            return annotations
        return _with_front_of(content, bare, annotations, attempts, self._keys)

    def _front_like_the_last(self, message_id: int, time_ms: int, topic: str, theirs: bytes) -> bytes:
        """The front of a message that brought one: a template, too, if the message before it brought the same."""
        self._prepare(message_id, time_ms, topic)
        if theirs != self._theirs or self._start is not self._joined_of:
            ours = self._filled(self._start, message_id)
            joined = _with_front_of(theirs, len(theirs), ours, 0, self._keys)
            if len(theirs) > LONGEST_FRONT:
                return joined
            behind = len(ours) - len(self._start)
            self._theirs, self._joined_of, self._joined = theirs, self._start, joined[:-behind]
        return self._filled(self._joined, message_id)

    def _filled(self, start: bytes, message_id: int) -> bytes:
        """The start and the rest of the template, filled in with an id of the run that it was made for."""
        pack, _ = self._pack(len(start), in_batch=False)
        last, digits = _LAST_DIGITS[message_id & 0xFF], b"%d" % message_id
        return pack(start, message_id, self._middle, last, self._end, digits)

    def _prepare(self, message_id: int, time_ms: int, topic: str) -> None:
        """Make the template for the run of ids that ``message_id`` is in."""
        if self._first <= message_id < self._stop and time_ms == self._time_ms and topic == self._topic:
            return
        if not self._first <= message_id < self._stop:
            digits = len(b"%d" % message_id)
            if digits != self._digit_count:
                self._starts.clear()
            self._digit_count, self._time_ms = digits, -1
            self._first = max(message_id & -RUN, 10 ** (digits - 1) if digits > 1 else 0)
            self._stop = min((message_id & -RUN) + RUN, 10**digits)
            self._high = b"%08x-%06x" % (message_id >> 32, (message_id >> 8) & 0xFFFFFF)
            self._end = self._before_offset + bytes((digits,))
        if time_ms != self._time_ms:
            self._time_ms = time_ms
            self._middle = (
                self._before_time + _LONG(time_ms) + self._before_replay_id + self._replay_id + self._high
            )
        self._topic = topic
        start = self._starts.get(topic)
        if start is None:
            if len(self._starts) >= PACK_CACHE:
                self._starts.clear()
            start = self._starts[topic] = self._start_of(topic)
        self._start = start

    def _start_of(self, topic: str) -> bytes:
        """The section up to the id: it changes with the topic, and with the number of digits of an id."""
        # Without the number of pairs, which is written below.
        first = self.pieces[0][4:] + codec.encode(topic) + self.pieces[1]
        pairs = len(first) + 8 + len(self._middle) + 2 + len(self._end) + self._digit_count
        # A map's size counts what follows it: the four bytes of the count, and the pairs.
        return _MAP32 + _SIZES(4 + pairs, 2 * self._pairs) + first

    def _pack(self, start_size: int, *, in_batch: bool) -> tuple[Callable[..., bytes], int]:
        """The function that packs a front, in a batch with the head of a data section; and the size of its result."""
        sizes = (start_size, len(self._middle), self._digit_count, in_batch)
        found = self._packs.get(sizes)
        if found is None:
            if len(self._packs) >= PACK_CACHE:
                self._packs.clear()
            layout = struct.Struct(
                f">{'II' if in_batch else ''}{start_size}sq{sizes[1]}s2s{len(self._end)}s{sizes[2]}s"
            )
            found = self._packs[sizes] = layout.pack, layout.size
        return found

    def _extended(self, annotations: bytes, message_id: int, is_end: bool) -> bytes:
        pairs = annotations[12:]
        count = self._pairs
        if is_end:
            pairs += _END
            count += 1
        if self._stream_offset:
            pairs += _STREAM_OFFSET + _LONG(message_id)
            count += 1
        return _MAP32 + _SIZES(4 + len(pairs), 2 * count) + pairs


def is_short_header(header: bytes) -> bool:
    """Whether a front is a header section and nothing else, in the encoding that nearly all senders use."""
    return header[:4] == _SHORT_HEADER and header[4] + 5 == len(header)


def _with_front_of(
    content: bytes, bare: int, annotations: bytes, attempts: int, keys: frozenset[str] = OURS
) -> bytes:
    """Our annotations, joined with the message's own header and its own annotations except ``keys``."""
    taken_apart = _taken_apart if bare <= LONGEST_FRONT else _taken_apart.__wrapped__
    header, pairs, count = taken_apart(content[:bare], keys)
    if attempts:
        header = _counted(content, attempts)
    if count:
        pairs += annotations[12:]
        total = 2 * count + int.from_bytes(annotations[8:12], "big")
        annotations = _MAP32 + _SIZES(4 + len(pairs), total) + pairs
    return header + (annotations if annotations[12:] else b"")


@lru_cache(PACK_CACHE)  # The fronts of a publisher's messages change seldom, and little.
def _taken_apart(front: bytes, keys: frozenset[str]) -> tuple[bytes, bytes, int]:
    """
    The parts of a message's front that are kept: the header section; the encoded pairs of its annotations, without
    ``keys``; and the number of those pairs.
    """
    header = pairs = b""
    count = 0
    for section in split_front(front, len(front)):
        if section.code == HEADER:
            header = front[section.start : section.end]
        elif section.code == MESSAGE_ANNOTATIONS:
            kept = _pairs_of(front[section.start : section.end], keys)
            pairs, count = b"".join(kept), len(kept)
    return header, pairs, count


def _pairs_of(section: bytes, without: frozenset[str]) -> list[bytes]:
    """The encoded pairs of a section of annotations, except those of some keys."""
    start = codec.skip(section, 1)
    wide = section[start] == 0xD1
    count = int.from_bytes(section[start + 5 : start + 9] if wide else section[start + 2 : start + 3], "big")
    position = start + (9 if wide else 3)
    kept = []
    try:
        for _ in range(count // 2):
            key, value = codec.decode(section, position)
            end = codec.skip(section, value)
            if key not in without:
                kept.append(section[position:end])
            position = end
    except (codec.CodecError, TypeError):
        # No valid map, though its size is right. The sender's mistake must not reach the consumers.
        kept.clear()
    return kept


def _counted(content: bytes, attempts: int) -> bytes:
    """The header with its delivery-count raised (AMQP 1.0 section 3.2.1)."""
    try:
        header = read_header(content)
    except codec.CodecError:
        header = Header()
    fields = [
        header.durable,
        UByte(header.priority),
        None if header.ttl_ms is None else UInt(header.ttl_ms),
        False,
        UInt(min(header.delivery_count + attempts, _UINT_MAX)),
    ]
    return b"\x00\x53\x70" + codec.encode(fields)


def annotated(
    content: bytes, annotations: Mapping[str, object], without: Collection[str] = ()
) -> tuple[bytes, int]:
    """
    A message with changed annotations; its header and bare message stay as they were.

    Args:
        annotations: Annotations to add; they replace those of the same names.
        without: Names of annotations to remove.

    Returns:
        The content, and where its bare message begins.
    """
    pairs = b"".join(codec.encode(Symbol(key)) + codec.encode(value) for key, value in annotations.items())
    section = _MAP32 + _SIZES(4 + len(pairs), 2 * len(annotations)) + pairs
    bare = bare_offset(content)
    front = _with_front_of(content, bare, section, 0, frozenset({*annotations, *without}))
    return front + content[bare:], len(front)


SOURCE_TOPIC: Final = "x-opt-replay-source-topic"
SOURCE_ID: Final = "x-opt-replay-source-id"

KNOWN_TOPICS: Final = 1_024
"""How many topics' fronts are cached; a full cache is cleared."""

_BEFORE_ID: Final = codec.encode(Symbol(SOURCE_ID)) + b"\x81"


def origin_of(content: bytes) -> tuple[int, str]:
    """The id and the topic of the message that a message is a copy of; 0 and empty where it does not say."""
    try:
        found = message_annotations(content)
    except codec.CodecError:
        return 0, ""
    source_id, topic = found.get(SOURCE_ID), found.get(SOURCE_TOPIC)
    if not isinstance(source_id, int) or isinstance(source_id, bool) or not 0 < source_id < 2**63:
        return 0, ""
    return int(source_id), topic if isinstance(topic, str) else ""


class CopyFronts:
    """
    The fronts of the copies that one replay publishes.

    Args:
        name: The replay's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pairs = codec.encode(Symbol(REPLAY_NAME)) + codec.encode(name)
        self._by_topic: dict[str, bytes] = {}

    def copies(self, rows: Sequence[OutgoingRow]) -> tuple[list[bytes], list[int]]:
        """
        The copies of logged messages, and where the bare message begins in each.

        Args:
            rows: (id, time ms, topic, offset of the bare message, anything, anything, content) of each.
        """
        contents: list[bytes] = []
        bares: list[int] = []
        by_topic = self._by_topic
        for message_id, _, topic, bare, _, _, content in rows:
            before = by_topic.get(topic) or self._before_id(topic)
            if not bare:
                contents.append(b"".join((before, _LONG(message_id), content)))
                bares.append(len(before) + 8)
                continue
            header = content[:bare]
            if is_short_header(header):
                contents.append(b"".join((header, before, _LONG(message_id), content[bare:])))
                bares.append(bare + len(before) + 8)
                continue
            origin_id, origin_topic = origin_of(content)
            copied, begins = annotated(
                content,
                {
                    REPLAY_NAME: self._name,
                    SOURCE_TOPIC: origin_topic or topic,
                    SOURCE_ID: Long(origin_id or message_id),
                },
                DELIVERY_ANNOTATIONS,
            )
            contents.append(copied)
            bares.append(begins)
        return contents, bares

    def _before_id(self, topic: str) -> bytes:
        """The section of annotations without the id, which ends it."""
        pairs = self._pairs + codec.encode(Symbol(SOURCE_TOPIC)) + codec.encode(topic) + _BEFORE_ID
        # A map's size counts what follows it: the four bytes of the count, and the pairs.
        section = _MAP32 + _SIZES(4 + len(pairs) + 8, 6) + pairs
        if len(self._by_topic) >= KNOWN_TOPICS:
            self._by_topic.clear()
        self._by_topic[topic] = section
        return section


ERASED_TIME: Final = "x-opt-erased-time"
ERASED_REASON: Final = "x-opt-erased-reason"

MOST_REASON: Final = 200
"""The most characters of a reason; the rest is cut off."""

NO_BODY: Final = b"\x00\x53\x77\x40"
"""The body: an AMQP value, null."""


def erased(content: bytes, bare: int, time_ms: int, reason: str) -> tuple[bytes, int]:
    """
    A message's content once it is erased.

    Args:
        content: As received.
        bare: Where its bare message begins.
        time_ms: When it is erased, ms since the epoch.

    Returns:
        The content, and where its bare message begins.
    """
    front = b"".join(
        content[section.start : section.end]
        for section in split_front(content, bare)
        if section.code == HEADER
    )
    annotations = {Symbol(ERASED_TIME): Timestamp(time_ms), Symbol(ERASED_REASON): reason[:MOST_REASON]}
    front += b"\x00\x53\x72" + codec.encode(annotations)
    return front + NO_BODY, len(front)
