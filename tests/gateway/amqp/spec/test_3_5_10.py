"""3.5.10 and 3.5.6: how long a dynamic node lives, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_ext.codec import Described, Symbol, UInt, ULong
from tests.gateway.amqp.spec.conftest import Opened
from tests.support.frames import ACCEPTED, BEGIN, CLOSE, DETACH, END, begin_frame, error_of, frame
from tests.support.messages import PROPERTIES, data, section
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


@pytest.mark.parametrize("kind", ["temporary-queue", "temporary-topic"])
def test_a_temporary_node_is_its_own_connection_s(opened: Opened, kind: str) -> None:
    """One asked for as JMS does: who knows its name may send to it, and not receive (JMS 2.0, section 6.2.2)."""
    peer = opened()
    target = [*dynamic(), Symbol(kind)]
    address = peer.attach(0, target=target).field(6).value[0]
    peer.attach(1, receiver=True, source=[address])
    other = opened()
    other.attach(1, target=[address])
    other.attach(0, receiver=True, source=[address])
    assert error_of(other.skip_to(DETACH))[0] == "amqp:unauthorized-access"


def test_a_temporary_topic_that_is_gone_is_unknown(opened: Opened) -> None:
    """Who attaches to its name hears that; who has a link to it hears it at the next message, the relay's as well."""
    peer, other = opened(), opened()
    address = peer.attach(0, target=[*dynamic(), Symbol("temporary-topic")]).field(6).value[0]
    other.attach(0, target=[address])
    other.attach(1, target=[None])
    to = section(PROPERTIES, [None, None, address])
    other.transfer(1, 0, to + data(b"!"))
    assert other.told() == ACCEPTED
    peer.detach(0, closed=True)
    other.transfer(1, 1, to + data(b"!"))
    assert other.told() == "amqp:not-found"
    other.transfer(0, 2, data(b"!"))
    assert other.told() == "amqp:resource-deleted"
    assert error_of(other.skip_to(DETACH))[0] == "amqp:resource-deleted"
    for receiver in (True, False):
        other.attach(2 + receiver, receiver=receiver, **{"source" if receiver else "target": [address]})
        assert error_of(other.skip_to(DETACH))[0] == "amqp:not-found"


@pytest.mark.parametrize("kind", ["temporary-queue", "temporary-topic"])
def test_node_properties_may_be_said_again_of_a_node_that_the_connection_made(
    opened: Opened, kind: str
) -> None:
    """
    JMS clients repeat them in the source of a consumer that is not dynamic. Of another connection's node, or of
    none that was made dynamically, they mean nothing: that is refused.
    """
    peer = opened()
    address = peer.attach(0, target=[*dynamic(), Symbol(kind)]).field(6).value[0]
    again = [address, UInt(0), None, None, False, DELETE_ON_CLOSE]
    assert peer.attach(1, receiver=True, source=again).field(5).value[0] == address
    other = opened()
    for handle, source in enumerate((again, ["queue://q", *again[1:]], [None, *again[1:]])):
        other.attach(handle, receiver=True, source=source)
        refused = error_of(other.skip_to(DETACH))
        assert refused[0] == "amqp:invalid-field"
        assert refused[1].startswith("dynamic-node-properties are of a source that is dynamic")
    peer.attach(2, receiver=True, source=["queue://q"], target=again)
    assert error_of(peer.skip_to(DETACH))[0] == "amqp:invalid-field"
