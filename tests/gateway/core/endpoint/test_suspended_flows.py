"""Flows of consumers that have detached and not closed their links."""

from __future__ import annotations

from gateway.core.endpoint.flow import SuspendedFlows


class Flow:
    def __init__(self, *ids: int) -> None:
        self.unsettled = dict.fromkeys(ids, 10)


class Endpoint:
    """Notes what becomes ready."""

    def __init__(self) -> None:
        self.ready: list[int] = []

    def unbind(self, flow: Flow) -> None:
        self.give_back(flow.unsettled)

    def give_back(self, ids: object) -> None:
        assert isinstance(ids, dict)
        self.ready += ids


def test_a_suspended_flow_keeps_its_messages_until_its_end() -> None:
    """Then they are ready, once; one that is settled meanwhile is not."""
    endpoint, flow = Endpoint(), Flow(1, 2, 3)
    suspended: SuspendedFlows[Flow] = SuspendedFlows(endpoint)
    suspended.suspend(flow)
    assert (endpoint.ready, list(flow.unsettled), flow in suspended) == ([], [1, 2, 3], True)
    del flow.unsettled[2]
    suspended.end(flow)
    assert (endpoint.ready, flow.unsettled, list(suspended)) == ([1, 3], {}, [])
    suspended.end(flow)
    assert endpoint.ready == [1, 3]


def test_a_flow_that_is_not_suspended_stays_as_it_is() -> None:
    """Its messages are its own still."""
    endpoint, flow = Endpoint(), Flow(1)
    SuspendedFlows(endpoint).end(flow)
    assert (endpoint.ready, flow.unsettled) == ([], {1: 10})
