"""
Trims the log: by itself near its quota and of what is too old, and when an administrator says so.

Piece by piece, each a commit of its own among those of publishers: trimming goes on at the pace of commits and never
holds them up for long (Solace, "Message Replay", section "Trimming the Replay Log").
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Final

from gateway import log_keys
from gateway.core.broker import Broker
from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.committer import Committer
from gateway.vpn.runtime import Runtime
from store.errors import WriteFailed

TRIM_AT: Final = 0.90
"""Share of the quota past which trimming begins, as at Solace: what is left is room for the time it takes."""

TRIM_TO: Final = 0.88
"""Share at which it ends: a little below, so that it is not begun again for every message."""

TRIM_NO_FURTHER: Final = 0.80
"""Share to which a piece may go, about: a log of few, large messages is not emptied for one that is too many."""


class Trimmer:
    def __init__(self, broker: Broker, committer: Committer, runtime: Runtime) -> None:
        self._broker = broker
        self._committer = committer
        self._runtime = runtime
        self._before_id = 0
        """What an administrator asked for: everything below this goes."""
        self._aged_below = 0
        """Everything below this is older than the log keeps."""
        self._wanted_bytes = 0
        """What the first of the publishers that wait for room needs."""
        self._tell: list[Callable[[], None]] = []
        self._is_making_room = False
        self._is_busy = False
        self._waits = False
        """For transactions that are under way."""
        self._waiting: list[asyncio.Future[None]] = []
        self._turns: deque[asyncio.Future[None]] = deque()
        """Others who trim, and wait until no piece is on its way."""
        self._log = runtime.log

    def tell_of_room(self, made: Callable[[], None]) -> None:
        """Call this, too, whenever there is more room in the log."""
        self._tell.append(made)

    def make_room(self, size_bytes: int) -> None:
        """A message of so many bytes waits for room in the log; 0: none does."""
        self._wanted_bytes = size_bytes
        if size_bytes:
            self.run()

    def committed(self, endpoints: Collection[str], news: Mapping[str, int]) -> None:
        """The log may have grown (``CommitListener``)."""
        if self._waits or (news and self._may_trim()):
            self.run()

    def not_committed(self) -> None:
        """The log has not grown (``CommitListener``)."""
        if self._waits:
            self.run()
        if self._wanted_bytes and not self._is_wanted():
            self._told_of_room()

    def _may_trim(self) -> bool:
        """Without looking closer, which every commit would wait for."""
        return (
            self._is_making_room
            or bool(self._waiting)
            or max(self._before_id, self._aged_below) > self._broker.log.first_id
            or self._broker.trimming.usage > TRIM_AT
            or self._is_wanted()
        )

    def _is_wanted(self) -> bool:
        """Somebody waits for room that is not there."""
        return bool(self._wanted_bytes) and self._broker.trimming.lacks_room(self._wanted_bytes)

    def run(self) -> None:
        """Go on, if there is anything to trim."""
        broker = self._broker
        if self._is_busy:
            return
        if not self._is_making_room and broker.trimming.usage > TRIM_AT and broker.trimming.is_possible:
            self._is_making_room = True
            self._log.info("trimming_started", **{log_keys.FIRST: broker.log.first_id})
        elif self._is_making_room and broker.trimming.usage <= TRIM_TO:
            self._is_making_room = False
            self._log.info("trimming_ended", **{log_keys.FIRST: broker.log.first_id})
        before_id = max(self._before_id, self._aged_below)
        if self._is_making_room:
            before_id = max(before_id, broker.trimming.room_below(TRIM_NO_FURTHER))
        if self._is_wanted():
            share = 1 - self._wanted_bytes / broker.policy.quota_bytes
            before_id = max(before_id, broker.trimming.room_below(min(share, TRIM_NO_FURTHER)))
        effect = broker.trimming.next_piece(before_id)
        self._waits = effect is None and broker.trimming.waits
        if self._waits:
            return
        if effect is None:
            # Done; or what follows is not archived yet, and it goes on when that is told.
            self._is_making_room = False
            waiting, self._waiting = self._waiting, []
            for done in waiting:
                if not done.done():
                    done.set_result(None)
            return
        self._is_busy = True
        stop = effect.stop

        def committed(error: WriteFailed | None) -> None:
            self._is_busy = self._gives_turn()
            if error is not None:
                # The ids stay marked: they are tried again from where the log begins.
                self._runtime.report("trim_failed", error)
                broker.trimming.not_trimmed(effect)
                for done in self._waiting:
                    if not done.done():
                        done.set_exception(
                            Refused(ErrorCode.INTERNAL, f"the log could not be trimmed: {error}")
                        )
                self._waiting.clear()
                self._before_id = 0
                return
            broker.trimming.trimmed(effect)
            assert stop <= broker.log.first_id
            self._told_of_room()
            self.run()

        self._committer.commit([*broker.trimming.replay_positions(), effect], committed)

    async def take_turn(self) -> None:
        """Wait until no piece is on its way; then none is begun here until ``end_turn``."""
        if not self._is_busy:
            self._is_busy = True
            return
        turn: asyncio.Future[None] = self._runtime.loop.create_future()
        self._turns.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.end_turn()
            raise

    def end_turn(self) -> None:
        """What had its turn is through: go on, there may be more room."""
        self._is_busy = self._gives_turn()
        self._told_of_room()
        self.run()

    def _gives_turn(self) -> bool:
        """Whether somebody else has the next turn."""
        while self._turns:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_result(None)
                return True
        return False

    def _told_of_room(self) -> None:
        for made in self._tell:
            made()

    def trim_aged(self, before_id: int) -> None:
        """Trim everything below an id that is older than the log keeps; what is not archived yet follows when it is."""
        self._aged_below = max(self._aged_below, before_id)
        self.run()

    async def trim_before(self, message_id: int) -> int:
        """
        Trim everything below an id, as far as it is committed; returns when that is done.

        Returns:
            The first id the log has then.

        Raises:
            Refused: PRECONDITION_FAILED, not all of it is archived, and the log keeps that; INTERNAL, the store could
                not write.
        """
        self._broker.trimming.check(message_id)
        self._before_id = max(self._before_id, message_id)
        done: asyncio.Future[None] = self._runtime.loop.create_future()
        self._waiting.append(done)
        self.run()
        await done
        return self._broker.log.first_id
