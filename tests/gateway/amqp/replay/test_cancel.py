"""Ending a replay before its end: cancelled, force-completed, replaced; and what is said of it afterwards."""

from __future__ import annotations

import logging

import pytest
import structlog
from structlog.testing import capture_logs

from gateway.app import Gateway
from gateway.config import Queue, ReplayLog, Vpn
from gateway.core.errors import ErrorCode, Refused
from tests.gateway.amqp.conftest import Clock, Connect, Start
from tests.support.client import Client, Received, numbered, texts
from tests.support.messages import data
from tests.support.running import RunningGateway

FROM_BEGINNING = "orders?replay-start=beginning"


def selector(text: str) -> dict[str, str]:
    return {"apache.org:selector-filter:string": text}


def publish(client: Client, first: int, last: int, address: str = "orders") -> None:
    client.sender(address).send_all([data(i) for i in range(first, last)])


# --- cancel -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
def test_a_cancelled_replay(
    gateway: RunningGateway, client: Client, connect: Connect, restarted: bool
) -> None:
    """
    It ends with its consumer's link, detach-forced, `cancelled`, 142, and has failed. Nothing of it lies on the queue,
    which is live from then on, in depth and bytes too, over a restart as well; and it can be replayed anew at once.
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
        client.close()
        gateway.restart()
        client = connect(gateway)
    replay = gateway.replay("orders")
    assert (replay.state.value, replay.totals.last_failure) == ("failed", "it was cancelled")
    assert (replay.totals.started, replay.totals.succeeded, replay.totals.failed) == (1, 0, 1)
    assert gateway.depth("orders") == 10
    live = client.receiver("orders")
    assert texts(live.drain()) == numbered(3_000, 3_010)
    live.close()
    taken: list[Received] = []
    client.receiver(FROM_BEGINNING).collect(taken, 3_010)
    assert texts(taken) == numbered(3_010)
    client.wait(lambda: gateway.replay_state("orders") == "complete", "the replay is complete")
    record = gateway.replay("orders").totals
    assert (record.started, record.succeeded, record.failed) == (2, 1, 1)
    assert record.transmitted >= 3_020
    assert record.acknowledged == 3_020


@pytest.mark.parametrize("force_complete", [False, True])
def test_a_replay_that_has_put_all(gateway: RunningGateway, client: Client, force_complete: bool) -> None:
    """
    Pending complete, it can still be cancelled: its unacknowledged messages go, and live ones stay. Forced, it is
    complete, and nothing is lost of what lies on the queue.
    """
    publish(client, 0, 50)
    receiver = client.receiver(FROM_BEGINNING, credit=20)
    receiver.take_and_accept(20)
    client.wait(lambda: gateway.replay_state("orders") == "pending-complete", "all was read")
    publish(client, 50, 60)
    gateway.cancel_replay("orders", force_complete=force_complete)
    assert gateway.replay_state("orders") == ("complete" if force_complete else "failed")
    if force_complete:
        taken: list[Received] = []
        receiver.collect(taken, 40)
        assert texts(taken) == numbered(20, 60)
    else:
        assert receiver.detached_by_peer().subcode == 142
        assert gateway.depth("orders") == 10
        assert texts(client.receiver("orders").drain()) == numbered(50, 60)


def test_what_the_log_did_not_take_outlives_a_cancel(start: Start, connect: Connect) -> None:
    """Accepted messages of topics that are not logged have no other place than the queue: a cancel leaves them."""
    vpn = Vpn(replay_log=ReplayLog(topics=("a/logged",)), queues={"orders": Queue(subscriptions=("a/>",))})
    gateway = start(vpn)
    client = connect(gateway)
    publish(client, 0, 2_000, "topic://a/logged")
    receiver = client.receiver(FROM_BEGINNING, credit=10)
    receiver.take_and_accept(10)
    publish(client, 2_000, 2_005, "topic://a/other")
    gateway.cancel_replay("orders")
    receiver.detached_by_peer()
    assert texts(client.receiver("orders").drain()) == numbered(2_000, 2_005)


def test_a_replay_can_be_cancelled_before_it_has_begun(gateway: RunningGateway, client: Client) -> None:
    """A replay that waits for the queue to be emptied can be cancelled, not forced: nothing of it ever comes."""
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
    """Without a replay under way a cancel is refused, and the sentence names the state."""
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
    """Force-completed, a replay reads no further, what it had put stays, its consumer goes on, and live follows."""
    publish(client, 0, 20_000)
    receiver = client.receiver(FROM_BEGINNING, credit=100)
    receiver.take_and_accept(100)
    gateway.cancel_replay("orders", force_complete=True)
    client.wait(lambda: gateway.replay_state("orders") == "complete", "the replay is complete")
    left = gateway.depth("orders")
    assert 0 < left < 19_900
    publish(client, 20_000, 20_010)
    taken: list[Received] = []
    receiver.collect(taken, left + 10)
    assert texts(taken) == numbered(100, 100 + left) + numbered(20_000, 20_010)
    assert receiver.drain(0) == []
    record = gateway.replay("orders").totals
    assert (record.started, record.succeeded, record.failed) == (1, 1, 0)


# --- what is said of a replay -------------------------------------------------------------------------------------


def test_a_selector_that_keeps_a_replay_from_completing(start: Start, connect: Connect) -> None:
    """A consumer whose selector leaves replayed messages where they are: said in the log, once, and in the status."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    with capture_logs() as lines:
        gateway = start()
        client = connect(gateway)
        publish(client, 0, 30)
        receiver = client.receiver(FROM_BEGINNING, filters=selector("JMSPriority > 7"), credit=30)
        client.wait(lambda: gateway.replay("orders").is_blocked, "it is noticed")
        assert receiver.drain(0) == []
    said = [line for line in lines if line["event"] == "replay_blocked_by_selector"]
    assert [(line["endpoint"], line["messages"], line["log_level"]) for line in said] == [
        ("orders", 30, "warning")
    ]
    assert gateway.replay_state("orders") == "pending-complete"
    receiver.close()
    taken: list[Received] = []
    client.receiver("orders").collect(taken, 30)
    client.wait(lambda: gateway.replay_state("orders") == "complete", "another consumer completes it")
    assert not gateway.replay("orders").is_blocked


def test_a_selector_that_takes_all_is_not_warned_of(gateway: RunningGateway, client: Client) -> None:
    """A consumer that is merely slow, or whose selector takes what is there, keeps nothing from completing."""
    publish(client, 0, 30)
    receiver = client.receiver(FROM_BEGINNING, filters=selector("JMSPriority = 4"), credit=10)
    taken = receiver.take(10)
    assert not gateway.replay("orders").is_blocked
    receiver.settle(taken)
    receiver.collect(taken, 30)
    client.wait(lambda: gateway.replay_state("orders") == "complete", "the replay is complete")
    assert not gateway.replay("orders").is_blocked


def test_counters_and_progress(clock: Clock, gateway: RunningGateway, client: Client) -> None:
    """What was transmitted, acknowledged, is left, and how long that takes at this pace, is known at any time."""
    publish(client, 0, 20_000)
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
    progress = replay.progress(20_001, clock.ms)
    assert progress.position + progress.remaining == 20_001
    assert progress.outstanding == replay.put - 150
    assert progress.eta_ms == 10_000 * progress.remaining // (progress.position - 1)
    receiver.flow(400)
    receiver.collect(taken, 20_000)
    receiver.settle(taken[150:200])
    client.wait(lambda: gateway.replay_state("orders") == "complete", "the replay is complete")
    replay = gateway.replay("orders")
    assert replay.totals.acknowledged == replay.totals.transmitted == 20_000
    assert replay.totals.last_completed_ms == clock.ms
    assert replay.progress(20_001, clock.ms) == (20_001, 0, 0, None)


def test_a_replaced_replay_counts_as_failed(gateway: RunningGateway, client: Client) -> None:
    """A replay that a new one took the place of is counted as failed, with that reason."""
    publish(client, 0, 5_000)
    receiver = client.receiver(FROM_BEGINNING, credit=10)
    receiver.take_and_accept(10)
    gateway.start_replay("orders", "#4991")
    assert receiver.detached_by_peer().subcode == 141
    taken: list[Received] = []
    client.receiver("orders").collect(taken, 10)
    assert texts(taken) == numbered(4_990, 5_000)
    client.wait(lambda: gateway.replay_state("orders") == "complete", "the replay is complete")
    record = gateway.replay("orders").totals
    assert (record.started, record.succeeded, record.failed) == (2, 1, 1)
    assert record.last_failure == "a new replay took its place"
