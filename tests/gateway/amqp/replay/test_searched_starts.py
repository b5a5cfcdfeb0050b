"""Replays that start at a point, at a message-id, or at the first message that a selector matches, over the wire."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest
import structlog
from proton import Link, symbol, ulong
from structlog.testing import capture_logs

from amqp_ext.codec import ULong
from amqp_ext.replay_start import parse_text
from gateway.config import Limits, ReplayLog, Vpn
from gateway.core import errors
from gateway.core.model import ListedPoint, Point
from gateway.vpn.runtime import Tuning
from store.sqlite.reader import SqliteReader
from tests.gateway.amqp.conftest import Clock, Connect, FullDisk, Start
from tests.support.client import SELECTOR, Client, Receiver, Refused, numbered, refusal, texts
from tests.support.messages import trade
from tests.support.running import RunningGateway, trim_before

INDEXED = Vpn(replay_log=ReplayLog(index=("message-id", "tradeId")))

Attach = Callable[..., Receiver]


def by_map(client: Client, address: str, key: str, value: Any, **more: Any) -> Receiver:
    """Attach with our filter's map."""
    asked = {symbol(name): entry for name, entry in {key: value, **more}.items()}
    return client.receiver(address, filters={"rewind:replay-start": asked}, credit=100)


def by_short_text(client: Client, address: str, key: str, value: Any) -> Receiver:
    """Attach with our filter's short form."""
    return client.receiver(address, filters={"rewind:replay-start": f"{key}:{value}"}, credit=100)


def by_option(client: Client, address: str, key: str, value: Any, **more: Any) -> Receiver:
    """Attach with an option of the address."""
    options = {"replay-start": f"{key}:{value}", **more}
    text = "&".join(f"{name}={quote(option)}" for name, option in options.items())
    return client.receiver(f"{address}{'&' if '?' in address else '?'}{text}", credit=100)


def by_selector(client: Client, address: str, key: str, value: Any) -> Receiver:
    """Attach with a JMS selector, as a JMS client that must not touch the address does."""
    quoted = f"{key}:{value}".replace("'", "''")
    selector = f"\"m.x-opt-replay-start\" = '{quoted}'"
    return client.receiver(address, filters={SELECTOR: selector}, credit=100)


WAYS: tuple[Attach, ...] = (by_map, by_short_text, by_option, by_selector)
either_index = pytest.mark.parametrize("vpn", [Vpn(), INDEXED], ids=["scan", "index"])


def create_point(gateway: RunningGateway, name: str, start: str | None = None) -> Point:
    """Create a point as an administrator does."""
    asked = None if start is None else parse_text(start)
    return gateway.run_coroutine(lambda g: g.vpns["default"].log.create_point(name, asked))


def delete_point(gateway: RunningGateway, name: str) -> None:
    gateway.run_coroutine(lambda g: g.vpns["default"].log.delete_point(name))


def points(gateway: RunningGateway) -> list[ListedPoint]:
    return gateway.call(lambda g: g.vpns["default"].log.points())


def publish(client: Client, address: str, numbers: Iterable[int]) -> None:
    """Publish trades: message-id `m-N`, tradeId `T-N`, body N."""
    client.sender(address).send_all(
        [trade(n, {"tradeId": f"T-{n}", "size": n}, message_id=f"m-{n}") for n in numbers]
    )


def is_unavailable(refused: Refused) -> bool:
    return refused.replay_refusal == ("amqp:precondition-failed", "start-message-unavailable", 156)


# --- every start, in every way ------------------------------------------------------------------------------------

STARTS = [
    ("point", "noon"),
    ("message-id", "m-3"),
    ("match", "tradeId = 'T-3'"),
    ("match", "size > 2 AND size < 9"),
]


@either_index
def test_a_replay_starts_there(start: Start, connect: Connect, vpn: Vpn) -> None:
    """
    A log reader begins with the message asked for and goes on live, in every way to ask, with an index and without; the
    answer names that message. A consumer rewinds its queue to it, after all was consumed.
    """
    gateway = start(vpn=vpn)
    client = connect(gateway)
    for address in ("topic://t/a", "orders"):
        publish(client, address, range(3))
    create_point(gateway, "noon")
    for address in ("topic://t/a", "orders"):
        publish(client, address, range(3, 6))
    consumer = client.receiver("orders", credit=6)
    consumer.take_and_accept(6)
    consumer.close()
    readers = []
    for attach, (key, value) in product(WAYS, STARTS):
        reader = attach(client, "log://t/>", key, value)
        taken = reader.take(3)
        assert texts(taken) == ["3", "4", "5"], (attach, value)
        assert reader.start["offset"] == taken[0].id
        assert reader.start["id"] == taken[0].annotations["x-opt-replay-id"]
        readers.append(reader)
        consumer = attach(client, "orders", key, value)
        assert texts(consumer.take_and_accept(3)) == ["3", "4", "5"], (attach, value)
        consumer.close()
    publish(client, "topic://t/a", [6])
    for reader in readers:
        assert texts(reader.take(1)) == ["6"]


# --- the newest ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "target"),
    [("log://t/a", "topic://t/a"), ("audit?kind=stream", "audit"), ("orders", "orders")],
)
def test_the_newest_messages_on_the_topics_asked_for(client: Client, address: str, target: str) -> None:
    """`last:N` is the newest N of log, stream or queue, whatever came on other topics between them; then live."""
    client.receiver(address).close()
    for n in range(6):
        publish(client, target, [n])
        publish(client, "topic://t/b", [100 + n])
    if address == "orders":
        consumer = client.receiver("orders", credit=6)
        consumer.take_and_accept(6)
        consumer.close()
    for n, attach in enumerate(WAYS, 6):
        receiver = attach(client, address, "last", 2)
        assert texts(receiver.take_and_accept(2)) == [str(n - 2), str(n - 1)]
        publish(client, target, [n])
        assert texts(receiver.take_and_accept(1)) == [str(n)]
        receiver.close()


@pytest.mark.parametrize("missing", ["fail", "clamp"])
def test_fewer_than_asked_for_are_all_there_are(client: Client, missing: str) -> None:
    """If the log has fewer, the replay has those; if it has none, the reader is live."""
    publish(client, "topic://t/a", range(3))
    assert texts(by_map(client, "log://t/a", "last", 10, missing=missing).take(3)) == ["0", "1", "2"]
    receiver = by_map(client, "log://t/none", "last", 10, missing=missing)
    publish(client, "topic://t/none", [9])
    assert texts(receiver.take(1)) == ["9"]


# --- message-ids --------------------------------------------------------------------------------------------------

A_UUID = UUID("01234567-89ab-cdef-0123-456789abcdef")
IDS: list[tuple[Any, Any, list[str]]] = [
    ("order 1 ü", "order 1 ü", ["order 1 ü"]),
    (ULong(42), ulong(42), ["42", "ID:AMQP_ULONG:42"]),
    (A_UUID, A_UUID, [str(A_UUID).upper(), f"ID:AMQP_UUID:{A_UUID}"]),
    (b"\x00\xfe", b"\x00\xfe", ["00fe", "ID:AMQP_BINARY:00FE"]),
]
"""Ids as a message has them, as a filter has them, and as texts."""


@either_index
def test_message_ids_of_every_type(start: Start, connect: Connect, vpn: Vpn) -> None:
    """
    Ids of all four types are found by their text, and by the text that a JMS client shows. In a map an id may be given
    with its own type, and then matches no id of another type that looks the same. Of several messages with one id the
    first on the reader's topics is taken; one on other topics is not found.
    """
    client = connect(start(vpn=vpn))
    for topic, alike in (("t", []), ("typed", ["42", str(A_UUID), "00fe"])):
        messages = [trade("before"), *(trade("alike", message_id=text) for text in alike)]
        messages += [trade(place, message_id=one) for place, (one, _, _) in enumerate(IDS)]
        client.sender(f"topic://{topic}").send_all([*messages, *messages])
    for place, (_, said, by_text) in enumerate(IDS):
        assert texts(by_map(client, "log://typed", "message-id", said).take(1)) == [str(place)]
        for text in by_text:
            found = by_map(client, "log://t", "message-id", text).take(2)
            assert texts(found) == [str(place), str(place + 1) if place < 3 else "before"]
            assert found[0].id <= 5
    assert is_unavailable(refusal(by_map, client, "log://other", "message-id", "42"))


# --- refusals -----------------------------------------------------------------------------------------------------


@either_index
def test_what_is_not_there_is_refused(start: Start, connect: Connect, vpn: Vpn) -> None:
    """
    A point, message-id or selector that finds nothing is refused as unavailable (156), naming what was asked for. The
    queue then has no consumer, and all of its messages.
    """
    client = connect(start(vpn=vpn))
    for target in ("topic://t", "orders"):
        publish(client, target, range(3))
    asked = [("point", "noon"), ("message-id", "m-9"), ("match", "tradeId = 'T-9'"), ("match", "size > 9")]
    for address, (key, value), attach in product(
        ("log://t", "orders", "s?kind=stream"), asked, (by_map, by_option)
    ):
        refused = refusal(attach, client, address, key, value)
        assert is_unavailable(refused)
        assert value in refused.text
    assert texts(client.receiver("orders", credit=3).take_and_accept(3)) == ["0", "1", "2"]


def test_clamp_begins_at_the_beginning(client: Client) -> None:
    """
    With missing=clamp the replay of a message that is not there starts at the beginning of the log, so that nothing can
    be missed. A bound holds as well.
    """
    publish(client, "topic://t", range(3))
    for attach in (by_map, by_option):
        for key, value in (("message-id", "m-9"), ("match", "tradeId = 'T-9'")):
            clamped = attach(client, "log://t", key, value, missing="clamp", until="now")
            assert texts(clamped.take_to_end()) == ["0", "1", "2"]


def test_a_bad_selector_is_an_unknown_start(client: Client) -> None:
    """A bad selector is refused as an unknown start (139), with the character at which it goes wrong."""
    for attach in WAYS:
        refused = refusal(attach, client, "log://t", "match", "tradeId = AND")
        assert refused.replay_refusal == ("amqp:invalid-field", "unknown-start", 139)
        assert "at character 11 of the selector" in refused.text


@either_index
def test_what_was_trimmed_is_not_found(start: Start, connect: Connect, vpn: Vpn) -> None:
    """A trimmed message is no start any more, though a queue still holds it; a later one with the same id is."""
    gateway = start(vpn=vpn)
    client = connect(gateway)
    publish(client, "orders", range(3))
    trim_before(gateway, 3)
    starts = [("message-id", "m-1"), ("match", "tradeId = 'T-1'"), ("match", "size = 1")]
    for key, value in starts:
        assert is_unavailable(refusal(by_map, client, "log://>", key, value))
    publish(client, "orders", [1])
    for key, value in starts:
        assert by_map(client, "log://#queue/orders", key, value).take(1)[0].id == 4


# --- points -------------------------------------------------------------------------------------------------------


def test_a_point_stays_where_it_is(gateway: RunningGateway, connect: Connect) -> None:
    """
    Neither later messages nor other points move a point. After a restart points are listed and start replays as before,
    and a deleted one stays deleted.
    """
    client = connect(gateway)
    for number, name in ((0, "first"), (3, "second"), (6, "third")):
        create_point(gateway, name)
        publish(client, "topic://t", range(number, number + 3))
    create_point(gateway, "gone")
    delete_point(gateway, "gone")
    before = points(gateway)
    for _ in range(2):
        for name, expected in (("first", "0"), ("second", "3"), ("third", "6")):
            assert texts(by_map(client, "log://t", "point", name).take(1)) == [expected]
        assert is_unavailable(refusal(by_map, client, "log://t", "point", "gone"))
        client = connect.again(gateway, client)
        assert points(gateway) == before


def test_a_point_can_be_made_anywhere_in_the_log(
    clock: Clock, gateway: RunningGateway, client: Client
) -> None:
    """A point is created at a date, at or after an id, or by any other start, and keeps its place."""
    began = clock.ms
    for number in range(4):
        clock.ms = began + number * 1_000
        publish(client, "topic://t", [number])
    reader = by_map(client, "log://t", "from", symbol("beginning"))
    ids = [message.annotations["x-opt-replay-id"] for message in reader.take(4)]
    clock.ms = began + 60_000
    for name, start in (
        ("date", "2027-01-15T08:00:01Z"),
        ("ago", "59s"),
        ("after", ids[0]),
        ("offset", "#2"),
        ("id", "message-id:m-1"),
        ("match", "match:tradeId = 'T-1'"),
        ("copy", "point:date"),
    ):
        point = create_point(gateway, name, start)
        assert point == Point(name, 2, began + 1_000, clock.ms), name
        assert texts(by_map(client, "log://t", "point", name).take(1)) == ["1"]
    assert create_point(gateway, "now") == Point("now", 5, clock.ms, clock.ms)
    in_order = ["after", "ago", "copy", "date", "id", "match", "offset", "now"]
    assert [listed.point.name for listed in points(gateway)] == in_order


NOWHERE = {
    "2199-01-01T00:00:00Z": 139,
    "1999-01-01T00:00:00Z": 143,
    "#99": 156,
    "message-id:m": 156,
    "match:a =": 139,
    "point:x": 156,
}


def test_a_point_that_is_nowhere_is_not_made(gateway: RunningGateway) -> None:
    """Where a replay could not start, no point can be created, for the same reason."""
    for place, subcode in NOWHERE.items():
        with pytest.raises(errors.Refused) as caught:
            create_point(gateway, "nowhere", place)
        assert caught.value.code.subcode == subcode
    assert points(gateway) == []


def test_a_trimmed_point_says_so(gateway: RunningGateway, client: Client) -> None:
    """A point before the beginning of the log is listed as trimmed and refused (156); one at the beginning is good."""
    publish(client, "topic://t", range(3))
    create_point(gateway, "old", "#2")
    create_point(gateway, "edge", "#3")
    trim_before(gateway, 3)
    assert {one.point.name: one.is_trimmed for one in points(gateway)} == {"old": True, "edge": False}
    refused = refusal(by_map, client, "log://t", "point", "old")
    assert is_unavailable(refused)
    assert "was trimmed" in refused.text
    assert texts(by_map(client, "log://t", "point", "old", missing="clamp").take(1)) == ["2"]
    assert texts(by_map(client, "log://t", "point", "edge").take(1)) == ["2"]


def test_a_point_that_was_not_written_is_not_there(gateway: RunningGateway, full_disk: FullDisk) -> None:
    """When the store cannot write, a new point is not there and a deleted one still is; later both succeed."""
    create_point(gateway, "kept")
    with full_disk():
        for order, name in ((create_point, "new"), (delete_point, "kept")):
            with pytest.raises(errors.Refused, match="disk is full"):
                order(gateway, name)
    assert [listed.point.name for listed in points(gateway)] == ["kept"]
    create_point(gateway, "new")
    delete_point(gateway, "kept")
    assert [listed.point.name for listed in points(gateway)] == ["new"]


# --- searching while others work ----------------------------------------------------------------------------------


def test_an_index_that_is_configured_later_finds_what_came_before(
    gateway: RunningGateway, client: Client, connect: Connect
) -> None:
    """Messages from before their property was indexed are found by reading the log, later ones by the index."""
    publish(client, "topic://t", range(3))
    client = connect.again(gateway, client, INDEXED)
    publish(client, "topic://t", range(3, 6))
    assert texts(by_map(client, "log://t", "match", "tradeId = 'T-1'").take(1)) == ["1"]
    assert texts(by_map(client, "log://t", "match", "tradeId = 'T-4'").take(1)) == ["4"]


def test_a_long_search_says_how_far_it_is(start: Start, given: dict[str, Any], connect: Connect) -> None:
    """A search of many pages logs its progress now and then, and what it found at the end."""
    given["tuning"] = Tuning(search_progress_seconds=0.0)
    client = connect(start(limits=Limits(read_page_rows=10)))
    publish(client, "topic://t", range(50))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    with capture_logs() as lines:
        by_map(client, "log://t", "match", "size >= 35")
    progress = [line for line in lines if line["event"] == "replay_search_progress"]
    assert [(line["offset"], line["last"]) for line in progress] == [(11, 50), (21, 50), (31, 50)]
    assert {(line["vpn"], line["start"]) for line in progress} == {("default", "match:size >= 35")}
    (result,) = [line for line in lines if line["event"] == "replay_search"]
    assert result["first"] == 36


class HeldSearches:
    """Searches in pages of ten messages, which are read only while ``may_read`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_reading, self.may_read = threading.Event(), threading.Event()
        self.pages = self.most_at_once = self._now = 0
        search_page = SqliteReader.search_page

        def page(reader: SqliteReader, *arguments: Any) -> Any:
            self.pages += 1
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            self.is_reading.set()
            assert self.may_read.wait(20)
            self._now -= 1
            return search_page(reader, *arguments)

        monkeypatch.setattr(SqliteReader, "search_page", page)

    def begin(self, client: Client, count: int = 1) -> list[Link]:
        """Attach log readers whose start has to be searched for, without waiting for the answer."""
        links = []
        for number in range(count):
            link = client.session.receiver(f"searching-{number}")
            link.source.address = f"log://t?replay-start={quote(f'match:size >= {90 + number}')}"
            link.open()
            links.append(link)
        client.wait(self.is_reading.is_set, "one is read for")
        client.open_session()  # A round trip: the attaches have arrived.
        return links

    def end(self, client: Client, links: list[Link]) -> None:
        """Let all of them read; each finds its start."""
        self.may_read.set()
        for number, link in enumerate(links):
            client.wait(lambda link=link: link.state & Link.REMOTE_ACTIVE, "the search ends")
            assert link.remote_source.address is not None, "the attach was refused"
            assert Receiver(client, link).start["offset"] == 91 + number


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> HeldSearches:
    return HeldSearches(monkeypatch)


@pytest.fixture
def searched(start: Start, connect: Connect) -> RunningGateway:
    """A gateway with a log of a hundred messages in pages of ten."""
    gateway = start(limits=Limits(tail_bytes=1, read_page_rows=10))
    publish(connect(gateway), "topic://t", range(100))
    return gateway


def test_searches_stall_nobody(searched: RunningGateway, connect: Connect, searches: HeldSearches) -> None:
    """However many searches there are, one reads at a time; others read old pages and publish meanwhile."""
    client = connect(searched)
    links = searches.begin(client, 8)
    assert texts(by_map(client, "log://t", "from", symbol("beginning")).take(100)) == numbered(100)
    publish(client, "topic://t", [100])
    searches.end(client, links)
    assert searches.most_at_once == 1


def test_a_search_outlives_trimming(
    searched: RunningGateway, connect: Connect, searches: HeldSearches
) -> None:
    """When the log is trimmed under a search, the search goes on with what is left."""
    client = connect(searched)
    links = searches.begin(client)
    trim_before(searched, 60)
    searches.end(client, links)


def test_a_search_ends_with_its_connection(
    searched: RunningGateway, connect: Connect, searches: HeldSearches
) -> None:
    """Once the client is gone, no further page is read for it."""
    client, other = connect(searched), connect(searched)
    before = searched.connections()
    searches.begin(client)
    client.cut()
    other.wait(lambda: searched.connections() < before, "the gateway notices")
    searches.may_read.set()
    other.open_session()
    assert searches.pages == 1
