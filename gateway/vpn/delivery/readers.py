"""
Who looks at the messages of a Message VPN and takes none: log readers, readers of streams, and browsers of queues.

Invariant: nothing that is read here is held, settled or written, and no endpoint notices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.log import RetentionMark
from gateway.core.model import Row
from gateway.core.replay.reading import LogCursor, Pacer, topic_matcher
from gateway.core.replay.starts import Resolved
from gateway.vpn.clients import ConsumerLink
from gateway.vpn.delivery.browse_feed import BrowseFeed
from gateway.vpn.delivery.log_feed import LogFeed, LogFeedShared
from gateway.vpn.delivery.traced_link import TracedLink
from gateway.vpn.delivery.waiting_readers import WaitingReaders
from store.ports import Reader


class Readers:
    """The feeds of one Message VPN that each commit of news is shown to."""

    def __init__(self, shared: LogFeedShared, reader: Reader) -> None:
        self.log_feeds: dict[LogFeed, None] = {}
        """Links that read the log, or a stream."""
        self._shared = shared
        self._reader = reader
        self._waiting = WaitingReaders(shared.cache.next_id)
        self._browsers: dict[str, dict[BrowseFeed, None]] = {}
        """By the endpoint's name; of those that have any."""

    def read_log(
        self,
        resolved: Resolved,
        patterns: Sequence[str],
        client: ConsumerLink,
        selects: Callable[[Row], bool] | None = None,
        pacer: Pacer | None = None,
        *,
        matches: Callable[[str], bool] | None = None,
        stream: str = "",
        gives_way: bool = False,
    ) -> LogFeed:
        """
        A log reader for a link. Call ``run`` on it whenever the link can take more, ``close`` when it is gone.

        Args:
            patterns: The topics that are read.
            selects: The reader's selector and filters, if it has any.
            pacer: The reader's pace, if one was asked for.
            matches: Whether a topic is one of them, where that is not as the patterns alone say.
            stream: The stream that is read; empty where it is the log.
            gives_way: See ``LogFeed``.
        """
        tracing = self._shared.tracing
        if tracing is not None:
            client = TracedLink(client, tracing, "read", stream or f"log://{', '.join(patterns)}")
        matches = matches or topic_matcher(patterns)
        cursor = LogCursor(resolved.first, resolved.last, matches, is_live=resolved.is_live, selects=selects)
        feed = LogFeed(
            self._shared,
            cursor,
            client,
            () if matches is None else tuple(patterns),
            pacer,
            self._waiting,
            self._log_feed_closed,
            gives_way=gives_way,
        )
        taken_below = self._shared.history.taken_from(patterns).below
        feed.is_short = resolved.first < taken_below and taken_below > resolved.without_below
        self._waiting.join(feed)
        self.log_feeds[feed] = None
        return feed

    def browse(
        self, endpoint: Endpoint, client: ConsumerLink, selects: Callable[[Row], bool] | None
    ) -> BrowseFeed:
        """A browser of an endpoint for a link. Call ``run`` and ``close`` as with ``read_log``."""
        shared = self._shared
        if shared.tracing is not None:
            client = TracedLink(client, shared.tracing, "browse", endpoint.name)
        feed = BrowseFeed(
            endpoint,
            client,
            selects,
            self._reader,
            shared.cache,
            shared.runtime,
            shared.selection,
            self._browser_closed,
        )
        endpoint.watch()
        self._browsers.setdefault(endpoint.name, {})[feed] = None
        return feed

    def leaving(self, found: Sequence[tuple[int, str]]) -> None:
        """These messages, (id, topic), are about to leave the log between others."""
        for feed in list(self.log_feeds):
            feed.leaving(found)

    def taken_out(self, marks: Sequence[RetentionMark]) -> None:
        """Messages that these marks tell of have left the log between others, at another gateway that writes it."""
        for feed in list(self.log_feeds):
            feed.taken_out(marks)

    def committed(self, endpoints: Collection[str], news: Mapping[str, int]) -> None:
        """Messages became ready, and are in the log (``CommitListener``)."""
        browsers = self._browsers
        if browsers:
            for name in endpoints:
                for browser in list(browsers.get(name, ())):
                    browser.run()
        if news:
            self._waiting.published(news, self._shared.cache.next_id)

    def not_committed(self) -> None:
        """Ids that readers may have waited for came to nothing (``CommitListener``)."""
        self._waiting.came_to_nothing(self._shared.cache.next_id)

    def erased(self, markers: Mapping[int, Row]) -> None:
        """The contents of these messages are no more."""
        for feed in self.log_feeds:
            feed.erased(markers)
        for browsers in self._browsers.values():
            for browser in browsers:
                browser.erased(markers)

    def all_new(self) -> None:
        """The log has grown, and nobody says by what: all that wait go on from where they are."""
        self._waiting.passed_over(self._shared.cache.next_id)

    def _log_feed_closed(self, feed: LogFeed) -> None:
        if feed in self.log_feeds:
            del self.log_feeds[feed]
            self._waiting.leave(feed)

    def _browser_closed(self, feed: BrowseFeed) -> None:
        browsers = self._browsers.get(feed.endpoint.name, {})
        if browsers.pop(feed, feed) is None:
            feed.endpoint.unwatch()
        if not browsers:
            self._browsers.pop(feed.endpoint.name, None)
