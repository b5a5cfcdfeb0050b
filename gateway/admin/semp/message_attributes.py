"""Attributes of messages in lists, and how a list of them is asked for."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from typing_extensions import TypedDict

from amqp_ext.message.json_sections import PROPERTIES_SECTION, brief, is_erased
from amqp_ext.message.priority import DEFAULT as DEFAULT_PRIORITY
from amqp_ext.message.priority import priority_of
from amqp_ext.replay_id import format_replay_id
from amqp_ext.selector.lexer import SelectorError
from amqp_ext.selector.selector import compile_selector
from amqp_ext.topics import TopicFilter, TopicPattern
from gateway.admin.semp.documented import resource
from gateway.admin.semp.envelope import SempError
from gateway.core.model import Row
from gateway.core.replay.search import Search
from gateway.vpn.log import LoggedMessage, Wanted

MOST_PATTERNS: Final = 100
"""Topic patterns of a list of messages: each topic is held against all of them."""


KNOWN: Final = 1_024
"""Topics, and what stands in front of messages, whose texts are remembered; beyond, it starts over."""

KNOWN_BYTES: Final = 256
"""Bytes in front of a message that are remembered."""

_NOTHING_SAID: Final = '"contentType":null,"correlationId":null'

K = TypeVar("K")
V = TypeVar("V")

_dumps: Final[Callable[[str | None], str]] = json.JSONEncoder(ensure_ascii=False).encode


class ListedMessage(TypedDict):
    """What a list says of a message; nothing of it is read from the body."""

    msgId: int
    replicationGroupMsgId: str
    spooledTime: int
    spooledTimeMs: int
    topic: str
    priority: int
    contentSize: int
    contentType: str | None
    correlationId: str | None
    isErased: bool


MESSAGE: Final = resource("LoggedMsg", ListedMessage)


def listed_message(message: LoggedMessage, generation: int) -> ListedMessage:
    """A message in a list; ``generation`` is the log's."""
    return {
        "msgId": message.message_id,
        "replicationGroupMsgId": format_replay_id(generation, message.message_id),
        "spooledTime": message.time_ms // 1_000,
        "spooledTimeMs": message.time_ms,
        "topic": message.topic,
        "priority": message.priority,
        "contentSize": message.size_bytes,
        "contentType": message.content_type,
        "correlationId": message.correlation_id,
        "isErased": message.is_erased,
    }


class ListedRows:
    """
    The JSON of messages in a list, many at a time (``gateway.admin.v1.log_stream.Texts``): what ``listed_message``
    says of each, without making an object of it.

    Args:
        generation: The log's.
    """

    def __init__(self, generation: int) -> None:
        self._replay_id = format_replay_id(generation, 0)[: -len("00000000-00000000")]
        self._topics: dict[str, str] = {}
        self._fronts: dict[bytes, tuple[int, str]] = {b"": (DEFAULT_PRIORITY, "false")}

    def texts(self, rows: Sequence[Row], end_id: int | None) -> list[str]:
        """The JSON text of each."""
        found = list[str]()
        topics, fronts, replay_id = self._topics, self._fronts, self._replay_id
        high, high_text = -1, ""
        for message_id, time_ms, topic, bare, _route, _held, content in rows:
            if message_id >> 32 != high:
                high = message_id >> 32
                high_text = f"{replay_id}{high:08x}-"
            topic_text = topics.get(topic)
            if topic_text is None:
                topic_text = _remember(topics, topic, _dumps(topic))
            front = content[:bare]
            front_texts = fronts.get(front)
            if front_texts is None:
                front_texts = _front(content, bare)
                if bare <= KNOWN_BYTES:
                    _remember(fronts, front, front_texts)
            priority, erased = front_texts
            said = _NOTHING_SAID
            if content[bare : bare + 3] == PROPERTIES_SECTION:
                content_type, correlation_id = brief(content, bare)
                said = f'"contentType":{_dumps(content_type)},"correlationId":{_dumps(correlation_id)}'
            found.append(
                f'{{"msgId":{message_id},"replicationGroupMsgId":"{high_text}{message_id & 0xFFFFFFFF:08x}",'
                f'"spooledTime":{time_ms // 1_000},"spooledTimeMs":{time_ms},"topic":{topic_text},'
                f'"priority":{priority},"contentSize":{len(content)},{said},"isErased":{erased}}}'
            )
        return found


def _front(content: bytes, bare: int) -> tuple[int, str]:
    """What is said in front of the bare message: the priority, and whether the content was erased."""
    return priority_of(content), "true" if is_erased(content, bare) else "false"


def _remember(known: dict[K, V], key: K, value: V) -> V:
    if len(known) >= KNOWN:
        known.clear()
    known[key] = value
    return value


def wanted(patterns: Sequence[str], selector: str | None) -> Wanted:
    """
    Which messages are asked for.

    Raises:
        amqp_ext.topics.TopicSyntaxError: A pattern is none.
        SempError: INVALID_PARAMETER, the selector is none.
    """
    matches = TopicFilter([TopicPattern.parse(pattern) for pattern in patterns], implicit_all=True).matches
    if not selector:
        return Wanted(patterns, matches)
    try:
        return Wanted(patterns, matches, Search(compile_selector(selector).matches))
    except SelectorError as error:
        raise SempError("INVALID_PARAMETER", f"`selector` is none: {error}") from None


def place_of(cursor: str | None) -> tuple[int, int] | None:
    """The position, and the bound beside it, of a cursor."""
    found = None if cursor is None else re.fullmatch(r"([0-9]{1,19}):([0-9]{1,19})", cursor)
    return None if found is None else (int(found[1]), int(found[2]))
