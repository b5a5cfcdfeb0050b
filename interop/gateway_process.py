"""The gateway that clients are tried on: a process of its own in a temporary folder, which can be restarted."""

from __future__ import annotations

import json
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parent.parent
READY_WITHIN = 60.0  # seconds
STOP_WITHIN = 20.0  # seconds, before it is killed


class GatewayProcess:
    """
    ``rewind serve`` on free ports that it keeps over restarts: one for plain connections, one for WebSockets.

    It is a context manager, which stops the gateway and removes its folder.

    Args:
        switches: Switches of its plain listener that are to be on.
        settings: More of its configuration, in TOML.
        ports: The ports of its listeners; 0 is a free one.
    """

    def __init__(
        self, switches: Sequence[str] = (), settings: str = "", ports: tuple[int, int] = (0, 0)
    ) -> None:
        self._switches = switches
        self._settings = settings
        self._folder = Path(tempfile.mkdtemp(prefix="rewind-interop-"))
        self._process: subprocess.Popen[str] | None = None
        self._ports = list(ports)
        self.url = ""
        self.websocket_url = ""
        self.admin_url = ""

    @property
    def failover_url(self) -> str:
        """The url for programs that reconnect; several with commas between them, where there are several gateways."""
        return self.url

    def __enter__(self) -> GatewayProcess:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start it and wait until it accepts clients. Raises RuntimeError, with its last lines, if it does not."""
        listener = "".join(f"{switch} = true\n" for switch in self._switches)
        configuration = self._folder / "rewind.toml"
        plain, websocket = self._ports
        configuration.write_text(
            f"[[listener]]\nport = {plain}\n{listener}"
            f"[[listener]]\nport = {websocket}\n[listener.websocket]\n"
            f"[admin]\nport = 0\n{self._settings}"
        )
        command = [sys.executable, "-m", "gateway", "serve", "--data", str(self._folder / "data")]
        command += ["--config", str(configuration)]
        with (self._folder / "log").open("a") as log:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], READY_WITHIN)
        line = self._process.stdout.readline() if readable else ""
        if not line:
            raise RuntimeError(f"The gateway did not become ready.\n{self.last_lines()}")
        ready = json.loads(line)
        self.url, self.websocket_url = ready["amqp"]
        self.admin_url = ready["admin"]
        self._ports = [urlsplit(url).port or 0 for url in (self.url, self.websocket_url)]

    def stop(self) -> None:
        """End it as an administrator would."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._process is not None:
            self._process.kill()
        self.stop()

    def restart(self) -> None:
        """Stop it and start it again on the same port, with its data."""
        self.stop()
        self.start()

    def last_lines(self, count: int = 10) -> str:
        """The end of its log."""
        log = self._folder / "log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-count:]) if log.exists() else ""
