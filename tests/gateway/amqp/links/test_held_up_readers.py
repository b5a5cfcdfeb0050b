"""Readers that leave unsettled as much as they may."""

from __future__ import annotations

from gateway.config import Limits
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import texts
from tests.support.messages import data


def test_a_drain_is_not_answered_before_what_there_is_was_sent(start: Start, connect: Connect) -> None:
    """A reader that was held up, and settled, is so no more: credit to be drained brings it what there is."""
    client = connect(start(limits=Limits(max_unsettled_per_flow=2)))
    client.sender("topic://t").send_all([data(str(i)) for i in range(20)])
    reader = client.receiver("log://t?replay-start=beginning", credit=2)
    found = []
    while len(found) < 18:
        taken = reader.take(2)
        found += texts(taken)
        reader.settle(taken)
        taken = reader.drain(2)
        found += texts(taken)
        reader.settle(taken)
        reader.flow(2)
    assert found == [str(i) for i in range(len(found))]
    assert len(found) % 4 == 0
