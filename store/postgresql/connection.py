"""
A connection that only reads: statements prepared once, and asked in one blocking call each, with the interpreter's lock
given up from its beginning to its end.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import inf
from typing import Any, Final, TypeAlias

import psycopg
from psycopg import errors, pq

from store.postgresql.database import cut, stored_text

Value: TypeAlias = int | str | bytes | Sequence[int] | Sequence[str]
"""What a statement is given: its places say their types (``$1::bigint``)."""

Answer: TypeAlias = "list[bytes | None]"
"""A row, in PostgreSQL's binary format."""

ANSWER_SECONDS: Final = 10.0
"""After which a server that says nothing to what takes milliseconds is given up, and another one is looked for. One
that was stopped in its tracks still acknowledges what the network brings, so that no keepalive finds it out."""

STATEMENT_MS: Final = 60_000
"""After which a read is given up: pages take milliseconds, counting all of a large log some seconds."""

SETTINGS: Final = "; ".join(
    f"set {setting}"
    for setting in (
        "default_transaction_read_only = on",
        f"statement_timeout = {STATEMENT_MS}",
        # A plan for each page: it looks at the partitions that the page is in, and at no others.
        "plan_cache_mode = force_custom_plan",
        # Pages are read in the order of an index, as far as they go. A planner that knows nothing yet of what has just
        # been written would read all that may be in a page, and sort it.
        "enable_seqscan = off",
        "enable_bitmapscan = off",
        "max_parallel_workers_per_gather = 0",
        "work_mem = '16MB'",  # messages of several routes are put in order
        "jit = off",
    )
)

ROOM: Final = f"select octet_length(repeat('x', {8 << 20}))"
"""
Has the server's allocator (glibc's) keep memory of this size from then on, once it was given back. Before, each page is
packed in memory that is new to the process, and clearing that takes as long as all else that the server does for it.
"""

BINARY: Final = 1
TEXT: Final = 0


class ReadConnection:
    """Reads; to be used by one thread at a time."""

    def __init__(self, connection: psycopg.Connection[Any], settings: str = SETTINGS) -> None:
        """
        Args:
            connection: One that commits by itself; it is closed with this.
            settings: Statements by which it is set up.
        """
        self.connection = connection
        self.is_standby: bool
        """The server was one when it was connected to."""
        self._prepared: dict[str, bytes] = {}
        self._has_room = False
        self._asked: tuple[float, float] | None = None
        """When what is being asked was, and how many seconds it may take."""
        try:
            connection.execute(settings.encode())
            ((self.is_standby,),) = connection.execute(b"select pg_is_in_recovery()").fetchall()
        except BaseException:
            connection.close()
            raise

    def ask(self, sql: str, values: Sequence[Value], seconds: float = ANSWER_SECONDS) -> list[Answer]:
        """
        All rows of a statement.

        Args:
            seconds: What it takes at the very most: after that the server may be given up (``is_stuck``).

        Raises:
            psycopg.Error: The server refuses, or cannot be reached any more.
        """
        self._asked = (time.monotonic(), seconds)
        try:
            return self._ask(sql, values)
        finally:
            self._asked = None

    def is_stuck(self, seconds: float = inf) -> bool:
        """Whether an answer is overdue, or has taken so many seconds already. To be asked from any thread."""
        asked = self._asked
        return asked is not None and time.monotonic() - asked[0] > min(asked[1], seconds)

    def cut(self) -> None:
        """Break it, from any thread: whoever waits for an answer waits no longer."""
        cut(self.connection)

    def _ask(self, sql: str, values: Sequence[Value]) -> list[Answer]:
        raw = self.connection.pgconn
        name = self._prepared.get(sql)
        if name is None:
            name = b"read_%d" % len(self._prepared)
            self._check(raw.prepare(name, sql.encode()))
            self._prepared[sql] = name
        encoded = [_encoded(value) for value in values]
        formats = [BINARY if isinstance(value, bytes) else TEXT for value in values]
        result = self._check(raw.exec_prepared(name, encoded, formats, BINARY))
        columns = range(result.nfields)
        return [[result.get_value(row, column) for column in columns] for row in range(result.ntuples)]

    def make_room(self) -> None:
        """It has many large pages to pack."""
        if not self._has_room:
            self._has_room = True
            self.ask(ROOM, ())

    @property
    def is_lost(self) -> bool:
        """The server cannot be reached by it any more."""
        return self.connection.closed or self.connection.pgconn.status != pq.ConnStatus.OK

    def close(self) -> None:
        """End it."""
        self.connection.close()

    def _check(self, result: Any) -> Any:
        if result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            return result
        raise errors.error_from_result(result)


def _encoded(value: Value) -> bytes:
    if isinstance(value, int):
        return b"%d" % value
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return stored_text(value).encode()
    return b"{%s}" % b",".join(
        b"%d" % item if isinstance(item, int) else _quoted(stored_text(item)) for item in value
    )


def _quoted(text: str) -> bytes:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'.encode()
