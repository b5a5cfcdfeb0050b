"""
What a line of an object is called: the administration's attributes in the words of whoever reads them.

``--set``, ``--where`` and ``--json`` have the attributes' own names.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.cli.output.attributes import heading_of

_LABELS: Final = {
    # A Message VPN.
    "storeEngine": "store",
    "storeProblem": "problem with the store",
    "storeDurability": "durable on",
    "storeConfirmedAge": "since the store answered",
    "msgReplayInitializingCount": "replays that begin",
    "msgReplayActiveCount": "replays under way",
    "msgReplayPendingCompleteCount": "replays to be acknowledged",
    "msgReplayFailedCount": "replays that failed",
    "publishedMsgCount": "messages published",
    "publishedBytes": "size of these",
    "settledMsgCount": "messages settled",
    "pendingBytes": "waits to be stored",
    "directDroppedMsgCount": "direct messages dropped",
    "createQueuesEnabled": "clients may make queues",
    "maxTopicBytes": "longest topic",
    "maxTopicLevels": "most levels of a topic",
    # An endpoint.
    "ingressEnabled": "takes messages",
    "egressEnabled": "gives messages",
    "maxMsgSpoolUsage": "largest size",
    "maxMsgCount": "most messages",
    "maxMsgSize": "largest message",
    "maxTtl": "longest time to live",
    "maxBindCount": "most consumers",
    "maxDeliveredUnackedMsgsPerFlow": "most unacknowledged of a consumer",
    "respectMsgPriorityEnabled": "by priority",
    "maxRedeliveryCount": "most redeliveries",
    "topicSubscriptionCount": "subscriptions",
    "replayStartCount": "replays started",
    "replaySuccessCount": "replays completed",
    "replayFailureCount": "replays failed",
    "replayedTxMsgCount": "messages replayed",
    "replayedAckedMsgCount": "of these acknowledged",
    "lastReplayStartTime": "last replay started",
    "lastReplayCompleteTime": "last replay completed",
    "lastReplayFailureTime": "last replay failed",
    "lastReplayFailureReason": "why it failed",
    "lastReplayedMsgTxTime": "last message replayed",
    "replayRemaining": "ids to replay",
    "replayOutstandingMsgCount": "messages not acknowledged",
    "replayEtaMs": "time left",
    "replayBlockedBySelector": "held up by a selector",
    # The record of a replay.
    "replayNumber": "number",
    "sourceQueueName": "source queue",
    "replayTarget": "gateway of the target",
    "limit": "most messages, 0 for all",
    "endMsgId": "up to message",
    "msgRate": "messages a second",
    "positionMsgId": "next message",
    "readMsgCount": "messages looked at",
    "sentMsgCount": "messages sent",
    "sentByteCount": "size of what was sent",
    # The log, and what a replay would bring.
    "replayLogName": "replay log",
    "maxSpoolUsage": "quota",
    "usagePercent": "of the quota",
    "topicFilterEnabled": "of some topics only",
    "keepUntilArchivedEnabled": "waits for the archive",
    "archivedMsgId": "archived up to",
    "archiveFirstMsgId": "archive's first message",
    "archiveLastMsgId": "archive's last message",
    "oldestMsgTimeMs": "oldest came",
    "newestMsgTimeMs": "newest came",
    "firstMsgId": "first message",
    "firstMsgTimeMs": "first came",
    "lastMsgTimeMs": "last came",
    "droppedMsgCount": "messages dropped",
    "lossMsgCount": "of these lost for good",
    "lossMsgSpoolUsage": "size of what is lost",
    "keptMsgCount": "messages kept",
    "keptMsgSpoolUsage": "size of what is kept",
    "detachedClientCount": "clients detached",
    "detachedClients": "who is detached",
}

_WORDS: Final = {
    "msg": "message",
    "msgs": "messages",
    "vpn": "VPN",
    "tx": "sent",
    "unacked": "unacknowledged",
}

_UNIT: Final = re.compile(r"(?<=.)( time)?( ms)?$")
"""Which a value says itself."""


def label_of(name: str) -> str:
    """What an attribute's line is called: its label, or a column's heading, or the name parted into words."""
    label = _LABELS.get(name)
    if label is not None:
        return label
    return " ".join(_WORDS.get(word, word) for word in _UNIT.sub("", heading_of(name)).split(" "))
