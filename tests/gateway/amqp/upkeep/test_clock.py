"""A machine's clock that jumps, as publishers, consumers and administrators see it."""

from __future__ import annotations

from typing import Any

from gateway.app import Gateway
from gateway.vpn.runtime import SteadyClock, SystemClock
from tests.gateway.amqp.conftest import Connect, Start
from tests.gateway.amqp.upkeep.test_expiry import with_ttl
from tests.support.client import texts
from tests.support.messages import data
from tests.support.running import RunningGateway

YEARS = 14 * 365 * 86_400_000


class Machine(SystemClock):
    """Clocks moved by hand."""

    def __init__(self) -> None:
        self.ms = 1_800_000_000_000
        self.now = 0.0

    def now_ms(self) -> int:  # type: ignore[override]
        return self.ms

    def seconds(self) -> float:  # type: ignore[override]
        return self.now


def alarms(running: RunningGateway) -> list[str]:
    """What holds now."""

    def ask(gateway: Gateway) -> list[str]:
        vpn = gateway.vpns["default"]
        vpn.alarms.check()
        return [alarm.kind.value for alarm in vpn.alarms.active()]

    return running.call(ask)


def test_a_jump_expires_nothing_and_sticks_in_nothing(
    start: Start, connect: Connect, given: dict[str, Any]
) -> None:
    """While the clock is years ahead, and after it: messages live as long as they say, and an alarm tells of it."""
    machine = Machine()
    given["clock"] = SteadyClock(0, machine)
    gateway = start()
    client = connect(gateway)
    client.sender("plain").send_all([with_ttl(1, 60_000)])
    machine.ms += YEARS
    client.sender("plain").send_all([with_ttl(2, 60_000)])
    assert alarms(gateway) == ["clock"]
    machine.ms -= YEARS
    client.sender("plain").send_all([with_ttl(3, 60_000), data(4)])
    assert alarms(gateway) == []
    consumer = client.receiver("plain", credit=4)
    found = consumer.take(4)
    assert texts(found) == ["1", "2", "3", "4"]
    consumer.close()
    machine.ms += 60_001
    machine.now += 60.001
    assert texts(client.receiver("plain").drain()) == ["4"]
