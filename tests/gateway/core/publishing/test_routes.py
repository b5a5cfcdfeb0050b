"""Routes: interned, restored, merged and forgotten; and what a publication costs the endpoints that it is put on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.topics import TopicPattern
from gateway.core import router as router_module
from gateway.core.effects import StoredRoute
from gateway.core.endpoint.backlog import Backlog
from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings
from gateway.core.model import WHOLE, RouteDefinition
from gateway.core.publications import MAX_RANGES, Origins
from gateway.core.router import Route, Router, RouteTable
from tests.support.core import new_broker, new_endpoint, publish

# --- Routes ---------------------------------------------------------------------------------------------------------


def stored(number: int, endpoints: Sequence[int], newest_id: int, priority: int | None = None) -> StoredRoute:
    return StoredRoute(RouteDefinition(number, tuple(endpoints), priority), newest_id)


@pytest.fixture
def endpoints() -> dict[int, Endpoint]:
    return {number: new_endpoint(number=number) for number in (1, 2, 3)}


# --- the table ------------------------------------------------------------------------------------------------------
def test_a_set_of_endpoints_is_one_route_and_a_number_is_given_once(endpoints: dict[int, Endpoint]) -> None:
    table = RouteTable()
    both = table.intern([endpoints[1], endpoints[2]], None)
    assert table.intern([endpoints[1], endpoints[2]], None) is both
    others = [table.intern([endpoints[1]], None), table.intern([endpoints[1], endpoints[2]], 4)]
    assert [route.definition.number for route in (both, *others)] == [1, 2, 3]
    assert list(endpoints[1].backlog.routes) == [both, *others]
    assert list(endpoints[2].backlog.routes) == [both, others[1]]
    assert len(list(table)) == 3


def test_routes_that_differ_by_endpoints_that_are_gone_are_one_after_a_start(
    endpoints: dict[int, Endpoint],
) -> None:
    table = RouteTable()
    table.restore(
        [stored(1, [1, 9], 30), stored(2, [1], 20), stored(3, [9], 40), stored(5, [8, 9], 50)], endpoints
    )
    (route,) = table
    assert route.definition.endpoints == (1,)
    assert set(route.numbers) >= {1, 2}
    assert not {3, 5} & set(route.numbers)
    assert route.newest_id == 30
    assert endpoints[1].backlog.route_numbers(WHOLE) == sorted(route.numbers)
    assert table.intern([endpoints[2]], None).definition.number not in {1, 2, 3, 5, *route.numbers}


def test_new_messages_name_a_number_that_says_who_has_them(endpoints: dict[int, Endpoint]) -> None:
    """A stored route with a deleted endpoint keeps its number; new messages name a new number."""
    table = RouteTable()
    table.restore([stored(1, [1, 9], 30)], endpoints)
    (route,) = table
    assert route.numbers[0] == route.definition.number != 1
    assert table.intern([endpoints[1]], None) is route


@pytest.mark.parametrize("is_awake", [False, True])
def test_an_endpoint_that_goes_makes_routes_one_and_others_keep_what_they_have(
    endpoints: dict[int, Endpoint], is_awake: bool
) -> None:
    table = RouteTable()
    one, two, three = endpoints.values()
    both, alone, gone = table.intern([one, two], None), table.intern([one], None), table.intern([two], None)
    if is_awake:
        one.watch()
    for route, messages, newest_id in ((both, 3, 30), (alone, 2, 20), (gone, 1, 40)):
        route.add(messages, 10 * messages, newest_id)
        for endpoint in route.awake:
            endpoint.backlog.published(route, messages, 10 * messages)
    table.remove_endpoint(two)
    assert list(table) == [alone]
    assert both.current() is alone
    assert list(one.backlog.routes) == [alone]
    assert (one.depth, one.size_bytes) == (5, 50)
    assert alone.newest_id == 30
    assert sorted(alone.numbers) == [1, 2]
    if is_awake:
        one.unwatch()
    else:
        one.watch()
    assert (one.depth, one.size_bytes, three.depth) == (5, 50, 0)


def test_a_route_without_the_endpoint_is_made_where_there_was_none(endpoints: dict[int, Endpoint]) -> None:
    table = RouteTable()
    one, two, three = endpoints.values()
    first, second = table.intern([one, two, three], None), table.intern([two, three], None)
    first.add(2, 20, 9)
    table.remove_endpoint(three)
    assert {route.definition.endpoints for route in table} == {(1, 2), (2,)}
    assert first.current().definition.endpoints == (1, 2)
    assert second.current().definition.endpoints == (2,)
    assert len({route.definition.number for route in table} | {1, 2}) == 4
    table.remove_endpoint(two)
    assert [route.definition.endpoints for route in table] == [(1,)]
    assert first.current().definition.endpoints == (1,)
    assert 1 in first.current().numbers
    assert one.depth == 2


@pytest.mark.parametrize("is_awake", [False, True])
def test_a_route_is_forgotten_when_every_endpoint_is_done_with_it(
    endpoints: dict[int, Endpoint], is_awake: bool
) -> None:
    table = RouteTable()
    one, two, _ = endpoints.values()
    route = table.intern([one, two], None)
    if is_awake:
        one.watch()
    route.add(2, 20, 6)
    for endpoint in route.awake:
        endpoint.backlog.published(route, 2, 20)
    for endpoint, floor in ((one, 6), (two, 5)):
        endpoint.backlog.parts[WHOLE].add(1, floor)
    table.sweep(set())
    assert list(table) == [route], "one endpoint has the newest message yet"
    two.backlog.parts[WHOLE].add(6, 6)
    table.sweep({route.definition.number})
    assert list(table) == [route], "the next message may name it"
    depths = one.depth, two.depth, one.size_bytes, two.size_bytes
    table.sweep(set())
    assert list(table) == []
    assert (one.depth, two.depth, one.size_bytes, two.size_bytes) == depths, (
        "what is counted of it stays counted"
    )
    assert not one.backlog.routes
    assert not two.backlog.routes
    assert table.intern([one, two], None).definition.number != route.definition.number


# --- routing --------------------------------------------------------------------------------------------------------
def new_router(
    endpoints: dict[int, Endpoint], patterns: dict[int, str], table: RouteTable | None = None
) -> Router:
    by_name = {e.name: e for e in endpoints.values()}
    router = Router(
        by_name, lambda topic: not topic.startswith("u/"), RouteTable() if table is None else table
    )
    for number, pattern in patterns.items():
        router.add(TopicPattern.parse(pattern), endpoints[number].name)
    return router


def names(endpoints: Sequence[Endpoint]) -> list[str]:
    return [endpoint.name for endpoint in endpoints]


def test_a_topic_leads_to_who_subscribes_in_the_order_of_their_numbers(
    endpoints: dict[int, Endpoint],
) -> None:
    router = new_router(endpoints, {3: "a/>", 1: "a/x", 2: "b/>"})
    routing = router.route("a/x")
    assert names(routing.all.endpoints) == ["q1", "q3"]
    assert routing.all is routing.live
    assert routing.logged
    assert not router.route("u/x").logged
    assert router.route("u/x").all.route is None, "where it goes to nobody there is no route"
    assert router.route("a/y").all.route is not routing.all.route
    router.remove(TopicPattern.parse("a/x"), "q1")
    assert router.route("a/x").all.route is router.route("a/y").all.route
    router.remove_all("q3")
    assert not router.route("a/x").all.endpoints


def test_what_an_endpoint_does_not_want_from_an_origin_goes_by_another_route() -> None:
    choosy = new_endpoint(EndpointSettings(no_local="me"))
    endpoints = {1: choosy, 2: new_endpoint(number=2)}
    table = RouteTable()
    router = new_router(endpoints, {1: "a/>", 2: "a/x"}, table)
    routing = router.route("a/x")
    assert routing.no_local == {"me"}
    mine = router.route_from("me", "a/x")
    assert names(mine.all.endpoints) == names(mine.live.endpoints) == ["q2"]
    assert router.route_from("me", "a/x") is mine
    router.sweep()
    assert {mine.all.route, routing.all.route} == set(table), "the next message may name them"
    assert router.route_from("me", "a/y").all.route is None


def test_cached_routings_have_one_bound_for_topics_and_publishers(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many topics there are, and publishers whose messages some endpoint excludes."""
    monkeypatch.setattr(router_module, "CACHED_ROUTINGS", 10)
    endpoints = {k: new_endpoint(EndpointSettings(no_local=f"me{k}"), number=k) for k in range(1, 6)}
    router = new_router(endpoints, dict.fromkeys(endpoints, "a/>"))
    for level in range(20):
        for origin in router.route(f"a/{level}").no_local:
            router.route_from(origin, f"a/{level}")
            assert len(router.cached) <= 10
    routings = router.cached.values()
    assert all(len(one.all.endpoints) in (4, 5) for one in routings)


def test_messages_of_each_priority_have_a_route_where_an_endpoint_looks_at_it() -> None:
    endpoints = {1: new_endpoint(EndpointSettings(priorities=True)), 2: new_endpoint(number=2)}
    routing = new_router(endpoints, {1: "a/>", 2: "a/>"}).route("a/x")
    assert routing.all.route is None
    ranked = [routing.all.ranked(priority) for priority in (4, 9, 4)]
    assert ranked[0] is ranked[2]
    assert [route.priority for route in ranked] == [4, 9, 4]
    assert [endpoints[1].backlog.part_of(route) for route in ranked] == [4, 9, 4]
    assert [endpoints[2].backlog.part_of(route) for route in ranked] == [WHOLE] * 3
    assert set(routing.all.numbers) == {route.definition.number for route in ranked}


def test_publishing_tells_those_alone_that_somebody_consumes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only endpoints with consumers are called. Others compute their depth from their routes when they are asked."""
    broker = new_broker()
    made = [broker.create(f"q{k}", EndpointKind.QUEUE, EndpointSettings(), ("a/>",))[0] for k in range(50)]
    made[7].bind(Flow(made[7], None))
    told: list[str] = []
    real = Endpoint.add_published

    def counted(self: Endpoint, *args: object) -> bool:
        told.append(self.name)
        return real(self, *args)  # type: ignore[arg-type]

    looked_at: list[Route] = []
    monkeypatch.setattr(Endpoint, "add_published", counted)
    monkeypatch.setattr(Backlog, "published", lambda self, route, *_: looked_at.append(route))
    for _ in range(3):
        publish(broker, "a/x", 4)
    assert told == ["q7"] * 3
    assert len(looked_at) == 3
    monkeypatch.undo()
    assert [endpoint.depth for endpoint in made if endpoint is not made[7]] == [12] * 49


# --- The origins of publications, remembered in ranges as long as somebody watches ----------------------------------

PUBLICATIONS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5), st.sampled_from(["a", "b", ""])))
"""For each publication, the ids skipped before it, its number of messages, and its origin."""


@given(publications=PUBLICATIONS, first=st.integers(1, 100))
def test_each_message_has_the_origin_it_came_from(
    publications: list[tuple[int, int, str]], first: int
) -> None:
    """An id has the origin of its publication, whatever ids were skipped; other ids have none."""
    origins = Origins()
    expected: dict[int, str] = {}
    position = first
    for skipped, count, origin in publications:
        position += skipped
        origins.add(position, position + count, origin)
        expected.update(dict.fromkeys(range(position, position + count), origin))
        position += count
    for message_id in range(position + 5):
        assert origins.of(message_id) == expected.get(message_id, "")


def test_one_publisher_costs_one_range() -> None:
    """Consecutive publications of one origin are one range; of alternating origins, the oldest ranges are forgotten."""
    origins = Origins()
    for i in range(1_000):
        origins.add(i * 10, i * 10 + 10, "a")
    assert len(origins._starts) == 1
    for i in range(10_000, 10_000 + MAX_RANGES + 1):
        origins.add(i, i + 1, "ab"[i % 2])
    assert len(origins._starts) <= MAX_RANGES
    assert origins.of(5) == "", "the oldest are not local any more"
    assert origins.of(10_000 + MAX_RANGES) == "ab"[MAX_RANGES % 2]


def test_nothing_is_kept_when_nobody_asks() -> None:
    """When the last watcher has gone, all origins are forgotten."""
    origins = Origins()
    origins.watch("one")
    origins.watch("two")
    origins.add(1, 5, "a")
    origins.forget("one")
    origins.forget("never asked")
    assert origins.of(3) == "a"
    origins.forget("two")
    assert (origins.of(3), len(origins.watchers)) == ("", 0)
