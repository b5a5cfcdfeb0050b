"""
What the replay log of a Message VPN takes and gives, and the refusals of what needs a log where it is off.

Invariant: whoever asks for what the log would give, while it gives nothing, is told so in the same words.
"""

from __future__ import annotations

from dataclasses import dataclass

from amqp_ext.topics import TopicFilter
from gateway.core.errors import ErrorCode, Refused
from gateway.core.log.retention_rule import RetentionRule


@dataclass(slots=True)
class LogPolicy:
    """What the replay log of a VPN takes. A quota of 0 is none; in bytes of content."""

    writes: bool = True
    """Messages are logged."""
    reads: bool = True
    """What is logged can be replayed and read."""
    quota_bytes: int = 0
    filter: TopicFilter | None = None
    """None when every topic is logged."""
    promote_direct: bool = False
    replay_temporary: bool = True
    max_replays: int = 1000
    max_age_hours: int = 0
    """What is older is trimmed; 0 for no bound."""
    retention: tuple[RetentionRule, ...] = ()
    """What is kept of some topics, in their order."""
    keep_until_archived: bool = False
    """Nothing is trimmed that is not in an archive."""

    def takes(self, topic: str) -> bool:
        return self.writes and (self.filter is None or self.filter.matches(topic))

    def check_reads(self, without: str) -> None:
        """
        That what is logged can be read; ``without`` says what is not there as long as it cannot.

        Raises:
            Refused: REPLAY_DISABLED.
        """
        if not self.reads:
            raise log_is_off(without)

    def check_can_be_viewed(self) -> None:
        """
        That there is a log a stream can show, if only later.

        Raises:
            Refused: REPLAY_DISABLED.
        """
        if not (self.writes or self.reads):
            raise log_is_off("a stream would be a view of nothing")


def log_is_off(without: str) -> Refused:
    """The refusal of what needs the replay log; ``without`` says what is not there while it is off."""
    return Refused(ErrorCode.REPLAY_DISABLED, f"the replay log of this Message VPN is off: {without}")
