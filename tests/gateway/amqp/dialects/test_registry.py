"""The dialects that a listener speaks, by the switches in its settings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from amqp_ext.addresses.forms import PartitionPosition
from gateway.amqp.dialects.hooks import Spoken
from gateway.amqp.dialects.registry import Dialects
from gateway.config import Listener, Settings
from gateway.core.errors import ErrorCode, Refused
from gateway.users import Users

PLAIN = ("SCRAM-SHA-256", "ANONYMOUS")


def spoken(*, rabbitmq: bool = False, event_hubs: bool = False) -> Spoken:
    listener = replace(Listener(), rabbitmq_mode=rabbitmq, event_hubs_mode=event_hubs)
    return Dialects(Users(Settings())).spoken_by(listener)


def test_a_listener_without_switches_speaks_amqp_alone() -> None:
    """It offers nothing, has no request nodes, and translates no frames."""
    plain = spoken()
    assert plain.open_properties == {"product": "Rewind"}
    assert (plain.offered_capabilities, plain.nodes, plain.consumer_priorities) == ((), {}, [])
    assert plain.frames(65_536) is None and plain.reader_groups("default") is None
    assert not plain.queues_are_streams
    assert plain.topic_of("/exchanges/e/k") is None and plain.address_of("a/b") == "a/b"
    assert plain.mechanisms(PLAIN, accepts_tokens=False) == PLAIN
    assert plain.vpn_name_of("vhost:/") == "vhost:/"


def test_a_listener_with_both_switches_speaks_both() -> None:
    both = spoken(rabbitmq=True, event_hubs=True)
    assert set(both.nodes) == {"/management", "$management", "$cbs"}
    assert both.open_properties["product"] == "RabbitMQ"
    assert both.topic_of("/exchanges/e/k") == "e/k" and both.address_of("a/b") == "/queues/a%2Fb"
    assert both.frames(65_536) is not None and both.queues_are_streams
    assert both.mechanisms(PLAIN, accepts_tokens=False) == (*PLAIN, "MSSBCBS")
    assert both.mechanisms(("SCRAM-SHA-256",), accepts_tokens=True) == (
        "SCRAM-SHA-256",
        "ANONYMOUS",
        "MSSBCBS",
    )
    assert both.vpn_name_of("vhost:/") is None and both.vpn_name_of("vhost:other") == "vhost:other"


def test_readers_of_one_message_vpn_are_in_the_same_groups_on_every_listener() -> None:
    """Owner levels count within a Message VPN, whichever listener a receiver has connected to."""
    dialects = Dialects(Users(Settings()))
    one, other = (dialects.spoken_by(replace(Listener(), event_hubs_mode=True)) for _ in range(2))
    assert one.reader_groups("a") is other.reader_groups("a")
    assert one.reader_groups("a") is not one.reader_groups("b")


@pytest.mark.parametrize("event_hubs", [False, True])
def test_a_partition_that_is_not_there_is_refused_on_every_listener(event_hubs: bool) -> None:
    """A client that reads four partitions must not get everything four times."""
    listener = spoken(event_hubs=event_hubs)
    listener.check_position(PartitionPosition("$Default", "0"))
    with pytest.raises(Refused) as caught:
        listener.check_position(PartitionPosition("$Default", "1"))
    assert caught.value.code is ErrorCode.NOT_FOUND
