"""What lies on an endpoint while flows with selectors take messages out of the middle."""

from __future__ import annotations

from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.endpoint.settings import EndpointSettings
from gateway.core.model import Row
from tests.support.endpoints import new_endpoint


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
    assert endpoint.peek(10) == [2, 3, 4]

    endpoint.unbind(flow)
    assert endpoint.peek(1) == [1]
    plain = Flow(endpoint, None)
    endpoint.bind(plain)
    for i in (1, 2, 3, 4):
        assert endpoint.peek(1) == [i]
        endpoint.hand_out(plain, [i], [row(i)])
    assert endpoint.peek(1) == []


def test_what_no_selector_wants_does_not_hide_what_is_new() -> None:
    """However much in front of it is unwanted, a new message that a selector wants is looked at."""
    endpoint = endpoint_with(2, 4, 6, 8, 10, window=2)
    queue = endpoint.queue_to_read(page_rows=10)
    assert queue is not None
    queue.add_page([2, 4, 6, 8], 9)
    flow = selecting_flow(endpoint)
    assert endpoint.candidates_of(flow, 10) == [2, 4, 6, 8, 10]
    endpoint.ready.add_committed([11])
    assert endpoint.candidates_of(flow, 10) == [11]
