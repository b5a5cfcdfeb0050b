"""
What an open frame asks of other connections of its container (AMQP Enforcing Connection Uniqueness 1.0).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

from amqp_ext.codec import Symbol

SOLE_CONNECTION: Final = Symbol("sole-connection-for-container")
"""Capability that a peer desires, and that we offer then."""

ENFORCEMENT_POLICY: Final = Symbol("sole-connection-enforcement-policy")
DETECTION_POLICY: Final = Symbol("sole-connection-detection-policy")
ENFORCEMENT: Final = "sole-connection-enforcement"
"""In the info of the error that an older connection is closed with."""

STRONG: Final = 0
"""Detection of all connections of the container, whatever these desire themselves."""


class EnforcementPolicy(IntEnum):
    """What becomes of a connection when its container opens another one."""

    REFUSE_CONNECTION = 0
    CLOSE_EXISTING = 1


class PolicyError(ValueError):
    """An enforcement policy that is none; the text is a sentence for the peer."""


def read_policy(desired: Any, properties: Any) -> EnforcementPolicy | None:
    """
    The policy that an open frame asks for; None where it does not desire to be alone.

    Args:
        desired: Its desired-capabilities, decoded.
        properties: Its properties, decoded.

    Raises:
        PolicyError: There is no such policy.
    """
    wanted = desired if isinstance(desired, list) else [desired]
    if SOLE_CONNECTION not in wanted:
        return None
    said = properties.get(ENFORCEMENT_POLICY) if isinstance(properties, dict) else None
    if said is None:
        return EnforcementPolicy.REFUSE_CONNECTION
    if isinstance(said, bool) or not isinstance(said, int) or said not in tuple(EnforcementPolicy):
        raise PolicyError(
            f"{ENFORCEMENT_POLICY} is 0 (refuse-connection) or 1 (close-existing), not {said!r:.60}"
        )
    return EnforcementPolicy(said)
