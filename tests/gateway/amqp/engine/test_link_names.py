"""A link's name attached twice: who keeps it, in raw frames (AMQP 1.0 section 2.6.1)."""

from __future__ import annotations

from amqp_ext.codec import Symbol, UInt
from tests.gateway.amqp.engine.conftest import Opened
from tests.support.frames import (
    ATTACH,
    CLOSE,
    DETACH,
    FLOW,
    TRANSFER,
    Frame,
    attach_frame,
    disposition,
    error_of,
    flow_frame,
    frame,
)
from tests.support.messages import body_of
from tests.support.peer import Peer

STOLEN = "amqp:link:stolen"


def stolen_from(peer: Peer) -> Frame:
    """The detach that tells a link's holder; it is answered."""
    detached = peer.skip_to(DETACH)
    assert error_of(detached)[0] == STOLEN
    peer.send(frame(DETACH, [UInt(0), True]))
    return detached


def test_a_consumers_name_attached_anew_takes_the_link_over(opened: Opened) -> None:
    """The older link of a session is detached as stolen; what it had not settled goes to the new one, which goes on."""
    peer, publisher = opened(), opened()
    publisher.attach_sender("queue://taken")
    peer.attach_receiver("queue://taken", name="mine", credit=10)
    publisher.publish(b"first")
    assert body_of(peer.skip_to(TRANSFER).payload) == b"first"
    peer.send(attach_frame(1, receiver=True, address="queue://taken", name="mine"))
    stolen_from(peer)
    assert peer.skip_to(ATTACH).field(0) == "mine"
    peer.send(flow_frame(1, 0, 10))
    again = peer.skip_to(TRANSFER)
    assert body_of(again.payload) == b"first"
    peer.send(disposition(int(again.field(1)), int(again.field(1))))
    publisher.publish(b"second")
    assert peer.receive() == b"second"
    peer.close()


def test_a_publishers_name_attached_anew_takes_the_link_over(opened: Opened) -> None:
    """The older link is detached as stolen, and messages are accepted on the new one."""
    peer = opened()
    peer.attach_sender("queue://taken", name="mine")
    peer.publish(b"before")
    peer.send(attach_frame(1, receiver=False, address="queue://taken", name="mine"))
    stolen_from(peer)
    peer.skip_to(ATTACH)
    peer.publish(b"after", handle=1)
    peer.close()


def test_a_name_can_be_stolen_again_and_again(opened: Opened) -> None:
    """Each new attach of a name ends the one before; the last is the one that lives, detached by its peer as ever."""
    peer = opened()
    peer.attach_receiver("queue://taken", name="mine")
    for handle in range(1, 6):
        peer.send(attach_frame(handle, receiver=True, address="queue://taken", name="mine"))
        assert error_of(peer.skip_to(DETACH))[0] == STOLEN
        peer.send(frame(DETACH, [UInt(handle - 1), True]))
        peer.skip_to(ATTACH)
    peer.send(frame(DETACH, [UInt(5), True]))
    assert peer.skip_to(DETACH).field(2) is None
    peer.send(attach_frame(5, receiver=True, address="queue://taken", name="mine"))
    peer.skip_to(ATTACH)
    peer.close()


def test_a_durable_subscription_is_taken_over_by_its_name(opened: Opened) -> None:
    """The new link has the subscription, with what came for it while the old one held it."""
    peer = opened()
    peer.attach_receiver("topic://taken/a", name="mine", expiry=Symbol("never"))
    peer.attach_sender("topic://taken/a")
    peer.publish(b"kept", handle=1)
    peer.send(attach_frame(2, receiver=True, address="topic://taken/a", name="mine", expiry=Symbol("never")))
    stolen_from(peer)
    peer.skip_to(ATTACH)
    peer.send(flow_frame(2, 0, 1))
    assert peer.receive() == b"kept"
    peer.close()


def test_a_refused_name_can_be_attached_before_its_detach_is_answered(opened: Opened) -> None:
    """A peer that tries again at once, its own detach still to come, is served."""
    peer = opened()
    peer.send(attach_frame(0, receiver=False, address="log://>", name="mine"))
    assert error_of(peer.skip_to(DETACH))[0] == "amqp:not-allowed"
    peer.send(attach_frame(1, receiver=False, address="queue://taken", name="mine"))
    assert peer.skip_to(FLOW)
    peer.send(frame(DETACH, [UInt(0), True]))
    peer.publish(b"served", handle=1)
    peer.close()


def test_a_name_attached_twice_at_once_is_a_mistake(opened: Opened) -> None:
    """A second attach of a name before the first is answered ends that connection, with an error that names it."""
    peer = opened()
    peer.send(*(attach_frame(n, receiver=True, address="queue://taken", name="mine") for n in range(2)))
    assert "mine" in error_of(peer.skip_to(CLOSE))[1]
