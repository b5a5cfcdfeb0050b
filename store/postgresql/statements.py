"""
A transaction as values: what is to be sent, in order, and how it is sent with few round trips.

Statements that follow each other go out as one pipeline, a COPY by itself, and a step that has to look at what is there
is called with the connection. All of it is made before anything is sent, so that a transaction whose connection was
lost can be carried out again on another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import psycopg
from psycopg import pq

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
    at, end = 0, len(steps)
    last: psycopg.Cursor[Any] | None = None
    while at < end:
        step = steps[at]
        if isinstance(step, Statement):
            if at + 1 < end and isinstance(steps[at + 1], Statement):
                at, last = _send(connection, steps, at)
                continue
            last = connection.execute(
                step.sql.encode(), step.values, prepare=None if step.is_repeated else False
            )
            at += 1
            continue
        last = None
        if isinstance(step, Copy):
            with connection.cursor() as cursor, cursor.copy(step.sql.encode()) as copy:
                copy.write(step.data)
        else:
            step(connection)
        at += 1
    return last


def _send(connection: Connection, steps: Sequence[Step], at: int) -> tuple[int, psycopg.Cursor[Any] | None]:
    """A pipeline of the statements that follow each other from ``at`` on; where they end, and the last one's."""
    last: psycopg.Cursor[Any] | None = None
    with connection.pipeline():
        while at < len(steps):
            step = steps[at]
            if not isinstance(step, Statement):
                break
            last = connection.execute(
                step.sql.encode(), step.values, prepare=None if step.is_repeated else False
            )
            at += 1
    return at, last
