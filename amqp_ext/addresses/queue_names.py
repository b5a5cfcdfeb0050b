"""
Names of queues, and the topics that sending to a queue by its name publishes to.

Source: Solace documentation, "Configuring Queues".
"""

from __future__ import annotations

import re
from typing import Final

from amqp_ext.addresses.texts import AddressError, shown
from amqp_ext.topics import MAX_TOPIC_BYTES

QUEUE_TOPIC_PREFIX: Final = "#queue/"
"""Sending to a queue by its name is publishing to this and the name."""

TOPIC_ENDPOINT_PREFIX: Final = "#topic-endpoint/"
"""The same for a topic endpoint, which nobody sends to: what died on it goes back there by this."""

MAX_QUEUE_NAME: Final = 200
"""Longest queue name in characters: Solace's limit for durable queues."""

MAX_QUEUE_NAME_BYTES: Final = MAX_TOPIC_BYTES - len(QUEUE_TOPIC_PREFIX)
"""Longest queue name in UTF-8 bytes, so that its topic is one that can be subscribed to."""

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
    Return ``name`` if a queue may be called so.

    Solace's rules: up to ``MAX_QUEUE_NAME`` characters, levels separated by ``/`` of which none is empty, no
    control characters and none of ``FORBIDDEN_IN_QUEUE_NAMES``. Names that start with ``#`` are for the
    gateway's own (temporary) queues, and are let through here.

    Raises:
        AddressError: It may not; the text says why.
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
        raise AddressError(f"A queue's name has to be valid Unicode; {shown(name)} is not.") from None
    if size > MAX_QUEUE_NAME_BYTES:
        raise AddressError(
            f"A queue's name has at most {MAX_QUEUE_NAME_BYTES} bytes in UTF-8; this one has {size}."
        )
    forbidden = sorted({character for character in name if character in FORBIDDEN_IN_QUEUE_NAMES})
    if forbidden or _CONTROL.search(name):
        found = " ".join(forbidden) or "a control character"
        raise AddressError(
            f"The queue name {shown(name)} has {found} in it; names may not contain control characters "
            f"or any of {' '.join(FORBIDDEN_IN_QUEUE_NAMES)}"
        )
    if "" in name.split("/"):
        raise AddressError(
            f"The queue name {shown(name)} has an empty level; there may be no '/' at its ends and no '//'."
        )
    if name.startswith(QUEUE_TOPIC_PREFIX):
        queue = name.removeprefix(QUEUE_TOPIC_PREFIX)
        raise AddressError(
            f"{shown(name)} is a topic, the one of the queue {queue!r}; use 'queue://{queue}'."
        )
    return name
