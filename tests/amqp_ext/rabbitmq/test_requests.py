"""``/management``: requests of HTTP over AMQP read into commands, and answers written."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext import codec
from amqp_ext.codec import Array, CodecError, Described, ULong
from amqp_ext.message import sections
from amqp_ext.rabbitmq.forms import NODE_NAME, ExchangeKind
from amqp_ext.rabbitmq.management import (
    Bind,
    Binding,
    Declared,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DescribeQueue,
    FindBinding,
    ManagementNode,
    PurgeQueue,
    QueueArguments,
    QueueState,
    Removed,
    RenewToken,
    Unbind,
)
from amqp_ext.request_nodes import Request, RequestError, value_of

NODE = ManagementNode(NODE_NAME)
ID = UUID(int=5)
BINDING = Binding("orders", "q", "eu.#")
STATE = QueueState("q", "default", QueueArguments(is_stream=True), 7, 2)


def asked(method: str, path: str, body: Any = None, *, data: bytes | None = None) -> bytes:
    """A request as RabbitMQ's clients write it."""
    properties = [ID, None, path, method, "$me"]
    found = codec.encode(Described(ULong(sections.PROPERTIES), properties))
    if data is not None:
        return found + codec.encode(Described(ULong(sections.DATA), data))
    return found + codec.encode(Described(ULong(sections.AMQP_VALUE), body))


def status_of(answer: bytes) -> int:
    """The status code of an answer, which has to be correlated and to be one of HTTP over AMQP."""
    properties = sections.properties(answer)
    assert properties.correlation_id == ID
    assert properties.to == "$me"
    assert sections.application_properties(answer) == {"http:response": "1.1"}
    return int(properties.subject or 0)


@pytest.mark.parametrize(
    ("content", "command"),
    [
        (
            asked("PUT", "/queues/a%2Fb", {"durable": True, "exclusive": False, "auto_delete": False}),
            DeclareQueue("a/b", QueueArguments()),
        ),
        (
            asked("PUT", "/queues/s", {"arguments": {"x-queue-type": "stream"}}),
            DeclareQueue("s", QueueArguments(is_stream=True)),
        ),
        (asked("PUT", "/queues/q"), DeclareQueue("q", QueueArguments())),
        (asked("GET", "/queues/a%20q"), DescribeQueue("a q")),
        (asked("DELETE", "/queues/q"), DeleteQueue("q")),
        (asked("DELETE", "/queues/q/messages"), PurgeQueue("q")),
        (
            asked("PUT", "/exchanges/orders", {"type": "topic", "durable": True, "arguments": {}}),
            DeclareExchange("orders", ExchangeKind.TOPIC),
        ),
        (asked("DELETE", "/exchanges/orders"), DeleteExchange("orders")),
        (
            asked(
                "POST",
                "/bindings",
                {"source": "orders", "destination_queue": "q", "binding_key": "eu.#", "arguments": {}},
            ),
            Bind(BINDING),
        ),
        (asked("DELETE", "/bindings/src=orders;dstq=q;key=eu.%23;args="), Unbind(BINDING)),
        (asked("GET", "/bindings?src=orders&dstq=q&key=eu.%23"), FindBinding(BINDING)),
        (asked("PUT", "/auth/tokens", b"secret"), RenewToken(b"secret")),
        (asked("PUT", "/auth/tokens", data=b"secret"), RenewToken(b"secret")),
    ],
)
def test_requests_are_read_into_commands(content: bytes, command: Any) -> None:
    """Each request that RabbitMQ's clients make is a command, with what its answer needs."""
    assert NODE.read(content) == Request(command, ID, "$me")


def test_an_empty_body_may_stand_in_front() -> None:
    """The Python client puts an empty body before the properties: it is read all the same."""
    content = asked("GET", "/queues/q")
    body = codec.encode(Described(ULong(sections.AMQP_VALUE), None))
    in_front = body + content.removesuffix(body)
    assert NODE.read(in_front).command == DescribeQueue("q")


@pytest.mark.parametrize(
    ("content", "condition", "words"),
    [
        (asked("GET", "/vhosts"), "amqp:not-found", "no 'GET' of '/vhosts'"),
        (asked("PATCH", "/queues/q"), "amqp:not-found", "no 'PATCH'"),
        (asked("PUT", "/queues/a*"), "amqp:invalid-field", "a*"),
        (asked("PUT", "/queues/"), "amqp:invalid-field", "empty"),
        (asked("PUT", "/queues/%ff"), "amqp:invalid-field", "not UTF-8"),
        (asked("PUT", "/queues/q", ["x"]), "amqp:invalid-field", "is a map"),
        (asked("PUT", "/queues/q", {"arguments": 5}), "amqp:invalid-field", "are a map"),
        (asked("PUT", "/queues/q", {"durable": False}), "amqp:invalid-field", "durable = true"),
        (asked("PUT", "/queues/q", {"exclusive": 1}), "amqp:invalid-field", "exclusive of a declaration"),
        (
            asked("PUT", "/queues/q", {"auto_delete": True, "arguments": {"x-queue-type": "quorum"}}),
            "amqp:invalid-field",
            "auto_delete = true is a classic one",
        ),
        (asked("PUT", "/queues/q", {"arguments": {"x-expires": 1}}), "amqp:invalid-field", "x-expires"),
        (asked("PUT", "/exchanges/e", {"type": "headers"}), "amqp:not-implemented", "headers"),
        (asked("PUT", "/exchanges/e", {"internal": True}), "amqp:not-implemented", "internal = True"),
        (asked("PUT", "/exchanges/"), "amqp:invalid-field", "default exchange"),
        (
            asked("POST", "/bindings", {"source": "e", "destination_exchange": "f"}),
            "amqp:not-implemented",
            "not to other exchanges",
        ),
        (asked("POST", "/bindings", {"destination_queue": "q"}), "amqp:invalid-field", "are strings"),
        (asked("DELETE", "/bindings/src=e"), "amqp:invalid-field", "dstq"),
        (asked("PUT", "/auth/tokens", "text"), "amqp:invalid-field", "binary"),
    ],
)
def test_what_is_no_good_request_can_be_answered(content: bytes, condition: str, words: str) -> None:
    """A bad request says why, and which condition that is, and can be answered."""
    with pytest.raises(RequestError) as bad:
        NODE.read(content)
    assert (bad.value.request.id, bad.value.request.reply_to) == (ID, "$me")
    assert bad.value.condition == condition
    assert words in str(bad.value)


@given(st.binary(max_size=64), st.integers(0, 200))
def test_hostile_bytes_are_errors_of_their_sender(noise: bytes, place: int) -> None:
    """Whatever the bytes, a request is read, or it is an error that says so."""
    content = asked("PUT", "/queues/q", {"arguments": {"x-queue-type": "stream"}})
    for hostile in (noise, content[:place] + noise + content[place:], content[:place]):
        with suppress(CodecError, RequestError):
            assert isinstance(NODE.read(hostile), Request)


@pytest.mark.parametrize(
    ("result", "status"),
    [
        (Declared(STATE, is_new=True), 201),
        (Declared(STATE, is_new=False), 200),
        (STATE, 200),
        (Removed(3), 200),
        ([], 200),
        (None, 204),
    ],
)
def test_answers_have_the_status_that_clients_expect(result: Any, status: int) -> None:
    """Made is 201, found and removed 200, done without a word 204."""
    assert status_of(NODE.answer(Request(None, ID, "$me"), result)) == status


def test_a_queue_is_described_as_clients_read_it() -> None:
    """Every field that a client looks for is there, of the type that RabbitMQ gives it."""
    described = value_of(NODE.answer(Request(None, ID, "$me"), STATE))
    assert described == {
        "name": "q",
        "vhost": "default",
        "durable": True,
        "auto_delete": False,
        "exclusive": False,
        "type": "stream",
        "arguments": {"x-queue-type": "stream"},
        "leader": "rewind",
        "replicas": ["rewind"],
        "message_count": 7,
        "consumer_count": 2,
    }
    assert isinstance(described["message_count"], ULong)
    assert isinstance(described["replicas"], Array)


def test_a_binding_is_listed_with_the_path_that_deletes_it() -> None:
    """The location of a binding that was found, deleted, is that binding."""
    (listed,) = value_of(NODE.answer(Request(None, ID, "$me"), [BINDING]))
    assert NODE.read(asked("DELETE", listed["location"])).command == Unbind(BINDING)
    assert (listed["source"], listed["binding_key"], listed["arguments"]) == ("orders", "eu.#", {})


@pytest.mark.parametrize(
    ("condition", "status"),
    [
        ("amqp:unauthorized-access", 403),
        ("amqp:not-found", 404),
        ("amqp:precondition-failed", 409),
        ("amqp:internal-error", 500),
        ("amqp:invalid-field", 400),
        ("amqp:not-implemented", 400),
    ],
)
def test_refusals_have_a_status_and_a_sentence(condition: str, status: int) -> None:
    """A refusal's body is its sentence."""
    refusal = NODE.refuse(Request(None, ID, "$me"), condition, "because")
    assert (status_of(refusal), value_of(refusal)) == (status, "because")
