"""
Connections to the database: how a session is connected, authenticated and set up, and how a lost host is noticed;
connections that only read; and text as PostgreSQL can store it.

A lost host sends nothing. So a connection on which sent data is not acknowledged, or which is silent, is given up after
``LOST_SECONDS``, at both ends: the gateway connects again, and the server releases the session's lock.

A transaction is a list of steps, which are sent in order with few round trips. Adjacent statements go out as one
pipeline, a COPY by itself, and a step that has to read first is called with the connection. All steps are made before
anything is sent. So if the connection is lost, the transaction can be executed again on another connection.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from itertools import groupby
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import psycopg
from psycopg import errors, pq
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.array import ListBinaryDumper
from psycopg.types.numeric import Int8BinaryDumper
from psycopg.types.string import BytesBinaryDumper, StrBinaryDumper

PREFIX: Final = "rewind_"
"""Prefix of the name of every schema."""

NAME_BYTES: Final = 63
"""The longest name that PostgreSQL does not truncate (NAMEDATALEN)."""

LOST_SECONDS: Final = 5
"""A host that does not answer for so long is lost."""

CONNECT_SECONDS: Final = 3
"""For each host of the url, unless the url says otherwise (``connect_timeout``)."""

SESSION: Final = {
    # No statement may be cut short: a COMMIT that is cancelled is neither done nor undone.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
    "tcp_keepalives_idle": "2",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": str(LOST_SECONDS * 1000),
    "client_connection_check_interval": "1000",
    "client_encoding": "UTF8",
    "client_min_messages": "warning",
    # JIT would delay short statements, and all statements here are short.
    "jit": "off",
}

AT_LEAST: Final = 150_000
"""The lowest PostgreSQL version, in the server's notation."""

# psycopg logs errors in a pipeline that follow from the first one, and quotes rows. The first error is raised anyway.
logging.getLogger("psycopg").setLevel(logging.CRITICAL)


def schema_name(vpn: str) -> str:
    """The name of a Message VPN's schema, unquoted. A name that is too long is cut, with a hash of all of it."""
    name = PREFIX + vpn
    if len(name.encode()) <= NAME_BYTES:
        return name
    return f"{name[:40]}~{hashlib.sha256(vpn.encode()).hexdigest()[:20]}"


def quoted_schema(vpn: str) -> str:
    """The same name, quoted."""
    name = schema_name(vpn).replace('"', '""')
    return f'"{name}"'


def lock_key(vpn: str) -> int:
    """The key of the advisory lock that a Message VPN's active gateway holds: 64 bits, signed."""
    return int.from_bytes(hashlib.sha256(schema_name(vpn).encode()).digest()[:8], signed=True)


class Database:
    """The address of a database with stores, and how to connect to it."""

    def __init__(self, url: str, password_file: Path | None = None) -> None:
        """
        Args:
            url: libpq's connection string, or URI.
            password_file: Contains the password and nothing else; read for each connection.
        """
        self._url = url
        self._password_file = password_file
        self._token = secrets.token_hex(4)
        """Identifies this gateway's sessions, as long as the gateway runs."""

    @property
    def place(self) -> str:
        """The address, for people, without the password."""
        try:
            found = conninfo_to_dict(self._url)
        except psycopg.Error:
            return "postgresql"
        hosts, ports = (str(found.get(name) or "").split(",") for name in ("host", "port"))
        # A single port is for all hosts.
        ports = ports * len(hosts) if len(ports) == 1 else ports
        ends = [f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False)]
        return f"postgresql://{','.join(ends)}/{found.get('dbname') or ''}"

    def place_of(self, vpn: str) -> str:
        """Where a Message VPN is stored, for people."""
        return f"{self.place}, schema {schema_name(vpn)}"

    def session_name(self, vpn: str, purpose: str) -> str:
        """The name of a gateway's sessions for a purpose in ``pg_stat_activity``; no other gateway uses it."""
        name = f"rewind {self._token}{lock_key(vpn) & 0xFFFFFFFF:08x} {purpose} {vpn}"
        return name[:NAME_BYTES]  # all of it is ASCII

    def connect(self, vpn: str, purpose: str, **settings: str) -> Connection:
        """
        Connect, in autocommit, with the Message VPN's schema as the search path. Blocks.

        Args:
            purpose: One word for what the connection is for.
            settings: Settings of the session, in addition to ``SESSION``.

        Raises:
            psycopg.Error: No server can be connected to.
            OSError: The password cannot be read.
        """
        given = conninfo_to_dict(self._url)
        password: dict[str, Any] = {}
        if self._password_file is not None:
            password["password"] = self._password_file.read_text().rstrip("\r\n")
        if "connect_timeout" not in given:
            password["connect_timeout"] = CONNECT_SECONDS
        connection: Connection = psycopg.connect(
            self._url,
            autocommit=True,
            application_name=self.session_name(vpn, purpose),
            keepalives=1,
            keepalives_idle=2,
            keepalives_interval=1,
            keepalives_count=3,
            tcp_user_timeout=LOST_SECONDS * 1000,
            **password,
        )
        try:
            if connection.info.server_version < AT_LEAST:
                raise psycopg.NotSupportedError(
                    f"PostgreSQL 15 or newer is needed; this is {connection.info.server_version // 10_000}"
                )
            # One type for all integers: a statement is prepared once, whatever the values.
            for kind, dumper in (
                (int, Int8BinaryDumper),
                (str, StrBinaryDumper),
                (bytes, BytesBinaryDumper),
                (list, ListBinaryDumper),
            ):
                connection.adapters.register_dumper(kind, dumper)
            known = {**SESSION, **settings, "search_path": quoted_schema(vpn)}
            with bounded(connection):
                connection.execute(
                    # Not every version of the server has all of these settings.
                    b"select set_config(name, value, false) from unnest(%s::text[], %s::text[]) "
                    b"as given (name, value) where current_setting(name, true) is not null",
                    (list(known), list(known.values())),
                )
        except BaseException:
            connection.close()
            raise
        return connection

    def ask(self, vpn: str, purpose: str, sql: bytes, values: Sequence[Any] = ()) -> list[Any]:
        """
        The rows of a short query on a connection of its own, to the server that is there now. Blocks for moments.

        Raises:
            psycopg.Error: There is no server, or it does not answer.
            OSError: The password cannot be read.
        """
        with closing(self.connect(vpn, purpose)) as connection, bounded(connection):
            return connection.execute(sql, values).fetchall()


def engine(connection: Connection) -> str:
    """The engine that keeps the data, with its version, for people."""
    version = connection.info.server_version
    return f"PostgreSQL {version // 10_000}.{version % 10_000}"


def cut(connection: Connection) -> None:
    """Break a connection from another thread: a caller that waits for the server returns. Nothing is cancelled."""
    # Use a duplicate of the descriptor: the connection may be closed meanwhile, and its number be used again.
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.pgconn.socket)) as end:
        end.shutdown(socket.SHUT_RDWR)


@contextmanager
def bounded(connection: Connection) -> Iterator[None]:
    """Give up a short block after ``LOST_SECONDS``: a server that was stopped does not answer."""
    watch = threading.Timer(LOST_SECONDS, cut, [connection])
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def is_lost(error: BaseException, connection: Connection) -> bool:
    """Whether the connection, or its server, is at fault. Then what was sent may be done or not."""
    if connection.closed or connection.broken:
        return True
    if not isinstance(error, psycopg.Error):
        return False
    state = error.sqlstate or ""
    return state[:2] == "08" or state in LOST_STATES


LOST_STATES: Final = frozenset(
    {
        "57P01",  # the server shuts down
        "57P02",  # it crashed
        "57P03",  # it is not ready
        "57P05",  # the session was idle for too long
        "25006",  # it has become a standby
    }
)
"""SQLSTATEs (appendix A of PostgreSQL's documentation) of a server that does not take writes any more."""

MAY_PASS: Final = ("40", "53", "54", "55", "57", "58", "XX")
"""Classes of SQLSTATEs of a server, or a disk, that may work again: the transaction was not at fault. (``54``: the
server's number of locks is limited.)"""

ESCAPE: Final = "\x01"


def stored_text(text: str) -> str:
    """
    A text as it is stored: PostgreSQL cannot store U+0000, which a topic, a name or a property's value may contain.

    U+0000 is written as U+0001 and a 0, and U+0001 itself as U+0001 and a 1. Each character is written by itself. So a
    text that begins with another text, or contains it, does so in its stored form, too, and no two texts have the same
    stored form. Nearly every text has neither character, and stays as it is.
    """
    if "\0" not in text and ESCAPE not in text:
        return text
    return text.replace(ESCAPE, "\x011").replace("\0", "\x010")


def read_text(stored: str) -> str:
    """The text before it was stored."""
    if ESCAPE not in stored:
        return stored
    return stored.replace("\x010", "\0").replace("\x011", ESCAPE)


Value: TypeAlias = int | str | bytes | Sequence[int] | Sequence[str]
"""A value of a statement, whose placeholders have types (``$1::bigint``)."""

Answer: TypeAlias = "list[bytes | None]"
"""A row, in PostgreSQL's binary format."""


def number(value: bytes | None) -> int:
    """An integer from its binary format, of any size."""
    assert value is not None
    return int.from_bytes(value, signed=True)


ANSWER_SECONDS: Final = 10.0
"""A server that does not answer for so long, to a statement that takes milliseconds, is given up, and another server is
looked for. The kernel of a server whose processes were stopped still acknowledges packets: keepalives do not help."""

STATEMENT_MS: Final = 60_000
"""A read is given up after this: pages take milliseconds, counting a whole large log takes some seconds."""

SETTINGS: Final = "; ".join(
    f"set {setting}"
    for setting in (
        "default_transaction_read_only = on",
        f"statement_timeout = {STATEMENT_MS}",
        # A plan for each page: it reads the page's partitions, and no others.
        "plan_cache_mode = force_custom_plan",
        # Pages are read in the order of an index, as far as they go. A planner without statistics of what has just been
        # written would read everything that may be in a page, and sort it.
        "enable_seqscan = off",
        "enable_bitmapscan = off",
        "max_parallel_workers_per_gather = 0",
        "work_mem = '16MB'",  # messages of several routes are put in order
        "jit = off",
    )
)

ROOM: Final = f"select octet_length(repeat('x', {8 << 20}))"
"""
After this, the server's allocator (glibc's) keeps freed memory of this size. Before, each page is packed in memory that
is new to the process: clearing that memory takes as long as everything else that the server does for the page.
"""

BINARY: Final = 1
TEXT: Final = 0


class ReadConnection:
    """A connection that only reads; for one thread at a time."""

    def __init__(self, connection: psycopg.Connection[Any], settings: str = SETTINGS) -> None:
        """
        Args:
            connection: In autocommit; it is closed with this object.
            settings: Statements that set up the session.
        """
        self.connection = connection
        self.is_standby: bool
        """Whether the server was a standby when the connection was made."""
        self._prepared: dict[str, bytes] = {}
        self._has_room = False
        self._asked: tuple[float, float] | None = None
        """When the present statement was sent, and how many seconds it may take."""
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
            seconds: How long the answer may take. After that, the server may be given up (``is_stuck``).

        Raises:
            psycopg.Error: The server refuses the statement, or cannot be reached any more.
        """
        self._asked = (time.monotonic(), seconds)
        try:
            return self._ask(sql, values)
        finally:
            self._asked = None

    def is_stuck(self, seconds: float = inf) -> bool:
        """Whether an answer is overdue, or has taken longer than ``seconds``. Any thread may call this."""
        asked = self._asked
        return asked is not None and time.monotonic() - asked[0] > min(asked[1], seconds)

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
        """Prepare the server for many large pages; see ``ROOM``."""
        if not self._has_room:
            self._has_room = True
            self.ask(ROOM, ())

    @property
    def is_lost(self) -> bool:
        """Whether the connection to the server is lost."""
        return self.connection.closed or self.connection.pgconn.status != pq.ConnStatus.OK

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _check(self, result: Any) -> Any:
        if result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            return result
        raise errors.error_from_result(result)


PATIENCE_SECONDS: Final = 40.0
"""How long a reader waits for a server that cannot be reached: a standby replaces a primary within 30 s."""

RETRY_SECONDS: Final = 0.2
"""Between two tries to reach the server."""

WATCH_SECONDS: Final = 0.5
"""Between two looks for overdue answers."""

CLOSE_SECONDS: Final = 1.0
"""How long a read may still take when its reader is being closed."""

PASSING: Final = frozenset({"40001", "40P01", "57P01", "57P02", "57P03"})
"""SQLSTATEs of a standby that must replay what was trimmed, or of a server that shuts down. The read is tried again."""


class ReadConnections:
    """
    The connections of one reader, one for each of its threads. Each is made when it is needed, and made again if it was
    lost. A connection whose answer is overdue is broken: the connections to a server that was stopped stay open
    otherwise.
    """

    def __init__(self, connect: Callable[[], Connection], name: str) -> None:
        """
        Args:
            connect: Makes a connection whose search path is the schema.
            name: Names the thread that looks for overdue answers.
        """
        self._connect = connect
        self._local = threading.local()
        self._open: set[ReadConnection] = set()
        self.closing = threading.Event()
        """The reader is being closed: reads that wait for the server are given up."""
        self._has_ended = threading.Event()
        self._watch = threading.Thread(target=self._cut_stuck, name=f"reader's watch {name}", daemon=True)
        self._watch.start()

    @property
    def mine(self) -> ReadConnection:
        """
        The calling thread's connection.

        Raises:
            psycopg.Error, OSError: The thread has no connection, and the server cannot be reached.
        """
        found: ReadConnection | None = getattr(self._local, "connection", None)
        if found is None:
            found = self._local.connection = ReadConnection(self._connect())
            self._open.add(found)
        return found

    def passes(self, error: Exception) -> bool:
        """Whether the calling thread may try a read that failed with this error again. Drops its connection if lost."""
        found: ReadConnection | None = getattr(self._local, "connection", None)
        if found is not None and found.is_lost:
            self._open.discard(found)
            found.close()
            found = self._local.connection = None
        return found is None or getattr(error, "sqlstate", None) in PASSING

    def close(self) -> None:
        """Close all connections. Nobody may read any more."""
        self._has_ended.set()
        self._watch.join()
        for connection in list(self._open):
            connection.close()

    def _cut_stuck(self) -> None:
        while not self._has_ended.wait(WATCH_SECONDS):
            seconds = CLOSE_SECONDS if self.closing.is_set() else inf
            for connection in list(self._open):
                if connection.is_stuck(seconds):
                    cut(connection.connection)


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


def numbered(sql: str, values: Sequence[Value], first: int = 1) -> str:
    """A statement, or a part of one, with the server's placeholders, numbered and typed, in place of ``?``."""
    begin, *rest = sql.split("?")
    places = enumerate(zip(values, rest, strict=True), first)
    return begin + "".join([f"${k}::{_type_of(value)}{text}" for k, (value, text) in places])


def _type_of(value: Value) -> str:
    if isinstance(value, int):
        return "bigint"
    if isinstance(value, bytes):
        return "bytea"
    if isinstance(value, str):
        return "text"
    return "text[]" if value and isinstance(value[0], str) else "bigint[]"


Connection: TypeAlias = "psycopg.Connection[Any]"


class Statement(NamedTuple):
    """A statement whose result is ignored."""

    sql: str
    values: Sequence[Any] = ()
    is_repeated: bool = True
    """It is worth preparing, and its plan does not depend on its values."""


class Copy(NamedTuple):
    """Rows for a table, sent by binary COPY."""

    sql: str
    data: bytes


Step: TypeAlias = Statement | Copy | Callable[[Connection], None]

BEGIN: Final = Statement("begin")
COMMIT: Final = Statement("commit")


class NotSaid(psycopg.InterfaceError):
    """The server did not confirm the commit."""


def commit(connection: Connection, steps: Sequence[Step]) -> None:
    """
    Execute steps as one transaction, and wait until the server says that it is committed. The absence of an error is
    not enough: if an earlier transaction was left open, or the transaction has failed before its COMMIT, no error
    comes.

    Several steps get a BEGIN and a COMMIT, although a pipeline alone would be one transaction: if a step cannot be sent
    because of a value that no server takes, the steps before it would be committed.

    Raises:
        NotSaid: The session is in no state to begin a transaction, or the server did not confirm the commit.
        Exception: Whatever it is, it does not tell whether the transaction is committed. The caller has to find out.
    """
    alone = len(steps) == 1 and isinstance(steps[0], Statement)
    make_idle_sure(connection)
    last = carry_out(connection, steps if alone else [BEGIN, *steps, COMMIT])
    if not alone and (last is None or last.statusmessage != "COMMIT"):
        raise NotSaid("the server did not commit")
    make_idle_sure(connection)


def make_idle_sure(connection: Connection) -> None:
    """
    Check that the session is in no transaction.

    Raises:
        NotSaid: A transaction is open, or it is unknown whether one is.
    """
    if connection.pgconn.transaction_status != pq.TransactionStatus.IDLE:
        raise NotSaid("the session is in a transaction")


def carry_out(connection: Connection, steps: Sequence[Step]) -> psycopg.Cursor[Any] | None:
    """
    Send the steps in order, and wait until all are done.

    Returns:
        The cursor of the last step, if that is a statement.

    Raises:
        psycopg.Error: A step failed; the steps after it were not executed.
    """
    last: psycopg.Cursor[Any] | None = None
    for is_statement, group in groupby(steps, lambda step: isinstance(step, Statement)):
        together = list(group)
        with connection.pipeline() if is_statement and len(together) > 1 else nullcontext():
            for step in together:
                last = _carry_out_one(connection, step)
    return last


def _carry_out_one(connection: Connection, step: Step) -> psycopg.Cursor[Any] | None:
    if isinstance(step, Statement):
        prepare = None if step.is_repeated else False
        return connection.execute(step.sql.encode(), step.values, prepare=prepare)
    if isinstance(step, Copy):
        with connection.cursor() as cursor, cursor.copy(step.sql.encode()) as copy:
            copy.write(step.data)
    else:
        step(connection)
    return None
