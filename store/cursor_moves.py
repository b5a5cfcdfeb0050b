"""
Moves of cursors, gathered: however many there are in a transaction, each part of a cursor is written once.
"""

from __future__ import annotations

from gateway.core.effects import MoveCursor


class PartMoves:
    """What the moves of one part of a cursor come to."""

    __slots__ = ("attempts", "counted_id", "done", "floor", "messages", "ranges", "references", "size_bytes")

    def __init__(self) -> None:
        self.floor: int | None = None
        self.counted_id: int | None = None
        self.messages = 0
        self.size_bytes = 0
        self.ranges: dict[int, int | None] = {}
        self.done: list[int] = []
        self.attempts: list[int] = []
        self.references: list[int] = []


class GatheredMoves:
    """What is to be written of cursors, by cursor and part; an adapter writes it."""

    def __init__(self) -> None:
        self._moves: dict[tuple[int, int], PartMoves] = {}

    def add(self, effect: MoveCursor) -> None:
        """Take up a move."""
        key = (effect.cursor, effect.part)
        moves = self._moves.get(key)
        if moves is None:
            moves = self._moves[key] = PartMoves()
        if effect.floor is not None:
            moves.floor = effect.floor
        if effect.counted_id is not None:
            moves.counted_id = effect.counted_id
        moves.messages += effect.messages
        moves.size_bytes += effect.size_bytes
        if effect.ranges:
            moves.ranges.update(effect.ranges)
        moves.done += effect.done
        if effect.attempts:
            moves.attempts += effect.attempts
        if effect.references:
            moves.references += effect.references
