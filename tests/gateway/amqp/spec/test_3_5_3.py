"""3.5.3, sources: the outcomes that can be chosen on a link are said, and no other is chosen."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_ext.codec import Array, Symbol
from gateway.config import Vpn
from gateway.config.vpn import Queue
from tests.gateway.amqp.conftest import Start
from tests.gateway.amqp.spec.conftest import Opened, ScriptedPeer
from tests.support.frames import ACCEPTED, DETACH, error_of
from tests.support.messages import data

ACCEPTED_NAME, REJECTED_NAME = Symbol("amqp:accepted:list"), Symbol("amqp:rejected:list")
ALL = [ACCEPTED_NAME, REJECTED_NAME, Symbol("amqp:released:list"), Symbol("amqp:modified:list")]


def source(address: str | None, outcomes: Any) -> list[Any]:
    return [address, *[None] * 8, outcomes]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (None, ALL),
        (Array([ACCEPTED_NAME, Symbol("vendor:parked:list")]), [ACCEPTED_NAME]),
        (REJECTED_NAME, [REJECTED_NAME]),
    ],
)
def test_a_receiver_is_told_the_outcomes_that_it_may_choose(opened: Opened, asked: Any, said: Any) -> None:
    """All that there are, or those of them that it asks for."""
    answer = opened().attach(0, receiver=True, source=source("queue://q", asked))
    assert list(answer.field(5).value[9]) == said


def test_a_sender_s_source_is_told_back(opened: Opened) -> None:
    """With its outcomes, or empty; its sender knows that it has one."""
    peer = opened()
    listed = Array([ACCEPTED_NAME])
    answer = peer.attach(0, source=source("mine", listed), target=["queue://q"])
    assert (answer.field(5).value[0], list(answer.field(5).value[9])) == ("mine", [ACCEPTED_NAME])
    assert peer.attach(1, source=[], target=["queue://q"]).field(5) is not None


@pytest.mark.parametrize("listed", ["text", 7, [Symbol("vendor:parked:list")]])
def test_outcomes_that_are_none_are_refused(opened: Opened, listed: Any) -> None:
    """By the name of the field."""
    peer = opened()
    peer.attach(0, source=source(None, listed), target=["queue://q"])
    assert error_of(peer.skip_to(DETACH))[0] == "amqp:invalid-field"


@pytest.fixture
def to_a_full_queue(start: Start, opened_at: Any) -> Any:
    """Attaches a sender whose messages are not taken, with these outcomes; the peer."""
    gateway = start(vpn=Vpn(queues={"q": Queue(quota_messages=1)}))

    def attach(*outcomes: Symbol) -> ScriptedPeer:
        peer: ScriptedPeer = opened_at(gateway)
        peer.attach(0, source=source(None, Array(outcomes)), target=["queue://q"])
        peer.transfer(0, 0, data(b"fits"))
        assert peer.told() == ACCEPTED
        peer.transfer(0, 1, data(b"does not fit"))
        return peer

    return attach


def test_a_message_that_is_not_taken_is_rejected(to_a_full_queue: Any) -> None:
    """Where the source knows that outcome."""
    assert to_a_full_queue(ACCEPTED_NAME, REJECTED_NAME).told() == "amqp:resource-limit-exceeded"


def test_where_the_source_knows_no_rejection_the_link_is_detached(to_a_full_queue: Any) -> None:
    """With the error that the rejection would have had."""
    assert error_of(to_a_full_queue(ACCEPTED_NAME).skip_to(DETACH))[0] == "amqp:resource-limit-exceeded"
