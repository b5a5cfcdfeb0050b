"""Rules of retention where the log has an archive: they take what that has, and nothing is missing in both."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import ReplayLog
from gateway.config.vpn import Retention
from store.sqlite.check import check
from tests.gateway.amqp.conftest import Connect
from tests.store.archive.begun import Begin, numbers
from tests.support.client import Refused, texts
from tests.support.messages import data
from tests.support.running import RunningGateway

pytestmark = pytest.mark.spark


def kept(gateway: RunningGateway) -> tuple[int, int]:
    """Messages and excess bytes of the first rule."""

    def ask(running: RunningGateway) -> tuple[int, int]:
        found = running.vpns["default"].broker.retention.rules[0]  # type: ignore[attr-defined]
        return found.messages, found.excess_bytes

    return gateway.call(ask)  # type: ignore[arg-type]


def test_a_rule_takes_what_the_archive_has(begin: Begin, connect: Connect, tmp_path: Path) -> None:
    """
    Nothing before that. Then a start there is refused as long as the log itself reaches further back, and once it does
    not, the archive gives all of it.
    """
    rule = Retention(topics=("debug/>",), quota_mb=1)
    gateway, archive = begin(log=ReplayLog(retention=(rule,)))
    client = connect(gateway)
    client.sender("topic://orders/a").send_all([data("first")])
    debug = client.sender("topic://debug/a")
    debug.send_all(data(f"{i:<20000}") for i in range(80))
    client.wait(lambda: kept(gateway)[1] > 0, "it is over its quota")
    assert len(client.receiver("log://debug/>?replay-start=beginning&until=now").take_to_end()) == 80
    archive.archive()
    client.wait(lambda: kept(gateway)[1] == 0, "the rule is kept to")
    assert kept(gateway)[0] < 60
    with pytest.raises(Refused) as refused:
        client.receiver("log://debug/>?replay-start=%232")
    assert refused.value.replay_error == "start-message-unavailable"
    archive.trim(50)
    found = client.receiver("log://debug/>?replay-start=%232&until=now").take_to_end()
    assert [text.strip() for text in texts(found)] == numbers(0, 80)
    client.close()
    gateway.stop()
    assert check(tmp_path / "data" / "default.db") == []
