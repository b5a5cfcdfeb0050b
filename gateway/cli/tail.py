"""
``rewind tail``: read an address from any start, and on; or, with ``--reverse``, from the newest message back.

AMQP delivers messages in log order only. So ``--reverse`` reads pages: each page is a bounded replay of the newest
messages before the page that was printed last, and is printed from its end. A reader's rights are enough for that, and
messages that are published meanwhile do not matter.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import click
from proton import Terminus
from proton.reactor import LinkOption

from amqp_ext.addresses.address import AddressKind, parse_source
from amqp_ext.addresses.forms import AddressError
from amqp_ext.message.json_message import REPLAY_ID, SEQUENCE_NUMBER, as_object
from amqp_ext.message.sections import message_annotations
from amqp_ext.replay_start import MAX_OFFSET, ReplayStartError, parse_text
from gateway.cli.amqp_client import AmqpClient, GatewayAddress, gateway_options
from gateway.cli.words import one_line
from gateway.core.endpoint.settings import EndpointKind

LOGS: Final = (AddressKind.LOG, AddressKind.PARTITION)

CREDIT: Final = 500
"""Messages asked for at a time: enough to keep the wire busy, few enough to stop soon."""

PAGE: Final = 500
"""Messages of a page in reverse: they are in memory before the first of them is printed."""

REPLAY_START: Final = "rewind:replay-start"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which messages of an address to read."""

    address: str
    start: str | None
    until: str | None
    clamp: bool
    count: int | None

    def source(self, start: str | None, until: str | None, *, clamp: bool = False) -> str:
        """The address with these options appended; those that are None are left out."""
        options = {"replay-start": start, "until": until, "missing": "clamp" if clamp else None}
        given = [f"{key}={quote(value, safe='')}" for key, value in options.items() if value is not None]
        if not given:
            return self.address
        return f"{self.address}{'&' if '?' in self.address else '?'}{'&'.join(given)}"


class Browsing(LinkOption):
    """Asks for the distribution mode copy: messages that are read stay on the queue."""

    def apply(self, link: Any) -> None:
        link.source.distribution_mode = Terminus.DIST_MODE_COPY


class _Reader(AmqpClient):
    """A client that receives messages as bytes: proton's ``Message`` would lose fields that it does not know."""

    def __init__(self, gateway: GatewayAddress, wanted: Wanted, show: Callable[[bytes], None]) -> None:
        super().__init__(gateway, wanted.address)
        self._wanted = wanted
        self._show = show

    def _taken(self, event: Any) -> bytes | None:
        """The message that is complete, for the caller to show and then accept; None if there is none."""
        delivery, link = event.delivery, event.link
        if not link.is_receiver or not delivery.readable or delivery.partial or self.is_done:
            return None
        content = bytes(link.recv(delivery.pending))
        link.advance()
        return content


class Tail(_Reader):
    """
    Prints messages as they come.

    Args:
        show: Prints a message.
    """

    def __init__(
        self,
        gateway: GatewayAddress,
        wanted: Wanted,
        show: Callable[[bytes], None],
        *,
        browses: bool,
        reads_log: bool,
    ) -> None:
        super().__init__(gateway, wanted, show)
        self._browses = browses
        self._reads_log = reads_log
        self._left = wanted.count
        self._asked = 0
        self._last: bytes | None = None

    def attach(self, event: Any) -> None:
        wanted = self._wanted
        receiver = event.container.create_receiver(
            self._connection,
            wanted.source(wanted.start, wanted.until, clamp=wanted.clamp),
            name="rewind-tail",
            options=[Browsing()] if self._browses else [],
        )
        self._ask(receiver)

    def _ask(self, receiver: Any) -> None:
        """Give credit for no more messages than are wanted: a queue would send them here and not to other consumers."""
        wanted = CREDIT if self._left is None else min(CREDIT, self._left)
        more = wanted - self._asked
        if more > 0 and (self._asked <= CREDIT // 2):
            receiver.flow(more)
            self._asked += more

    def on_link_error(self, event: Any) -> None:
        super().on_link_error(event)
        if self.problem is not None:
            self.problem = self.problem.replace("say missing=clamp", "say --clamp")

    def on_delivery(self, event: Any) -> None:
        content = self._taken(event)
        if content is None:
            return
        self._asked -= 1
        self._show(content)
        self._last = content
        self.accept(event.delivery)
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                self.done()
                return
        self._ask(event.link)

    def fail(self, problem: str) -> None:
        if self.problem is None and self._last is not None and self._reads_log:
            # The gateway became unavailable: a reader of the log can go on after the last message.
            replay_id = message_annotations(self._last).get(REPLAY_ID)
            problem += f"; to continue after the last message shown: --from {replay_id}"
        super().fail(problem)


class ReverseTail(_Reader):
    """Prints messages backwards: from the newest one, or from ``until``, back to ``start``."""

    def __init__(self, gateway: GatewayAddress, wanted: Wanted, show: Callable[[bytes], None]) -> None:
        super().__init__(gateway, wanted, show)
        self._until = wanted.until or "now"
        self._left = MAX_OFFSET if wanted.count is None else wanted.count
        self._first = 0
        """The last message to be printed has this id, or the next higher one that exists."""
        self._page: list[bytes] = []
        self._asked = 0
        self._link: Any = None

    def attach(self, event: Any) -> None:
        wanted = self._wanted
        if wanted.start is None:
            self._next_page(event)
            return
        # The gateway's answer resolves the start, where the list ends.
        source = wanted.source(wanted.start, self._until, clamp=wanted.clamp)
        self._link = event.container.create_receiver(self._connection, source, name="rewind-tail-from")

    def on_link_opened(self, event: Any) -> None:
        if not self._asked and event.link == self._link and event.link.remote_source.address is not None:
            answer = event.link.remote_source.filter
            answer.rewind()
            self._first = _offset(answer.get_object() if answer.next() else {})
            event.link.close()

    def _next_page(self, event: Any) -> None:
        self._asked = min(PAGE, self._left)
        self._page = []
        source = self._wanted.source(f"last:{self._asked}", self._until)
        name = f"rewind-tail-{self._until}"
        self._link = event.container.create_receiver(self._connection, source, name=name)
        self._link.flow(self._asked + 1)

    def on_delivery(self, event: Any) -> None:
        content = self._taken(event)
        if content is not None:
            self._page.append(content)
            self.accept(event.delivery)

    def on_link_closed(self, event: Any) -> None:
        if self.is_done or event.link != self._link:
            return
        if not self._asked:
            self._next_page(event)
            return
        event.link.close()
        for content in reversed(self._page[-self._left :]):
            if _id(content) < self._first:
                self.done()
                return
            self._show(content)
            self._left -= 1
        oldest = _id(self._page[0]) if self._page else 0
        if len(self._page) < self._asked or not self._left or oldest <= max(self._first, 1):
            self.done()
            return
        self._until = f"#{oldest - 1}"
        self._next_page(event)


def _id(content: bytes) -> int:
    return int(message_annotations(content)[SEQUENCE_NUMBER])


def _offset(filters: Mapping[Any, Any]) -> int:
    """The offset of a start, as the gateway's answer to the attach resolves it; 0 where the answer has none."""
    answer = next((value for key, value in filters.items() if str(key) == REPLAY_START), None)
    found = getattr(answer, "value", answer)
    return int(found.get("offset", 0)) if isinstance(found, dict) else 0


def printer(*, as_json: bool) -> Callable[[bytes], None]:
    """Makes a function that prints a message on one line."""
    is_unicode = sys.stdout.encoding.lower().replace("-", "") == "utf8"
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal's encoding lacks must not stop the command.
        sys.stdout.reconfigure(errors="backslashreplace")

    def shown(content: bytes) -> None:
        if as_json:
            print(json.dumps(as_object(content), ensure_ascii=not is_unicode), flush=True)
        else:
            print(as_line(content), flush=True)

    return shown


def as_line(content: bytes) -> str:
    """
    A delivered message on one line: offset, time of arrival, topic, message-id, subject, properties and body.

    Line ends and control characters are escaped, also in the topic and in names of properties.

    Raises:
        amqp_ext.codec.CodecError: The bytes are not an AMQP message.
    """
    found = as_object(content)
    pieces = [f"#{found['offset']}" if "offset" in found else "#-"]
    pieces += [str(found[key]) for key in ("enqueuedTime", "topic") if key in found]
    pieces += [f"{key}={_text(found[key])}" for key in ("messageId", "subject") if key in found]
    if "malformed" in found:
        pieces.append(f"malformed: {found['malformed']}:")
    pieces += [f"{key}={_text(value)}" for key, value in found.get("properties", {}).items()]
    return one_line(" ".join([*pieces, _text(found["body"])]))


def _text(value: Any) -> str:
    """A text as it is, any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@click.command()
@click.argument("address")
@click.option(
    "--from",
    "start",
    metavar="START",
    help="Where to begin: beginning, a date, 10m (ago), #123, rmid1:…, point:NAME, message-id:ID, "
    "match:SELECTOR, last, last:100 (the newest hundred). Without it, live.",
)
@click.option("--until", metavar="END", help="Where to end: now, a date, #123 or rmid1:…. Without it, never.")
@click.option(
    "--clamp", is_flag=True, help="If START is not in the log, begin at the nearest message that is."
)
@click.option("--reverse", is_flag=True, help="Print the newest first, back to START or the log's beginning.")
@click.option("--count", "--limit", "count", type=click.IntRange(min=1), help="End after this many messages.")
@click.option(
    "--consume", is_flag=True, help="Consume the messages of a queue; with --from, rewind it first."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
@gateway_options
def tail(gateway: GatewayAddress, consume: bool, reverse: bool, as_json: bool, **asked: Any) -> None:
    """Print the messages of ADDRESS, from any start, then live ones.

    \b
    rewind tail 'log://flights/>' --from 10m          ten minutes of history, then live
    rewind tail 'log://#queue/orders' --from '#1000'  what was sent to a queue
    rewind tail 'log://flights/>' --reverse --count 5 the five newest, the newest first
    rewind tail 'topic://flights/>'                   live only
    rewind tail orders                                the messages of a queue, which stay there
    rewind tail 'audit?kind=stream' --from 1h         a stream
    """
    wanted = Wanted(**asked)
    try:
        parsed = parse_source(wanted.address)
        if wanted.start is not None:
            parse_text(wanted.start)
    except (AddressError, ReplayStartError) as error:
        raise click.UsageError(str(error)) from error
    is_stream = parsed.options.get("kind") in (EndpointKind.STREAM.value, EndpointKind.LAST_VALUE.value)
    is_queue = parsed.kind is AddressKind.QUEUE and not is_stream
    if wanted.clamp and wanted.start is None:
        raise click.UsageError("--clamp needs --from: it says what happens if that start is not in the log")
    if consume and not is_queue:
        raise click.UsageError("--consume is for queues: only a queue's messages are removed by reading")
    if is_queue and (wanted.start is not None or wanted.until is not None) and not consume:
        raise click.UsageError(
            f"browsing a queue has no start and no end: to see what was sent to it, tail "
            f"'log://#queue/{parsed.name}'; if it is a stream, '{parsed.name}?kind=stream'; to rewind the queue "
            "itself and consume its messages, give --consume and --from"
        )
    if reverse and not (parsed.kind in LOGS or is_stream):
        raise click.UsageError("--reverse reads a log or a stream: give log://PATTERN, or NAME?kind=stream")
    show = printer(as_json=as_json)
    client: AmqpClient
    if reverse:
        client = ReverseTail(gateway, wanted, show)
    else:
        browses, reads_log = is_queue and not consume, parsed.kind in LOGS
        client = Tail(gateway, wanted, show, browses=browses, reads_log=reads_log)
    raise click.exceptions.Exit(client.run())
