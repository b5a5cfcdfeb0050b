"""
A Message VPN whose log another gateway writes, read here on a standby of its store.

``StandbyReads`` follows the log on a thread of its own: it polls the log's row, and hands to the loop what the active
gateway has written, a page at a time. It ends, and begins again, if the standby cannot be read for a while, has no new
commit although the active gateway commits each second, or has another log than before.

``Following`` tells readers, as a commit does on the active gateway: the log has grown, and topics have new messages.
Streams and points appear and disappear as on the active gateway.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from gateway.config import masked
from gateway.core.effects import StoredEndpoint
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import RetentionMark
from gateway.core.model import CONTENT, ID, TOPIC, LogState, Row
from gateway.logging import log_keys
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.runtime import Runtime, ThreadedService
from store.errors import LogTrimmed, ReadFailed, StoreError
from store.following import Followed, FollowedStore, ToldDefinitions, ToldLog

LOOK_SECONDS: Final = 0.1
"""From one look at the log to the next."""

DEFINE_SECONDS: Final = 1.0
"""From one look at streams and points to the next."""

LOST_SECONDS: Final = 5.0
"""How long a standby may fail to answer before readers are sent to the active gateway."""

STALE_SECONDS: Final = 30.0
"""How long a standby may have no commit before readers are sent away: a primary is replaced in this time. A standby
that has lost its primary looks like a log that nobody writes to."""

RETRY_SECONDS: Final = 1.0
PAGES_AT_ONCE: Final = 20
"""New pages that are handed to readers one by one; if there are more, each reader reads the log itself."""

KEPT_SECONDS: Final = 5.0
"""How long new messages stay in memory for readers that keep up; then the content of erased ones is gone here, too."""


class StandbyReads(ThreadedService):
    """
    Args:
        open_followed: Opens the standby's store; called on the thread.
        begin: Makes a Message VPN that reads a store, and owns it from then on; called on the loop, as ``end``.
        end: Ends that Message VPN and its readers; called with a sentence that says why.
    """

    def __init__(
        self,
        name: str,
        runtime: Runtime,
        open_followed: Callable[[], Followed],
        begin: Callable[[FollowedStore], Following],
        end: Callable[[str], None],
    ) -> None:
        super().__init__(runtime, f"standby reads {name}")
        self._open = open_followed
        self._begin_reading = begin
        self._end = end
        self._log = runtime.log
        self._problem: str | None = None

    # --- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._has_ended.is_set():
            try:
                self._follow_once()
            except Exception as error:
                # It may be a bug of ours, which nobody else would report.
                self._note(f"{type(error).__name__}: {error}")
            self._has_ended.wait(RETRY_SECONDS)

    def _follow_once(self) -> None:
        try:
            followed = self._open()
        except StoreError as error:
            self._note(str(error))
            return
        is_ours = True
        try:
            told, definitions = followed.look(), followed.definitions()
            followed.told_taken_out(told.marks)
            store = FollowedStore(followed, told, definitions)
            follower = self._on_loop(self._begin_reading, store)
            is_ours = False
            self._problem = None
            self._log.info("standby_reads_begin")
            why = self._why_it_ends(followed, follower, told)
            self._on_loop(self._end, why)
            self._note(why)
        except ReadFailed as error:
            self._note(str(error))
        except (CancelledError, RuntimeError):
            return  # closed meanwhile
        finally:
            if is_ours:
                followed.close()

    def _why_it_ends(self, followed: Followed, follower: Following, told: ToldLog) -> str:
        try:
            return self._follow(followed, follower, told)
        except (CancelledError, RuntimeError):
            raise
        except Exception as error:
            # It may be a bug of ours: readers are better served elsewhere.
            return f"{type(error).__name__}: {error}"

    def _follow(self, followed: Followed, follower: Following, told: ToldLog) -> str:
        """Follow the log until that ends; returns why."""
        generation, position = told.log.generation, told.log.next_id
        commit_no, marks = told.commit_no, told.marks
        answered = moved = defined = time.monotonic()
        while not self._has_ended.wait(LOOK_SECONDS):
            try:
                told = followed.look()
                now = answered = time.monotonic()
                if now - defined >= DEFINE_SECONDS:
                    defined = now
                    self._on_loop(follower.defined, followed.definitions())
                if told.commit_no != commit_no:
                    moved = now
                if told.log.generation != generation or told.log.next_id < position:
                    return "it has another log"
                if told.commit_no < commit_no:
                    return "another standby answers, which is behind"
                commit_no = told.commit_no
                if now - moved > STALE_SECONDS:
                    return f"the standby has had no commit for {STALE_SECONDS:g} seconds"
                if told.marks != marks:
                    marks = told.marks
                    self._on_loop(self._taken_out, followed, follower, marks)
                position = self._tell_new(followed, follower, told.log, position)
            except ReadFailed as error:
                if time.monotonic() - answered > LOST_SECONDS:
                    return masked(f"the standby cannot be read: {error}")
        raise CancelledError

    @staticmethod
    def _taken_out(followed: Followed, follower: Following, marks: Sequence[RetentionMark]) -> None:
        """Readers are told first: from then on pages lack the removed messages."""
        follower.taken_out(marks)
        followed.told_taken_out(marks)

    def _tell_new(self, followed: Followed, follower: Following, log: LogState, position: int) -> int:
        """Hand over what is new, page by page; returns the position after it."""
        end = log.next_id
        if position == end:
            self._on_loop(follower.told, log, (), time.monotonic())
            return end
        try:
            for _ in range(PAGES_AT_ONCE):
                page = followed.reader.log_page(position, end, ())
                position = page.position
                so_far = replace(log, first_id=min(log.first_id, position), next_id=position)
                self._on_loop(follower.told, so_far, page.rows, time.monotonic())
                if position == end:
                    return end
        except LogTrimmed:
            pass
        self._on_loop(follower.passed_over, log, time.monotonic())
        return end

    def _on_loop(self, call: Callable[..., Any], *args: Any) -> Any:
        """
        Call something on the loop, and wait until it has been done.

        Raises:
            CancelledError: This has ended, or the loop has.
        """
        done: Future[Any] = Future()

        def run() -> None:
            if self._has_ended.is_set():
                done.cancel()
            if not done.set_running_or_notify_cancel():
                return
            try:
                done.set_result(call(*args))
            except Exception as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        while True:
            with suppress(TimeoutError):
                return done.result(RETRY_SECONDS)
            if self._has_ended.is_set() and done.cancel():
                raise CancelledError

    def _note(self, problem: str) -> None:
        problem = masked(problem)
        if problem != self._problem and not self._has_ended.is_set():
            self._problem = problem
            self._log.warning("standby_reads_end", **{log_keys.REASON: problem})


class Following:
    """Applies to a Message VPN what another gateway writes to its log."""

    def __init__(self, vpn: MessageVpn, streams: Sequence[StoredEndpoint]) -> None:
        self._broker = vpn.broker
        self._cache = vpn.cache
        self._readers = vpn.readers
        self._endpoints = vpn.endpoints
        self._streams = {found.definition.name: _key(found) for found in streams}
        self._runs: deque[tuple[float, int]] = deque()
        """(when messages came, one past the last of them), for the messages kept in memory."""
        self._loop = vpn.state.runtime.loop
        self._next_look = self._loop.create_future()
        """Done when the next look at the log was applied; fails when the reads from the standby end."""
        vpn.state.told_anew = self.told_anew

    async def told_anew(self) -> None:
        """
        Wait until a look at the log that began after this call was applied: the second one from now, as one may be
        under way.

        Raises:
            Refused: The reads from the standby have ended.
        """
        for _ in range(2):
            await asyncio.shield(self._next_look)

    def told(self, log: LogState, rows: Sequence[Row], now: float) -> None:
        """
        The active gateway has written the log up to ``log.next_id`` (excluded).

        Args:
            rows: All logged messages from the last ``next_id`` to this one.
            now: Seconds of a clock that never goes back.
        """
        cache, broker = self._cache, self._broker
        self._looked(now)
        before = cache.next_id
        broker.log.follow(log)
        if log.next_id == before:
            return
        if len(rows) == log.next_id - before:
            cache.extend(list(rows), sum(len(row[CONTENT]) for row in rows))
            self._runs.append((now, log.next_id))
        else:
            # Some ids between them are not in the log, so they do not fit into the cache: readers read the store.
            cache.skip(log.next_id)
            self._runs.clear()
        news: dict[str, int] = {}
        for row in rows:
            news.setdefault(row[TOPIC], row[ID])
        if news:
            self._readers.committed((), news)
        else:
            self._readers.not_committed()

    def passed_over(self, log: LogState, now: float) -> None:
        """The same, if the new messages are trimmed already, or too many to be handed over one by one."""
        self._looked(now)
        self._broker.log.follow(log)
        self._cache.skip(log.next_id)
        self._runs.clear()
        self._readers.all_new()

    def taken_out(self, marks: Sequence[RetentionMark]) -> None:
        """
        Retention rules have removed from the log what these marks say. Readers that were still to read some of what may
        be gone since the last marks are told.
        """
        retention = self._broker.retention
        known, new = retention.marks, []
        for mark in marks:
            if mark.rule not in known or known[mark.rule].below < mark.below:
                new.append(mark)
        retention.restore(marks)
        if new:
            # Messages in memory may be removed from the log, too.
            self._cache.skip(self._cache.next_id)
            self._runs.clear()
            self._readers.taken_out(new)

    def defined(self, definitions: ToldDefinitions) -> None:
        """These are the streams and points from now on; readers of a stream that has changed must attach again."""
        found = {stream.definition.name: stream for stream in definitions.streams}
        for name, key in list(self._streams.items()):
            if name not in found or _key(found[name]) != key:
                del self._streams[name]
                endpoint = self._broker.endpoints.get(name)
                if endpoint is not None:
                    why = "was changed: attach again" if name in found else "was deleted"
                    self._endpoints.forget(endpoint, Refused(ErrorCode.RESOURCE_DELETED, f"{name!r} {why}"))
        new = [stream for name, stream in found.items() if name not in self._streams]
        marks = list(self._broker.retention.marks.values())
        self._broker.restore(new, [], {}, 1, definitions.points, retention=marks)
        self._streams.update((stream.definition.name, _key(stream)) for stream in new)

    def _looked(self, now: float) -> None:
        """Wake those that wait for a look, and drop messages that were kept for long enough."""
        looked, self._next_look = self._next_look, self._loop.create_future()
        if not looked.done():
            looked.set_result(None)
        cache, stop = self._cache, 0
        while self._runs and now - self._runs[0][0] > KEPT_SECONDS:
            stop = self._runs.popleft()[1]
        if stop > cache.first_id:
            cache.drop_below(stop)


def _key(stream: StoredEndpoint) -> tuple[object, ...]:
    definition = stream.definition
    return definition.number, definition.settings, tuple(stream.subscriptions)
