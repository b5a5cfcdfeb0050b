"""Consumers of an endpoint: whose turn it is, what selectors take out of the middle, and who is suspended."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.endpoint.endpoint import FLOW_QUANTUM, Endpoint, Flow
from gateway.core.endpoint.settings import EndpointSettings
from gateway.core.model import Row
from tests.support.core import new_endpoint

CONSUMERS = st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 3)), min_size=1, max_size=6)
"""The priority of each, and how many messages it can take."""


def endpoint_of(consumers: list[tuple[int, int]]) -> tuple[Endpoint, list[Flow]]:
    """An endpoint with these consumers."""
    endpoint = new_endpoint(EndpointSettings())
    flows = [Flow(endpoint, None, priority=priority) for priority, _ in consumers]
    for flow, (_, demand) in zip(flows, consumers, strict=True):
        endpoint.bind(flow)
        flow.demand = demand
    return endpoint, flows


@given(CONSUMERS, st.data())
def test_nobody_is_served_before_who_has_a_higher_priority(
    consumers: list[tuple[int, int]], data: st.DataObject
) -> None:
    """Each turn is of a hungry consumer with the highest priority among them, whoever comes and goes meanwhile."""
    endpoint, flows = endpoint_of(consumers)
    while (flow := endpoint.next_flow()) is not None:
        hungry = [each for each in endpoint.flows if each.is_hungry]
        assert flow in hungry
        assert flow.priority == max(each.priority for each in hungry)
        flow.demand -= 1
        change = data.draw(st.sampled_from(["none", "none", "hungry", "gone"]))
        other = data.draw(st.sampled_from(flows))
        if change == "hungry" and sum(each.demand for each in flows) < 10 and data.draw(st.booleans()):
            other.demand += 1
        elif change == "gone":
            endpoint.unbind(other)
    assert not any(each.is_hungry for each in endpoint.flows)


def test_consumers_of_one_priority_take_turns() -> None:
    """Equal ones are served in turn, and share what there is without those who wait for them."""
    endpoint, flows = endpoint_of([(1, FLOW_QUANTUM), (0, FLOW_QUANTUM), (1, FLOW_QUANTUM)])
    turns = [endpoint.next_flow() for _ in range(4)]
    assert turns == [flows[0], flows[2]] * 2
    endpoint.ready.add_committed(range(1, 11))
    assert endpoint.share(flows[0]) == 5


# --- selectors ------------------------------------------------------------------------------------------------------


def row(message_id: int) -> Row:
    return (message_id, 0, "a", 0, 0, None, b"x")


def is_odd(found: Row) -> bool:
    return found[0] % 2 == 1


def endpoint_with(*ids: int, window: int = 10) -> Endpoint:
    endpoint = new_endpoint(EndpointSettings(), window)
    for i in ids:
        endpoint.ready.add_committed([i])
    return endpoint


def selecting_flow(endpoint: Endpoint) -> Flow:
    flow = Flow(endpoint, None, matches=is_odd)
    flow.demand = 10
    endpoint.bind(flow)
    return flow


def test_what_was_taken_out_of_the_middle_and_came_back_is_ready_once() -> None:
    """A message that a selector took from behind another and gave back is offered once, in its place."""
    endpoint = endpoint_with(1, 2, 3, 4)
    flow = selecting_flow(endpoint)
    endpoint.hand_out(flow, [1, 3], [row(1), row(3)])

    endpoint.release(flow, [3])
    assert endpoint.ready.peek(10) == [2, 3, 4]

    endpoint.unbind(flow)
    assert endpoint.ready.peek(1) == [1]
    plain = Flow(endpoint, None)
    endpoint.bind(plain)
    for i in (1, 2, 3, 4):
        assert endpoint.ready.peek(1) == [i]
        endpoint.hand_out(plain, [i], [row(i)])
    assert endpoint.ready.peek(1) == []


def test_what_no_selector_wants_does_not_hide_what_is_new() -> None:
    """However much in front of it is unwanted, a new message that a selector wants is looked at."""
    endpoint = endpoint_with(2, 4, 6, 8, 10, window=2)
    queue = endpoint.queue_to_read(page_rows=10)
    assert queue is not None
    queue.add_page([2, 4, 6, 8], 9)
    flow = selecting_flow(endpoint)
    assert flow.candidates is not None
    assert flow.candidates.take(10) == [2, 4, 6, 8, 10]
    endpoint.ready.add_committed([11])
    assert flow.candidates.take(10) == [11]


# --- suspended ------------------------------------------------------------------------------------------------------


def test_a_suspended_flow_keeps_its_messages_until_its_end() -> None:
    """Then they are ready, once; one that is settled meanwhile is not. One that is not suspended stays as it is."""
    endpoint = endpoint_with(1, 2, 3)
    flow = Flow(endpoint, None)
    endpoint.bind(flow)
    endpoint.hand_out(flow, [1, 2, 3], [row(1), row(2), row(3)])
    endpoint.end_suspended(flow)
    assert (endpoint.ready.ready, list(flow.unsettled), flow in endpoint.flows) == (0, [1, 2, 3], True)
    endpoint.suspend(flow)
    assert (endpoint.ready.ready, list(flow.unsettled)) == (0, [1, 2, 3])
    assert (flow in endpoint.flows, flow in endpoint.suspended) == (False, True)
    endpoint.settle(flow, [2], 3)
    endpoint.end_suspended(flow)
    assert (endpoint.ready.peek(10), dict(flow.unsettled), list(endpoint.suspended)) == ([1, 3], {}, [])
    endpoint.end_suspended(flow)
    assert endpoint.ready.peek(10) == [1, 3]
