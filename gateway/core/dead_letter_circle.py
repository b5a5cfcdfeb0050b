"""
Circles of dead message queues: dead messages that would come back to where they died, and die again, for ever.

A dead message is sent to its endpoint's dead message queue by name. It comes to that queue, and to whoever subscribes
to what is sent there; each of them may have a dead message queue of its own. A stream holds no message that could die.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from amqp_ext.addresses.queue_names import queue_topic
from amqp_ext.topics import TopicFilter, TopicPattern
from gateway.core.endpoint.settings import EndpointKind


class DeadLetterWay(NamedTuple):
    """Where an endpoint's dead messages go, and what comes to it."""

    queue: str
    """Its dead message queue."""
    takes: Callable[[str], bool]
    """Whether what is published to a topic is put on it."""


def way_of(
    name: str, kind: EndpointKind, dead_message_queue: str, subscriptions: Iterable[str]
) -> DeadLetterWay | None:
    """The way of an endpoint that is like this; None where no message dies, or a dead one goes nowhere."""
    if not dead_message_queue or kind is EndpointKind.STREAM:
        return None
    own = None if kind is EndpointKind.TOPIC_ENDPOINT else queue_topic(name)
    subscribed = TopicFilter([TopicPattern.parse(text) for text in subscriptions], reserved=False).matches
    return DeadLetterWay(dead_message_queue, lambda topic: topic == own or subscribed(topic))


def circle_of(name: str, ways: Mapping[str, DeadLetterWay]) -> list[str]:
    """
    The endpoints through which an endpoint's dead messages come back to it, itself first and last; none where they do
    not.
    """
    came_from: dict[str, str] = {}
    waiting = [name]
    while waiting:
        here = waiting.pop()
        way = ways.get(here)
        if way is None:
            continue
        topic = queue_topic(way.queue)
        for there, other in ways.items():
            if there not in came_from and other.takes(topic):
                came_from[there] = here
                waiting.append(there)
    if name not in came_from:
        return []
    path = [name, came_from[name]]
    while path[-1] != name:
        path.append(came_from[path[-1]])
    return path[::-1]


def told(circle: Iterable[str]) -> str:
    """A circle, for a sentence."""
    return " to ".join(repr(name) for name in circle)
