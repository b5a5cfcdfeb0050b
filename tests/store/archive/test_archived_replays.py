"""Replays onto endpoints out of the archive: put once, in order, and none lost or doubled by a stop."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import Queue, ReplayLog
from store.sqlite.check import check
from tests.gateway.amqp.conftest import Connect
from tests.store.archive.begun import SMALL, Begin, Past, accept, administered, numbers, of_a
from tests.support.client import Client, texts
from tests.support.messages import data

pytestmark = pytest.mark.spark


def test_an_endpoint_replay_from_the_archive(past: Past) -> None:
    """History from the archive, then from the log, then live, once and in order; and the store is as it must be."""
    gateway, archive, client = past(0, queues=of_a(max_unsettled=7))
    sender = client.sender("topic://a")
    sender.send_all([data(i) for i in range(50)])
    first = client.receiver("q", credit=50)
    accept(first, 50)
    first.close()
    archive.archive_and_trim(31)
    receiver = client.receiver("q?replay-start=beginning", credit=500)
    taken = accept(receiver, 20)
    sender.send_all([data(i) for i in range(50, 60)])
    taken += accept(receiver, 40)
    assert texts(taken) == numbers(0, 60)
    assert [message.id for message in taken] == list(range(1, 61))
    assert [message.delivery_count for message in taken] == [0] * 60
    assert sum(message.is_end for message in taken) == 1
    client.wait(lambda: gateway.replay_state("q") == "complete", "the replay is complete")
    settled = gateway.call(lambda running: running.vpns["default"].counters.settled_messages)
    assert settled == 50 + 60


@pytest.mark.parametrize("accepted", [0, 3, 12, 33])
def test_a_stop_loses_nothing_of_a_replay(begin: Begin, accepted: int) -> None:
    """What was put out of the archive and not acknowledged is put again, and nothing that was; twice over."""
    gateway, archive = begin(SMALL, queues=of_a(max_unsettled=9))
    with Client(gateway.url) as client:
        client.sender("topic://a").send_all([data(i) for i in range(60)])
        archive.archive()
        archive.trim(31)
        receiver = client.receiver("q?replay-start=beginning", credit=500)
        done = texts(accept(receiver, accepted))
        # One is left out, behind which others are acknowledged.
        _, *others = receiver.take(6)
        receiver.settle(others)
        done += texts(others)
        archive.trim(45)
        client.close()
    gateway.restart()
    archive.archive()
    archive.trim(50)
    with Client(gateway.url) as client:
        receiver = client.receiver("q", credit=500)
        done += texts(accept(receiver, 5))
        client.close()
    gateway.restart()
    with Client(gateway.url) as client:
        receiver = client.receiver("q", credit=500)
        done += texts(accept(receiver, 60 - len(done)))
        assert sorted(done, key=int) == numbers(0, 60)
        client.wait(lambda: gateway.replay_state("q") == "complete", "the replay is complete")


def test_a_stop_loses_nothing_that_an_earlier_gateway_trimmed(begin: Begin) -> None:
    """A replay that began after the gateway that trimmed the log has ended, is stopped: all of it is put again."""
    gateway, archive = begin(SMALL, queues=of_a())
    with Client(gateway.url) as client:
        client.sender("topic://a").send_all([data(i) for i in range(60)])
        archive.archive_and_trim(41)
        client.close()
    gateway.restart()
    with Client(gateway.url) as client:
        done = texts(accept(client.receiver("q?replay-start=beginning", credit=500), 10))
        with administered(gateway) as api:
            refused = api.refused("PUT", "action", "/queues/q/cancelReplay", {"forceComplete": True})
            assert "are in the log's archive alone" in refused["description"]
        client.close()
    gateway.restart()
    with Client(gateway.url) as client:
        done += texts(accept(client.receiver("q", credit=500), 50))
        assert done == numbers(0, 60)
        client.wait(lambda: gateway.replay_state("q") == "complete", "the replay is complete")


def test_trimming_overtakes_a_replay(past: Past) -> None:
    """A replay under which the log is trimmed goes on in the archive: no gap, no duplicate, and nothing is left."""
    gateway, archive, client = past(80, queues=of_a(max_unsettled=6))
    receiver = client.receiver("q?replay-start=beginning", credit=500)
    taken = receiver.take(6)
    archive.archive_and_trim(40)
    receiver.settle(taken)
    taken += accept(receiver, 10)
    archive.trim(70)
    taken += accept(receiver, 64)
    assert texts(taken) == numbers(0, 80)
    client.wait(lambda: gateway.replay_state("q") == "complete", "the replay is complete")
    assert gateway.depth("q") == 0


def test_a_replay_that_is_overtaken_by_what_is_lost_fails(past: Past) -> None:
    """What was trimmed and is in no archive, is not put, though it was read before: nobody could deliver it again."""
    _, archive, client = past(80, queues=of_a(max_unsettled=6))
    receiver = client.receiver("q?replay-start=beginning", credit=500)
    taken = receiver.take(6)
    archive.archive(9)
    archive.trim(40)
    receiver.settle(taken)
    while not client.is_detached(receiver.link):
        client.wait(lambda: receiver.arrived or client.is_detached(receiver.link), "more, or the end")
        while receiver.arrived:
            taken += accept(receiver, 1)
    assert receiver.detached_by_peer().subcode == 140
    assert len(taken) <= 9
    assert texts(taken) == numbers(0, len(taken))


def test_what_another_queue_holds_is_not_let_go_of(past: Past) -> None:
    """A replay that acknowledges a trimmed message takes it from nobody for whom the store still holds it."""
    queues = {name: Queue(subscriptions=("a",)) for name in ("q", "other")}
    gateway, archive, client = past(30, queues=queues)
    first = client.receiver("q", credit=30)
    accept(first, 30)
    first.close()
    archive.archive_and_trim(25)
    assert texts(client.receiver("q?replay-start=beginning", credit=50).take_and_accept(30)) == numbers(0, 30)
    assert texts(client.receiver("other", credit=50).take_and_accept(30)) == numbers(0, 30)
    client.wait(lambda: gateway.depth("other") == 0, "the other queue is empty")


@pytest.mark.parametrize("restarts", [False, True])
def test_what_is_kept_is_not_brought_by_the_archive_too(
    begin: Begin, connect: Connect, restarts: bool
) -> None:
    """
    A replay that keeps what the log does not have begins before the log: what was consumed comes out of the archive,
    what was trimmed and still lay there stays as it was, with its failed deliveries, and each comes once, in its place.
    """
    log = ReplayLog(topics=("a",))
    gateway, archive = begin(SMALL, log, queues={"q": Queue(subscriptions=("a", "b"), max_unsettled=20)})
    with Client(gateway.url) as client:
        logged, other = client.sender("topic://a"), client.sender("topic://b")
        for i in range(40):
            (other if i % 5 == 0 else logged).send_all([data(i)])
        first = client.receiver("q", credit=20)
        taken = first.take(20)
        first.settle([message for message in taken if int(message.text) % 2])
        client.wait(lambda: gateway.depth("q") == 30, "settlements arrive")
        first.close()
        archive.archive_and_trim(35)
        with administered(gateway) as api:
            api.done("PUT", "action", "/queues/q/startReplay", {"start": "beginning", "keepUnlogged": True})
        if restarts:
            gateway.restart()
    client = connect(gateway)
    brought = {i for i in range(40) if i % 5}
    kept = {i for i in range(34) if i >= 20 or i % 2 == 0} | {i for i in range(40) if i % 5 == 0 and i >= 20}
    taken = accept(client.receiver("q", credit=50), len(brought | kept))
    assert [int(message.text) for message in taken] == sorted(brought | kept)
    failed = {int(message.text): message.delivery_count for message in taken if message.delivery_count}
    assert failed == dict.fromkeys(range(0, 20, 2), 1)
    marked = {int(message.text) for message in taken if "x-opt-replay-name" in message.annotations}
    assert marked == brought - kept
    client.wait(lambda: gateway.replay_state("q") == "complete", "the replay is complete")
    assert gateway.depth("q") == 0


def test_what_the_log_does_not_take_has_its_place(past: Past) -> None:
    """A message that a queue alone holds comes between those of the archive, when the log was trimmed beyond it."""
    log = ReplayLog(topics=("a",))
    gateway, archive, client = past(
        0, log=log, queues={"q": Queue(subscriptions=("a", "b"), max_unsettled=4)}
    )
    logged, other = client.sender("topic://a"), client.sender("topic://b")
    logged.send_all([data(i) for i in range(10)])
    receiver = client.receiver("q?replay-start=beginning", credit=500)
    taken = receiver.take(4)
    for i in range(10, 40):
        (other if i % 5 == 0 else logged).send_all([data(i)])
    archive.archive_and_trim(41)
    receiver.settle(taken)
    taken += accept(receiver, 36)
    assert texts(taken) == numbers(0, 40)
    client.wait(lambda: gateway.depth("q") == 0, "all is acknowledged")


def test_what_is_given_back_comes_again_from_the_archive(past: Past) -> None:
    """Released in memory's stead, with its delivery-count; rejected, it goes to the dead message queue."""
    queue = Queue(subscriptions=("a",), dead_message_queue="dead")
    gateway, _, client = past(30, 31, queues={"q": queue})
    receiver = client.receiver("q?replay-start=beginning", credit=30)
    taken = receiver.take(30)
    receiver.modify(taken[:5], failed=True)
    receiver.settle(taken[5:29])
    receiver.update(taken[29:], 0x25)
    receiver.settle(taken[29:], None)
    receiver.flow(30)
    again = accept(receiver, 5)
    assert texts(again) == numbers(0, 5)
    assert [message.delivery_count for message in again] == [1] * 5
    assert texts(client.receiver("dead", credit=1).take_and_accept(1)) == ["29"]
    client.wait(lambda: gateway.replay_state("q") == "complete", "the replay is complete")


def test_failed_deliveries_out_of_the_archive_are_not_written(past: Past, tmp_path: Path) -> None:
    """To the store they would be of messages that do not exist; those of messages that it has are."""
    gateway, _, client = past(20, 11, queues=of_a())
    receiver = client.receiver("q?replay-start=beginning", credit=20)
    receiver.modify(receiver.take(20), failed=True)
    receiver.flow(20)
    assert [message.delivery_count for message in receiver.take(20)] == [1] * 20
    client.close()
    gateway.stop()
    assert check(tmp_path / "data" / "default.db") == []
    gateway.start()
    with Client(gateway.url) as again:
        taken = accept(again.receiver("q", credit=20), 20)
        assert texts(taken) == numbers(0, 20)
        assert [message.delivery_count for message in taken] == [0] * 10 + [1] * 10
        again.close()


def test_what_only_the_archive_has_is_not_kept_by_force(past: Past) -> None:
    """A replay is not force-completed over messages that the store could not deliver afterwards; it is cancelled."""
    gateway, _, client = past(30, 20, queues=of_a())
    receiver = client.receiver("q?replay-start=beginning", credit=3)
    receiver.take(3)
    with administered(gateway) as api:
        refused = api.refused("PUT", "action", "/queues/q/cancelReplay", {"forceComplete": True})
        assert "are in the log's archive alone" in refused["description"]
        api.done("PUT", "action", "/queues/q/cancelReplay", {})
    assert gateway.replay_state("q") == "failed"
