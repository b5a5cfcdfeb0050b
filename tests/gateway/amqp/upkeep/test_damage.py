"""A file that cannot be read, as administrators see it."""

from __future__ import annotations

from gateway.app import Gateway
from store.sqlite.reader import SqliteReader
from tests.gateway.amqp.conftest import Start


def test_damage_is_an_alarm_and_the_gateway_is_not_ready(start: Start) -> None:
    """As soon as a page could not be read, an alarm says so, and so does the answer to whether the gateway is ready."""
    gateway = start()

    def ask(running: Gateway) -> tuple[list[tuple[str, str]], str | None]:
        vpn = running.vpns["default"]
        vpn.alarms.check()
        return [(alarm.kind.value, alarm.text) for alarm in vpn.alarms.active()], running.problem()

    def damage(running: Gateway) -> None:
        reader = running.vpns["default"].reader
        assert isinstance(reader, SqliteReader)
        reader.damage = "database disk image is malformed"

    assert gateway.call(ask) == ([], None)
    gateway.call(damage)
    alarms, problem = gateway.call(ask)
    assert alarms == [("store-damage", "the store cannot be read: database disk image is malformed")]
    assert problem == "Message VPN 'default': the store cannot be read: database disk image is malformed"
