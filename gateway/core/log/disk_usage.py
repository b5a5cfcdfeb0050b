"""
What messages take of the disk: the measure of the log's size and of its quota.

A file of tables is made of pages, and a message is on one of them whole, or begins on one and has pages of its own for
the rest. So two messages of 2,100 bytes take two pages of 4,096, and what a page has left is nobody's. A message counts
with the share of a page that it has where all are of its size: where sizes are mixed, the sum is within some percent of
what the file grows by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

PAGE_BYTES: Final = 4096
"""Of a file."""

ROW_BYTES: Final = 32
"""A row's beside content and topic: id, time, checksum and other numbers, how long each is, its place in the page."""

ENTRY_BYTES: Final = 12
"""Its entry in the index of routes, with that index's share of pages that are not full."""

USABLE_BYTES: Final = PAGE_BYTES - 8
"""Of a page, for rows (SQLite's file format, "B-tree Pages")."""

WHOLE_BYTES: Final = PAGE_BYTES - 35
"""The longest row that is on one page as a whole (the same, "Cell Payload Overflow Pages", as the next two)."""

LEAST_BYTES: Final = (PAGE_BYTES - 12) * 32 // 255 - 23
"""The least of a longer one that is on a page of rows."""

OVERFLOW_BYTES: Final = PAGE_BYTES - 4
"""What a page of its own holds of the rest."""


def stored_bytes(topic: str, sizes: Sequence[int]) -> int:
    """
    What messages of one topic take of the disk.

    Args:
        sizes: Of their contents, in bytes; one at least.
    """
    more = len(topic.encode()) + ROW_BYTES
    count, first = len(sizes), sizes[0]
    if sizes.count(first) == count:
        return count * _row_on_disk(first + more)
    try:
        return sum([_SHORT_ROWS[size + more] for size in sizes])
    except IndexError:
        return sum([_row_on_disk(size + more) for size in sizes])


def _row_on_disk(row_bytes: int) -> int:
    if row_bytes <= WHOLE_BYTES:
        return PAGE_BYTES // (USABLE_BYTES // row_bytes) + ENTRY_BYTES
    pages, rest = divmod(row_bytes - LEAST_BYTES, OVERFLOW_BYTES)
    if rest > WHOLE_BYTES - LEAST_BYTES:
        pages, rest = pages + 1, 0
    return pages * PAGE_BYTES + PAGE_BYTES // (USABLE_BYTES // (LEAST_BYTES + rest)) + ENTRY_BYTES


_SHORT_ROWS: Final = [_row_on_disk(max(size, 1)) for size in range(WHOLE_BYTES + 1)]
"""By their lengths: messages are counted as they are published, and looked up in a third of the time."""
