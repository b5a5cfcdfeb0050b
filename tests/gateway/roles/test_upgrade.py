"""A pair of gateways on one PostgreSQL is upgraded while clients publish: nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.gateway.roles.test_pair import readiness
from tests.support.client import Client, Received, texts
from tests.support.postgresql import Server
from tests.support.publishing import Publishing
from tests.support.waiting import wait_until
from tests.system.gateway_process import ROOT, GatewayProcess
from tests.system.next_version import STEP

pytestmark = [pytest.mark.system, pytest.mark.postgresql]

NEXT = "tests.system.next_version"


def test_a_rolling_change_loses_nothing(postgresql: Server, tmp_path: Path, _ending: ExitStack) -> None:
    """
    The waiting gateway is upgraded, then the active one is stopped under load: each accepted message is there once, in
    order. The new version says beforehand what it will do, and waits for the store. The old version gets the store no
    more, and leaves it unchanged.
    """
    url = postgresql.url(postgresql.new_database())
    config = f'[vpn.default.store]\nurl = "{url}"\nlease_seconds = 2\n'

    def start(name: str, module: str = "gateway") -> GatewayProcess:
        process = GatewayProcess(tmp_path / name, config, module=module)
        _ending.callback(process.stop)
        return process

    active = start("a")
    checked = subprocess.run(
        [sys.executable, "-m", NEXT, "upgrade-check", str(tmp_path / "a.toml"), "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(checked.stdout)
    assert [step["name"] for step in found["steps"]] == [STEP] and found["wayBack"] == "backup"
    other = start("b", NEXT)
    assert readiness(other).json()["state"] == "waiting"
    with Publishing(active.url, "orders") as publishing:
        publishing.wait_for(2_000)
        publishing.expect_an_end()
        active.stop()
    wait_until(lambda: readiness(other).status_code == 200, "the next version is active")
    with Publishing(other.url, "orders", first=publishing.accepted) as going_on:
        going_on.wait_for(publishing.accepted + 500)
    late = start("c")
    other.stop()
    wait_until(lambda: STEP in readiness(late).text, "the version before is refused")
    last = start("d", NEXT)
    wait_until(lambda: readiness(last).status_code == 200, "the next version is active")
    with Client(last.url) as client:
        taken: list[Received] = []
        receiver = client.receiver("orders", credit=1_000)
        receiver.collect(taken, going_on.accepted)
        there = [int(text) for text in texts([*taken, *receiver.drain()])]
    again = going_on.accepted - publishing.accepted
    assert there[: publishing.accepted] + there[-again:] == list(range(going_on.accepted))
