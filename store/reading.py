"""
What the readers of every engine share: where the next page begins, topic patterns as an engine looks at topics, and
the end of a pool of threads that read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from itertools import accumulate, pairwise
from struct import Struct
from typing import Final

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


MOST_LITERALS: Final = 1_000
MOST_WILDCARDS: Final = 32
"""Topic patterns that an engine looks at for each message; with more, it is quicker to read them all and let the
caller's index decide."""


def named_topics(
    patterns: Sequence[str], literal: Callable[[str], str], anything: str
) -> tuple[list[str], list[str]] | None:
    """
    Topics, and texts of which one matches every topic that a pattern with wildcards matches, and few others: the
    wildcard also takes ``/``, so the caller has to match again. Exceptions (``!``) are left to the caller.

    Args:
        literal: Gives what stands for just this text in one with wildcards.
        anything: What stands for any text.

    Returns:
        None where every topic has to be looked at, very many patterns among the reasons; so it has where both lists
        are empty.
    """
    literals: list[str] = []
    wildcards: list[str] = []

    def level_text(level: str) -> str:
        return literal(level[:-1]) + anything if level.endswith("*") else literal(level)

    for pattern in patterns:
        if pattern == ">":
            return None
        if pattern.startswith("!"):
            continue
        levels = pattern.split("/")
        if levels[-1] == ">":
            # What > takes may be empty: a/> matches the topic a/ with its empty last level.
            wildcards.append("/".join([*map(level_text, levels[:-1]), anything]))
        elif any(level.endswith("*") for level in levels):
            wildcards.append("/".join(map(level_text, levels)))
        else:
            literals.append(pattern)
    if len(literals) > MOST_LITERALS or len(wildcards) > MOST_WILDCARDS:
        return None
    return literals, wildcards


def drain(pool: ThreadPoolExecutor, threads: int) -> None:
    """
    Wait until all that was submitted to a pool before is done. Each of its threads comes to a barrier; none of them
    does so before it is through with what came earlier, as a pool takes things in their order.

    Args:
        threads: Those of the pool.

    Raises:
        RuntimeError: The pool is shut down.
    """
    barrier = threading.Barrier(threads)

    def meet() -> None:
        with suppress(threading.BrokenBarrierError):
            barrier.wait()

    for met in [pool.submit(meet) for _ in range(threads)]:
        try:
            met.result()
        except CancelledError:
            # It was shut down meanwhile: those that are at the barrier wait for nobody.
            barrier.abort()
