"""RabbitMQ's dialect: management requests, exchanges, queue arguments, addresses and stream filters."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.addresses.forms import AddressError
from amqp_ext.codec import Array, CodecError, Int, Symbol, Timestamp, UInt, ULong
from amqp_ext.message import sections
from amqp_ext.message.sections import MessageView, bare_offset
from amqp_ext.rabbitmq.forms import (
    STREAM_OFFSET,
    ExchangeError,
    ExchangeKind,
    StreamFilter,
    from_stream_offset_spec,
    subscriptions_of,
    topic_of,
    topic_of_address,
)
from amqp_ext.rabbitmq.management import (
    ArgumentError,
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
    read_queue_arguments,
)
from amqp_ext.replay_start import Missing, ReplayStartError, StartKind
from amqp_ext.request_nodes import Request, RequestError, value_of
from amqp_ext.topics import TopicPattern, check_topic
from tests.amqp_ext.replay_start.starts import DAY, HOUR, INTEGERS, NEW_YEAR, RMID, start
from tests.support.messages import annotated, data, section

# --- ``/management`` ------------------------------------------------------------------------------------------------

NODE = ManagementNode()
EMPTY = section(sections.AMQP_VALUE, None)
ID = UUID(int=5)
BINDING = Binding("orders", "q", "eu.#")
STATE = QueueState("q", "default", QueueArguments(is_stream=True), 7, 2)


def asked(method: str, path: str, body: Any = None, *, data: bytes | None = None) -> bytes:
    """A request as RabbitMQ's clients write it."""
    found = section(sections.PROPERTIES, [ID, None, path, method, "$me"])
    return found + (section(sections.AMQP_VALUE, body) if data is None else section(sections.DATA, data))


def status_of(answer: bytes) -> int:
    """The status code of an answer, after checks that it is correlated and in RabbitMQ's form."""
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
        # The Python client puts an empty body before the properties.
        (EMPTY + asked("GET", "/queues/q").removesuffix(EMPTY), DescribeQueue("q")),
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


@pytest.mark.parametrize(
    ("content", "condition", "words"),
    [
        (asked("GET", "/vhosts"), "amqp:not-found", "no operation 'GET' of '/vhosts'"),
        (asked("PATCH", "/queues/q"), "amqp:not-found", "no operation 'PATCH'"),
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
    """The error of a bad request has a reason, a condition, and what is needed to answer it."""
    with pytest.raises(RequestError) as bad:
        NODE.read(content)
    assert (bad.value.request.id, bad.value.request.reply_to) == (ID, "$me")
    assert bad.value.condition == condition
    assert words in str(bad.value)


@given(st.binary(max_size=64), st.integers(0, 200))
def test_hostile_bytes_are_errors_of_their_sender(noise: bytes, place: int) -> None:
    """Any bytes give a request, a CodecError or a RequestError."""
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
    """Created is 201, found or removed 200, done without content 204."""
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
    """DELETE of a listed binding's location removes that binding."""
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


# --- Exchanges, keys and bindings as topics and subscriptions -------------------------------------------------------

WORDS = st.sampled_from(["a", "b", "", "a/b", "*x", ">", "x*", "%41", "!", "ü"])
KEYS = st.lists(WORDS, max_size=4).map(".".join)


def is_bound(kind: ExchangeKind, binding_key: str, key: str) -> bool:
    """Whether a message with this key reaches a queue bound with that binding key."""
    topic = topic_of("e", key)
    return any(TopicPattern.parse(s).matches(topic) for s in subscriptions_of(kind, "e", binding_key))


def amqp_091(binding_key: str, key: str) -> bool:
    """Whether a topic exchange of AMQP 0-9-1 would match: ``*`` is one word, ``#`` zero or more."""
    patterns = {"*": r"\.[^.]*", "#": r"(?:\.[^.]*)*"}
    words = binding_key.split(".") if binding_key else []
    expression = "".join(patterns.get(word, re.escape(f".{word}")) for word in words)
    return re.fullmatch(expression, f".{key}" if key else "") is not None


@given(KEYS, st.lists(st.one_of(WORDS, st.just("*")), max_size=4), st.booleans())
def test_a_topic_exchange_matches_as_in_amqp_091(key: str, words: list[str], rest: bool) -> None:
    """A binding's subscriptions match a key's topic exactly if a topic exchange would route it."""
    binding_key = ".".join([*words, "#"] if rest else words)
    assert is_bound(ExchangeKind.TOPIC, binding_key, key) == amqp_091(binding_key, key)


@given(KEYS, KEYS)
def test_a_direct_exchange_compares_keys(binding_key: str, key: str) -> None:
    """A direct exchange matches equal keys only, whatever characters they have."""
    assert is_bound(ExchangeKind.DIRECT, binding_key, key) == (binding_key == key)


@given(KEYS, KEYS)
def test_a_fanout_exchange_takes_every_key(binding_key: str, key: str) -> None:
    """A fanout exchange routes every message, whatever its key and the binding's."""
    assert is_bound(ExchangeKind.FANOUT, binding_key, key)


@given(st.text(min_size=1, max_size=20).filter(lambda name: "\0" not in name), KEYS)
def test_exchanges_stay_apart(exchange: str, key: str) -> None:
    """An exchange's name is the first level of its topics, so exchanges do not mix, and never begins with # or !."""
    topic = check_topic(topic_of(exchange, key))
    assert topic.split("/")[0] == topic_of(exchange, "")
    assert topic[0] not in "#!"


@pytest.mark.parametrize(
    ("kind", "key", "words"),
    [
        *[(ExchangeKind.TOPIC, key, "before its end") for key in ("#.new", "a.#.b", "#.#")],
        (ExchangeKind.DIRECT, ".".join("x" * 200), "at most"),
    ],
)
def test_a_key_that_no_subscription_says_is_refused(kind: ExchangeKind, key: str, words: str) -> None:
    """A ``#`` before the last word, or a key longer than a topic may be, is refused."""
    with pytest.raises(ExchangeError, match=words):
        subscriptions_of(kind, "e", key)


@pytest.mark.parametrize("kind", ["headers", "x-random", 5, None])
def test_kinds_that_are_not_there_are_refused(kind: object) -> None:
    """A headers exchange, or a plugin's kind, is refused with the kinds that exist."""
    with pytest.raises(ExchangeError, match="direct, topic or fanout") as refused:
        ExchangeKind.parse(kind)
    assert refused.value.condition == "amqp:not-implemented"


# --- The arguments of a queue's declaration -------------------------------------------------------------------------

QUEUE = {
    "x-queue-type": "quorum",
    "x-message-ttl": UInt(5_000),
    "x-max-length": 10,
    "x-max-length-bytes": Int(1_000),
    "x-overflow": "reject-publish",
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": "dead",
    "x-delivery-limit": 3,
    "x-consumer-timeout": 1_800_000,
    "x-single-active-consumer": True,
    "x-max-priority": 9,
    "x-delayed-retry-type": "failed",
    "x-delayed-retry-min": 1_000,
    "x-delayed-retry-max": 30_000,
}


READ = QueueArguments(
    max_ttl_ms=5_000,
    quota_messages=10,
    quota_bytes=1_000,
    dead_message_queue="dead",
    max_redelivery=3,
    lock_timeout_ms=1_800_000,
    single_active_consumer=True,
    priorities=True,
    retry_type="failed",
    retry_delay_ms=1_000,
    retry_max_ms=30_000,
    retry_factor=0,
)
STREAM = QueueArguments(is_stream=True)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (QUEUE, READ),
        (READ.to_map(), READ),
        # Without x-delayed-retry-max, the delay stays at its minimum; disabled retries are not listed.
        (
            {"x-delayed-retry-type": "all", "x-delayed-retry-min": 5},
            QueueArguments(retry_type="all", retry_delay_ms=5, retry_max_ms=5, retry_factor=0),
        ),
        (QueueArguments(retry_type="disabled", retry_delay_ms=1_000).to_map(), QueueArguments()),
        # Arguments for replicas and leaders are accepted, and have no effect on a single node.
        ({"x-queue-leader-locator": "balanced", "x-quorum-initial-group-size": 3}, QueueArguments()),
        ({"x-queue-version": 2}, QueueArguments()),
        ({"x-queue-type": "stream", "x-initial-cluster-size": 3}, STREAM),
        (
            {"x-queue-type": "stream", "x-stream-initial-cluster-size": 3},
            STREAM,
        ),  # as the Go client spells it
        # A stream's bounds are accepted, and have no effect.
        ({"x-queue-type": "stream", "x-max-age": "1h", "x-max-length-bytes": 10_000}, STREAM),
    ],
)
def test_arguments_are_read(arguments: dict[str, Any], expected: QueueArguments) -> None:
    """Integers may have any AMQP type, and a described queue's arguments declare the same queue."""
    assert read_queue_arguments(arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"x-queue-type": "jms"}, "quorum, classic or stream, not 'jms'"),
        ({"x-expires": 1_000}, "'x-expires' has no meaning"),
        ({"x-overflow": "drop-head"}, "'drop-head' is not supported"),
        ({"x-message-ttl": "soon"}, "x-message-ttl is a whole number from 1 to 2^40, not 'soon'"),
        # A description could not say it: it has numbers of 63 bits.
        ({"x-max-length": 2**63}, "x-max-length is a whole number from 1 to 2^40, not 9223372036854775808"),
        ({"x-message-ttl": True}, "not True"),
        ({"x-delayed-retry-type": "often"}, "disabled, failed, returned or all, not 'often'"),
        ({"x-delayed-retry-type": "all"}, "needs x-delayed-retry-min"),
        (
            {"x-delayed-retry-type": "all", "x-delayed-retry-min": 5, "x-delayed-retry-max": 4},
            "x-delayed-retry-max (4) is less than x-delayed-retry-min (5)",
        ),
        ({"x-max-length": 0}, "from 1 to 2^40, not 0"),
        ({"x-dead-letter-exchange": "dlx", "x-dead-letter-routing-key": "q"}, "not the exchange 'dlx'"),
        ({"x-dead-letter-exchange": ""}, "back to their queue"),
        ({"x-dead-letter-routing-key": 5}, "the name of a queue, not 5"),
        ({"x-single-active-consumer": 1}, "is a boolean, not 1"),
        ({"x-queue-type": "stream", "x-message-ttl": 5}, "x-message-ttl is for queues"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(arguments: dict[str, Any], words: str) -> None:
    """An argument that affects messages in RabbitMQ, but cannot do so here, is an error."""
    with pytest.raises(ArgumentError) as refused:
        read_queue_arguments(arguments)
    assert words in str(refused.value)


# --- RabbitMQ's addresses of exchanges ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "topic"),
    [
        ("/exchanges/orders/eu.new", "orders/eu/new"),
        ("/exchanges/orders", "orders"),
        ("/exchanges/orders/", "orders"),
        ("/exchanges/a%2Fb/c%2Fd", "a%2Fb/c%2Fd"),
        ("/exchanges/amq.topic/x", "amq.topic/x"),
        ("/queues/orders", None),
        ("exchanges/orders", None),
    ],
)
def test_an_address_of_an_exchange_is_a_topic(address: str, topic: str | None) -> None:
    """The parts of the address are percent-decoded, and are levels of the topic."""
    assert topic_of_address(address) == topic


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("/exchanges/a/b/c", "too many parts"),
        ("/exchanges/", "default exchange"),
        ("/exchanges//key", "default exchange"),
        ("/exchanges/%ff/key", "not UTF-8"),
    ],
)
def test_a_bad_address_of_an_exchange_is_refused_in_words(address: str, words: str) -> None:
    """An address that begins like an exchange's but is invalid is refused with the reason."""
    with pytest.raises(AddressError, match=words):
        topic_of_address(address)


# --- RabbitMQ's filter values ---------------------------------------------------------------------------------------

NOTHING = object()


def view(value: Any = NOTHING) -> MessageView:
    """A message with this filter value, or without one."""
    content = data("x") if value is NOTHING else annotated(data("x"), **{"x-stream-filter-value": value})
    return MessageView(content, bare_offset(content))


@pytest.mark.parametrize(
    ("value", "passes", "passes_unfiltered"),
    [
        ("eu", True, True),
        (Symbol("eu"), True, True),
        ("us", False, False),
        (5, False, False),
        (None, False, True),
        (NOTHING, False, True),
    ],
)
def test_messages_pass_by_their_filter_value(value: Any, passes: bool, passes_unfiltered: bool) -> None:
    """A message passes with one of the wanted values, or without a value if match-unfiltered is set."""
    values = ("eu", "asia")
    assert StreamFilter(values, match_unfiltered=False).compile()(view(value)) is passes
    assert StreamFilter(values, match_unfiltered=True).compile()(view(value)) is passes_unfiltered


# --- RabbitMQ's offset spec as a start ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind", "place"),
    [
        ("first", StartKind.BEGINNING, None),
        (Symbol("last"), StartKind.LAST, None),
        ("next", StartKind.LIVE, None),
        ("30s", StartKind.AGO, 30_000),
        ("10m", StartKind.AGO, 600_000),
        ("1h", StartKind.AGO, HOUR),
        ("2D", StartKind.AGO, 2 * DAY),
        ("1M", StartKind.AGO, 30 * DAY),
        ("1Y", StartKind.AGO, 365 * DAY),
        (0, StartKind.OFFSET, 0),
        # Clients encode the same number as any of eight types; all of them are an offset, as in our own filter.
        *[(integer(5), StartKind.OFFSET, 5) for integer in INTEGERS],
        (Timestamp(NEW_YEAR), StartKind.DATE, NEW_YEAR),
    ],
)
def test_rabbitmqs_offset_spec_is_read_and_clamps(value: Any, kind: StartKind, place: int | None) -> None:
    """RabbitMQ's offset specs are starts; a place outside the log is clamped, as in RabbitMQ's streams."""
    read = from_stream_offset_spec(value)
    assert read == start(kind, place, missing=Missing.CLAMP)
    assert read.form == STREAM_OFFSET


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            ["foo", "beginning", "", "5", "10x", "FIRST", RMID, True, 1.0, [1], None, {}, b"a"],
            "is not a stream offset: one is first, last, next",
        ),
        ([-1, Timestamp(-1), 2**63, "9999999999999Y"], r"from 0 to|between the years"),
    ],
)
def test_what_is_no_offset_spec_is_refused(values: list[Any], words: str) -> None:
    """An invalid offset spec, which RabbitMQ would treat as ``next``, is refused, and so is a place out of bounds."""
    for value in values:
        with pytest.raises(ReplayStartError, match=words):
            from_stream_offset_spec(value)
