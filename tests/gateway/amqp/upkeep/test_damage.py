"""A clock that jumps, and a file that cannot be read, as clients and administrators see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.app import Gateway
from gateway.config import Limits
from gateway.vpn.runtime import SteadyClock
from store.sqlite.reader import SqliteReader
from tests.gateway.amqp.conftest import Clock, Connect, Start
from tests.gateway.amqp.upkeep.test_expiry import with_ttl
from tests.support.client import texts
from tests.support.messages import data
from tests.support.running import RunningGateway

# --- A machine's clock that jumps, as publishers, consumers and administrators see it ---------------------------------

YEARS = 14 * 365 * 86_400_000


class Machine(Clock):
    """A wall clock and a monotonic clock, both moved by hand."""

    now = 0.0

    def seconds(self) -> float:  # type: ignore[override]
        return self.now


def told_of(gateway: RunningGateway) -> tuple[list[str], str | None]:
    """The texts of the active alarms, and why the gateway is not ready."""

    def ask(running: Gateway) -> tuple[list[str], str | None]:
        vpn = running.vpns["default"]
        vpn.alarms.check()
        return [f"{alarm.kind.value}: {alarm.text}" for alarm in vpn.alarms.active()], running.problem()

    return gateway.call(ask)


def test_a_jump_expires_nothing_and_sticks_in_nothing(
    start: Start, connect: Connect, given: dict[str, Any]
) -> None:
    """While the clock is years ahead, and after it, messages live as long as their ttl; an alarm reports the jump."""
    machine = Machine()
    given["clock"] = SteadyClock(0, machine)
    gateway = start()
    client = connect(gateway)
    client.sender("plain").send_all([with_ttl(1, 60_000)])
    machine.ms += YEARS
    client.sender("plain").send_all([with_ttl(2, 60_000)])
    (alarm,), problem = told_of(gateway)
    assert (alarm[:7], problem) == ("clock: ", None)
    machine.ms -= YEARS
    client.sender("plain").send_all([with_ttl(3, 60_000), data(4)])
    assert told_of(gateway) == ([], None)
    consumer = client.receiver("plain", credit=4)
    found = consumer.take(4)
    assert texts(found) == ["1", "2", "3", "4"]
    consumer.close()
    machine.ms += 60_001
    machine.now += 60.001
    assert texts(client.receiver("plain").drain()) == ["4"]


# --- A file that cannot be read, as administrators see it -------------------------------------------------------------


def test_damage_is_an_alarm_and_the_gateway_is_not_ready(gateway: RunningGateway) -> None:
    """Once a page could not be read, an alarm says so, and the gateway reports that it is not ready."""
    assert told_of(gateway) == ([], None)
    gateway.call(lambda running: setattr(running.vpns["default"].reader, "damage", "it is malformed"))
    told = "the store cannot be read: it is malformed"
    assert told_of(gateway) == ([f"store-damage: {told}"], f"Message VPN 'default': {told}")


def test_a_standbys_damage_is_an_alarm_alone(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The primary is read instead, and clients are served."""
    monkeypatch.setattr(SqliteReader, "standby_damage", "invalid page in block 7")
    text = "a standby of the store cannot be read, and the primary is read instead: invalid page in block 7"
    assert told_of(gateway) == ([f"store-damage: {text}"], None)


def test_a_turned_bit_is_delivered_to_nobody(start: Start, connect: Connect, tmp_path: Path) -> None:
    """
    A log reader is detached there, a queue's consumer gets what is before it, and an alarm names it and what to do.
    """
    gateway = start(limits=Limits(tail_bytes=1))
    client = connect(gateway)
    client.sender("queue://q").send_all(
        [data(f"before {i}") for i in range(5)] + [data("needle"), data("after")]
    )
    client.close()
    gateway.stop()
    (path,) = tmp_path.rglob("default.db")
    content = bytearray(path.read_bytes())
    content[content.index(b"needle")] ^= 1
    path.write_bytes(content)
    gateway.start()
    client = connect(gateway)
    before = [f"before {i}" for i in range(5)]
    reader = client.receiver("log://>?replay-start=beginning", credit=100)
    assert "could not be read" in str(reader.detached_by_peer())
    # A message is sent only when it is known whether another follows.
    assert texts(reader.arrived) == before[:4]
    consumer = client.receiver("queue://q", credit=100)
    assert texts(consumer.take(5)) == before
    told = (
        "the store cannot be read: message 6 is not what was written: its checksum is wrong. Restore the file from a "
        "backup, or give the message up: trim the log past it, and purge the queues that have it"
    )
    assert told_of(gateway) == ([f"store-damage: {told}"], f"Message VPN 'default': {told}")
