"""The gateway that is fuzzed: listeners of every kind, users, and short time-outs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpx

from amqp_ext.sasl import hash_password
from gateway.config.setting_types import token_hash
from store.sqlite.check import check
from tests.fuzz.made.frames import PASSWORD, USER
from tests.fuzz.made.kind import Kind, Listener
from tests.fuzz.made.kinds import all_kinds
from tests.fuzz.made.links import LOOKED_AT, looked_at
from tests.fuzz.made.requests import TOKEN
from tests.fuzz.made.transfers import KEY, KEY_NAME
from tests.support.frames import DISPOSITION, transfer_frame
from tests.support.peer import OK, Peer
from tests.support.running import PLAIN_HTTP
from tests.system.gateway_process import Address, GatewayProcess

MEMORY = Path("/dev/shm")
MEMORY_BYTES = 2 * 2**30

_MANY_LOOKED_AT = 30
_HASH = hash_password(PASSWORD, salt=b"0123456789abcdef", iterations=4_096)
_EVERYTHING = """
publish = ["queue://>", "topic://>"]
consume = ["queue://>", "topic://>", "log://>"]
browse = ["queue://>"]
administer = ["queue://>", "topic://>", "log://>"]
"""

_CONFIG = f"""
[limits]
handshake_timeout_ms = 10000
idle_timeout_ms = 15000
max_handshakes_per_address = 1000
[[listener]]
port = 0
sasl = ["ANONYMOUS", "PLAIN"]
[[listener]]
port = 0
sasl = ["ANONYMOUS"]
rabbitmq_mode = true
[[listener]]
port = 0
sasl = ["ANONYMOUS"]
event_hubs_mode = true
[[listener]]
port = 0
sasl = ["ANONYMOUS"]
websocket = {{}}
[[listener]]
port = 0
sasl = ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"]
[user.anonymous]
{_EVERYTHING}
[user.{USER}]
password = "{_HASH}"
[user.{KEY_NAME}]
sas_key_file = "{{key}}"
{_EVERYTHING}
[user.bystander]
password = "{_HASH}"
vpns = ["calm"]
[user.admin]
token = "{token_hash(TOKEN)}"
administer = ["queue://>", "topic://>", "log://>"]
global_access = "read-write"
[vpn.calm]
[vpn.default]
enabled = true
create_queues = true
max_endpoints = 2000
[vpn.default.replay_log]
enabled = true
write = true
read = true
quota_mb = 64
max_replays = 50
index = ["subject"]
"""
"""Administrators cannot change what this file names: the bystander's Message VPN and the other one stay. Nobody else
can enter the bystander's."""

_described: dict[str, dict[str, Any]] = {}
"""The last description that a gateway's administration returned, by the gateway's module."""

_ORDER = (Listener.PLAIN, Listener.RABBITMQ, Listener.EVENT_HUBS, Listener.WEBSOCKET, Listener.SIGN_IN)


class Target:
    """
    A gateway in a folder of its own, from start to end.

    Args:
        module: The module to run, with the arguments of ``python -m gateway``.
    """

    def __init__(self, module: str = "gateway") -> None:
        self._module = module
        in_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES
        self._folder = Path(tempfile.mkdtemp(prefix="rewind-fuzz-", dir=MEMORY if in_memory else None))
        key = self._folder / "hub.key"
        key.write_text(KEY)
        key.chmod(0o600)
        config = _CONFIG.replace("{key}", str(key))
        self.gateway = GatewayProcess(self._folder / "data", config, listen=(), module=module)
        try:
            self._put_messages()
        except BaseException:
            self.close()
            raise

    def _put_messages(self) -> None:
        with Peer.opened(self.gateway.address) as peer:
            peer.attach_sender(LOOKED_AT)
            messages = looked_at(_MANY_LOOKED_AT)
            peer.send(*(transfer_frame(0, number, content) for number, content in enumerate(messages)))
            while int((told := peer.skip_to(DISPOSITION)).field(2, told.field(1))) < len(messages) - 1:
                pass
            peer.close()

    @cached_property
    def addresses(self) -> Mapping[Listener, Address]:
        """The address of each listener."""
        admin = urlsplit(self.gateway.ready["admin"])
        found = dict(zip(_ORDER, self.gateway.addresses, strict=True))
        return found | {Listener.ADMINISTRATION: (admin.hostname or "", admin.port or 0)}

    @cached_property
    def kinds(self) -> Mapping[str, Kind]:
        """
        Every kind of input by its name.

        It uses an earlier gateway's description of the administration if there is one: loading the administration takes
        longer than a start, and most gateways that are started to reduce a finding do not need it.
        """
        return all_kinds(_described.get(self._module) or self.described())

    def described(self) -> dict[str, Any]:
        """The administration's description of itself."""
        url = f"{self.gateway.ready['admin']}/openapi.json"
        _described[self._module] = dict(httpx.get(url, **PLAIN_HTTP).json())
        return _described[self._module]

    def bystander(self) -> Peer:
        """A connection to the Message VPN that nobody else may enter."""
        peer = Peer.connect(self.gateway.address)
        assert peer.plain("bystander", PASSWORD) == OK
        peer.open(hostname="calm")
        peer.begin()
        return peer

    def stop(self) -> str | None:
        """Stop it as an operator does; returns what was wrong with that, or None."""
        if (status := self.gateway.stop()) != 0:
            return f"the gateway ended with status {status}"
        problems = [
            f"{file.name}: {problem}"
            for file in sorted(self.gateway.data.glob("*.db"))
            for problem in check(file)
        ]
        return "; ".join(problems) or None

    def close(self) -> None:
        """Kill it if it still runs, and remove the folder."""
        if self.gateway.is_running:
            self.gateway.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Target:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
