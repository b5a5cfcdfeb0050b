"""A gateway with a log to read, in a process that keeps its port and folder when it is killed and started again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Self

from amqp_ext.codec import Described, encode
from spark_bridge.amqp_client.links import Sender
from spark_bridge.amqp_client.wire import Wire
from spark_bridge.options import parse
from tests.support.ports import free_port
from tests.system.gateway_process import GatewayProcess


def text(body: bytes, topic: str) -> bytes:
    """An encoded message to publish, with its topic in ``to`` and one data section."""
    return encode(Described(0x73, [None, None, f"topic://{topic}"])) + encode(Described(0x75, body))


class LogGateway:
    """
    ``rewind serve`` for the duration of a ``with`` block.

    Args:
        folder: The folder for its data folder; it is created.
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
        """The option ``url``; the same after each start."""
        return f"amqp://{self._listen}"

    @property
    def path(self) -> str:
        """The option ``path``: its data folder."""
        return str(self.data)

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not killed after that."""
        return self._process is not None

    def start(self) -> None:
        """Start the gateway, and return when clients can connect."""
        self._process = GatewayProcess(self.data, self._config, listen=(self._listen,))

    def kill(self) -> None:
        """Kill the gateway with SIGKILL, and return after it has ended."""
        assert self._process is not None
        self._process.kill()
        self._process = None

    def publish(self, messages: Iterable[bytes]) -> int:
        """Publish messages in order to the addresses in their properties; returns how many were accepted."""
        with Wire(parse({"url": self.url}).broker) as wire:
            return Sender(wire, None).send(messages)

    def erase(self, *ids: int, reason: str) -> None:
        """Erase the contents of these messages."""
        assert self._process is not None
        wanted = {"msgId": ids, "reason": reason}
        answer = self._process.ask("PUT", "action", "/replayLogs/default/redactMsg", wanted)
        assert answer["msgIds"] == list(ids)
