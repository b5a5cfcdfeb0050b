"""Streams: views of the log, how they are made, and their readers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from proton import Delivery, Terminus, symbol, timestamp, ulong

from amqp_ext.replay_id import format_replay_id
from gateway.app import Gateway
from gateway.config import Limits, Queue, ReplayLog, Vpn
from gateway.vpn.committer import Committer
from store.errors import StoreError
from tests.gateway.amqp.conftest import Clock, Connect, Start
from tests.support.client import (
    BEGINNING,
    MESSAGE_UNAVAILABLE,
    SELECTOR,
    Client,
    Received,
    Receiver,
    browsing,
    numbered,
    refusal,
    texts,
    with_properties,
)
from tests.support.messages import data, message_to, selectable
from tests.support.publishing import Publishing
from tests.support.running import RunningGateway, no_log, settings_for, trim_before
from tests.support.stored import lying

# --- How they are made, what is sent to them, what their readers see of the log ---------------------------------------


def audit(**more: Any) -> Vpn:
    """A Message VPN with a stream `audit`."""
    return Vpn(queues={"audit": Queue(kind="stream", **more)})


@pytest.fixture
def gateway(start: Start) -> RunningGateway:
    return start(audit())


def kind_of(gateway: RunningGateway, name: str) -> str:
    return gateway.call(lambda g: g.vpns["default"].broker.endpoints[name].kind.value)


def publish(client: Client, *topics: str) -> None:
    """Publish a message to each topic, with the topic as its body."""
    for topic in topics:
        client.sender(f"topic://{topic}").send_all([data(topic)])


# --- how they are made --------------------------------------------------------------------------------------------

WAYS = [
    ("s%d?kind=stream", []),
    ("queue://s%d?kind=stream", []),
    ("/queues/s%d?kind=stream", ["queue"]),
    ("s%d", ["stream"]),
    ("queue://s%d", ["stream", "queue"]),
    ("s%d?kind=stream", ["stream"]),
]


@pytest.mark.parametrize("end", ["receiver", "sender"])
def test_a_stream_is_made_on_first_attach(
    gateway: RunningGateway, client: Client, connect: Connect, end: str
) -> None:
    """
    The capability `stream` or the option `kind=stream`, at either end, makes a stream that survives a restart. It has a
    name: a dynamic node with the capability is refused, and not silently made a queue.
    """
    for number, (address, capabilities) in enumerate(WAYS):
        getattr(client, end)(address % number, capabilities=capabilities)
        client.sender(f"s{number}").send_all([data(number)])
    unnamed = refusal(getattr(client, end), None, dynamic=True, capabilities=["stream"])
    assert unnamed.name == "amqp:not-implemented"
    client = connect.again(gateway, client)
    for number in range(len(WAYS)):
        assert kind_of(gateway, f"s{number}") == "stream"
        assert texts(client.receiver(f"s{number}", filters=BEGINNING).drain()) == [str(number)]


@pytest.mark.parametrize("end", ["receiver", "sender"])
@pytest.mark.parametrize(
    ("existing", "option", "capabilities"),
    [
        ("stream", "?kind=queue", []),
        ("queue", "?kind=stream", []),
        ("queue", "", ["stream"]),
        ("stream", "?exclusive=steal", []),
    ],
)
def test_an_option_that_contradicts_what_is_there(
    gateway: RunningGateway, client: Client, existing: Any, option: str, capabilities: list[str], end: str
) -> None:
    """An option that differs from the endpoint's setting is refused with both named; the same, or none, is accepted."""
    attach = getattr(client, end)
    client.sender(f"q?kind={existing}")
    attach("q")
    attach(f"q?kind={existing}")
    refused = refusal(attach, f"q{option}", capabilities=capabilities)
    assert refused.name == "amqp:precondition-failed"
    named = ("exclusive=none", "exclusive=steal") if "exclusive" in option else ("kind=queue", "kind=stream")
    assert all(value in refused.text for value in named)
    assert "contradict" in str(refusal(attach, "other?kind=queue", capabilities=["stream"]))
    assert kind_of(gateway, "q") == existing


@pytest.mark.parametrize(
    ("vpn", "condition", "subcode"),
    [(no_log(), "amqp:not-implemented", 134), (Vpn(create_queues=False), "amqp:not-found", None)],
    ids=["no log", "no queues"],
)
def test_a_stream_that_may_not_be_made(
    start: Start, connect: Connect, vpn: Vpn, condition: str, subcode: int | None
) -> None:
    """With the log off a stream would be a view of nothing; with create_queues off it is not found."""
    gateway = start(vpn)
    client = connect(gateway)
    for attach in (client.receiver, client.sender):
        refused = refusal(attach, "s?kind=stream")
        assert (refused.name, refused.subcode) == (condition, subcode)
    assert gateway.endpoints() == set()


# --- sending ------------------------------------------------------------------------------------------------------


def test_sending_to_a_stream(gateway: RunningGateway, client: Client, tmp_path: Path) -> None:
    """
    A message sent by name is accepted, and is in the log alone, on no endpoint. When the stream is deleted, its senders
    are detached as those of a queue are.
    """
    for address in ("audit", "queue://audit", "/queues/audit", "topic://#queue/audit"):
        sender = client.sender(address)
        sender.send_all([data(address)])
        assert client.read_log("#queue/audit")[-1].text == address
    assert gateway.depth("audit") == 0
    assert lying(tmp_path / "data" / "default.db") == 0
    sender = client.sender("audit")
    delete(gateway, "audit")
    sender.send(data(2))
    assert sender.detached_by_peer().name == "amqp:resource-deleted"


@pytest.mark.parametrize(
    "log", [ReplayLog(enabled=False), ReplayLog(write=False), ReplayLog(topics=("orders/>",))], ids=repr
)
def test_nobody_takes_what_the_log_does_not_take(start: Start, connect: Connect, log: ReplayLog) -> None:
    """If the log is off, closed, or without the stream's topic, messages are released, and the link stays attached."""
    client = connect(start(Vpn(queues={"audit": Queue(kind="stream")}, replay_log=log)))
    assert client.sender("audit").outcomes([data(1), data(2)]) == ["RELEASED", "RELEASED"]
    assert client.sender(None).outcomes([message_to("audit", "x")]) == ["RELEASED"]


# --- what readers see ---------------------------------------------------------------------------------------------

OWN = "its own topic"
VIEWS: dict[tuple[str, ...], list[str]] = {
    (): [OWN],
    ("a/>",): ["a/x", "a/test/x", OWN],
    ("a/>", "!a/test/>", "b"): ["a/x", "b", OWN],
    (">", "!a/>"): ["b", OWN, "c"],
    (">", "!>"): [OWN],
    ("#queue/other",): ["#queue/other", OWN],
}
STREAMS = {f"stream{number}": Queue(kind="stream", subscriptions=view) for number, view in enumerate(VIEWS)}


def test_a_stream_is_a_view_by_subscriptions(start: Start, connect: Connect) -> None:
    """
    Readers get the stream's own topic and those it subscribes to, less the exceptions, history and live alike, from
    memory and from disk.
    """
    gateway = start(Vpn(queues={**STREAMS, "other": Queue()}))

    def publish_all() -> None:
        own = [f"#queue/{name}" for name in STREAMS]
        publish(connect(gateway), "a/x", "a/test/x", "b", "#queue/other", *own, "c")

    publish_all()
    for times in (1, 2):
        readers = {}
        for name, view in zip(STREAMS, VIEWS.values(), strict=True):
            expected = [f"#queue/{name}" if topic == OWN else topic for topic in view]
            reader = connect(gateway).receiver(name, filters=BEGINNING, credit=100)
            history = reader.take(times * len(expected))
            assert texts(history) == expected * times
            assert [message.is_end for message in history] == [False] * (len(history) - 1) + [True]
            last = connect(gateway).receiver(f"{name}?replay-start=last&until=now")
            assert texts(last.take_to_end()) == expected[-1:]
            readers[reader] = expected
        publish_all()
        for reader, expected in readers.items():
            live = reader.take(len(expected))
            assert texts(live) == expected
            assert not any(message.is_end for message in live)
        gateway.restart()


def test_a_selector_start_looks_at_the_streams_topics_alone(start: Start, connect: Connect) -> None:
    """
    `match:` starts at the first match on the stream's topics, past matches on topics that it does not subscribe to.
    """
    client = connect(start(audit(subscriptions=(">", "!a"))))
    client.sender("other")
    for number, topic in enumerate(("a", "#queue/other", "b", "c")):
        client.sender(f"topic://{topic}").send_all([selectable(number)])
    assert texts(client.receiver("audit?replay-start=match:n%3E%3D0").drain()) == ["2", "3"]


def test_readers_follow_the_subscriptions(start: Start, connect: Connect) -> None:
    """
    When a stream's subscriptions change, its readers go on from where they are with the new ones, each message once.
    """
    gateway = start(audit(subscriptions=("a",)))
    client = connect(gateway)
    publish(client, "a", "a", "b", "a", "b")
    behind, live = client.receiver("audit", filters=BEGINNING, credit=1), client.receiver("audit", credit=10)
    assert texts(behind.take(1)) == ["a"]
    gateway.subscribe("audit", ["b"])
    behind.flow(10)
    history = behind.take(2)
    assert texts(history) == ["b", "b"]
    assert [message.is_end for message in history] == [False, True], "the end is that of the new view"
    publish(client, "a", "b")
    for reader in (behind, live):
        (message,) = reader.take(1)
        assert (message.text, message.is_end) == ("b", False)
    assert gateway.log_readers() == 2


def test_readers_take_nothing(start: Start, connect: Connect) -> None:
    """
    Each reader gets everything, whatever outcomes others give; nothing is redelivered. Queues of the same topics keep
    their messages. An administrator's replay of a stream is refused.
    """
    audited = Queue(kind="stream", subscriptions=("a/>",))
    gateway = start(Vpn(queues={"audit": audited, "work": Queue(subscriptions=("a/>",))}))
    client = connect(gateway)
    client.sender("topic://a/1").send_all(map(data, range(50)))
    readers = [connect(gateway).receiver("audit", filters=BEGINNING) for _ in range(4)]
    outcomes = (Delivery.ACCEPTED, Delivery.REJECTED, Delivery.RELEASED, Delivery.MODIFIED)
    for reader, outcome in zip(readers, outcomes, strict=True):
        taken = reader.drain()
        assert texts(taken) == numbered(50)
        reader.settle(taken, outcome)
    assert [reader.drain() for reader in readers] == [[]] * 4
    assert (gateway.flows("audit"), gateway.depth("work")) == (4, 50)
    with pytest.raises(Exception, match="'audit' is a stream and cannot be rewound"):
        gateway.start_replay("audit", "beginning")
    assert gateway.replay_state("audit") == "n/a"
    assert texts(client.receiver("work").drain()) == numbered(50)
    again = connect(gateway).receiver("audit", filters=BEGINNING).drain()
    assert [(message.text, message.delivery_count) for message in again] == [(str(i), 0) for i in range(50)]


@pytest.mark.parametrize(
    ("default", "expected"),
    [(None, ["live"]), ("live", ["live"]), ("beginning", ["0", "1", "live"]), ("#2", ["1", "live"])],
)
def test_the_default_start(start: Start, connect: Connect, default: str | None, expected: list[str]) -> None:
    """Each reader that asks for no start gets the stream's default start; one that asks gets its own."""
    client = connect(start(audit(default_start=default)))
    sender = client.sender("audit")
    sender.send_all([data(0), data(1)])
    readers = [client.receiver("audit", credit=10) for _ in range(2)]
    asking = client.receiver("audit?replay-start=last", credit=10)
    sender.send_all([data("live")])
    for reader in readers:
        assert texts(reader.take(len(expected))) == expected
    assert texts(asking.take(2)) == ["1", "live"]


def test_what_a_reader_asks_for_is_its_own(client: Client) -> None:
    """
    A reader's selector applies to that reader alone, and the last message of its own history is marked. The answer's
    source has distribution mode copy, whatever was asked for, with the start and the filters in place. `until` ends a
    reader without an error.
    """
    client.sender("audit").send_all(selectable(i, third=i % 3) for i in range(20))
    for set_up in (None, browsing):
        chosen = {SELECTOR: "third = 1"}
        reader = client.receiver("audit?replay-start=%2310", filters=chosen, set_up=set_up, credit=20)
        assert reader.link.remote_source.distribution_mode == Terminus.DIST_MODE_COPY
        assert reader.start["offset"] == 10
        assert reader.filters[SELECTOR].value == chosen[SELECTOR]
        taken = reader.take(4)
        assert texts(taken) == ["10", "13", "16", "19"]
        assert [message.is_end for message in taken] == [False, False, False, True]
    assert refusal(client.receiver, "audit", filters={SELECTOR: "n ="}).name == "amqp:invalid-field"
    bounded = client.receiver("audit?replay-start=#5&until=#7")
    assert texts(bounded.take_to_end()) == ["4", "5", "6"]


def test_a_rate_slows_its_own_reader_alone(client: Client) -> None:
    """
    At two a second, a reader has got one message of twenty when another one, which asks for no rate, has got all. At a
    hundred a second, twenty messages take a fifth of a second, and none is lost.
    """
    client.sender("audit").send_all(map(data, range(20)))
    slow = client.receiver("audit?replay-start=beginning&rate=2", credit=20)
    assert texts(slow.take(1)) == ["0"]
    began = time.monotonic()
    assert texts(client.receiver("audit", filters=BEGINNING, credit=20).take(20)) == numbered(20)
    assert len(slow.arrived) <= 2 * (time.monotonic() - began) + 1
    began = time.monotonic()
    paced = client.receiver("audit?replay-start=beginning&until=now&rate=100")
    assert texts(paced.take_to_end()) == numbered(20)
    assert time.monotonic() - began >= 0.18


# --- nothing is written -------------------------------------------------------------------------------------------


def test_reading_and_acknowledging_writes_nothing(
    gateway: RunningGateway, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three readers read and accept 3,000 messages: no row is changed, nothing is committed, no file grows."""
    count = 3_000
    commits: list[int] = []
    tell = Committer._committed
    monkeypatch.setattr(
        Committer,
        "_committed",
        lambda committer, batches, error: (commits.append(1), tell(committer, batches, error)),
    )
    with Publishing(gateway.url, "audit", limit=count) as publishing:
        publishing.wait_for(count)
    gateway.restart()

    def written() -> tuple[int, int, dict[str, tuple[int, int]]]:
        changes = gateway.call(lambda g: g.vpns["default"].committer._writer._connection.total_changes)
        files = sorted((tmp_path / "data").glob("default.db*"))
        # The -shm file is shared memory, in which readers mark what they read.
        sizes = {f.name: (f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.suffix != ".db-shm"}
        return changes, len(commits), sizes

    readers = [connect(gateway).receiver("audit", filters=BEGINNING) for _ in range(3)]
    for reader in readers:
        reader.collect(taken := [], 1_000)
        assert len(taken) >= 1_000
    before = written()
    assert before[1] > 0, "commits are counted"
    for reader in readers:
        rest: list[Received] = []
        while not rest or rest[-1].id < count:
            reader.collect(rest, len(rest) + 1, credit=2_000)
        assert rest[-1].text == str(count - 1)
        reader.close()
    connect(gateway).close()
    assert written() == before


# --- deleting and administering -----------------------------------------------------------------------------------


def delete(gateway: RunningGateway, name: str) -> None:
    """Delete an endpoint as an administrator does."""
    gateway.call(lambda g: g.vpns["default"].endpoints.delete(g.vpns["default"].broker.endpoints[name]))


@pytest.mark.parametrize("exclusive", ["none", "wait"])
def test_deleting_a_stream_detaches_its_readers(start: Start, connect: Connect, exclusive: str) -> None:
    """Readers, waiting ones too, are told that the stream is gone, and get nothing more; the log stays."""
    gateway = start(audit(exclusive=exclusive))
    client = connect(gateway)
    client.sender("audit").send_all(map(data, range(5)))
    readers = [connect(gateway).receiver("audit", filters=BEGINNING, credit=2) for _ in range(3)]
    for reader in readers if exclusive == "none" else readers[:1]:
        reader.take(2)
    for reader in readers:
        reader.client.open_session()
    delete(gateway, "audit")
    for reader in readers:
        assert reader.detached_by_peer().name == "amqp:resource-deleted"
        assert not reader.arrived
    assert gateway.log_readers() == 0
    assert gateway.endpoints() == set()
    assert len(client.read_log("#queue/audit")) == 5


VPN = Vpn(
    queues={
        "audit": Queue(kind="stream", subscriptions=("a/>",)),
        "other": Queue(kind="stream", subscriptions=("a/>",)),
        "work": Queue(subscriptions=("a/>",)),
    }
)


def purge(gateway: RunningGateway, name: str) -> None:
    """Purge a stream as an administrator does; returns when that is durable."""

    async def order(running: Gateway) -> None:
        vpn = running.vpns["default"]
        await vpn.streams.purge(vpn.broker.endpoints[name])

    gateway.run_coroutine(order)


def test_a_purged_stream_begins_anew(start: Start, connect: Connect) -> None:
    """What was purged is out of its view, over restarts too; the log, other streams and queues keep all they have."""
    gateway = start(VPN)
    client = connect(gateway)
    client.sender("topic://a/1").send_all(map(data, range(5)))
    purge(gateway, "audit")
    assert client.receiver("audit", filters=BEGINNING).drain() == []
    client.sender("topic://a/1").send_all([data("new")])
    for _ in range(2):
        reader = client.receiver("audit", filters=BEGINNING)
        assert texts(reader.drain()) == ["new"]
        assert reader.start["offset"] == 6
        assert reader.link.remote_properties["rewind:replay-first"] == 6
        for untouched in ("other", "log://a/>"):
            assert len(client.receiver(untouched, filters=BEGINNING).drain()) == 6
        assert gateway.depth("work") == 6
        client = connect.again(gateway, client)


def test_starts_before_the_purge(clock: Clock, start: Start, connect: Connect) -> None:
    """Such a start is refused as one that was trimmed is, or clamped to where the view begins."""
    gateway = start(VPN)
    client = connect(gateway)
    sender = client.sender("audit")
    began = clock.ms
    sender.send_all(map(data, range(5)))
    clock.ms += 1_000
    purge(gateway, "audit")
    assert client.receiver("audit?replay-start=last").start["offset"] == 6
    sender.send_all([data("a"), data("b")])
    clock.ms += 1_000
    generation = int(client.receiver("audit").link.remote_properties["rewind:replay-generation"])
    no_message, no_time = 156, 143
    for value, subcode in (
        ({symbol("offset"): ulong(5)}, no_message),
        ({symbol("after"): format_replay_id(generation, 5)}, no_message),
        ({symbol("at"): format_replay_id(generation, 5)}, no_message),
        ({symbol("date"): timestamp(began)}, no_time),
    ):
        assert refusal(client.receiver, "audit", filters={"rewind:replay-start": value}).subcode == subcode
        clamped = {**value, symbol("missing"): symbol("clamp")}
        assert texts(client.receiver("audit", filters={"rewind:replay-start": clamped}).drain()) == ["a", "b"]
        assert client.receiver("other", filters={"rewind:replay-start": value}).start["offset"] <= 6
    assert texts(client.receiver("audit?replay-start=%236").drain()) == ["a", "b"]
    assert texts(client.receiver("audit?replay-start=last").drain()) == ["b"]
    since = {"rewind:replay-start": {symbol("date"): timestamp(began + 1_000)}}
    assert texts(client.receiver("audit", filters=since).drain()) == ["a", "b"]


def test_readers_that_were_not_through_are_told(start: Start, connect: Connect) -> None:
    """A reader that has not read all that is purged is detached with 140; one that has reads on."""
    gateway = start(VPN, Limits(tail_bytes=1))
    sender = connect(gateway).sender("audit")
    sender.send_all(map(data, range(5)))
    behind = connect(gateway).receiver("audit", filters=BEGINNING, credit=2)
    through = connect(gateway).receiver("audit", filters=BEGINNING)
    behind.take(2)
    assert len(through.drain()) == 5
    purge(gateway, "audit")
    told = behind.detached_by_peer()
    assert (told.name, told.subcode) == ("amqp:resource-deleted", 140)
    sender.send_all([data("new")])
    assert texts(through.drain()) == ["new"]


def test_a_waiting_reader_is_told_of_a_purge(gateway: RunningGateway, connect: Connect) -> None:
    """A reader whose start was purged is detached immediately, and does not wait for its turn."""
    client = connect(gateway)
    client.sender("s?kind=stream&exclusive=wait").send_all([data(1)])
    active = client.receiver("s")
    waits, live = connect(gateway).receiver("s", filters=BEGINNING), connect(gateway).receiver("s", credit=1)
    purge(gateway, "s")
    assert waits.detached_by_peer().subcode == 140
    active.close()
    client.sender("s").send_all([data(2)])
    assert texts(live.take(1)) == ["2"]


# --- Streams in the configuration, and a change of a queue's kind there -----------------------------------------------


class Declared:
    """A gateway that is run several times, with other queues declared in its configuration."""

    def __init__(self, data: Path) -> None:
        self._data = data

    @contextmanager
    def running(self, **queues: Queue) -> Iterator[Client]:
        """Run it with these queues; a client of it."""
        self.gateway = RunningGateway(settings_for(self._data, Vpn(queues=dict(queues))))
        with self.gateway, Client(self.gateway.url) as client:
            yield client


@pytest.fixture
def declared(tmp_path: Path) -> Declared:
    return Declared(tmp_path / "data")


def stream(**more: Any) -> Queue:
    return Queue(kind="stream", **more)


def test_a_declared_stream_survives_and_follows_the_configuration(declared: Declared) -> None:
    """After restarts a stream has what was sent to it, and the subscriptions that are configured now."""
    with declared.running(audit=stream(subscriptions=("a/>",))) as client:
        for topic in ("a/1", "b/1", "#queue/audit"):
            client.sender(f"topic://{topic}").send_all([data(topic)])
        assert texts(client.receiver("audit", filters=BEGINNING).drain()) == ["a/1", "#queue/audit"]
    with declared.running(audit=stream(subscriptions=("b/>",), default_start="beginning")) as client:
        assert texts(client.receiver("audit").drain()) == ["b/1", "#queue/audit"]
    with declared.running() as client:
        assert texts(client.receiver("audit").drain()) == ["b/1", "#queue/audit"], "it is kept, as queues are"


def test_a_queue_with_messages_does_not_become_a_stream(declared: Declared) -> None:
    """The gateway does not start, and says how many messages would be lost; nothing has changed."""
    orders = Queue(subscriptions=("a",))
    with declared.running(orders=orders) as client:
        client.sender("topic://a").send_all([data(i) for i in range(3)])
    at_stake = pytest.raises(StoreError, match=r"'orders' is a queue there with messages on it \(3\)")
    with at_stake, declared.running(other=Queue(), orders=stream()):
        pass
    with declared.running(orders=orders) as client:
        assert declared.gateway.endpoints() == {"orders"}, "not even what is declared in front of it was made"
        assert texts(client.receiver("orders").drain()) == ["0", "1", "2"]


def test_an_empty_queue_becomes_a_stream_and_a_stream_a_queue(declared: Declared) -> None:
    """
    An empty queue has nothing to lose: the stream shows what was sent to the queue, as it is in the log. Changed back,
    the queue is empty and live; a replay puts on it what the stream showed.
    """
    with declared.running(orders=Queue(exclusive="wait")) as client:
        client.sender("orders").send_all([data(i) for i in range(3)])
        client.receiver("orders", credit=3).take_and_accept(3)
        client.wait(lambda: declared.gateway.depth("orders") == 0, "the queue is empty")
    for _ in range(2):
        with declared.running(orders=stream()) as client:
            assert texts(client.receiver("orders", filters=BEGINNING).drain()) == ["0", "1", "2"]
            assert declared.gateway.depth("orders") == 0
    with declared.running(orders=Queue()) as client:
        client.sender("orders").send_all([data("live")])
        assert declared.gateway.depth("orders") == 1
        rewound = client.receiver("orders", filters=BEGINNING, credit=10)
        assert texts(rewound.take(4)) == ["0", "1", "2", "live"]


@pytest.mark.parametrize("kind", ["queue", "stream"])
def test_a_durable_subscription_becomes_neither(declared: Declared, kind: Any) -> None:
    """
    A durable topic endpoint of that name belongs to a client: the gateway does not start, and the endpoint is
    unchanged.
    """
    with declared.running() as client:
        client.receiver("topic://a", name="mine", durable=True).detach()
        client.sender("topic://a").send_all([data("x")])
    somebodys = pytest.raises(StoreError, match="'mine' is a durable topic endpoint")
    with somebodys, declared.running(mine=Queue(kind=kind)):
        pass
    with declared.running() as client:
        assert texts(client.receiver("topic://a", name="mine", durable=True, credit=1).take(1)) == ["x"]


# --- Exclusive streams: one reader is active, others wait, are refused, or steal --------------------------------------

EPOCH = "com.microsoft:epoch"


def settle_down(*receivers: Receiver) -> None:
    """A round trip on each connection: what the gateway had to send by now has arrived."""
    for receiver in receivers:
        receiver.client.open_session()


@pytest.fixture
def waiting(start: Start) -> RunningGateway:
    """A gateway whose stream has ten messages, 0 to 9 with the ids 1 to 10, and one reader at a time."""
    gateway = start(audit(exclusive="wait"))
    with Client(gateway.url) as client:
        client.sender("audit").send_all(map(data, range(10)))
        client.close()
    return gateway


# --- wait ---------------------------------------------------------------------------------------------------------


def test_readers_take_over_in_order_each_from_its_own_start(
    waiting: RunningGateway, connect: Connect
) -> None:
    """The first is active; the others get nothing until their turn, and then everything from their start."""
    starts = ["beginning", "%237", "last"]
    first, second, third = (
        connect(waiting).receiver(f"audit?replay-start={start}", credit=100) for start in starts
    )
    assert texts(first.take(10)) == numbered(10)
    settle_down(second, third)
    assert not second.arrived
    assert second.start["offset"] == 7
    first.close()
    assert texts(second.take(4)) == ["6", "7", "8", "9"]
    settle_down(third)
    assert not third.arrived
    second.client.cut()
    assert texts(third.take(1)) == ["9"]
    assert waiting.flows("audit") == 1


def test_a_waiting_live_reader_misses_nothing(waiting: RunningGateway, connect: Connect) -> None:
    """A reader's start is resolved at its attach: when its turn comes, it gets what was published while it waited."""
    active = connect(waiting).receiver("audit", credit=100)
    waits = connect(waiting).receiver("audit", credit=100)
    sender = connect(waiting).sender("audit")
    sender.send_all([data("meanwhile 1"), data("meanwhile 2")])
    assert texts(active.take(2)) == ["meanwhile 1", "meanwhile 2"]
    active.close()
    sender.send_all([data("after")])
    taken = waits.take(3)
    assert texts(taken) == ["meanwhile 1", "meanwhile 2", "after"]
    assert not any(message.is_end for message in taken), "it was live all the time"


def test_a_waiting_reader_can_drain(waiting: RunningGateway, connect: Connect) -> None:
    """Its drain is answered without messages, before and after others leave."""
    active, middle, last, leaves = (connect(waiting).receiver("audit", filters=BEGINNING) for _ in range(4))
    assert last.drain(5) == []
    active.close()
    assert last.drain(5) == []
    leaves.close()
    assert waiting.flows("audit") == 2
    middle.close()
    assert len(last.drain(20)) == 10


def test_the_end_of_a_bounded_reader_is_the_next_ones_turn(waiting: RunningGateway, connect: Connect) -> None:
    """A reader that reaches its `until` is detached, and the next one begins."""
    bounded = connect(waiting).receiver("audit?replay-start=beginning&until=%233")
    waits = connect(waiting).receiver("audit", filters=BEGINNING, credit=100)
    assert texts(bounded.take_to_end()) == ["0", "1", "2"]
    assert len(waits.take(10)) == 10


def test_a_waiting_reader_whose_start_is_trimmed(start: Start, connect: Connect) -> None:
    """When its turn comes, it is detached (140), and the next reader has its turn."""
    gateway = start(audit(exclusive="wait"), Limits(tail_bytes=1))
    sender = connect(gateway).sender("audit")
    sender.send_all(map(data, range(10)))
    active = connect(gateway).receiver("audit", filters=BEGINNING, credit=100)
    active.take(10)
    trimmed = connect(gateway).receiver("audit?replay-start=%233", credit=100)
    live = connect(gateway).receiver("audit", credit=100)
    trim_before(gateway, 8)
    active.client.close()
    assert trimmed.detached_by_peer().replay_refusal == MESSAGE_UNAVAILABLE
    sender.send_all([data("new")])
    assert texts(live.take(1)) == ["new"]


# --- refuse -------------------------------------------------------------------------------------------------------


def test_exclusive_refuse(start: Start, connect: Connect) -> None:
    """
    On a stream that is exclusive=refuse a second reader is refused as locked, until the first is gone. A reader whose
    start or filter is refused leaves the stream free for others.
    """
    gateway = start(audit(exclusive="refuse"))
    first, second = connect(gateway), connect(gateway)
    first.sender("audit").send_all([data("x")])
    assert refusal(second.receiver, "audit?replay-start=%2399").subcode == 156
    assert refusal(second.receiver, "audit", filters={SELECTOR: "n ="}).name == "amqp:invalid-field"
    reader = first.receiver("audit", filters=BEGINNING)
    assert refusal(second.receiver, "audit", filters=BEGINNING).name == "amqp:resource-locked"
    assert gateway.log_readers() == 1
    reader.close()
    assert texts(second.receiver("audit", filters=BEGINNING, credit=1).take(1)) == ["x"]


# --- steal --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("holder", "newcomer"), [(None, None), (1, 1), (1, 2), (0, 5), (None, 0)])
def test_exclusive_steal(start: Start, connect: Connect, holder: int | None, newcomer: int | None) -> None:
    """A reader of an equal or higher epoch takes over, from its own start, and the first is detached."""
    gateway = start(audit(exclusive="steal"))
    first, second = connect(gateway), connect(gateway)
    first.sender("audit").send_all(map(data, range(3)))
    robbed = first.receiver("audit", filters=BEGINNING, credit=2, set_up=with_properties({EPOCH: holder}))
    robbed.take(2)
    thief = second.receiver("audit", filters=BEGINNING, credit=3, set_up=with_properties({EPOCH: newcomer}))
    assert robbed.detached_by_peer().name == "amqp:link:stolen"
    assert texts(thief.take(3)) == ["0", "1", "2"]
    assert (gateway.flows("audit"), gateway.log_readers()) == (1, 1)
    lower = with_properties({EPOCH: -1})
    assert refusal(first.receiver, "audit", set_up=lower).name == "amqp:link:stolen"
    first.sender("audit").send_all([data("x")])
    thief.flow(1)
    assert texts(thief.take(1)) == ["x"], "a lower epoch steals nothing"
