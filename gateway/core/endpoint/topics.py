"""
The topics of an endpoint: those it subscribes to, and for a queue or stream the one that is its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from amqp_ext.addresses.queue_names import queue_topic
from amqp_ext.topics import TopicFilter, TopicPattern
from gateway.core.endpoint.settings import EndpointKind


class EndpointTopics:
    """
    Args:
        subscriptions: The endpoint's; tell ``changed`` when there are others in it.
    """

    __slots__ = ("_matches", "_own", "_subscriptions")

    def __init__(self, name: str, kind: EndpointKind, subscriptions: Mapping[str, None]) -> None:
        self._own = None if kind is EndpointKind.TOPIC_ENDPOINT else queue_topic(name)
        self._subscriptions = subscriptions
        self._matches: Callable[[str], bool] | None = None

    def changed(self) -> None:
        """The endpoint subscribes to something else."""
        self._matches = None

    @property
    def patterns(self) -> tuple[str, ...]:
        """The topics as patterns, to look for in the store."""
        return (*self._subscriptions,) if self._own is None else (*self._subscriptions, self._own)

    @property
    def matches(self) -> Callable[[str], bool]:
        """Whether a topic is one of the endpoint's; compiled once for the subscriptions as they are now."""
        if self._matches is None:
            self._matches = self._compiled()
        return self._matches

    def _compiled(self) -> Callable[[str], bool]:
        own = self._own
        if own is not None and not self._subscriptions:
            return own.__eq__
        patterns = [TopicPattern.parse(text) for text in self._subscriptions]
        subscribed = TopicFilter(patterns, reserved=False).matches
        if own is None:
            return subscribed
        return lambda topic: topic == own or subscribed(topic)
