"""The audit: a line in the gateway's log for each change that an administrator made or tried, and for each request that
was turned away: who sent it, from where, what it asked for, and the outcome.
"""

from __future__ import annotations

import time
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.logging import lines, log_keys
from gateway.logging.lines import PeerLines

log = structlog.get_logger()

_ASKED: Final = "rewind.asked"
"""Key of a request's scope: its ``Asked``."""

LOOKING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""

_TURNED_AWAY: Final = frozenset({401, 403, 421})

CLIENTS_ROOT: Final = "/v1/"
"""Path of HTTP clients' requests. They are not administrators, and have log lines of their own."""

SIGN_IN: Final = "/session"
"""Where browsers sign in. Bodies have passwords: none goes into a line."""

SIGN_IN_RETURN: Final = "/session/return"
"""Where a browser signs in that returns from an identity provider, with a GET whose query goes into no line."""

MOST_PATH: Final = 300
MOST_BODY: Final = 500
MOST_NAME: Final = 80
"""Characters of what a peer says that go into a line."""


@dataclass(slots=True)
class Asked:
    """What the line about a request says."""

    user: str = ""
    """The user, or the name that the request claims; empty without one."""
    status: int = 500
    """Status of the answer; 500 where an error of ours prevented one."""
    reason: str = ""
    """Why it was refused."""
    body: bytearray = field(default_factory=bytearray)
    """The beginning of its body."""


def asked_of(scope: MutableMapping[str, Any]) -> Asked:
    """What the line about a request will say, to be filled in."""
    found: Asked = scope.setdefault(_ASKED, Asked())
    return found


class AuditLog:
    """Writes the lines."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._lines = PeerLines(time.monotonic, lines.BURST, lines.PER_SECOND)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = asked_of(scope)
        is_client = scope["path"].startswith(CLIENTS_ROOT)
        is_kept = not is_client and scope["path"] != SIGN_IN

        async def heard() -> Message:
            message = await receive()
            if is_kept:  # neither messages nor passwords belong in a log
                asked.body += message.get("body", b"")[: MOST_BODY - len(asked.body)]
            return message

        async def answered(message: Message) -> None:
            if message["type"] == "http.response.start":
                asked.status = message["status"]
            await send(message)

        try:
            await self._app(scope, heard, answered)
        finally:
            changes = scope["method"] not in LOOKING or scope["path"] == SIGN_IN_RETURN
            if (changes and not is_client) or asked.status in _TURNED_AWAY:
                self._write(scope, asked)

    def _write(self, scope: Scope, asked: Asked) -> None:
        values = _values(scope, asked)
        if asked.status < 400:
            log.info("administered", **values)
            return
        if asked.status == 401 or scope["path"] in (SIGN_IN, SIGN_IN_RETURN):
            # Nothing else limits how often unknown callers send requests.
            held_back = self._lines.admit(values[log_keys.PEER].rpartition(":")[0], "administration_refused")
            if held_back is None:
                return
            if held_back:
                values[log_keys.HELD_BACK] = held_back
        log.warning("administration_refused", **values, **{log_keys.REASON: asked.reason})


def _values(scope: Scope, asked: Asked) -> dict[str, Any]:
    client = scope.get("client")
    path = (scope.get("raw_path") or scope["path"].encode()).decode("ascii", "replace")
    return {
        log_keys.USER: asked.user[:MOST_NAME],
        log_keys.PEER: f"{client[0]}:{client[1]}" if client else "",
        log_keys.OPERATION: f"{scope['method'][:20]} {path[:MOST_PATH]}",
        log_keys.BODY: asked.body.decode("utf-8", "replace"),
        log_keys.STATUS: asked.status,
    }
