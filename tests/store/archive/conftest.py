"""What these tests share with those of the wire: gateways that end with their test, clients, and a clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.config import Limits, ReplayLog, Vpn
from gateway.config.vpn import ArchivedLog
from gateway.vpn.runtime import Tuning
from tests.gateway.amqp.conftest import Start, clock, connect, start, telling
from tests.gateway.conftest import _ending, _quiet
from tests.store.archive.begun import Begin
from tests.store.archive.log_archive import LogArchive

__all__ = ["_ending", "_quiet", "clock", "connect", "start", "telling"]


@pytest.fixture
def given() -> dict[str, Any]:
    """What gateways of the test run on: they look often at what has become of log and archive."""
    return {"tuning": Tuning(ageing_seconds=0.05, archive_look_seconds=0.05)}


@pytest.fixture
def begin(start: Start, tmp_path: Path) -> Begin:
    """Starts a gateway whose log has an archive, which is empty."""

    def begin(limits: Limits | None = None, log: ReplayLog | None = None, **vpn: Any) -> Any:
        place = str(tmp_path / "archive")
        settings = Vpn(archive=ArchivedLog(place=place), replay_log=log or ReplayLog(), **vpn)
        gateway = start(settings, limits)
        return gateway, LogArchive(gateway, Path(place))

    return begin
