"""Replays that start at a point, at a message-id, or at the first message that a selector matches, over the wire."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote
from uuid import UUID

import apsw
import pytest
import structlog
from proton import Link, symbol, ulong
from structlog.testing import capture_logs

from amqp_ext.codec import ULong
from amqp_ext.replay_start import ReplayStart, parse_text
from gateway.config import Limits, Queue, ReplayLog, Vpn
from gateway.core import errors
from gateway.core.model import ListedPoint, Point
from gateway.core.replay.search import Search
from gateway.vpn.runtime import Tuning
from store.ports import SearchPage
from store.sqlite.reader import SqliteReader
from store.sqlite.transaction import Transaction
from tests.gateway.amqp.conftest import Clock, Connect, Start
from tests.support.client import Client, Receiver, Refused, texts
from tests.support.messages import data, trade
from tests.support.publishing import Publishing
from tests.support.running import RunningGateway

INDEXED = Vpn(replay_log=ReplayLog(index=("message-id", "tradeId")))

Attach = Callable[..., Receiver]


def by_map(client: Client, address: str, key: str, value: Any, **more: Any) -> Receiver:
    """Attach with our filter's map."""
    return client.receiver(
        address, filters={"rewind:replay-start": {symbol(key): value, **_symbols(more)}}, credit=100
    )


def by_short_text(client: Client, address: str, key: str, value: Any, **more: Any) -> Receiver:
    """Attach with our filter's short form."""
    assert not more
    return client.receiver(address, filters={"rewind:replay-start": f"{key}:{value}"}, credit=100)


def by_option(client: Client, address: str, key: str, value: Any, **more: Any) -> Receiver:
    """Attach with an option of the address."""
    options = {"replay-start": f"{key}:{value}", **more}
    return client.receiver(f"{address}?{'&'.join(f'{k}={quote(v)}' for k, v in options.items())}", credit=100)


def by_selector(client: Client, address: str, key: str, value: Any, **more: Any) -> Receiver:
    """Attach with a JMS selector, as a JMS client that must not touch the address does."""
    assert not more
    quoted = f"{key}:{value}".replace("'", "''")
    selector = f"\"m.x-opt-replay-start\" = '{quoted}'"
    return client.receiver(address, filters={"apache.org:selector-filter:string": selector}, credit=100)


def _symbols(entries: dict[str, Any]) -> dict[Any, Any]:
    return {symbol(key): value for key, value in entries.items()}


every_way = pytest.mark.parametrize("attach", [by_map, by_short_text, by_option, by_selector])
either_index = pytest.mark.parametrize("vpn", [Vpn(), INDEXED], ids=["scan", "index"])


def create_point(gateway: RunningGateway, name: str, start: ReplayStart | str | None = None) -> Point:
    """Make a point as an administrator does."""
    asked = parse_text(start) if isinstance(start, str) else start
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


def refusal(attach: Attach, *arguments: Any, **more: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        attach(*arguments, **more)
    return caught.value


def is_unavailable(refused: Refused) -> bool:
    return refused.replay_refusal == (
        "amqp:precondition-failed",
        "start-message-unavailable",
        156,
    )


# --- every start, in every way ------------------------------------------------------------------------------------

STARTS = [
    ("point", "noon"),
    ("message-id", "m-3"),
    ("match", "tradeId = 'T-3'"),
    ("match", "size > 2 AND size < 9"),
]


@every_way
@either_index
@pytest.mark.parametrize(("key", "value"), STARTS, ids=[f"{key}:{value}" for key, value in STARTS])
def test_a_log_reader_starts_there(
    start: Start, connect: Connect, attach: Attach, vpn: Vpn, key: str, value: str
) -> None:
    """A log reader begins with the message asked for and goes on live, however it asked, with an index and without."""
    gateway = start(vpn=vpn)
    client = connect(gateway)
    publish(client, "topic://t/a", range(3))
    create_point(gateway, "noon")
    publish(client, "topic://t/a", range(3, 5))
    receiver = attach(client, "log://t/>", key, value)
    assert texts(receiver.take(2)) == ["3", "4"]
    publish(client, "topic://t/a", [5])
    assert texts(receiver.take(1)) == ["5"]


@every_way
@pytest.mark.parametrize(("key", "value"), STARTS, ids=[f"{key}:{value}" for key, value in STARTS])
def test_a_queue_is_rewound_to_there(
    gateway: RunningGateway, client: Client, attach: Attach, key: str, value: str
) -> None:
    """A consumer rewinds its queue to the message asked for, after all was consumed."""
    publish(client, "orders", range(3))
    create_point(gateway, "noon")
    publish(client, "orders", range(3, 6))
    consumer = client.receiver("orders", credit=6)
    consumer.take_and_accept(6)
    consumer.close()
    assert texts(attach(client, "orders", key, value).take_and_accept(3)) == ["3", "4", "5"]


def test_the_reply_says_where_it_starts(gateway: RunningGateway, client: Client) -> None:
    """The reply's replay start names the message that was found, and the entry asked for stands beside it."""
    publish(client, "topic://t", range(5))
    receiver = by_map(client, "log://t", "match", "tradeId = 'T-3'")
    first = receiver.take(1)[0]
    assert receiver.start["offset"] == first.id
    assert receiver.start["id"] == first.annotations["x-opt-replay-id"]


def test_a_bounded_replay_from_a_found_message_ends(client: Client) -> None:
    """`until` holds beside a start that was searched for."""
    publish(client, "topic://t", range(5))
    receiver = by_map(client, "log://t", "message-id", "m-2", until=symbol("now"))
    assert texts(receiver.take_to_end()) == ["2", "3", "4"]


# --- the newest ---------------------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("address", ["log://t/a", "audit?kind=stream", "orders"])
def test_the_newest_messages_on_the_topics_asked_for(
    gateway: RunningGateway, client: Client, attach: Attach, address: str
) -> None:
    """`last:N` is the newest N of log, stream or queue, whatever came on other topics between them; then live."""
    target = {"log://t/a": "topic://t/a", "audit?kind=stream": "audit", "orders": "orders"}[address]
    if target != "topic://t/a":
        client.receiver(address, credit=0).close()
    for n in range(6):
        publish(client, target, [n])
        publish(client, "topic://t/b", [100 + n])
    if address == "orders":
        consumer = client.receiver("orders", credit=6)
        consumer.take_and_accept(6)
        consumer.close()
    if attach is by_option and "?" in address:
        receiver = client.receiver(f"{address}&replay-start=last:2", credit=100)
    else:
        receiver = attach(client, address, "last", 2)
    assert texts(receiver.take(2)) == ["4", "5"]
    publish(client, target, [6])
    assert texts(receiver.take(1)) == ["6"]


@pytest.mark.parametrize("missing", ["fail", "clamp"])
def test_fewer_than_asked_for_are_all_there_are(client: Client, missing: str) -> None:
    """Nothing is refused where the log has fewer; none at all is live."""
    publish(client, "topic://t/a", range(3))
    assert texts(by_map(client, "log://t/a", "last", 10, missing=missing).take(3)) == ["0", "1", "2"]
    receiver = by_map(client, "log://t/none", "last", 10, missing=missing)
    publish(client, "topic://t/none", [9])
    assert texts(receiver.take(1)) == ["9"]


def test_what_a_queue_excepts_does_not_count(start: Start, connect: Connect) -> None:
    """The newest of what the queue's subscriptions take, but for exceptions."""
    client = connect(start(Vpn(queues={"picky": Queue(subscriptions=("t/>", "!t/b"))})))
    for n in range(5):
        publish(client, "topic://t/a", [n])
        publish(client, "topic://t/b", [100 + n])
    assert texts(by_map(client, "picky", "last", 2).take_and_accept(2)) == ["3", "4"]


# --- message-ids --------------------------------------------------------------------------------------------------

A_UUID = UUID("01234567-89ab-cdef-0123-456789abcdef")


@either_index
@pytest.mark.parametrize(
    ("one", "text"),
    [
        ("order 1 ü", "order 1 ü"),
        (ULong(42), "42"),
        (ULong(42), "ID:AMQP_ULONG:42"),
        (A_UUID, str(A_UUID).upper()),
        (A_UUID, f"ID:AMQP_UUID:{A_UUID}"),
        (b"\x00\xfe", "00fe"),
        (b"\x00\xfe", "ID:AMQP_BINARY:00FE"),
    ],
)
def test_every_type_of_message_id_has_a_text(
    start: Start, connect: Connect, vpn: Vpn, one: Any, text: str
) -> None:
    """Ids of all four types are found by their text, and by the text that a JMS client shows."""
    client = connect(start(vpn=vpn))
    client.sender("topic://t").send_all([data("before"), trade("it", message_id=one), data("after")])
    assert texts(by_map(client, "log://t", "message-id", text).take(2)) == ["it", "after"]


@either_index
@pytest.mark.parametrize(
    ("one", "said"), [(ULong(42), ulong(42)), (A_UUID, A_UUID), (b"B", b"B")], ids=["ulong", "uuid", "binary"]
)
def test_a_message_id_of_its_own_type(start: Start, connect: Connect, vpn: Vpn, one: Any, said: Any) -> None:
    """In a map an id may be given as the client has it, and stands for no id of another type that looks the same."""
    client = connect(start(vpn=vpn))
    alike = ["42", str(A_UUID)]
    client.sender("topic://t").send_all(
        [*(trade(f"not {text}", message_id=text) for text in alike), trade("it", message_id=one)]
    )
    assert texts(by_map(client, "log://t", "message-id", said).take(1)) == ["it"]


@either_index
def test_the_first_one_on_the_topics_asked_for_counts(start: Start, connect: Connect, vpn: Vpn) -> None:
    """Of several messages with one id the first that the reader subscribes to is taken, others are not there."""
    client = connect(start(vpn=vpn))
    client.sender("topic://other").send_all([trade("theirs", message_id="m")])
    client.sender("topic://t").send_all(
        [trade("no", message_id="n"), trade("1", message_id="m"), trade("2", message_id="m")]
    )
    assert texts(by_map(client, "log://t", "message-id", "m").take(2)) == ["1", "2"]
    assert is_unavailable(refusal(by_map, client, "log://other", "message-id", "n"))


# --- refusals -----------------------------------------------------------------------------------------------------


@either_index
@pytest.mark.parametrize("address", ["log://t", "orders"])
@pytest.mark.parametrize(
    ("key", "value"),
    [("point", "noon"), ("message-id", "m-9"), ("match", "tradeId = 'T-9'"), ("match", "size > 9")],
)
def test_what_is_not_there_is_refused(
    start: Start, connect: Connect, vpn: Vpn, address: str, key: str, value: str
) -> None:
    """A point, message-id or selector that finds nothing is refused as unavailable (156), naming what was asked for."""
    client = connect(start(vpn=vpn))
    for target in ("topic://t", "orders"):
        publish(client, target, range(3))
    for attach in (by_map, by_option):
        refused = refusal(attach, client, address, key, value)
        assert is_unavailable(refused)
        assert value in refused.text


@pytest.mark.parametrize(("key", "value"), [("message-id", "m-9"), ("match", "tradeId = 'T-9'")])
@pytest.mark.parametrize("attach", [by_map, by_option])
def test_clamp_begins_at_the_beginning(client: Client, attach: Attach, key: str, value: str) -> None:
    """With missing=clamp a message that is not there is the beginning of the log: nothing can have been missed."""
    publish(client, "topic://t", range(3))
    assert texts(attach(client, "log://t", key, value, missing="clamp").take(3)) == ["0", "1", "2"]


@every_way
def test_a_bad_selector_is_an_unknown_start(client: Client, attach: Attach) -> None:
    """A selector that is none is refused as an unknown start (139), with the character at which it goes wrong."""
    refused = refusal(attach, client, "log://t", "match", "tradeId = AND")
    assert refused.replay_refusal == (
        "amqp:invalid-field",
        "unknown-start",
        139,
    )
    assert "at character 11 of the selector" in refused.text


def test_a_refused_start_leaves_the_queue_alone(gateway: RunningGateway, client: Client) -> None:
    """A consumer whose start was not found is not bound, and nothing was dropped."""
    publish(client, "orders", range(3))
    assert is_unavailable(refusal(by_map, client, "orders", "message-id", "m-9"))
    assert texts(client.receiver("orders", credit=3).take_and_accept(3)) == ["0", "1", "2"]


# --- points -------------------------------------------------------------------------------------------------------


def test_a_point_stays_where_it_is(gateway: RunningGateway, client: Client) -> None:
    """What is published later does not move a point, and neither do other points."""
    create_point(gateway, "first")
    publish(client, "topic://t", range(3))
    create_point(gateway, "second")
    publish(client, "topic://t", range(3, 6))
    create_point(gateway, "third")
    publish(client, "topic://t", [6])
    for name, expected in (("first", "0"), ("second", "3"), ("third", "6")):
        assert texts(by_map(client, "log://t", "point", name).take(1)) == [expected]


def test_points_survive_a_restart(gateway: RunningGateway, connect: Connect) -> None:
    """After a restart points are listed and start replays as before; what was deleted stays deleted."""
    client = connect(gateway)
    publish(client, "topic://t", range(3))
    create_point(gateway, "noon")
    create_point(gateway, "gone")
    publish(client, "topic://t", range(3, 5))
    delete_point(gateway, "gone")
    before = points(gateway)
    client.close()
    gateway.restart()
    assert points(gateway) == before
    client = connect(gateway)
    publish(client, "topic://t", [5])
    assert texts(by_option(client, "log://t", "point", "noon").take(3)) == ["3", "4", "5"]
    assert is_unavailable(refusal(by_map, client, "log://t", "point", "gone"))


def test_a_point_can_be_made_anywhere_in_the_log(
    clock: Clock, gateway: RunningGateway, client: Client
) -> None:
    """A point is made at a date, at or after an id, or in any other way that a start is given, and keeps its place."""
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
    assert [listed.point.name for listed in points(gateway)] == [
        "after", "ago", "copy", "date", "id", "match", "offset", "now",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("place", "subcode"),
    [
        ("2199-01-01T00:00:00Z", 139),
        ("1999-01-01T00:00:00Z", 143),
        ("#99", 156),
        ("message-id:m", 156),
        ("match:a =", 139),
        ("point:x", 156),
    ],
)
def test_a_point_that_is_nowhere_is_not_made(gateway: RunningGateway, place: str, subcode: int) -> None:
    """Where a replay could not start no point can be made, and for the same reason."""
    with pytest.raises(errors.Refused) as caught:
        create_point(gateway, "nowhere", place)
    assert caught.value.code.subcode == subcode
    assert points(gateway) == []


def test_a_trimmed_point_says_so(gateway: RunningGateway, client: Client) -> None:
    """A point that the log no longer reaches back to is listed as trimmed and refused (156); the next one is good."""
    publish(client, "topic://t", range(3))
    create_point(gateway, "old", "#2")
    create_point(gateway, "edge", "#3")
    assert gateway.run_coroutine(lambda g: g.vpns["default"].trimmer.trim_before(3)) == 3
    assert [(listed.point.name, listed.is_trimmed) for listed in points(gateway)] == [
        ("old", True),
        ("edge", False),
    ]
    refused = refusal(by_map, client, "log://t", "point", "old")
    assert is_unavailable(refused)
    assert "was trimmed" in refused.text
    assert texts(by_map(client, "log://t", "point", "old", missing="clamp").take(1)) == ["2"]
    assert texts(by_map(client, "log://t", "point", "edge").take(1)) == ["2"]


def test_a_point_that_was_not_written_is_not_there(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the store cannot write, a new point is not there and a deleted one still is; later both succeed."""
    create_point(gateway, "kept")
    with monkeypatch.context() as broken:
        broken.setattr(Transaction, "finish", _disk_full)
        with pytest.raises(errors.Refused, match="disk is full"):
            create_point(gateway, "new")
        with pytest.raises(errors.Refused, match="disk is full"):
            delete_point(gateway, "kept")
    assert [listed.point.name for listed in points(gateway)] == ["kept"]
    create_point(gateway, "new")
    delete_point(gateway, "kept")
    assert [listed.point.name for listed in points(gateway)] == ["new"]


def _disk_full(self: Transaction) -> None:
    raise apsw.FullError("database or disk is full")


def test_a_point_under_load_parts_before_from_after(gateway: RunningGateway, connect: Connect) -> None:
    """A replay from a point made amid publishing begins right behind what was published before, without a gap."""
    client = connect(gateway)
    with Publishing(gateway.url, "topic://t") as publishing:
        publishing.wait_for(500)
        accepted = publishing.accepted
        create_point(gateway, "amid")
        sent = publishing.next
        publishing.wait_for(sent + 500)
    first = int(by_map(client, "log://t", "point", "amid").take(1)[0].text)
    assert accepted <= first <= publishing.next
    replayed = texts(by_map(client, "log://t", "point", "amid", until=symbol("now")).take_to_end())
    assert replayed == [str(number) for number in range(first, publishing.next)]


@either_index
@pytest.mark.parametrize(
    ("key", "value"), [("message-id", "m-1"), ("match", "tradeId = 'T-1'"), ("match", "size = 1")]
)
def test_what_was_trimmed_is_not_found(
    start: Start, connect: Connect, vpn: Vpn, key: str, value: str
) -> None:
    """A message that was trimmed is no start any more, though a queue still holds it; the next of that id is."""
    gateway = start(vpn=vpn)
    client = connect(gateway)
    publish(client, "orders", range(3))
    gateway.run_coroutine(lambda g: g.vpns["default"].trimmer.trim_before(3))
    assert is_unavailable(refusal(by_map, client, "log://>", key, value))
    publish(client, "orders", [1])
    assert by_map(client, "log://#queue/orders", key, value).take(1)[0].id == 4


# --- searching in the company of others ---------------------------------------------------------------------------


def test_an_index_that_is_configured_later_finds_what_came_before(start: Start, connect: Connect) -> None:
    """Messages from before their property was indexed are found by reading them, those from after by the index."""
    gateway = start()
    client = connect(gateway)
    publish(client, "topic://t", range(3))
    client.close()
    gateway.stop()
    indexed = start(vpn=INDEXED)
    client = connect(indexed)
    publish(client, "topic://t", range(3, 6))
    assert texts(by_map(client, "log://t", "match", "tradeId = 'T-1'").take(1)) == ["1"]
    assert texts(by_map(client, "log://t", "match", "tradeId = 'T-4'").take(1)) == ["4"]


def test_a_long_search_says_how_far_it_is(start: Start, given: dict[str, Any], connect: Connect) -> None:
    """A search of many pages logs a line now and then, and one at its end with what it found."""
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


def test_searches_stall_nobody(start: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many searches there are, one reads at a time, and others read old pages and publish meanwhile."""
    client = connect(start(limits=Limits(tail_bytes=1, read_page_rows=10)))
    publish(client, "topic://t", range(100))
    may_read, readers, most = threading.Event(), 0, 0
    search_page = SqliteReader.search_page

    def slow_page(self: SqliteReader, search: Search, *arguments: Any) -> Any:
        nonlocal readers, most
        readers += 1
        most = max(most, readers)
        assert may_read.wait(20)
        readers -= 1
        return search_page(self, search, *arguments)

    monkeypatch.setattr(SqliteReader, "search_page", slow_page)
    searching = connect_and_search(connect, client, 8)
    assert texts(by_map(client, "log://t", "from", symbol("beginning")).take(100)) == [
        str(n) for n in range(100)
    ]
    publish(client, "topic://t", [100])
    may_read.set()
    for link in searching:
        client.wait(lambda link=link: link.state & Link.REMOTE_ACTIVE, "the search ends")
    assert most == 1


def test_a_search_outlives_trimming(start: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the log is trimmed under a search, it goes on with what is left."""
    gateway = start(limits=Limits(read_page_rows=10))
    client = connect(gateway)
    publish(client, "topic://t", range(100))
    is_reading, may_read, search_page = threading.Event(), threading.Event(), SqliteReader.search_page

    def wait_once(self: SqliteReader, *arguments: Any) -> Any:
        is_reading.set()
        assert may_read.wait(20)
        return search_page(self, *arguments)

    monkeypatch.setattr(SqliteReader, "search_page", wait_once)
    (link,) = connect_and_search(connect, client, 1)
    assert is_reading.wait(20)
    gateway.run_coroutine(lambda g: g.vpns["default"].trimmer.trim_before(60))
    may_read.set()
    client.wait(lambda: link.state & Link.REMOTE_ACTIVE, "the search ends")
    assert link.remote_source.address is not None, "the attach was not refused"


def connect_and_search(connect: Connect, client: Client, count: int) -> list[Link]:
    """Attach log readers whose start has to be searched for, without waiting for the answer."""
    links = []
    for number in range(count):
        link = client.session.receiver(f"searching-{number}")
        link.source.address = f"log://t?replay-start={quote(f'match:size >= {90 + number}')}"
        link.open()
        links.append(link)
    client.open_session()  # A round trip: the attaches have arrived.
    return links


def test_a_search_ends_with_its_connection(
    gateway: RunningGateway, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the client is gone nobody reads on for it."""
    client = connect(gateway)
    publish(client, "topic://t", range(3))
    is_reading, may_read, pages = threading.Event(), threading.Event(), 0

    def one_id_a_page(self: SqliteReader, search: Search, patterns: Any, position: int, end: int) -> Any:
        nonlocal pages
        pages += 1
        is_reading.set()
        assert may_read.wait(20)
        return SearchPage(None, position + 1)

    monkeypatch.setattr(SqliteReader, "search_page", one_id_a_page)
    connect_and_search(connect, client, 1)
    assert is_reading.wait(20)
    client.cut()
    other = connect(gateway)
    other.wait(lambda: gateway.call(lambda g: len(g._container.connections)) == 1, "the gateway notices")
    may_read.set()
    other.open_session()
    assert pages == 1
