"""
The definition of an endpoint: its kind, who may consume from it at once, its settings, its topics, and where its dead
messages go.

``EndpointSettings`` is the one place that defines a setting: its name, type, unit, default, meaning and reason. From it
derive what is kept in the store, the configuration's ``[vpn.NAME.queue.NAME]`` (gateway/config/vpn.py), the
attributes of administration (gateway/admin/semp/endpoints.py), what a reload may change, and the documents. A
vocabulary has a table of its own only for what it spells otherwise, by the names of the settings here.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from amqp_ext.addresses.address import queue_topic
from amqp_ext.topics import TopicFilter, TopicPattern

MOST_PARTITIONS: Final = 1_000
"""Of an endpoint: more than it will have consumers, and little to keep."""

MOST_IDS: Final = 4_000_000
"""Messages that all windows of a Message VPN may have together (``gateway.core.dedup``): some 90 bytes of memory each,
20 of the disk."""


class EndpointKind(enum.Enum):
    """
    Messages are put on queues and topic endpoints. A stream is a named view of the log, and a last-value queue one that
    begins with the newest message of each key: none is put there.
    """

    QUEUE = "queue"
    TOPIC_ENDPOINT = "topic-endpoint"
    STREAM = "stream"
    LAST_VALUE = "last-value"

    @property
    def is_view(self) -> bool:
        """It shows the log: its readers take nothing away."""
        return self in (EndpointKind.STREAM, EndpointKind.LAST_VALUE)


class LaterSetting(ValueError):
    """What a store keeps of an endpoint has a setting, or the value of one, that this version does not know."""


class Exclusivity(enum.Enum):
    """Who may consume: anyone in turns (NONE), or one flow, the others waiting, refused, or taking over."""

    NONE = "none"
    WAIT = "wait"
    REFUSE = "refuse"
    STEAL = "steal"


class RetryType(enum.Enum):
    """
    Which messages that a consumer gave back wait before they are delivered again: those whose delivery failed, those
    that came back without that, or both (RabbitMQ 4.3, "Delayed Retry").
    """

    DISABLED = "disabled"
    FAILED = "failed"
    RETURNED = "returned"
    ALL = "all"

    def takes(self, *, failed: bool) -> bool:
        """Whether a message waits that was given back, with its delivery failed or without that."""
        return self is RetryType.ALL or self is (RetryType.FAILED if failed else RetryType.RETURNED)


class SettingType(enum.Enum):
    """What the values of a setting are. A vocabulary checks each type in one way."""

    FLAG = "true or false"
    NUMBER = "a whole number, 0 or more"
    QUOTA = "a whole number, 0 to 2^40"
    WINDOW = f"a whole number, 0 to {MOST_IDS}"
    QUEUE = "the name of a queue, or empty"
    START = "a replay start"
    EXCLUSIVITY = "none, wait, refuse or steal"
    PROPERTY = "the name of a property, or empty"
    RETRY = "disabled, failed, returned or all"
    PARTITIONS = "a whole number, 0 to 1,000"

    @property
    def choices(self) -> type[enum.Enum] | None:
        """Of which its values are one; None for a type that has others."""
        return _CHOICES.get(self)


_CHOICES: Final[Mapping[SettingType, type[enum.Enum]]] = {
    SettingType.EXCLUSIVITY: Exclusivity,
    SettingType.RETRY: RetryType,
}


class Unit(enum.Enum):
    """What a setting counts: the word, and how many of its base unit (bytes, milliseconds) it is."""

    MESSAGES = ("messages", 1)
    CONSUMERS = ("consumers", 1)
    DELIVERIES = ("deliveries", 1)
    REDELIVERIES = ("redeliveries", 1)
    BYTES = ("bytes", 1)
    MEGABYTES = ("megabytes", 1_048_576)
    MILLISECONDS = ("milliseconds", 1)
    SECONDS = ("seconds", 1_000)
    TIMES = ("times", 1)
    PARTITIONS = ("partitions", 1)

    def __init__(self, word: str, size: int) -> None:
        self.word = word
        self.size = size


@dataclass(frozen=True, slots=True)
class Setting:
    """
    A setting of an endpoint, as vocabularies see it.

    Attributes:
        name: Its field of ``EndpointSettings``.
        default: The value it has where nothing is said.
        description: What it means and why its default is as it is; ``{unit}`` and ``{Unit}`` stand for the unit.
        unit: Of the value that is kept; None for one that counts nothing.
        fixed: Why it cannot change while there is the endpoint; empty where it can.
        on_streams: What a stream has instead; empty where a stream has the setting, too.
    """

    name: str
    type: SettingType
    default: Any
    description: str
    unit: Unit | None
    fixed: str
    on_streams: str

    def described(self, unit: Unit | None) -> str:
        """What it means, in a vocabulary that has it in this unit."""
        word = unit.word if unit is not None else ""
        return self.description.format(unit=word, Unit=word.capitalize())

    def read(self, value: Any, unit: Unit | None) -> Any:
        """The value to be kept, of one that a vocabulary has in this unit."""
        if self.type.choices is not None:
            return self.type.choices(value)
        return value if unit is self.unit or unit is None else value * unit.size

    def told(self, value: Any, unit: Unit | None) -> Any:
        """A kept value as a vocabulary has it in this unit, rounded up."""
        if self.type.choices is not None:
            return value.value
        return value if unit is self.unit or unit is None else -(-value // unit.size)


def _setting(
    default: Any,
    type: SettingType,
    description: str,
    *,
    unit: Unit | None = None,
    fixed: str = "",
    on_streams: str = "",
) -> Any:
    """A field that is a setting: see ``Setting``."""
    told = {"type": type, "description": description, "unit": unit, "fixed": fixed, "on_streams": on_streams}
    return field(default=default, metadata=told)


@dataclass(slots=True)
class EndpointSettings:
    """What is kept of an endpoint's definition: what is said of it from outside, and then what the gateway notes."""

    exclusive: Exclusivity = _setting(  # noqa: RUF009 - it makes a field
        Exclusivity.NONE,
        SettingType.EXCLUSIVITY,
        "`none`: consumers compete. Else one is active, and another attach waits (Solace, RabbitMQ), is refused "
        "(Qpid), or steals if its epoch is higher (Event Hubs).",
    )
    quota_bytes: int = _setting(
        0,
        SettingType.QUOTA,
        "{Unit} of messages the queue may hold; 0 is no bound. Past it a publisher's message is rejected.",
        unit=Unit.BYTES,
        on_streams="the log has its own `quota_mb`",
    )
    quota_messages: int = _setting(
        0,
        SettingType.QUOTA,
        "{Unit} the queue may hold; 0 is no bound.",
        unit=Unit.MESSAGES,
        on_streams="the log has a `quota_mb`",
    )
    max_message_bytes: int = _setting(
        0,
        SettingType.NUMBER,
        "Largest message the queue takes, in {unit}; a larger one is rejected. 0 leaves it to the gateway's own "
        "`max_message_bytes`.",
        unit=Unit.BYTES,
        on_streams="the gateway has a `limits.max_message_bytes`",
    )
    max_ttl_ms: int = _setting(
        0,
        SettingType.NUMBER,
        "{Unit} after which a message on the queue expires, or earlier if its header's ttl says so; 0 leaves "
        "it to the header.",
        unit=Unit.MILLISECONDS,
        on_streams="what is logged does not expire",
    )
    max_flows: int = _setting(
        0,
        SettingType.NUMBER,
        "{Unit} bound at once; the next attach is refused. 0 is no bound.",
        unit=Unit.CONSUMERS,
    )
    max_unsettled: int = _setting(
        0,
        SettingType.NUMBER,
        "{Unit} a consumer may leave unsettled before it gets no more; 0 is the gateway's "
        "`max_unsettled_per_flow`.",
        unit=Unit.DELIVERIES,
        on_streams="its readers may leave unsettled what they like",
    )
    lock_timeout_ms: int = _setting(
        0,
        SettingType.NUMBER,
        "{Unit} for which a message is its consumer's while that does not settle it; after them it is given to others. "
        "0 leaves it the consumer's as long as its link lives, because who works long is not to lose what it works on.",
        unit=Unit.MILLISECONDS,
        on_streams="nothing on it is anybody's",
    )
    priorities: bool = _setting(
        False,
        SettingType.FLAG,
        "Whether messages of a higher priority (0 to 9, 4 where a header says none) overtake others. Off, "
        "because a queue in order is what a replay promises.",
        fixed="is the order of what lies there",
        on_streams="the log is read in the order of publishing",
    )
    max_redelivery: int = _setting(
        0,
        SettingType.NUMBER,
        "{Unit} of a message before it goes to the dead message queue; 0 is no bound.",
        unit=Unit.REDELIVERIES,
        on_streams="a reader that wants a message again attaches at it",
    )
    dead_message_queue: str = _setting(
        "",
        SettingType.QUEUE,
        "Queue for messages that expired, were rejected, or were redelivered too often; made if it is not "
        "there. Empty: they are discarded; the replay log has them still.",
        on_streams="no message dies there",
    )
    retry_type: RetryType = _setting(  # noqa: RUF009 - it makes a field
        RetryType.DISABLED,
        SettingType.RETRY,
        "Which messages that a consumer gives back wait before they are delivered again: `failed` (modified with "
        "delivery-failed), `returned` (released, or modified without it), or `all`. `disabled`, because a message in "
        "its place at once is what AMQP says.",
        on_streams="a reader that wants a message again attaches at it",
    )
    retry_delay_ms: int = _setting(
        1_000,
        SettingType.NUMBER,
        "{Unit} that it waits after the first try.",
        unit=Unit.MILLISECONDS,
        on_streams="a reader that wants a message again attaches at it",
    )
    retry_factor: int = _setting(
        2,
        SettingType.NUMBER,
        "How many {unit} as long it waits after each further try: 2 doubles the delay, 1 keeps it. 0 is linear: the "
        "delay for each failed try (RabbitMQ).",
        unit=Unit.TIMES,
        on_streams="a reader that wants a message again attaches at it",
    )
    retry_max_ms: int = _setting(
        0,
        SettingType.NUMBER,
        "{Unit} that it waits at most by the factor; 0 is no bound. A consumer may ask for any time.",
        unit=Unit.MILLISECONDS,
        on_streams="a reader that wants a message again attaches at it",
    )
    strict_order: bool = _setting(
        False,
        SettingType.FLAG,
        "Whether nothing behind a message that waits to be tried again is given out before it. Off, because one bad "
        "message would hold up all others.",
        on_streams="a reader has the log in order",
    )
    dedup_window: int = _setting(
        0,
        SettingType.WINDOW,
        "{Unit} published to its topics whose ids are remembered: one that comes with such an id again is accepted and "
        "stored no second time, anywhere. 0 remembers none, as it costs memory and a part of the throughput.",
        unit=Unit.MESSAGES,
    )
    dedup_window_ms: int = _setting(
        0,
        SettingType.NUMBER,
        "{Unit} after which an id is forgotten, though it is among those of `dedup_window`; 0 is no bound.",
        unit=Unit.MILLISECONDS,
    )
    default_start: str = _setting(
        "",
        SettingType.START,
        "Replay start of a consumer that asks for none, such as `live`, `beginning`, `10m`. `live`, because "
        "a replay must be wanted.",
    )

    value_key: str = _setting(
        "",
        SettingType.PROPERTY,
        "Of a last-value queue: the property whose value is a message's key, as `message-id`, `subject` or the name of "
        "an application property. Empty makes the topic the key, as it mostly says what a message is about.",
        fixed="says which of its messages replace each other",
        on_streams="a stream shows all messages, whatever their keys",
    )
    message_groups: bool = _setting(
        False,
        SettingType.FLAG,
        "Whether all messages of a group (`group-id`, JMSXGroupID) go to one consumer as long as it is there. Off, "
        "because looking at each message's group costs some microseconds. A change acts once no consumer is there.",
        on_streams="each reader has all messages",
    )
    partitions: int = _setting(
        0,
        SettingType.PARTITIONS,
        "{Unit} that messages are shared out to by their keys: each has one consumer at a time, and keeps its order. "
        "0 is none: any consumer may have any message. A change acts once no consumer is there.",
        unit=Unit.PARTITIONS,
        on_streams="each reader has all messages",
    )
    partition_key: str = _setting(
        "group-id",
        SettingType.PROPERTY,
        "Property whose value is a message's key: `group-id`, `message-id`, `correlation-id`, `subject`, or an "
        "application property's name. Empty is `group-id`, because it says what belongs together.",
        on_streams="it has no partitions",
    )

    temporary: bool = False
    """It goes with the link, or the connection, that it was made for."""
    owner: str = ""
    """The user whose subscription it is; empty for one that an administrator made, or that was made while there were no
    users."""
    no_local: str = ""
    """Origin (see ``Origins``) whose messages are not put here; empty takes everybody's."""
    selector: str | None = None
    """Of a subscription: the selector, and other filters, it was made with; empty for none. None where that
    is not known, as of one that an administrator made."""
    auto_delete: bool = False
    """Whether it goes when its last consumer has gone. One that never had any stays."""
    declared: bool = False
    """Named in the configuration: not deleted by a client."""
    purged_below: int = 0
    """Of a stream: the first id that is in its view, since an administrator purged it."""
    purged_ms: int = 0
    """Of a stream that was purged: from this time on its view is whole; ms since the epoch."""

    @property
    def has_quota(self) -> bool:
        """It is bounded how much may lie there."""
        return bool(self.quota_bytes or self.quota_messages)

    @property
    def keyed_by(self) -> tuple[object, ...]:
        """What says how messages are shared out by their keys."""
        return self.message_groups, self.partitions, self.partition_key

    def to_json(self) -> str:
        """The text that the store keeps."""
        return json.dumps({**asdict(self), **{name: getattr(self, name).value for name in _ENUMERATED}})

    @classmethod
    def from_json(cls, text: str) -> EndpointSettings:
        """
        What ``to_json`` wrote; a setting that was not there yet has its default.

        Raises:
            LaterSetting: A later version wrote it.
        """
        kept = json.loads(text)
        try:
            return cls(
                **{**kept, **{name: of(kept[name]) for name, of in _ENUMERATED.items() if name in kept}}
            )
        except (TypeError, ValueError) as error:
            unknown = sorted(kept.keys() - {known.name for known in fields(cls)})
            raise LaterSetting(f"it keeps the setting {unknown[0]!r}" if unknown else str(error)) from None


SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(
    {
        kept.name: Setting(name=kept.name, default=kept.default, **kept.metadata)
        for kept in fields(EndpointSettings)
        if kept.metadata
    }
)
"""What can be said of an endpoint from outside, by name, in the order of the documents."""

_ENUMERATED: Final = {name: of for name, said in SETTINGS.items() if (of := said.type.choices) is not None}


class EndpointTopics:
    """
    The topics of an endpoint: those it subscribes to, and for a queue or stream the one that is its name.

    Args:
        subscriptions: The endpoint's; tell ``changed`` when there are others in it.
    """

    __slots__ = ("_matches", "_own", "_subscriptions")

    def __init__(self, name: str, kind: EndpointKind, subscriptions: Mapping[str, None]) -> None:
        self._own = None if kind is EndpointKind.TOPIC_ENDPOINT else queue_topic(name)
        self._subscriptions = subscriptions
        self._matches: Callable[[str], bool] | None = None

    def changed(self) -> None:
        """The endpoint subscribes to something else."""
        self._matches = None

    @property
    def patterns(self) -> tuple[str, ...]:
        """The topics as patterns, to look for in the store."""
        return self.patterns_with(self._subscriptions)

    @property
    def matches(self) -> Callable[[str], bool]:
        """Whether a topic is one of the endpoint's; compiled once for the subscriptions as they are now."""
        if self._matches is None:
            self._matches = self.matching(self._subscriptions)
        return self._matches

    def matching(self, subscriptions: Iterable[str]) -> Callable[[str], bool]:
        """Whether a topic would be one of the endpoint's if it subscribed to these."""
        own = self._own
        patterns = [TopicPattern.parse(text) for text in subscriptions]
        if own is not None and not patterns:
            return own.__eq__
        subscribed = TopicFilter(patterns, reserved=False).matches
        if own is None:
            return subscribed
        return lambda topic: topic == own or subscribed(topic)

    def patterns_with(self, subscriptions: Iterable[str]) -> tuple[str, ...]:
        """The topics as patterns, if the endpoint subscribed to these."""
        return (*subscriptions,) if self._own is None else (*subscriptions, self._own)


class DeadLetterWay(NamedTuple):
    """
    Where an endpoint's dead messages go, and what comes to it.

    A dead message is sent to its endpoint's dead message queue by name. It comes to that queue, and to whoever
    subscribes to what is sent there; each of them may have a dead message queue of its own: dead messages would come
    back to where they died, and die again, for ever. A stream holds no message that could die.
    """

    queue: str
    """Its dead message queue."""
    takes: Callable[[str], bool]
    """Whether what is published to a topic is put on it."""


def way_of(
    name: str, kind: EndpointKind, dead_message_queue: str, subscriptions: Iterable[str]
) -> DeadLetterWay | None:
    """The way of an endpoint that is like this; None where no message dies, or a dead one goes nowhere."""
    if not dead_message_queue or kind.is_view:
        return None
    return DeadLetterWay(dead_message_queue, EndpointTopics(name, kind, {}).matching(subscriptions))


def circle_of(name: str, ways: Mapping[str, DeadLetterWay]) -> list[str]:
    """
    The endpoints through which an endpoint's dead messages come back to it, itself first and last; none where they do
    not.
    """
    came_from: dict[str, str] = {}
    waiting = [name]
    while waiting:
        here = waiting.pop()
        way = ways.get(here)
        if way is None:
            continue
        topic = queue_topic(way.queue)
        for there, other in ways.items():
            if there not in came_from and other.takes(topic):
                came_from[there] = here
                waiting.append(there)
    if name not in came_from:
        return []
    path = [name, came_from[name]]
    while path[-1] != name:
        path.append(came_from[path[-1]])
    return path[::-1]


def told(circle: Iterable[str]) -> str:
    """A circle, for a sentence."""
    return " to ".join(repr(name) for name in circle)
