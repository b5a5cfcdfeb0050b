"""A line of the log for each change that an administrator made or tried, and for each request that was turned away:
who, from where, what, and what came of it.
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
"""Key of a request's scope: what is known of it, for its line."""

LOOKING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""

_TURNED_AWAY: Final = frozenset({401, 403, 421})

CLIENTS_ROOT: Final = "/v1/"
"""Of what clients ask for, who are no administrators: they have lines of their own."""

SIGN_IN: Final = "/session"
"""Of who has signed in with a browser. Bodies have passwords: none goes into a line."""

SIGN_IN_RETURN: Final = "/session/return"
"""Where browsers sign in that come from an identity provider, with a GET whose query goes into no line."""

MOST_PATH: Final = 300
MOST_BODY: Final = 500
MOST_NAME: Final = 80
"""Characters of what a peer says that go into a line."""


@dataclass(slots=True)
class Asked:
    """A request, as its line will tell of it."""

    user: str = ""
    """Who asks, or says to; empty for nobody."""
    status: int = 500
    """Of the answer; where there is none, a mistake of ours."""
    reason: str = ""
    """Why it was refused."""
    body: bytearray = field(default_factory=bytearray)
    """The beginning of it."""


def asked_of(scope: MutableMapping[str, Any]) -> Asked:
    """What is known of a request."""
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
            if is_kept:  # messages of clients are nothing for a log
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
            # Who is not known can ask as often as he likes.
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
