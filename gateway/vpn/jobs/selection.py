"""
Which messages a job takes: a selector over rows, asked in turns of the loop as consumers' selectors are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from amqp_ext.codec import CodecError
from amqp_ext.message.sections import MessageView
from amqp_ext.selector.lexer import SelectorError
from amqp_ext.selector.selector import compile_selector
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import BARE, CONTENT, Row
from gateway.vpn.delivery.selection_turns import RowsAtOnce, SelectionTurns
from gateway.vpn.runtime import Runtime


def selector_of(text: str) -> Callable[[Row], bool] | None:
    """
    What a selector takes; None where it is empty, and everything is taken. A message that cannot be read is not taken.

    Raises:
        Refused: INVALID_FIELD, it is none; the text says where.
    """
    if not text:
        return None
    try:
        matches = compile_selector(text).matches
    except SelectorError as error:
        raise Refused(ErrorCode.INVALID_FIELD, f"the selector is none: {error}") from error

    def takes(row: Row) -> bool:
        try:
            return matches(MessageView(row[CONTENT], row[BARE]))
        except CodecError:
            return False

    return takes


class Choosing:
    """
    A job's selector over pages of messages.

    Args:
        takes: None takes everything.
    """

    def __init__(
        self, takes: Callable[[Row], bool] | None, turns: SelectionTurns, runtime: Runtime, most_rows: int
    ) -> None:
        self._takes = takes
        self._turns = turns
        self._loop = runtime.loop
        self._at_once = RowsAtOnce(runtime.clock.seconds, most_rows)

    async def among(self, rows: list[Row]) -> list[Row]:
        """Those of these messages that the job takes."""
        takes = self._takes
        if takes is None:
            return rows
        chosen: list[Row] = []
        looked_at = 0
        while looked_at < len(rows):
            while self._turns.is_over():
                await self._next_turn()
            part: Sequence[Row] = rows[looked_at : looked_at + self._at_once.count]
            with self._at_once:
                chosen += filter(takes, part)
            looked_at += len(part)
        return chosen

    async def _next_turn(self) -> None:
        turn: asyncio.Future[None] = self._loop.create_future()
        waiting = self._turns.wait(lambda: None if turn.done() else turn.set_result(None))
        try:
            await turn
        finally:
            waiting.cancel()
