"""``rewind tail``: read an address from any start, and on."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote

import click
from proton import Terminus
from proton.reactor import LinkOption

from amqp_ext.addresses.address import AddressKind, parse_source
from amqp_ext.addresses.texts import AddressError
from amqp_ext.message.json_object import REPLAY_ID, as_object
from amqp_ext.message.sections import message_annotations
from amqp_ext.replay_start import ReplayStartError, parse_text
from gateway.cli.amqp_client import AmqpClient, GatewayAddress, gateway_options
from gateway.cli.message_text import as_line
from gateway.cli.verbs.tail_reverse import ReverseTail
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
