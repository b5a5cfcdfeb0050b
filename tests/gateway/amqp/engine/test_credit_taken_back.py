"""Credit that a consumer takes back while it is being used up, in raw frames (AMQP 1.0 section 2.6.7)."""

from __future__ import annotations

import pytest

from amqp_ext.codec import UInt
from tests.support.frames import FLOW, TRANSFER, WINDOW, frame
from tests.support.peer import Peer
from tests.support.running import RunningGateway


@pytest.mark.parametrize("drain", [True, None])
def test_a_peer_that_gave_less_than_was_sent_is_told_what_was_sent(
    gateway: RunningGateway, drain: bool | None
) -> None:
    """fe2o3-amqp drains by what it has looked at, which may be less than has come: no credit is left, and none owed."""
    host, _, port = gateway.address.rpartition(":")
    with Peer.opened((host, int(port))) as peer:
        peer.attach_sender("queue://orders")
        for _ in range(2):
            peer.publish(b"one")
        own = peer.attach_receiver("queue://orders", credit=2).field(1)
        peer.skip_to(TRANSFER)
        peer.skip_to(TRANSFER)
        seen = [UInt(0), UInt(WINDOW), UInt(0), UInt(WINDOW), UInt(1), UInt(1), UInt(0), None, drain, True]
        peer.send(frame(FLOW, seen))
        said = peer.expect(FLOW)
        assert (said.field(4), said.field(5), said.field(6)) == (own, 2, 0)
