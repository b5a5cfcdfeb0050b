"""
Trims the log: near its quota, when messages are too old, by retention rules, and on an administrator's command.

It trims piece by piece, each piece in a commit of its own between those of publishers: trimming advances at the pace of
commits and never delays them for long (Solace, "Message Replay", section "Trimming the Replay Log").

Retention rules (``TopicRetention``) remove messages of some topics from the middle of the log. Nothing is kept in
memory about single messages: what each rule holds is counted once after a start, page by page, and its excess is
searched for from its oldest message on. Readers, replays and jobs that are still to read a message are told before it
leaves, so that no gap goes unnoticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeAlias

from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import KeptTopics
from gateway.core.model import Row, stored_bytes
from gateway.core.trimming import TRIM_IDS
from gateway.logging import log_keys
from gateway.vpn.runtime import HOUR_MS
from gateway.vpn.state import VpnPart, VpnService, VpnState
from gateway.vpn.turns import ADMINISTRATION, UserTurns
from store.errors import ReadFailed, WriteFailed
from store.ports import LengthPage, Reader

TRIM_AT: Final = 0.90
"""Share of the quota past which trimming begins, as at Solace: the rest is room for the time that it takes."""

TRIM_TO: Final = 0.88
"""Share at which it ends: a little below, so that it is not begun again for every message."""

TRIM_NO_FURTHER: Final = 0.80
"""Share to which a piece may go, about: a log of few, large messages is not emptied for one that is too many."""

Leaving: TypeAlias = "Sequence[tuple[int, str]]"
"""(id, topic) of messages that are about to leave the log, ids rising."""

TRIM_SHARE: Final = 0.02
"""Share of a rule's quota by which trimming goes below the quota, so that it is not begun again for each message."""

AGAIN_SECONDS: Final = 1.0
"""From a failed try, for example because a transaction is under way, to the next one."""


class Trimmer(VpnPart):
    def __init__(self, state: VpnState) -> None:
        super().__init__(state)
        self._before_id = 0
        """What an administrator asked for: everything below this goes."""
        self._aged_below = 0
        """Everything below this is older than the log keeps."""
        self._wanted_bytes = 0
        """What the first of the publishers that wait for room needs."""
        self.when_room: list[Callable[[], None]] = []
        """Called whenever there is more room in the log."""
        self._is_making_room = False
        self._waits = False
        """It waits for transactions that are under way."""
        self._waiting: list[asyncio.Future[None]] = []
        self._turns = UserTurns()
        """The one turn at trimming: a piece has it, or the trims of others."""
        self._log = state.runtime.log

    def make_room(self, size_bytes: int) -> None:
        """A message of so many bytes waits for room in the log; 0: none does."""
        self._wanted_bytes = size_bytes
        if size_bytes:
            self.run()

    def committed(self, endpoints: Collection[str], news: Mapping[str, int]) -> None:
        """The log may have grown; or the store works again, after a piece could not be trimmed."""
        if self._waits or ((news or self._wanted_bytes) and self._may_trim()):
            self.run()

    def not_committed(self) -> None:
        """The log has not grown."""
        if self._waits:
            self.run()
        if self._wanted_bytes and not self._is_wanted():
            self._told_of_room()

    def _may_trim(self) -> bool:
        """Whether there may be something to trim: a quick look, as every commit waits for it."""
        return (
            self._is_making_room
            or bool(self._waiting)
            or max(self._before_id, self._aged_below) > self._broker.log.first_id
            or self._broker.trimming.usage > TRIM_AT
            or self._is_wanted()
        )

    def _is_wanted(self) -> bool:
        """Whether a publisher waits for room that is not there."""
        return bool(self._wanted_bytes) and self._broker.trimming.lacks_room(self._wanted_bytes)

    def run(self) -> None:
        """Go on, if there is anything to trim."""
        broker = self._broker
        if not self._turns.free:
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
            # Done; or the next messages are not archived yet, and this goes on when an archiver reports them.
            self._is_making_room = False
            waiting, self._waiting = self._waiting, []
            for done in waiting:
                if not done.done():
                    done.set_result(None)
            return
        self._turns.give_to(ADMINISTRATION)
        stop = effect.stop

        def committed(error: WriteFailed | None) -> None:
            self._turns.pass_on()
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
        """Wait until no piece is being committed; then none is begun here until ``end_turn``."""
        try:
            await self._turns.take(ADMINISTRATION)
        except asyncio.CancelledError:
            self.run()
            raise

    def end_turn(self) -> None:
        """The turn is over: go on, as there may be more room."""
        self._turns.pass_on()
        self._told_of_room()
        self.run()

    def _told_of_room(self) -> None:
        for tell in self.when_room:
            tell()

    def trim_aged(self, before_id: int) -> None:
        """Trim everything below an id, which is older than the log keeps; unarchived messages follow once archived."""
        self._aged_below = max(self._aged_below, before_id)
        self.run()

    async def trim_before(self, message_id: int) -> int:
        """
        Trim everything below an id, as far as it is committed; returns when that is done.

        Returns:
            The first id the log has then.

        Raises:
            Refused: PRECONDITION_FAILED, some of it is not archived, and the log keeps such messages; INTERNAL, the
                store could not write.
        """
        self._broker.trimming.check(message_id)
        self._before_id = max(self._before_id, message_id)
        done: asyncio.Future[None] = self._runtime.loop.create_future()
        self._waiting.append(done)
        self.run()
        await done
        return self._broker.log.first_id


async def aged_below(state: VpnState, hours: int) -> int:
    """Everything in the log below this is older than so many hours."""
    end, oldest_ms = state.broker.log.next_id, state.runtime.clock.now_ms() - hours * HOUR_MS
    found = await state.read(state.reader.first_since, oldest_ms)
    return end if found is None else found  # what came meanwhile is younger


class Ageing(VpnService):
    """Has the log trimmed of messages that are too old; it looks once a minute, so they go a little late."""

    def __init__(self, state: VpnState, trimmer: Trimmer) -> None:
        super().__init__(state)
        self._trimmer = trimmer

    def start(self) -> None:
        """Look now, and again and again."""
        self._every(self._runtime.tuning.ageing_seconds, self.run)

    def run(self) -> None:
        """Look now, unless a look is under way."""
        if self._broker.policy.max_age_hours and not self._is_closed:
            self._begin(self._trim)

    async def _trim(self) -> None:
        if self._broker.log.first_id >= self._broker.log.next_id:
            return
        try:
            self._trimmer.trim_aged(await aged_below(self._state, self._broker.policy.max_age_hours))
        except ReadFailed as error:
            self._runtime.report("log_read_failed", error)


class TopicRetention(VpnService):
    """
    Removes messages of some topics from the log by retention rules, in addition to the quota and age of the whole log.

    Args:
        leaving: Called with messages that are about to leave the log.
    """

    def __init__(
        self, state: VpnState, trimmer: Trimmer, leaving: Sequence[Callable[[Leaving], None]]
    ) -> None:
        super().__init__(state)
        self._retention = state.broker.retention
        self._trimmer = trimmer
        self._leaving = leaving
        self._waits = False
        """It waits for transactions or for an archiver, and tries again a little later."""

    def start(self) -> None:
        """Look now, and again and again."""
        self._every(self._runtime.tuning.ageing_seconds, self.run)

    def committed(self, endpoints: Collection[str], news: Mapping[str, int]) -> None:
        """The log may have grown."""
        if news and self._task is None and not self._waits and self._retention.is_over_quota:
            self.run()

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages were erased, so they take less of the disk."""
        self._retention.recount()
        self.run()

    def run(self) -> None:
        """Look now, unless a look is under way."""
        if self._retention.rules and not self._is_closed:
            self._begin(self._work)

    def _ended(self, task: asyncio.Task[None]) -> None:
        super()._ended(task)
        if self._is_closed:
            return
        if self._waits:
            self._loop.call_later(AGAIN_SECONDS, self.run)
        elif self._retention.is_over_quota:
            # Messages came near the end of the work.
            self.run()

    async def _work(self) -> None:
        self._waits = False
        try:
            version = -1
            while version != self._retention.version:
                # If the rules changed meanwhile, begin again.
                await self._count()
                version = self._retention.version
                for kept in list(self._retention.rules):
                    await self._trim(kept, version)
        except ReadFailed as error:
            self._waits = True
            self._runtime.report("log_read_failed", error)
        except Refused as error:
            self._waits = True
            self._runtime.report("trim_failed", error)

    # --- what there is --------------------------------------------------------------------------------------------

    async def _count(self) -> None:
        retention, trimming = self._retention, self._broker.trimming
        version = -1
        while not retention.is_counted:
            if version != retention.version or trimming.below > retention.counted_below:
                # From ``counts_from`` on, messages are counted as they come. After this commit, all lower ids are in
                # the store or never will be, and all ordered trims are done.
                version = retention.version
                await self._committer.committed()
                continue
            position, began = retention.counted_below, self._runtime.clock.seconds()
            page, found = await self._state.read(_counted, self._reader, position, retention.counts_from)
            if version != retention.version or trimming.below > position:
                continue
            retention.counted(found, page.position)
            # Other work comes first: pause for as long as the page took.
            await asyncio.sleep(self._runtime.clock.seconds() - began)

    # --- what is too much -----------------------------------------------------------------------------------------

    async def _trim(self, kept: KeptTopics, version: int) -> None:
        """Remove from the log what exceeds a rule."""
        broker, rule = self._broker, kept.rule
        aged = await aged_below(self._state, rule.max_age_hours) if rule.max_age_hours else 0
        is_over = kept.excess_bytes > 0
        excess = kept.excess_bytes + round(rule.quota_bytes * TRIM_SHARE) if is_over else 0
        while version == self._retention.version:
            possible = broker.trimming.possible_of_topics
            stop = possible if excess > 0 else min(aged, possible)
            position = max(kept.cleared_below, broker.log.first_id)
            if position >= stop:
                # The excess is being committed, or is not archived.
                self._waits = self._waits or excess > 0 or possible < aged
                return
            page = await self._state.read(self._reader.lengths_page, position, stop, rule.topics)
            if version != self._retention.version:
                return
            found = [one for one in page.found if self._retention.of(one[1]) is kept]
            if not found:
                kept.cleared_below = max(kept.cleared_below, page.position)
                continue
            chosen: list[tuple[int, str]] = []
            for message_id, topic, length in found[:TRIM_IDS]:
                if message_id >= aged and excess <= 0:
                    break
                chosen.append((message_id, topic))
                if excess > 0:
                    excess -= stored_bytes(topic, (length,))
            if not chosen:
                return
            if not await self._take_out(kept, chosen, version):
                self._waits = True
                return

    async def _take_out(self, kept: KeptTopics, chosen: Leaving, version: int) -> bool:
        """Remove a piece in one commit; whether that succeeded."""
        trimming = self._broker.trimming
        await self._trimmer.take_turn()
        try:
            ids = trimming.settled_part([message_id for message_id, _ in chosen])
            if not ids or version != self._retention.version:
                self._trimmer.end_turn()
                return False
            leaving = [one for one in chosen if ids[0] <= one[0] <= ids[-1]]
            for tell in self._leaving:
                tell(leaving)
            effect = trimming.next_of_topics(kept, ids)
        except BaseException:
            self._trimmer.end_turn()
            raise

        def committed(error: WriteFailed | None) -> None:
            if error is None:
                trimming.topics_trimmed(effect)
            else:
                self._runtime.report("trim_failed", error)
                trimming.topics_not_trimmed(kept, effect)
            self._trimmer.end_turn()

        return await self._committer.tried([*trimming.replay_positions(), effect], committed) is None


def _counted(reader: Reader, position: int, end: int) -> tuple[LengthPage, list[tuple[str, int, int]]]:
    """A page of the log, and for each of its topics (topic, messages, bytes of the disk)."""
    page = reader.lengths_page(position, end, ())
    lengths: dict[str, list[int]] = {}
    for _, topic, length in page.found:
        lengths.setdefault(topic, []).append(length)
    return page, [(topic, len(found), stored_bytes(topic, found)) for topic, found in lengths.items()]
