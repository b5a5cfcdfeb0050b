"""
``rewind tail``: read an address from any start, and on; or, with ``--reverse``, from the newest message back.

AMQP delivers messages in one order. So each page of the reverse order is a bounded replay of its own, of the newest
messages up to where the page before began, and is printed from its end: a reader's rights are enough, and what is
published meanwhile does not matter.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
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
from gateway.core.endpoint.settings import EndpointKind

LOGS = (AddressKind.LOG, AddressKind.PARTITION)

CREDIT = 500
"""Messages asked for at a time: enough to keep the wire busy, few enough to stop soon."""


class Browsing(LinkOption):
    """The source gives copies: what is read stays where it is."""

    def apply(self, link: Any) -> None:
        link.source.distribution_mode = Terminus.DIST_MODE_COPY


def printer(*, as_json: bool) -> Callable[[bytes], None]:
    """Prints messages, one a line."""
    is_unicode = sys.stdout.encoding.lower().replace("-", "") == "utf8"
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that lacks a letter is no reason to stop.
        sys.stdout.reconfigure(errors="backslashreplace")

    def shown(content: bytes) -> None:
        if as_json:
            print(json.dumps(as_object(content), ensure_ascii=not is_unicode), flush=True)
        else:
            print(as_line(content), flush=True)

    return shown


class Tail(AmqpClient):
    """
    Args:
        address: As it was given.
        source: The same with the options of the attach behind it.
    """

    def __init__(
        self,
        gateway: GatewayAddress,
        address: str,
        source: str,
        *,
        browses: bool,
        reads_log: bool,
        count: int | None,
        as_json: bool,
    ) -> None:
        super().__init__(gateway, address)
        self._source = source
        self._reads_log = reads_log
        self._browses = browses
        self._left = count
        self._print = printer(as_json=as_json)
        self._asked = 0
        self._last: bytes | None = None

    def attach(self, event: Any) -> None:
        options = [Browsing()] if self._browses else []
        receiver = event.container.create_receiver(
            self._connection, self._source, name="rewind-tail", options=options
        )
        self._ask(receiver)

    def _ask(self, receiver: Any) -> None:
        """Credit for no more than is wanted: what is sent and not shown would be taken from others."""
        wanted = CREDIT if self._left is None else min(CREDIT, self._left)
        more = wanted - self._asked
        if more > 0 and (self._asked <= CREDIT // 2):
            receiver.flow(more)
            self._asked += more

    def on_link_error(self, event: Any) -> None:
        super().on_link_error(event)
        if self.problem is not None and "missing=clamp" in self.problem:
            self.problem = self.problem.replace("say missing=clamp", "say --clamp")

    def on_delivery(self, event: Any) -> None:
        # The bytes as they came: proton's own message would lose what it does not know.
        delivery, link = event.delivery, event.link
        if not link.is_receiver or not delivery.readable or delivery.partial or self.is_done:
            return
        content = bytes(link.recv(delivery.pending))
        link.advance()
        self._asked -= 1
        self._show(content)
        self.accept(delivery)
        if self._left is not None:
            self._left -= 1
            if self._left <= 0:
                self.done()
                return
        self._ask(link)

    def _show(self, content: bytes) -> None:
        self._print(content)
        self._last = content

    def fail(self, problem: str) -> None:
        if self.problem is None and self._last is not None and self._reads_log:
            # The gateway went away: whoever reads a log goes on behind what was shown.
            replay_id = message_annotations(self._last).get(REPLAY_ID)
            problem += f"; to go on behind what was shown: --from {replay_id}"
        super().fail(problem)


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
    "--clamp", is_flag=True, help="Where START is not in the log (any more), begin at the nearest that is."
)
@click.option("--reverse", is_flag=True, help="The newest first, back to START or the log's beginning.")
@click.option("--count", "--limit", "count", type=click.IntRange(min=1), help="End after this many messages.")
@click.option("--consume", is_flag=True, help="Take messages off a queue; with --from, rewind it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@gateway_options
@click.pass_context
def tail(
    context: click.Context,
    /,
    address: str,
    start: str | None,
    until: str | None,
    clamp: bool,
    count: int | None,
    consume: bool,
    reverse: bool,
    as_json: bool,
    **gateway: Any,
) -> None:
    """Print what comes to ADDRESS, from any start, and on.

    \b
    rewind tail 'log://flights/>' --from 10m          ten minutes of history, then live
    rewind tail 'log://#queue/orders' --from '#1000'  what was sent to a queue
    rewind tail 'log://flights/>' --reverse --count 5 the five newest, the newest first
    rewind tail 'topic://flights/>'                   live only
    rewind tail orders                                what lies on a queue, left there
    rewind tail 'audit?kind=stream' --from 1h         a stream
    """
    try:
        parsed = parse_source(address)
        if start is not None:
            parse_text(start)
    except (AddressError, ReplayStartError) as error:
        raise click.UsageError(str(error)) from error
    is_queue = parsed.kind is AddressKind.QUEUE and parsed.options.get("kind") != EndpointKind.STREAM.value
    if clamp and start is None:
        raise click.UsageError("--clamp says what becomes of a --from that is not there, and there is none")
    if consume and not is_queue:
        raise click.UsageError("--consume is for queues; nothing else is taken by reading it")
    if is_queue and (start is not None or until is not None) and not consume:
        raise click.UsageError(
            f"a look at a queue has no start and no end: to see what was sent to it, tail "
            f"'log://#queue/{parsed.name}'; if it is a stream, '{parsed.name}?kind=stream'; to rewind the queue "
            "itself and take what it has, say --consume and --from"
        )
    if reverse and not (parsed.kind in LOGS or parsed.options.get("kind") == EndpointKind.STREAM.value):
        raise click.UsageError("--reverse reads a log or a stream: give log://PATTERN, or NAME?kind=stream")
    if reverse:
        context.exit(
            ReverseTail(
                GatewayAddress(**gateway),
                address,
                partial(_with_options, address),
                start=start,
                until=until,
                clamp=clamp,
                count=count,
                show=printer(as_json=as_json),
            ).run()
        )
    context.exit(
        Tail(
            GatewayAddress(**gateway),
            address,
            _with_options(
                address, {"replay-start": start, "until": until, "missing": "clamp" if clamp else None}
            ),
            browses=is_queue and not consume,
            reads_log=parsed.kind in LOGS,
            count=count,
            as_json=as_json,
        ).run()
    )


def _with_options(address: str, options: Mapping[str, str | None]) -> str:
    """The address with these options behind it; those that are None are left out."""
    said = "&".join(f"{key}={quote(value, safe='')}" for key, value in options.items() if value is not None)
    if not said:
        return address
    return f"{address}{'&' if '?' in address else '?'}{said}"


PAGE: Final = 500
"""Messages of a page: what is held before any of them is shown."""

REPLAY_START: Final = "rewind:replay-start"


class ReverseTail(AmqpClient):
    """
    Args:
        source: Makes the address with options of an attach behind it.
        start: Where the list ends; None for the log's beginning.
        until: Where it begins; None for now.
        show: Prints a message.
    """

    def __init__(
        self,
        gateway: GatewayAddress,
        address: str,
        source: Callable[[Mapping[str, str | None]], str],
        *,
        start: str | None,
        until: str | None,
        clamp: bool,
        count: int | None,
        show: Callable[[bytes], None],
    ) -> None:
        super().__init__(gateway, address)
        self._source = source
        self._start = start
        self._until = until or "now"
        self._missing = "clamp" if clamp else None
        self._left = MAX_OFFSET if count is None else count
        self._show = show
        self._first = 0
        """The list ends with this id."""
        self._page: list[bytes] = []
        self._asked = 0
        self._link: Any = None

    def attach(self, event: Any) -> None:
        if self._start is None:
            self._next_page(event)
            return
        # What it answers is where the list ends.
        options = {"replay-start": self._start, "until": self._until, "missing": self._missing}
        self._link = event.container.create_receiver(
            self._connection, self._source(options), name="rewind-tail-from"
        )

    def on_link_opened(self, event: Any) -> None:
        if not self._asked and event.link == self._link and event.link.remote_source.address is not None:
            answer = event.link.remote_source.filter
            answer.rewind()
            self._first = _offset(answer.get_object() if answer.next() else {})
            event.link.close()

    def _next_page(self, event: Any) -> None:
        self._asked = min(PAGE, self._left)
        self._page = []
        options = {"replay-start": f"last:{self._asked}", "until": self._until}
        self._link = event.container.create_receiver(
            self._connection, self._source(options), name=f"rewind-tail-{self._until}"
        )
        self._link.flow(self._asked + 1)

    def on_delivery(self, event: Any) -> None:
        delivery, link = event.delivery, event.link
        if not link.is_receiver or not delivery.readable or delivery.partial or self.is_done:
            return
        self._page.append(bytes(link.recv(delivery.pending)))
        link.advance()
        self.accept(delivery)

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
    """Where a start is, as the gateway's answer has it; 0 where it does not say."""
    answer = next((value for key, value in filters.items() if str(key) == REPLAY_START), None)
    found = getattr(answer, "value", answer)
    return int(found.get("offset", 0)) if isinstance(found, dict) else 0


def as_line(content: bytes) -> str:
    """
    A delivered message on one line: offset, arrival, topic, what names it, and its body.

    Raises:
        amqp_ext.codec.CodecError: It is no AMQP message.
    """
    found = as_object(content)
    pieces = [f"#{found['offset']}" if "offset" in found else "#-"]
    pieces += [str(found[key]) for key in ("enqueuedTime", "topic") if key in found]
    pieces += [f"{key}={_text(found[key])}" for key in ("messageId", "subject") if key in found]
    if "malformed" in found:
        pieces.append(f"malformed: {found['malformed']}:")
    pieces += [f"{key}={_text(value)}" for key, value in found.get("properties", {}).items()]
    return _one_line(" ".join([*pieces, _text(found["body"])]))


def _text(value: Any) -> str:
    """As itself where it is text, else as JSON has it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _one_line(text: str) -> str:
    """Nothing of a message, not its topic nor the name of a property, ends the line or steers the terminal."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )
