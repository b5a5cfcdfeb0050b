"""
The log of a Message VPN that another gateway writes, followed on a standby of its store, on a thread of its own.

The log's row is looked at again and again, and what the active gateway has told of is handed to the loop, a page at a
time: the next one is read once that was taken. Where the standby cannot be read for a while, has nothing new though the
active gateway commits each second, or has another log than before, it ends, and is begun again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Final, Protocol

from gateway import log_keys
from gateway.config import masked
from gateway.core.log import RetentionMark
from gateway.core.model import LogState, Row
from store.errors import LogTrimmed, ReadFailed, StoreError
from store.following import Followed, FollowedStore, ToldDefinitions, ToldLog

LOOK_SECONDS: Final = 0.1
"""From one look at the log to the next."""

DEFINE_SECONDS: Final = 1.0
"""From one look at streams and points to the next."""

LOST_SECONDS: Final = 5.0
"""For which a standby may not answer before readers are sent to the active gateway."""

STALE_SECONDS: Final = 30.0
"""For which a standby may have no commit before readers are sent away: a primary is replaced in this time. One that no
primary feeds any more looks like a log that nobody writes to."""

RETRY_SECONDS: Final = 1.0

PAGES_AT_ONCE: Final = 20
"""Pages that are shown one by one of what is new; with more of it, readers read for themselves."""


class Follower(Protocol):
    """What is told on the loop."""

    def told(self, log: LogState, rows: Sequence[Row], now: float) -> None:
        """See ``gateway.vpn.following.Following``, as the next three."""

    def passed_over(self, log: LogState, now: float) -> None: ...

    def taken_out(self, marks: Sequence[RetentionMark]) -> None: ...

    def defined(self, definitions: ToldDefinitions) -> None: ...


class StandbyReads:
    """
    Args:
        open_followed: Called on the thread.
        begin: Makes a Message VPN that reads of a store, which is its from then on; called on the loop, as all else.
        end: Its readers go, with it; called with a sentence that says why.
        log: A logger bound to the name.
    """

    def __init__(
        self,
        name: str,
        open_followed: Callable[[], Followed],
        begin: Callable[[FollowedStore], Follower],
        end: Callable[[str], None],
        loop: Any,
        log: Any,
    ) -> None:
        self._name = name
        self._open = open_followed
        self._begin = begin
        self._end = end
        self._loop = loop
        self._log = log
        self._ended = threading.Event()
        self._problem: str | None = None

    def start(self) -> None:
        """Follow from now on."""
        threading.Thread(target=self._run, name=f"standby reads {self._name}", daemon=True).start()

    def close(self) -> None:
        """Follow no more; nothing is told from now on. To be called on the loop."""
        self._ended.set()

    # --- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._follow_once()
            except Exception as error:
                # Of ours, perhaps: nobody else would hear of it.
                self._note(f"{type(error).__name__}: {error}")
            self._ended.wait(RETRY_SECONDS)

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
            follower = self._on_loop(self._begin, store)
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

    def _why_it_ends(self, followed: Followed, follower: Follower, told: ToldLog) -> str:
        try:
            return self._follow(followed, follower, told)
        except (CancelledError, RuntimeError):
            raise
        except Exception as error:
            # Of ours, perhaps: readers are better off elsewhere.
            return f"{type(error).__name__}: {error}"

    def _follow(self, followed: Followed, follower: Follower, told: ToldLog) -> str:
        """Until it ends, and why it does."""
        generation, position = told.log.generation, told.log.next_id
        commit_no, marks = told.commit_no, told.marks
        answered = moved = defined = time.monotonic()
        while not self._ended.wait(LOOK_SECONDS):
            try:
                told = followed.look()
                now = answered = time.monotonic()
                if now - defined >= DEFINE_SECONDS:
                    defined = now
                    self._on_loop(follower.defined, followed.definitions())
                if told.commit_no != commit_no:
                    moved = now
                if told.log.generation != generation or told.log.next_id < position:
                    return "the log is another one"
                if told.commit_no < commit_no:
                    return "the standby is another one, and behind"
                commit_no = told.commit_no
                if now - moved > STALE_SECONDS:
                    return f"the standby has had no commit for {STALE_SECONDS:g} seconds"
                if told.marks != marks:
                    marks = told.marks
                    self._on_loop(self._taken_out, followed, follower, marks)
                position = self._tell(followed, follower, told.log, position)
            except ReadFailed as error:
                if time.monotonic() - answered > LOST_SECONDS:
                    return masked(f"the standby cannot be read: {error}")
        raise CancelledError

    @staticmethod
    def _taken_out(followed: Followed, follower: Follower, marks: Sequence[RetentionMark]) -> None:
        """Readers are told first: from then on pages lack this."""
        follower.taken_out(marks)
        followed.told_taken_out(marks)

    def _tell(self, followed: Followed, follower: Follower, log: LogState, position: int) -> int:
        """Hand over what is new, page by page; up to where."""
        end = log.next_id
        if position == end:
            self._on_loop(follower.told, log, (), time.monotonic())
            return end
        try:
            for _ in range(PAGES_AT_ONCE):
                page = followed.reader.log_page(position, end, ())
                position = page.position
                so_far = _up_to(log, position)
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
            if self._ended.is_set():
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
            if self._ended.is_set() and done.cancel():
                raise CancelledError

    def _note(self, problem: str) -> None:
        problem = masked(problem)
        if problem != self._problem and not self._ended.is_set():
            self._problem = problem
            self._log.warning("standby_reads_end", **{log_keys.REASON: problem})


def _up_to(log: LogState, position: int) -> LogState:
    return LogState(
        generation=log.generation,
        first_id=min(log.first_id, position),
        next_id=position,
        last_time_ms=log.last_time_ms,
        floor_ms=log.floor_ms,
        size_bytes=log.size_bytes,
        archived_id=log.archived_id,
    )
