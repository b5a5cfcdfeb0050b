"""
Log readers: carries the log to their links, as much as these take, history first, then live messages.

``Readers`` has all links of a Message VPN that read and consume nothing: readers of the log, readers of streams, and
browsers. Their reads hold, settle and write nothing, and do not affect endpoints.

A reader that has sent everything waits in the group of its topics (``WaitingReaders``). Invariant: a waiting reader has
been told of everything below ``next_id`` that may be for it. So a commit costs nothing for readers whose topics were
not published to, however many there are, and a reader that continues skips the messages published meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from amqp_ext.topics import SubscriptionTrie, TopicPattern
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.erasing import with_markers
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import RetentionMark, taken_by
from gateway.core.model import Row
from gateway.core.replay.reading import LogCursor, Pacer, topic_matcher
from gateway.core.replay.starts import Resolved
from gateway.vpn.clients import LogLink
from gateway.vpn.feeds.browse_feed import BrowseFeed
from gateway.vpn.feeds.stalled import StalledFeeds
from gateway.vpn.history import LogSource, ValuesSource
from gateway.vpn.state import VpnPart, VpnState
from gateway.vpn.tracing import TracedLink
from gateway.vpn.turns import RowsAtOnce, WaitingTurn
from store.errors import LogTrimmed, ReadFailed
from store.ports import LogPage

NO_ATTEMPTS: Mapping[int, int] = MappingProxyType({})

SHORTEST_WAIT = 0.001
"""Seconds: the resolution of the loop's timers; what is due sooner is done in the loop's next turn."""


class LogFeed(VpnPart):
    """
    Args:
        readers: Has this feed: wakes it when there is more after it has sent everything, and is told when it closes.
        patterns: What the store is asked for; empty for all topics. The cursor decides what is sent.
        pacer: The reader's pace, if it asked for one.
        source: Makes its source, from the function that the source calls when a page has come.
        gives_way: A person watches it: if it falls behind live traffic, it pauses like a reader of history.
    """

    def __init__(
        self,
        readers: Readers,
        cursor: LogCursor,
        client: LogLink,
        patterns: tuple[str, ...],
        pacer: Pacer | None,
        *,
        source: Callable[[Callable[[BaseException | None], None]], LogSource],
        gives_way: bool,
    ) -> None:
        state = readers.state
        super().__init__(state)
        self.cursor = cursor
        self.account = client.account
        """The account of its link's connection."""
        self._link = client
        self._patterns = patterns
        self.is_short = False
        """Since its start was resolved, retention rules removed messages that it was to read."""
        self._readers = readers
        self._waiting = readers.waiting
        self._stalled = readers.stalled
        self._pace = state.pace
        self._seconds = state.runtime.clock.seconds
        self._tuning = state.runtime.tuning
        # The end of a bounded replay may be any message.
        self.topics = patterns if cursor.last is None else ()
        """The patterns of what it waits for; empty if it waits for any message."""
        self._is_waiting = False
        """It has sent everything, and its link takes more."""
        self._source = source(self._woken)
        self._gives_way = gives_way
        self._closed = False
        self._turn: asyncio.Handle | WaitingTurn | None = None
        self._selection = state.selection if cursor.selects is not None else None
        self._chosen_from = RowsAtOnce(self._seconds, self._tuning.log_slice_rows)
        self._activity = 0
        self._due = 0.0
        """When the next turn may be taken."""
        self._pacer = pacer
        self._due_later: list[Row] = []
        """Messages that the pace holds back; the last of them may be the last before live."""
        self._end_id: int | None = None

    @property
    def values_from(self) -> int | None:
        """The first id of a last-value queue's values that may not have been sent; None if all were."""
        return self._next_id if self._next_id < self._source.log_from else None

    @property
    def position(self) -> int:
        """The first id that may not have been sent; if values come first, the first one after them."""
        return max(self._next_id, self._source.log_from)

    @property
    def _next_id(self) -> int:
        if self._due_later:
            return self._due_later[0][0]
        held_back = self.cursor.held_back
        if held_back is not None:
            return held_back[0]
        return max(self.cursor.position, self._waiting.next_id) if self._is_waiting else self.cursor.position

    def takes(self, topic: str) -> bool:
        """Whether it reads a topic."""
        matches = self.cursor.matches
        return matches is None or matches(topic)

    def go_on_from(self, position: int) -> None:
        """Wait no more: nothing below ``position`` is for this reader."""
        self._is_waiting = False
        if position > self.cursor.position:
            self._source.skip_to(position)
            self.cursor.offer((), position, position, 0)

    def run(self) -> None:
        """Send while the link takes it and the log has more. Called when credit, room or messages for it came."""
        if self._closed or self._turn is not None:
            return
        self._stalled.remove(self)
        if self.is_short:
            self._refuse_rest(self.position)
            return
        if self._is_waiting:
            self._waiting.stop_waiting(self)
            self.go_on_from(self._waiting.next_id)
        if self.cursor.caught_up and not (
            self._gives_way and self._source.is_behind(self._tuning.log_turn_rows)
        ):
            # This reader is live traffic itself.
            if self._send(self._tuning.log_turn_rows) <= 0:
                self._wait(0.0)
            return
        started = self._seconds()
        wait = self._pace.wait(self._due)
        if wait >= SHORTEST_WAIT:
            self._wait(wait)
            return
        activity, self._activity = self._activity, self._counters.activity
        tuning = self._tuning
        turn = tuning.log_turn_rows if activity == self._activity else tuning.log_turn_rows_beside_live
        left = self._send(turn)
        self._due = self._pace.spent(started, turn - left, self._source.spent_reading())
        if left <= 0 and not self._closed:
            self._wait(self._pace.wait(self._due))

    def _wait(self, delay: float) -> None:
        """Go on after so many seconds."""
        if delay >= SHORTEST_WAIT:
            self._turn = self._loop.call_later(delay, self._run_again)
        else:
            self._turn = self._loop.call_soon(self._run_again)

    def _send(self, left: int) -> int:
        """Send up to ``left`` rows; returns how many more could have been sent, 0 or less if there are more to send."""
        cursor, link, source = self.cursor, self._link, self._source
        cache, slice_rows, selection = self._cache, self._tuning.log_slice_rows, self._selection
        while not cursor.is_finished or self._due_later:
            room = link.room()
            if room <= 0:
                self._stall()
                return max(left, 1)
            if self._due_later:
                if not self._send_due(room):
                    return max(left, 1)
                continue
            if left <= 0:
                return left
            if selection is not None:
                if selection.is_over():
                    self._turn = selection.wait(self._run_again)
                    return max(left, 1)
                slice_rows = self._chosen_from.count
            try:
                found = source.read(min(room, left, slice_rows))
            except (LogTrimmed, ReadFailed) as error:
                self._woken(error)
                return left
            if found is None:
                if not source.is_at_end:
                    return left
                if cursor.held_back is None:
                    self._wait_for_news()
                    return left
                found = (), source.position
            rows, position = found
            left -= max(len(rows), 1)
            if selection is None:
                chosen, is_end = cursor.offer(rows, position, cache.next_id, room)
            else:
                with self._chosen_from:
                    chosen, is_end = cursor.offer(rows, position, cache.next_id, room)
            if is_end:
                self._end_id = chosen[-1][0]
            if chosen and self._pacer is not None:
                self._due_later = chosen
            elif chosen:
                link.send(chosen, NO_ATTEMPTS, self._end_id if is_end else None)
        self.close()
        link.finish()
        return max(left, 1)

    def _stall(self) -> None:
        size_bytes = self._source.held_bytes
        if size_bytes:
            self._stalled.add(self, size_bytes)

    def let_go(self) -> None:
        """Drop what was read, as the link takes nothing: it is read again when the link takes more."""
        self._stalled.remove(self)
        self._source.let_go()

    def _wait_for_news(self) -> None:
        """Everything was sent: the reader is live, and waits until a message may be for it."""
        self.cursor.offer((), self._source.position, self._cache.next_id, 0)
        self._is_waiting = True
        self._waiting.wait(self)
        self._link.nothing_to_send()

    def close(self) -> None:
        """Send nothing more, and release all that is held."""
        self._closed = True
        self._is_waiting = False
        self._stalled.remove(self)
        self._source.close()
        self._due_later = []
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        self._readers.closed(self)

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages were erased."""
        self._source.erased(markers)
        self._due_later = with_markers(self._due_later, markers)
        held_back = self.cursor.held_back
        if held_back is not None:
            (self.cursor.held_back,) = with_markers([held_back], markers)

    def leaving(self, found: Sequence[tuple[int, str]]) -> None:
        """
        Retention rules are about to remove these messages, (id, topic) with rising ids, from the middle of the log: the
        reader is detached with an error if it was still to read some of them.
        """
        position, last = self.position, self.cursor.last
        if position > found[-1][0] or not any(
            position <= message_id and (last is None or message_id <= last) and self.takes(topic)
            for message_id, topic in found
        ):
            return
        self._refuse_rest(position)

    def taken_out(self, marks: Sequence[RetentionMark]) -> None:
        """The same for messages that have left the log; which ones is not known."""
        position = self.position
        if position < taken_by(marks, self._patterns).below:
            self._refuse_rest(position)

    def _refuse_rest(self, position: int) -> None:
        self.close()
        self._link.refuse(
            Refused(
                ErrorCode.REPLAY_MESSAGE_UNAVAILABLE,
                f"the log was trimmed during the replay: a retention rule removed messages from id {position} "
                "on",
            )
        )

    def _send_due(self, room: int) -> bool:
        """Send what the pace allows; False if the rest has to wait, for which a timer is set."""
        pacer, rows, now_ms = self._pacer, self._due_later, self._now_ms()
        assert pacer is not None
        count = pacer.due(rows[:room], now_ms)
        if count:
            self._link.send(rows[:count], NO_ATTEMPTS, self._end_id)
            self._due_later = rows[count:]
            return True
        self._wait(pacer.wait_s(rows[0], now_ms))
        return False

    def _run_again(self) -> None:
        self._turn = None
        self.run()

    def _woken(self, error: BaseException | None) -> None:
        if self._closed:
            return
        if error is not None:
            self.close()
            if isinstance(error, LogTrimmed):
                self._link.refuse(
                    Refused(
                        ErrorCode.REPLAY_MESSAGE_UNAVAILABLE,
                        f"the log was trimmed during the replay: {error}",
                    )
                )
                return
            self._link.refuse(
                Refused(ErrorCode.INTERNAL, "the replay log could not be read; the gateway's log says why")
            )
            self._runtime.report("log_read_failed", error)
            return
        self.run()


class _Group:
    """Readers of the same topics."""

    __slots__ = ("size", "waiting")

    def __init__(self) -> None:
        self.size = 0
        """Readers that came and have not left, waiting or not."""
        self.waiting: dict[LogFeed, None] = {}


class WaitingReaders:
    """The waiting readers of one Message VPN; ``next_id`` is one past the last committed id."""

    def __init__(self, next_id: int) -> None:
        self.next_id = next_id
        """One past the last id that was looked up for all waiting readers."""
        self._groups: dict[tuple[str, ...], _Group] = {}
        self._index: SubscriptionTrie[_Group] = SubscriptionTrie()

    def join(self, reader: LogFeed) -> None:
        """A reader has come; it does not wait yet."""
        topics = reader.topics
        group = self._groups.get(topics)
        if group is None:
            group = self._groups[topics] = _Group()
            for pattern in map(TopicPattern.parse, topics):
                # The reader itself applies exceptions.
                if not pattern.is_exception:
                    self._index.add(pattern, group)
        group.size += 1

    def leave(self, reader: LogFeed) -> None:
        """A reader that had come is gone."""
        group = self._groups[reader.topics]
        group.waiting.pop(reader, None)
        group.size -= 1
        if not group.size:
            del self._groups[reader.topics]
            self._index.remove_all(group)

    def wait(self, reader: LogFeed) -> None:
        """A reader that has come has sent everything below ``next_id``, and can take more."""
        self._groups[reader.topics].waiting[reader] = None

    def stop_waiting(self, reader: LogFeed) -> None:
        """The reader continues by itself."""
        self._groups[reader.topics].waiting.pop(reader, None)

    def published(self, news: Mapping[str, int], next_id: int) -> None:
        """
        Messages were committed.

        Args:
            news: Their topics, each with the id of its first message.
            next_id: One past the last of them.
        """
        self.next_id = next_id
        if not self._groups:
            return
        concerned = dict.fromkeys(self._of_any, min(news.values(), default=next_id))
        for topic, first_id in news.items():
            for group in self._index.match(topic):
                for reader in group.waiting:
                    if first_id < concerned.get(reader, next_id) and reader.takes(topic):
                        concerned[reader] = first_id
        self._go_on(concerned)

    def passed_over(self, next_id: int) -> None:
        """There is something new below ``next_id``, which may be for any reader."""
        before, self.next_id = self.next_id, next_id
        waiting = [reader for group in self._groups.values() for reader in group.waiting]
        self._go_on(dict.fromkeys(waiting, before))

    def came_to_nothing(self, next_id: int) -> None:
        """Ids below ``next_id`` that were not committed never will be: a bounded reader may end with one of them."""
        self.next_id = next_id
        self._go_on(dict.fromkeys(self._of_any, next_id))

    @property
    def _of_any(self) -> Mapping[LogFeed, None]:
        """The waiting readers that wait for any message."""
        group = self._groups.get(())
        return {} if group is None else group.waiting

    def _go_on(self, concerned: Mapping[LogFeed, int]) -> None:
        # First move all of them: running one may make another read the log, and it must be at its new position then.
        for reader, position in concerned.items():
            self.stop_waiting(reader)
            reader.go_on_from(position)
        for reader in concerned:
            reader.run()


class Readers:
    """The feeds of one Message VPN that are told of each commit."""

    def __init__(self, state: VpnState) -> None:
        self.state = state
        self.log_feeds: dict[LogFeed, None] = {}
        """Links that read the log, or a stream."""
        self.waiting = WaitingReaders(state.cache.next_id)
        self.stalled = StalledFeeds(state.runtime)
        self._browsers: dict[str, dict[BrowseFeed, None]] = {}
        """By endpoint, for endpoints that have any."""

    def read_log(
        self,
        resolved: Resolved,
        patterns: Sequence[str],
        client: LogLink,
        selects: Callable[[Row], bool] | None = None,
        pacer: Pacer | None = None,
        *,
        stream: Endpoint | None = None,
        gives_way: bool = False,
        is_traced: bool = True,
    ) -> LogFeed:
        """
        A log reader for a link. Call ``run`` on it whenever the link can take more, ``close`` when it is gone.

        Args:
            patterns: The topics that are read.
            selects: The reader's selector and filters, if it has any.
            pacer: The reader's pace, if one was asked for.
            stream: The stream that is read, in place of the log itself: it decides which topics it shows.
            gives_way: See ``LogFeed``.
            is_traced: The messages go to a client, and each send gets a span.
        """
        state = self.state
        if state.tracing is not None and is_traced:
            seen = f"log://{', '.join(patterns)}" if stream is None else stream.name
            client = TracedLink(client, state.tracing, "read", seen)
        matches = topic_matcher(patterns) if stream is None else stream.topics.matches
        value, first = resolved.values_from, resolved.first
        begin = first if value is None else value
        cursor = LogCursor(begin, resolved.last, matches, resolved.is_live, selects)
        topics = () if matches is None else tuple(patterns)
        user = client.client.user

        def source(wake: Callable[[BaseException | None], None]) -> LogSource:
            if value is None or stream is None:
                return LogSource(state.history, first, topics, wake, user=user)
            pages = partial(self._values, stream, first)
            return ValuesSource(pages, value, state.history, first, topics, wake, user=user)

        feed = LogFeed(self, cursor, client, topics, pacer, source=source, gives_way=gives_way)
        taken_below = state.history.taken_from(patterns).below
        feed.is_short = resolved.first < taken_below and taken_below > resolved.without_below
        self.waiting.join(feed)
        self.log_feeds[feed] = None
        return feed

    def _values(self, queue: Endpoint, end: int, position: int) -> Callable[[], LogPage]:
        now_ms = self.state.runtime.clock.now_ms()
        return partial(self.state.reader.values_page, queue.cursor_number, position, end, now_ms)

    def browse(
        self, endpoint: Endpoint, client: LogLink, selects: Callable[[Row], bool] | None
    ) -> BrowseFeed:
        """A browser of an endpoint for a link. Call ``run`` and ``close`` as with ``read_log``."""
        state = self.state
        if state.tracing is not None:
            client = TracedLink(client, state.tracing, "browse", endpoint.name)
        feed = BrowseFeed(endpoint, client, selects, state, self.stalled, self._browser_closed)
        endpoint.watch()
        self._browsers.setdefault(endpoint.name, {})[feed] = None
        return feed

    def leaving(self, found: Sequence[tuple[int, str]]) -> None:
        """Retention rules are about to remove these messages, (id, topic), from the middle of the log."""
        for feed in list(self.log_feeds):
            feed.leaving(found)

    def taken_out(self, marks: Sequence[RetentionMark]) -> None:
        """Retention rules removed the messages of these marks from the log, at the gateway that writes it."""
        for feed in list(self.log_feeds):
            feed.taken_out(marks)

    def committed(self, endpoints: Collection[str], news: Mapping[str, int]) -> None:
        """Messages became ready, and are in the log."""
        browsers = self._browsers
        if browsers:
            for name in endpoints:
                for browser in list(browsers.get(name, ())):
                    browser.run()
        if news:
            self.waiting.published(news, self.state.cache.next_id)

    def not_committed(self) -> None:
        """Ids that readers may have waited for will never be committed."""
        self.waiting.came_to_nothing(self.state.cache.next_id)

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages were erased."""
        for feed in self.log_feeds:
            feed.erased(markers)
        for browsers in self._browsers.values():
            for browser in browsers:
                browser.erased(markers)

    def all_new(self) -> None:
        """The log has grown by unknown messages: all waiting readers continue from their positions."""
        self.waiting.passed_over(self.state.cache.next_id)

    def closed(self, feed: LogFeed) -> None:
        """The feed has closed; a second call does no harm."""
        if feed in self.log_feeds:
            del self.log_feeds[feed]
            self.waiting.leave(feed)

    def _browser_closed(self, feed: BrowseFeed) -> None:
        browsers = self._browsers.get(feed.endpoint.name, {})
        if browsers.pop(feed, feed) is None:
            feed.endpoint.unwatch()
        if not browsers:
            self._browsers.pop(feed.endpoint.name, None)
