"""
How a client is sent to another gateway, by what it makes of it (AMQP 1.0 section 2.8.18).

===============================  ==============================================================================
a client that                    gets
===============================  ==============================================================================
follows redirects                ``amqp:connection:redirect``, with where to
says anything about itself       ``amqp:connection:forced``, with the same entries in the error's info map
says nothing about itself        the end of its connection, before our open frame if may be; the gateway's log says why
===============================  ==============================================================================

The last are Proton's: an open frame has them begin anew with the first of their addresses, which may be ours, whatever
follows it; and a close frame has Proton for Python wait for its heartbeat, if it has one. Without either, they go on
with the next address at once, as all do that have several. For whoever has one only, an error would be kinder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from gateway.core.errors import ErrorCode, Refused

FOLLOWERS: Final = frozenset({"QpidJMS"})
"""What clients that follow a redirect call themselves, by ``product`` in the properties of their open frames: Qpid JMS
(``FailoverProvider.handleProviderFailure``). ProtonJ2 tells its application, and goes on with its next address."""

WHERE: Final = "network-host"
"""The entry of the info map without which there is no redirect."""


def is_better_untold(refused: Refused, properties: Mapping[Any, Any] | None) -> bool:
    """
    Whether a client is best told nothing, and finds its next address by itself.

    Args:
        properties: Of its open frame.
    """
    return refused.code is ErrorCode.REDIRECT and not properties


def as_followed(refused: Refused, properties: Mapping[Any, Any] | None) -> Refused:
    """What a client is told in place of a redirect, unless it follows one and there is somewhere to go."""
    if refused.code is not ErrorCode.REDIRECT:
        return refused
    if WHERE in refused.info and (properties or {}).get("product") in FOLLOWERS:
        return refused
    return Refused(ErrorCode.CONNECTION_FORCED, refused.text, **refused.info)


SENT_AWAY_SECONDS: Final = 30.0
"""For which a client that was sent away is not let in again."""

MOST_SENT_AWAY: Final = 1_000
"""Clients that are remembered; the first ones are forgotten."""


class SentAway:
    """
    Clients that were sent away from a gateway that serves readers alone, once it was seen what they wanted. Those of
    Proton come back to their first address, as their connection was open: when they do, they are better left unopened.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._until: dict[tuple[str, str], float] = {}

    def note(self, peer: str, container: str) -> None:
        """
        A client is sent away.

        Args:
            peer: HOST:PORT it comes from.
            container: Its container-id.
        """
        key = _key(peer, container)
        self._until.pop(key, None)
        self._until[key] = self._monotonic() + SENT_AWAY_SECONDS
        while len(self._until) > MOST_SENT_AWAY:
            del self._until[next(iter(self._until))]

    def has(self, peer: str, container: str) -> bool:
        """Whether a client was, a moment ago."""
        return self._until.get(_key(peer, container), 0.0) > self._monotonic()


def _key(peer: str, container: str) -> tuple[str, str]:
    return peer.rpartition(":")[0], container
