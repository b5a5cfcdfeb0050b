"""Who replayed what: records of endpoints' replays, from their beginning to how they ended."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

from gateway.config import Limits
from gateway.core.effects import SaveReplayRecord
from gateway.core.model import ReplayRecord
from gateway.vpn.message_vpn import MessageVpn
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import Client
from tests.support.messages import data
from tests.support.running import RunningGateway


def publish(client: Client, first: int, last: int) -> None:
    client.sender("orders").send_all(map(data, range(first, last)))


def records(gateway: RunningGateway) -> list[ReplayRecord]:
    def ask(running: object) -> list[ReplayRecord]:
        vpn = running.vpns["default"]  # type: ignore[attr-defined]
        vpn.replays.records.refresh_all()
        return list(vpn.broker.replay_records)

    return gateway.call(ask)


def test_a_replay_goes_on_record_with_who_asked_and_what_came_of_it(
    gateway: RunningGateway, connect: Connect
) -> None:
    """Start, counts, bytes and times; while it is under way, as far as it is."""
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
    """Cancelled, forced, replaced by another, and with the endpoint itself; each once, in order."""
    client = connect(gateway)
    publish(client, 0, 9)
    gateway.start_replay("orders", "beginning")
    gateway.cancel_replay("orders")
    gateway.start_replay("orders", "beginning")
    gateway.start_replay("orders", "#2")
    client.wait(lambda: gateway.replay_state("orders") == "pending-complete", "all was read")
    gateway.cancel_replay("orders", force_complete=True)
    gateway.start_replay("orders", "#3")
    gateway.call(lambda g: g.vpns["default"].endpoints.delete(g.vpns["default"].broker.endpoints["orders"]))
    assert [(record.number, record.state, record.outcome) for record in records(gateway)] == [
        (1, "cancelled", "it was cancelled"),
        (2, "cancelled", "a new replay took its place"),
        (3, "complete", "it was forced to be complete"),
        (4, "cancelled", "its endpoint was deleted"),
    ]
    before = records(gateway)
    client.close()
    gateway.restart()
    assert records(gateway) == before


def test_a_replay_that_a_stop_interrupted_goes_on_under_its_record(
    gateway: RunningGateway, connect: Connect
) -> None:
    """And says that it was; the next replay has the next number."""
    client = connect(gateway)
    publish(client, 0, 30)
    client.receiver("orders?replay-start=beginning&replay-name=r", credit=10).take_and_accept(10)
    client.wait(lambda: gateway.replay("orders").acknowledged == 10, "settlements arrive")
    client.close()
    gateway.restart()
    client = connect(gateway)
    client.wait(lambda: gateway.replay_state("orders") == "pending-complete", "it went on")
    (record,) = records(gateway)
    assert (record.number, record.name, record.state) == (1, "r", "pending-complete")
    assert (record.outcome, record.sent, record.ended_ms) == ("interrupted by a stop, and went on", 30, 0)
    receiver = client.receiver("orders", credit=30)
    receiver.take_and_accept(20)
    client.wait(lambda: records(gateway)[0].state == "complete", "it is complete")
    receiver.close()
    client.receiver("orders?replay-start=beginning")
    assert [record.number for record in records(gateway)] == [1, 2]


def test_replays_that_are_asked_for_again_and_again_fill_nothing(start: Start, connect: Connect) -> None:
    """Whoever may consume from a queue can ask for replays without end: those of the past are kept up to the limit."""
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
    """And again only when it has changed again: one that stands still costs no writing."""
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
