"""Dead messages that would come back: which dead message queues make a circle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.endpoint.settings import DeadLetterWay, EndpointKind, circle_of, way_of

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
