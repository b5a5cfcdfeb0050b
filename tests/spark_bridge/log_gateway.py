"""A gateway with a log to be read: a process of its own that keeps its port and its folder, so that it can be killed
and come back.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Self

import httpx

from amqp_ext.codec import Described, encode
from spark_bridge.amqp_client.links import Sender
from spark_bridge.amqp_client.wire import Wire
from spark_bridge.options import parse
from tests.support.ports import free_port
from tests.support.running import PLAIN_HTTP
from tests.system.gateway_process import GatewayProcess


def text(body: bytes, topic: str) -> bytes:
    """An encoded message to be published: where to, and one data section."""
    return encode(Described(0x73, [None, None, f"topic://{topic}"])) + encode(Described(0x75, body))


class LogGateway:
    """
    ``rewind serve``, from the beginning of a ``with`` block to its end.

    Args:
        folder: Where its data folder, its configuration and its own log lie; it is made.
        config: Settings in TOML.
    """

    def __init__(self, folder: Path, config: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.data = folder / "data"
        self._config = config
        self._process: GatewayProcess | None = None
        self._listen = f"127.0.0.1:{free_port()}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process is not None:
            self._process.kill()

    @property
    def url(self) -> str:
        """Where clients connect, the same after each start: the option ``url``."""
        return f"amqp://{self._listen}"

    @property
    def path(self) -> str:
        """Its data folder: the option ``path``."""
        return str(self.data)

    @property
    def is_running(self) -> bool:
        """Whether it was started and not killed since."""
        return self._process is not None

    def start(self) -> None:
        """Return when clients can connect."""
        self._process = GatewayProcess(self.data, self._config, listen=(self._listen,))

    def kill(self) -> None:
        """SIGKILL; it is gone when this returns."""
        assert self._process is not None
        self._process.kill()
        self._process = None

    def publish(self, messages: Iterable[bytes]) -> int:
        """Publish them to where their properties say, in order; how many were accepted."""
        with Wire(parse({"url": self.url}).broker) as wire:
            return Sender(wire, None).send(messages)

    def erase(self, *ids: int, reason: str) -> None:
        """Have these messages' contents be no more."""
        assert self._process is not None
        url = f"{self._process.ready['admin']}/SEMP/v2/action/msgVpns/default/replayLogs/default/redactMsg"
        answer = httpx.put(url, json={"msgId": ids, "reason": reason}, **PLAIN_HTTP)
        assert answer.status_code == 200, answer.text
        assert answer.json()["data"]["msgIds"] == list(ids)
