"""
Request nodes: addresses that take requests and give answers, where other addresses name queues and topics.

A node reads a request message into a command, a plain value that the gateway carries out, and writes the answer as a
message. The vendors' modules define the nodes.

Invariant: nothing here knows what a command does. Requests and answers are whole AMQP messages, as bytes. They are
never stored: they are the only messages that are decoded and encoded again.
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
    """A value of the vendor's module; the part of the gateway that serves the node knows what it means."""
    id: MessageId | None
    """The message-id, which the answer's correlation-id repeats."""
    reply_to: str | None
    """The address for the answer: the message's reply-to, or the node's default."""


class RequestError(ValueError):
    """
    A message that is not a valid request of the node. Its text is a sentence for the requester.

    Attributes:
        request: What could be read of the request, so that it can be answered; its command has no meaning.
        condition: The AMQP error condition with which a link would be refused.
    """

    def __init__(self, request: Request, condition: str, text: str) -> None:
        super().__init__(text)
        self.request = request
        self.condition = condition


class BadRequest(ValueError):
    """An invalid request, or one that cannot be honoured: its text is a sentence, ``condition`` AMQP's condition."""

    def __init__(self, text: str, condition: str = INVALID) -> None:
        super().__init__(text)
        self.condition = condition


class RequestNode(ABC):
    """How requests to one node are read, and answers written."""

    address: str | None = None
    """The address for answers to requests without a reply-to; None if the node has no such address."""

    def read(self, content: bytes) -> Request:
        """
        Read one message.

        Raises:
            CodecError: The content is not an AMQP message.
            RequestError: The message is not a valid request of this node.
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
        The command that a message asks for.

        Raises:
            BadRequest: The node has no such command, or the request is invalid.
        """

    @abstractmethod
    def answer(self, request: Request, result: Any) -> bytes:
        """The message with the result of a request; the class of its command says what ``result`` is."""

    @abstractmethod
    def refuse(self, request: Request, condition: str, text: str) -> bytes:
        """The message that says why a request was not carried out."""


# --- messages of requests and answers ---------------------------------------------------------------------------------


def value_of(content: bytes) -> Any:
    """
    The body of a request: the value of an amqp-value, or the bytes of the data sections; None without a body.

    Raises:
        CodecError: The body is malformed, or a sequence.
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
        correlation_id: The request's message-id, in the same AMQP type.
        value: With the codec's own types where a plain Python value would be encoded as another AMQP type.
    """
    fields = [None, None, to, subject, None, correlation_id]
    found = codec.encode(Described(ULong(sections.PROPERTIES), fields))
    if application_properties:
        found += codec.encode(Described(ULong(sections.APPLICATION_PROPERTIES), dict(application_properties)))
    return found + codec.encode(Described(ULong(sections.AMQP_VALUE), value))
