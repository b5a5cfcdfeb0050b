"""The client program on python-qpid-proton's BlockingConnection."""

from __future__ import annotations

import argparse
import time

from command_line import message, say, say_attached, say_error, say_message, start_filter, status
from proton import ConnectionException, Delivery, Link, Message, Terminus, Timeout, symbol
from proton.reactor import Container, Copy, Filter, LinkOption, Selector
from proton.utils import BlockingConnection, BlockingReceiver, LinkDetached, SendException

PATIENCE = 30  # seconds for an attach or an outcome


class Subscription(LinkOption):
    """Durability and sharing of a topic's subscriber."""

    def __init__(self, *, durable: bool, shared: bool) -> None:
        self._durable, self._shared = durable, shared

    def apply(self, link: Link) -> None:
        """Set the source's terms."""
        if self._durable:
            link.source.durability = Terminus.DELIVERIES
            link.source.expiry_policy = Terminus.EXPIRE_NEVER
        if self._shared:
            link.source.capabilities.put_object(symbol("shared"))


class Close(LinkOption):
    """A receiver without a source: closing it gives up the subscription of its name."""

    def apply(self, link: Link) -> None:
        """Leave the source empty."""
        link.source.type = Terminus.UNSPECIFIED


def connect(options: argparse.Namespace) -> BlockingConnection:
    """A connection, as the container that was asked for, to the first of several gateways that lets it in."""
    first, *others = options.url.split(",")
    for url in (first, *others):
        container = Container()
        if options.container:
            container.container_id = options.container
        try:
            return BlockingConnection(url, timeout=PATIENCE, container=container)
        except (ConnectionException, OSError):
            if url == [first, *others][-1]:
                raise
    raise AssertionError


def is_gone(error: Exception) -> bool:
    """Whether the connection is lost, or about to be: not so when a link is closed for a reason of its own."""
    return not isinstance(error, LinkDetached) or error.condition == "amqp:connection:forced"


def send(options: argparse.Namespace) -> int:
    """Each message waits for its outcome; a lost connection is made anew by hand."""
    number = 0
    connection = sender = None
    deadline = time.monotonic() + PATIENCE
    while number < options.count:
        try:
            if sender is None:
                connection = connect(options)
                sender = connection.create_sender(options.address)
                say("attached")
            try:
                sender.send(message(options, number))
                say("sent", n=number, outcome="accepted")
            except SendException as error:
                say("sent", n=number, outcome={Delivery.REJECTED: "rejected"}.get(error.state, "released"))
            number += 1
        except (ConnectionException, LinkDetached, OSError) as error:
            if not (options.reconnect and is_gone(error)) or time.monotonic() > deadline:
                raise
            sender = None
            time.sleep(0.2)
    say("end", reason="count", count=number)
    if connection:
        connection.close()
    return 0


def receiver_of(options: argparse.Namespace, connection: BlockingConnection) -> BlockingReceiver:
    """A receiver with all that was asked for."""
    terms: list[LinkOption] = [Subscription(durable=options.durable, shared=options.shared)]
    if options.verb == "browse":
        terms.append(Copy())
    if options.selector:
        terms.append(Selector(options.selector))
    if options.start:
        terms.append(Filter(start_filter(options)))
    # Credit for what is wanted: what is prefetched and not asked for, another consumer misses.
    credit = 0 if options.verb == "browse" or options.count > 100 else max(1, options.count)
    return connection.create_receiver(
        options.address, name=options.subscription, credit=credit, options=terms
    )


def receive(options: argparse.Namespace) -> int:
    """Messages until there are enough, or none comes in time."""
    taken: list[Message] = []
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            connection = connect(options)
            receiver = receiver_of(options, connection)
            say_attached(receiver.link.remote_properties)
            say("end", reason=consume(options, receiver, taken), count=len(taken))
            if options.durable:
                receiver.detach()
            elif options.outcome != "none":
                receiver.close()
            connection.close()
            return 0
        except (ConnectionException, LinkDetached, OSError) as error:
            if not (options.reconnect and is_gone(error)) or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def consume(options: argparse.Namespace, receiver: BlockingReceiver, taken: list[Message]) -> str:
    """Take messages from one link, beside those that others before it had taken; why it ended."""
    kept = 0
    reason = "count"
    while len(taken) < options.count:
        try:
            received = receiver.receive(timeout=options.timeout)
        except Timeout:
            reason = "timeout"
            break
        say_message(received)
        taken.append(received)
        kept += 1
        if options.outcome == "none":
            continue
        if options.acknowledge == "auto":
            settle(options, receiver)
            kept = 0
        if options.until and (received.annotations or {}).get("x-opt-replay-end"):
            reason = "marker"
            break
    if options.outcome != "none":
        for _ in range(kept):
            settle(options, receiver)
    return reason


def settle(options: argparse.Namespace, receiver: BlockingReceiver) -> None:
    """Give the oldest message its outcome."""
    if options.outcome == "accept":
        receiver.accept()
    elif options.outcome == "reject":
        receiver.reject()
    else:
        receiver.release(delivered=options.outcome == "modify")


def request(options: argparse.Namespace) -> int:
    """Requests, each answered on a temporary queue of ours."""
    connection = connect(options)
    replies = connection.create_receiver(None, dynamic=True, credit=options.count)
    address = replies.link.remote_source.address
    say("attached", reply_to=address)
    sender = connection.create_sender(options.address)
    for number in range(options.count):
        asked = message(options, number)
        asked.reply_to, asked.correlation_id = address, f"c-{number}"
        sender.send(asked)
        reply = replies.receive(timeout=options.timeout)
        replies.accept()
        say("message", body=reply.body, n=number, correlated=reply.correlation_id == f"c-{number}")
    say("end", reason="count", count=options.count)
    connection.close()
    return 0


def reply(options: argparse.Namespace) -> int:
    """Answers, each to the address that the request names."""
    connection = connect(options)
    receiver = connection.create_receiver(options.address, credit=options.count)
    relay = connection.create_sender(None)
    say("attached")
    for _ in range(options.count):
        asked = receiver.receive(timeout=options.timeout)
        answer = Message(
            address=asked.reply_to, correlation_id=asked.correlation_id, body=f"re: {asked.body}"
        )
        relay.send(answer)
        receiver.accept()
        say_message(asked)
    say("end", reason="count", count=options.count)
    connection.close()
    return 0


def unsubscribe(options: argparse.Namespace) -> int:
    """Give up a durable subscription: attach by its name without a source, and close."""
    connection = connect(options)
    receiver = connection.create_receiver(None, name=options.subscription, credit=0, options=[Close()])
    say("attached")
    receiver.close()
    say("end", reason="count", count=0)
    connection.close()
    return 0


def main(options: argparse.Namespace) -> int:
    """Do what the verb says; an error is printed as its user sees it."""
    verbs = {"send": send, "request": request, "reply": reply, "unsubscribe": unsubscribe}
    try:
        return verbs.get(options.verb, receive)(options)
    except LinkDetached as error:
        return say_error(error, error.link.remote_condition)
    except Exception as error:
        return say_error(error, None)


if __name__ == "__main__":
    status(main)
