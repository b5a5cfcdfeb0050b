"""
A page of stored messages beside their checksums (``store.checksum``): all at once, as rows stay in Arrow.

The sums of a page's contents, one after the other, are those of the contents joined: so their bytes are gone over
once, in the buffer where they are, and no content becomes an object of Python.
"""

from __future__ import annotations

from typing import Final
from zlib import adler32

import numpy as np
import pyarrow as pa

from store.checksum import HEAD, HEAD_BITS, HEAD_MODULUS, content_sum, topic_sum

ADLER_MODULUS: Final = 65_521
HALF: Final = 0xFFFF
BESIDE_CONTENT: Final = ("checksum",)
"""What has to be read beside contents, so that they can be checked."""
BESIDE_ALL: Final = ("bare", "route", "checksum")
"""The same for all of ``STORED``."""


def first_damaged(page: pa.RecordBatch) -> int | None:
    """The id of the first message that is not what was written; None where all are. The page has what is beside it."""
    checksums = page.column("checksum").to_numpy()
    contents = page.column("content")
    is_sound = np.ones(len(checksums), bool)
    sums = checksums >> HEAD_BITS
    if not _are_sums_of(sums, contents):
        is_sound &= sums == [content_sum(content) for content in contents.to_pylist()]
    if "bare" in page.schema.names:
        heads = sum(page.column(name).to_numpy() for name in ("id", "time", "bare", "route"))
        topics = page.column("topic").dictionary_encode()
        of_topics = np.array([topic_sum(topic) for topic in topics.dictionary.to_pylist()])
        heads = heads + of_topics[topics.indices.to_numpy()]
        is_sound &= ((checksums & HEAD) - heads) % HEAD_MODULUS == 0
    if is_sound.all():
        return None
    return int(page.column("id")[int(is_sound.argmin())].as_py())


def _are_sums_of(sums: np.ndarray, contents: pa.Array) -> bool:
    """Whether these are the contents' sums, told from all of them together."""
    if contents.type != pa.binary():
        return False
    _, offsets, data = contents.buffers()
    ends = np.frombuffer(offsets, np.int32)[contents.offset : contents.offset + len(contents) + 1].astype(
        np.int64
    )
    joined = memoryview(data)[ends[0] : ends[-1]] if data is not None else b""
    firsts = (sums & HALF) - 1
    # Each byte of a content counts in the second half once for itself and for each one after it.
    second = (sums >> 16).sum() + (firsts * (ends[-1] - ends[1:])).sum()
    return adler32(joined) == int(second) % ADLER_MODULUS << 16 | (int(firsts.sum()) + 1) % ADLER_MODULUS
