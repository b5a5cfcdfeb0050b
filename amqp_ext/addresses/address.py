"""
What an address of an AMQP source or target means: which node, the options of the attach, and the names of queues.

========================================  ===================================================================
``orders``, ``queue://orders``            the queue
``topic://a/b``, ``dsub://a/b``           the topic, or a subscription to it
``log://a/>``                             the replay log, read where the pattern matches
``#P2P/TTMP/…``                           a temporary topic
paths, and names of a vendor's form       queues, partitions of their logs, and nodes that answer requests: see
                                          ``amqp_ext.vendor_forms``
========================================  ===================================================================

``amqp://host:port/`` or ``amqps://…`` may precede any of them and is ignored. After the first
``?`` come options, ``key=value`` joined by ``&``; values are percent-decoded and a ``+`` stays a ``+``. So a
name with a ``?`` in it has no address; Solace forbids a ``?`` in the name of a queue.

The capabilities ``queue`` and ``topic`` (and the temporary ones) of a source or target win over the prefixes
``queue://``, ``topic://`` and ``dsub://``, as at Solace: Qpid JMS always sends one, whatever the name looks
like. They choose between queue and topic and nothing more: the address of a log, a partition or a request node
stays what it is, except that with the capability ``topic`` a name is never a partition's. ``stream`` asks for a
queue that is a stream, as the option ``kind=stream`` does.

Null and dynamic addresses have no text to read: they are not handled here.

Sending to a queue by its name publishes to a topic of the queue's own, ``queue_topic``.

Source: Solace documentation, "AMQP Topic and Queue Addressing" and "Configuring Queues".
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from amqp_ext.addresses.forms import AddressError, PartitionPosition, percent_decoded, quoted
from amqp_ext.topics import MAX_TOPIC_BYTES, TopicPattern, TopicSyntaxError, check_topic
from amqp_ext.vendor_forms import REQUEST_NODES, partition_of_source, queue_of_path, queue_of_target

OPTIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "create": ("always", "never"),  # may this attach create the queue; the default is the VPN's setting
        "epoch": (),  # a whole number: who takes over a queue that is exclusive=steal
        "exclusive": ("wait", "refuse", "steal"),  # what a second consumer of the queue meets
        "generation": (),
        "kind": ("queue", "stream", "last-value"),  # what the queue is, or is to be if created by this attach
        "missing": (),
        "rate": (),
        "replay-name": (),
        "replay-start": (),
        "speed": (),
        "until": (),
    }
)
"""Every option, with the values it may have; an empty tuple means that the user of the option reads its text
(``amqp_ext.replay_start`` does for replays). On a target the options of a replay are allowed and ignored: JMS
programs send to the same queue object that they consume from."""

OPTIONS_OF_QUEUES: Final = ("epoch", "exclusive", "kind")
"""Options that say what a queue is, or is to be; a topic or a log that has one is a mistake."""

LONG_DIGITS: Final = 19
"""Digits of the largest AMQP long: an epoch has fewer."""

NO_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})
"""The options of an address without a ``?``."""


def read_options(query: str, address: str) -> Mapping[str, str]:
    """
    The options of an address.

    Args:
        query: The text after the ``?``.
        address: The whole address, for the error text.

    Raises:
        AddressError: An option is unknown, is there twice, has no value, or a value that it may not have.
    """
    options: dict[str, str] = {}
    for part in query.split("&"):
        key, equals, text = part.partition("=")
        if key not in OPTIONS:
            raise AddressError(
                f"{quoted(key)} in the address {quoted(address)} is not an option; the options are "
                f"{', '.join(OPTIONS)}, each written key=value and joined by '&'."
            )
        if not equals or not text:
            raise AddressError(f"The option {key!r} in the address {quoted(address)} has no value.")
        if key in options:
            raise AddressError(f"The option {key!r} is in the address {quoted(address)} twice.")
        value = percent_decoded(text, address)
        if (allowed := OPTIONS[key]) and value not in allowed:
            raise AddressError(f"The option {key!r} may be {' or '.join(allowed)}, not {quoted(value)}.")
        if key == "epoch" and not (value.isascii() and value.isdigit() and len(value) < LONG_DIGITS):
            raise AddressError(f"The option 'epoch' is a whole number, not {quoted(value)}.")
        options[key] = value
    return MappingProxyType(options)


_QUEUE_CAPABILITIES: Final = frozenset({"queue", "temporary-queue", "stream"})
_TOPIC_CAPABILITIES: Final = frozenset({"topic", "temporary-topic"})
TEMPORARY_TOPICS: Final = "#P2P/TTMP/"
"""The prefix of the names of temporary topics, as at Solace."""

_URL: Final = re.compile(r"amqps?://[^/]*(/|$)", re.IGNORECASE)
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


class AddressKind(enum.Enum):
    """What sort of node an address names."""

    QUEUE = "queue"
    TOPIC = "topic"
    LOG = "log"
    PARTITION = "partition"
    REQUEST_NODE = "request-node"


@dataclass(frozen=True, slots=True)
class Address:
    """
    One address, read.

    Attributes:
        name: The queue (for a partition: the queue whose log it is), the request node, the topic (for a source: the
            subscription, which may have wildcards), or the pattern of a log reader.
        options: The checked options, by name.
        position: For PARTITION alone.
    """

    kind: AddressKind
    name: str
    options: Mapping[str, str] = field(default_factory=lambda: NO_OPTIONS)
    position: PartitionPosition | None = None


def parse_source(address: str, capabilities: Collection[str] = ()) -> Address:
    """
    Read the address of a source, from which a client receives.

    A topic is checked as a subscription, a log's name as a pattern (with a leading ``!`` it means all other topics).

    Args:
        capabilities: The capabilities of the source.

    Raises:
        AddressError: The address names nothing here.
    """
    body, options = _split(address)
    if _may_be_vendors(body, capabilities) and (found := partition_of_source(body)) is not None:
        check_queue_name(found.queue)
        return Address(AddressKind.PARTITION, found.queue, options, found.position)
    kind, name = _classify(body, capabilities)
    if kind in (AddressKind.TOPIC, AddressKind.LOG):
        try:
            pattern = TopicPattern.parse(name)
        except TopicSyntaxError as error:
            raise AddressError(f"The address {quoted(address)} has no valid subscription: {error}.") from None
        if pattern.is_exception and kind is AddressKind.TOPIC:
            raise AddressError(
                f"The address {quoted(address)} subscribes to nothing but an exception, which matches "
                "nothing."
            )
    return Address(kind, name, _with_kind(kind, options, capabilities))


def parse_target(address: str, capabilities: Collection[str] = ()) -> Address:
    """
    Read the address of a target, or a message's ``to``, to which a client sends.

    A log comes back as a LOG address; the caller refuses it, as nobody can send to a log.

    Args:
        capabilities: The capabilities of the target; a message's ``to`` has none.

    Raises:
        AddressError: The address names nothing here.
    """
    body, options = _split(address)
    if _may_be_vendors(body, capabilities):
        body = queue_of_target(body, address) or body
    kind, name = _classify(body, capabilities)
    if kind is AddressKind.TOPIC:
        try:
            check_topic(name)
        except TopicSyntaxError as error:
            raise AddressError(f"The address {quoted(address)} has no valid topic: {error}.") from None
    return Address(kind, name, _with_kind(kind, options, capabilities))


def without_host(address: str) -> str:
    """``address`` without the ``amqp://host/`` that may precede it."""
    url = _URL.match(address)
    return address[url.end() :] if url else address


def _classify(body: str, capabilities: Collection[str]) -> tuple[AddressKind, str]:
    if body in REQUEST_NODES:
        return AddressKind.REQUEST_NODE, body
    scheme, rest = _scheme_of(body)
    if scheme == "log":
        return AddressKind.LOG, rest
    wants_queue = not _QUEUE_CAPABILITIES.isdisjoint(capabilities)
    wants_topic = not _TOPIC_CAPABILITIES.isdisjoint(capabilities)
    if wants_queue and wants_topic:
        raise AddressError(
            f"The capabilities of {quoted(body)} ask for both a queue and a topic; choose one."
        )
    if wants_topic or (
        not wants_queue and (scheme in ("topic", "dsub") or rest.startswith(TEMPORARY_TOPICS))
    ):
        return AddressKind.TOPIC, rest
    if not scheme and (queue := queue_of_path(body)) is not None:
        rest = queue
    return AddressKind.QUEUE, check_queue_name(rest)


def _may_be_vendors(body: str, capabilities: Collection[str]) -> bool:
    """Whether an address is a plain name, and no capability says that it is a topic's."""
    return not (
        body.startswith("/") or _SCHEME.match(body) or not _TOPIC_CAPABILITIES.isdisjoint(capabilities)
    )


def _scheme_of(body: str) -> tuple[str, str]:
    """The scheme in lower case ("" for none) and what comes after it."""
    found = _SCHEME.match(body)
    if found is None:
        return "", body
    scheme = found[1].lower()
    if scheme not in ("queue", "topic", "dsub", "log"):
        raise AddressError(
            f"{quoted(body)} starts with an unknown {found[0]!r}; addresses start with 'queue://', "
            "'topic://', 'dsub://' or 'log://', or are the bare name of a queue."
        )
    return scheme, body[found.end() :]


def _split(address: str) -> tuple[str, Mapping[str, str]]:
    """The part before the ``?``, without an ``amqp://host/``, and the options after it."""
    body, mark, query = address.partition("?")
    body = without_host(body)
    if not body:
        raise AddressError(f"The address {quoted(address)} names no node.")
    return body, read_options(query, address) if mark else NO_OPTIONS


def _with_kind(
    kind: AddressKind, options: Mapping[str, str], capabilities: Collection[str]
) -> Mapping[str, str]:
    """The options, checked against the kind of the address; a queue's, with the kind that its capabilities ask for."""
    if kind in (AddressKind.TOPIC, AddressKind.LOG):
        for key in OPTIONS_OF_QUEUES:
            if key in options:
                raise AddressError(
                    f"The option {key!r} is for queues, and this address names a {kind.value}."
                )
    if kind is not AddressKind.QUEUE or "stream" not in capabilities:
        return options
    if options.get("kind", "stream") != "stream":
        raise AddressError(
            f"The capability 'stream' and the option 'kind={options['kind']}' contradict each other."
        )
    return MappingProxyType({**options, "kind": "stream"})


QUEUE_TOPIC_PREFIX: Final = "#queue/"
"""Sending to a queue by its name publishes to the topic of this prefix and the name."""

TOPIC_ENDPOINT_PREFIX: Final = "#topic-endpoint/"
"""The same for a topic endpoint. Clients cannot send to it; the gateway returns its dead letters to it with this."""

MAX_QUEUE_NAME: Final = 200
"""Longest queue name in characters: Solace's limit for durable queues."""

MAX_QUEUE_NAME_BYTES: Final = MAX_TOPIC_BYTES - len(QUEUE_TOPIC_PREFIX)
"""Longest queue name in UTF-8 bytes, so that its topic can be subscribed to."""

FORBIDDEN_IN_QUEUE_NAMES: Final = "'<>*?&;"
"""Characters that Solace refuses in the name of a queue; control characters are refused too."""

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def queue_topic(name: str) -> str:
    """The topic that sending to the queue ``name`` publishes to."""
    return QUEUE_TOPIC_PREFIX + name


def queue_of_topic(topic: str) -> str | None:
    """The queue whose ``queue_topic`` this is, or None if it is not one."""
    name = topic.removeprefix(QUEUE_TOPIC_PREFIX)
    return name if name and len(name) < len(topic) else None


def topic_endpoint_topic(name: str) -> str:
    """The topic by which the gateway, and nobody else, puts a message on the topic endpoint ``name`` alone."""
    return TOPIC_ENDPOINT_PREFIX + name


def topic_endpoint_of_topic(topic: str) -> str | None:
    """The topic endpoint whose ``topic_endpoint_topic`` this is, or None if it is not one."""
    name = topic.removeprefix(TOPIC_ENDPOINT_PREFIX)
    return name if len(name) < len(topic) else None


def check_queue_name(name: str) -> str:
    """
    Return ``name`` if a queue may have this name.

    Solace's rules: up to ``MAX_QUEUE_NAME`` characters, levels separated by ``/`` of which none is empty, no
    control characters and none of ``FORBIDDEN_IN_QUEUE_NAMES``. Names that start with ``#`` are for the
    gateway's own (temporary) queues, and are let through here.

    Raises:
        AddressError: No queue may have this name; the text says why.
    """
    if not name:
        raise AddressError("The address names no queue: its name is empty.")
    if len(name) > MAX_QUEUE_NAME:
        raise AddressError(
            f"A queue's name has at most {MAX_QUEUE_NAME} characters; this one has {len(name)}."
        )
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise AddressError(f"A queue's name has to be valid Unicode; {quoted(name)} is not.") from None
    if size > MAX_QUEUE_NAME_BYTES:
        raise AddressError(
            f"A queue's name has at most {MAX_QUEUE_NAME_BYTES} bytes in UTF-8; this one has {size}."
        )
    forbidden = sorted({character for character in name if character in FORBIDDEN_IN_QUEUE_NAMES})
    if forbidden or _CONTROL.search(name):
        found = " ".join(forbidden) or "a control character"
        raise AddressError(
            f"The queue name {quoted(name)} has {found} in it; names may not contain control characters "
            f"or any of {' '.join(FORBIDDEN_IN_QUEUE_NAMES)}"
        )
    if "" in name.split("/"):
        raise AddressError(
            f"The queue name {quoted(name)} has an empty level; a name has no '/' at its ends and no '//'."
        )
    if name.startswith(QUEUE_TOPIC_PREFIX):
        queue = name.removeprefix(QUEUE_TOPIC_PREFIX)
        raise AddressError(
            f"{quoted(name)} is the topic of the queue {queue!r}, not a name; use 'queue://{queue}'."
        )
    return name
