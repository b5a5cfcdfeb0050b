"""
The topics that a rule holds for, the first of several that match a topic, held against subscriptions.

What is told apart is patterns alone: of topics that two patterns share, some may never have been.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from amqp_ext.addresses.address import AddressKind
from amqp_ext.addresses.patterns import AddressPattern
from amqp_ext.topics import TopicPattern


def may_hold_for(topics: Sequence[str], before: Sequence[Sequence[str]], patterns: Sequence[str]) -> bool:
    """
    Whether a rule may hold for topics of some subscriptions; rather yes than no.

    Args:
        topics: The rule's.
        before: The topics of the rules before it: what they match it does not hold for.
        patterns: The subscriptions, with exceptions among them; for every topic where they name none.
    """
    asked = list(map(TopicPattern.parse, patterns))
    excepted = [pattern for pattern in asked if pattern.is_exception]
    wanted = [pattern for pattern in asked if not pattern.is_exception] or [TopicPattern.parse(">")]
    return any(_may_hold_for(topics, before, pattern, excepted) for pattern in wanted)


def _may_hold_for(
    topics: Sequence[str],
    before: Iterable[Sequence[str]],
    asked: TopicPattern,
    excepted: Sequence[TopicPattern],
) -> bool:
    """
    The same for one subscription.

    Args:
        before: The topics of the rules before it.
        excepted: Exceptions of whoever asks.
    """
    patterns = list(map(TopicPattern.parse, topics))
    if any(_covers(pattern, asked) for pattern in patterns if pattern.is_exception):
        return False
    if any(_covers_all(others, asked) for others in before):
        return False
    return any(
        _touch(pattern, asked) and not any(_covers(exception, pattern) for exception in excepted)
        for pattern in patterns
        if not pattern.is_exception
    )


def _covers_all(topics: Sequence[str], asked: TopicPattern) -> bool:
    patterns = list(map(TopicPattern.parse, topics))
    return not any(_touch(p, asked) for p in patterns if p.is_exception) and any(
        _covers(p, asked) for p in patterns if not p.is_exception
    )


def _covers(pattern: TopicPattern, asked: TopicPattern) -> bool:
    """Whether every topic of ``asked`` is one of ``pattern``, exceptions as what they except."""
    return _names(pattern).covers(AddressKind.LOG, asked)


def _touch(pattern: TopicPattern, asked: TopicPattern) -> bool:
    """Whether some topic of ``asked`` is one of ``pattern``, exceptions as what they except."""
    return _names(pattern).touches(AddressKind.LOG, asked)


def _names(pattern: TopicPattern) -> AddressPattern:
    return AddressPattern(pattern.text, AddressKind.LOG, pattern, False)
