"""A file that cannot be read, as administrators see it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.app import Gateway
from gateway.config import Limits
from store.sqlite.reader import SqliteReader
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import texts
from tests.support.messages import data


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


def test_a_standbys_damage_is_an_alarm_alone(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it cannot give is read from the primary: clients are served."""
    gateway = start()

    def damage(running: Gateway) -> tuple[list[str], str | None]:
        vpn = running.vpns["default"]
        reader = vpn.reader
        assert isinstance(reader, SqliteReader)
        monkeypatch.setattr(type(reader), "standby_damage", "invalid page in block 7")
        vpn.alarms.check()
        return [alarm.text for alarm in vpn.alarms.active()], running.problem()

    text = "a standby of the store cannot be read, and the primary is in its place: invalid page in block 7"
    assert gateway.call(damage) == ([text], None)


def test_a_turned_bit_is_delivered_to_nobody(start: Start, connect: Connect, tmp_path: Path) -> None:
    """A log reader is refused at it, a queue's consumer waits before it, an alarm names it and what to do."""
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
    # The last one is not sent before it is known whether another comes.
    assert texts(reader.arrived) == before[:4]
    consumer = client.receiver("queue://q", credit=100)
    assert texts(consumer.take(5)) == before

    def ask(running: Gateway) -> tuple[list[str], str | None]:
        vpn = running.vpns["default"]
        vpn.alarms.check()
        return [f"{alarm.kind.value}: {alarm.text}" for alarm in vpn.alarms.active()], running.problem()

    alarms, problem = gateway.call(ask)
    told = (
        "the store cannot be read: message 6 is not what was written: its checksum is wrong. Restore the file from a "
        "backup, or do without the message: trim the log past it, and purge the queues that have it"
    )
    assert alarms == [f"store-damage: {told}"]
    assert problem == f"Message VPN 'default': {told}"
