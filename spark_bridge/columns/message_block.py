"""
Many messages read side by side: laid end to end in one block of bytes, and walked a section and an item at a time.

A message read by itself costs Python tens of microseconds. Here numpy takes each step for all messages of a page at
once, whatever the lengths of their texts, and Arrow copies texts and bodies out of the block: less than one
microsecond a message. What is read so are messages in the spelling and of the shape that nearly all senders use; the
first one of another kind ends it with ``Unusual``, which names them all, and those are for ``single_message``.

Invariant: what is read here is what ``single_message`` reads from the same message. Whatever the bytes, nothing is
read outside the block, and a value that is not wholly inside its message makes it unusual.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from amqp_ext.codec import Symbol, encode
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
Codes: TypeAlias = "npt.NDArray[np.integer[Any]]"
Flags: TypeAlias = "npt.NDArray[np.bool_]"

MOST_ITEMS: Final = (
    64  # in a list or map; each costs a step for the whole page, so one giant is better read alone
)
PADDING: Final = 64  # zero bytes behind the last message: more than is looked at beyond any position
MOST_BYTES: Final = 1 << 30  # in a block; Arrow's offsets have 31 bits

# AMQP 1.0, 1.2: the upper half of a format code says how wide the value behind it is.
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
    """One section of all messages: which have it, where its value begins, the format code there."""

    here: Flags
    value: Numbers
    form: Codes


class Items(NamedTuple):
    """The items of a list or map, in all messages: step after step, positions and format codes."""

    counts: Numbers
    positions: list[Numbers]
    codes: Sequence[Codes]


class Annotations(NamedTuple):
    """What the gateway put in front of each message, and where that begins."""

    start: Numbers
    are_alone: bool
    """Whether no message has annotations of its sender."""
    offset: Numbers
    time_ms: Numbers
    texts: tuple[pa.StringArray, pa.StringArray] | None
    """Topics and replay ids, where they were asked for."""


class _Key:
    """An encoded symbol to be compared with all messages at once, eight octets at a time."""

    def __init__(self, name: str, form: int | None) -> None:
        octets = encode(Symbol(name)) + (b"" if form is None else bytes((form,)))
        self.size = len(octets)
        places = [*range(0, self.size - 8, 8), self.size - 8]
        self._words = [(place, int.from_bytes(octets[place : place + 8], "big")) for place in places]

    def at(self, page: MessageBlock, positions: Numbers) -> Flags:
        """Whether it stands there."""
        (first, word), *rest = self._words
        same: Flags = page.u8[positions + first] == word
        for place, word in rest:
            same &= page.u8[positions + place] == word
        return same


_TOPIC = _Key("x-opt-topic", None)
_SEQUENCE = _Key("x-opt-sequence-number", 0x81)
_TIME = _Key("x-opt-enqueued-time", 0x83)
_REPLAY_ID = _Key("x-opt-replay-id", 0xA1)
_OFFSET = _Key("x-opt-offset", 0xA1)
_OURS = 10  # items in the gateway's part of the annotations, which is the last: five keys, five values


class MessageBlock:
    """
    Messages in a block, and their sections.

    Raises:
        Unusual: One is not of the usual kind.
    """

    def __init__(self, messages: Sequence[bytes], bare: Sequence[int] | None = None) -> None:
        """``bare`` says where to begin in each; without it, at its first octet."""
        self.size = len(messages)
        lengths = np.fromiter(map(len, messages), np.int64, self.size)
        self.ends: Numbers = np.cumsum(lengths)
        self.starts: Numbers = self.ends - lengths
        total = int(self.ends[-1]) if self.size else 0
        self._beyond = total + 1  # what runs over the block's end is held here: behind every message
        if total > MOST_BYTES:
            raise Unusual(np.zeros(self.size, np.bool_))
        self.block = b"".join([*messages, bytes(PADDING)])
        self._buffer = pa.py_buffer(self.block)
        self._u1 = np.frombuffer(self.block, np.uint8)
        self._u4 = self._words(">u4")
        self.u8 = self._words(">u8")
        self.usual: Flags = np.ones(self.size, np.bool_)
        self.sections: dict[int, Section] = {}
        self._walk(self.starts if bare is None else self.starts + np.array(bare, np.int64))
        self.check()

    def check(self) -> None:
        """Raise Unusual if a message turned out to be."""
        if not self.usual.all():
            raise Unusual(self.usual)

    def _words(self, kind: str) -> npt.NDArray[Any]:
        """The numbers of that type at every octet of the block."""
        dtype = np.dtype(kind)
        count = len(self.block) - dtype.itemsize + 1
        return np.ndarray((count,), dtype, self.block, 0, (1,))

    def _behind(self, positions: Numbers, codes: Codes) -> Numbers:
        """Where the values end that begin there."""
        behind = positions + _BASE[codes] + _SMALL[codes] * self._u1[positions + 1]
        wide = _WIDE[codes]
        if wide.any():
            behind += np.where(wide, self._u4[positions + 1].astype(np.int64), 0)
        result: Numbers = np.minimum(behind, self._beyond)
        return result

    def _walk(self, at: Numbers) -> None:
        """Find the sections: those in front of the body in their order, then one of data or of a value, the last."""
        head = self._u4[at].astype(np.int64)
        for code in (HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES):
            here = head >> 8 == 0x5300 | code
            if not here.any():
                continue
            form, value = head & 0xFF, at + 3
            allowed = _IS_LIST if code in {HEADER, PROPERTIES} else _IS_MAP
            self.usual &= allowed[form] | ~here
            self.sections[code] = Section(here, value, form)
            at = np.where(here, self._behind(value, form), at)
            head = self._u4[at].astype(np.int64)
        form, self._body = head & 0xFF, at
        self.is_data: Flags = head >> 8 == 0x5300 | DATA
        is_value = (head >> 8 == 0x5300 | AMQP_VALUE) & _IS_VALUE[form]
        self._data = at + 3 + _BASE[form]
        self.usual &= (self.is_data & _IS_DATA[form]) | is_value
        self.usual &= self._behind(at + 3, form) == self.ends

    def bodies(self) -> pa.BinaryArray:
        """What is in the data section; of another body the section as it is encoded."""
        start = np.where(self.is_data, self._data, self._body)
        return self._slices(start, self.ends - start)

    def body_types(self) -> pa.StringArray:
        """What kind each body is of."""
        if self.is_data.all():
            return pa.repeat("data", self.size)
        return pa.array(["value", "data"]).take(pa.array(self.is_data.astype(np.int8)))

    def texts_of(self, code: int, places: Sequence[int]) -> list[pa.StringArray]:
        """The items at some places of a section that is a list, as texts; null where there are none."""
        found = self._items(code)
        if found is None:
            return [pa.nulls(self.size, pa.string()) for _ in places]
        flat, index = self._flat(found)
        columns = []
        for place in places:
            if place >= len(found.positions):
                columns.append(pa.nulls(self.size, pa.string()))
            else:
                columns.append(flat.take(pa.array(index[:, place], mask=found.counts <= place)))
        return columns

    def pairs(self) -> pa.MapArray:
        """The application properties as texts; null where a message has none."""
        kind = pa.map_(pa.string(), pa.string())
        found = self._items(APPLICATION_PROPERTIES)
        if found is None:
            return pa.nulls(self.size, kind)
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
        missing = np.append(~self.sections[APPLICATION_PROPERTIES].here, False)
        return pa.MapArray.from_arrays(pa.array(edges, mask=missing), keys, values)

    def annotations(self, *, with_texts: bool) -> Annotations:
        """What a log reader is told of each message, which the gateway writes behind what its sender put there."""
        section = self.sections.get(MESSAGE_ANNOTATIONS)
        if section is None or not section.here.all():
            raise Unusual(self.usual & (section is not None and section.here))
        value = section.value
        self.usual &= section.form == 0xD1
        count, at = self._u4[value + 5].astype(np.int64), value + 9
        self.usual &= (count >= _OURS) & (count <= MOST_ITEMS)
        theirs = np.where(self.usual, count - _OURS, 0)
        for step in range(int(theirs.max(initial=0))):
            codes = self._u1[at]
            self.usual &= _IS_ITEM[codes] | (theirs <= step)
            at = np.where(theirs > step, self._behind(at, codes), at)
        start = at
        places: dict[_Key, Numbers] = {}
        for key, width in ((_TOPIC, None), (_SEQUENCE, 8), (_TIME, 8), (_REPLAY_ID, None), (_OFFSET, None)):
            self.usual &= key.at(self, at)
            at = np.minimum(at + key.size, self._beyond)
            if key is _TOPIC:
                codes = self._u1[at]
                self.usual &= (codes == 0xA1) | (codes == 0xB1)
                places[key] = at
                at = self._behind(at, codes)
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
            self._pair_of_texts(places[_TOPIC], places[_REPLAY_ID]) if with_texts else None,
        )

    def _pair_of_texts(self, first: Numbers, second: Numbers) -> tuple[pa.StringArray, pa.StringArray]:
        """Of each message, two texts."""
        both, order = np.column_stack([first, second]).ravel(), np.arange(0, 2 * self.size, 2)
        texts = self._texts(both, self._u1[both], order.repeat(2) // 2)
        return texts.take(pa.array(order)), texts.take(pa.array(order + 1))

    def _items(self, code: int) -> Items | None:
        """The items of a section, which are of simple types and fill it; None where no message has it."""
        section = self.sections.get(code)
        if section is None:
            return None
        here, value, form = section
        here = here & (form != 0x45)
        wide = form & 0x10 != 0
        count = np.where(wide, self._u4[value + 5].astype(np.int64), self._u1[value + 2])
        size = np.where(
            wide, 5 + self._u4[value + 1].astype(np.int64), 2 + self._u1[value + 1].astype(np.int64)
        )
        count = np.where(here, count, 0)
        self.usual &= count <= MOST_ITEMS
        self.check()
        at = np.where(here, value + np.where(wide, 9, 3), 0)
        end = np.where(here, value + size, 0)
        positions, all_codes = [], []
        for step in range(int(count.max(initial=0))):
            codes = self._u1[at]
            active = count > step
            self.usual &= _IS_ITEM[codes] | ~active
            positions.append(at)
            all_codes.append(codes)
            at = np.where(active, self._behind(at, codes), at)
        self.usual &= at == end
        self.check()
        return Items(count, positions, all_codes)

    def _flat(self, items: Items) -> tuple[pa.StringArray, Numbers]:
        """All items as texts, message after message, and where in that each item of each message is."""
        steps = len(items.positions)
        if not steps:
            return pa.array([], pa.string()), np.zeros((self.size, 0), np.int64)
        positions, codes = np.column_stack(items.positions), np.column_stack(items.codes)
        there = np.arange(steps) < items.counts[:, None]
        index = np.cumsum(there.ravel()).reshape(there.shape) - 1
        owner = np.repeat(np.arange(self.size), items.counts)
        return self._texts(positions[there], codes[there], owner), index

    def _texts(self, positions: Numbers, codes: Codes, owner: Numbers) -> pa.StringArray:
        """The values at rising positions as texts, null as null; ``owner`` is whose they are."""
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
        if code in _BOOLEANS:
            return pa.repeat(_BOOLEANS[code], len(positions))
        if code not in _INTEGERS:
            return pa.array([text_at(self.block, position) for position in positions.tolist()], pa.string())
        kind = _INTEGERS[code]
        if kind is None:
            return pa.repeat("0", len(positions))
        values = self._words(kind)[positions + 1]
        return pa.array(values.astype(np.uint64 if "u" in kind else np.int64)).cast(pa.string())

    def _strings(self, positions: Numbers, codes: Codes, owner: Numbers) -> pa.StringArray:
        wide = _WIDE[codes]
        lengths = self._u1[positions + 1].astype(np.int64)
        if wide.any():
            lengths = np.where(wide, self._u4[positions + 1], lengths)
        found = self._slices(positions + np.where(wide, 5, 2), lengths)
        try:
            return found.cast(pa.string())
        except pa.ArrowInvalid:
            for number, octets in zip(owner.tolist(), found.to_pylist(), strict=True):
                try:
                    octets.decode()
                except UnicodeDecodeError:
                    self.usual[number] = False
            raise Unusual(self.usual) from None

    def _slices(self, starts: Numbers, lengths: Numbers) -> pa.BinaryArray:
        """Slices of the block, which rise and do not overlap, copied out of it by Arrow."""
        if not len(starts):
            return pa.array([], pa.binary())
        edges = np.empty(2 * len(starts), np.int32)
        edges[0::2] = starts
        edges[1::2] = starts + lengths
        # Each second one of them is what lies between two of them.
        whole = pa.BinaryArray.from_buffers(
            pa.binary(), len(edges) - 1, [None, pa.py_buffer(edges), self._buffer]
        )
        return whole.take(pa.array(np.arange(0, len(edges), 2)))

    def _check_keys(self, keys: pa.StringArray, found: Items, index: Numbers) -> None:
        """A key that comes twice is one pair of a map, the last: that is for the reader of single messages."""
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
