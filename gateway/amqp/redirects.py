"""
Which clients are redirected to another gateway (AMQP 1.0 section 2.8.18), and which are only told where it is.

``amqp:connection:redirect`` is an error like any other to a client that does not know it: Proton's containers and rhea
then give up for good, where ``amqp:connection:forced`` has them go on with the next of their addresses. So it is for
clients that follow it; all others are closed as forced, with the same address in the error's info map.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from gateway.core.errors import ErrorCode, Refused

FOLLOWERS: Final = frozenset({"QpidJMS"})
"""What clients that follow a redirect call themselves, by ``product`` in the properties of their open frames: Qpid JMS
(``FailoverProvider.handleProviderFailure``). ProtonJ2 tells its application, and goes on with its next address."""


def as_followed(refused: Refused, properties: Mapping[Any, Any] | None) -> Refused:
    """
    What a client is told in place of a redirect, unless it follows one.

    Args:
        properties: Of its open frame.
    """
    if refused.code is not ErrorCode.REDIRECT or (properties or {}).get("product") in FOLLOWERS:
        return refused
    return Refused(ErrorCode.CONNECTION_FORCED, refused.text, **refused.info)
