"""Every way to ask for the start of a replay, on a log of ten known messages.

The messages carry the numbers 0 to 9, have the ids 1 to 10, and arrived a second apart: number n at ``BEGAN_MS`` plus
n + 1 seconds. The time of the requests is ``NOW_MS``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
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
    """The arrival time of a message."""
    return BEGAN_MS + 1_000 * (number + 1)


class _Clock(SystemClock):
    """The gateway's wall clock, which the test sets."""

    ms = BEGAN_MS

    def now_ms(self) -> int:  # type: ignore[override]
        return self.ms


@contextmanager
def gateway_with_log(
    folder: Path, targets: Sequence[str], vpn: Vpn | None = None
) -> Iterator[RunningGateway]:
    """A gateway with this log, whose clock stays at ``NOW_MS``; the messages were sent to these addresses in turn."""
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


class Id(NamedTuple):
    """Stands for a message's replay id, which contains the log's generation."""

    message_id: int


GENERATION = Id(0)
"""Stands for the log's generation."""

OPTION = "replay-start"
FILTER = "rewind:replay-start"
RABBITMQ = "rabbitmq:stream-offset-spec"
SELECTOR = "apache.org:selector-filter:string"


@dataclass(frozen=True, slots=True)
class Start:
    """A way to ask, by this filter or by the address option, and the number of the first message that it leads to."""

    name: str
    first: int
    key: str
    value: Any

    def arguments(self, address: str, generation: int) -> dict[str, Any]:
        """Arguments of ``Client.receiver``."""
        value = _resolved(self.value, generation)
        if self.key == OPTION:
            return {"address": f"{address}?{OPTION}={quote(value, safe='')}"}
        return {"address": address, "filters": {self.key: value}}


def _resolved(value: Any, generation: int) -> Any:
    if isinstance(value, dict):
        return {key: _resolved(entry, generation) for key, entry in value.items()}
    if value == GENERATION:
        return ulong(generation)
    return format_replay_id(generation, value.message_id) if isinstance(value, Id) else value


def _map(name: str, first: int, **entries: Any) -> Start:
    return Start(f"map {name}", first, FILTER, {symbol(key.strip("_")): it for key, it in entries.items()})


def _starts(kind: str, key: str, *rows: tuple[str, int, Any]) -> list[Start]:
    return [Start(f"{kind} {name}", first, key, value) for name, first, value in rows]


STARTS = [
    _map("from beginning", 0, from_=symbol("beginning")),
    _map("from live", LIVE, from_=symbol("live")),
    _map("from last", 9, from_=symbol("last")),
    _map("date", 4, date=timestamp(arrival_ms(4))),
    _map("date, a millisecond late", 5, date=timestamp(arrival_ms(4) + 1)),
    _map("date, a millisecond early", 4, date=timestamp(arrival_ms(4) - 1)),
    _map("date after all", LIVE, date=timestamp(NOW_MS)),
    _map("ago", 4, ago=ulong(NOW_MS - arrival_ms(4))),
    *(
        _map(f"offset as {kind.__name__}", 4, offset=kind(5))
        for kind in (ulong, int, int32, uint, short, ushort, byte, ubyte)
    ),
    _map("offset past the end", LIVE, offset=ulong(COUNT + 1)),
    _map("offset clamped to the first", 0, offset=ulong(0), missing=symbol("clamp")),
    _map("offset clamped to live", LIVE, offset=ulong(10_000), missing=symbol("clamp")),
    _map("after", 5, after=Id(5)),
    _map("at", 4, at=Id(5)),
    _map("after the last", LIVE, after=Id(10)),
    _map("with the generation", 0, from_=symbol("beginning"), generation=GENERATION),
    Start("map with strings for keys", 4, FILTER, {"offset": ulong(5)}),
    Start("under a key of the client's own", 4, "my-start", Described(symbol(FILTER), ulong(5))),
    *_starts(
        "short",
        FILTER,
        ("string", 0, "beginning"),
        ("symbol", 9, symbol("last")),
        ("date", 4, "2027-01-15T08:00:05Z"),
        ("date in a zone", 4, "2027-01-15T10:00:05.000+02:00"),
        ("timestamp", 4, timestamp(arrival_ms(4))),
        ("integer", 4, ulong(5)),
        ("offset text", 4, "#5"),
        ("ago", 4, "15s"),
        ("id", 5, Id(5)),
    ),
    *_starts(
        "RabbitMQ",
        RABBITMQ,
        ("first", 0, "first"),
        ("last", 9, "last"),
        ("next", LIVE, symbol("next")),
        ("interval", 4, "15s"),
        ("interval longer than the log", 0, "1h"),
        ("offset", 4, ulong(5)),
        ("offset past the end", LIVE, ulong(99)),
        ("timestamp", 4, timestamp(arrival_ms(4))),
    ),
    *_starts(
        "Event Hubs",
        SELECTOR,
        ("offset", 5, "amqp.annotation.x-opt-offset > '5'"),
        ("offset, inclusive", 4, "amqp.annotation.x-opt-offset >= '5'"),
        ("sequence-number", 5, "amqp.annotation.x-opt-sequence-number > '5'"),
        ("enqueued-time", 5, f"amqp.annotation.x-opt-enqueued-time > '{arrival_ms(4)}'"),
        ("enqueued-time, inclusive", 4, f"amqp.annotation.x-opt-enqueued-time >= '{arrival_ms(4)}'"),
        ("beginning", 0, "amqp.annotation.x-opt-offset > '-1'"),
        ("live", LIVE, "amqp.annotation.x-opt-offset > '@latest'"),
    ),
    *_starts(
        "selector",
        "selector",
        ("of Event Hubs", 5, Described(ulong(SELECTOR_CODE), "amqp.annotation.x-opt-offset > '5'")),
        ("of JMS", 0, Described(ulong(SELECTOR_CODE), "\"m.x-opt-replay-start\" = 'beginning'")),
    ),
    *_starts(
        "option",
        OPTION,
        ("beginning", 0, "beginning"),
        ("live", LIVE, "live"),
        ("last", 9, "last"),
        ("date", 4, "2027-01-15T08:00:05Z"),
        ("ago", 4, "15s"),
        ("offset", 4, "#5"),
        ("id", 5, Id(5)),
    ),
]
