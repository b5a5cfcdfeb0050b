"""
Commit, then tell: effects go to the store in order, and only when they are durable is anybody told.

In one turn of the loop, all publications of all connections and all other effects become one batch. ``commit`` hands
effects to the writer's thread; its reports come back to the loop in the same order. Invariant: a client is told of
something, and a consumer is sent a message, only after the effects of that and all earlier effects are durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

from gateway.core.broker import Broker
from gateway.core.dedup import echoes_of
from gateway.core.effects import Effect, Publication, SaveArchived
from gateway.core.errors import ErrorCode, Refused
from gateway.core.message_cache import MessageCache
from gateway.core.model import ID
from gateway.logging import log_keys
from gateway.vpn.runtime import Counters, Runtime
from store.errors import Deposed, WriteFailed
from store.ports import Batch, Histogram, Store

Then: TypeAlias = "Callable[[WriteFailed | None], None]"

LINGER_SECONDS: Final = 0.04
"""How long settlements, which nobody waits for, are gathered before they get a commit of their own. One commit for each
would be too expensive: under load, a change of threads costs more than all other work for a settlement, and a commit
takes half a millisecond of a processor. If a crash loses settlements, their messages are redelivered."""

LINGERING_EFFECTS: Final = 256
"""With so many effects, they are committed without a further wait."""

Committed: TypeAlias = "Callable[[Collection[str], Mapping[str, int]], None]"
"""Called when something is durable, with the names of endpoints on which messages became ready, and with the topics
that messages were published to, each with the id of its first message."""


class Committer:
    """The one owner of what is durable."""

    def __init__(
        self, store: Store, broker: Broker, cache: MessageCache, counters: Counters, runtime: Runtime
    ) -> None:
        """
        Args:
            cache: Gets each publication when it is durable.
        """
        self.problem: str | None = None
        """Why the last write failed; None if it succeeded."""
        self.pending_bytes = 0
        """Content taken and not durable yet."""
        self._broker = broker
        self._cache = cache
        self._counters = counters
        self._runtime = runtime
        self._loop = runtime.loop
        self._most_pending_bytes = runtime.tuning.pending_bytes
        self._effects: list[Effect] = []
        self._then: list[Then] = []
        self._size_bytes = 0
        self._scheduled = False
        self._lingering: asyncio.Handle | None = None
        """The timer that commits lingering effects; it is set for the first of them."""
        self._in_flight = 0
        """Batches handed to the writer and not reported yet."""
        self._waiting_for_room: dict[Callable[[], None], None] = {}
        self.when_committed: list[Committed] = []
        """Called when something is durable, in this order."""
        self.when_not_committed: list[Callable[[], None]] = []
        """Called when a transaction failed: its ids will never be committed, and nobody needs to wait for them."""
        self.when_store_changes: Callable[[str | None], None] | None = None
        """Called with the reason when a write failed, and with None when one succeeded after that."""
        self.when_deposed: Callable[[], None] | None = None
        """Called, once, when another gateway has taken the store over."""
        self.is_deposed = False
        """Another gateway has the store: nobody is told anything any more, and nothing is written."""
        self._store = store
        self._writer = store.start_writer(self._on_commit)

    @property
    def confirmed_at(self) -> float | None:
        """See ``store.ports.Writer.confirmed_at``."""
        return self._writer.confirmed_at

    @property
    def commit_seconds(self) -> Histogram:
        """How long the store took to make transactions durable."""
        return self._writer.commit_seconds

    async def close(self) -> None:
        """Commit what is under way and close the store."""
        if self._lingering is not None:
            self._lingering.cancel()
        self._submit()
        await self._loop.run_in_executor(None, self._store.close)

    # --- commit ---------------------------------------------------------------------------------------------------

    def commit(self, effects: Iterable[Effect], then: Then | None = None) -> None:
        """Make effects durable, in order with everything else; ``then`` is called afterwards, with the error if any."""
        self._effects += effects
        if then is not None:
            self._then.append(then)
        self._schedule()

    def commit_when_convenient(self, *effects: Effect) -> None:
        """
        The same for effects that nobody waits for: they linger a little, so that more of them are written together, or
        go along with the next batch.
        """
        self._effects += effects
        if len(self._effects) >= LINGERING_EFFECTS:
            self._schedule()
        elif self._lingering is None:
            self._lingering = self._loop.call_later(LINGER_SECONDS, self._end_lingering)

    def add(self, publication: Publication) -> None:
        """
        Commit a publication, with everything else of this turn of the loop; its receipt says whom to tell.
        """
        self._effects.append(publication)
        self._size_bytes += publication.size_bytes
        self.pending_bytes += publication.size_bytes
        self._schedule()

    async def tried(self, effects: Iterable[Effect] = (), then: Then | None = None) -> WriteFailed | None:
        """
        Make effects durable, and wait until they and all earlier ones are; returns why that failed, or None.

        Args:
            then: Called with the result before anybody else is told, even if the waiting task was cancelled.
        """
        done: asyncio.Future[WriteFailed | None] = self._loop.create_future()

        def told(error: WriteFailed | None) -> None:
            if not done.done():
                done.set_result(error)
            if then is not None:
                then(error)

        self.commit(effects, told)
        return await done

    async def committed(self, effects: Iterable[Effect] = (), then: Then | None = None) -> None:
        """
        The same, but raises an error if the write failed.

        Raises:
            Refused: INTERNAL, the store could not write.
        """
        error = await self.tried(effects, then)
        if error is not None:
            raise Refused(ErrorCode.INTERNAL, f"the store could not write: {error}")

    def try_store(self) -> None:
        """
        Write something that changes nothing. A gateway that is not ready may get no clients, and so no effects; only a
        write shows that the store works again.
        """
        self.commit([SaveArchived(self._broker.log.archived_id)])

    def wait_for_room(self, resume: Callable[[], None]) -> bool:
        """Whether too much is uncommitted; if so, ``resume`` is called once when there is less."""
        if self.pending_bytes < self._most_pending_bytes:
            return False
        self._waiting_for_room[resume] = None
        return True

    def forget(self, resume: Callable[[], None]) -> None:
        """Do not call ``resume`` any more."""
        self._waiting_for_room.pop(resume, None)

    def hold(self, size_bytes: int) -> None:
        """Count content that was taken and is not to be committed yet."""
        self.pending_bytes += size_bytes

    def let_go(self, size_bytes: int) -> None:
        """End the count of such content: it was dropped, or ``add`` counts it now."""
        self.pending_bytes -= size_bytes
        self._offer_room()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._submit)

    def _end_lingering(self) -> None:
        self._lingering = None
        self._submit()

    def _submit(self) -> None:
        self._scheduled = False
        if (not self._effects and not self._then) or self.is_deposed:
            return
        batch = Batch(self._effects, self._size_bytes, self._then)
        self._effects, self._then, self._size_bytes = [], [], 0
        if self._in_flight == 0 and batch.is_small:
            is_done, error = self._writer.commit_now(batch, partial(self._answer, batch))
            if is_done:
                self._in_flight += 1
                self._committed([batch], error, is_answered=True)
                return
        self._in_flight += 1
        self._writer.submit(batch)

    # --- then tell ------------------------------------------------------------------------------------------------

    def _on_commit(self, batches: list[Batch], error: WriteFailed | None) -> None:
        """Called on the writer's thread."""
        self._loop.call_soon_threadsafe(self._committed, batches, error)

    def _answer(self, batch: Batch) -> None:
        """
        Tell the publishers of a few messages immediately, before everything else that follows a commit: they may wait
        for that before they send the next message.
        """
        for effect in batch.effects:
            if isinstance(effect, Publication):
                self._accept(effect.receipt, at_once=True)

    def _committed(
        self, batches: list[Batch], error: WriteFailed | None, *, is_answered: bool = False
    ) -> None:
        self._in_flight -= len(batches)
        if error is not None:
            if isinstance(error, Deposed):
                self._deposed(error)
            else:
                self._not_committed(batches, error)
            return
        if self.problem is not None and any(batch.effects for batch in batches):
            self.problem = None
            if self.when_store_changes is not None:
                self.when_store_changes(None)
        cache, broker, counters = self._cache, self._broker, self._counters
        counters.commits += 1
        counters.batches += len(batches)
        published = counters.published_messages
        touched: dict[str, None] = {}
        news: dict[str, int] = {}
        for batch in batches:
            for effect in batch.effects:
                if isinstance(effect, Publication):
                    news.setdefault(effect.topic, effect.rows[0][ID])
                    counters.published_messages += len(effect.rows)
                    counters.published_bytes += effect.size_bytes
                    if effect.logged:
                        counters.logged_messages += len(effect.rows)
                        counters.logged_bytes += effect.logged_bytes
                    cache.extend(effect.rows, effect.size_bytes)
                    for endpoint in broker.publications.committed(effect):
                        touched[endpoint.name] = None
                    if not is_answered:
                        self._accept(effect.receipt)
                    for receipt in echoes_of(effect):
                        self._accept(receipt)
            self._tell_then(batch, None)
        counters.commit_messages.add(counters.published_messages - published)
        for tell in self.when_committed:
            tell(touched, news)
        self._offer_room()

    def _accept(self, receipt: Any, *, at_once: bool = False) -> None:
        """Tell a publisher. A bug in its callback must not keep others from being told."""
        client, deliveries = receipt
        try:
            client.accepted(deliveries, at_once=at_once)
        except Exception as mistake:
            self._runtime.report("commit_not_told", mistake)

    def _tell_then(self, batch: Batch, error: WriteFailed | None) -> None:
        self.pending_bytes -= batch.size_bytes
        for then in batch.then:
            try:
                then(error)
            except Exception as mistake:
                self._runtime.report("commit_not_told", mistake)

    def _deposed(self, error: Deposed) -> None:
        """
        Only the other gateway knows whether these batches are stored: nobody is told of them, nor of any later ones.
        """
        if self.is_deposed:
            return
        self.is_deposed = True
        self.problem = str(error)
        self._runtime.log.warning("store_taken_over", **{log_keys.REASON: str(error)})
        if self.when_deposed is not None:
            self.when_deposed()

    def _not_committed(self, batches: list[Batch], error: WriteFailed) -> None:
        self.problem = f"the last write failed: {error}"
        if self.when_store_changes is not None:
            self.when_store_changes(str(error))
        self._counters.failed_commits += 1
        self._runtime.log.error("store_write_failed", **{log_keys.REASON: str(error)})
        refused = Refused(ErrorCode.INTERNAL, f"the store could not write: {error}; nothing was stored")
        for batch in batches:
            for effect in batch.effects:
                if isinstance(effect, Publication):
                    self._broker.publications.failed(effect)
                    self._cache.skip(effect.rows[-1][ID] + 1)
                    for client, deliveries in (effect.receipt, *echoes_of(effect)):
                        try:
                            client.not_stored(deliveries, refused)
                        except Exception as mistake:
                            self._runtime.report("commit_not_told", mistake)
            self._tell_then(batch, error)
        for tell in self.when_not_committed:
            tell()
        self._offer_room()

    def _offer_room(self) -> None:
        if self._waiting_for_room and self.pending_bytes < self._most_pending_bytes // 2:
            waiting, self._waiting_for_room = self._waiting_for_room, {}
            for resume in waiting:
                resume()
