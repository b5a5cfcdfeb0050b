"""
What pages have in common, whichever engine they are read from: where the next one begins, and how columns that came in
one value each are taken apart.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate, pairwise
from struct import Struct

from gateway.core.model import ID, Row
from gateway.core.replay.search import PageWork, Search
from store.errors import LogTrimmed
from store.ports import LogPage, SearchPage, TopicPage


def next_position(rows: Sequence[Row], stop: int, *, is_whole: bool) -> int:
    """
    The next id to be read after a page.

    Args:
        rows: The page's.
        stop: It looked at ids below this one.
        is_whole: It has all that it looked for there.
    """
    return stop if is_whole or not rows else rows[-1][ID] + 1


def searched(page: LogPage, search: Search) -> SearchPage:
    """What a page of the log has for a search that has to ask each message."""
    work = PageWork()
    for row in page.rows:
        if work.is_over:
            return SearchPage(None, row[ID], work.unknown)
        if search.takes(row, work):
            return SearchPage(row[ID], page.position, work.unknown)
    return SearchPage(None, page.position, work.unknown)


def falling(found: Sequence[tuple[int, str]], before: int, stop: int, limit: int, first_id: int) -> TopicPage:
    """
    A page of topics, the newest first.

    Args:
        found: What was found below ``before``, down to ``stop``, falling; no more than ``limit``.
        first_id: The log's, as it was looked at afterwards: what is below may have been trimmed before it was read.

    Raises:
        LogTrimmed: The log has nothing below ``before``.
    """
    if first_id >= before:
        raise LogTrimmed(before - 1, first_id)
    reached = found[-1][0] if len(found) == limit else stop
    if reached >= first_id:
        return TopicPage(list(found), reached)
    return TopicPage([one for one in found if one[0] >= first_id], first_id)


def cut_texts(joined: str, separator: str, count: int) -> list[str]:
    """So many texts, which do not hold the separator, out of one."""
    first, _, _ = joined.partition(separator)
    if joined == separator.join([first] * count):
        return [first] * count
    return joined.split(separator)


def distinct(texts: Sequence[str]) -> Collection[str]:
    """Each of these texts once; there is one at least."""
    first = texts[0]
    return (first,) if texts.count(first) == len(texts) else set(texts)


def cut_blob(joined: bytes, lengths: Sequence[int]) -> list[bytes]:
    """Blobs of these lengths, one at least, out of one."""
    length = lengths[0]
    if lengths.count(length) == len(lengths):
        # A third of the time.
        return list(Struct(f"{length}s" * len(lengths)).unpack(joined))
    return [joined[start:end] for start, end in pairwise(accumulate(lengths, initial=0))]
