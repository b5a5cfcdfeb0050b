"""
Many messages read side by side: they are in one block of octets (``EncodedMessages``), as they came out of a file or
off a link, and are walked one section and one item at a time.

A message read by itself costs Python tens of microseconds. Here numpy takes each step for all messages of a page
together, whatever the lengths of their texts, and Arrow copies texts and bodies out of the block: less than one
microsecond a message. This works for messages in the encoding and of the shape that nearly all senders use. For any
other message ``Unusual`` is raised, which names all of that kind: ``single_message`` reads those.

Most logs have the messages of one sender, or of few: what all messages of a page have in common (the code of an item,
the keys of a map, the front) is found by one comparison and then read once.

Invariant: what is read here is what ``single_message`` reads from the same message. Whatever the bytes, nothing is
read outside the block, and a value that is not wholly inside its message makes it unusual.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from amqp_ext.codec import Symbol, encode
from amqp_ext.message.fields import HEAD_SIZE, ends_of
from amqp_ext.message.sections import (
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
)
from spark_bridge.columns.single_message import text_at

Numbers: TypeAlias = "npt.NDArray[np.int64]"
Flags: TypeAlias = "npt.NDArray[np.bool_]"
Octets: TypeAlias = "npt.NDArray[np.uint8]"

PAGE_ROWS: Final = 8_000  # messages of a page: fewer cost more each, more outgrow the caches
PAGE_BYTES: Final = 4 << 20  # bytes of a page, so that large messages do not pile up
PADDING: Final = 64  # zero octets after the last message: more than is looked at beyond any position


class EncodedMessages(Sequence[bytes]):
    """
    Messages in a block, in order and without overlap.

    Args:
        block: The octets, with ``PADDING`` more after the last message.
        starts: Where each message begins in the block.
        ends: Where each message ends.
    """

    def __init__(self, block: Octets, starts: Numbers, ends: Numbers) -> None:
        self.block = block
        self.starts = starts
        self.ends = ends

    @classmethod
    def of_column(cls, column: pa.BinaryArray) -> EncodedMessages:
        """The values of a column, none of them null."""
        _, edges, octets = column.buffers()
        edges = np.frombuffer(edges, np.int32)[column.offset : column.offset + len(column) + 1]
        edges = edges.astype(np.int64)
        begin, end = int(edges[0]), int(edges[-1])
        block = np.empty(end - begin + PADDING, np.uint8)
        if end > begin:
            block[:-PADDING] = np.frombuffer(octets, np.uint8)[begin:end]
        block[-PADDING:] = 0
        edges -= begin
        return cls(block, edges[:-1], edges[1:])

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, number: Any) -> Any:
        """One message."""
        return self.block[self.starts[number] : self.ends[number]].tobytes()

    def filter(self, chosen: pa.BooleanArray) -> EncodedMessages:
        """Some of the messages, in the same block."""
        flags = chosen.to_numpy(zero_copy_only=False)
        return EncodedMessages(self.block, self.starts[flags], self.ends[flags])


class Gathered:
    """
    Collects a log reader's deliveries until they are a page.

    Args:
        in_batches: Whether each delivery brings many messages; see ``amqp_ext.message.fields``.
    """

    def __init__(self, *, in_batches: bool) -> None:
        self.octets = 0
        self._head_size = HEAD_SIZE if in_batches else 0
        self._count = 0
        self._deliveries: list[bytes] = []
        self._ends: list[Numbers] = [np.zeros(1, np.int64)]

    def add(self, delivery: bytes) -> None:
        """
        Add a delivery.

        Raises:
            CodecError: It should be a batch of messages, and is not.
        """
        ends = np.array(ends_of(delivery) if self._head_size else [len(delivery)], np.int64)
        ends += self.octets
        self._deliveries.append(delivery)
        self._ends.append(ends)
        self._count += len(ends)
        self.octets += len(delivery)

    def __len__(self) -> int:
        """How many messages the deliveries have."""
        return self._count

    def messages(self) -> EncodedMessages:
        """All messages of the deliveries."""
        edges = np.concatenate(self._ends)
        return EncodedMessages(_joined(self._deliveries), edges[:-1] + self._head_size, edges[1:])


def _joined(parts: Sequence[bytes]) -> Octets:
    return np.frombuffer(b"".join([*parts, bytes(PADDING)]), np.uint8)


Codes: TypeAlias = "npt.NDArray[np.integer[Any]]"

MOST_ITEMS: Final = 64
"""The most items of a list or map. Each costs a step for the whole page: a message with more is better read alone."""

MOST_BYTES: Final = 1 << 30  # in a block; Arrow's offsets have 31 bits
MOST_COMPARED: Final = PADDING  # octets of a pattern: each eight cost a look at all messages

# AMQP 1.0, 1.2: the upper half of a format code says how wide the value after it is.
_FIXED_WIDTHS = {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16}
_TEXTS = (0xA1, 0xA3, 0xB1)
_NULL = 0x40
_BOOLEANS = {0x41: "true", 0x42: "false"}
_INTEGERS = {
    0x43: None, 0x44: None, 0x50: "u1", 0x51: "i1", 0x52: "u1", 0x53: "u1", 0x54: "i1", 0x55: "i1",
    0x60: ">u2", 0x61: ">i2", 0x70: ">u4", 0x71: ">i4", 0x80: ">u8", 0x81: ">i8",
}  # fmt: skip
_ONE_BY_ONE = (0x72, 0x82, 0x83, 0x98, 0xA0, 0xB0)  # float, double, timestamp, uuid, binary: never malformed
_LISTS_AND_MAPS = (0x45, 0xC0, 0xC1, 0xD0, 0xD1)


def _table(codes: Sequence[int]) -> Flags:
    table = np.zeros(256, np.bool_)
    table[list(codes)] = True
    return table


_BASE = np.zeros(256, np.int64)  # octets of format code, fixed width or size
for _code in range(0x40, 0x100):
    _BASE[_code] = 1 + _FIXED_WIDTHS.get(_code >> 4, 4 if _code & 0x10 else 1)
_SMALL = np.array([code >= 0xA0 and not code & 0x10 for code in range(256)], np.int64)
_WIDE = _table([code for code in range(0xA0, 0x100) if code & 0x10])
_IS_TEXT = _table(_TEXTS)
_IS_ITEM = _table([*_TEXTS, _NULL, *_BOOLEANS, *_INTEGERS, *_ONE_BY_ONE])
_IS_VALUE = _table([*_TEXTS, _NULL, *_BOOLEANS, *_INTEGERS, *_ONE_BY_ONE, *_LISTS_AND_MAPS])
_IS_LIST = _table([0x45, 0xC0, 0xD0])
_IS_MAP = _table([0xC1, 0xD1])
_IS_DATA = _table([0xA0, 0xB0])


class Unusual(Exception):
    """Some messages have to be read one by one; ``usual`` is false for those."""

    def __init__(self, usual: Flags) -> None:
        super().__init__("messages of an unusual kind")
        self.usual = usual


class Section(NamedTuple):
    """One section of all messages: which have it, where its value begins, its format code, and whether all have it."""

    here: Flags
    value: Numbers
    form: Codes
    in_all: bool


class Items(NamedTuple):
    """The items of a list or map, in all messages: for each step, the positions and the format codes of one item."""

    counts: Numbers
    positions: list[Numbers]
    codes: list[Codes]
    alike: list[int | None]
    """The code that all messages have at a step; None if the codes differ."""
    are_as_many: bool
    """Whether all messages have the same number of items."""


class Annotations(NamedTuple):
    """The annotations that the gateway put in front of each message, and where they begin."""

    start: Numbers
    are_alone: bool
    """Whether no message has annotations of its sender."""
    offset: Numbers
    time_ms: Numbers
    texts: tuple[pa.StringArray, pa.StringArray] | None
    """Topics and replay ids, where they were asked for."""


class _Pattern:
    """Octets, at least one and ``MOST_COMPARED`` at most, to be compared with all messages at once, eight at a time."""

    def __init__(self, octets: bytes) -> None:
        self.size = size = len(octets)
        places = [*range(0, size - 8, 8), max(size - 8, 0)]
        self._words = [(place, int.from_bytes(octets[place : place + 8], "big")) for place in places]
        self._unused_bits = np.uint64(8 * max(8 - size, 0))

    def at(self, page: MessageBlock, positions: Numbers) -> Flags:
        """Whether each message has the octets at its position."""
        (first, word), *rest = self._words
        found = page.u8[positions + first]
        same: Flags = (found >> self._unused_bits if self._unused_bits else found) == word
        for place, word in rest:
            same &= page.u8[positions + place] == word
        return same


def _key(name: str, form: int | None) -> _Pattern:
    return _Pattern(encode(Symbol(name)) + (b"" if form is None else bytes((form,))))


_TOPIC = _key("x-opt-topic", None)
_SEQUENCE = _key("x-opt-sequence-number", 0x81)
_TIME = _key("x-opt-enqueued-time", 0x83)
_REPLAY_ID = _key("x-opt-replay-id", 0xA1)
_OFFSET = _key("x-opt-offset", 0xA1)
_OURS = 10  # items in the gateway's part of the annotations, which is the last: five keys, five values


@lru_cache(maxsize=4)
def _repeated(texts: tuple[str, ...], count: int) -> pa.StringArray:
    """Some texts, one after the other, ``count`` times."""
    encoded = [text.encode() for text in texts]
    edges = np.zeros(len(texts) * count + 1, np.int32)
    np.cumsum(np.tile(list(map(len, encoded)), count), out=edges[1:])
    return pa.StringArray.from_buffers(
        len(edges) - 1, pa.py_buffer(edges), pa.py_buffer(b"".join(encoded) * count)
    )


def repeated(texts: tuple[str, ...], count: int) -> pa.StringArray:
    """The same; the array for a page is cached."""
    whole = max(PAGE_ROWS, count)
    return _repeated(texts, whole).slice(0, len(texts) * count)


class MessageBlock:
    """
    Messages in a block, and their sections.

    Raises:
        Unusual: A message is not of the usual kind.
    """

    def __init__(self, messages: EncodedMessages) -> None:
        self.size = len(messages)
        self.starts: Numbers = messages.starts
        self.ends: Numbers = messages.ends
        self.block = messages.block
        # A position beyond the block's end is set to this one, after all messages.
        self._beyond = len(self.block) - PADDING + 1
        if self._beyond > MOST_BYTES:
            raise Unusual(np.zeros(self.size, np.bool_))
        self._buffer = pa.py_buffer(self.block)
        self._u1 = self.block
        self._u4 = self._words(">u4")
        self.u8 = self._words(">u8")
        self.usual: Flags = np.ones(self.size, np.bool_)
        self.sections: dict[int, Section] = {}
        self.bare: Numbers = self.starts
        """Where the bare message begins in each."""
        self._walk(self.starts)
        self.check()

    def check(self) -> None:
        """Raise Unusual if a message has turned out to be unusual."""
        if not self.usual.all():
            raise Unusual(self.usual)

    def _words(self, kind: str) -> npt.NDArray[Any]:
        """The numbers of a type that begin at every octet of the block."""
        dtype = np.dtype(kind)
        count = len(self.block) - dtype.itemsize + 1
        return np.ndarray((count,), dtype, self.block, 0, (1,))

    def _behind(self, positions: Numbers, codes: Codes, code: int | None) -> Numbers:
        """Where the values at these positions end; with ``code``, all have this format code."""
        if code is not None:
            behind: Numbers = positions + _BASE[code]
            if _SMALL[code]:
                behind += self._u1[positions + 1]
            elif _WIDE[code]:
                behind += self._u4[positions + 1]
        else:
            behind = positions + _BASE[codes] + _SMALL[codes] * self._u1[positions + 1]
            wide = _WIDE[codes]
            if wide.any():
                behind += np.where(wide, self._u4[positions + 1].astype(np.int64), 0)
        return np.minimum(behind, self._beyond, out=behind)

    def _walk(self, at: Numbers) -> None:
        """Find the sections: those before the body in their order, then one of data or of a value, and no other."""
        head = self._u4[at].astype(np.int64)
        kind = head >> 8
        for code in (HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES):
            if code == PROPERTIES:
                self.bare = at
            here = kind == 0x5300 | code
            in_all = bool(here.all())
            if not in_all and not here.any():
                continue
            form, value = head & 0xFF, at + 3
            allowed = _IS_LIST if code in {HEADER, PROPERTIES} else _IS_MAP
            self.usual &= allowed[form] if in_all else allowed[form] | ~here
            self.sections[code] = Section(here, value, form, in_all)
            behind = self._behind(value, form, _alike(form))
            at = behind if in_all else np.where(here, behind, at)
            head = self._u4[at].astype(np.int64)
            kind = head >> 8
        form, self._body = head & 0xFF, at
        self.is_data: Flags = kind == 0x5300 | DATA
        self._data = at + 3 + _BASE[form]
        self.is_all_data = bool(self.is_data.all())
        if self.is_all_data:
            self.usual &= _IS_DATA[form]
        else:
            is_value = (kind == 0x5300 | AMQP_VALUE) & _IS_VALUE[form]
            self.usual &= (self.is_data & _IS_DATA[form]) | is_value
        self.usual &= self._behind(at + 3, form, _alike(form)) == self.ends

    def octets(self, start: int, end: int) -> bytes:
        """A slice of the block."""
        return self.block[start:end].tobytes()

    def distinct(self, starts: Numbers, ends: Numbers) -> tuple[list[bytes], Numbers | None]:
        """The distinct values of a slice of each message; and which each message has, None if all are alike."""
        lengths = ends - starts
        if lengths[0] <= MOST_COMPARED and _alike(lengths) is not None:
            first = self.octets(int(starts[0]), int(ends[0]))
            if not first or _Pattern(first).at(self, starts).all():
                return [first], None
        found = self._slices(starts, lengths).dictionary_encode()
        return found.dictionary.to_pylist(), found.indices.to_numpy().astype(np.int64)

    def bodies(self) -> pa.BinaryArray:
        """The bytes in the data section; for another kind of body, the encoded section."""
        start = self._data if self.is_all_data else np.where(self.is_data, self._data, self._body)
        return self._slices(start, self.ends - start)

    def body_types(self) -> pa.StringArray:
        """What kind each body is of."""
        if self.is_all_data:
            return repeated(("data",), self.size)
        return pa.array(["value", "data"]).take(pa.array(self.is_data.astype(np.int8)))

    def texts_of(self, code: int, places: Sequence[int]) -> list[pa.StringArray]:
        """The items at some places of a section that is a list, as texts; null where there are none."""
        found = self._items(code)
        nulls = pa.nulls(self.size, pa.string())
        if found is None:
            return [nulls for _ in places]
        columns: dict[int, pa.StringArray] = {}
        for place, codes in enumerate(found.codes):
            # Texts that nobody asked for may be no UTF-8, too.
            if place in places or _IS_TEXT[codes].any():
                columns[place] = self._column(found, place)
        return [columns.get(place, nulls) for place in places]

    def _column(self, found: Items, place: int) -> pa.StringArray:
        """One item of each list, as text."""
        positions, codes = found.positions[place], found.codes[place]
        if found.are_as_many:
            return self._texts(positions, codes, np.arange(self.size))
        there = found.counts > place
        texts = self._texts(positions[there], codes[there], np.flatnonzero(there))
        return texts.take(pa.array(np.cumsum(there) - 1, mask=~there))

    def pairs(self) -> pa.MapArray:
        """The application properties as texts; null where a message has none."""
        kind = pa.map_(pa.string(), pa.string())
        found = self._items(APPLICATION_PROPERTIES)
        if found is None:
            return pa.nulls(self.size, kind)
        section = self.sections[APPLICATION_PROPERTIES]
        if found.are_as_many and section.in_all and (names := self._names(found)):
            keys, values = repeated(names, self.size), self._side_by_side(found)
            edges = np.arange(0, len(keys) + 1, len(names), dtype=np.int32)
            return pa.MapArray.from_arrays(pa.array(edges), keys, values)
        self.usual &= found.counts % 2 == 0
        for step in range(0, len(found.codes), 2):
            self.usual &= _IS_TEXT[found.codes[step]] | (found.counts <= step)
        self.check()
        flat, index = self._flat(found)
        steps = np.arange(0, len(flat), 2)
        keys, values = flat.take(pa.array(steps)), flat.take(pa.array(steps + 1))
        self._check_keys(keys, found, index)
        edges = np.zeros(self.size + 1, np.int32)
        np.cumsum(found.counts // 2, out=edges[1:])
        return pa.MapArray.from_arrays(pa.array(edges, mask=np.append(~section.here, False)), keys, values)

    def _names(self, found: Items) -> tuple[str, ...]:
        """The keys of the map, if every message has the same ones, once each; else empty."""
        if not found.codes or len(found.codes) % 2:
            return ()
        names = []
        for step in range(0, len(found.codes), 2):
            positions, code = found.positions[step], found.alike[step]
            if code not in _TEXTS:
                return ()
            end = self._behind(positions[:1], found.codes[step][:1], code)
            octets = self.octets(int(positions[0]), int(end[0]))
            if len(octets) > MOST_COMPARED:
                return ()
            if not _Pattern(octets).at(self, positions).all():
                return ()
            try:
                names.append(octets[5 if code == 0xB1 else 2 :].decode())
            except UnicodeDecodeError:
                return ()
        return tuple(names) if len(set(names)) == len(names) else ()

    def _side_by_side(self, found: Items) -> pa.StringArray:
        """The values of maps with the same number of pairs, as texts, message after message."""
        steps = range(1, len(found.codes), 2)
        owner = np.arange(self.size)
        texts = [step for step in steps if found.alike[step] in _TEXTS]
        order = np.empty((self.size, len(steps)), np.int64)
        pieces = []
        if texts:
            positions = np.column_stack([found.positions[step] for step in texts]).ravel()
            codes = np.column_stack([found.codes[step] for step in texts]).ravel()
            pieces.append(self._strings(positions, codes, owner.repeat(len(texts))))
            if len(texts) == len(steps):
                return pieces[0]
            for number, step in enumerate(texts):
                order[:, step // 2] = owner * len(texts) + number
        begun = len(texts) * self.size
        for step in steps:
            if step not in texts:
                pieces.append(self._texts(found.positions[step], found.codes[step], owner))
                order[:, step // 2] = owner + begun
                begun += self.size
        return pa.concat_arrays(pieces).take(pa.array(order.ravel()))

    def annotations(self, *, with_texts: bool) -> Annotations:
        """The gateway's annotations of each message, which it writes after those of the sender."""
        section = self.sections.get(MESSAGE_ANNOTATIONS)
        if section is None or not section.in_all:
            raise Unusual(self.usual & (section is not None and section.here))
        value = section.value
        self.usual &= section.form == 0xD1
        count, at = self._u4[value + 5].astype(np.int64), value + 9
        self.usual &= (count >= _OURS) & (count <= MOST_ITEMS)
        theirs = np.where(self.usual, count - _OURS, 0)
        for step in range(int(theirs.max(initial=0))):
            codes = self._u1[at]
            self.usual &= _IS_ITEM[codes] | (theirs <= step)
            at = np.where(theirs > step, self._behind(at, codes, None), at)
        start = at
        places: dict[_Pattern, Numbers] = {}
        for key, width in ((_TOPIC, None), (_SEQUENCE, 8), (_TIME, 8), (_REPLAY_ID, None), (_OFFSET, None)):
            self.usual &= key.at(self, at)
            at = np.minimum(at + key.size, self._beyond)
            if key is _TOPIC:
                codes = self._u1[at]
                self.usual &= (codes == 0xA1) | (codes == 0xB1)
                places[key] = at
                at = self._behind(at, codes, None)
            else:
                places[key] = at if width else at - 1
                at = np.minimum(at + (width or 1 + self._u1[at].astype(np.int64)), self._beyond)
        self.usual &= at == value + 5 + self._u4[value + 1]
        self.check()
        signed = self.u8.view(">i8")
        return Annotations(
            start,
            not theirs.any(),
            signed[places[_SEQUENCE]].astype(np.int64),
            signed[places[_TIME]].astype(np.int64),
            (self._strings_at(places[_TOPIC]), self._strings_at(places[_REPLAY_ID])) if with_texts else None,
        )

    def _items(self, code: int) -> Items | None:
        """The items of a section, which are of simple types and fill it; None if no message has the section."""
        section = self.sections.get(code)
        if section is None:
            return None
        here, value, form, in_all = section
        is_short = in_all and _alike(form) in {0xC0, 0xC1}
        if is_short:
            count = self._u1[value + 2].astype(np.int64)
            at, end = value + 3, value + 2 + self._u1[value + 1]
        else:
            here = here & (form != 0x45)
            wide = form & 0x10 != 0
            count = np.where(wide, self._u4[value + 5].astype(np.int64), self._u1[value + 2])
            size = np.where(
                wide, 5 + self._u4[value + 1].astype(np.int64), 2 + self._u1[value + 1].astype(np.int64)
            )
            count = np.where(here, count, 0)
            at = np.where(here, value + np.where(wide, 9, 3), 0)
            end = np.where(here, value + size, 0)
        self.usual &= count <= MOST_ITEMS
        self.check()
        are_as_many = _alike(count) is not None
        positions: list[Numbers] = []
        all_codes: list[Codes] = []
        alike: list[int | None] = []
        for step in range(int(count.max(initial=0))):
            codes = self._u1[at]
            common = _alike(codes)
            positions.append(at)
            all_codes.append(codes)
            alike.append(common)
            if are_as_many:
                self.usual &= _IS_ITEM[codes if common is None else common]
                at = self._behind(at, codes, common)
            else:
                active = count > step
                self.usual &= _IS_ITEM[codes] | ~active
                at = np.where(active, self._behind(at, codes, common), at)
        self.usual &= at == end
        self.check()
        return Items(count, positions, all_codes, alike, are_as_many)

    def _flat(self, items: Items) -> tuple[pa.StringArray, Numbers]:
        """All items as texts, message after message; and the index there of each item of each message."""
        steps = len(items.positions)
        if not steps:
            return pa.array([], pa.string()), np.zeros((self.size, 0), np.int64)
        positions, codes = np.column_stack(items.positions), np.column_stack(items.codes)
        there = np.arange(steps) < items.counts[:, None]
        index = np.cumsum(there.ravel()).reshape(there.shape) - 1
        owner = np.repeat(np.arange(self.size), items.counts)
        return self._texts(positions[there], codes[there], owner), index

    def _texts(self, positions: Numbers, codes: Codes, owner: Numbers) -> pa.StringArray:
        """The values at rising positions as texts, null as null; ``owner`` is the message of each."""
        alike = _alike(codes)
        if alike is not None and alike not in _TEXTS:
            return self._others(alike, positions)
        is_text = _IS_TEXT[codes]
        if is_text.all():
            return self._strings(positions, codes, owner)
        pieces = [self._strings(positions[is_text], codes[is_text], owner[is_text])]
        order = np.zeros(len(positions), np.int64)
        order[is_text] = np.arange(len(pieces[0]))
        begun = len(pieces[0])
        for code in np.flatnonzero(np.bincount(codes[~is_text], minlength=256)).tolist():
            if code == _NULL:
                continue
            same = codes == code
            piece = self._others(code, positions[same])
            order[same] = begun + np.arange(len(piece))
            begun += len(piece)
            pieces.append(piece)
        return pa.concat_arrays(pieces).take(pa.array(order, mask=codes == _NULL))

    def _others(self, code: int, positions: Numbers) -> pa.StringArray:
        """Values of one type that is not text."""
        if code == _NULL:
            return pa.nulls(len(positions), pa.string())
        if code in _BOOLEANS:
            return pa.repeat(_BOOLEANS[code], len(positions))
        if code not in _INTEGERS:
            octets = self.octets(0, len(self.block))
            return pa.array([text_at(octets, position) for position in positions.tolist()], pa.string())
        kind = _INTEGERS[code]
        if kind is None:
            return pa.repeat("0", len(positions))
        values = self._words(kind)[positions + 1]
        return pa.array(values.astype(np.uint64 if "u" in kind else np.int64)).cast(pa.string())

    def _strings_at(self, positions: Numbers) -> pa.StringArray:
        """The texts at these positions, one of each message."""
        return self._strings(positions, self._u1[positions], np.arange(self.size))

    def _strings(self, positions: Numbers, codes: Codes, owner: Numbers) -> pa.StringArray:
        lengths: Numbers = self._u1[positions + 1].astype(np.int64)
        wide = _WIDE[codes]
        if wide.any():
            lengths = np.where(wide, self._u4[positions + 1], lengths)
            found = self._slices(positions + np.where(wide, 5, 2), lengths)
        else:
            found = self._slices(positions + 2, lengths)
        _, edges, octets = found.buffers()
        if found.offset == 0 and (octets is None or _is_ascii(octets)):
            return pa.StringArray.from_buffers(len(found), edges, octets)
        try:
            return found.cast(pa.string())
        except pa.ArrowInvalid:
            for number, text in zip(owner.tolist(), found.to_pylist(), strict=True):
                try:
                    text.decode()
                except UnicodeDecodeError:
                    self.usual[number] = False
            raise Unusual(self.usual) from None

    def _slices(self, starts: Numbers, lengths: Numbers) -> pa.BinaryArray:
        """Slices of the block, which rise and do not overlap, copied out of it."""
        count = len(starts)
        if not count:
            return pa.array([], pa.binary())
        if width := _alike(lengths):
            places = np.ndarray((len(self.block) - width + 1,), f"V{width}", self.block, 0, (1,))
            edges = np.arange(0, (count + 1) * width, width, dtype=np.int32)
            return pa.BinaryArray.from_buffers(
                pa.binary(), count, [None, pa.py_buffer(edges), pa.py_buffer(places[starts])]
            )
        edges = np.empty(2 * count, np.int32)
        edges[0::2] = starts
        edges[1::2] = starts + lengths
        # Every second one is the gap between two slices.
        whole = pa.BinaryArray.from_buffers(
            pa.binary(), len(edges) - 1, [None, pa.py_buffer(edges), self._buffer]
        )
        return whole.take(pa.array(np.arange(0, len(edges), 2)))

    def _check_keys(self, keys: pa.StringArray, found: Items, index: Numbers) -> None:
        """A map with a key twice has one pair for it, the last: such a message is for ``single_message``."""
        steps = len(found.positions) // 2
        if steps < 2:
            return
        numbers = keys.dictionary_encode().indices.to_numpy()
        there = np.arange(steps) < (found.counts // 2)[:, None]
        table = np.broadcast_to(-1 - np.arange(steps), there.shape).copy()
        table[there] = numbers
        table.sort(axis=1)
        self.usual &= (np.diff(table, axis=1) != 0).all(axis=1)
        self.check()


def _alike(numbers: npt.NDArray[Any]) -> int | None:
    """The number that all of them are; None if they differ, or there are none."""
    return int(numbers[0]) if len(numbers) and (numbers == numbers[0]).all() else None


def _is_ascii(octets: pa.Buffer) -> bool:
    """Whether the octets are ASCII, and so texts in whatever way they are cut."""
    return not octets.size or bool(np.frombuffer(octets, np.uint8).max() < 0x80)
