"""
The topics of an endpoint: those it subscribes to, and for a queue or stream the one that is its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

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
        return self.patterns_with(self._subscriptions)

    @property
    def matches(self) -> Callable[[str], bool]:
        """Whether a topic is one of the endpoint's; compiled once for the subscriptions as they are now."""
        if self._matches is None:
            self._matches = self.matching(self._subscriptions)
        return self._matches

    def matching(self, subscriptions: Iterable[str]) -> Callable[[str], bool]:
        """Whether a topic would be one of the endpoint's if it subscribed to these."""
        own = self._own
        patterns = [TopicPattern.parse(text) for text in subscriptions]
        if own is not None and not patterns:
            return own.__eq__
        subscribed = TopicFilter(patterns, reserved=False).matches
        if own is None:
            return subscribed
        return lambda topic: topic == own or subscribed(topic)

    def patterns_with(self, subscriptions: Iterable[str]) -> tuple[str, ...]:
        """The topics as patterns, if the endpoint subscribed to these."""
        return (*subscriptions,) if self._own is None else (*subscriptions, self._own)
