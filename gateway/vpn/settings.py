"""The settings of a Message VPN that are in effect, and what those of its replay log mean to the broker."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from amqp_ext.topics import TopicFilter, TopicPattern
from gateway.config import Limits, ReplayLog, Vpn
from gateway.core.log import LogPolicy, RetentionRule

MEGABYTE: Final = 1_048_576

LEASE_SECONDS: Final = 5.0
"""The default of ``lease_seconds``, where a store is given that no settings name."""

_ALIKE: Final = (
    {field.name for field in fields(ReplayLog)} & {field.name for field in fields(LogPolicy)}
) - {"retention"}
"""Settings that the policy has as they are."""


@dataclass(slots=True)
class CurrentSettings:
    """Settings in effect; their owner, ``MessageVpn``, puts others in their place while the gateway runs."""

    vpn: Vpn
    limits: Limits

    @property
    def lease_seconds(self) -> float:
        """How long after a commit something is delivered, where another gateway can take the store over."""
        return self.vpn.store.lease_seconds if self.vpn.store is not None else LEASE_SECONDS

    @property
    def requires_standby(self) -> bool:
        """Whether messages are refused while one machine alone would have them."""
        return self.vpn.store is not None and self.vpn.store.require_standby


def log_policy(log: ReplayLog) -> LogPolicy:
    """The policy of a log with these settings."""
    return LogPolicy(
        writes=log.enabled and log.write,
        reads=log.enabled and log.read,
        quota_bytes=log.quota_mb * MEGABYTE,
        filter=_filter(log),
        retention=tuple(
            RetentionRule(rule.topics, rule.max_age_hours, rule.quota_mb * MEGABYTE) for rule in log.retention
        ),
        **{name: getattr(log, name) for name in _ALIKE},
    )


def _filter(log: ReplayLog) -> TopicFilter | None:
    if not (log.topics and log.filtered):
        return None
    return TopicFilter([TopicPattern.parse(text) for text in log.topics], implicit_all=True)
