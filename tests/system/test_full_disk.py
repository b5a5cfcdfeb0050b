"""A gateway whose files may not grow any further: what ``/readyz`` says, what publishers are told, how it recovers."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from store.sqlite.check import check
from tests.support.client import Client, texts
from tests.support.http import PLAIN_HTTP
from tests.support.messages import data
from tests.support.waiting import wait_until
from tests.system.gateway_process import GatewayProcess


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayProcess]:
    """One that may log errors: a write that fails is told of as one."""
    process = GatewayProcess(tmp_path / "data")
    yield process
    assert process.stop() == 0


def readiness(gateway: GatewayProcess) -> tuple[int, dict[str, str]]:
    """Status and body of ``/readyz``."""
    answer = httpx.get(f"{gateway.ready['admin']}/readyz", **PLAIN_HTTP)
    return answer.status_code, answer.json()


def test_readyz_is_red_from_a_failed_write_to_the_next_that_succeeds(gateway: GatewayProcess) -> None:
    """
    While no file takes a byte more, not even the log on stderr, a message is rejected with a reason, ``/readyz`` is 503
    and says it, and reading goes on; then it is 200 without anybody's help, and the next message is accepted.
    """
    assert readiness(gateway)[0] == 200
    host, port = gateway.address
    with Client(f"amqp://{host}:{port}") as client:
        sender = client.sender("q")
        sender.send_all([data("before")])
        # As a full disk: writes fail. The process ignores SIGXFSZ, as every Python does.
        before = resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))
        refused = sender.rejection(sender.send(data("meanwhile")))
        assert refused.name == "amqp:internal-error"
        assert "the store could not write" in refused.text
        status, said = readiness(gateway)
        assert (status, said["status"]) == (503, "unavailable")
        assert said["reason"].startswith("Message VPN 'default': the last write failed: ")
        assert texts(client.receiver("log://>?replay-start=beginning").drain()) == ["before"]
        resource.prlimit(gateway.pid, resource.RLIMIT_FSIZE, before)
        wait_until(lambda: readiness(gateway)[0] == 200, "ready again")
        sender.send_all([data("after")])
        assert texts(client.receiver("q").drain()) == ["before", "after"]
    assert check(gateway.data / "default.db") == []
