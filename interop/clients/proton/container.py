"""The client program on python-qpid-proton's Container: handlers, and its own reconnecting."""

from __future__ import annotations

import argparse
from typing import Any

from command_line import message, say, say_attached, say_error, say_message, start_filter, status
from proton import Delivery, Event, Link, Message, Terminus, symbol
from proton.handlers import MessagingHandler, TransactionHandler
from proton.reactor import Container, Copy, Filter, LinkOption, Selector

HEARTBEAT = 4.0  # seconds of silence after which a connection counts as lost


class Failure(Exception):
    """What the peer has said when it closed a link or the connection."""


class Terms(LinkOption):
    """Durability, sharing, or no source at all."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options

    def apply(self, link: Link) -> None:
        """Set the source's terms."""
        if self._options.verb == "unsubscribe":
            link.source.type = Terminus.UNSPECIFIED
            return
        if self._options.durable:
            link.source.durability = Terminus.DELIVERIES
            link.source.expiry_policy = Terminus.EXPIRE_NEVER
        if self._options.shared:
            link.source.capabilities.put_object(symbol("shared"))


class Program(MessagingHandler):
    """One verb: its links, and when it is through."""

    def __init__(self, options: argparse.Namespace) -> None:
        # Credit by hand: what is prefetched and not wanted, another consumer would miss.
        super().__init__(prefetch=0, auto_accept=False)
        self.options = options
        self.failure: int | None = None
        self.count = 0
        self.done = False
        self.connection: Any = None
        self.link: Any = None
        self.unsettled: list[Delivery] = []
        self.timer: Any = None

    def on_start(self, event: Event) -> None:
        """Connect; a connection that is lost is made anew by the Container where that was asked for."""
        self.container = event.container
        terms: dict[str, Any] = {"reconnect": False}
        if self.options.reconnect:
            # Having been told that the gateway stops, the library goes on waiting until its heartbeat says it is gone.
            terms = {"reconnect": None, "heartbeat": HEARTBEAT}
        self.connection = event.container.connect(urls=self.options.url.split(","), **terms)
        self.open_links()

    def open_links(self) -> None:
        """The links of this verb."""
        raise NotImplementedError

    def tick(self) -> None:
        """Begin to wait anew for whatever comes next."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.container.schedule(self.options.timeout, self)

    def on_timer_task(self, event: Event) -> None:
        """Nothing came in time."""
        self.end("timeout")

    def end(self, reason: str) -> None:
        """Settle what is not, say so and close."""
        if self.done:
            return
        self.done = True
        if self.timer is not None:
            self.timer.cancel()
        if self.options.outcome != "none":
            for delivery in self.unsettled:
                self.give_outcome(delivery)
            if self.link is not None and self.link.is_receiver:
                self.link.detach() if self.options.durable else self.link.close()
        say("end", reason=reason, count=self.count)
        self.connection.close()

    def give_outcome(self, delivery: Delivery) -> None:
        """The outcome that was asked for."""
        outcome = self.options.outcome
        if outcome == "modify":
            delivery.local.failed = True
            delivery.update(Delivery.MODIFIED)
        else:
            states = {"accept": Delivery.ACCEPTED, "reject": Delivery.REJECTED, "release": Delivery.RELEASED}
            delivery.update(states[outcome])
        delivery.settle()

    def fail(self, endpoint: Any, what: str) -> None:
        """The peer closed something with an error, or without a reason that we know."""
        if self.done:
            return
        self.done = True
        condition = endpoint.remote_condition
        text = f"{what} closed: {condition.description if condition else 'no reason given'}"
        self.failure = say_error(Failure(text), condition)
        if self.timer is not None:
            self.timer.cancel()
        self.connection.close()

    def on_link_error(self, event: Event) -> None:
        """A link was closed with a condition."""
        self.fail(event.link, "link")

    def on_connection_error(self, event: Event) -> None:
        """The connection was closed with a condition."""
        if not self.options.reconnect:
            self.fail(event.connection, "connection")

    def on_transport_error(self, event: Event) -> None:
        """The connection was lost."""
        if not self.options.reconnect and not self.done:
            self.done = True
            self.failure = say_error(Failure(str(event.transport.condition)), event.transport.condition)


class Send(Program):
    """Messages, each with its outcome; what had none when a connection was lost is sent again."""

    def open_links(self) -> None:
        self.numbers: dict[str, int] = {}
        self.waiting = list(range(self.options.count))
        self.link = self.container.create_sender(self.connection, self.options.address)

    def on_link_opened(self, event: Event) -> None:
        say("attached")

    def on_sendable(self, event: Event) -> None:
        while self.waiting and event.sender.credit:
            number = self.waiting.pop(0)
            delivery = event.sender.send(message(self.options, number))
            self.numbers[delivery.tag] = number

    def on_disconnected(self, event: Event) -> None:
        self.waiting = sorted([*self.numbers.values(), *self.waiting])
        self.numbers.clear()

    def on_settled(self, event: Event) -> None:
        number = self.numbers.pop(event.delivery.tag, None)
        if number is None:
            return
        outcomes = {
            Delivery.ACCEPTED: "accepted",
            Delivery.REJECTED: "rejected",
            Delivery.RELEASED: "released",
        }
        say("sent", n=number, outcome=outcomes.get(event.delivery.remote_state, "modified"))
        self.count += 1
        if self.count == self.options.count:
            self.end("count")


class Receive(Program):
    """Receive, browse and replay."""

    def open_links(self) -> None:
        terms: list[LinkOption] = [Terms(self.options)]
        if self.options.verb == "browse":
            terms.append(Copy())
        if self.options.selector:
            terms.append(Selector(self.options.selector))
        if self.options.start:
            terms.append(Filter(start_filter(self.options)))
        self.link = self.container.create_receiver(
            self.connection, self.options.address, name=self.options.subscription, options=terms
        )

    def on_link_opened(self, event: Event) -> None:
        if event.link.remote_source.address is None:
            return  # refused: what is wrong comes with the detach
        say_attached(event.link.remote_properties)
        if self.count >= self.options.count:
            self.end("count")
            return
        event.receiver.flow(self.options.count - self.count)
        self.tick()

    def on_message(self, event: Event) -> None:
        if self.done:
            return
        say_message(event.message)
        self.count += 1
        self.tick()
        if self.options.outcome == "none":
            return
        if self.options.acknowledge == "auto":
            self.give_outcome(event.delivery)
        else:
            self.unsettled.append(event.delivery)
        if self.count >= self.options.count:
            self.end("count")

    def on_link_closing(self, event: Event) -> None:
        if not self.done:
            self.end("detached")


class Request(Program):
    """Requests, one at a time, answered on a temporary queue."""

    def open_links(self) -> None:
        self.link = self.container.create_receiver(self.connection, None, dynamic=True)
        self.sender: Any = None

    def on_link_opened(self, event: Event) -> None:
        if event.link.is_sender:
            self.ask()
            return
        self.reply_to = event.link.remote_source.address
        say("attached", reply_to=self.reply_to)
        event.receiver.flow(self.options.count)
        self.sender = self.container.create_sender(self.connection, self.options.address)

    def ask(self) -> None:
        """The next request."""
        asked = message(self.options, self.count)
        asked.reply_to, asked.correlation_id = self.reply_to, f"c-{self.count}"
        self.sender.send(asked)
        self.tick()

    def on_message(self, event: Event) -> None:
        correlated = event.message.correlation_id == f"c-{self.count}"
        say("message", body=event.message.body, n=self.count, correlated=correlated)
        self.give_outcome(event.delivery)
        self.count += 1
        if self.count == self.options.count:
            self.end("count")
        else:
            self.ask()


class Reply(Program):
    """Answers to the address that each request names."""

    def open_links(self) -> None:
        self.relay = self.container.create_sender(self.connection, None)
        self.link = self.container.create_receiver(self.connection, self.options.address)

    def on_link_opened(self, event: Event) -> None:
        if event.link.is_receiver:
            say("attached")
            event.receiver.flow(self.options.count)
            self.tick()

    def on_message(self, event: Event) -> None:
        asked = event.message
        self.relay.send(
            Message(address=asked.reply_to, correlation_id=asked.correlation_id, body=f"re: {asked.body}")
        )
        self.give_outcome(event.delivery)
        say_message(asked)

    def on_settled(self, event: Event) -> None:
        self.count += 1
        if self.count == self.options.count:
            self.end("count")


class Unsubscribe(Program):
    """Attach by the subscription's name without a source, and close."""

    def open_links(self) -> None:
        self.link = self.container.create_receiver(
            self.connection, None, name=self.options.subscription, options=[Terms(self.options)]
        )

    def on_link_opened(self, event: Event) -> None:
        say("attached")
        event.link.close()

    def on_link_closed(self, event: Event) -> None:
        self.link = None
        self.end("count")


class Move(Program, TransactionHandler):
    """Messages from one queue to another in a transaction."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.transaction: Any = None

    def open_links(self) -> None:
        self.sender = self.container.create_sender(self.connection, self.options.to)
        self.link = self.container.create_receiver(self.connection, self.options.address)
        self.container.declare_transaction(self.connection, handler=self)
        self.tick()

    def on_transaction_declared(self, event: Event) -> None:
        self.transaction = event.transaction
        say("attached")
        self.link.flow(self.options.count)

    def on_message(self, event: Event) -> None:
        say_message(event.message)
        self.transaction.accept(event.delivery)
        self.transaction.send(self.sender, event.message)
        self.count += 1
        if self.count < self.options.count:
            return
        say("moved")
        if self.options.end == "commit":
            self.transaction.commit()
        elif self.options.end == "rollback":
            self.transaction.abort()

    def on_transaction_committed(self, event: Event) -> None:
        self.end("count")

    def on_transaction_aborted(self, event: Event) -> None:
        self.end("count")

    def on_transaction_commit_failed(self, event: Event) -> None:
        self.fail(event.link, "transaction")


VERBS = {"move": Move, "send": Send, "request": Request, "reply": Reply, "unsubscribe": Unsubscribe}


def main(options: argparse.Namespace) -> int:
    """Do what the verb says."""
    program = VERBS.get(options.verb, Receive)(options)
    container = Container(program)
    if options.container:
        container.container_id = options.container
    container.run()
    return program.failure or 0


if __name__ == "__main__":
    status(main)
