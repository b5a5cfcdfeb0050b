"""
Who looks at the messages of a Message VPN and takes none: log readers, readers of streams, and browsers of queues.

Invariant: nothing that is read here is held, settled or written, and no endpoint notices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from amqp_ext.topics import TopicFilter, TopicPattern
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.log.cursor import LogReader
from gateway.core.model import Row
from gateway.core.replay.pacing import Pacer
from gateway.core.replay.starts import Resolved
from gateway.vpn.delivery.browse_feed import BrowseFeed
from gateway.vpn.delivery.log_feed import LogFeed
from gateway.vpn.links import ConsumingLink

if TYPE_CHECKING:
    from gateway.vpn.message_vpn import MessageVpn


class Onlookers:
    """The feeds of one Message VPN that each commit of news is shown to."""

    def __init__(self, vpn: MessageVpn) -> None:
        self._vpn = vpn
        self.log_feeds: dict[LogFeed, None] = {}
        """Links that read the log, or a stream."""
        self.browsers: dict[str, dict[BrowseFeed, None]] = {}
        """By the endpoint's name; of those that have any."""

    def read_log(
        self,
        resolved: Resolved,
        patterns: Sequence[str],
        link: ConsumingLink,
        selects: Callable[[Row], bool] | None = None,
        pacer: Pacer | None = None,
        *,
        matches: Callable[[str], bool] | None = None,
    ) -> LogFeed:
        """
        A log reader for this link. Call ``run`` on it whenever the link can take more.

        Args:
            selects: The reader's selector and filters, if it has any.
            pacer: The replay's pace, if one was asked for.
            matches: Whether a topic is one of them, where that is not as the patterns alone say.
        """
        matches = matches or topic_matcher(patterns)
        reader = LogReader(
            resolved.first, resolved.last, matches, link, is_live=resolved.is_live, selects=selects
        )
        feed = LogFeed(self._vpn, reader, link, () if matches is None else patterns, pacer)
        self.log_feeds[feed] = None
        return feed

    def browse(
        self, endpoint: Endpoint, link: ConsumingLink, selects: Callable[[Row], bool] | None
    ) -> BrowseFeed:
        """A browser of this endpoint for a link."""
        feed = BrowseFeed(self._vpn, endpoint, link, selects)
        self.browsers.setdefault(endpoint.name, {})[feed] = None
        return feed

    def forget_log_feed(self, feed: LogFeed) -> None:
        self.log_feeds.pop(feed, None)

    def forget_browser(self, feed: BrowseFeed) -> None:
        browsers = self.browsers.get(feed.endpoint.name, {})
        browsers.pop(feed, None)
        if not browsers:
            self.browsers.pop(feed.endpoint.name, None)


def topic_matcher(patterns: Sequence[str]) -> Callable[[str], bool] | None:
    """Whether a topic is one of those a log reader subscribes to; None when all are."""
    return None if ">" in patterns else TopicFilter([TopicPattern.parse(p) for p in patterns]).matches
