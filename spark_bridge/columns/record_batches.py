"""
AMQP messages to Arrow record batches.

Invariants: a batch has exactly the columns asked for, in that order, with the types Spark derives from the
schema (Spark compares them for equality). A section that no asked-for column needs is not decoded. A page is
read side by side (``message_block``) except for its unusual messages (``single_message``), and no row depends on which
of the two read it, or on the other messages of the page.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from amqp_ext.message.annotations import Splicer
from amqp_ext.message.sections import PROPERTIES, bare_offset
from amqp_ext.replay_id import format_replay_id
from amqp_ext.topics import TopicFilter
from spark_bridge.columns.message_block import (
    EncodedMessages,
    Flags,
    MessageBlock,
    Numbers,
    Unusual,
    repeated,
)
from spark_bridge.columns.single_message import BAD_CONTENT, SYSTEM, UNDECODABLE, MessageDecoder
from store.archive.columns import ARROW_TYPES, Columns, arrow_schema, arrow_type, matching

Arrays: TypeAlias = "dict[str, pa.Array]"
"""Columns by our names."""

STORED: Final = ("id", "time", "topic", "content")
"""What a store keeps of a message: its id, its time in ms, its topic, and the message as it was published."""


P = TypeVar("P", EncodedMessages, pa.RecordBatch)
"""Rows that can be filtered."""

MOST_REMEMBERED: Final = 1_024  # cached fronts; a full cache is cleared

_SHORT_HEADER = b"\x00\x53\x70\xc0"
_BESIDE = {
    "offset",
    "enqueuedTime",
    "topic",
    "replayId",
    "partition",
}  # what a store has in columns of its own


class BatchBuilder:
    """
    Turns pages of encoded messages into record batches of the chosen columns.

    ``topics`` drops messages whose topic does not match: for patterns that one log address cannot carry.
    ``partition`` is the value of the column of that name.
    """

    def __init__(self, columns: Columns, topics: TopicFilter | None = None, partition: int = 0) -> None:
        self._schema = arrow_schema(columns)
        self._names = [name for name, _ in columns]
        self._topics = topics
        self._partition = partition
        self._row = row = MessageDecoder(frozenset(self._names))
        self._needs_content = bool(row.system or row.properties or row.application or row.body)
        needed = {"id"}
        if self._needs_content:
            needed.add("content")
        if row.system or "enqueuedTime" in self._names:
            needed.add("time")
        if row.system or "topic" in self._names or topics is not None:
            needed.add("topic")
        self.stored_columns: Final = frozenset(needed)
        """The columns of ``STORED`` that ``stored`` needs in its pages."""
        self._told_names = {*self._names, "offset", *(() if topics is None else ("topic",))} - {"partition"}
        self._systems: dict[bytes, dict[str, str | None] | None] = {}

    def batch(self, messages: EncodedMessages) -> tuple[pa.RecordBatch, Numbers]:
        """
        The rows that pass the topic filter, and the offsets of all messages in order.

        Raises:
            UnreadableMessage: A message lacks the broker's annotations.
        """
        columns = _columns(messages, self._told, self._told_one_by_one)
        batch = self._batch(columns, len(messages))
        if self._topics is not None:
            batch = batch.filter(matching(columns["topic"], self._topics.matches))
        return batch, columns["offset"].to_numpy()

    def stored(self, page: pa.RecordBatch, splicer: Splicer, generation: int) -> pa.RecordBatch:
        """
        The same rows from messages as they are stored, before the broker put its annotations in front.

        Args:
            page: The messages, with the columns ``stored_columns``.
            splicer: Makes those annotations.
            generation: The log's generation.
        """
        if self._topics is not None:
            page = page.filter(matching(page.column("topic"), self._topics.matches))
        columns: Arrays = {}
        if self._needs_content:
            columns = _columns(
                page,
                lambda some: self._kept(some, splicer),
                lambda some: self._kept_one_by_one(some, splicer),
            )
        columns["offset"] = page.column("id")
        if "enqueuedTime" in self._names:
            columns["enqueuedTime"] = _times(page.column("time").to_numpy())
        if "topic" in self._names:
            columns["topic"] = page.column("topic")
        if "replayId" in self._names:
            columns["replayId"] = _replay_ids(generation, page.column("id").to_numpy())
        return self._batch(columns, page.num_rows)

    def _batch(self, columns: Arrays, count: int) -> pa.RecordBatch:
        """The columns asked for, in their order."""
        if "partition" in self._names:
            columns["partition"] = pa.repeat(pa.scalar(self._partition, pa.int32()), count)
        return pa.RecordBatch.from_arrays([columns[name] for name in self._names], schema=self._schema)

    def _told(self, messages: EncodedMessages) -> Arrays:
        """
        All columns of messages as a log reader gets them, read side by side.

        Raises:
            Unusual: A message is not of the usual kind.
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
            columns[SYSTEM] = self._system(page, told.start, messages.__getitem__)
        return columns

    def _kept(self, rows: pa.RecordBatch, splicer: Splicer) -> Arrays:
        """
        The columns that come from the messages themselves, as they are stored, read side by side.

        Raises:
            Unusual: A message is not of the usual kind.
        """
        page = MessageBlock(EncodedMessages.of_column(rows.column("content")))
        columns = self._content(page)
        if self._row.system or (page.bare != page.starts).any():

            def front(number: int) -> bytes:
                ((message_id, time_ms, topic, content),) = self._rows(rows.slice(number, 1))
                return splicer.front(message_id, time_ms, topic, bare_offset(content), content, 0, False)

            columns[SYSTEM] = self._system(page, page.bare, front)
        return columns

    def _rows(self, page: pa.RecordBatch) -> list[tuple[int, int, str, bytes]]:
        """
        Messages as they are stored; a time or topic that was not asked for is 0 or empty.

        Time and topic matter only to systemProperties, where it quotes what cannot be decoded.
        """
        size = page.num_rows
        times = page.column("time").to_pylist() if "time" in self.stored_columns else [0] * size
        topics = page.column("topic").to_pylist() if "topic" in self.stored_columns else [""] * size
        ids, contents = page.column("id").to_pylist(), page.column("content").to_pylist()
        return list(zip(ids, times, topics, contents, strict=True))

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

    def _system(self, page: MessageBlock, ends: Numbers, whole: Callable[[int], bytes]) -> pa.Array | None:
        """
        The column systemProperties. The front before the bare message is the same for most messages, and each different
        front is read once. If the column was not asked for, fronts are only checked to be readable.

        ``ends`` tells where each front ends; ``whole`` gives a message, or its front, with the gateway's annotations.
        """
        distinct, index = page.distinct(page.starts, ends)
        if len(self._systems) + len(distinct) > MOST_REMEMBERED:
            self._systems.clear()
        known = self._systems
        for number, front in enumerate(distinct):
            if front not in known:
                found = {}
                if front:
                    found = self._row.of(whole(0 if index is None else int(np.argmax(index == number))))[
                        SYSTEM
                    ]
                known[front] = None if UNDECODABLE in found else found
        bad = np.array([known[front] is None for front in distinct])
        if bad.any():
            raise Unusual(np.zeros(page.size, np.bool_) if index is None else ~bad[index])
        if not self._row.system:
            return None
        if index is None:
            return _repeated(known[distinct[0]] or {}, page.size)
        return _array(arrow_type(SYSTEM), [known[front] for front in distinct]).take(pa.array(index))

    def _told_one_by_one(self, messages: EncodedMessages) -> Arrays:
        found = [self._row.of(message) for message in messages]
        return {name: _array(arrow_type(name), [row.get(name) for row in found]) for name in self._told_names}

    def _kept_one_by_one(self, page: pa.RecordBatch, splicer: Splicer) -> Arrays:
        found: list[dict[str, Any]] = []
        for number, time_ms, topic, content in self._rows(page):
            bare = bare_offset(content)
            if not bare or (content[:4] == _SHORT_HEADER and content[4] + 5 == bare):
                row: dict[str, Any] = {SYSTEM: {}}
                try:
                    self._row.fill(row, content)
                    found.append(row)
                    continue
                except BAD_CONTENT:
                    pass  # reported below, in the same words as over AMQP
            front = splicer.front(number, time_ms, topic, bare, content, 0, False)
            found.append(self._row.of(front + content[bare:]))
        return {
            name: _array(arrow_type(name), [row.get(name) for row in found])
            for name in self._names
            if name not in _BESIDE
        }


def _columns(page: P, side_by_side: Callable[[P], Arrays], one_by_one: Callable[[P], Arrays]) -> Arrays:
    """The columns of all rows in their order; each row is read side by side if possible, else by itself."""
    if not len(page):
        return one_by_one(page)
    try:
        return side_by_side(page)
    except Unusual as found:
        usual: Flags = found.usual
    if not usual.any():
        return one_by_one(page)
    quick = _columns(page.filter(pa.array(usual)), side_by_side, one_by_one)
    slow = one_by_one(page.filter(pa.array(~usual)))
    order = pa.array(np.argsort(np.concatenate([np.flatnonzero(usual), np.flatnonzero(~usual)])))
    return {name: pa.concat_arrays([quick[name], array]).take(order) for name, array in slow.items()}


def _times(milliseconds: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(milliseconds * 1000).view(ARROW_TYPES["timestamp"])


def _repeated(system: dict[str, str | None], size: int) -> pa.Array:
    """The same systemProperties for each message."""
    values = tuple(value for value in system.values() if value is not None)
    if len(values) < len(system):
        return pa.repeat(_array(arrow_type(SYSTEM), [system])[0], size)
    keys = tuple("null" if key is None else key for key in system)
    edges = np.arange(size + 1, dtype=np.int32) * np.int32(len(keys))
    return pa.MapArray.from_arrays(pa.array(edges), repeated(keys, size), repeated(values, size))


@cache
def _hexadecimal() -> npt.NDArray[np.bytes_]:
    """Every number of four digits; made when it is first needed, as most of Spark's processes never need it."""
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    numbers = np.arange(1 << 16)[:, None]
    return np.frombuffer(digits[numbers >> np.array([12, 8, 4, 0]) & 15], "S4")


def _replay_ids(generation: int, ids: npt.NDArray[np.int64]) -> pa.Array:
    """The replay ids of rising ids: only their last four digits change within a run of 65,536."""
    size = len(format_replay_id(generation, 0))
    table = np.empty(len(ids), [("run", f"S{size - 4}"), ("digits", "S4")])
    runs, place = np.unique(ids >> 16, return_inverse=True)
    table["run"] = np.array([format_replay_id(generation, run << 16)[:-4] for run in runs.tolist()], "S")[
        place
    ]
    table["digits"] = _hexadecimal()[ids & 0xFFFF]
    edges = np.arange(len(ids) + 1, dtype=np.int32) * np.int32(size)
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(edges), pa.py_buffer(table))


def _array(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if pa.types.is_map(kind):
        # A key cannot be null.
        values = [
            None if value is None else [("null" if key is None else key, item) for key, item in value.items()]
            for value in values
        ]
    return pa.array(values, kind)
