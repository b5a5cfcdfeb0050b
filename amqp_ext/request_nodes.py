"""
Request nodes: addresses that take requests and give answers, where other addresses name queues and topics.

A node reads a request off a message into a command, a plain value that whoever serves the node carries out, and writes
the answer as a message. Which nodes there are is the vendors' business.

Invariant: nothing here knows what a command does. Requests and answers are whole AMQP messages, as bytes; they are
never stored, and so are the only messages that are decoded and made anew.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from amqp_ext import codec
from amqp_ext.codec import CodecError, Described, ULong
from amqp_ext.message import sections

INVALID: Final = "amqp:invalid-field"
NOT_FOUND: Final = "amqp:not-found"
NOT_IMPLEMENTED: Final = "amqp:not-implemented"

MessageId = int | UUID | bytes | str


@dataclass(frozen=True, slots=True)
class Request:
    """One request: what is asked, and what its answer needs."""

    command: Any
    """Of the vendor's; whoever serves the node knows what it means."""
    id: MessageId | None
    """The message-id, which the answer's correlation-id repeats."""
    reply_to: str | None
    """Where the answer is to go, as the message says it."""


class RequestError(ValueError):
    """
    A message that is a request and no good one. Its text is a sentence for the one who wrote it.

    Attributes:
        request: What of it could be read, so that it can be answered; its command means nothing.
        condition: An AMQP error condition, as if a link were refused for it.
    """

    def __init__(self, request: Request, condition: str, text: str) -> None:
        super().__init__(text)
        self.request = request
        self.condition = condition


class BadRequest(ValueError):
    """A request that is none, or cannot be honoured: its text is a sentence, ``condition`` AMQP's for it."""

    def __init__(self, text: str, condition: str = INVALID) -> None:
        super().__init__(text)
        self.condition = condition


class RequestNode(ABC):
    """How requests to one node are read, and answers written."""

    address: str | None = None
    """Where answers go to requests that do not say it."""

    def read(self, content: bytes) -> Request:
        """
        Read one message.

        Raises:
            CodecError: It is no AMQP message.
            RequestError: It is, and no request of this node's.
        """
        sections.validate(content)
        properties = sections.properties(content)
        request = Request(None, properties.message_id, properties.reply_to or self.address)
        try:
            return replace(request, command=self.command(properties, content))
        except BadRequest as bad:
            raise RequestError(request, bad.condition, str(bad)) from None

    @abstractmethod
    def command(self, properties: sections.Properties, content: bytes) -> Any:
        """
        What a message asks for.

        Raises:
            BadRequest: Nothing that there is here.
        """

    @abstractmethod
    def answer(self, request: Request, result: Any) -> bytes:
        """The message that says what came of a request; ``result`` is what its command's kind results in."""

    @abstractmethod
    def refuse(self, request: Request, condition: str, text: str) -> bytes:
        """The message that says why a request was not carried out."""


# --- messages of requests and answers ---------------------------------------------------------------------------------


def value_of(content: bytes) -> Any:
    """
    The body of a request: the value of an amqp-value, the bytes of a data section; None where there is none.

    Raises:
        CodecError: It is malformed, or a sequence.
    """
    body = sections.body(content)
    if body.kind == "data":
        return b"".join(body.parts) if body.parts else None
    if body.kind == "value":
        return codec.decode(body.parts[0])[0].value
    raise CodecError(0, "the body of a request is a value or data, not a sequence")


def message(
    *,
    correlation_id: MessageId | None,
    value: Any,
    to: str | None = None,
    subject: str | None = None,
    application_properties: Mapping[str, Any] | None = None,
) -> bytes:
    """
    An answer, encoded: properties, application properties and an amqp-value (AMQP 1.0 section 3.2).

    Args:
        correlation_id: Of the very type the request's message-id had.
        value: With the codec's own types where a plain Python value would mean another.
    """
    fields = [None, None, to, subject, None, correlation_id]
    found = codec.encode(Described(ULong(sections.PROPERTIES), fields))
    if application_properties:
        found += codec.encode(Described(ULong(sections.APPLICATION_PROPERTIES), dict(application_properties)))
    return found + codec.encode(Described(ULong(sections.AMQP_VALUE), value))
