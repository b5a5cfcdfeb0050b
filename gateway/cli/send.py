"""``rewind send``: publish lines of a file, or of standard input, as bodies or as messages in JSON, or whole files."""

from __future__ import annotations

import io
import queue
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, Final

import click
from click.core import ParameterSource
from proton import Message, symbol
from proton.reactor import ApplicationEvent, EventInjector

from amqp_ext.message.fields import DELIVERY_DELAY
from amqp_ext.message.json_message import MessageFormError, message_of_line
from amqp_ext.replay_start import UNITS_AGO
from gateway.cli.amqp_client import AmqpClient, GatewayAddress, gateway_options

READ_AHEAD: Final = 1_000
"""Messages that are read and not sent yet: a large file must not fill the memory."""

TURN_S: Final = 0.02
"""Seconds between two looks at the clock where a rate was asked for."""


MOST_REASONS: Final = 20
"""Different reasons for messages not taken that are counted separately."""


class Send(AmqpClient):
    """
    Publishes messages, and counts their outcomes.

    Args:
        messages: Encoded messages; for a message that cannot be sent, a sentence that says why. They are read on a
            thread of their own, because a terminal may keep it waiting.
        rate: Messages a second at most; None for no limit.
    """

    def __init__(
        self,
        gateway: GatewayAddress,
        address: str,
        messages: Iterator[bytes | str],
        rate: float | None,
    ) -> None:
        super().__init__(gateway, address)
        self._messages = messages
        self._rate = rate
        self._read: queue.Queue[bytes | str | None] = queue.Queue(READ_AHEAD)
        self._news = EventInjector()
        self._has_read_all = False
        self._sender: Any = None
        self._started = 0.0
        self.sent = 0
        self.accepted = 0
        self.refused: dict[str, int] = {}

    def attach(self, event: Any) -> None:
        event.container.selectable(self._news)
        self._sender = event.container.create_sender(self._connection, self.address, name="rewind-send")
        self._started = time.monotonic()
        threading.Thread(target=self._read_all, name="reading", daemon=True).start()
        if self._rate is not None:
            event.container.schedule(TURN_S, self)

    def _read_all(self) -> None:
        try:
            for message in self._messages:
                self._read.put(message)
                self._news.trigger(ApplicationEvent("more"))
        except (OSError, UnicodeEncodeError) as error:
            self._read.put(f"and all that follow not sent: {error}")
        self._read.put(None)
        self._news.trigger(ApplicationEvent("more"))

    # --- what proton calls ----------------------------------------------------------------------------------------

    def on_sendable(self, event: Any) -> None:
        self._go_on()

    def on_more(self, event: Any) -> None:
        self._go_on()

    def on_timer_task(self, event: Any) -> None:
        if not self.is_done:
            self._go_on()
            event.container.schedule(TURN_S, self)

    def _go_on(self) -> None:
        sender = self._sender
        while sender.credit > 0 and not self._has_read_all and not self.is_done:
            if self._rate is not None and self.sent >= (time.monotonic() - self._started) * self._rate + 1:
                return
            try:
                message = self._read.get_nowait()
            except queue.Empty:
                return
            if message is None:
                self._has_read_all = True
                break
            self.sent += 1
            if isinstance(message, str):
                self._count(message)
                continue
            sender.delivery(sender.delivery_tag())
            sender.stream(message)
            sender.advance()
        self._end_if_told_of_all()

    def _end_if_told_of_all(self) -> None:
        if self._has_read_all and self.accepted + sum(self.refused.values()) >= self.sent:
            self.done()

    def done(self) -> None:
        if not self.is_done:
            # While it is open, the container waits for more.
            self._news.close()
        super().done()

    def on_accepted(self, event: Any) -> None:
        self.accepted += 1
        self._end_if_told_of_all()

    def on_rejected(self, event: Any) -> None:
        condition = event.delivery.remote.condition
        self._count(f"rejected: {condition.description} ({condition.name})" if condition else "rejected")

    def on_released(self, event: Any) -> None:
        self._count("released: no queue and no log takes it")

    def _count(self, what: str) -> None:
        if what not in self.refused and len(self.refused) >= MOST_REASONS:
            what = "not accepted, for other reasons"
        self.refused[what] = self.refused.get(what, 0) + 1
        self._end_if_told_of_all()

    def finish(self) -> None:
        for what, count in self.refused.items():
            click.echo(f"rewind: {count} {what}", err=True)


def _properties(context: click.Context, option: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    found = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{text!r} is not a property; write KEY=VALUE")
        found[key] = value
    return found


def _delay_ms(context: click.Context, option: click.Parameter, given: str | None) -> int | None:
    if given is None:
        return None
    found = re.fullmatch(r"([0-9]{1,10})([smhD])", given)
    if found is None:
        raise click.BadParameter(f"{given!r} is not a delay; write 30s, 10m, 2h or 1D")
    return int(found[1]) * UNITS_AGO[found[2]]


@click.command()
@click.argument("address", required=False)
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--topic", help="Publish to this topic, in place of ADDRESS.")
@click.option("--whole", is_flag=True, help="Send FILE as one message, not a message a line.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Each line is a message in JSON, as `rewind tail --json` prints it.",
)
@click.option("--property", "properties", multiple=True, metavar="KEY=VALUE", callback=_properties,
              help="An application property, as text; may be repeated.")  # fmt: skip
@click.option("--subject", help="The messages' subject.")
@click.option("--content-type", help="The messages' content-type.")
@click.option("--delay", "delay_ms", metavar="TIME", callback=_delay_ms,
              help="Deliver the messages only after this time: 30s, 10m, 2h, 1D.")  # fmt: skip
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Messages a second at most.")
@click.option("--quiet", is_flag=True, help="Do not say how many were accepted.")
@gateway_options
def send(
    gateway: GatewayAddress,
    address: str | None,
    file: IO[bytes],
    topic: str | None,
    whole: bool,
    rate: float | None,
    quiet: bool,
    **message: Any,
) -> None:
    """Publish FILE (standard input without one) to ADDRESS, a message a line, and wait until all are accepted.

    Exit status 1 if any was not.

    \b
    rewind send orders < orders.jsonl
    rewind send --topic flights/JFK/AA departures.jsonl --rate 100
    rewind tail log://a --from 1h --until now --json | rewind send b --json
    """
    as_json = message.pop("as_json")
    if as_json and (whole or any(value not in (None, {}) for value in message.values())):
        raise click.UsageError(
            "a line of --json has the whole message: leave out --whole, --property, --subject, --delay …"
        )
    if topic is not None:
        context = click.get_current_context()
        if address is not None and context.get_parameter_source("file") is ParameterSource.DEFAULT:
            # With a topic, the one argument is the file.
            file = click.File("rb").convert(address, None, context)
        elif address is not None:
            raise click.UsageError(f"{address!r} and --topic both name the target: keep one")
        address = f"topic://{topic}"
    if not address:
        raise click.UsageError("name the target: an ADDRESS, or --topic")
    lines = _lines(file, whole)
    client = Send(gateway, address, _written(lines) if as_json else _with_bodies(lines, **message), rate)
    status = client.run()
    if not quiet and (client.sent or not status):
        click.echo(f"{client.accepted} of {client.sent} accepted", err=True)
    raise click.exceptions.Exit(status or int(client.accepted < client.sent))


def _with_bodies(
    bodies: Iterable[bytes],
    *,
    subject: str | None,
    content_type: str | None,
    properties: dict[str, str],
    delay_ms: int | None,
) -> Iterator[bytes | str]:
    """Messages that differ in their bodies alone."""
    template = Message(
        durable=True, subject=subject, content_type=content_type, properties=properties or None
    )
    if delay_ms is not None:
        template.annotations = {symbol(DELIVERY_DELAY): delay_ms}
    template.inferred = True
    for body in bodies:
        template.body = body
        yield template.encode()


def _written(lines: Iterable[bytes]) -> Iterator[bytes | str]:
    """The messages in lines of JSON."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield message_of_line(line)
            except MessageFormError as error:
                yield f"not sent: line {number}: {error}"


def _lines(file: IO[bytes], whole: bool) -> Iterator[bytes]:
    # A buffer of its own: a thread that waits in standard input's buffer holds its lock. Python takes that lock when it
    # exits, and aborts if it cannot.
    is_standard_input = isinstance(file, io.BufferedReader) and file is sys.stdin.buffer
    source = open(file.fileno(), "rb", closefd=False) if is_standard_input else file  # noqa: SIM115
    if whole:
        yield source.read()
        return
    for line in source:
        yield line.rstrip(b"\r\n")
