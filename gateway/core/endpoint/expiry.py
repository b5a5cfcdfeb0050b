"""When messages of an endpoint expire, by their headers and by the endpoint's setting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from amqp_ext.message.sections import all_begin_with
from gateway.core.model import BARE, BARE_OF, CONTENT, CONTENT_OF, ID, TIME_MS, Row

_SHORT_DESCRIPTOR: Final = b"\x00\x53"


def expiries(
    rows: Sequence[Row], fresh_from: int, longest_ms: int, ttl_of: Callable[[bytes], int | None]
) -> dict[int, int]:
    """
    The last millisecond, since the epoch, in which a message may be delivered, by id, of those that expire at all: by
    the header's ttl or by ``longest_ms``, whichever is shorter.

    Args:
        fresh_from: Messages below this id do not expire: they are replayed history, and were asked for.
        longest_ms: How long any message lives on the endpoint, in ms; 0 leaves it to the header.
        ttl_of: The time to live that the header of a message's content says, in ms.
    """
    found: dict[int, int] = {}
    if not rows or rows[-1][ID] < fresh_from:
        return found
    if not longest_ms:
        # Headers are alike: most say nothing of it, and are looked at once for all.
        fronts = {_front_of(rows[0])} if _are_alike(rows) else set(map(_front_of, rows))
        if all(ttl_of(front) is None for front in fronts if front):
            return found
    for row in rows:
        if (row[BARE] or longest_ms) and row[ID] >= fresh_from:
            lives_ms = ttl_of(row[CONTENT]) if row[BARE] else None
            if longest_ms and (lives_ms is None or longest_ms < lives_ms):
                lives_ms = longest_ms
            if lives_ms is not None:
                found[row[ID]] = row[TIME_MS] + lives_ms
    return found


def _front_of(row: Row) -> bytes:
    """What stands in front of the bare message."""
    return row[CONTENT][: row[BARE]]


def _are_alike(rows: Sequence[Row]) -> bool:
    """Whether the same stands in front of all of these."""
    contents, bare = list(map(CONTENT_OF, rows)), rows[0][BARE]
    content = contents[0]
    # Up to the descriptor that begins the bare message: who shares that begins it there, too.
    if content[bare : bare + 2] == _SHORT_DESCRIPTOR and all_begin_with(content[: bare + 3], contents, 0):
        return True
    return all(map(bare.__eq__, map(BARE_OF, rows))) and all_begin_with(content[:bare], contents, 0)
