"""Every way to ask for a replay's start, for a log of ten messages that a test knows by heart.

The messages carry the numbers 0 to 9, have the ids 1 to 10, and arrived a second apart: number n at ``BEGAN_MS`` plus
n + 1 seconds. It is ``NOW_MS`` when a test asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from proton import Described, byte, int32, short, symbol, timestamp, ubyte, uint, ulong, ushort

from amqp_ext.replay_id import format_replay_id
from gateway.config import Vpn
from gateway.vpn.runtime import SystemClock
from tests.support.client import Client
from tests.support.messages import data
from tests.support.running import RunningGateway, settings_for

COUNT = 10
BEGAN_MS = 1_800_000_000_000
NOW_MS = BEGAN_MS + 20_000
LIVE = COUNT

SELECTOR_CODE = 0x0000_468C_0000_0004


def arrival_ms(number: int) -> int:
    """When a message arrived."""
    return BEGAN_MS + 1_000 * (number + 1)


class _Clock(SystemClock):
    """The gateway's wall clock, moved by hand."""

    ms = BEGAN_MS

    def now_ms(self) -> int:  # type: ignore[override]
        return self.ms


@contextmanager
def gateway_with_log(
    folder: Path, targets: Sequence[str], vpn: Vpn | None = None
) -> Iterator[RunningGateway]:
    """A gateway with this log, on which it stays ``NOW_MS``; the messages were sent to these addresses in turn."""
    clock = _Clock()
    with RunningGateway(settings_for(folder, vpn), clock=clock) as running:
        with Client(running.url) as client:
            senders = [client.sender(target) for target in targets]
            for number in range(COUNT):
                clock.ms = arrival_ms(number)
                senders[number % len(senders)].send_all([data(number)])
            client.close()
        clock.ms = NOW_MS
        yield running


@dataclass(frozen=True, slots=True)
class Start:
    """One way to ask: a filter-set, or options behind the address; and the first message's number it leads to."""

    name: str
    first: int
    filters: Callable[[int], dict[str, Any]] | None = None
    """From the log's generation."""
    option: Callable[[int], str] | None = None

    def arguments(self, address: str, generation: int) -> dict[str, Any]:
        """Arguments of ``Client.receiver``."""
        if self.option is not None:
            return {"address": f"{address}?{self.option(generation)}"}
        assert self.filters is not None
        return {"address": address, "filters": self.filters(generation)}


def _map(name: str, first: int, **entries: Any) -> Start:
    value = {symbol(key.replace("_", "-")): entry for key, entry in entries.items()}
    return Start(f"map {name}", first, lambda _: {"rewind:replay-start": value})


def _short(name: str, first: int, value: Any) -> Start:
    return Start(f"short {name}", first, lambda _: {"rewind:replay-start": value})


def _rabbitmq(name: str, first: int, value: Any) -> Start:
    return Start(f"RabbitMQ {name}", first, lambda _: {"rabbitmq:stream-offset-spec": value})


def _event_hubs(name: str, first: int, text: str) -> Start:
    return Start(
        f"Event Hubs {name}",
        first,
        lambda _: {"apache.org:selector-filter:string": f"amqp.annotation.x-opt-{text}"},
    )


def _option(name: str, first: int, text: str) -> Start:
    return Start(f"option {name}", first, option=lambda _: f"replay-start={quote(text, safe='')}")


STARTS = [
    _map("from beginning", 0, **{"from": symbol("beginning")}),
    _map("from live", LIVE, **{"from": symbol("live")}),
    _map("from last", 9, **{"from": symbol("last")}),
    _map("date", 4, date=timestamp(arrival_ms(4))),
    _map("date, a millisecond late", 5, date=timestamp(arrival_ms(4) + 1)),
    _map("date, a millisecond early", 4, date=timestamp(arrival_ms(4) - 1)),
    _map("date after all", LIVE, date=timestamp(NOW_MS)),
    _map("ago", 4, ago=ulong(NOW_MS - arrival_ms(4))),
    *(
        _map(f"offset as {kind.__name__}", 4, offset=kind(5))
        for kind in (ulong, int, int32, uint, short, ushort, byte)
    ),
    _map("offset as ubyte", 4, offset=ubyte(5)),
    _map("offset past the end", LIVE, offset=ulong(COUNT + 1)),
    _map("offset clamped to the first", 0, offset=ulong(0), missing=symbol("clamp")),
    _map("offset clamped to live", LIVE, offset=ulong(10_000), missing=symbol("clamp")),
    Start("map after", 5, lambda g: {"rewind:replay-start": {symbol("after"): format_replay_id(g, 5)}}),
    Start("map at", 4, lambda g: {"rewind:replay-start": {symbol("at"): format_replay_id(g, 5)}}),
    Start(
        "map after the last",
        LIVE,
        lambda g: {"rewind:replay-start": {symbol("after"): format_replay_id(g, 10)}},
    ),
    Start(
        "map with the generation",
        0,
        lambda g: {
            "rewind:replay-start": {symbol("from"): symbol("beginning"), symbol("generation"): ulong(g)}
        },
    ),
    Start("map with strings for keys", 4, lambda _: {"rewind:replay-start": {"offset": ulong(5)}}),
    _short("string", 0, "beginning"),
    _short("symbol", 9, symbol("last")),
    _short("date", 4, "2027-01-15T08:00:05Z"),
    _short("date in a zone", 4, "2027-01-15T10:00:05.000+02:00"),
    _short("timestamp", 4, timestamp(arrival_ms(4))),
    _short("integer", 4, ulong(5)),
    _short("offset text", 4, "#5"),
    _short("ago", 4, "15s"),
    Start("short id", 5, lambda g: {"rewind:replay-start": format_replay_id(g, 5)}),
    Start(
        "under a key of the client's own",
        4,
        lambda _: {"my-start": Described(symbol("rewind:replay-start"), ulong(5))},
    ),
    _rabbitmq("first", 0, "first"),
    _rabbitmq("last", 9, "last"),
    _rabbitmq("next", LIVE, symbol("next")),
    _rabbitmq("interval", 4, "15s"),
    _rabbitmq("interval longer than the log", 0, "1h"),
    _rabbitmq("offset", 4, ulong(5)),
    _rabbitmq("offset past the end", LIVE, ulong(99)),
    _rabbitmq("timestamp", 4, timestamp(arrival_ms(4))),
    _event_hubs("offset", 5, "offset > '5'"),
    _event_hubs("offset, inclusive", 4, "offset >= '5'"),
    _event_hubs("sequence-number", 5, "sequence-number > '5'"),
    _event_hubs("enqueued-time", 5, f"enqueued-time > '{arrival_ms(4)}'"),
    _event_hubs("enqueued-time, inclusive", 4, f"enqueued-time >= '{arrival_ms(4)}'"),
    _event_hubs("beginning", 0, "offset > '-1'"),
    _event_hubs("live", LIVE, "offset > '@latest'"),
    Start(
        "Event Hubs by code",
        5,
        lambda _: {"selector": Described(ulong(SELECTOR_CODE), "amqp.annotation.x-opt-offset > '5'")},
    ),
    Start(
        "JMS selector",
        0,
        lambda _: {"jms-selector": Described(ulong(SELECTOR_CODE), "\"m.x-opt-replay-start\" = 'beginning'")},
    ),
    _option("beginning", 0, "beginning"),
    _option("live", LIVE, "live"),
    _option("last", 9, "last"),
    _option("date", 4, "2027-01-15T08:00:05Z"),
    _option("ago", 4, "15s"),
    _option("offset", 4, "#5"),
    Start("option id", 5, option=lambda g: f"replay-start={format_replay_id(g, 5)}"),
]
