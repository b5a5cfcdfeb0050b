"""Replays while they are under way and afterwards: cancelled or forced, marked, and on record."""

from __future__ import annotations

import logging
from dataclasses import replace
from unittest.mock import patch

import pytest
import structlog
from proton import Described, symbol
from structlog.testing import capture_logs

from amqp_ext.message.annotations import REPLAY_NAME
from gateway.app import Gateway
from gateway.config import Limits, Queue, Vpn
from gateway.core.effects import SaveReplayRecord
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import ReplayRecord
from gateway.vpn.message_vpn import MessageVpn
from tests.gateway.amqp.conftest import Clock, Connect, Start
from tests.support.client import SELECTOR, Client, Received, numbered, refusal, texts
from tests.support.messages import annotated, data
from tests.support.running import RunningGateway

# --- Ending a replay early: cancelled, force-completed, replaced; and its state afterwards ----------------------------

FROM_BEGINNING = "orders?replay-start=beginning"


def publish(client: Client, first: int, last: int, address: str = "orders") -> None:
    client.sender(address).send_all([data(i) for i in range(first, last)])


# --- cancel -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_a_cancelled_replay(
    gateway: RunningGateway, client: Client, connect: Connect, restarted: bool
) -> None:
    """
    Its consumer's link is detached (detach-forced, `cancelled`, 142), and it has failed. None of its messages is on the
    queue, which is live from then on, in depth and bytes too, also over a restart; it can be replayed again
    immediately.
    """
    publish(client, 0, 3_000)
    receiver = client.receiver(FROM_BEGINNING, credit=100)
    receiver.settle(receiver.take(100)[:10])
    client.wait(lambda: gateway.replay("orders").acknowledged == 10, "settlements arrive")
    gateway.cancel_replay("orders")
    refused = receiver.detached_by_peer()
    assert refused.name == "amqp:link:detach-forced"
    assert (refused.replay_error, refused.subcode) == ("cancelled", 142)
    assert gateway.depth("orders") == 0
    publish(client, 3_000, 3_010)
    if restarted:
        client = connect.again(gateway, client)
    replay = gateway.replay("orders")
    assert (replay.state.value, replay.totals.last_failure) == ("failed", "it was cancelled")
    assert (replay.totals.started, replay.totals.succeeded, replay.totals.failed) == (1, 0, 1)
    assert gateway.depth("orders") == 10
    live = client.receiver("orders")
    assert texts(live.drain()) == numbered(3_000, 3_010)
    live.close()
    client.receiver(FROM_BEGINNING).collect(taken := [], 3_010)
    assert texts(taken) == numbered(3_010)
    client.wait(lambda: gateway.replay_state("orders") == "complete", "the replay is complete")
    record = gateway.replay("orders").totals
    assert (record.started, record.succeeded, record.failed) == (2, 1, 1)
    assert record.transmitted >= 3_020
    assert record.acknowledged == 3_020


def test_a_replay_can_be_cancelled_before_it_has_begun(gateway: RunningGateway, client: Client) -> None:
    """
    A replay that waits for the queue to be emptied can be cancelled, not forced: none of its messages is delivered.
    """
    publish(client, 0, 10)

    def start_and_cancel(running: Gateway) -> list[str]:
        vpn = running.vpns["default"]
        endpoint = vpn.broker.endpoints["orders"]
        vpn.replays.start(endpoint, 1, None)
        assert endpoint.replay is not None
        states = [endpoint.replay.state.value]
        with pytest.raises(Refused, match="is initializing"):
            vpn.replays.cancel(endpoint, force_complete=True)
        vpn.replays.cancel(endpoint)
        return [*states, endpoint.replay.state.value]

    assert gateway.call(start_and_cancel) == ["initializing", "failed"]
    assert client.receiver("orders").drain() == []
    publish(client, 10, 12)
    assert texts(client.receiver("orders").drain()) == numbered(10, 12)


@pytest.mark.parametrize("force_complete", [False, True])
def test_nothing_to_cancel(gateway: RunningGateway, client: Client, force_complete: bool) -> None:
    """Without a replay under way a cancel is refused, and the text names the state."""
    publish(client, 0, 10)
    with pytest.raises(Refused, match="its state is n/a") as refused:
        gateway.cancel_replay("orders", force_complete=force_complete)
    assert refused.value.code is ErrorCode.PRECONDITION_FAILED
    assert len(client.receiver(FROM_BEGINNING, credit=10).take_and_accept(10)) == 10
    client.wait(lambda: gateway.replay_state("orders") == "complete", "the replay is complete")
    with pytest.raises(Refused, match="its state is complete"):
        gateway.cancel_replay("orders", force_complete=force_complete)


# --- force-complete -----------------------------------------------------------------------------------------------


def test_a_forced_replay_keeps_what_it_had_put(gateway: RunningGateway, client: Client) -> None:
    """
    Once force-completed, a replay reads no further. What it had put stays, marked as history; its consumer goes on, and
    live messages follow.
    """
    publish(client, 0, 4_000)
    receiver = client.receiver(f"{FROM_BEGINNING}&replay-name=r", credit=100)
    receiver.take_and_accept(100)
    gateway.cancel_replay("orders", force_complete=True)
    client.wait(lambda: gateway.replay_state("orders") == "complete", "the replay is complete")
    left = gateway.depth("orders")
    assert 0 < left < 3_900
    publish(client, 4_000, 4_010)
    receiver.collect(taken := [], left + 10)
    history, live = numbered(100, 100 + left), numbered(4_000, 4_010)
    assert texts(taken) == history + live
    assert marks(taken) == dict.fromkeys(history, "r") | dict.fromkeys(live)
    assert receiver.drain(0) == []
    record = gateway.replay("orders").totals
    assert (record.started, record.succeeded, record.failed) == (1, 1, 0)


# --- the status of a replay ---------------------------------------------------------------------------------------


def test_a_selector_that_keeps_a_replay_from_completing(start: Start, connect: Connect) -> None:
    """A selector that leaves all replayed messages on the queue is reported in the log, once, and in the status."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    with capture_logs() as lines:
        gateway = start()
        client = connect(gateway)
        publish(client, 0, 30)
        receiver = client.receiver(FROM_BEGINNING, filters={SELECTOR: "JMSPriority > 7"}, credit=30)
        client.wait(lambda: gateway.replay("orders").is_blocked, "it is noticed")
        assert receiver.drain(0) == []
    said = [line for line in lines if line["event"] == "replay_blocked_by_selector"]
    assert [(line["endpoint"], line["messages"], line["log_level"]) for line in said] == [
        ("orders", 30, "warning")
    ]
    assert gateway.replay_state("orders") == "pending-complete"
    receiver.close()
    client.receiver("orders").collect([], 30)
    client.wait(lambda: gateway.replay_state("orders") == "complete", "another consumer completes it")
    assert not gateway.replay("orders").is_blocked


def test_a_selector_that_takes_all_is_not_warned_of(gateway: RunningGateway, client: Client) -> None:
    """A consumer that is merely slow, or whose selector matches all, does not keep the replay from completing."""
    publish(client, 0, 30)
    receiver = client.receiver(FROM_BEGINNING, filters={SELECTOR: "JMSPriority = 4"}, credit=10)
    taken = receiver.take(10)
    assert not gateway.replay("orders").is_blocked
    receiver.settle(taken)
    receiver.collect(taken, 30)
    client.wait(lambda: gateway.replay_state("orders") == "complete", "the replay is complete")
    assert not gateway.replay("orders").is_blocked


def test_counters_and_progress(clock: Clock, gateway: RunningGateway, client: Client) -> None:
    """The messages transmitted, acknowledged and remaining, and the time left at this pace, are known at any time."""
    publish(client, 0, 4_000)
    begun = clock.ms
    receiver = client.receiver(FROM_BEGINNING, credit=200)
    taken = receiver.take(200)
    clock.ms += 10_000
    receiver.settle(taken[:150])
    client.wait(lambda: gateway.replay("orders").totals.acknowledged == 150, "settlements arrive")
    replay = gateway.replay("orders")
    assert replay.state.value == "active"
    assert replay.totals.transmitted == 200
    assert replay.totals.last_started_ms == begun
    progress = replay.progress(4_001, clock.ms)
    assert progress.position + progress.remaining == 4_001
    assert progress.outstanding == replay.put - 150
    assert progress.eta_ms == 10_000 * progress.remaining // (progress.position - 1)
    receiver.flow(400)
    receiver.collect(taken, 4_000)
    receiver.settle(taken[150:200])
    client.wait(lambda: gateway.replay_state("orders") == "complete", "the replay is complete")
    replay = gateway.replay("orders")
    assert replay.totals.acknowledged == replay.totals.transmitted == 4_000
    assert replay.totals.last_completed_ms == clock.ms
    assert replay.progress(4_001, clock.ms) == (4_001, 0, 0, None)


# --- The mark of replayed messages: which ones have it, on endpoints, for readers, in batches -------------------------


def marks(messages: list[Received]) -> dict[str, object]:
    """The replay name of each message, by its text."""
    return {message.text: message.annotations.get(REPLAY_NAME) for message in messages}


def test_what_was_there_before_is_marked_and_what_came_since_is_not(client: Client) -> None:
    """
    History has the name that was given. A message published while the replay is under way is delivered for the first
    time, wherever the replay is: a consumer that skips marked messages must not lose it.
    """
    publish(client, 0, 3_000)
    receiver = client.receiver("orders?replay-start=beginning&replay-name=nightly", credit=100)
    taken = receiver.take_and_accept(100)
    publish(client, 3_000, 3_050)
    receiver.flow(5_000)
    receiver.collect(taken, 3_050)
    publish(client, 3_050, 3_060)
    receiver.collect(taken, 3_060)
    assert texts(taken) == numbered(3_060)
    assert marks(taken) == {str(i): "nightly" if i < 3_000 else None for i in range(3_060)}


def test_a_name_is_made_where_none_is_given(gateway: RunningGateway, connect: Connect) -> None:
    """Of the user, the container and the time: the message shows who asked for the replay."""
    client = connect(gateway, container="shop-1")
    publish(client, 0, 1)
    (message,) = client.receiver("orders?replay-start=beginning", credit=1).take(1)
    name = message.annotations[REPLAY_NAME]
    assert isinstance(name, str)
    assert name.startswith("anonymous@shop-1 2")
    assert gateway.replay("orders").name == name


def test_what_was_not_acknowledged_is_marked_again(gateway: RunningGateway, connect: Connect) -> None:
    """
    A redelivery, after a failure or a lost consumer, has its delivery-count and its mark. Messages that a restarted
    gateway puts again have the same name.
    """
    client = connect(gateway)
    publish(client, 0, 50)
    first = client.receiver("orders?replay-start=beginning&replay-name=r", credit=30)
    first.settle(first.take(30)[:20])
    first.close()
    client.wait(lambda: gateway.replay("orders").acknowledged == 20, "settlements arrive")
    again = client.receiver("orders", credit=15)
    taken = again.take(15)
    assert marks(taken) == dict.fromkeys(numbered(20, 35), "r")
    assert [message.delivery_count for message in taken] == [1] * 10 + [0] * 5
    client = connect.again(gateway, client)
    publish(client, 50, 52)
    client.receiver("orders", credit=100).collect(found := [], 32)
    assert marks(found) == {str(i): "r" if i < 50 else None for i in range(20, 52)}


@pytest.mark.parametrize("link", ["log", "stream"])
def test_a_reader_that_names_its_replay_has_history_marked(link: str, start: Start, connect: Connect) -> None:
    """Readers of the log and of a stream give a name in the address or in the filter; without one there is no mark."""
    gateway = start(Vpn(queues={"s": Queue(kind="stream", subscriptions=("a/>",))}))
    client = connect(gateway)
    publish(client, 0, 5, "topic://a/b")
    address = "log://a/b" if link == "log" else "s"
    named = client.receiver(f"{address}?replay-start=beginning&replay-name=look%20back", credit=10)
    assert marks(named.take(5)) == dict.fromkeys("01234", "look back")
    publish(client, 5, 6, "topic://a/b")
    assert marks(named.take(1)) == {"5": None}
    asked = Described(
        symbol("rewind:replay-start"), {symbol("from"): "beginning", symbol("name"): "by filter"}
    )
    filtered = client.receiver(address, filters={"rewind:replay-start": asked}, credit=10)
    assert marks(filtered.take(6)) == dict.fromkeys("012345", "by filter")
    plain = client.receiver(f"{address}?replay-start=beginning", credit=10)
    assert marks(plain.take(6)) == dict.fromkeys("012345")
    start_named = f"{address}?replay-start=beginning&replay-name=look"
    marked, unmarked = "amqp.annotation.x-opt-replay-name = 'look'", '"m.x-opt-replay-name" IS NULL'
    history, fresh = (
        client.receiver(start_named, filters={SELECTOR: chosen}, credit=9) for chosen in (marked, unmarked)
    )
    assert marks(history.take(6)) == dict.fromkeys("012345", "look")
    publish(client, 6, 8, "topic://a/b")
    assert marks(fresh.take(2)) == dict.fromkeys("67")
    assert history.drain() == []


def test_a_name_that_is_on_record_is_refused(gateway: RunningGateway, client: Client) -> None:
    """So that a name identifies one replay. Nothing is dropped, and the queue stays as it was."""
    publish(client, 0, 3)
    receiver = client.receiver("orders?replay-start=beginning&replay-name=r", credit=3)
    receiver.take_and_accept(3)
    client.wait(lambda: gateway.replay_state("orders") == "complete", "it is complete")
    receiver.close()
    publish(client, 3, 5)
    refused = refusal(client.receiver, "orders?replay-start=beginning&replay-name=r")
    assert "on record already" in refused.text
    assert gateway.depth("orders") == 2
    assert gateway.replay_state("orders") == "complete"


def test_a_name_that_nobody_could_read_is_refused(client: Client) -> None:
    """It is written into records, log lines and messages."""
    for name in ("%0A", "%20", "x" * 201):
        refused = refusal(client.receiver, f"orders?replay-start=beginning&replay-name={name}")
        assert refused.replay_error == "unknown-start"


def test_a_selector_sees_the_mark_of_a_copy_and_not_that_of_a_replay(client: Client) -> None:
    """A selector sees the message as stored; the mark of a replay onto the queue is added when it is sent."""
    client.sender("orders").send_all([data(0), annotated(data(1), **{REPLAY_NAME: "copied"})])
    wanted, unwanted = ({SELECTOR: f"\"m.x-opt-replay-name\" = '{name}'"} for name in ("copied", "r"))
    receiver = client.receiver("orders?replay-start=beginning&replay-name=r", filters=wanted, credit=9)
    (found,) = receiver.take(1)
    assert (found.text, found.annotations[REPLAY_NAME]) == ("1", "r")
    assert client.receiver("log://>?replay-start=beginning", filters=unwanted, credit=9).drain() == []


# --- Who replayed what: records of endpoints' replays, from their beginning to how they ended -------------------------


def records(gateway: RunningGateway) -> list[ReplayRecord]:
    def look(vpn: MessageVpn) -> list[ReplayRecord]:
        vpn.replays.records.refresh_all()
        return list(vpn.broker.replay_records)

    return gateway.ask(look)


def test_a_replay_goes_on_record_with_who_asked_and_what_came_of_it(
    gateway: RunningGateway, connect: Connect
) -> None:
    """Start, counts, bytes and times; while it is under way, its progress so far."""
    client = connect(gateway, container="shop")
    publish(client, 0, 5)
    receiver = client.receiver("orders?replay-start=%233&replay-name=r", credit=1)
    receiver.take_and_accept(1)
    client.wait(lambda: gateway.replay_state("orders") == "pending-complete", "all was read")
    (record,) = records(gateway)
    assert (record.number, record.name, record.kind) == (1, "r", "endpoint")
    assert record.requester == "anonymous@shop"
    assert (record.start, record.target, record.state) == ("#3", "orders", "pending-complete")
    assert (record.position, record.read, record.sent, record.ended_ms) == (6, 3, 3, 0)
    assert record.size_bytes == 3 * len(data(0))
    receiver.flow(5)
    receiver.take_and_accept(2)
    client.wait(lambda: records(gateway)[0].is_ended, "it is complete")
    (record,) = records(gateway)
    assert (record.state, record.outcome) == ("complete", "every message was acknowledged")
    assert record.ended_ms >= record.started_ms > 0
    client.close()
    gateway.restart()
    assert records(gateway) == [record]


def test_how_replays_end_is_on_record(gateway: RunningGateway, connect: Connect) -> None:
    """Cancelled, forced, replaced by another, or ended by the deletion of its endpoint; each once, in order."""
    client = connect(gateway)
    publish(client, 0, 9)
    gateway.start_replay("orders", "beginning")
    gateway.cancel_replay("orders")
    gateway.start_replay("orders", "beginning")
    gateway.start_replay("orders", "#2")
    totals = gateway.replay("orders").totals
    assert (totals.started, totals.succeeded, totals.failed) == (3, 0, 2)
    assert totals.last_failure == "a new replay took its place"
    client.wait(lambda: gateway.replay_state("orders") == "pending-complete", "all was read")
    gateway.cancel_replay("orders", force_complete=True)
    gateway.start_replay("orders", "#3")
    gateway.call(lambda g: g.vpns["default"].endpoints.delete(g.vpns["default"].broker.endpoints["orders"]))
    assert [(record.number, record.state, record.outcome) for record in records(gateway)] == [
        (1, "cancelled", "it was cancelled"),
        (2, "cancelled", "a new replay took its place"),
        (3, "complete", "it was completed by force"),
        (4, "cancelled", "its endpoint was deleted"),
    ]
    before = records(gateway)
    client.close()
    gateway.restart()
    assert records(gateway) == before


def test_replays_that_are_asked_for_again_and_again_fill_nothing(start: Start, connect: Connect) -> None:
    """Any consumer of a queue can ask for replays without end: records of past ones are kept up to a limit."""
    gateway = start(limits=Limits(replay_records=3))
    client = connect(gateway)
    publish(client, 0, 1)
    for _ in range(10):
        client.receiver("orders?replay-start=beginning").close()
    for _ in range(2):
        assert [record.number for record in records(gateway)] == [8, 9, 10]
        client.close()
        gateway.restart()


def test_how_far_a_replay_is_is_written_where_that_has_changed(
    gateway: RunningGateway, connect: Connect
) -> None:
    """A replay that makes no progress writes nothing."""
    client = connect(gateway)
    publish(client, 0, 5)
    gateway.start_replay("orders", "beginning")
    client.wait(lambda: gateway.replay_state("orders") == "pending-complete", "all was read")
    (record,) = records(gateway)

    def saved(vpn: MessageVpn, before: ReplayRecord) -> list[object]:
        found: list[object] = []
        vpn.broker.replay_records.put(before)
        with patch.object(vpn.replays.records._committer, "commit_when_convenient", found.append):
            vpn.replays.records.save_progress(vpn.broker.endpoints["orders"])
        return found

    assert gateway.ask(lambda vpn: saved(vpn, replace(record, position=2))) == [SaveReplayRecord(record)]
    assert gateway.ask(lambda vpn: saved(vpn, record)) == []
