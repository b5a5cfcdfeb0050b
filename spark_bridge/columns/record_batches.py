"""
AMQP messages to Arrow record batches.

Invariants: a batch has exactly the columns asked for, in that order, with the types Spark derives from the
schema (Spark compares them for equality). A section that no asked-for column needs is not decoded. A page is
read side by side (``message_block``) but for its unusual messages (``single_message``), and no row depends on which of
the two read it, or on what lies beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from amqp_ext.message.annotations import Splicer
from amqp_ext.message.sections import PROPERTIES
from amqp_ext.replay_id import format_replay_id
from amqp_ext.topics import TopicFilter
from spark_bridge.columns.message_block import MessageBlock, Unusual
from spark_bridge.columns.single_message import BAD_CONTENT, SYSTEM, UNDECODABLE, MessageDecoder
from store.archive.columns import ARROW_TYPES, Columns, arrow_schema, arrow_type

T = TypeVar("T")
Arrays: TypeAlias = "dict[str, pa.Array]"
"""Columns by our names."""

StoredRow: TypeAlias = "tuple[int, int, str, int, bytes | None]"
"""Id, time in ms, topic, where in the content the bare message begins, content."""
id_of, time_of, topic_of = map(itemgetter, range(3))

PAGE_ROWS: Final = (
    2_000  # messages of a page: 1-2 k per Arrow batch measured fastest, probably by the CPU's caches
)
PAGE_BYTES: Final = 4 << 20  # bytes of a page, so that large messages do not pile up

MOST_REMEMBERED: Final = 1_024  # topics and fronts; both start anew when full

_SHORT_HEADER = b"\x00\x53\x70\xc0"
_HEX = np.array([f"{number:02x}" for number in range(256)], "S2")
_BESIDE = {"offset", "enqueuedTime", "topic", "replayId", "partition"}  # what a store keeps beside a message


class BatchBuilder:
    """
    Turns pages of encoded messages into record batches of the chosen columns.

    ``topics`` drops messages whose topic does not match: for patterns that one log address cannot carry.
    ``partition`` is what the column of that name says.
    """

    def __init__(self, columns: Columns, topics: TopicFilter | None = None, partition: int = 0) -> None:
        self._schema = arrow_schema(columns)
        self._names = [name for name, _ in columns]
        self._topics = topics
        self._partition = partition
        self._row = row = MessageDecoder(frozenset(self._names))
        self.needs_content = bool(row.system or row.properties or row.application or row.body)
        """Whether any column comes from the message itself, not from what the broker keeps beside it."""
        self._told_names = {*self._names, "offset", *(() if topics is None else ("topic",))} - {"partition"}
        self._wanted: dict[str | None, bool] = {}
        self._systems: dict[bytes, dict[str, str | None] | None] = {}

    def batch(self, messages: Sequence[bytes]) -> tuple[pa.RecordBatch, list[int]]:
        """
        The rows that pass the topic filter, and the offsets of all messages in order.

        Raises:
            UnreadableMessage: A message lacks the broker's annotations.
        """
        columns = _columns(messages, self._told, self._told_one_by_one)
        batch = self._batch(columns, len(messages))
        if self._topics is not None:
            batch = batch.filter(pa.array(map(self._matches, columns["topic"].to_pylist()), pa.bool_()))
        return batch, columns["offset"].to_pylist()

    def stored(self, rows: Sequence[StoredRow], splicer: Splicer, generation: int) -> pa.RecordBatch:
        """The same rows from messages as they are stored, before the broker put its annotations in front."""
        if self._topics is not None:
            rows = [row for row in rows if self._matches(topic_of(row))]
        columns: Arrays = {}
        if self.needs_content:
            columns = _columns(
                rows,
                lambda some: self._kept(some, splicer),
                lambda some: self._kept_one_by_one(some, splicer),
            )
        ids = np.fromiter(map(id_of, rows), np.int64, len(rows))
        columns["offset"] = pa.array(ids)
        if "enqueuedTime" in self._names:
            columns["enqueuedTime"] = _times(np.fromiter(map(time_of, rows), np.int64, len(rows)))
        if "topic" in self._names:
            columns["topic"] = pa.array(map(topic_of, rows), pa.string())
        if "replayId" in self._names:
            columns["replayId"] = _replay_ids(generation, ids)
        return self._batch(columns, len(rows))

    def _batch(self, columns: Arrays, count: int) -> pa.RecordBatch:
        """The columns asked for, in their order."""
        if "partition" in self._names:
            columns["partition"] = pa.repeat(pa.scalar(self._partition, pa.int32()), count)
        return pa.RecordBatch.from_arrays([columns[name] for name in self._names], schema=self._schema)

    def _matches(self, topic: str | None) -> bool:
        assert self._topics is not None
        found = self._wanted.get(topic)
        if found is None:
            if len(self._wanted) >= MOST_REMEMBERED:
                self._wanted.clear()
            found = self._wanted[topic] = self._topics.matches(topic or "")
        return found

    def _told(self, messages: Sequence[bytes]) -> Arrays:
        """
        All columns of messages as a log reader gets them, side by side.

        Raises:
            Unusual: One is not of the usual kind.
        """
        page = MessageBlock(messages)
        told = page.annotations(with_texts=not self._told_names.isdisjoint({"topic", "replayId"}))
        columns = self._content(page) | {
            "offset": pa.array(told.offset),
            "enqueuedTime": _times(told.time_ms),
        }
        if told.texts is not None:
            columns["topic"], columns["replayId"] = told.texts
        if self._row.system or not told.are_alone:
            fronts = [page.block[a:b] for a, b in zip(page.starts.tolist(), told.start.tolist(), strict=True)]
            columns[SYSTEM] = self._system(page, fronts, messages.__getitem__)
        return columns

    def _kept(self, rows: Sequence[StoredRow], splicer: Splicer) -> Arrays:
        """
        The columns that come from the messages themselves, as they are stored, side by side.

        Raises:
            Unusual: One is not of the usual kind.
        """
        _, _, _, bares, contents = zip(*rows, strict=True)
        page = MessageBlock(contents, bares)
        columns = self._content(page)
        if self._row.system or any(bares):

            def front(number: int) -> bytes:
                message_id, time_ms, topic, bare, content = rows[number]
                assert content is not None
                return splicer.front(message_id, time_ms, topic, bare, content, 0, False)

            fronts = [content[:bare] for content, bare in zip(contents, bares, strict=True)]
            columns[SYSTEM] = self._system(page, fronts, front)
        return columns

    def _content(self, page: MessageBlock) -> Arrays:
        """The columns of properties, application properties and body."""
        columns: Arrays = {}
        row = self._row
        if row.properties:
            texts = page.texts_of(PROPERTIES, [place for _, place in row.properties])
            columns |= dict(zip((name for name, _ in row.properties), texts, strict=True))
        if row.application:
            columns["properties"] = page.pairs()
        if row.body:
            columns["body"] = page.bodies()
            columns["bodyType"] = page.body_types()
        return columns

    def _system(self, page: MessageBlock, fronts: list[bytes], whole: Callable[[int], bytes]) -> pa.Array:
        """
        The column systemProperties: what stands before the bare message is the same for most, and read once.

        ``whole`` gives a message, or its front, with the gateway's annotations.
        """
        distinct = {front: number for number, front in enumerate(dict.fromkeys(fronts))}
        index = np.fromiter(map(distinct.__getitem__, fronts), np.int64, len(fronts))
        if len(self._systems) + len(distinct) > MOST_REMEMBERED:
            self._systems.clear()
        known = self._systems
        for front in distinct:
            if front not in known:
                found = {} if not front else self._row.of(whole(fronts.index(front)))[SYSTEM]
                known[front] = None if UNDECODABLE in found else found
        bad = np.array([known[front] is None for front in distinct])
        if bad.any():
            raise Unusual(~bad[index])
        return _array(arrow_type(SYSTEM), [known[front] for front in distinct]).take(pa.array(index))

    def _told_one_by_one(self, messages: Sequence[bytes]) -> Arrays:
        found = [self._row.of(message) for message in messages]
        return {name: _array(arrow_type(name), [row.get(name) for row in found]) for name in self._told_names}

    def _kept_one_by_one(self, rows: Sequence[StoredRow], splicer: Splicer) -> Arrays:
        found: list[dict[str, Any]] = []
        for number, time_ms, topic, bare, content in rows:
            assert content is not None
            if not bare or (content[:4] == _SHORT_HEADER and content[4] + 5 == bare):
                row: dict[str, Any] = {SYSTEM: {}}
                try:
                    self._row.fill(row, content)
                    found.append(row)
                    continue
                except BAD_CONTENT:
                    pass  # told below, in the words it is told in over AMQP
            front = splicer.front(number, time_ms, topic, bare, content, 0, False)
            found.append(self._row.of(front + content[bare:]))
        return {
            name: _array(arrow_type(name), [row.get(name) for row in found])
            for name in self._names
            if name not in _BESIDE
        }


def _columns(
    rows: Sequence[T],
    side_by_side: Callable[[Sequence[T]], Arrays],
    one_by_one: Callable[[Sequence[T]], Arrays],
) -> Arrays:
    """The columns of all rows in their order, each row read the way it can be."""
    if not rows:
        return one_by_one(rows)
    try:
        return side_by_side(rows)
    except Unusual as found:
        usual = found.usual
    if not usual.any():
        return one_by_one(rows)
    quick = _columns(
        [row for row, is_usual in zip(rows, usual, strict=True) if is_usual], side_by_side, one_by_one
    )
    slow = one_by_one([row for row, is_usual in zip(rows, usual, strict=True) if not is_usual])
    order = pa.array(np.argsort(np.concatenate([np.flatnonzero(usual), np.flatnonzero(~usual)])))
    return {name: pa.concat_arrays([quick[name], array]).take(order) for name, array in slow.items()}


def _times(milliseconds: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(milliseconds * 1000).view(ARROW_TYPES["timestamp"])


def _replay_ids(generation: int, ids: npt.NDArray[np.int64]) -> pa.Array:
    """The replay ids of rising ids: only their last four digits change within a run of 65,536."""
    high = ids >> 16
    size = len(format_replay_id(generation, 0))
    digits = np.empty((len(ids), size), np.uint8)
    for run in np.unique(high).tolist():
        digits[high == run] = np.frombuffer(format_replay_id(generation, run << 16).encode(), np.uint8)
    digits[:, -4:-2] = _HEX[ids >> 8 & 0xFF].view(np.uint8).reshape(-1, 2)
    digits[:, -2:] = _HEX[ids & 0xFF].view(np.uint8).reshape(-1, 2)
    edges = np.arange(len(ids) + 1, dtype=np.int32) * np.int32(size)
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(edges), pa.py_buffer(digits))


def _array(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if not pa.types.is_map(kind):
        return pa.array(values, kind)
    offsets: list[int | None] = []
    keys: list[str] = []
    items: list[str | None] = []
    for value in values:
        if value is None:
            offsets.append(None)  # a null in the offsets is a null map
            continue
        offsets.append(len(keys))
        keys += ["null" if key is None else key for key in value]
        items += value.values()
    offsets.append(len(keys))
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), pa.array(items, pa.string())
    )
