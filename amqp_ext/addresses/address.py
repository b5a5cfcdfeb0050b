"""
What an AMQP source or target address means: which node, and the options of the attach.

========================================  ===================================================================
``orders``, ``queue://orders``            the queue
``topic://a/b``, ``dsub://a/b``           the topic, or a subscription to it
``log://a/>``                             the replay log, read where the pattern matches
``#P2P/TTMP/…``                           a temporary topic
paths, and names of a vendor's form       queues, partitions of their logs, and nodes that answer requests: see
                                          ``amqp_ext.vendor_forms``
========================================  ===================================================================

``amqp://host:port/`` or ``amqps://…`` may stand in front of any of them and says nothing. After the first
``?`` come options, ``key=value`` joined by ``&``; values are percent-decoded and a ``+`` stays a ``+``. So a
name with a ``?`` in it has no address; Solace forbids one in the name of a queue.

The capabilities ``queue`` and ``topic`` (and the temporary ones) of a source or target win over the prefixes
``queue://``, ``topic://`` and ``dsub://``, as at Solace: Qpid JMS always sends one, whatever the name looks
like. They choose between queue and topic and nothing more: the address of a log, a partition or a request node
stays what it is, except that with the capability ``topic`` a name is never a partition's. ``stream`` asks for a
queue that is a stream, as the option ``kind=stream`` does.

Null and dynamic addresses have no text to read: they never come here.

Source: Solace documentation, "AMQP Topic and Queue Addressing".
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from amqp_ext.addresses.forms import PartitionPosition
from amqp_ext.addresses.options import NO_OPTIONS, OPTIONS_OF_QUEUES, read_options
from amqp_ext.addresses.queue_names import check_queue_name
from amqp_ext.addresses.texts import AddressError, shown
from amqp_ext.topics import TopicPattern, TopicSyntaxError, check_topic
from amqp_ext.vendor_forms import ADDRESS_FORMS

_REQUEST_NODES: Final = frozenset[str]().union(*(form.nodes for form in ADDRESS_FORMS))
_QUEUE_CAPABILITIES: Final = frozenset({"queue", "temporary-queue", "stream"})
_TOPIC_CAPABILITIES: Final = frozenset({"topic", "temporary-topic"})
_TEMPORARY_TOPICS: Final = "#P2P/TTMP/"

_URL: Final = re.compile(r"amqps?://[^/]*(/|$)", re.IGNORECASE)
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

_PATHS: Final = tuple(form.queue_of for form in ADDRESS_FORMS if form.queue_of is not None)
_SOURCE_PARTITIONS: Final = tuple(
    form.partition_of_source for form in ADDRESS_FORMS if form.partition_of_source is not None
)
_TARGET_QUEUES: Final = tuple(
    form.queue_of_target for form in ADDRESS_FORMS if form.queue_of_target is not None
)


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
        name: The queue (of a partition: whose log it is), the request node, the topic (for a source: the subscription,
            which may hold wildcards), or the pattern of a log reader.
        options: By their names, checked.
        position: For PARTITION alone.
    """

    kind: AddressKind
    name: str
    options: Mapping[str, str] = field(default_factory=lambda: NO_OPTIONS)
    position: PartitionPosition | None = None


def parse_source(address: str, capabilities: Collection[str] = ()) -> Address:
    """
    Read the address of a source, that is where a client receives from.

    A topic is checked as a subscription, a log's name as a pattern (with a leading ``!`` it means all but that).

    Args:
        capabilities: Those of the source.

    Raises:
        AddressError: It names nothing here.
    """
    body, options = _split(address)
    if _may_be_vendors(body, capabilities):
        for read in _SOURCE_PARTITIONS:
            if (found := read(body)) is not None:
                check_queue_name(found.queue)
                return Address(AddressKind.PARTITION, found.queue, options, found.position)
    kind, name = _classify(body, capabilities)
    if kind in (AddressKind.TOPIC, AddressKind.LOG):
        try:
            pattern = TopicPattern.parse(name)
        except TopicSyntaxError as error:
            raise AddressError(f"The address {shown(address)} has no valid subscription: {error}.") from None
        if pattern.is_exception and kind is AddressKind.TOPIC:
            raise AddressError(
                f"The address {shown(address)} subscribes to an exception alone, which matches nothing."
            )
    return Address(kind, name, _with_kind(kind, options, capabilities))


def parse_target(address: str, capabilities: Collection[str] = ()) -> Address:
    """
    Read the address of a target, or a message's ``to``: where a client sends to.

    A log comes back as a LOG address; that one cannot send to it is for the caller to answer.

    Args:
        capabilities: Those of the target; a message's ``to`` has none.

    Raises:
        AddressError: It names nothing here.
    """
    body, options = _split(address)
    if _may_be_vendors(body, capabilities):
        for read in _TARGET_QUEUES:
            if (queue := read(body, address)) is not None:
                body = queue
                break
    kind, name = _classify(body, capabilities)
    if kind is AddressKind.TOPIC:
        try:
            check_topic(name)
        except TopicSyntaxError as error:
            raise AddressError(f"The address {shown(address)} has no valid topic: {error}.") from None
    return Address(kind, name, _with_kind(kind, options, capabilities))


def without_host(address: str) -> str:
    """``address`` freed of the ``amqp://host/`` that may stand in front of it."""
    url = _URL.match(address)
    return address[url.end() :] if url else address


def _classify(body: str, capabilities: Collection[str]) -> tuple[AddressKind, str]:
    if body in _REQUEST_NODES:
        return AddressKind.REQUEST_NODE, body
    scheme, rest = _scheme_of(body)
    if scheme == "log":
        return AddressKind.LOG, rest
    wants_queue = not _QUEUE_CAPABILITIES.isdisjoint(capabilities)
    wants_topic = not _TOPIC_CAPABILITIES.isdisjoint(capabilities)
    if wants_queue and wants_topic:
        raise AddressError(
            f"The capabilities of {shown(body)} ask for a queue and a topic at once; choose one."
        )
    if wants_topic or (
        not wants_queue and (scheme in ("topic", "dsub") or rest.startswith(_TEMPORARY_TOPICS))
    ):
        return AddressKind.TOPIC, rest
    if not scheme:
        for read in _PATHS:
            if (queue := read(body)) is not None:
                rest = queue
                break
    return AddressKind.QUEUE, check_queue_name(rest)


def _may_be_vendors(body: str, capabilities: Collection[str]) -> bool:
    """Whether it is a plain name, and nothing says that it is a topic's."""
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
            f"{shown(body)} starts with an unknown {found[0]!r}; addresses start with 'queue://', "
            "'topic://', 'dsub://' or 'log://', or are the bare name of a queue."
        )
    return scheme, body[found.end() :]


def _split(address: str) -> tuple[str, Mapping[str, str]]:
    """What is before the ``?``, freed of an ``amqp://host/``, and the options after it."""
    body, mark, query = address.partition("?")
    body = without_host(body)
    if not body:
        raise AddressError(f"The address {shown(address)} names no node.")
    return body, read_options(query, address) if mark else NO_OPTIONS


def _with_kind(
    kind: AddressKind, options: Mapping[str, str], capabilities: Collection[str]
) -> Mapping[str, str]:
    """The options, checked against what the address names; of a queue, with what its capabilities say of its kind."""
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
