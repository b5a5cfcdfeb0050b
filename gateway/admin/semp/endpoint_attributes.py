"""Attributes of queues and topic endpoints: what Solace calls them, and what they are here."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model
from typing_extensions import TypedDict

from amqp_ext.addresses.queue_names import check_queue_name
from amqp_ext.replay_start import parse_text
from amqp_ext.topics import TopicPattern
from gateway.admin.semp.documented import InVpn, resource
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import (
    SETTINGS,
    EndpointKind,
    EndpointSettings,
    Exclusivity,
    Setting,
    SettingType,
    Unit,
)

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]


def _pattern(text: str) -> str:
    TopicPattern.parse(text)
    return text


def _attracting(text: str) -> str:
    if text.startswith("!"):
        raise ValueError(f"{text!r} is an exception, and a topic endpoint has one topic, which it attracts")
    return _pattern(text)


def _queue_or_none(text: str) -> str:
    return check_queue_name(text) if text else text


def _start(text: str) -> str:
    parse_text(text)
    return text


class _Spelling(NamedTuple):
    """What an attribute is called, where its setting is called otherwise."""

    name: str
    unit: Unit | None = None
    """In which it counts, where that is not the setting's."""
    is_ours: bool = False
    """Solace has none such."""


_SPELLED_OTHERWISE: Final = {
    "exclusive": _Spelling("exclusivity", is_ours=True),
    "quota_bytes": _Spelling("maxMsgSpoolUsage", Unit.MEGABYTES),
    "quota_messages": _Spelling("maxMsgCount", is_ours=True),
    "max_message_bytes": _Spelling("maxMsgSize"),
    "max_ttl_ms": _Spelling("maxTtl", Unit.SECONDS),
    "max_flows": _Spelling("maxBindCount"),
    "max_unsettled": _Spelling("maxDeliveredUnackedMsgsPerFlow"),
    "priorities": _Spelling("respectMsgPriorityEnabled"),
    "max_redelivery": _Spelling("maxRedeliveryCount"),
    "dead_message_queue": _Spelling("deadMsgQueue"),
}
"""By the setting's name. One that is not here is ours, and called like its setting: ``retry_delay_ms`` would be
``retryDelayMs``.

Source: Solace's SEMP v2 reference, "msgVpn/queues".
"""

_TYPES: Final[dict[SettingType, Any]] = {
    SettingType.FLAG: bool,
    SettingType.NUMBER: Count,
    SettingType.QUOTA: Count,
    SettingType.QUEUE: Annotated[str, Field(max_length=200), AfterValidator(_queue_or_none)],
    SettingType.START: Annotated[str, AfterValidator(_start)],
    SettingType.EXCLUSIVITY: Literal[tuple(one.value for one in Exclusivity)],
}


@dataclass(frozen=True, slots=True)
class SettingAttribute:
    """The attribute that a setting of an endpoint is in requests and answers."""

    setting: Setting
    name: str
    unit: Unit | None
    description: str

    @property
    def definition(self) -> tuple[Any, Any]:
        """Its type and its field in a body, which may leave it out."""
        return _TYPES[self.setting.type] | None, Field(None, description=self.description)

    def value_of(self, settings: EndpointSettings) -> Any:
        """What is shown of an endpoint with these settings."""
        return self.setting.told(getattr(settings, self.setting.name), self.unit)


def _attributes() -> Iterator[SettingAttribute]:
    for setting in SETTINGS.values():
        first, *others = setting.name.split("_")
        ours = _Spelling(first + "".join(other.capitalize() for other in others), is_ours=True)
        name, unit, is_ours = _SPELLED_OTHERWISE.get(setting.name, ours)
        unit = unit or setting.unit
        description = setting.described(unit)
        if setting.fixed:
            description += " Only when it is made."
        yield SettingAttribute(setting, name, unit, f"Ours: {description}" if is_ours else description)


SETTING_ATTRIBUTES: Final = tuple(_attributes())
"""One for each setting of an endpoint, in the order of the documents."""


class _Solaces(BaseModel):
    """What Solace has and is no setting here."""

    model_config = ConfigDict(extra="forbid", strict=True)

    accessType: Literal["exclusive", "non-exclusive"] | None = Field(
        None, description="`exclusive` lets others wait for the one active consumer; see also `exclusivity`."
    )
    ingressEnabled: Literal[True] | None = Field(None, description="Always true here.")
    egressEnabled: Literal[True] | None = Field(None, description="Always true here.")


_definitions: Any = {found.name: found.definition for found in SETTING_ATTRIBUTES}
_Settings: Any = create_model("_Settings", __base__=_Solaces, **_definitions)


class EndpointBody(_Settings):  # type: ignore[misc]  # has an attribute for each setting of an endpoint
    """What can be said of a queue or topic endpoint. Limits of 0 are none."""

    def settings(self, before: EndpointSettings) -> EndpointSettings:
        """``before``, changed as the body says."""
        changed: dict[str, Any] = {}
        if self.accessType is not None:
            changed["exclusive"] = Exclusivity.WAIT if self.accessType == "exclusive" else Exclusivity.NONE
        for found in SETTING_ATTRIBUTES:
            if (value := getattr(self, found.name)) is not None:
                changed[found.setting.name] = found.setting.read(value, found.unit)
        return replace(before, **changed)


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
        "ingressEnabled": True,
        "egressEnabled": True,
        **{found.name: found.value_of(settings) for found in SETTING_ATTRIBUTES},
    }


class EndpointState(TypedDict):
    """What an endpoint is like now. Times are seconds since the epoch, 0 for never, as at Solace."""

    durable: bool
    owner: str
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


class _WholeState(TypedDict):
    oldestMsgTimeMs: int | None


MONITORED_ALONE: Final = {
    EndpointKind.QUEUE: resource("QueueWholeState", MONITORED[EndpointKind.QUEUE], _WholeState),
    EndpointKind.TOPIC_ENDPOINT: resource(
        "TopicEndpointWholeState", MONITORED[EndpointKind.TOPIC_ENDPOINT], _WholeState
    ),
}
"""What one of them is shown with, beside what a list says of each: that takes a look at the store."""


def monitored(endpoint: Endpoint, vpn: str, next_id: int, now_ms: int) -> dict[str, Any]:
    """An endpoint in the monitor tree."""
    return {**configured(endpoint, vpn), **_state(endpoint, next_id, now_ms)}


def _state(endpoint: Endpoint, next_id: int, now_ms: int) -> EndpointState:
    replay = endpoint.replay
    record = replay.totals if replay is not None else None
    progress = replay.progress(next_id, now_ms) if replay is not None else None
    return {
        "durable": not endpoint.settings.temporary,
        "owner": endpoint.settings.owner,
        "declared": endpoint.settings.declared,
        "bindCount": len(endpoint.flows),
        "spooledMsgCount": endpoint.depth,
        "msgSpoolUsage": endpoint.size_bytes,
        "txUnackedMsgCount": sum(len(flow.unsettled) for flow in (*endpoint.flows, *endpoint.suspended)),
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
