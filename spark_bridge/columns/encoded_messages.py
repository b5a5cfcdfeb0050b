"""Encoded messages in one block of octets, as they came out of a file or off a link: where each begins and ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from amqp_ext.message.reader_batches import HEAD_SIZE, ends_of

Numbers: TypeAlias = "npt.NDArray[np.int64]"
Flags: TypeAlias = "npt.NDArray[np.bool_]"
Octets: TypeAlias = "npt.NDArray[np.uint8]"

PAGE_ROWS: Final = 8_000  # messages of a page: fewer cost more each, more outgrow the caches
PAGE_BYTES: Final = 4 << 20  # bytes of a page, so that large messages do not pile up
PADDING: Final = 64  # zero octets behind the last message: more than is looked at beyond any position


class EncodedMessages(Sequence[bytes]):
    """
    Messages that rise in a block and do not overlap.

    Args:
        block: The octets, with ``PADDING`` more behind the last message.
        starts: Where each begins in it.
        ends: Where each ends.
    """

    def __init__(self, block: Octets, starts: Numbers, ends: Numbers) -> None:
        self.block = block
        self.starts = starts
        self.ends = ends

    @classmethod
    def of(cls, messages: Sequence[bytes]) -> EncodedMessages:
        """Messages laid end to end."""
        ends = np.cumsum(np.fromiter(map(len, messages), np.int64, len(messages)))
        return cls(_joined(messages), np.concatenate([np.zeros(1, np.int64), ends])[:-1], ends)

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
        """One of them."""
        return self.block[self.starts[number] : self.ends[number]].tobytes()

    def filter(self, chosen: pa.BooleanArray) -> EncodedMessages:
        """Some of them, in the same block."""
        flags = chosen.to_numpy(zero_copy_only=False)
        return EncodedMessages(self.block, self.starts[flags], self.ends[flags])


class GatheredBatches:
    """A log reader's batches as they come in, until they are a page; see ``amqp_ext.message.reader_batches``."""

    def __init__(self) -> None:
        self.octets = 0
        self._count = 0
        self._batches: list[bytes] = []
        self._ends: list[Numbers] = [np.zeros(1, np.int64)]

    def add(self, batch: bytes) -> None:
        """
        One more.

        Raises:
            CodecError: It is none.
        """
        ends = np.array(ends_of(batch), np.int64)
        ends += self.octets
        self._batches.append(batch)
        self._ends.append(ends)
        self._count += len(ends)
        self.octets += len(batch)

    def __len__(self) -> int:
        """How many messages there are in them."""
        return self._count

    def messages(self) -> EncodedMessages:
        """All of them."""
        edges = np.concatenate(self._ends)
        return EncodedMessages(_joined(self._batches), edges[:-1] + HEAD_SIZE, edges[1:])


def _joined(parts: Sequence[bytes]) -> Octets:
    return np.frombuffer(b"".join([*parts, bytes(PADDING)]), np.uint8)
