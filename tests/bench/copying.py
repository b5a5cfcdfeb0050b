"""An administrator who has a part of the log copied into a queue over HTTP, again and again, on a thread of its own."""

from __future__ import annotations

import json
import threading
import time
from types import TracebackType
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

from .load import LoadFailed

SECONDS = 600
"""How long one copy may take."""

LOOK_SECONDS = 0.1
"""Seconds from one question how far it is to the next. A hundred of them a second cost publishers beside them more than
the copy does: each takes some milliseconds of the loop's processor."""


class Copying:
    """
    From the beginning of a ``with`` block until the first copy that is over at its end, or later.

    Args:
        topic: What is copied, all that the log has of it.
        target: Where to.
        rate: Messages a second at most; None for no bound.
    """

    def __init__(self, admin: str, topic: str, target: str, rate: float | None = None) -> None:
        self._root = f"{admin}/SEMP/v2"
        self._body = {"subscriptions": [topic], "target": target, "rate": rate}
        self._error: Exception | None = None
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="copying", daemon=True)
        self.rate = 0.0
        """Messages copied in a second, while one copy or the next was under way."""

    def __enter__(self) -> Copying:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_ending.set()
        self._thread.join()
        if self._error is not None and kind is None:
            raise self._error

    def _run(self) -> None:
        copied, seconds = 0, 0.0
        try:
            while not (copied and self._is_ending.is_set()):
                started = time.perf_counter()
                copied += self.copy()
                seconds += time.perf_counter() - started
        except Exception as error:
            self._error = error
        else:
            self.rate = copied / seconds

    def copy(self) -> int:
        """One copy, from its beginning to its end: how many messages."""
        name = self._ask("PUT", "action", "/replayLogs/default/startCopy", self._body)["replayName"]
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            record = self._ask("GET", "monitor", f"/replays/{quote(name)}")
            if record["state"] == "complete":
                return int(record["sentMsgCount"])
            if record["state"] != "running":
                break
            time.sleep(LOOK_SECONDS)
        raise LoadFailed(f"a copy is {record['state']}: {record['outcome']}")

    def _ask(self, method: str, tree: str, path: str, body: Any = None) -> dict[str, Any]:
        request = Request(
            f"{self._root}/{tree}/msgVpns/default{path}",
            json.dumps(body).encode() if body is not None else None,
            {"Content-Type": "application/json"},
            method=method,
        )
        with urlopen(request, timeout=SECONDS) as answer:
            found: dict[str, Any] = json.load(answer)["data"]
        return found
