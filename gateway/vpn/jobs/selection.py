"""
Which messages a job takes: a selector over rows, asked in turns of the loop as consumers' selectors are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from amqp_ext.filters.filter_set import Filters
from gateway.core.model import Row
from gateway.core.replay.reading import compile_filters
from gateway.vpn.delivery.selection_turns import RowsAtOnce, SelectionTurns
from gateway.vpn.runtime import Runtime


def selector_of(text: str, too_costly: Callable[[Row], None] | None = None) -> Callable[[Row], bool] | None:
    """
    What a selector takes; None where it is empty, and everything is taken. A message that cannot be read is not taken.

    Args:
        too_costly: See ``compile_filters``.

    Raises:
        Refused: INVALID_FIELD, it is none; the text says where.
    """
    return compile_filters(Filters(selector=text), too_costly) if text else None


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
