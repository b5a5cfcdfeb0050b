"""Who reads without taking away is in the trace of what was published: the log, streams, browsers."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import httpx
from proton import Link, Terminus

from gateway import app
from gateway.config import Queue, Vpn
from gateway.config.settings import Telemetry
from gateway.vpn.feeds.browse_feed import BrowseFeed
from gateway.vpn.feeds.log_feed import LogFeed
from gateway.vpn.tracing import Span, TracedLink
from tests.support.client import Client, texts
from tests.support.messages import APPLICATION_PROPERTIES, data, section
from tests.support.running import PLAIN_HTTP, RunningGateway, settings_for

TRACE, PARENT = "a" * 32, "b" * 16
TRACED = section(APPLICATION_PROPERTIES, {"traceparent": f"00-{TRACE}-{PARENT}-01"})
VPN = Vpn(queues={"audit": Queue(kind="stream", subscriptions=("a/>",)), "q": Queue()})


class Spans:
    """Where spans go."""

    exported = dropped = failed = 0

    def __init__(self) -> None:
        self.found: list[Span] = []

    def add(self, span: Span) -> None:
        self.found.append(span)

    def close(self) -> None:
        """Nothing is on its way."""

    def about(self, name: str) -> list[tuple[int | str, str, int]]:
        """Of spans of this name: the message's id, the trace, and the span they are part of."""
        return [
            (s.attributes["rewind.offset"], f"{s.trace_id:032x}", s.parent.span_id if s.parent else 0)
            for s in self.found
            if s.name == name
        ]


def browsing(link: Link) -> None:
    link.source.distribution_mode = Terminus.DIST_MODE_COPY


def test_readers_and_browsers_are_in_the_publishers_trace(tmp_path: Path) -> None:
    """Live, where the span follows that of enqueueing; of history, where it follows the publisher's; once each."""
    spans = Spans()
    telemetry = Telemetry(endpoint="http://127.0.0.1:1/v1/traces", sample_ratio=0.0)
    settings = settings_for(tmp_path, VPN, telemetry=telemetry)
    with patch.object(app, "open_telemetry", lambda _: spans), RunningGateway(settings) as gateway:
        with Client(gateway.url) as client:
            live = client.receiver("log://a/>", credit=9)
            client.sender("topic://a/1").send_all([TRACED + data("one"), data("two")])
            assert texts(live.take(2)) == ["one", "two"]
            assert texts(client.receiver("audit?replay-start=beginning", credit=9).take(2)) == ["one", "two"]
            client.sender("q").send_all([TRACED + data("three")])
            assert texts(client.receiver("q", set_up=browsing, credit=9).take(1)) == ["three"]
            (enqueue,) = [s.span_id for s in spans.found if s.name == "enqueue a/1"]
            assert spans.about("read log://a/>") == spans.about("read audit") == [(1, TRACE, enqueue)]
            assert [found[:2] for found in spans.about("browse q")] == [(3, TRACE)]
        gateway.restart()
        url = gateway.call(lambda running: running.admin[0])
        assert len(httpx.get(f"{url}/v1/log", **PLAIN_HTTP).text.splitlines()) == 3
        assert spans.about("read log://>") == [(1, TRACE, int(PARENT, 16)), (3, TRACE, int(PARENT, 16))]


def test_without_telemetry_nothing_stands_between_a_feed_and_its_link(tmp_path: Path) -> None:
    """Switched off, it costs a reader or a browser nothing at all: what they send to is their link."""
    with RunningGateway(settings_for(tmp_path, VPN)) as gateway, Client(gateway.url) as client:
        client.sender("q").send_all([data("x")])
        readers = [
            client.receiver("log://>"),
            client.receiver("audit"),
            client.receiver("q", set_up=browsing),
        ]
        links = gateway.call(
            lambda running: [
                feed._link
                for shown in (running.vpns["default"].readers,)
                for feed in (*shown.log_feeds, *(f for feeds in shown._browsers.values() for f in feeds))
                if isinstance(feed, LogFeed | BrowseFeed)
            ]
        )
        assert len(links) == len(readers)
        assert not any(isinstance(link, TracedLink) for link in links)
        assert gateway.call(lambda running: running.vpns["default"].tracing) is None
