"""
What the next start of this version would do to a store, found by reading it only: the migrations from an earlier
version's tables to this version's, with the rows that each migration goes through, and why a start would be refused.

The store may be in use by a gateway of an earlier version. Its tables are read as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from store.copies import MarkState, check_whole, read_mark
from store.errors import StoreError
from store.tables import ShortTables

FREE: Final = re.compile(r"create table |alter table \w+ (?:add column|alter column \w+ set storage) ")
"""Statements that take no longer on a large table than on an empty one."""

ROW_BY_ROW: Final = re.compile(r"(?:create (?:unique )?index \w+ on|update|delete from) (?P<table>\w+)\b")
"""Statements that go through all rows of a table."""


class Step(NamedTuple):
    """A migration that a start would apply."""

    name: str
    rows: int
    """Rows that it reads or writes, at most."""


class SeenEndpoint(NamedTuple):
    """A queue, stream or topic endpoint, as it was saved."""

    name: str
    kind: str
    settings: str
    messages: int
    """Messages on it, when its cursor was last saved."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """What a start would do to a store. If there is no store, a start creates it."""

    place: str
    schema: str | None = None
    """The last migration that was applied; None if there is no store yet."""
    steps: tuple[Step, ...] = ()
    refusal: str | None = None
    """Why a start would not open the store."""
    is_backup: bool = False
    """A start gives the log a new generation, see ``store.copies``."""
    endpoints: tuple[SeenEndpoint, ...] = ()
    indexed: tuple[str, ...] = ()
    """Properties that messages are indexed by."""


def look_ahead(
    tables: ShortTables,
    place: str,
    applied: Sequence[str],
    known: Mapping[str, Sequence[str]],
    check_version: Callable[[], None],
) -> Ahead:
    """
    What a start would do to a store. The caller's transaction shows one state of the store, and cannot write.

    Args:
        applied: Migrations that were applied, in their order.
        known: Migrations that this version knows, with their statements.
        check_version: Raises ``StoreError`` if this version does not open the store.
    """
    if not applied:
        return Ahead(place)
    refusal = None
    mark = read_mark(tables)
    try:
        check_version()
        check_whole(place, mark)
    except StoreError as error:
        refusal = str(error)
    if set(applied).isdisjoint(known):
        return Ahead(place, applied[-1], refusal=refusal)
    return Ahead(
        place,
        applied[-1],
        tuple(steps_ahead(applied, known, lambda table: rows_of(tables, table))),
        refusal,
        mark is not None and mark.state is MarkState.BACKUP,
        tuple(
            SeenEndpoint(name, kind, settings, int(messages))
            for name, kind, settings, messages in tables.ask(
                "select name, kind, settings, coalesce((select sum(messages) from cursor "
                "where cursor.number = endpoint.cursor), 0) from endpoint order by name"
            )
        ),
        tuple(span.name for span in tables.indexed_spans() if span.end_id is None),
    )


def rows_of(tables: ShortTables, table: str) -> int:
    """Rows of a table; 0 if the table does not exist yet."""
    if not tables.has(table):
        return 0
    ((count,),) = tables.ask(f"select count(*) from {table}")
    return int(count)


def steps_ahead(
    applied: Sequence[str], known: Mapping[str, Sequence[str]], rows: Callable[[str], int]
) -> list[Step]:
    """The migrations that were not applied yet, in their order; ``rows`` counts the rows of a table."""
    return [
        Step(name, sum(rows_gone_through(statement, rows) for statement in statements))
        for name, statements in known.items()
        if name not in applied
    ]


def rows_gone_through(statement: str, rows: Callable[[str], int]) -> int:
    """
    How many rows a statement of a migration reads or writes at most.

    Raises:
        ValueError: Nobody has said yet how many rows such a statement goes through.
    """
    words = " ".join(statement.split())
    if FREE.match(words):
        return 0
    found = ROW_BY_ROW.match(words)
    if found is None:
        raise ValueError(f"it is not known what this costs; say so in store/upgrade.py: {words[:80]}")
    return rows(found["table"])
