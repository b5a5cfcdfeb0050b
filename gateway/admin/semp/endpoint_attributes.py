"""Attributes of queues and topic endpoints: what Solace calls them, and what they are here."""

from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from amqp_ext.addresses import check_queue_name
from amqp_ext.replay_start import parse_text
from amqp_ext.topics import TopicPattern
from gateway.admin.semp.documented import InVpn, resource
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings, Exclusivity

MEGABYTE: Final = 1_048_576

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]


def _pattern(text: str) -> str:
    TopicPattern.parse(text)
    return text


def _attracting(text: str) -> str:
    if text.startswith("!"):
        raise ValueError(f"{text!r} is an exception, and a topic endpoint has one topic, which it attracts")
    return _pattern(text)


def _start(text: str) -> str:
    parse_text(text)
    return text


class EndpointBody(BaseModel):
    """What can be said of a queue or topic endpoint. Limits of 0 are none."""

    model_config = ConfigDict(extra="forbid", strict=True)

    accessType: Literal["exclusive", "non-exclusive"] | None = Field(
        None, description="`exclusive` lets others wait for the one active consumer; see also `exclusivity`."
    )
    exclusivity: Literal["none", "wait", "refuse", "steal"] | None = Field(
        None, description="Ours: what a second consumer meets."
    )
    ingressEnabled: Literal[True] | None = Field(None, description="Always true here.")
    egressEnabled: Literal[True] | None = Field(None, description="Always true here.")
    maxMsgSpoolUsage: Count | None = Field(None, description="Megabytes of messages it may hold.")
    maxMsgCount: Count | None = Field(None, description="Ours: messages it may hold.")
    maxMsgSize: Count | None = Field(None, description="Largest message taken, in bytes.")
    maxBindCount: Count | None = Field(None, description="Consumers bound at once.")
    maxDeliveredUnackedMsgsPerFlow: Count | None = Field(None, description="Unsettled at one consumer.")
    maxRedeliveryCount: Count | None = Field(None, description="Redeliveries before a message is dead.")
    maxTtl: Count | None = Field(None, description="Seconds after which a message expires.")
    deadMsgQueue: Annotated[str, Field(max_length=200)] | None = Field(
        None, description="Where dead messages go; empty discards them. Made if it is not there."
    )
    respectMsgPriorityEnabled: bool | None = Field(
        None, description="Whether higher priorities overtake. Only when it is made."
    )
    defaultStart: Annotated[str, AfterValidator(_start)] | None = Field(
        None, description="Ours: the replay start of a consumer that asks for none."
    )

    def settings(self, before: EndpointSettings) -> EndpointSettings:
        """`before`, changed as the body says."""
        changed: dict[str, Any] = {}
        for attribute, name in _PLAIN.items():
            if (value := getattr(self, attribute)) is not None:
                changed[name] = value
        if self.maxMsgSpoolUsage is not None:
            changed["quota_bytes"] = self.maxMsgSpoolUsage * MEGABYTE
        if self.maxTtl is not None:
            changed["max_ttl_ms"] = self.maxTtl * 1_000
        if self.exclusivity is not None:
            changed["exclusive"] = Exclusivity(self.exclusivity)
        elif self.accessType is not None:
            changed["exclusive"] = Exclusivity.WAIT if self.accessType == "exclusive" else Exclusivity.NONE
        return replace(before, **changed)


_PLAIN: Final = {
    "maxMsgCount": "quota_messages",
    "maxMsgSize": "max_message_bytes",
    "maxBindCount": "max_flows",
    "maxDeliveredUnackedMsgsPerFlow": "max_unsettled",
    "maxRedeliveryCount": "max_redelivery",
    "deadMsgQueue": "dead_message_queue",
    "respectMsgPriorityEnabled": "priorities",
    "defaultStart": "default_start",
}


class NewQueue(EndpointBody):
    """A queue to be made."""

    queueName: Annotated[str, AfterValidator(check_queue_name)]
    kind: Literal["queue", "stream"] = Field("queue", description="Ours: a stream is a view of the log.")


Topic = Annotated[str, AfterValidator(_attracting)]


class TopicEndpointBody(EndpointBody):
    """The same, and the topic of a topic endpoint."""

    topic: Topic | None = Field(None, description="Ours: its subscription. Only while nobody consumes.")


class NewTopicEndpoint(EndpointBody):
    """A durable topic endpoint to be made; a consumer takes it by the name of its link."""

    topicEndpointName: Annotated[str, AfterValidator(check_queue_name)]
    topic: Topic = Field(description="Ours: its subscription.")


class _TopicEndpointKind(TypedDict):
    kind: Literal["topic-endpoint"]


def name_attribute(endpoint: Endpoint) -> str:
    """What the name of an endpoint is called."""
    return "topicEndpointName" if endpoint.kind is EndpointKind.TOPIC_ENDPOINT else "queueName"


def configured(endpoint: Endpoint, vpn: str) -> dict[str, Any]:
    """An endpoint in the config tree."""
    settings = endpoint.settings
    is_shared = settings.exclusive is Exclusivity.NONE
    is_topic_endpoint = endpoint.kind is EndpointKind.TOPIC_ENDPOINT
    return {
        "msgVpnName": vpn,
        name_attribute(endpoint): endpoint.name,
        **({"topic": next(iter(endpoint.subscriptions), "")} if is_topic_endpoint else {}),
        "kind": endpoint.kind.value,
        "accessType": "non-exclusive" if is_shared else "exclusive",
        "exclusivity": settings.exclusive.value,
        "ingressEnabled": True,
        "egressEnabled": True,
        "maxMsgSpoolUsage": -(-settings.quota_bytes // MEGABYTE),
        "maxTtl": -(-settings.max_ttl_ms // 1_000),
        **{attribute: getattr(settings, name) for attribute, name in _PLAIN.items()},
    }


class EndpointState(TypedDict):
    """What an endpoint is like now. Times are seconds since the epoch, 0 for never, as at Solace."""

    durable: bool
    declared: bool
    bindCount: int
    spooledMsgCount: int
    msgSpoolUsage: int
    txUnackedMsgCount: int
    topicSubscriptionCount: int
    replayState: str
    replayStartCount: int
    replaySuccessCount: int
    replayFailureCount: int
    replayedTxMsgCount: int
    replayedAckedMsgCount: int
    lastReplayStartTime: int
    lastReplayCompleteTime: int
    lastReplayFailureTime: int
    lastReplayFailureReason: str
    lastReplayedMsgTxTime: int
    replayPosition: int
    replayRemaining: int
    replayOutstandingMsgCount: int
    replayEtaMs: int | None
    replayBlockedBySelector: bool


QUEUE: Final = resource("Queue", InVpn, NewQueue)
TOPIC_ENDPOINT: Final = resource("TopicEndpoint", InVpn, NewTopicEndpoint, _TopicEndpointKind)
MONITORED: Final = {
    EndpointKind.QUEUE: resource("QueueState", QUEUE, EndpointState),
    EndpointKind.TOPIC_ENDPOINT: resource("TopicEndpointState", TOPIC_ENDPOINT, EndpointState),
}


def monitored(endpoint: Endpoint, vpn: str, next_id: int, now_ms: int) -> dict[str, Any]:
    """An endpoint in the monitor tree."""
    return {**configured(endpoint, vpn), **_state(endpoint, next_id, now_ms)}


def _state(endpoint: Endpoint, next_id: int, now_ms: int) -> EndpointState:
    replay = endpoint.replay
    record = replay.record if replay is not None else None
    progress = replay.progress(next_id, now_ms) if replay is not None else None
    return {
        "durable": not endpoint.settings.temporary,
        "declared": endpoint.settings.declared,
        "bindCount": len(endpoint.flows),
        "spooledMsgCount": endpoint.depth,
        "msgSpoolUsage": endpoint.size_bytes,
        "txUnackedMsgCount": sum(len(flow.unsettled) for flow in endpoint.flows),
        "topicSubscriptionCount": len(endpoint.subscriptions),
        "replayState": replay.state.value if replay is not None else "n/a",
        "replayStartCount": record.started if record else 0,
        "replaySuccessCount": record.succeeded if record else 0,
        "replayFailureCount": record.failed if record else 0,
        "replayedTxMsgCount": record.transmitted if record else 0,
        "replayedAckedMsgCount": record.acknowledged if record else 0,
        "lastReplayStartTime": record.last_started_ms // 1_000 if record else 0,
        "lastReplayCompleteTime": record.last_completed_ms // 1_000 if record else 0,
        "lastReplayFailureTime": record.last_failed_ms // 1_000 if record else 0,
        "lastReplayFailureReason": record.last_failure if record else "",
        "lastReplayedMsgTxTime": record.last_transmitted_ms // 1_000 if record else 0,
        "replayPosition": progress.position if progress else 0,
        "replayRemaining": progress.remaining if progress else 0,
        "replayOutstandingMsgCount": progress.outstanding if progress else 0,
        "replayEtaMs": progress.eta_ms if progress else None,
        "replayBlockedBySelector": replay.is_blocked if replay is not None else False,
    }
