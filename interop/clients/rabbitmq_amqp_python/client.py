"""
The client program on RabbitMQ's AMQP 1.0 client for Python; see interop/client.py for its command line.

Knows nothing of the gateway: what is here, a user of the library would write for RabbitMQ. ``queue://NAME`` is the
library's ``/queues/NAME``, and ``exchange://NAME/KEY`` its ``/exchanges/NAME/KEY``. Beside the verbs of all programs:

==============  ====================================================================================================
``declare``     ``--kind stream|queue|exchange``, and ``--argument NAME=VALUE`` of a queue
``own``         declares an exclusive queue, prints a line ``queue`` with what the library says of it, and receives
                from it
``bind``        the exchange and key of ``--address`` to the queue ``--queue``; ``unbind`` undoes it
``describe``    prints a line ``queue`` with what the library says of it
``purge``       prints a line ``queue`` with how many messages are gone; ``delete`` deletes a queue or exchange
``stream``      reads a stream from ``--start first|last|next|OFFSET|date:MS``, with ``--values``, ``--unfiltered``,
                ``--subject``, ``--property NAME=VALUE`` or ``--sql``
==============  ====================================================================================================

``renew`` sends a message, signed in by ``--token``, shows the token ``--next``, and sends another after ``--timeout``
seconds; a library that asks for its tokens by itself gets both at ``--endpoint``.

``receive --settled`` takes what is settled before it is sent; ``request --kind queue`` has its answers on an exclusive
queue that it declares.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from rabbitmq_amqp_python_client import (
    AddressHelper,
    AMQPMessagingHandler,
    ClassicQueueSpecification,
    Connection,
    ConsumerOptions,
    ConsumerSettleStrategy,
    Converter,
    Delivery,
    Environment,
    Event,
    ExchangeSpecification,
    ExchangeToQueueBindingSpecification,
    ExchangeType,
    Management,
    Message,
    MessageProperties,
    OAuth2Options,
    OffsetSpecification,
    QuorumQueueSpecification,
    RecoveryConfiguration,
    StreamConsumerOptions,
    StreamFilterOptions,
    StreamSpecification,
    ValidationCodeException,
)
from rabbitmq_amqp_python_client.qpid.proton._exceptions import ProtonException
from rabbitmq_amqp_python_client.qpid.proton._utils import SendException

PATIENCE = 30  # seconds in which a lost connection has to come back
QUIET = RecoveryConfiguration(active_recovery=False)


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("verb")
    parser.add_argument("--url", required=True)
    parser.add_argument("--address", default="")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=5)
    parser.add_argument("--body", default="message")
    parser.add_argument("--size", type=int, default=0)
    parser.add_argument("--delay", type=int)
    parser.add_argument("--groups", type=int)
    parser.add_argument(
        "--outcome", choices=["accept", "release", "modify", "later", "reject", "none"], default="accept"
    )
    parser.add_argument("--acknowledge", choices=["auto", "client"], default="auto")
    parser.add_argument("--reconnect", action="store_true")
    parser.add_argument("--start")
    parser.add_argument("--kind")
    parser.add_argument("--settled", action="store_true")
    parser.add_argument("--argument", action="append", default=[])
    parser.add_argument("--queue")
    parser.add_argument("--value", help="the message's stream filter value")
    parser.add_argument("--values", help="stream filter values, separated by commas")
    parser.add_argument("--unfiltered", action="store_true")
    parser.add_argument("--subject")
    parser.add_argument("--property")
    parser.add_argument("--sql")
    parser.add_argument("--token", help="shown in place of a name and a password")
    parser.add_argument("--next", help="the token that is shown when the first message is sent")
    parser.add_argument("--endpoint", help="where clients get tokens that ask for them by themselves")
    return parser.parse_args()


def say(event: str, **values: Any) -> None:
    """One line of JSON, at once."""
    print(json.dumps({"event": event, **values}), flush=True)


def say_error(error: BaseException) -> int:
    """What the user of the library sees."""
    link = getattr(error, "link", None)
    condition = link.remote_condition if link is not None else None
    info = {str(key): str(value) for key, value in (getattr(condition, "info", None) or {}).items()}
    say(
        "error",
        kind=type(error).__name__,
        condition=condition.name if condition else None,
        info=info,
        text=str(error),
    )
    return 1


def say_message(message: Message) -> None:
    """A message as the program sees it."""
    annotations = {str(key): value for key, value in (message.annotations or {}).items()}
    body = Converter.bytes_to_string(message.body)
    properties = message.application_properties or {}
    say(
        "message",
        body=body if len(body) < 200 else None,
        size=len(body),
        n=properties.get("n"),
        colour=properties.get("colour"),
        redelivered=message.delivery_count > 0,
        delivery_count=message.delivery_count,
        replay_id=annotations.get("x-opt-replay-id"),
        replay_end=annotations.get("x-opt-replay-end", False),
        offset=annotations.get("x-stream-offset"),
        correlated=str(message.correlation_id or "").startswith("c-"),
    )


def address_of(text: str) -> str:
    """The library's address: its own forms as they are, the command line's translated."""
    kind, mark, name = text.partition("://")
    if not mark:
        return text
    if kind == "queue":
        queue, question, options = name.partition("?")
        return AddressHelper.queue_address(queue) + question + options
    if kind == "exchange":
        exchange, _, key = name.partition("/")
        return AddressHelper.exchange_address(exchange, key)
    raise SystemExit(f"the library has no address for {text}")


def name_of(address: str) -> str:
    """The name of the queue or exchange."""
    return unquote(address_of(address).split("/")[2].partition("?")[0])


def connect(options: argparse.Namespace) -> Connection:
    """A connection that is open."""
    token = OAuth2Options(token=options.token) if options.token else None
    connection = Environment(options.url, oauth2_options=token, recovery_configuration=QUIET).connection()
    connection.dial()
    return connection


# ------------------------------------------------------------------------------------------------------- publish


def message(options: argparse.Namespace, number: int) -> Message:
    """The message with this number: body, its number and a colour."""
    body = "x" * options.size if options.size else f"{options.body}-{number}"
    made = Message(
        Converter.string_to_bytes(body),
        id=f"{options.body}-{number}",
        application_properties={"n": number, "colour": "red" if number % 2 else "grün"},
    )
    if options.value:
        made.annotations = {"x-stream-filter-value": options.value}
    if options.delay is not None:
        made.annotations = {"x-opt-delivery-delay": options.delay}
    if options.groups:
        made.group_id = f"g{number % options.groups}"
    if options.subject:
        made.subject = options.subject
    return made


def send(options: argparse.Namespace) -> int:
    """Each message waits for its outcome; a lost connection is made anew by hand."""
    number = 0
    connection = publisher = None
    deadline = time.monotonic() + PATIENCE
    while number < options.count:
        try:
            if publisher is None:
                connection = connect(options)
                publisher = connection.publisher(address_of(options.address))
                say("attached")
            try:
                delivery = publisher.publish(message(options, number))
                outcome = (
                    "accepted" if delivery.remote_state == Delivery.ACCEPTED else str(delivery.remote_state)
                )
                say("sent", n=number, outcome=outcome)
            except SendException as error:
                refused = {Delivery.REJECTED: "rejected", Delivery.RELEASED: "released"}
                say("sent", n=number, outcome=refused.get(error.state, str(error.state)))
            number += 1
        except (ProtonException, OSError):
            if not options.reconnect or time.monotonic() > deadline:
                raise
            publisher = None
            time.sleep(0.2)
    say("end", reason="count", count=number)
    if connection:
        connection.close()
    return 0


def renew(options: argparse.Namespace) -> int:
    """A message by the first token, and one when that has expired."""
    connection = connect(options)
    publisher = connection.publisher(address_of(options.address))
    for _ in range(2):
        delivery = publisher.publish(message(options, 0))
        say("sent", n=0, outcome="accepted" if delivery.remote_state == Delivery.ACCEPTED else "other")
        if options.next:
            connection.refresh_token(options.next)
            time.sleep(options.timeout)
            options.next = None
    connection.close()
    say("end", reason="count", count=2)
    return 0


# ------------------------------------------------------------------------------------------------------- receive


class Done(Exception):
    """The link is closed: how a handler leaves the library's ``run``, whose ``stop`` drops what is to be written."""


class Taker(AMQPMessagingHandler):
    """Takes messages until there are enough, or none comes in time; then closes its link."""

    def __init__(self, options: argparse.Namespace, count: int) -> None:
        super().__init__()
        self._options = options
        self._kept: list[SimpleNamespace] = []
        self._heard = time.monotonic()
        self._link: Any = None
        self.count = count
        self.reason: str | None = None

    def on_link_opened(self, event: Event) -> None:
        """The link is there: from now on a silence counts. A link that is refused is opened, too, without a source."""
        if event.link.remote_source.address is None:
            return
        self._heard = time.monotonic()
        self._link = event.link
        event.container.schedule(0.1, self)
        say("attached")
        if self.count >= self._options.count:
            self._end("count")

    def on_timer_task(self, event: Event) -> None:
        """Ten times a second."""
        if self.reason is None:
            if time.monotonic() - self._heard > self._options.timeout:
                self._end("timeout")
            else:
                event.container.schedule(0.1, self)

    def on_amqp_message(self, event: Event) -> None:
        """One message."""
        if self.reason is not None:
            return
        self._heard = time.monotonic()
        say_message(event.message)
        self.count += 1
        self._kept.append(SimpleNamespace(delivery=event.delivery))
        if self._options.acknowledge == "auto":
            self._settle()
        if self.count >= self._options.count:
            self._end("count")

    def _settle(self) -> None:
        if self._options.settled:
            return
        context = self.delivery_context
        for event in self._kept:
            match self._options.outcome:
                case "accept":
                    context.accept(event)
                case "reject":
                    context.discard(event)
                case "release":
                    context.requeue(event)
                case "modify":
                    context.discard_with_annotations(event, {"x-opt-why": "tried"})
                case "later":
                    at = int(time.time() * 1000) + self._options.delay
                    context.requeue_with_annotations(event, {"x-opt-delivery-time": at})
        self._kept.clear()

    def _end(self, reason: str) -> None:
        self.reason = reason
        self._settle()
        self._link.close()

    def on_link_closed(self, event: Event) -> None:
        """Closed on both sides: after our end, or because it was refused, which the library raises by itself."""
        if self.reason is not None:
            raise Done


def receive(options: argparse.Namespace) -> int:
    """Messages until there are enough, or none comes in time; after a lost connection from where it was."""
    deadline = time.monotonic() + PATIENCE
    count, last = 0, None
    while True:
        taker = Taker(options, count)
        try:
            connection = connect(options)
            if options.verb == "own":
                say_queue(own(connection, name_of(options.address)))
            consumer = connection.consumer(
                address_of(options.address),
                message_handler=taker,
                consumer_options=consumer_options(options, last),
            )
            consumer.run()
        except Done:
            pass
        except (ProtonException, OSError):
            if not options.reconnect or time.monotonic() > deadline:
                raise
        if taker.reason is not None:
            say("end", reason=taker.reason, count=taker.count)
            return 0
        if not options.reconnect:
            say("end", reason="detached", count=taker.count)
            return 0
        # The library's own recovery of a stream's consumer calls a method that its options do not have.
        count, last = taker.count, taker.offset or last
        time.sleep(0.2)


def consumer_options(
    options: argparse.Namespace, last: int | None
) -> StreamConsumerOptions | ConsumerOptions | None:
    """How the library is to consume; None for its defaults."""
    if options.verb == "stream":
        return stream_options(options, last)
    return ConsumerOptions(settle_strategy=ConsumerSettleStrategy.PreSettled) if options.settled else None


def stream_options(options: argparse.Namespace, last: int | None) -> StreamConsumerOptions:
    """Where a stream is read from, behind what was read already, and what of it."""
    start: OffsetSpecification | int | datetime = OffsetSpecification.next
    if last is not None:
        start = last + 1
    elif options.start in ("first", "last", "next"):
        start = OffsetSpecification[options.start]
    elif options.start.startswith("date:"):
        start = datetime.fromtimestamp(int(options.start.removeprefix("date:")) / 1000, tz=UTC)
    else:
        start = int(options.start)
    filters = StreamFilterOptions(
        values=options.values.split(",") if options.values else None,
        match_unfiltered=options.unfiltered,
        application_properties=pairs([options.property]) if options.property else None,
        message_properties=MessageProperties(subject=options.subject) if options.subject else None,
        sql=options.sql or "",
    )
    return StreamConsumerOptions(offset_specification=start, filter_options=filters)


# ----------------------------------------------------------------------------------------------- request and reply


class Answerer(Taker):
    """Answers each request to the address that it names."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options, 0)
        self.asked: list[Message] = []

    def on_amqp_message(self, event: Event) -> None:
        """One request."""
        self.asked.append(event.message)
        super().on_amqp_message(event)


def reply(options: argparse.Namespace) -> int:
    """Answers, each to the address that its request names: the library cannot publish while a handler runs."""
    publisher = connect(options).publisher()
    for _ in range(options.count):
        one = argparse.Namespace(**{**vars(options), "count": 1})
        answerer = Answerer(one)
        with suppress(Done):
            connect(options).consumer(address_of(options.address), message_handler=answerer).run()
        for asked in answerer.asked:
            body = f"re: {Converter.bytes_to_string(asked.body)}"
            answer = Message(Converter.string_to_bytes(body), correlation_id=asked.correlation_id)
            publisher.publish(AddressHelper.message_to_address_helper(answer, asked.reply_to))
    say("end", reason="count", count=options.count)
    return 0


def request(options: argparse.Namespace) -> int:
    """Requests, each answered on a queue of its own: the gateway's (direct reply-to), or one that is declared."""
    publisher = connect(options).publisher(address_of(options.address))
    for number in range(options.count):
        asker = Answerer(argparse.Namespace(**{**vars(options), "count": 1, "outcome": "none"}))
        connection = connect(options)
        if options.kind == "queue":
            replies = AddressHelper.queue_address(own(connection, f"replies-{uuid4()}").name)
            consumer = connection.consumer(replies, message_handler=asker)
        else:
            direct = ConsumerOptions(settle_strategy=ConsumerSettleStrategy.DirectReplyTo)
            consumer = connection.consumer(message_handler=asker, consumer_options=direct)
            replies = consumer.address
        asked = message(options, number)
        asked.reply_to, asked.correlation_id = replies, f"c-{number}"
        publisher.publish(asked)
        with suppress(Done):
            consumer.run()
    say("end", reason="count", count=options.count)
    return 0


# ----------------------------------------------------------------------------------------------------- management


def pairs(texts: list[str]) -> dict[str, Any]:
    """NAME=VALUE, where a value of digits is a number, and true is true."""
    found = dict(text.split("=", 1) for text in texts)
    return {
        name: int(value) if value.isdigit() else value == "true" or value for name, value in found.items()
    }


def declare(options: argparse.Namespace, management: Management) -> None:
    """A stream, queue or exchange."""
    name, given = name_of(options.address), pairs(options.argument)
    match options.kind:
        case "stream":
            management.declare_queue(
                StreamSpecification(name, max_len_bytes=1_000_000_000, max_age=timedelta(days=1))
            )
        case "exchange":
            kind = ExchangeType[given.get("type", "topic")]
            management.declare_exchange(ExchangeSpecification(name, exchange_type=kind))
        case _:
            management.declare_queue(QuorumQueueSpecification(name, **given))


def own(connection: Connection, name: str) -> Any:
    """Declare a queue that goes with the connection; what the library says of it."""
    queue = ClassicQueueSpecification(name, is_exclusive=True, is_auto_delete=True)
    connection.management().declare_queue(queue)
    return connection.management().queue_info(name)


def say_queue(info: Any) -> None:
    """A queue as the library describes it."""
    say(
        "queue",
        name=info.name,
        kind=info.queue_type.value,
        messages=int(info.message_count),
        consumers=int(info.consumer_count),
        exclusive=info.is_exclusive,
        auto_delete=info.is_auto_delete,
        arguments={key: str(value) for key, value in info.arguments.items()},
    )


def manage(options: argparse.Namespace) -> int:
    """One request to ``/management``."""
    connection = connect(options)
    management = connection.management()
    match options.verb:
        case "declare":
            declare(options, management)
        case "bind" | "unbind":
            exchange, _, key = options.address.removeprefix("exchange://").partition("/")
            binding = ExchangeToQueueBindingSpecification(exchange, options.queue, key)
            (management.bind if options.verb == "bind" else management.unbind)(binding)
        case "describe":
            say_queue(management.queue_info(name_of(options.address)))
        case "purge":
            say("queue", messages=management.purge_queue(name_of(options.address)))
        case "delete":
            remove = management.delete_exchange if options.kind == "exchange" else management.delete_queue
            remove(name_of(options.address))
    say("end", reason="count", count=0)
    connection.close()
    return 0


def main(options: argparse.Namespace) -> int:
    """Do what the verb says; an error is printed as its user sees it."""
    verbs = {
        "send": send,
        "receive": receive,
        "own": receive,
        "stream": receive,
        "request": request,
        "reply": reply,
        "renew": renew,
    }
    try:
        return verbs.get(options.verb, manage)(options)
    except (Exception, ValidationCodeException) as error:  # the latter is none of the former
        return say_error(error)


if __name__ == "__main__":
    sys.exit(main(arguments()))
