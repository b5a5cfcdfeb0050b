"""
The topics that a copy takes: patterns, of which one with a leading ``!`` leaves out what the others match.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amqp_ext.topics import TopicFilter, TopicPattern, TopicSyntaxError
from gateway.core.errors import ErrorCode, Refused

MOST_PATTERNS = 100
"""Patterns of one copy: each message's topic is compared with all of them, once a topic and page."""


def positive(patterns: Sequence[str]) -> tuple[str, ...]:
    """Those that are no exceptions: what the store is asked for."""
    return tuple(pattern for pattern in patterns if not pattern.startswith("!"))


def matcher_of(patterns: Sequence[str]) -> Callable[[str], bool] | None:
    """Whether a topic is one of these; None when every topic is."""
    return (
        None if tuple(patterns) == (">",) else TopicFilter([TopicPattern.parse(p) for p in patterns]).matches
    )


def checked(patterns: Sequence[str]) -> tuple[str, ...]:
    """
    The patterns of a copy; everything where there are none.

    Raises:
        Refused: INVALID_FIELD, one is no pattern, there are too many, or all are exceptions.
    """
    if not patterns:
        return (">",)
    if len(patterns) > MOST_PATTERNS:
        raise Refused(
            ErrorCode.INVALID_FIELD,
            f"a copy has at most {MOST_PATTERNS} subscriptions, and {len(patterns)} were given",
        )
    try:
        for pattern in patterns:
            TopicPattern.parse(pattern)
    except TopicSyntaxError as error:
        raise Refused(ErrorCode.INVALID_FIELD, str(error)) from error
    if not positive(patterns):
        raise Refused(
            ErrorCode.INVALID_FIELD, "the subscriptions are exceptions alone, which match nothing; add one"
        )
    return tuple(patterns)
