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
    By id, the last millisecond since the epoch in which a message may be delivered. Messages that never expire are left
    out. A message expires by the header's ttl or by ``longest_ms``, whichever is shorter.

    Args:
        fresh_from: Messages below this id do not expire: they are replayed history, which a client requested.
        longest_ms: The longest time to live of a message on the endpoint, in ms; 0 for only the header's.
        ttl_of: Returns the header's ttl of a message's content, in ms.
    """
    found: dict[int, int] = {}
    if not rows or rows[-1][ID] < fresh_from:
        return found
    if not longest_ms:
        # Headers are mostly equal and without a ttl, so each different header is looked at once.
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
    """The bytes in front of the bare message."""
    return row[CONTENT][: row[BARE]]


def _are_alike(rows: Sequence[Row]) -> bool:
    """Whether all of these rows have the same bytes in front of the bare message."""
    contents, bare = list(map(CONTENT_OF, rows)), rows[0][BARE]
    content = contents[0]
    # Compare up to the descriptor that begins the bare message: rows that share it also begin the bare message there.
    if content[bare : bare + 2] == _SHORT_DESCRIPTOR and all_begin_with(content[: bare + 3], contents, 0):
        return True
    return all(map(bare.__eq__, map(BARE_OF, rows))) and all_begin_with(content[:bare], contents, 0)
