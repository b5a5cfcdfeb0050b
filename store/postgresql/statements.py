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


def commit(connection: Connection, steps: Sequence[Step]) -> None:
    """
    Carry out steps as one transaction, and wait until it is committed.

    More than one need a begin and a commit, though a pipeline would be one transaction without: where one of them
    cannot be sent, for a value is none that a server takes, those before it would be committed.

    Raises:
        psycopg.Error: Nothing of it is committed, or, where the connection is lost, that is not known.
    """
    alone = len(steps) == 1 and isinstance(steps[0], Statement)
    carry_out(connection, steps if alone else [BEGIN, *steps, COMMIT])


def carry_out(connection: Connection, steps: Sequence[Step]) -> None:
    """
    Send them, in order, and wait until all are done.

    Raises:
        psycopg.Error: One failed; those behind it were not carried out.
    """
    at, end = 0, len(steps)
    while at < end:
        step = steps[at]
        if isinstance(step, Statement):
            if at + 1 < end and isinstance(steps[at + 1], Statement):
                at = _send(connection, steps, at)
                continue
            connection.execute(step.sql.encode(), step.values, prepare=None if step.is_repeated else False)
        elif isinstance(step, Copy):
            with connection.cursor() as cursor, cursor.copy(step.sql.encode()) as copy:
                copy.write(step.data)
        else:
            step(connection)
        at += 1


def _send(connection: Connection, steps: Sequence[Step], at: int) -> int:
    """A pipeline of the statements that follow each other from ``at`` on; where they end."""
    with connection.pipeline():
        while at < len(steps):
            step = steps[at]
            if not isinstance(step, Statement):
                break
            connection.execute(step.sql.encode(), step.values, prepare=None if step.is_repeated else False)
            at += 1
    return at
