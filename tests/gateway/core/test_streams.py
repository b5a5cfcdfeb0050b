"""The broker's side of streams: nothing is ever put on one, and what it is of the log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.broker import Broker
from gateway.core.effects import SaveEndpoint, SaveSubscription
from gateway.core.endpoint.endpoint import Endpoint, Flow
from gateway.core.endpoint.settings import (
    DeadLetterWay,
    EndpointKind,
    EndpointSettings,
    Exclusivity,
    circle_of,
    way_of,
)
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log import LogPolicy
from gateway.core.model import LogState

# --- The broker's side of streams -----------------------------------------------------------------------------------

STREAM = EndpointKind.STREAM


def broker_of(**policy: bool) -> Broker:
    log = LogState(generation=1, first_id=1, next_id=1, last_time_ms=0, floor_ms=0)
    return Broker(log, LogPolicy(**policy), window=100, create_queues=True)


def stream(broker: Broker, *subscriptions: str, exclusive: Exclusivity = Exclusivity.NONE) -> Endpoint:
    return broker.create("s", STREAM, EndpointSettings(exclusive=exclusive), subscriptions)[0]


@pytest.mark.parametrize("topic", ["#queue/s", "a/b"])
def test_nothing_is_put_on_a_stream(topic: str) -> None:
    """What matches a stream goes to the log alone, and to the queues that match as well."""
    broker = broker_of()
    endpoint = stream(broker, "a/>")
    publication, taken, refused = broker.publications.publish(0, topic, [b"x"], [0], None)
    assert publication is not None
    assert (publication.routes, publication.logged, taken, refused) == ([], True, 1, None)
    assert broker.publications.committed(publication) == []
    queue, _ = broker.create("q", EndpointKind.QUEUE, EndpointSettings(), ["a/>", "#queue/s"])
    publication, _, _ = broker.publications.publish(0, topic, [b"x"], [0], None)
    assert publication is not None
    assert [route.endpoints for route in publication.routes] == [(queue.number,)]
    broker.publications.committed(publication)
    assert (endpoint.depth, queue.depth) == (0, 1)


def test_direct_messages_that_the_log_promotes() -> None:
    """A settled message to a stream is kept where `promote_direct` has the log take it."""
    broker = broker_of(promote_direct=True)
    stream(broker)
    publication, taken, _ = broker.publications.publish(0, "#queue/s", [b"x"], [0], None, is_direct=True)
    assert publication is not None
    assert (publication.logged, taken) == (True, 1)


@pytest.mark.parametrize("is_direct", [False, True])
def test_nobody_wants_what_no_log_takes(is_direct: bool) -> None:
    """With a log that takes nothing, and for settled messages with one that promotes none, a stream is nobody."""
    broker = broker_of() if is_direct else broker_of(writes=False)
    stream(broker)
    assert broker.publications.publish(0, "#queue/s", [b"x"], [0], None, is_direct=is_direct) == (
        None,
        0,
        None,
    )


@pytest.mark.parametrize(
    ("subscriptions", "shown", "not_shown"),
    [
        ((), ["#queue/s"], ["s", "a", "#queue/t"]),
        (("a/>", "!a/x/>"), ["#queue/s", "a/b"], ["a/x/y", "b"]),
        ((">", "!>"), ["#queue/s"], ["a"]),
        ((">",), ["#queue/s", "a"], ["#queue/t"]),
        (("#queue/>",), ["#queue/s", "#queue/t"], ["a"]),
    ],
)
def test_what_a_stream_shows(subscriptions: tuple[str, ...], shown: list[str], not_shown: list[str]) -> None:
    """Its own topic always, and what it subscribes to, as a queue of these subscriptions would get it."""
    broker = broker_of()
    shows = stream(broker, *subscriptions).topics.matches
    assert all(shows(topic) for topic in shown)
    assert not any(shows(topic) for topic in not_shown)


def test_a_stream_is_made_on_first_use() -> None:
    """It is kept as what it is, and found again by those who say nothing of its kind."""
    broker = broker_of()
    endpoint, effects = broker.queue_for("s", kind=STREAM, exclusive=Exclusivity.WAIT)
    assert [(e.name, e.kind) for e in effects if isinstance(e, SaveEndpoint)] == [("s", "stream")]
    assert broker.queue_for("s") == (endpoint, [])
    assert broker.queue_for("s", kind=STREAM, exclusive=Exclusivity.WAIT) == (endpoint, [])
    with pytest.raises(Refused) as refused:
        broker.queue_for("s", kind=EndpointKind.QUEUE)
    assert refused.value.code is ErrorCode.PRECONDITION_FAILED
    assert broker.set_subscriptions(endpoint, ["a"]) == [SaveSubscription(endpoint.number, "a")]


def test_without_a_log_no_stream_is_made() -> None:
    """A log that only takes, or only gives, is enough for one."""
    with pytest.raises(Refused) as refused:
        broker_of(writes=False, reads=False).queue_for("s", kind=STREAM)
    assert refused.value.code is ErrorCode.REPLAY_DISABLED
    for policy in ({"writes": False}, {"reads": False}):
        broker_of(**policy).queue_for("s", kind=STREAM)


@pytest.mark.parametrize("by_client", [False, True])
def test_a_stream_is_not_rewound(by_client: bool) -> None:
    """An endpoint replay puts messages on an endpoint; on a stream there is no place for them."""
    broker = broker_of()
    with pytest.raises(Refused) as refused:
        broker.replay_commands.check(stream(broker), by_client=by_client)
    assert refused.value.code is ErrorCode.NOT_ALLOWED


def test_waiting_readers_become_active_in_order() -> None:
    """A reader is a flow: of a stream that is exclusive=wait one is active, and the next when that is gone."""
    endpoint = stream(broker_of(), exclusive=Exclusivity.WAIT)
    flows = [Flow(endpoint, None) for _ in range(3)]
    for flow in flows:
        endpoint.bind(flow)
    assert list(endpoint.active_flows) == flows[:1]
    endpoint.unbind(flows[1])
    endpoint.unbind(flows[0])
    assert list(endpoint.active_flows) == flows[2:]


# --- Dead messages that would come back -----------------------------------------------------------------------------

NAMES = "abcde"


def ways(**said: tuple[str, tuple[str, ...]]) -> dict[str, DeadLetterWay]:
    """Queues with a dead message queue and subscriptions each."""
    found = {name: way_of(name, EndpointKind.QUEUE, *of) for name, of in said.items()}
    return {name: way for name, way in found.items() if way is not None}


@pytest.mark.parametrize(
    ("said", "circle"),
    [
        ({"a": ("b", ())}, ""),
        ({"a": ("a", ())}, "aa"),
        ({"a": ("b", ()), "b": ("a", ())}, "aba"),
        ({"a": ("b", ()), "b": ("c", ()), "c": ("a", ())}, "abca"),
        ({"a": ("b", ()), "b": ("c", ()), "c": ("b", ())}, ""),
        ({"a": ("d", ("#queue/d",))}, "aa"),
        ({"a": ("d", ("#queue/>", "!#queue/d"))}, ""),
        ({"a": ("d", (">",))}, ""),
        ({"a": ("d", ()), "b": ("a", ("#queue/*",))}, "aba"),
    ],
)
def test_a_circle_is_found_by_name_and_by_subscription(
    said: dict[str, tuple[str, tuple[str, ...]]], circle: str
) -> None:
    """A dead message comes to the queue that is named, and to who subscribes to what is sent there."""
    assert "".join(circle_of("a", ways(**said))) == circle


@given(st.dictionaries(st.sampled_from(NAMES), st.sampled_from([*NAMES, ""])))
def test_a_circle_is_there_where_following_the_names_comes_back(dead: dict[str, str]) -> None:
    """Told by walking as many steps as there are queues."""
    found = ways(**{name: (queue, ()) for name, queue in dead.items()})
    for name in NAMES:
        here, seen = name, []
        for _ in NAMES:
            here = dead.get(here, "")
            seen.append(here)
        circle = circle_of(name, found)
        assert bool(circle) is (name in seen)
        assert not circle or (circle[0] == circle[-1] == name and len(set(circle)) == len(circle) - 1)


def test_a_stream_ends_a_way() -> None:
    """No message lies on it that could die."""
    assert way_of("a", EndpointKind.STREAM, "b", ()) is None
