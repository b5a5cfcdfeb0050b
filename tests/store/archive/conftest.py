"""Fixtures shared with the tests of the wire: gateways that stop with their test, clients, and a clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Limits, ReplayLog, Vpn
from gateway.config.vpn import ArchivedLog
from gateway.vpn.runtime import Tuning
from store.sqlite.check import check
from tests.gateway.amqp.conftest import Connect, Start, clock, connect, start, telling
from tests.gateway.conftest import _ending, _quiet
from tests.store.archive.begun import SMALL, Begin, Past
from tests.store.archive.log_archive import LogArchive
from tests.support.client import Client
from tests.support.messages import data
from tests.support.running import RunningGateway

__all__ = ["_ending", "_quiet", "clock", "connect", "start", "telling"]


@pytest.fixture
def given() -> dict[str, Any]:
    """The runtime of the test's gateways: they look at the age of the log and at the archive every 50 ms."""
    return {"tuning": Tuning(ageing_seconds=0.05, archive_look_seconds=0.05)}


@pytest.fixture
def begin(start: Start, tmp_path: Path) -> Iterator[Begin]:
    """Starts gateways whose logs have an empty archive. At the end of the test their file must be sound."""
    begun: list[RunningGateway] = []

    def begin(limits: Limits | None = None, log: ReplayLog | None = None, **vpn: Any) -> Any:
        place = str(tmp_path / "archive")
        settings = Vpn(archive=ArchivedLog(place=place), replay_log=log or ReplayLog(), **vpn)
        begun.append(start(settings, limits))
        return begun[-1], LogArchive(begun[-1], Path(place))

    yield begin
    for gateway in begun:
        gateway.stop()
        assert check(tmp_path / "data" / "default.db") == []


@pytest.fixture
def past(begin: Begin, connect: Connect) -> Past:
    """See ``Past``."""

    def past(count: int, trim: int | None = None, **given: Any) -> tuple[RunningGateway, LogArchive, Client]:
        gateway, archive = begin(SMALL, **given)
        client = connect(gateway)
        if count:
            client.sender("topic://a").send_all([data(i) for i in range(count)])
        if trim is not None:
            archive.archive_and_trim(trim)
        return gateway, archive, client

    return past
