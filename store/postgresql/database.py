"""
Connections to the database: who connects, with which password, what each session is set to, and how a lost host is
noticed; connections that only read; and text as PostgreSQL can store it.

A host that is lost says nothing. So what was sent and is not acknowledged, and a connection that is silent, is given up
after ``LOST_SECONDS``, at both ends: by the gateway, which connects anew, and by the server, which lets go of the
session's lock.

A transaction as values: what is to be sent, in order, and how it is sent with few round trips.

Statements that follow each other go out as one pipeline, a COPY by itself, and a step that has to look at what is there
is called with the connection. All of it is made before anything is sent, so that a transaction whose connection was
lost can be carried out again on another one.
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
"""Of the name of every schema."""

NAME_BYTES: Final = 63
"""The longest name that PostgreSQL does not cut (NAMEDATALEN)."""

LOST_SECONDS: Final = 5
"""After which a host that does not answer is lost."""

CONNECT_SECONDS: Final = 3
"""For each host of the url, where that does not say (``connect_timeout``)."""

SESSION: Final = {
    # Nothing of what we ask may be cut short: a COMMIT that is cancelled is neither done nor undone.
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
    # It stalls what is short, and all that we ask is short.
    "jit": "off",
}

AT_LEAST: Final = 150_000
"""PostgreSQL's version, as a server says it."""

# It tells of errors in a pipeline that follow from the first one, which is raised, and quotes rows in doing so.
logging.getLogger("psycopg").setLevel(logging.CRITICAL)


def schema_name(vpn: str) -> str:
    """The schema of a Message VPN, to be quoted. A name that is too long is cut, with a hash of all of it."""
    name = PREFIX + vpn
    if len(name.encode()) <= NAME_BYTES:
        return name
    return f"{name[:40]}~{hashlib.sha256(vpn.encode()).hexdigest()[:20]}"


def quoted_schema(vpn: str) -> str:
    """The same, quoted."""
    name = schema_name(vpn).replace('"', '""')
    return f'"{name}"'


def lock_key(vpn: str) -> int:
    """The key of the advisory lock that the active gateway of a Message VPN has: 64 bits, signed."""
    return int.from_bytes(hashlib.sha256(schema_name(vpn).encode()).digest()[:8], signed=True)


class Database:
    """Where stores are."""

    def __init__(self, url: str, password_file: Path | None = None) -> None:
        """
        Args:
            url: libpq's connection string, or URI.
            password_file: Holds the password and nothing else; read at each connection.
        """
        self._url = url
        self._password_file = password_file
        self._token = secrets.token_hex(4)
        """Of this gateway, as long as it runs."""

    @property
    def place(self) -> str:
        """The address as a person is told, without the password."""
        try:
            found = conninfo_to_dict(self._url)
        except psycopg.Error:
            return "postgresql"
        hosts, ports = (str(found.get(name) or "").split(",") for name in ("host", "port"))
        # One port holds for all hosts.
        ports = ports * len(hosts) if len(ports) == 1 else ports
        ends = [f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False)]
        return f"postgresql://{','.join(ends)}/{found.get('dbname') or ''}"

    def place_of(self, vpn: str) -> str:
        """Where a Message VPN is, as a person is told."""
        return f"{self.place}, schema {schema_name(vpn)}"

    def session_name(self, vpn: str, purpose: str) -> str:
        """What a session is called in ``pg_stat_activity``: no other of this or another gateway has the same name."""
        name = f"rewind {self._token}{lock_key(vpn) & 0xFFFFFFFF:08x} {purpose} {vpn}"
        return name[:NAME_BYTES]  # all of it is ASCII

    def connect(self, vpn: str, purpose: str, **settings: str) -> Connection:
        """
        A connection, in autocommit, whose search path is the Message VPN's schema. Blocks.

        Args:
            purpose: One word for what it is there for.
            settings: Of the session, beside ``SESSION``.

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
            # One type for every number: a statement is prepared once, whatever the values.
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
                    # Not every version has all of them.
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
        The rows of a short query, by a connection of its own: of the server that is there now. Blocks for moments.

        Raises:
            psycopg.Error: There is none, or it does not answer.
            OSError: The password cannot be read.
        """
        with closing(self.connect(vpn, purpose)) as connection, bounded(connection):
            return connection.execute(sql, values).fetchall()


def engine(connection: Connection) -> str:
    """The engine that keeps the data, with its version, as a person is told."""
    version = connection.info.server_version
    return f"PostgreSQL {version // 10_000}.{version % 10_000}"


def cut(connection: Connection) -> None:
    """Break a connection from another thread: whoever waits for its server waits no longer. Nothing is cancelled."""
    # A number of its own: the connection may be closed meanwhile, and its number be another's.
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.pgconn.socket)) as end:
        end.shutdown(socket.SHUT_RDWR)


@contextmanager
def bounded(connection: Connection) -> Iterator[None]:
    """What takes no time is given up after ``LOST_SECONDS``: a server that was stopped does not say so."""
    watch = threading.Timer(LOST_SECONDS, cut, [connection])
    watch.daemon = True
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def is_lost(error: BaseException, connection: Connection) -> bool:
    """Whether the connection, or the server behind it, is at fault: what was sent may be done, or not."""
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
"""SQLSTATEs (appendix A of PostgreSQL's documentation) of a server that cannot be written to any more."""

MAY_PASS: Final = ("40", "53", "54", "55", "57", "58", "XX")
"""Classes of SQLSTATEs of a server, or a disk, that may work again: what failed was not at fault. (``54``: locks, of
which a server has so many.)"""

ESCAPE: Final = "\x01"


def stored_text(text: str) -> str:
    """
    A text as it is stored: PostgreSQL cannot store U+0000, which a topic, a name or a property's value may hold.

    That is written as U+0001 and a 0, and U+0001 itself as U+0001 and a 1. Each character is written by itself: what
    begins with another text, or holds it, does so written, too, and no two texts are written alike. Nearly every text
    has neither and stays as it is.
    """
    if "\0" not in text and ESCAPE not in text:
        return text
    return text.replace(ESCAPE, "\x011").replace("\0", "\x010")


def read_text(stored: str) -> str:
    """The text that was stored."""
    if ESCAPE not in stored:
        return stored
    return stored.replace("\x010", "\0").replace("\x011", ESCAPE)


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


PATIENCE_SECONDS: Final = 40.0
"""How long a reader waits for a server that cannot be reached: a standby takes the place of a primary within 30 s."""

RETRY_SECONDS: Final = 0.2
"""Between two tries to reach it."""

WATCH_SECONDS: Final = 0.5
"""Between two looks at who waits for an answer."""

CLOSE_SECONDS: Final = 1.0
"""What a read may still take when its reader is to be closed."""

PASSING: Final = frozenset({"40001", "40P01", "57P01", "57P02", "57P03"})
"""SQLSTATEs: a standby has to go on with what was trimmed, or a server goes. It is tried again."""


class ReadConnections:
    """
    The connections of one reader, one for each of its threads. Each is made when it is needed, and anew when it was
    lost. One whose answer is overdue is cut: a server that was stopped keeps its connections.
    """

    def __init__(self, connect: Callable[[], Connection], name: str) -> None:
        """
        Args:
            connect: Makes a connection, of which the search path is the schema.
            name: For the thread that looks at who waits.
        """
        self._connect = connect
        self._local = threading.local()
        self._open: set[ReadConnection] = set()
        self.closing = threading.Event()
        """The reader is about to be closed: what waits for the server is given up."""
        self._has_ended = threading.Event()
        self._watch = threading.Thread(target=self._cut_stuck, name=f"reader's watch {name}", daemon=True)
        self._watch.start()

    @property
    def mine(self) -> ReadConnection:
        """
        The calling thread's.

        Raises:
            psycopg.Error, OSError: There is none, and the server cannot be reached.
        """
        found: ReadConnection | None = getattr(self._local, "connection", None)
        if found is None:
            found = self._local.connection = ReadConnection(self._connect())
            self._open.add(found)
        return found

    def passes(self, error: Exception) -> bool:
        """Whether the calling thread may try again what failed so. Where its connection is lost, it gets another."""
        found: ReadConnection | None = getattr(self._local, "connection", None)
        if found is not None and found.is_lost:
            self._open.discard(found)
            found.close()
            found = self._local.connection = None
        return found is None or getattr(error, "sqlstate", None) in PASSING

    def close(self) -> None:
        """End all of them; nobody reads any more."""
        self._has_ended.set()
        self._watch.join()
        for connection in list(self._open):
            connection.close()

    def _cut_stuck(self) -> None:
        while not self._has_ended.wait(WATCH_SECONDS):
            seconds = CLOSE_SECONDS if self.closing.is_set() else inf
            for connection in list(self._open):
                if connection.is_stuck(seconds):
                    connection.cut()


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
    """A statement, or a part of one, with its places (``?``) as the server has them: by number, with their types."""
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
    """One whose result nobody looks at."""

    sql: str
    values: Sequence[Any] = ()
    is_repeated: bool = True
    """It is worth being prepared, and its plan does not depend on its values."""


class Copy(NamedTuple):
    """Rows for a table, by binary COPY."""

    sql: str
    data: bytes


Step: TypeAlias = Statement | Copy | Callable[[Connection], None]

BEGIN: Final = Statement("begin")
COMMIT: Final = Statement("commit")


class NotSaid(psycopg.InterfaceError):
    """The server did not say what it says when a transaction is committed."""


def commit(connection: Connection, steps: Sequence[Step]) -> None:
    """
    Carry out steps as one transaction, and wait until the server says that it is committed. That no error came is not
    enough: what is sent inside of a transaction that was left open, or a COMMIT of one that has failed, brings none.

    More than one need a begin and a commit, though a pipeline would be one transaction without: where one of them
    cannot be sent, for a value is none that a server takes, those before it would be committed.

    Raises:
        NotSaid: The connection is in no state to begin one, or the server did not say that it is committed.
        Exception: Whatever it is, it does not say whether the transaction is committed; the caller looks.
    """
    alone = len(steps) == 1 and isinstance(steps[0], Statement)
    make_idle_sure(connection)
    last = carry_out(connection, steps if alone else [BEGIN, *steps, COMMIT])
    if not alone and (last is None or last.statusmessage != "COMMIT"):
        raise NotSaid("the server did not commit")
    make_idle_sure(connection)


def make_idle_sure(connection: Connection) -> None:
    """
    Raises:
        NotSaid: A transaction is open, or it is not known whether one is.
    """
    if connection.pgconn.transaction_status != pq.TransactionStatus.IDLE:
        raise NotSaid("the session is in a transaction")


def carry_out(connection: Connection, steps: Sequence[Step]) -> psycopg.Cursor[Any] | None:
    """
    Send them, in order, and wait until all are done.

    Returns:
        The last step's, if that is a statement.

    Raises:
        psycopg.Error: One failed; those behind it were not carried out.
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
