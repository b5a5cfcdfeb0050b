"""
Attributes of the administration's answers in words: what kind of value each is, and what its column is called.

The kind follows from the end of a name, as the interface spells names; what does not is in one table.
"""

from __future__ import annotations

import json
import re
from enum import Enum, auto
from typing import Any, Final

from gateway.cli.output import words


class Kind(Enum):
    """What a value counts."""

    PLAIN = auto()
    """A text, a word, or a number that is a name: an id."""
    COUNT = auto()
    BYTES = auto()
    MEGABYTES = auto()
    TIME_MS = auto()
    """Since 1970; 0 is never."""
    TIME_S = auto()
    DURATION_MS = auto()
    DURATION_S = auto()
    PERCENT = auto()


_KINDS: Final = {
    "maxSpoolUsage": Kind.MEGABYTES,
    "maxMsgSpoolUsage": Kind.MEGABYTES,
    "maxMsgSize": Kind.BYTES,
    "maxTtl": Kind.DURATION_S,
    "timeMs": Kind.TIME_MS,
    "priority": Kind.PLAIN,
    "epoch": Kind.PLAIN,
    "generation": Kind.PLAIN,
    "replayPosition": Kind.PLAIN,
    "replayNumber": Kind.PLAIN,
    "sentByteCount": Kind.BYTES,
    "position": Kind.PLAIN,
}
_BY_ENDING: Final = (
    ("TimeMs", Kind.TIME_MS),
    ("Time", Kind.TIME_S),
    ("Ms", Kind.DURATION_MS),
    ("Age", Kind.DURATION_S),
    ("Bytes", Kind.BYTES),
    ("ByteCount", Kind.BYTES),
    ("PerSecond", Kind.COUNT),
    ("Size", Kind.BYTES),
    ("Usage", Kind.BYTES),
    ("Percent", Kind.PERCENT),
    ("Id", Kind.PLAIN),
)

_HEADINGS: Final = {
    "msgVpnName": "message VPN",
    "queueName": "queue",
    "topicEndpointName": "topic endpoint",
    "endpointName": "endpoint",
    "accessType": "access",
    "bindCount": "consumers",
    "spooledMsgCount": "messages",
    "msgSpoolUsage": "size",
    "replayState": "replay",
    "clientCount": "clients",
    "endpointCount": "endpoints",
    "lastMsgId": "last message",
    "storeProblem": "problem",
    "raisedTime": "since",
    "thresholdPercent": "threshold",
    "flowId": "flow",
    "clientName": "client",
    "clientUsername": "user",
    "clientAddress": "address",
    "clientId": "id",
    "activityState": "state",
    "unackedMsgCount": "unacknowledged",
    "hasSelector": "selector",
    "linkCount": "links",
    "txUnackedMsgCount": "unacknowledged",
    "msgsPerSecond": "change a second",
    "replayRemaining": "to replay",
    "heldBytes": "holds",
    "msgId": "id",
    "replicationGroupMsgId": "replay id",
    "spooledTimeMs": "came",
    "contentSize": "size",
    "subscriptionTopic": "topic",
    "topicFilterSubscription": "topic",
    "replayPointName": "point",
    "timeMs": "time",
    "replayName": "replay",
    "msgCount": "messages",
    "deadReason": "why",
    "deadEndpointName": "where",
    "startedTimeMs": "started",
    "endedTimeMs": "ended",
}

_GOOD: Final = frozenset({"up", "active", "running", "active-consumer", "complete"})
_PENDING: Final = frozenset({"initializing", "pending-complete", "paused", "standby"})
_BAD: Final = frozenset({"down", "failed"})


def kind_of(name: str, value: Any) -> Kind:
    """What an attribute's value counts."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return Kind.PLAIN
    if name in _KINDS:
        return _KINDS[name]
    for ending, kind in _BY_ENDING:
        if name.endswith(ending):
            return kind
    return Kind.COUNT


def text_of(name: str, value: Any, now_ms: float | None = None) -> str:
    """
    An attribute's value in words, on one line.

    Args:
        now_ms: So that a time says how long ago it was; None leaves that out, as a table's column does.
    """
    match value:
        case None | "" | [] | {}:
            return words.NONE
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return _number(name, value, now_ms)
        case list():
            return ", ".join(text_of(name, one) for one in value)
        case dict():
            return words.one_line(json.dumps(value, ensure_ascii=False))
    return words.one_line(str(value))


def _number(name: str, value: float, now_ms: float | None) -> str:
    kind = kind_of(name, value)
    if not value and name.startswith("max"):
        return words.NO_LIMIT
    match kind:
        case Kind.PLAIN:
            return str(value)
        case Kind.BYTES:
            return words.size(value)
        case Kind.MEGABYTES:
            return words.size(value * words.MEGABYTE)
        case Kind.TIME_MS | Kind.TIME_S:
            if not value:
                return words.NEVER
            time_ms = value if kind is Kind.TIME_MS else value * 1_000
            return words.moment(time_ms) if now_ms is None else words.moment_and_age(time_ms, now_ms)
        case Kind.DURATION_MS:
            return words.duration(value)
        case Kind.DURATION_S:
            return words.duration(value * 1_000)
        case Kind.PERCENT:
            return f"{value:g} %"
    return words.number(value)


def heading_of(name: str) -> str:
    """What a column is called: its word, or else the attribute's name parted into words."""
    return _HEADINGS.get(name) or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()


def style_of(value: Any) -> str:
    """The colour of a state; none of anything else."""
    if not isinstance(value, str):
        return ""
    return "green" if value in _GOOD else "yellow" if value in _PENDING else "red" if value in _BAD else ""
