"""
A refusal because the user's permissions do not allow something: the rule that decided is for the log.
"""

from __future__ import annotations

from gateway.core.errors import ErrorCode, Refused


class Denied(Refused):
    """A user's permissions do not allow it. ``rule`` decided; it is for the log, not for the peer."""

    def __init__(self, text: str, rule: str) -> None:
        super().__init__(ErrorCode.UNAUTHORIZED, text)
        self.rule = rule


def rule_of(refused: Refused) -> str | None:
    """The rule that decided; None where it was no matter of permissions."""
    return refused.rule if isinstance(refused, Denied) else None
