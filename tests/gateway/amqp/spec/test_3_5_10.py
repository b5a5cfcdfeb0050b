"""3.5.10 and 3.5.6: how long a dynamic node lives, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_ext.codec import Described, Symbol, UInt, ULong
from tests.gateway.amqp.spec.conftest import Opened
from tests.support.frames import ACCEPTED, BEGIN, CLOSE, DETACH, END, begin_frame, error_of, frame
from tests.support.messages import data
from tests.support.running import RunningGateway

DELETE_ON_CLOSE = {Symbol("lifetime-policy"): Described(ULong(0x2B), [])}
SESSION_END = Symbol("session-end")


def dynamic(*, durable: int = 0, expiry: Any = None, address: Any = None) -> list[Any]:
    return [address, UInt(durable), expiry, None, True, DELETE_ON_CLOSE]


@pytest.mark.parametrize("receiver", [True, False])
def test_a_detach_does_not_delete_what_a_close_would(
    gateway: RunningGateway, opened: Opened, receiver: bool
) -> None:
    """The link exists as long as it is suspended; attached again by its name and closed, it is gone with its node."""
    peer = opened()
    end = "source" if receiver else "target"
    answer = peer.attach(0, receiver=receiver, name="mine", **{end: dynamic()})  # type: ignore[arg-type]
    address = answer.field(5 if receiver else 6).value[0]
    peer.detach(0)
    other = opened()
    other.attach(0, target=[address])
    other.transfer(0, 0, data(b"still there"))
    assert other.told() == ACCEPTED
    peer.attach(0, receiver=receiver, name="mine", **{end: [address]})  # type: ignore[arg-type]
    assert gateway.endpoints() == {address.removeprefix("queue://")}
    peer.detach(0, closed=True)
    assert error_of(other.skip_to(DETACH))[0] == "amqp:resource-deleted"
    assert gateway.endpoints() == set()


def test_the_end_of_the_session_ends_a_suspended_link(gateway: RunningGateway, opened: Opened) -> None:
    """And its node with it."""
    peer = opened()
    peer.attach(0, receiver=True, source=dynamic())
    peer.detach(0)
    assert len(gateway.endpoints()) == 1
    peer.send(frame(END, []))
    peer.skip_to(END)
    assert gateway.endpoints() == set()
    peer.send(begin_frame(), frame(CLOSE, []))
    peer.skip_to(BEGIN)


def test_a_link_that_expires_with_its_detach_is_not_suspended(
    gateway: RunningGateway, opened: Opened
) -> None:
    """Its expiry-policy is link-detach."""
    peer = opened()
    answer = peer.attach(0, receiver=True, source=dynamic(expiry=Symbol("link-detach")))
    assert answer.field(5).value[2] == "link-detach"
    peer.detach(0)
    assert gateway.endpoints() == set()


@pytest.mark.parametrize("expiry", [None, SESSION_END, Symbol("connection-close"), Symbol("never")])
def test_what_is_said_of_a_dynamic_node_is_what_holds(opened: Opened, expiry: Any) -> None:
    """It is not durable, and gone with its session at the latest, whatever was asked for."""
    source = opened().attach(0, receiver=True, source=dynamic(durable=2, expiry=expiry)).field(5).value
    assert source[1] in (None, 0)
    assert source[2] in (None, SESSION_END)


def test_an_address_beside_dynamic_is_refused(opened: Opened) -> None:
    """A source or target that is to be made has none yet (3.5.3)."""
    peer = opened()
    peer.attach(0, receiver=True, source=dynamic(address="queue://q"))
    assert error_of(peer.skip_to(DETACH))[0] == "amqp:invalid-field"


def test_a_temporary_queue_is_its_own_connection_s(opened: Opened) -> None:
    """One asked for as JMS does: who knows its name may send to it, and not receive (JMS 2.0, section 6.2.2)."""
    peer = opened()
    target = [*dynamic(), Symbol("temporary-queue")]
    address = peer.attach(0, target=target).field(6).value[0]
    peer.attach(1, receiver=True, source=[address])
    other = opened()
    other.attach(1, target=[address])
    other.attach(0, receiver=True, source=[address])
    assert error_of(other.skip_to(DETACH))[0] == "amqp:unauthorized-access"
