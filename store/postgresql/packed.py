"""
Many messages as one value, in PostgreSQL's binary formats.

A page comes as one row: PostgreSQL packs each of its columns into one value, and this module unpacks them. The call
that reads a page waits in the C library without the interpreter's lock, and gets it back once. Row by row, it would
have to get the lock back for each piece that the network brings, against a loop that is busy in Python.

Published messages are sent in the format of binary COPY ("COPY", "Binary Format" in PostgreSQL's documentation): a row
is its number of columns, and then each column's length and value, all big-endian. The part between checksum and content
is mostly the same for all messages of a topic, and is cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain, repeat
from struct import Struct, unpack
from typing import Any, Final

from gateway.core.model import BARE, CONTENT, ID, ROUTE, TIME_MS, TOPIC, Row
from store.checksum import HEAD_BITS, HEAD_MODULUS, are_sound, content_sums, is_sound, topic_sum
from store.postgresql.database import ESCAPE, number, read_text, stored_text
from store.reading import cut_blob, cut_texts

LOGGED: Final = "id, time, checksum, route, bare, null::integer as held, topic, content"
"""Columns of a message that the log holds, for ``page``."""

HELD: Final = "id, time, checksum, route, bare, held, topic, content"
"""The same columns of a held message."""

SEPARATOR: Final = f"{ESCAPE};"
"""Between topics. In a stored text, another character follows the escape."""

_AGGREGATES: Final = """
    count(*){fitting}, coalesce(sum(checksum){fitting}, 0)::bigint,
    string_agg(int8send(id), ''){fitting}, string_agg(int8send(time), ''){fitting},
    string_agg(topic, E'\\x01;'){fitting}, string_agg(int4send(bare), ''){fitting},
    string_agg(int8send(route), ''){fitting}, string_agg(int4send(coalesce(held, 0)), ''){fitting},
    string_agg(int4send(octet_length(content)), ''){fitting}, string_agg(content, ''){fitting}
"""


def page(rows: str) -> str:
    """
    SQL that gives a page in one row, for ``Packed``.

    Args:
        rows: SQL of the page's messages, in their order. The content of a page has no bound here.
    """
    return (
        "select (select first_id from log), (select least(told_id, last_id) from log), true,"
        f"{_AGGREGATES.format(fitting='')} from ({rows}) as page"
    )


def bounded_page(rows: str, bound: str) -> str:
    """
    The same for as many messages, from the first on, as have ``bound`` bytes of content at most; at least one. Contents
    stored apart from their rows (TOAST) are not read for the messages that are left out.
    """
    return (
        "select (select first_id from log), (select least(told_id, last_id) from log), coalesce(bool_and(fits), true),"
        f"{_AGGREGATES.format(fitting=' filter (where fits)')} from (select page.*, "
        f"sum(octet_length(content)) over before <= {bound} or row_number() over before = 1 as fits "
        f"from ({rows}) as page window before as (order by id rows unbounded preceding)) as page"
    )


class Packed:
    """A page as it was received."""

    __slots__ = ("_columns", "_sum", "count", "first_id", "is_whole", "told_id")

    def __init__(self, row: Sequence[Any]) -> None:
        """
        Args:
            row: The row that ``page`` or ``bounded_page`` gives, in binary format.
        """
        first_id, told_id, is_whole, count, checksums, *columns = row
        self.first_id = number(first_id)
        """The first id of the log, in the snapshot of the page."""
        self.told_id = number(told_id)
        """The highest id that no failover can take back, as far as the server knew then."""
        self.is_whole = is_whole == b"\1"
        """No message was left out because of its size."""
        self.count = number(count)
        """Messages on the page."""
        self._sum = checksums
        self._columns = columns

    def rows(self, largest_bytes: int) -> list[Row] | None:
        """
        The page's messages; None if one of them is not what was written: then the caller reads them one by one.

        Args:
            largest_bytes: No content is longer.
        """
        count = self.count
        if not count:
            return []
        ids, times, topics, bares, routes, helds, lengths, contents = self._columns
        try:
            unpacked: tuple[Any, ...] = (
                unpack(f">{count}q", ids),
                unpack(f">{count}q", times),
                _topics(topics.decode(), count),
                unpack(f">{count}i", bares),
                unpack(f">{count}q", routes),
                _helds(helds, count),
                cut_blob(contents, unpack(f">{count}i", lengths)),
            )
            if not are_sound(unpacked, count, number(self._sum), largest_bytes):
                return None
        except ValueError:  # a topic is not text any more
            return None
        return list(zip(*unpacked, strict=True))


def sound_row(checked: Sequence[bytes | None]) -> Row | None:
    """The message of a row with the columns ``HELD`` in binary format; None if it is not what was written."""
    id_, time, checksum, route, bare, held, topic, content = checked
    assert topic is not None and content is not None
    try:
        text = read_text(topic.decode())
    except ValueError:
        return None
    head = (number(id_), number(time), text, number(bare), number(route))
    if not is_sound(*head, content, number(checksum)):
        return None
    return (*head, None if held is None else number(held), content)


def _topics(joined: str, count: int) -> list[str]:
    found = cut_texts(joined, SEPARATOR, count)
    if joined.count(ESCAPE) == count - 1:  # of the separators alone
        return found
    return list(map(read_text, found))


def _helds(joined: bytes, count: int) -> Any:
    """``held`` of each message: 0 stands for null, as at least one endpoint needs a held message."""
    if not joined.strip(b"\0"):
        return repeat(None, count)
    return [held or None for held in unpack(f">{count}i", joined)]


HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""The signature, no flags, and no header extension."""

TRAILER: Final = b"\xff\xff"

KINDS: Final = 4_096
"""Kinds of messages (topic, route, offset of the bare message) whose part of a row is cached."""

_FRONT: Final = Struct(">hiqiqiq")
"""The number of columns, and then ``id``, ``time`` and ``checksum``."""

_NUMBERS: Final = Struct(">iqii")
"""``route`` and ``bare``."""

_HELD: Final = Struct(">ii")
_LENGTH: Final = Struct(">i")


def copied(rows: Sequence[Row], largest_bytes: int) -> bytes:
    """
    Messages as rows of ``message`` or of ``held_message``: either all are logged, or all are held.

    Args:
        largest_bytes: No content is longer.

    Returns:
        What COPY takes for the columns ``schema.MESSAGE_COLUMNS``, or ``HELD_COLUMNS``.
    """
    ids, times, topics, bares, routes, helds, contents = zip(*rows, strict=True)
    kinds = list(map(_kind, topics, bares, routes, helds))
    sums = content_sums(contents, largest_bytes)
    checks = [
        (total << HEAD_BITS) + (message_id + time + head) % HEAD_MODULUS
        for total, message_id, time, (head, _) in zip(sums, ids, times, kinds, strict=True)
    ]
    eight = repeat(8)
    columns = 7 if helds[0] is None else 8
    fronts = map(_FRONT.pack, repeat(columns), eight, ids, eight, times, eight, checks)
    middles = [middle for _, middle in kinds]
    lengths = map(_LENGTH.pack, map(len, contents))
    return b"".join(
        [HEADER, *chain.from_iterable(zip(fronts, middles, lengths, contents, strict=False)), TRAILER]
    )


def checksums(rows: Sequence[Row], largest_bytes: int) -> list[int]:
    """
    The checksums of messages, in the same order.

    Args:
        largest_bytes: No content is longer.
    """
    sums = content_sums([row[CONTENT] for row in rows], largest_bytes)
    return [
        (total << HEAD_BITS)
        + (row[ID] + row[TIME_MS] + _head(row[TOPIC], row[BARE], row[ROUTE])) % HEAD_MODULUS
        for total, row in zip(sums, rows, strict=True)
    ]


def _head(topic: str, bare: int, route: int) -> int:
    """What the kind of a message adds to the head of its checksum (``checksum.head_of``)."""
    return bare + route + topic_sum(topic)


@lru_cache(KINDS)
def _kind(topic: str, bare: int, route: int, held: int | None) -> tuple[int, bytes]:
    """What the kind of a message adds to the head of its checksum; and its columns between checksum and content."""
    text = stored_text(topic).encode()
    numbers = _NUMBERS.pack(8, route, 4, bare)
    if held is not None:
        numbers += _HELD.pack(4, held)
    return _head(topic, bare, route), numbers + _LENGTH.pack(len(text)) + text
