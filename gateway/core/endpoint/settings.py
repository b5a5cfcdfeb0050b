"""
The definition of an endpoint: its kind, its exclusivity, its settings, its topics, and where its dead messages go.

``EndpointSettings`` is the one place that defines a setting: its name, type, unit, default, meaning and reason. These
derive from it: the stored definition, the configuration's ``[vpn.NAME.queue.NAME]`` (gateway/config/vpn.py), the
attributes of administration (gateway/admin/semp/endpoints.py), what a reload may change, and the documents. Each of
these vocabularies has its own table only for the settings that it spells in another way.
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
"""The most partitions of an endpoint: more than it will have consumers, and cheap to keep."""

MOST_IDS: Final = 4_000_000
"""The most ids in all deduplication windows of a Message VPN together (``gateway.core.dedup``): some 90 bytes of memory
and 20 bytes of disk for each."""


class EndpointKind(enum.Enum):
    """
    The kinds of endpoints. Messages are put on queues and topic endpoints. A stream is a named view of the log, and a
    last-value queue is a view that begins with the newest message of each key; no message is put on a view.
    """

    QUEUE = "queue"
    TOPIC_ENDPOINT = "topic-endpoint"
    STREAM = "stream"
    LAST_VALUE = "last-value"

    @property
    def is_view(self) -> bool:
        """Whether the endpoint shows the log: its readers remove no messages."""
        return self in (EndpointKind.STREAM, EndpointKind.LAST_VALUE)


class LaterSetting(ValueError):
    """A stored definition has a setting, or a value of a setting, that this version does not know."""


class Exclusivity(enum.Enum):
    """Who may consume: all flows in turns (NONE), or one. A further flow waits, is refused, or takes over (STEAL)."""

    NONE = "none"
    WAIT = "wait"
    REFUSE = "refuse"
    STEAL = "steal"


class RetryType(enum.Enum):
    """
    Which returned messages wait before redelivery: those whose delivery failed, those returned without a failure, or
    both (RabbitMQ 4.3, "Delayed Retry").
    """

    DISABLED = "disabled"
    FAILED = "failed"
    RETURNED = "returned"
    ALL = "all"

    def takes(self, *, failed: bool) -> bool:
        """Whether a returned message waits, given whether its delivery failed."""
        return self is RetryType.ALL or self is (RetryType.FAILED if failed else RetryType.RETURNED)


class SettingType(enum.Enum):
    """The type of a setting's values. A vocabulary checks each type in one way."""

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
        """The enumeration of the type's values; None for a type without one."""
        return _CHOICES.get(self)


_CHOICES: Final[Mapping[SettingType, type[enum.Enum]]] = {
    SettingType.EXCLUSIVITY: Exclusivity,
    SettingType.RETRY: RetryType,
}


class Unit(enum.Enum):
    """What a setting counts: the word, and its size in the base unit (bytes, milliseconds)."""

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
        name: The name of its field in ``EndpointSettings``.
        default: Its value where none is given.
        description: Its meaning, and the reason of its default; ``{unit}`` and ``{Unit}`` stand for the unit.
        unit: The unit of the stored value; None for a setting that counts nothing.
        fixed: Why it cannot change while the endpoint exists; empty where it can.
        on_streams: What a stream has instead of it; empty where a stream also has the setting.
    """

    name: str
    type: SettingType
    default: Any
    description: str
    unit: Unit | None
    fixed: str
    on_streams: str

    def described(self, unit: Unit | None) -> str:
        """The description for a vocabulary that uses this unit."""
        word = unit.word if unit is not None else ""
        return self.description.format(unit=word, Unit=word.capitalize())

    def read(self, value: Any, unit: Unit | None) -> Any:
        """Convert a vocabulary's value in this unit to the stored value."""
        if self.type.choices is not None:
            return self.type.choices(value)
        return value if unit is self.unit or unit is None else value * unit.size

    def told(self, value: Any, unit: Unit | None) -> Any:
        """Convert a stored value to a vocabulary's value in this unit, rounded up."""
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
    """The stored settings of an endpoint: first those set from outside, then those that the gateway sets."""

    exclusive: Exclusivity = _setting(  # noqa: RUF009 - it makes a field
        Exclusivity.NONE,
        SettingType.EXCLUSIVITY,
        "`none`: consumers compete. Else one is active, and another attach waits (Solace, RabbitMQ), is refused "
        "(Qpid), or steals if its epoch is higher (Event Hubs).",
    )
    quota_bytes: int = _setting(
        0,
        SettingType.QUOTA,
        "{Unit} of messages the queue may hold; 0 is no limit. Beyond it a publisher's message is rejected.",
        unit=Unit.BYTES,
        on_streams="the log has its own `quota_mb`",
    )
    quota_messages: int = _setting(
        0,
        SettingType.QUOTA,
        "{Unit} the queue may hold; 0 is no limit.",
        unit=Unit.MESSAGES,
        on_streams="the log has its own `quota_mb`",
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
        on_streams="messages in the log do not expire",
    )
    max_flows: int = _setting(
        0,
        SettingType.NUMBER,
        "{Unit} attached at the same time; the next attach is refused. 0 is no limit.",
        unit=Unit.CONSUMERS,
    )
    max_unsettled: int = _setting(
        0,
        SettingType.NUMBER,
        "{Unit} a consumer may leave unsettled before it gets no more; 0 is the gateway's "
        "`max_unsettled_per_flow`.",
        unit=Unit.DELIVERIES,
        on_streams="its readers may leave any number unsettled",
    )
    lock_timeout_ms: int = _setting(
        0,
        SettingType.NUMBER,
        "{Unit} for which a consumer keeps a message that it does not settle; then other consumers get it. "
        "0: as long as its link lives, because a consumer that works long must not lose its message.",
        unit=Unit.MILLISECONDS,
        on_streams="its readers own no messages",
    )
    priorities: bool = _setting(
        False,
        SettingType.FLAG,
        "Whether messages of a higher priority (0 to 9; 4 where the header has none) are delivered before "
        "others. Off, because a replay promises the order of publishing.",
        fixed="decides the order of the stored messages",
        on_streams="the log is read in the order of publishing",
    )
    max_redelivery: int = _setting(
        0,
        SettingType.NUMBER,
        "{Unit} of a message before it goes to the dead message queue; 0 is no limit.",
        unit=Unit.REDELIVERIES,
        on_streams="a reader that wants a message again attaches at it",
    )
    dead_message_queue: str = _setting(
        "",
        SettingType.QUEUE,
        "Queue for messages that expired, were rejected, or were redelivered too often; created if it does "
        "not exist. Empty: they are discarded; the replay log still has them.",
        on_streams="a stream has no dead messages",
    )
    retry_type: RetryType = _setting(  # noqa: RUF009 - it makes a field
        RetryType.DISABLED,
        SettingType.RETRY,
        "Which messages that a consumer gives back wait before they are delivered again: `failed` (modified "
        "with delivery-failed), `returned` (released, or modified without it), or `all`. `disabled`, because "
        "AMQP says that a released message is available again immediately.",
        on_streams="a reader that wants a message again attaches at it",
    )
    retry_delay_ms: int = _setting(
        1_000,
        SettingType.NUMBER,
        "{Unit} that such a message waits after the first try.",
        unit=Unit.MILLISECONDS,
        on_streams="a reader that wants a message again attaches at it",
    )
    retry_factor: int = _setting(
        2,
        SettingType.NUMBER,
        "Factor by which the delay grows with each further try: 2 doubles it, 1 keeps it. 0 is linear: the "
        "first delay multiplied by the number of failed tries (RabbitMQ).",
        unit=Unit.TIMES,
        on_streams="a reader that wants a message again attaches at it",
    )
    retry_max_ms: int = _setting(
        0,
        SettingType.NUMBER,
        "The longest delay by the factor, in {unit}; 0 is no limit. A consumer may ask for any time.",
        unit=Unit.MILLISECONDS,
        on_streams="a reader that wants a message again attaches at it",
    )
    strict_order: bool = _setting(
        False,
        SettingType.FLAG,
        "Whether later messages wait while a message waits for redelivery. Off, because one bad message "
        "would hold up all others.",
        on_streams="a reader has the log in order",
    )
    dedup_window: int = _setting(
        0,
        SettingType.WINDOW,
        "{Unit} published to its topics whose ids are remembered. Another message with such an id is "
        "accepted, and is not stored again on any endpoint. 0 remembers none, because it costs memory and "
        "throughput.",
        unit=Unit.MESSAGES,
    )
    dedup_window_ms: int = _setting(
        0,
        SettingType.NUMBER,
        "{Unit} after which an id is forgotten, even if `dedup_window` still has room for it; 0 is no limit.",
        unit=Unit.MILLISECONDS,
    )
    default_start: str = _setting(
        "",
        SettingType.START,
        "Replay start of a consumer that asks for none, such as `live`, `beginning`, `10m`. `live`, because "
        "only a consumer that asks for history should get it.",
    )

    value_key: str = _setting(
        "",
        SettingType.PROPERTY,
        "For a last-value queue: the property whose value is a message's key, such as `message-id`, "
        "`subject` or the name of an application property. Empty makes the topic the key, because it usually "
        "says what a message is about.",
        fixed="decides which of its messages replace each other",
        on_streams="a stream shows all messages, whatever their keys",
    )
    message_groups: bool = _setting(
        False,
        SettingType.FLAG,
        "Whether all messages of a group (`group-id`, JMSXGroupID) go to one consumer as long as it is "
        "attached. Off, because finding each message's group costs some microseconds. A change takes effect "
        "when no consumer is attached.",
        on_streams="each reader has all messages",
    )
    partitions: int = _setting(
        0,
        SettingType.PARTITIONS,
        "{Unit} over which messages are distributed by their keys. Each has one consumer at a time, and "
        "keeps its order. 0 is no partitions: any consumer may get any message. A change takes effect when "
        "no consumer is attached.",
        unit=Unit.PARTITIONS,
        on_streams="each reader has all messages",
    )
    partition_key: str = _setting(
        "group-id",
        SettingType.PROPERTY,
        "Property whose value is a message's key: `group-id`, `message-id`, `correlation-id`, `subject`, or "
        "an application property's name. Empty is `group-id`, because it says which messages belong "
        "together.",
        on_streams="it has no partitions",
    )

    temporary: bool = False
    """Whether it is deleted with the link or the connection that it was made for."""
    owner: str = ""
    """The user whose subscription it is; empty if an administrator made it, or if no users were configured then."""
    no_local: str = ""
    """The origin (see ``Origins``) whose messages are not put on the endpoint; empty: all messages are."""
    selector: str | None = None
    """The selector and other filters that a subscription was made with; empty for none. None where it is not known, for
    example if an administrator made the endpoint."""
    auto_delete: bool = False
    """Whether it is deleted when its last consumer has gone. An endpoint that never had a consumer stays."""
    declared: bool = False
    """Whether the configuration names it. Then a client cannot delete it."""
    purged_below: int = 0
    """Of a stream that an administrator purged: the first id in its view."""
    purged_ms: int = 0
    """Of a stream that was purged: its view is complete from this time on, in ms since the epoch."""

    @property
    def has_quota(self) -> bool:
        """Whether the endpoint has a quota of messages or bytes."""
        return bool(self.quota_bytes or self.quota_messages)

    @property
    def keyed_by(self) -> tuple[object, ...]:
        """The settings that decide how messages are distributed by their keys."""
        return self.message_groups, self.partitions, self.partition_key

    def to_json(self) -> str:
        """The settings as the text in the store."""
        return json.dumps({**asdict(self), **{name: getattr(self, name).value for name in _ENUMERATED}})

    @classmethod
    def from_json(cls, text: str) -> EndpointSettings:
        """
        The settings from the text of ``to_json``. A setting that is missing in the text has its default.

        Raises:
            LaterSetting: A later version wrote the text.
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
"""The settings that are set from outside, by name, in the order of the documents."""

_ENUMERATED: Final = {name: of for name, said in SETTINGS.items() if (of := said.type.choices) is not None}


class EndpointTopics:
    """
    The topics of an endpoint: its subscriptions, and for a queue or stream the topic of its name.

    Args:
        subscriptions: The endpoint's subscriptions. The owner calls ``changed`` after it has changed them.
    """

    __slots__ = ("_matches", "_own", "_subscriptions")

    def __init__(self, name: str, kind: EndpointKind, subscriptions: Mapping[str, None]) -> None:
        self._own = None if kind is EndpointKind.TOPIC_ENDPOINT else queue_topic(name)
        self._subscriptions = subscriptions
        self._matches: Callable[[str], bool] | None = None

    def changed(self) -> None:
        """The subscriptions have changed."""
        self._matches = None

    @property
    def patterns(self) -> tuple[str, ...]:
        """The topics as patterns, for queries of the store."""
        return self.patterns_with(self._subscriptions)

    @property
    def matches(self) -> Callable[[str], bool]:
        """Whether a topic is one of the endpoint's. It is compiled once for the present subscriptions."""
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
    The queue that gets an endpoint's dead messages, and the topics whose messages the endpoint gets.

    A dead message is sent to its endpoint's dead message queue by name. That queue gets it, and so does every endpoint
    that subscribes to the queue's topic. Each of these may have its own dead message queue. So dead messages could come
    back to the endpoint where they died, and die again without end. A stream holds no message that could die.
    """

    queue: str
    """The endpoint's dead message queue."""
    takes: Callable[[str], bool]
    """Whether messages of a topic are put on the endpoint."""


def way_of(
    name: str, kind: EndpointKind, dead_message_queue: str, subscriptions: Iterable[str]
) -> DeadLetterWay | None:
    """The dead letter way of such an endpoint; None where no message can die, or dead messages are discarded."""
    if not dead_message_queue or kind.is_view:
        return None
    return DeadLetterWay(dead_message_queue, EndpointTopics(name, kind, {}).matching(subscriptions))


def circle_of(name: str, ways: Mapping[str, DeadLetterWay]) -> list[str]:
    """The endpoints through which dead messages come back to their endpoint, itself first and last; else empty."""
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
    """The names of a circle, for a text."""
    return " to ".join(repr(name) for name in circle)
