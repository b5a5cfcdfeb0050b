"""Whose turn it is among consumers of different priority."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.endpoint.endpoint import FLOW_QUANTUM, Endpoint, Flow
from gateway.core.endpoint.settings import EndpointSettings
from tests.support.endpoints import new_endpoint

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
