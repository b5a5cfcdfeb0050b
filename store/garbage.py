"""
What a store lets go of behind, in small pieces: what dropped cursors held, and routes that no message names any
more.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

C = TypeVar("C")
"""An engine's connection."""

PIECE_ROWS: Final = 2_000
"""Rows looked at in one transaction: some milliseconds, so that no publisher waits longer for it."""


class DroppedCursor(ABC, Generic[C]):
    """A cursor that was dropped; an adapter has its statements. All of them are inside the caller's transaction."""

    def __init__(self, cursor: int, endpoint: int, up_to: int) -> None:
        """
        Args:
            endpoint: Whose messages it was about.
            up_to: The endpoint needed messages up to this id by it.
        """
        self.cursor = cursor
        self.endpoint = endpoint
        self.up_to = up_to

    def work_off(self, connection: C, *, has_held: bool) -> bool:
        """
        Work off a piece.

        Args:
            has_held: There may be messages that the log does not hold.

        Returns:
            Whether nothing is left of it.
        """
        if has_held:
            for part, floor in self._parts(connection):
                if floor < self.up_to and not self._let_go_of_piece(connection, part, floor):
                    return False
        if not self._drop_references(connection, has_held=has_held):
            return False
        for table, column, key in (
            ("attempt", "cursor", "message"),
            ("cursor_range", "number", "part, first"),
        ):
            if self._drop_rows(connection, table, column, key, PIECE_ROWS) == PIECE_ROWS:
                return False
        for table, column in (("cursor", "number"), ("garbage", "cursor")):
            self._execute(connection, f"delete from {table} where {column} = {self.cursor}")
        return True

    def leave_span(self, connection: C, first: int, stop: int, *, has_held: bool) -> None:
        """Let go of what it has from ``first`` on, below ``stop``: what is logged of it is about to be trimmed."""
        last = min(stop - 1, self.up_to)
        for part, floor in self._parts(connection):
            if last <= max(first - 1, floor):
                continue
            if has_held:
                self._let_go_between(connection, part, max(first - 1, floor), last)
            self._add_range(connection, part, first, last)
        # References may be to messages above ``up_to`` as well.
        if has_held:
            self._let_go_of_referred(connection, first, stop)
        self._delete_referred(connection, first, stop)

    def _let_go_of_piece(self, connection: C, part: int, floor: int) -> bool:
        """Let go of some messages that are held for a part, and move its floor; whether it is through."""
        ((count, last),) = self._execute(
            connection,
            f"select count(*), max(id) from ({self._HELD} and id > {floor} and id <= {self.up_to} "
            f"order by id limit {PIECE_ROWS}) as piece",
        )
        if count:
            self._let_go_between(connection, part, floor, last)
        is_through: bool = count < PIECE_ROWS
        self._execute(
            connection,
            f"update cursor set floor = {self.up_to if is_through else last} "
            f"where number = {self.cursor} and part = {part}",
        )
        return is_through

    def _drop_references(self, connection: C, *, has_held: bool) -> bool:
        """Let go of some messages that it had by references; whether that was the last of them."""
        ((count, last),) = self._execute(
            connection,
            f"select count(*), max(message) from (select message from reference where cursor = {self.cursor} "
            f"order by message limit {PIECE_ROWS}) as piece",
        )
        if count:
            if has_held:
                self._let_go_of_referred(connection, 0, last + 1)
            self._delete_referred(connection, 0, last + 1)
        is_through: bool = count < PIECE_ROWS
        return is_through

    def _parts(self, connection: C) -> list[Any]:
        """(part, floor) of each."""
        return self._execute(
            connection, f"select part, floor from cursor where number = {self.cursor} order by part"
        )

    def _referred(self, first: int, stop: int) -> str:
        """SQL's ``from`` and ``where`` of references."""
        return f"from reference where cursor = {self.cursor} and message >= {first} and message < {stop}"

    def _delete_referred(self, connection: C, first: int, stop: int) -> None:
        self._execute(connection, f"delete {self._referred(first, stop)}")

    def _add_range(self, connection: C, part: int, first: int, last: int) -> None:
        """Put ids in a range, joined with those that they touch."""
        of_part = f"from cursor_range where number = {self.cursor} and part = {part}"
        ((low, high),) = self._execute(
            connection,
            f"select min(first), max(last) {of_part} and first <= {last + 1} and last >= {first - 1}",
        )
        if low is not None:
            first, last = min(first, low), max(last, high)
            self._execute(connection, f"delete {of_part} and first between {first} and {last}")
        self._execute(
            connection,
            "insert into cursor_range (number, part, first, last) "
            f"values ({self.cursor}, {part}, {first}, {last})",
        )

    # --- what an engine does of it ----------------------------------------------------------------------------------

    _HELD: str
    """SQL that selects the ids of messages that the log does not hold; a condition follows."""

    @abstractmethod
    def _execute(self, connection: C, sql: str) -> list[Any]:
        """One statement, whose values are numbers and part of it; its rows, if it has any."""

    @abstractmethod
    def _drop_rows(self, connection: C, table: str, column: str, key: str, most: int) -> int:
        """Delete some rows of the cursor's, and not more than ``most``; how many."""

    @abstractmethod
    def _let_go_between(self, connection: C, part: int, floor: int, last: int) -> None:
        """Let go of what is held for a part above ``floor``, up to ``last``."""

    @abstractmethod
    def _let_go_of_referred(self, connection: C, first: int, stop: int) -> None:
        """Let go of what is held for references from ``first`` on, below ``stop``."""


class RouteSweep:
    """
    The routes that a writer knows to be stored, and how far they were looked at.

    A round of looks begins when something was committed since the last one began.
    """

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self.known = set(numbers)
        """Publishing looks here: what is not in it is written, if it is not there."""
        self.after = 0
        """Numbers up to this one were looked at in this round; 0 between rounds."""
        self._is_changed = True

    @property
    def is_due(self) -> bool:
        """There is something to be looked at."""
        return self._is_changed or self.after > 0

    def committed(self, numbers: Collection[int]) -> None:
        """A transaction was committed that wrote these routes."""
        self.known.update(numbers)
        self._is_changed = True

    def begin_look(self) -> int:
        """Look at routes with numbers above the one that is returned."""
        if not self.after:
            self._is_changed = False
        return self.after

    def looked_at(self, found: Sequence[tuple[int, bool]], most: int) -> list[int]:
        """
        Some were looked at; nobody has written meanwhile.

        Args:
            found: (number, whether no message names it), by number.
            most: As many would have been looked at.

        Returns:
            Those to be deleted. They are forgotten already: whoever publishes on one again writes it again.
        """
        self.after = found[-1][0] if len(found) == most else 0
        unnamed = [number for number, is_unnamed in found if is_unnamed]
        self.known.difference_update(unnamed)
        return unnamed
