"""Purging a stream: its view begins anew, and nobody else loses anything."""

from __future__ import annotations

from proton import symbol, timestamp, ulong

from amqp_ext.replay_id import format_replay_id
from gateway.app import Gateway
from gateway.config import Limits, Queue, Vpn
from tests.gateway.amqp.conftest import Clock, Connect, Start
from tests.support.client import refusal, texts
from tests.support.messages import data
from tests.support.running import RunningGateway

BEGINNING = {"rewind:replay-start": "beginning"}

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
    """What it showed is out of its view, over restarts; the log, other streams and queues keep all they have."""
    gateway = start(VPN)
    client = connect(gateway)
    client.sender("topic://a/1").send_all([data(i) for i in range(5)])
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
        client.close()
        gateway.restart()
        client = connect(gateway)


def test_starts_before_the_purge(clock: Clock, start: Start, connect: Connect) -> None:
    """What was purged is not there to start at: refused as what was trimmed is, or clamped to where the view begins."""
    gateway = start(VPN)
    client = connect(gateway)
    sender = client.sender("audit")
    began = clock.ms
    sender.send_all([data(i) for i in range(5)])
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
    """A reader behind the purge, or waiting to be, is detached with 140; one that had read all reads on."""
    gateway = start(VPN, Limits(tail_bytes=1))
    sender = connect(gateway).sender("audit")
    sender.send_all([data(i) for i in range(5)])
    behind, through = (connect(gateway).receiver("audit", filters=BEGINNING) for _ in range(2))
    behind.flow(2)
    behind.take(2)
    assert len(through.drain()) == 5
    purge(gateway, "audit")
    told = behind.detached_by_peer()
    assert (told.name, told.subcode) == ("amqp:resource-deleted", 140)
    sender.send_all([data("new")])
    assert texts(through.drain()) == ["new"]


def test_a_waiting_reader_is_told_of_a_purge(gateway: RunningGateway, connect: Connect) -> None:
    """A reader whose turn has not come, and whose start was purged, need not wait for it."""
    client = connect(gateway)
    client.sender("s?kind=stream&exclusive=wait").send_all([data(1)])
    active = client.receiver("s")
    waits, live = connect(gateway).receiver("s", filters=BEGINNING), connect(gateway).receiver("s", credit=1)
    purge(gateway, "s")
    assert waits.detached_by_peer().subcode == 140
    active.close()
    client.sender("s").send_all([data(2)])
    assert texts(live.take(1)) == ["2"]
