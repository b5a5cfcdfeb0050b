"""
How a client is sent to another gateway, by what it makes of it (AMQP 1.0 section 2.8.18).

===============================  ==============================================================================
a client that                    gets
===============================  ==============================================================================
follows redirects                ``amqp:connection:redirect``, with where to
says anything about itself       ``amqp:connection:forced``, with the same entries in the error's info map
says nothing about itself        the end of its connection before our open frame; the gateway's log says why
===============================  ==============================================================================

The last are Proton's: an open frame has them begin anew with the first of their addresses, which may be ours, whatever
follows it; and a close frame has Proton for Python wait for its heartbeat, if it has one. Without either, they go on
with the next address at once, as all do that have several. For whoever has one only, an error would be kinder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.core.errors import ErrorCode, Refused

FOLLOWERS: Final = frozenset({"QpidJMS"})
"""What clients that follow a redirect call themselves, by ``product`` in the properties of their open frames: Qpid JMS
(``FailoverProvider.handleProviderFailure``). ProtonJ2 tells its application, and goes on with its next address."""

WHERE: Final = "network-host"
"""The entry of the info map without which there is no redirect."""


def is_better_unopened(refused: Refused, properties: Mapping[Any, Any] | None) -> bool:
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
