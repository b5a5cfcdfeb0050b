"""Two gateways on one database, each in a process of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import httpx

from tests.support.ports import free_port
from tests.support.running import PLAIN_HTTP
from tests.support.waiting import wait_until
from tests.system.gateway_process import GatewayProcess

from .clients import Address
from .processes import Failed, Workshop

NAMES: Final = ("a", "b")
QUEUES: Final = ("first", "second")
LEASE_SECONDS: Final = 5
ASK_SECONDS: Final = 10.0
READY_SECONDS: Final = 60.0

CONFIG: Final = """\
[vpn.default.store]
url = "{url}"
read_url = "{read_url}"
standby_reads = true
lease_seconds = {lease}
"""
QUEUE: Final = """
[vpn.default.queue.{name}]
exclusive = "wait"
subscriptions = ["ha/>"]
"""


class PairGateway:
    """One of the two gateways; it keeps its ports over restarts."""

    def __init__(self, workshop: Workshop, name: str, config: str) -> None:
        self._workshop = workshop
        self._config = config
        self._folder: Path = workshop.folder / name
        self._process: GatewayProcess | None = None
        self.name = name
        self.address: Address = ("127.0.0.1", free_port())

    def start(self) -> None:
        """Start it; returns when it answers, whether it is active or waits."""
        host, port = self.address
        self._process = GatewayProcess(
            self._folder, self._config, listen=(f"{host}:{port}",), module="gateway"
        )
        self._workshop.watch(self._process.pid)

    def lose(self) -> None:
        """SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()

    def hold(self) -> None:
        """SIGSTOP."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            os.kill(self._process.pid, number)

    def close(self) -> None:
        """Stop it as an administrator would."""
        process, self._process = self._process, None
        if process is not None and process.is_running:
            process.stop()

    def readiness(self) -> dict[str, Any]:
        """
        The answer of ``/readyz``, with its HTTP status as ``status``; only a ``status`` of 0 if there is no answer.
        """
        if self._process is None:
            return {"status": 0}
        try:
            answer = httpx.get(
                f"{self._process.ready['admin']}/readyz", **PLAIN_HTTP | {"timeout": ASK_SECONDS}
            )
            return {**answer.json(), "status": answer.status_code}
        except (httpx.HTTPError, ValueError):
            return {"status": 0}

    def durability(self) -> str:
        """What an accepted message survives, according to the gateway."""
        assert self._process is not None
        url = f"{self._process.ready['admin']}/SEMP/v2/monitor/msgVpns/default"
        answer = httpx.get(url, **PLAIN_HTTP | {"timeout": ASK_SECONDS}).json()
        return str(answer["data"].get("storeDurability"))

    @property
    def is_active(self) -> bool:
        """Whether it serves clients."""
        return bool(self.readiness()["status"] == 200)

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for the other gateway's end."""
        return bool(self.readiness().get("state") == "waiting")

    def failure(self) -> str:
        """Why it has failed: it has ended by itself, or its log has a traceback; empty if it is well."""
        if self._process is None:
            return ""
        if not self._process.is_running:
            return f"{self.name} has ended by itself: {self._process.log_tail()[-1_000:]}"
        found = [line for line in self._process.log_text().splitlines() if "Traceback" in line]
        return f"{self.name} made a mistake: {found[0][:1_000]}" if found else ""


class Pair:
    """Both gateways, with two queues that get all messages published below ``ha/``."""

    def __init__(self, workshop: Workshop, urls: Sequence[str], read_url: str) -> None:
        """
        Args:
            urls: The URLs of the database, one for each gateway.
            read_url: The URL of the database's standbys.
        """
        queues = "".join(QUEUE.format(name=name) for name in QUEUES)
        self.gateways = [
            PairGateway(
                workshop, name, CONFIG.format(url=url, read_url=read_url, lease=LEASE_SECONDS) + queues
            )
            for name, url in zip(NAMES, urls, strict=True)
        ]

    @property
    def addresses(self) -> list[Address]:
        """The addresses for clients, in the order in which they try them."""
        return [gateway.address for gateway in self.gateways]

    def start(self) -> None:
        """Start both; the first one becomes active."""
        for gateway in self.gateways:
            gateway.start()
            wait_until(self._active, "an active gateway", READY_SECONDS)

    def close(self) -> None:
        """End both."""
        for gateway in self.gateways:
            gateway.go_on()
            gateway.close()

    def _active(self) -> list[PairGateway]:
        return [gateway for gateway in self.gateways if gateway.is_active]

    def is_whole(self) -> bool:
        """Whether one gateway is active and the other waits."""
        return sorted((one.is_active, one.is_waiting) for one in self.gateways) == [
            (False, True),
            (True, False),
        ]

    def wait_until_whole(self, seconds: float = READY_SECONDS) -> None:
        """Wait for ``is_whole``."""
        try:
            wait_until(self.is_whole, "one active gateway and one that waits", seconds)
        except AssertionError as failed:
            said = {one.name: one.readiness() for one in self.gateways}
            raise Failed(f"{failed}; they say {said}") from None

    @property
    def active(self) -> PairGateway:
        """The active gateway; waits until there is one."""
        return wait_until(self._active, "an active gateway", READY_SECONDS)[0]

    def other(self, gateway: PairGateway) -> PairGateway:
        """The other gateway of the two."""
        return next(one for one in self.gateways if one is not gateway)
