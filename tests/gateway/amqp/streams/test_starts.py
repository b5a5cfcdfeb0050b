"""Where a stream's readers start: every way to ask, and every refusal, as for a reader of the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from proton import symbol, timestamp, ulong

from amqp_ext.replay_id import format_replay_id
from gateway.config import Queue, ReplayLog, Vpn
from tests.gateway.amqp.conftest import Connect
from tests.gateway.amqp.conftest import Start as StartGateway
from tests.support import starts
from tests.support.client import Client, texts
from tests.support.client import refusal as attach_refused
from tests.support.messages import data
from tests.support.running import RunningGateway
from tests.support.starts import STARTS, Start

VPN = Vpn(queues={"audit": Queue(kind="stream", subscriptions=("flights/>",))})


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """The log of `tests.support.starts`: even numbers sent to the stream by name, odd ones to what it subscribes to."""
    with starts.gateway_with_log(
        tmp_path_factory.mktemp("starts"), ["audit", "topic://flights/JFK"], VPN
    ) as running:
        yield running


@pytest.fixture
def generation(client: Client) -> int:
    return int(client.receiver("audit").link.remote_properties["rewind:replay-generation"])


@pytest.mark.parametrize("start", STARTS, ids=[start.name for start in STARTS])
def test_every_way_to_ask(client: Client, generation: int, start: Start) -> None:
    """Each way to ask leads to exactly its first message, and the answer says which it is."""
    reader = client.receiver(**start.arguments("audit", generation))
    numbers = range(start.first, starts.COUNT)
    taken = reader.drain()
    assert texts(taken) == [str(number) for number in numbers]
    assert [message.is_end for message in taken] == [False] * (len(taken) - 1) + [True] * bool(taken)
    assert reader.start["offset"] == start.first + 1
    assert reader.start["generation"] == generation


def refusal(client: Client, address: str = "audit", **start: Any) -> tuple[str, str | None, int | None]:
    """The error that an attach with this start is refused with."""
    value = {symbol(key): entry for key, entry in start.items()}
    refused = attach_refused(client.receiver, address, filters={"rewind:replay-start": value})
    assert len(refused.text) > 20, "the text is a sentence for a person"
    return refused.replay_refusal


def test_refusals(client: Client, generation: int) -> None:
    """A start that cannot be honoured is refused as the log's readers are refused it, and never dropped."""
    unknown = ("amqp:invalid-field", "unknown-start", 139)
    no_time = ("amqp:precondition-failed", "start-time-not-available", 143)
    no_message = ("amqp:precondition-failed", "start-message-unavailable", 156)
    modified = ("amqp:precondition-failed", "log-modified", 145)
    assert refusal(client, **{"from": symbol("nowhere")}) == unknown
    assert refusal(client, date=timestamp(starts.NOW_MS + 1)) == unknown
    assert refusal(client, date=timestamp(starts.BEGAN_MS - 1)) == no_time
    assert refusal(client, offset=ulong(99)) == no_message
    assert refusal(client, after=format_replay_id(generation, 99)) == no_message
    assert refusal(client, **{"message-id": "nobody's"}) == no_message
    assert refusal(client, match="n = 1") == no_message
    assert refusal(client, point="nowhere") == no_message
    assert refusal(client, generation=ulong(generation + 1), **{"from": symbol("beginning")}) == modified
    assert refusal(client, after=format_replay_id(generation + 1, 5)) == modified
    assert refusal(client, "audit?replay-start=%235", offset=ulong(6)) == unknown


def test_a_log_that_is_closed_to_readers(start: StartGateway, connect: Connect) -> None:
    """Where the log may not be read, neither may a stream (134), live or not; it takes messages all the same."""
    vpn = Vpn(queues={"audit": Queue(kind="stream")}, replay_log=ReplayLog(read=False))
    client = connect(start(vpn))
    client.sender("audit").send_all([data(1)])
    for start_at in ("live", "beginning"):
        assert refusal(client, **{"from": symbol(start_at)}) == ("amqp:not-implemented", "disabled", 134)
    assert attach_refused(client.receiver, "audit").subcode == 134
