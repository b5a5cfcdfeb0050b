"""
Values of the administration's answers in words: numbers, sizes and times; and labels for the attributes.

The end of an attribute's name tells what kind of value it has; ``_KINDS`` has the exceptions. ``--set``, ``--where``
and ``--json`` use the attributes' own names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum, auto
from typing import Any, Final

NEVER: Final = "never"
NONE: Final = "none"
NO_LIMIT: Final = "no limit"

MEGABYTE: Final = 1 << 20
"""As in the settings."""

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

_SIZES: Final = ((1 << 50, "PB"), (1 << 40, "TB"), (1 << 30, "GB"), (MEGABYTE, "MB"), (1 << 10, "kB"))
_TIMES: Final = (
    (365 * DAY_MS, "year"),
    (DAY_MS, "day"),
    (HOUR_MS, "hour"),
    (MINUTE_MS, "minute"),
    (1_000, "second"),
)


def counted(count: float, thing: str, things: str | None = None) -> str:
    """A count and its noun: ``1 message``, ``1,200 messages``."""
    noun = thing if count == 1 else things or f"{thing}s"
    return f"{number(count)} {noun}"


def number(count: float) -> str:
    """With separators, ``1,234,567``; a fraction to one digit."""
    return f"{count:,}" if isinstance(count, int) else f"{count:,.1f}"


def size(count: float) -> str:
    """Bytes in words: ``999 bytes``, ``1.5 kB``, ``12.3 GB``. A MB is 1,048,576 bytes, as in the settings."""
    for unit, name in _SIZES:
        # What would be rounded up to 1,024.0 of a unit is 1.0 of the next.
        if abs(count) >= unit * 0.99995:
            return f"{count / unit:,.1f} {name}"
    return counted(round(count), "byte")


def duration(milliseconds: float) -> str:
    """A length of time in its largest unit; below ten of that, also in the next: ``5 ms``, ``2 hours 5 minutes``."""
    if abs(milliseconds) < 1_000:
        return f"{milliseconds:,.0f} ms"
    for place, (unit, name) in enumerate(_TIMES):
        if milliseconds >= unit:
            many = int(milliseconds // unit)
            text = counted(many, name)
            if many < 10 and place + 1 < len(_TIMES):
                smaller, smaller_name = _TIMES[place + 1]
                rest = int(milliseconds % unit // smaller)
                text += f" {counted(rest, smaller_name)}" if rest else ""
            return text
    return f"{milliseconds:,.0f} ms"


def moment(time_ms: float) -> str:
    """A time (ms since 1970) in the local time zone: ``2026-01-02 15:04:05 CET``."""
    try:
        return datetime.fromtimestamp(time_ms / 1_000).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    except (ValueError, OverflowError, OSError):
        # The time is out of the calendar's range.
        return f"{time_ms:,.0f} ms"


def moment_and_age(time_ms: float, now_ms: float) -> str:
    """The same, and how far away that is: ``… (3 minutes ago)``, ``… (in 2 days)``."""
    away = now_ms - time_ms
    if abs(away) < 1_000:
        return f"{moment(time_ms)} (now)"
    return f"{moment(time_ms)} ({f'{duration(away)} ago' if away > 0 else f'in {duration(-away)}'})"


def one_line(text: str) -> str:
    """The text with line ends and control characters escaped, as names come from anybody."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


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
    **dict.fromkeys(
        ("priority", "epoch", "generation", "replayPosition", "replayNumber", "position"), Kind.PLAIN
    ),
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
    "groupCount": "groups",
    "linkCount": "links",
    "txUnackedMsgCount": "unacknowledged",
    "msgsPerSecond": "change a second",
    "settledMsgsPerSecond": "out a second",
    "lagMs": "behind",
    "oldestUnackedTimeMs": "held since",
    "oldestUnackedClientName": "held by",
    "replayRemaining": "to replay",
    "heldBytes": "holds",
    "msgId": "id",
    "replicationGroupMsgId": "replay id",
    "spooledTimeMs": "came",
    "deliveryTimeMs": "due",
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

_STYLES: Final = {
    **dict.fromkeys(("up", "active", "running", "active-consumer", "complete"), "green"),
    **dict.fromkeys(("initializing", "pending-complete", "paused", "standby"), "yellow"),
    **dict.fromkeys(("down", "failed"), "red"),
}
"""Colours of states."""


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
        now_ms: The time now: with it, a time says how long ago it was; a table's column does without (None).
    """
    match value:
        case None | "" | [] | {}:
            return NONE
        case bool():
            return "yes" if value else "no"
        case int() | float():
            return _number(name, value, now_ms)
        case list():
            return ", ".join(text_of(name, one) for one in value)
        case dict():
            return one_line(json.dumps(value, ensure_ascii=False))
    return one_line(str(value))


def _number(name: str, value: float, now_ms: float | None) -> str:
    kind = kind_of(name, value)
    if not value and name.startswith("max"):
        return NO_LIMIT
    match kind:
        case Kind.PLAIN:
            return str(value)
        case Kind.BYTES:
            return size(value)
        case Kind.MEGABYTES:
            return size(value * MEGABYTE)
        case Kind.TIME_MS | Kind.TIME_S:
            if not value:
                return NEVER
            time_ms = value if kind is Kind.TIME_MS else value * 1_000
            return moment(time_ms) if now_ms is None else moment_and_age(time_ms, now_ms)
        case Kind.DURATION_MS:
            return duration(value)
        case Kind.DURATION_S:
            return duration(value * 1_000)
        case Kind.PERCENT:
            return f"{value:g} %"
    return number(value)


def heading_of(name: str) -> str:
    """A column's heading: its own word, or else the attribute's name, split into words."""
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower().split(" ")
    return _HEADINGS.get(name) or " ".join(_WORDS.get(word, word) for word in parts)


def style_of(value: Any) -> str:
    """The colour of a state; none of anything else."""
    return _STYLES.get(value, "") if isinstance(value, str) else ""


_LABELS: Final = {
    # A Message VPN.
    "storeEngine": "store",
    "storeProblem": "problem with the store",
    "storeConfirmedAge": "age of the newest commit",
    "msgReplayInitializingCount": "replays initializing",
    "msgReplayActiveCount": "replays active",
    "msgReplayPendingCompleteCount": "replays pending acknowledgement",
    "msgReplayFailedCount": "replays failed",
    "publishedMsgCount": "messages published",
    "settledMsgCount": "messages settled",
    "pendingBytes": "not durable yet",
    # An endpoint.
    "maxMsgSpoolUsage": "max size",
    "maxBindCount": "max consumers",
    "delayedMsgCount": "delayed messages",
    "delayedMsgUsage": "size of delayed messages",
    "lockTimeoutMs": "lock time",
    "oldestUnackedMsgId": "message held longest",
    "oldestUnackedClientId": "id of the client that holds it",
    "oldestUnackedClientUsername": "user of the client that holds it",
    "oldestUnackedClientAddress": "address of the client that holds it",
    "lagMsgCount": "messages behind",
    "dedupWindow": "messages whose ids are remembered",
    "dedupWindowMs": "longest time that an id is remembered",
    "dedupIdCount": "ids remembered",
    "duplicateMsgCount": "duplicates not stored",
    "retryDelayMs": "first delay of a retry",
    "retryFactor": "factor of further delays",
    "retryMaxMs": "longest delay of a retry",
    "topicSubscriptionCount": "subscriptions",
    "replayStartCount": "replays started",
    "replaySuccessCount": "replays completed",
    "replayFailureCount": "replays failed",
    "replayedTxMsgCount": "messages replayed",
    "replayedAckedMsgCount": "replayed and acknowledged",
    "lastReplayedMsgTxTime": "last message replayed",
    "replayRemaining": "ids to replay",
    "replayOutstandingMsgCount": "messages not acknowledged",
    "replayEtaMs": "time left",
    # The record of a replay.
    "limit": "max messages, 0 for all",
    "msgRate": "messages a second",
    "positionMsgId": "next message",
    # The log, and what a replay would bring.
    "maxSpoolUsage": "quota",
    "usagePercent": "quota used",
    "archivedMsgId": "archived up to",
    "droppedMsgCount": "messages dropped",
    "lossMsgCount": "messages lost for good",
    "lossMsgSpoolUsage": "size of messages lost",
    "keptMsgCount": "messages kept",
    "keptMsgSpoolUsage": "size of messages kept",
    "detachedClientCount": "clients detached",
}
"""For attributes whose own name, split into words, is not clear enough."""

_WORDS: Final = {
    "msg": "message",
    "msgs": "messages",
    "vpn": "VPN",
    "tx": "sent",
    "unacked": "unacknowledged",
}

_UNIT: Final = re.compile(r"(?<=.)( time)?( ms)?$")
"""The end of a heading that the value's own unit makes superfluous."""


def label_of(name: str) -> str:
    """The label of an attribute's line: its own label, or else the column's heading without the unit."""
    return _LABELS.get(name) or _UNIT.sub("", heading_of(name))


_ALWAYS: Final = frozenset(
    {"msgVpnName", "state", "queueName", "topicEndpointName", "spooledMsgCount", "bindCount"}
    | {"clientCount", "endpointCount"}
)
"""Attributes that are shown whatever their value, where they are among the ``first`` of ``arranged``."""

_DEFAULTS: Final[Mapping[str, tuple[Any, ...]]] = {
    "msgVpnName": ("default",),
    "enabled": (True,),
    "durable": (True,),
    "ingressEnabled": (True,),
    "egressEnabled": (True,),
    "kind": ("queue", "topic-endpoint"),
    "accessType": ("non-exclusive",),
    "exclusivity": ("none",),
    "defaultStart": ("live",),
    "retryType": ("disabled",),
    "retryDelayMs": (1_000,),
    "retryFactor": (2,),
    "partitionKey": ("group-id",),
    "replayState": ("n/a",),
    "storeDurability": ("disk",),
    "wireLoops": ("native",),
}
"""Values that are not worth showing, in addition to zero and unset ones."""


def arranged(data: Mapping[str, Any], first: Sequence[str], *, is_all: bool) -> dict[str, Any]:
    """
    An object's attributes, the most interesting ones first.

    Args:
        first: The attributes that a person looks for first.
        is_all: Also keep the attributes that are zero, unset or have their default.
    """
    ordered = [name for name in first if name in data] + [name for name in data if name not in first]
    return {name: data[name] for name in ordered if is_all or _says_something(name, data[name], first)}


def _says_something(name: str, value: Any, first: Sequence[str]) -> bool:
    if name in _ALWAYS and name in first:
        return True
    return bool(value) and value not in _DEFAULTS.get(name, ())
